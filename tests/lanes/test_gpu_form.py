"""The GPU form of programs: emulated on this processor, as PTX, and how it is launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gpu_form
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_operations
import test_programs
from hypothesis import given, settings
from xla_and_lanes import raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.wrappers import AutoReset
from tests.lanes import test_idle

VOTES = {"own": "%mine", "all": "true"}
"""How emulated warps vote: a thread is alone in its warp, or others always have work."""


@pytest.fixture(scope="module", params=sorted(VOTES))
def kernels(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Batches run through emulated kernels; their texts."""
    with pytest.MonkeyPatch.context() as patch:
        yield gpu_form.emulate(patch, vote=VOTES[request.param])


@pytest.fixture
def own_votes() -> Iterator[list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        yield gpu_form.emulate(patch)


PROGRAMS = {
    "moving": test_programs.test_moving_elements,
    "sums": test_programs.test_reductions_and_running_sums,
    "positions": lambda: test_programs.test_data_dependent_positions(8),
    "shared": test_programs.test_shared_arguments,
    "loops": test_programs.test_loops,
    "branches": test_programs.test_branches,
    "random": test_programs.test_random_numbers_are_bit_exact,
    "floats": test_operations.test_arithmetic_and_comparisons_of_floats_are_exact,
    "signed": lambda: test_operations.test_integers_are_exact(np.int32),
    "unsigned": lambda: test_operations.test_integers_are_exact(np.uint32),
    "conversions": test_operations.test_conversions_saturate,
    "exp": lambda: test_operations.test_transcendentals_against_float64("exp", 10.0),
    "log1p": lambda: test_operations.test_transcendentals_against_float64("log1p", 1.0),
    "total order": test_operations.test_total_order_sorts_like_integers,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_results_of_xla(own_votes: list[str], name: str) -> None:
    """The tests of vector code, through emulated threads."""
    PROGRAMS[name]()
    assert own_votes
    assert not any("x float>" in text for text in own_votes)


@settings(max_examples=8)
@given(
    st.lists(st.sampled_from(sorted(test_idle.STEPS)), min_size=1, max_size=5),
    st.sampled_from(["one loop", "two loops", "no loop"]),
)
def test_loops_pass_over_idle_elements(kernels: list[str], names: list[str], shape: str) -> None:
    """To the bit, whether the others of a warp have work or not."""
    test_idle.test_results_are_those_of_all_elements.hypothesis.inner_test(names, shape)
    assert kernels


def test_warps_go_through_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """More environments than threads: two warps, two and a half rounds; shared tables stay."""
    gpu_form.emulate(monkeypatch, most=2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(150, 5)).astype(np.float32))
    table = jnp.arange(7.0)

    def fun(x: jax.Array, table: jax.Array) -> Any:
        return x * (table**2).sum() + table[(x > 0).sum()], x > 0

    expected = jax.vmap(fun, (0, None))(x, table)
    for a, b in zip(expected, lanes.vmap(fun, (0, None))(x, table), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)


ENVS, STEPS = 40, 3


@pytest.fixture(scope="module")
def episodes() -> dict[str, Any]:
    """Steps of websearch-v0 through XLA and through a kernel, from the same states."""
    env = AutoReset(ecn_marl.make("websearch-v0"))
    params = replace(env.default_params, max_steps=jnp.int32(2))
    quick = {"xla_backend_optimization_level": 0}
    keys = jax.random.split(jax.random.key(0), ENVS)
    _, state = (
        jax.jit(jax.vmap(env.reset, (0, None))).lower(keys, params).compile(quick)(keys, params)
    )
    action = jax.vmap(lambda k: env.action.sample(k, env.num_agents))(keys)
    axes = (0, 0, 0, None)
    with pytest.MonkeyPatch.context() as patch:
        texts = gpu_form.emulate(patch)
        fast = jax.jit(lanes.vmap(env.step, axes, {1: 1})).lower(keys, state, action, params)
        fast = fast.compile(quick)
    slow = jax.jit(jax.vmap(env.step, axes)).lower(keys, state, action, params).compile(quick)
    rows = []
    for _ in range(STEPS):
        expected, found = (f(keys, state, action, params) for f in (slow, fast))
        rows.append((expected, found))
        state = expected[1]
        keys = jax.vmap(lambda k: jax.random.fold_in(k, 1))(keys)
    return {"rows": rows, "text": texts[0]}


def test_steps_of_environments_are_those_of_xla(episodes: dict[str, Any]) -> None:
    """Observations, states, rewards, ends and restarts; a coin may fall otherwise by rounding."""
    for expected, found in episodes["rows"]:
        agree = total = 0
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            x, y = raw(a), raw(b)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            agree += np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum()
            total += x.size
        assert agree >= 0.995 * total
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-3, atol=1e-4)  # rewards
        np.testing.assert_array_equal(found[4], expected[4])  # ends by time
    ends = [bool(np.all(expected[4])) for expected, _ in episodes["rows"]]
    assert ends == [False, True, False]
