"""`lanes.mapped`: where `jax.vmap` asks for a batch, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_form import emulate
from jax.sharding import Mesh, PartitionSpec
from tiers import tiers
from xla_and_lanes import raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.lanes import mapping
from ecn_marl.sim.core.lifecycle import FREE
from ecn_marl.wrappers import AutoReset


def turn(x: jax.Array, table: jax.Array, at: jax.Array) -> Any:
    """Something with sums, look-ups and a loop."""
    y = x * table[at] + x.sum()
    return jax.lax.scan(lambda c, _: (c * 0.5 + y, None), y, None, length=3)[0], x[at]


def inputs(*lead: int) -> tuple[jax.Array, jax.Array]:
    """Numbers and indices with leading axes."""
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(*lead, 6)).astype(np.float32)),
        jnp.asarray(rng.integers(0, 6, (*lead, 6)).astype(np.int32)),
    )


TABLE = jnp.arange(6.0)

plain = jax.jit(jax.vmap(turn, (0, None, 0)))
"""The same through XLA."""


def compiled(fun: Any, *args: Any) -> bool:
    """Whether a program calls compiled lanes."""
    return "ecn_marl_lanes" in jax.jit(fun).lower(*args).as_text()


@pytest.mark.parametrize("envs", tiers([1, 3, 8, 9, 16, 70], 1, 16, 70))
def test_batches_are_compiled(envs: int) -> None:
    """Whole vectors, and batches that end within one."""
    x, at = inputs(envs)
    fast = jax.vmap(lanes.mapped(turn), (0, None, 0))
    assert compiled(fast, x, TABLE, at)
    expected = plain(x, TABLE, at)
    for a, b in zip(expected, jax.jit(fast)(x, TABLE, at), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_what_is_not_mapped_is_left_to_xla() -> None:
    """The function of one environment is what it was, and can be differentiated."""
    x, at = inputs(3)
    assert not compiled(lanes.mapped(turn), x[0], TABLE, at[0])
    expected = turn(x[1], TABLE, at[1])
    for a, b in zip(expected, lanes.mapped(turn)(x[1], TABLE, at[1]), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


def test_arguments_that_are_no_arrays_are_fixed() -> None:
    """Such as parameters in an object of the user's."""

    class Table:
        rows = TABLE

    def fun(table: Table, x: jax.Array, at: jax.Array) -> Any:
        return turn(x, table.rows, at)

    x, at = inputs(16)
    fast = jax.vmap(lambda x, at: lanes.mapped(fun)(Table(), x, at))
    assert compiled(fast, x, at)
    expected = plain(x, TABLE, at)
    for a, b in zip(expected, fast(x, at), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_off() -> None:
    """On request, everything is left to XLA."""
    x, at = inputs(16)
    with lanes.off():
        assert not compiled(jax.vmap(lanes.mapped(turn), (0, None, 0)), x, TABLE, at)
    assert compiled(jax.vmap(lanes.mapped(turn), (0, None, 0)), x, TABLE, at)


@pytest.mark.parametrize("per_seed", [True, False])
def test_batches_of_batches(per_seed: bool) -> None:
    """Seeds times environments; what a batch shares may differ between seeds."""
    x, at = inputs(3, 10)
    tables = jnp.stack([TABLE, TABLE + 1, -TABLE]) if per_seed else TABLE
    inner = jax.vmap(lanes.mapped(turn), (0, None, 0))
    axes = (0, 0 if per_seed else None, 0)
    assert compiled(jax.vmap(inner, axes), x, tables, at)
    expected = jax.jit(jax.vmap(plain, axes))(x, tables, at)
    for a, b in zip(expected, jax.jit(jax.vmap(inner, axes))(x, tables, at), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lead", [(0, 3), (3, 0), (0, 20)])
def test_batches_without_environments_are_left_to_xla(lead: tuple[int, int]) -> None:
    """A vector writes its last environment in every lane: here it would be beyond the results."""
    x, at = inputs(*lead)
    fast = jax.vmap(jax.vmap(lanes.mapped(turn), (0, None, 0)), (0, None, 0))
    assert not compiled(fast, x, TABLE, at)
    assert [found.shape for found in fast(x, TABLE, at)] == [(*lead, 6)] * 2
    x, at = inputs(0)
    assert [found.shape for found in lanes.vmap(turn, (0, None, 0))(x, TABLE, at)] == [(0, 6)] * 2


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ((0, 0), ((5, 3), (4, 3))),
        ((0, 0), ((4, 3), (5, 3))),
        ((None, None), ((3,), (3,))),
        ((1, 0), ((3, 4), (4, 3))),
        ((0, 0), ((4, 3), ())),
    ],
)
def test_batches_that_do_not_fit_their_axes_are_refused(axes: Any, shapes: Any) -> None:
    """Vector code would read beyond the end of the shorter array."""
    with pytest.raises(lanes.InvalidValue, match=r"in_axes = .* leading axis of environments"):
        lanes.vmap(lambda x, y: x + y, axes)(*map(jnp.ones, shapes))


def test_within_a_scan_results_take_the_place_of_arguments() -> None:
    """A state that is updated turn by turn; the caller's array is not changed."""

    def step(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = state * 0.5 + jax.random.uniform(key, state.shape)
        return state.sum(), state

    def run(state: jax.Array, keys: jax.Array, step: Any) -> Any:
        def body(s: jax.Array, k: jax.Array) -> Any:
            total, s = jax.vmap(step)(s, jax.random.split(k, 12))
            return s, total

        return jax.lax.scan(body, state, keys)

    start, keys = inputs(12)[0], jax.random.split(jax.random.key(0), 5)
    before = np.array(start)
    expected = jax.jit(lambda s, k: run(s, k, step))(start, keys)
    found = jax.jit(lambda s, k: run(s, k, lanes.mapped(step, {0: 1})))(start, keys)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(start, before)


LOADS = {
    "mixed": lambda state, key: (state[0] * 100).astype(jnp.int32),
    "falling": lambda state, key: -jnp.abs(state).sum(),
    "one for all": lambda state, key: 0,
}


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("envs", [8, 37])
@pytest.mark.parametrize("gpu", [False, True])
def test_results_do_not_depend_on_who_shares_a_vector(
    monkeypatch: pytest.MonkeyPatch, name: str, envs: int, gpu: bool
) -> None:
    """To the bit, flags and states that are updated in place included."""

    def step(state: jax.Array, key: jax.Array) -> Any:
        state = state * 0.5 + jax.random.uniform(key, state.shape)
        return state.sum(), state, state > 0.5

    def batches(load: Any) -> Any:
        fast = lanes.mapped(step, {0: 1}, load)

        def body(s: jax.Array, k: jax.Array) -> Any:
            total, s, high = jax.vmap(fast)(s, jax.random.split(k, envs))
            return s, (total, high)

        return jax.jit(lambda s, k: jax.lax.scan(body, s, k))

    if gpu:
        emulate(monkeypatch)
    start, keys = inputs(envs)[0], jax.random.split(jax.random.key(0), 5)
    ordered = batches(LOADS[name])
    assert ("sort" in ordered.lower(start, keys).as_text()) == (envs > mapping.widest())
    for a, b in zip(
        *(jax.tree.leaves(f(start, keys)) for f in (batches(None), ordered)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_wide_and_narrow_vectors_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them is faster depends on the processor."""
    x, at = inputs(37)
    widths = {mapping.widest(), *mapping.LANES[-2:]}
    assert widths == {8, 16}
    results = []
    for width in sorted(widths):
        monkeypatch.setattr(mapping, "widest", lambda width=width: width)
        results.append(jax.vmap(lanes.mapped(turn), (0, None, 0))(x, TABLE, at))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("features", "width"), [({"avx512f": True}, 16), ({"avx2": True}, 8)])
def test_the_widest_vector_is_that_of_the_registers(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], width: int
) -> None:
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: features)
    assert mapping.widest.__wrapped__() == width


def test_the_busiest_environments_share_a_vector() -> None:
    """Episodes are the same to the bit; the load is the last slot in use."""
    env = AutoReset(ecn_marl.make("websearch-star-v0"))
    params = env.default_params

    def episode(key: jax.Array, state: Any) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            action = env.action.sample(key, env.num_agents)
            _, state, reward, *_ = env.step(key, state, action, params)
            return state, (reward, env.load(state), state.env.sim.flows.stage)

        return jax.lax.scan(step, state, jax.random.split(key, 20))

    keys = jax.random.split(jax.random.key(0), 40)
    state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)[1]
    unordered = jax.jit(jax.vmap(lanes.mapped(episode)))
    after, (_, loads, stages) = unordered(keys, state)
    used = np.asarray(stages != FREE)
    last = used.shape[-1] - np.argmax(used[..., ::-1], -1)
    np.testing.assert_array_equal(loads, np.where(used.any(-1), last, 0))
    assert len(np.unique(loads[:, -1])) > 3
    ordered = jax.jit(jax.vmap(lanes.mapped(episode, {1: 0}, lambda key, state: env.load(state))))
    for a, b in zip(*(jax.tree.leaves(f(keys, after)) for f in (unordered, ordered)), strict=True):
        np.testing.assert_array_equal(raw(a), raw(b))


def test_on_several_devices() -> None:
    """Every device runs its share of the batch."""
    x, at = inputs(32)
    mesh = Mesh(np.array(jax.devices()[:1]), ("env",))
    split, whole = PartitionSpec("env"), PartitionSpec()
    fast = jax.vmap(lanes.mapped(turn), (0, None, 0))
    run = jax.jit(
        jax.shard_map(
            fast, mesh=mesh, in_specs=(split, whole, split), out_specs=split, check_vma=False
        )
    )
    expected = plain(x, TABLE, at)
    for a, b in zip(expected, run(x, TABLE, at), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_shard_map_that_follows_devices_is_told_what_to_do() -> None:
    """With `check_vma`, JAX spoke of types of a loop somewhere in the simulator."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("env",))
    split = PartitionSpec("env")

    def run(x: jax.Array) -> jax.Array:
        step = jax.vmap(lanes.mapped(lambda x: x * 2.0))
        return jax.lax.scan(lambda c, _: (step(c), None), x, None, length=2)[0]

    x = inputs(32)[0]
    with pytest.raises(lanes.InvalidValue, match=r"check_vma = True .* check_vma=False"):
        jax.shard_map(run, mesh=mesh, in_specs=split, out_specs=split)(x)
    sharded = jax.shard_map(run, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    np.testing.assert_allclose(sharded(x), 4.0 * x)


def test_programs_that_cannot_be_compiled_are_left_to_xla_with_a_warning() -> None:
    """Users may bring traffic and rewards that use anything."""

    def fun(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda v: v.sum() < 10, lambda v: v + 1, x)

    x = inputs(16)[0]
    with pytest.warns(UserWarning, match=r"while.*left to XLA"):
        found = jax.vmap(lanes.mapped(fun))(x)
    np.testing.assert_array_equal(found, jax.vmap(fun)(x))


def test_batches_cannot_be_differentiated() -> None:
    """Said at once, not by wrong gradients."""
    x, at = inputs(16)

    def loss(x: jax.Array) -> jax.Array:
        return jax.vmap(lanes.mapped(turn), (0, None, 0))(x, TABLE, at)[0].sum()

    with pytest.raises(Exception, match=r"differentiate = .* compiled for lanes"):
        jax.grad(loss)(x)
