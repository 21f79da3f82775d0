"""Loops that pass over idle elements: same results, and they do pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from ecn_marl import lanes
from ecn_marl.lanes.lower import lower
from ecn_marl.lanes.schedule import make_plan
from ecn_marl.lanes.steps import Group, Step, Turns
from tests.lanes.xla_and_lanes import check

N, ENVS = 8, 18
EACH = np.arange(N)


def batch(kind: Any, low: int, high: int, seed: int) -> jax.Array:
    """Whole numbers, so that sums are exact in any order."""
    found = np.random.default_rng(seed).integers(low, high, (ENVS, N))
    return jnp.asarray(found.astype(kind))


def stages(seed: int = 0) -> jax.Array:
    """Turns that each element is still busy; some are idle in all environments."""
    found = np.random.default_rng(seed).integers(-2, 4, (ENVS, N)).astype(np.int32)
    found[:, 3] = found[:, 5:7] = 0
    return jnp.asarray(np.maximum(found, 0))


def passing(fun: Callable[..., Any], *args: jax.Array) -> list[Group]:
    """Loops over elements that pass over some."""
    one = [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in args]
    program = lower(jax.make_jaxpr(lambda *a: jax.tree.leaves(fun(*a)))(*one), [True] * len(args))
    plan = make_plan(program.top, program.results, program.flags, 16)

    def groups(steps: list[Step]) -> Iterator[Group]:
        for step in steps:
            if isinstance(step, Turns):
                yield from groups(step.steps)
            else:
                yield step

    return [g for g in groups(plan.steps) if g.flag is not None]


def where(on: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(on, new, old)


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "keep": lambda on, a, b, s, i: (where(on, a + b, a), b, s),
    "keep through a product": lambda on, a, b, s, i: (a, where(on, (2 * a - b) * (a > b), b), s),
    "sum": lambda on, a, b, s, i: (a, b, s + where(on, a, 0.0).sum()),
    "sum by row": lambda on, a, b, s, i: (a, b, s.at[i % 3].add(where(on, b, 0.0))),
    "count": lambda on, a, b, s, i: (a, b, s.at[i].add(on.astype(jnp.float32), mode="drop")),
    "look up": lambda on, a, b, s, i: (where(on, b[i], a), b, s),
    "reach": lambda on, a, b, s, i: (where(on, a, a - 0.0), where(on & (i > 2), a[::-1], b), s),
    "all change": lambda on, a, b, s, i: (a + 1.0, b, s),
    "all are read": lambda on, a, b, s, i: (a, b, s + (a * 2.0).sum()),
    "neighbours": lambda on, a, b, s, i: (jnp.roll(a, 1), where(on, jnp.roll(b, 1), b), s),
    "scatter": lambda on, a, b, s, i: (where(on, a, a).at[i].set(b), b, s),
    "log": lambda on, a, b, s, i: (a, b, s.at[where(on & (EACH == 2), 1, 3)].set(b, mode="drop")),
    "log elsewhere": lambda on, a, b, s, i: (
        a.at[where(on, (EACH + 1) % N, N)].set(b, mode="drop"),
        b,
        s,
    ),
    "swap": lambda on, a, b, s, i: (where(on, b, a), where(on, a, b), s),
    "free": lambda on, a, b, s, i: (where(on, 0.0, a), b, s),
    "start over": lambda on, a, b, s, i: (
        where(lanes.busy(s[0] > 20.0), b - 1.0, a),
        b,
        where(lanes.busy(s[1] > 15.0), jnp.zeros(3), s),
    ),
}


@settings(max_examples=10)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.sampled_from(["one loop", "two loops", "two loops and after", "no loop"]),
)
def test_results_are_those_of_all_elements(names: list[str], shape: str) -> None:
    """Random programs, to the bit, whatever is passed over and whatever may not be."""

    def work(on: jax.Array, a: jax.Array, b: jax.Array, s: jax.Array, i: jax.Array) -> Any:
        for name in names:
            a, b, s = STEPS[name](on, a, b, s, i)
            a, b, s = (jnp.clip(v, -99.0, 99.0) for v in (a, b, s))
        return a, b, s

    def turn(carry: Any, _: None) -> Any:
        stage, a, b, s, i = carry
        new = lanes.busy((stage == 0) & (a > 90.0))
        on = lanes.busy((stage > 0) | new)
        stage = jnp.where(new, 2, stage)
        b = jnp.where(new, -1.0, b)
        if shape.startswith("two loops"):

            def inner(carry: Any, _: None) -> Any:
                a, b, s = carry
                found = work(on, a, b, s, i)
                return (where(on, found[0], a), found[1], found[2]), None

            (a, b, s), _ = lax.scan(inner, (a, b, s), None, length=2)
        else:
            a, b, s = work(on, a, b, s, i)
        if shape.endswith("after"):
            # What an inner loop leaves is read, and kept where nothing changes.
            rows = jnp.zeros(4).at[jnp.where(on, i % 3, 3)].add(where(on, a + b, 0.0))
            a, b = where(on, jnp.clip(b - 1.0, -99.0, 99.0), a), where(on, 0.0, b)
            s = jnp.clip(s + rows[:3] + where(on, a, 0.0).sum(), -99.0, 99.0)
        stage = jnp.where(on, stage - 1, stage)
        return (stage, a, b, s, (i + 3) % N), None

    def fun(stage: jax.Array, a: jax.Array, b: jax.Array, i: jax.Array) -> Any:
        start = (stage, a, b, jnp.zeros(3), i)
        if shape == "no loop":
            return turn(start, None)[0]
        return lax.scan(turn, start, None, length=3)[0]

    args = (stages(), batch(np.float32, -9, 99, 1), batch(np.float32, -9, 9, 2))
    check(fun, (0, 0, 0, 0), *args, batch(np.int32, 0, N, 3))


def simple(name: str) -> Callable[..., Any]:
    """One step in a loop."""

    def fun(stage: jax.Array, a: jax.Array, b: jax.Array, i: jax.Array) -> Any:
        def turn(carry: Any, _: None) -> Any:
            stage, a, b, s = carry
            on = lanes.busy(stage > 0)
            a, b, s = STEPS[name](on, a, b, s, i)
            return (jnp.where(on, stage - 1, stage), a, b, s), None

        return lax.scan(turn, (stage, a, b, jnp.zeros(3)), None, length=3)[0]

    return fun


@pytest.mark.parametrize("name", ["keep", "sum", "sum by row", "count", "log", "look up", "free"])
def test_idle_elements_are_passed_over(name: str) -> None:
    """What only changes busy elements is done for them only."""
    numbers = batch(np.float32, 0, 9, 1)
    found = passing(simple(name), stages(), numbers, numbers, batch(np.int32, 0, N, 3))
    assert sum(len(g.items) for g in found) > 2


@pytest.mark.parametrize("name", ["all change", "all are read", "neighbours"])
def test_what_concerns_all_elements_is_done_for_all(name: str) -> None:
    """No loop that has an effect on idle elements passes over them."""
    numbers = batch(np.float32, 0, 9, 1)
    args = (stages(), numbers, numbers, batch(np.int32, 0, N, 3))
    plain, unmarked = passing(simple(name), *args), passing(simple("keep"), *args)
    names = {i.op for g in plain for i in g.items}
    assert not names & {"add", "mul", "copy"} or len(plain) < len(unmarked)


def test_a_fresh_start_is_only_made_where_one_is_needed() -> None:
    """A flag without axes: random numbers of a restart are not drawn without one."""

    def fun(x: jax.Array, key: jax.Array) -> jax.Array:
        done = lanes.busy(x.sum() > 300.0)
        fresh = jax.random.uniform(jax.random.wrap_key_data(key), (N,))
        return jnp.where(done, fresh, x + 0.0)

    x, keys = batch(np.float32, 0, 60, 4), batch(np.uint32, 0, 99, 5)[:, :2]
    check(fun, (0, 0), x, keys)
    found = {i.op for g in passing(fun, x, keys) for i in g.items}
    assert "threefry" in found
