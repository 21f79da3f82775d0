"""Programs: moving elements about, data-dependent positions, loops, and what shares memory."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from xla_and_lanes import check

from ecn_marl import lanes

BATCH = 19


def numbers(*shape: int, seed: int = 0) -> jax.Array:
    """Small integers as floats: sums of them are exact in any order."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(-9, 10, (BATCH, *shape)).astype(np.float32))


def places(*shape: int, low: int = 0, high: int = 8, seed: int = 1) -> jax.Array:
    """Indices from `low` to `high - 1`."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.integers(low, high, (BATCH, *shape)).astype(np.int32))


def test_moving_elements() -> None:
    """Slices, transpositions, joins, padding and reshapes."""

    def fun(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        z = jnp.concatenate([x, y], axis=1)
        return (
            x.T, x[1:, ::2], x[::-1], z, z[:, 3:6], jnp.stack([x, y], -1).sum(-1),
            jnp.stack([x, y])[1], x.reshape(-1)[5:20].reshape(3, 5), jnp.pad(x, ((1, 2), (0, 1))),
            jnp.broadcast_to(x[:, :1], x.shape) + y, jnp.append(x[0], 7.0), jnp.repeat(x, 2, 1),
            jnp.tile(x, (2, 1)), jnp.roll(x, 3, 1), jnp.zeros((0, 3)) + x[0, 0], jnp.eye(6) @ x.T,
        )  # fmt: skip

    check(fun, (0, 0), numbers(4, 6), numbers(4, 6, seed=1))


def test_reductions_and_running_sums() -> None:
    """Over one axis, several, or all; forwards and backwards."""

    def fun(x: jax.Array, flag: jax.Array) -> tuple[jax.Array, ...]:
        return (
            x.sum(), x.sum(0), x.sum(1), x.max(1), x.min(0), x.prod(1), flag.any(), flag.all(0),
            jnp.cumsum(x, 1), jnp.cumsum(x, 0), lax.cumsum(x, 1, reverse=True), lax.cummax(x, 0),
            jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(flag, 1), x @ x.T, jnp.sort(x, 1),
            jnp.argsort(x[0]), jnp.cumsum(flag[0]), x.mean(0),
        )  # fmt: skip

    x = numbers(4, 6)
    check(fun, (0, 0), x, x > 2)


@pytest.mark.parametrize("shape", [(2, 3), (4, 8)])
def test_loops_start_from_moved_elements(shape: tuple[int, int]) -> None:
    """What a loop starts from is not overwritten while its elements move."""

    def fun(x: jax.Array) -> tuple[jax.Array, ...]:
        starts = ((2.0 * x).T, (3.0 * x)[::-1], (4.0 * x).reshape(-1)[::-1])
        return tuple(lax.fori_loop(0, 3, lambda _, c: c + 1.0, y) for y in starts)

    check(fun, (0,), numbers(*shape))


@pytest.mark.parametrize("size", [8, 40])
def test_data_dependent_positions(size: int) -> None:
    """Short and long tables; indices within bounds and beyond, with every mode."""

    def fun(x: jax.Array, at: jax.Array, v: jax.Array, flag: jax.Array) -> tuple[jax.Array, ...]:
        rows = jnp.stack([x, 2 * x, -x], -1)
        inside = jnp.clip(at, 0, size - 1)
        two = jnp.stack([v, 2 * v], -1)
        return (
            x[at], x.at[at].get(mode="fill", fill_value=0.0), x.at[at].get(mode="clip"),
            x.at[inside].get(mode="promise_in_bounds"), rows[inside], rows[at, 1], flag[inside],
            x.at[at].add(v, mode="drop"), jnp.zeros(size).at[inside].add(v),
            jnp.zeros((size, 2)).at[inside].add(two), x.at[3].set(v[0]), x.at[2:5].add(1.0),
            lax.dynamic_slice(x, (at[0],), (3,)), lax.dynamic_update_slice(x, v[:3], (at[1],)),
            rows[2], x[jnp.array([1, 3, 2])], x[at[0]],
            jnp.zeros(size, jnp.int32).at[jnp.where(v > 0, inside, size)].add(1, mode="drop"),
            x.at[at].multiply(2.0), x.at[at].min(v), x.at[at].max(v), x.at[0].multiply(3.0),
            jnp.full(size, -1.0).at[jnp.arange(4) + inside[0] % 3].set(v[:4]),
            x.at[0].set(5.0), (x + 1).at[2:5].set(1.0), (x * 2).at[3].set(v[0]), v[0] + v[1],
            jnp.zeros(size).at[jnp.arange(size)].set(x).at[jnp.array([1, 1])].set(9.0),
            x.at[1].set(v[0]).at[jnp.array([1, 2])].set(3.0), x.at[-1].add(2.0).at[-1].set(v[1]),
        )  # fmt: skip

    x = numbers(size)
    at = places(12, low=-2, high=size + 3)
    check(fun, (0, 0, 0, 0), x, at, numbers(12, seed=2), x > 0)


@pytest.mark.parametrize("filler", [None, True, False])
def test_flags_beyond_the_end_are_what_the_program_says(filler: bool | None) -> None:
    """`fill_value` of a look-up among flags; True without one, as in JAX."""

    def fun(flag: jax.Array, at: jax.Array) -> jax.Array:
        return flag.at[at].get(mode="fill", fill_value=filler)

    check(fun, (0, 0), numbers(5) > 0, places(9, low=-7, high=9))


@pytest.mark.parametrize("size", [8, 40])
def test_unsigned_positions_beyond_int32_are_at_the_end(size: int) -> None:
    """They are large, not negative, and the same bits as a signed index mean the beginning."""

    def fun(x: jax.Array, at: jax.Array) -> tuple[jax.Array, ...]:
        signed = lax.bitcast_convert_type(at, jnp.int32)
        return (
            lax.dynamic_slice(x, (at,), (3,)), lax.dynamic_slice(x, (signed,), (3,)),
            lax.dynamic_update_slice(x, -x[:2], (at,)), lax.dynamic_index_in_dim(x, at),
        )  # fmt: skip

    at = np.resize(np.uint32([0, 3, size, 2**31 - 1, 2**31, 2**32 - 1]), BATCH)
    check(fun, (0, 0), numbers(size), jnp.asarray(at))


def test_arrays_without_elements() -> None:
    """Joined, summed up, sorted, looked up, written; and what a loop of no turns collects."""

    def fun(x: jax.Array, at: jax.Array) -> Any:
        none = x[:0]

        def turn(carry: jax.Array, row: jax.Array) -> Any:
            return carry + row, (carry > row, carry)

        last, (flags, rows) = lax.scan(turn, x[0], none)
        return (
            jnp.concatenate([none, none]), jnp.stack([none, none]), jnp.cumsum(none, 0),
            none.sum(0), lax.dynamic_slice(x, (at[0], at[1]), (0, 3)), x.at[at[:0]].add(1.0),
            x[at[:0]], lax.dynamic_update_slice(x, none, (at[0], at[1])), jnp.sort(none, 0), last,
            rows, ~flags.any(0), flags.all(0) & (x[0] > 0), ~flags,
        )  # fmt: skip

    check(fun, (0, 0), numbers(5, 4), places(3))


def test_shared_arguments() -> None:
    """What all environments share is computed once, tables included."""

    def fun(x: jax.Array, at: jax.Array, table: jax.Array, k: jax.Array) -> tuple[jax.Array, ...]:
        return table[at] * x, (table**2)[k] + x, table.sum(), jnp.where(k > 1, x, 0.0), k + 1

    check(fun, (0, 0, None, None), numbers(6), places(6), jnp.arange(8.0), jnp.int32(2))


def test_loops() -> None:
    """Carries that change places, that stay, that are rows; what is read and what is collected."""

    def fun(x: jax.Array, y: jax.Array, rows: jax.Array) -> Any:
        def body(carry: Any, row: jax.Array) -> Any:
            a, b, c, n, table = carry

            def inner(s: Any, _: None) -> Any:
                return (s[0] + s[1][::-1], s[1] + n), None

            (p, q), _ = lax.scan(inner, (a, row), None, length=2)
            table = table.at[n % 3].add(p)
            return (b, a + q, c, n + 1, table), (a[:2], n)

        start = (x, y, x + y, jnp.int32(0), jnp.stack([x, y, x]))
        return lax.scan(body, start, rows)

    check(fun, (0, 0, 0), numbers(20), numbers(20, seed=1), numbers(4, 20, seed=2))


@pytest.mark.parametrize("turns", [3, 17, 40])
def test_flags_that_loops_collect(turns: int) -> None:
    """Rows of flags, however many, flags written where data says, and what lies beside them.

    A flag is a bit per environment, which cannot be addressed environment by environment.
    """

    def fun(n: jax.Array, at: jax.Array) -> Any:
        def body(carry: Any, _: None) -> Any:
            n, seen = carry
            n = n * 1103515245 + 12345
            seen = lax.dynamic_update_slice(seen, n[:2] > 0, (at + (n[0] > 0),))
            return (n, seen), (n > 0, n, n[:3] < -1000)

        return lax.scan(body, (n, n > 2), None, length=turns)

    at = jnp.arange(BATCH, dtype=jnp.int32)
    check(fun, (0, 0), at[:, None] * 20 + jnp.arange(20), at % 17)


def test_quotients_are_those_of_xla() -> None:
    """To the bit: by constants they are products with inverses, as XLA has it."""
    rng = np.random.default_rng(5)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 3.0, 1e30, 1e-30])
    random = np.exp(rng.uniform(-10, 10, (BATCH, 40))).astype(np.float32)
    x = jnp.asarray(np.concatenate([np.tile(special, (BATCH, 1)), random], 1))
    constants = np.float32([5.0, 3.0, 1048.0, 49.0, 55.0, 0.0, np.inf])

    def fun(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        return (
            x[:, None] / constants,
            x / 49.0,
            x / y,
            7.0 / x,
        )

    check(fun, (0, 0), x, x[:, ::-1])


def test_branches() -> None:
    """A condition that differs between environments."""

    def fun(x: jax.Array) -> Any:
        def yes(v: jax.Array) -> Any:
            return v * 2, v.sum()

        def no(v: jax.Array) -> Any:
            return v - 1, v[0]

        return lax.cond(x[0] > 0, yes, no, x)

    check(fun, (0,), numbers(5))


STEPS = {
    "ends": lambda a, b, c, i: (a.at[0].set(7.0).at[-1].set(b[0]), b, (c + 1).at[2:5].set(1.0)),
    "shift": lambda a, b, c, i: (jnp.concatenate([a[1:], b[:1]]), b, c),
    "mix": lambda a, b, c, i: (a + b, b - c, c),
    "swap": lambda a, b, c, i: (b, a, c),
    "scatter": lambda a, b, c, i: (a.at[i].add(b), b, c),
    "look up": lambda a, b, c, i: (a, c[i], c),
    "set": lambda a, b, c, i: (a, b, c.at[i[0]].set(a[0])),
    "total": lambda a, b, c, i: (a, b + a.sum(), c),
    "run": lambda a, b, c, i: (jnp.cumsum(a), b, a),
    "turn": lambda a, b, c, i: ((2.0 * a).reshape(2, 4).T.reshape(-1), b, c),
    "flip": lambda a, b, c, i: (a[::-1], b, c + a),
    "choose": lambda a, b, c, i: (jnp.where(b > c, a, b), b, jnp.minimum(c, a)),
    "rows": lambda a, b, c, i: (jnp.stack([a, b])[1], jnp.stack([b, c]).sum(0), c),
}


@settings(max_examples=10)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=7),
    st.booleans(),
)
def test_any_loop_keeps_its_values_apart(before: list[str], names: list[str], nested: bool) -> None:
    """Random programs before and in loops: no value may be overwritten before its last use."""

    def steps(names: list[str], a: jax.Array, b: jax.Array, c: jax.Array, i: jax.Array) -> Any:
        for name in names:
            a, b, c = (jnp.clip(v, -99.0, 99.0) for v in STEPS[name](a, b, c, i))
        return a, b, c

    def body(carry: Any, _: None) -> Any:
        i = carry[3]
        return (*steps(names, *carry), (i + 3) % 8), None

    def fun(a: jax.Array, b: jax.Array, c: jax.Array, i: jax.Array) -> Any:
        def outer(carry: Any, _: None) -> Any:
            carry = lax.scan(body, carry, None, length=2)[0]
            return (carry[1], carry[0], *carry[2:]), None

        step, start = outer if nested else body, (*steps(before, a, b, c, i), i)
        return lax.scan(step, start, None, length=3)[0], a

    check(fun, (0, 0, 0, 0), numbers(8), numbers(8, seed=1), numbers(8, seed=2), places(8))


def test_random_numbers_are_bit_exact() -> None:
    """Keys, bits and what is drawn with them."""

    def fun(key: jax.Array, x: jax.Array) -> Any:
        one, *others = jax.random.split(key, 4)
        folded = jax.random.fold_in(others[0], 7)
        return (
            one, jax.random.bits(one, (3, 5)), jax.random.uniform(others[1], (7,)), folded,
            jax.random.randint(folded, (9,), -3, jnp.arange(9) + 1),
            jax.random.permutation(others[2], x), jax.random.bernoulli(one, 0.3, (6,)),
            jax.random.categorical(one, x), jax.vmap(jax.random.uniform)(jnp.stack(others)),
            lax.select(x[0] > 0, one, folded),
        )  # fmt: skip

    keys = jax.random.split(jax.random.key(3), BATCH)
    check(fun, (0, 0), keys, numbers(6), rtol=1e-6)


def test_what_cannot_be_compiled_is_named() -> None:
    """An error, not another result."""

    def fun(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda v: v.sum() < 10, lambda v: v + 1, x)

    with pytest.raises(lanes.Unsupported, match="while"):
        lanes.vmap(fun, (0,))(numbers(3))
