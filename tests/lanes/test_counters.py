"""Counters of ports, and sources whose flows follow from earlier ones, through lanes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_and_lanes import CHEAP, raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.sim import ClosedLoop, Dcqcn, Graph, Poisson, Simulator, leaf_spine, ring_all_reduce
from ecn_marl.sim.random import binomial
from ecn_marl.sim.simulator import scaled_ecn
from ecn_marl.sim.state import COUNTS
from ecn_marl.wrappers import Lanes

ENVS, WARM = 16, 6


def test_binomial_numbers() -> None:
    """Up to the rounding of exponentials: of a thousand draws a few may differ by one."""
    rng = np.random.default_rng(0)
    n = jnp.asarray(rng.uniform(0, 400, (ENVS, 64)), jnp.float32)
    p = jnp.asarray(rng.uniform(0, 1, (ENVS, 64)) ** 2, jnp.float32)
    seeds = jnp.arange(ENVS, dtype=jnp.uint32)

    def draw(seed: Any, n: Any, p: Any) -> Any:
        return binomial(seed, jnp.arange(64), (21, 22), n, p)

    want = jax.jit(jax.vmap(draw))(seeds, n, p)
    found = jax.jit(lanes.vmap(draw, (0, 0, 0)))(seeds, n, p)
    assert np.abs(want - found).max() <= 1
    assert (np.asarray(want) != np.asarray(found)).sum() <= 5


@pytest.fixture(scope="module")
def interval() -> tuple[Any, Any, Any]:
    """States, and what an interval on two levels makes of them: by XLA, and by lanes."""
    loop = ClosedLoop(
        (0, 1), (2, 3), depth=3, response="FbHdp", read_share=0.5, think_us=9.0, think="exponential"
    )
    graph = Graph(ring_all_reduce((0, 2, 3), 60_000), pause_us=20.0)
    sim = Simulator(
        leaf_spine(2, 2, 2),
        (loop, graph, Poisson(load=0.5, table="FbHdp")),
        Dcqcn.of("hpcc-paper"),
        dt_us=2.0,
        interval_steps=20,
        slots=32,
        counts=COUNTS,
    )
    params = sim.default_params()
    ecn = scaled_ecn(params.net, 20.0, 80.0, 0.2)

    def advance(state: Any) -> Any:
        return sim.interval(state, params, ecn)

    keys = jax.random.split(jax.random.key(0), ENVS)
    states = jax.jit(jax.vmap(sim.init, (0, None)), compiler_options=CHEAP)(keys, params)
    plain = jax.jit(jax.vmap(advance), compiler_options=CHEAP)
    for _ in range(WARM):
        states, _ = plain(states)
    return states, plain(states), jax.jit(lanes.vmap(advance, (0,)))(states)


@pytest.mark.slow
def test_counters_are_those_of_xla(interval: tuple[Any, Any, Any]) -> None:
    """All of them, from the same states."""
    _, (_, want), (_, found) = interval
    for name in COUNTS:
        a, b = raw(getattr(want, name)), raw(getattr(found, name))
        assert a.shape == b.shape
        assert name == "n_elephants" or a.sum() > 10, name
        assert np.isclose(a, b, rtol=1e-3, atol=1.0).mean() > 0.99, name


def test_closed_loops_and_graphs_are_those_of_xla(interval: tuple[Any, Any, Any]) -> None:
    """From the same states: all that sources keep, and nearly all of the network."""
    states, (expected, _), (found, _) = interval
    before, after = (s.traffic[0].operations.sum(-1) for s in (states, expected))
    assert (after > before).mean() > 0.5
    assert int(expected.traffic[1].steps.sum()) > ENVS
    agree = total = 0
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        x, y = raw(a), raw(b)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        agree += np.isclose(y, x, rtol=1e-3, atol=1e-3, equal_nan=True).sum()
        total += x.size
    assert agree >= 0.995 * total
    for a, b in zip(jax.tree.leaves(expected.traffic), jax.tree.leaves(found.traffic), strict=True):
        assert np.isclose(raw(b), raw(a), rtol=1e-3, atol=2e-2, equal_nan=True).mean() > 0.97


def test_steps_compile_for_lanes() -> None:
    """An operation without a rule would leave the whole step to XLA, in silence."""
    telemetry = {
        "period_us": 300.0,
        "observation_delay": 2,
        "action_delay": 1,
        "pmax_percent": True,
        "one_profile": True,
        "quantum_kb": 5.0,
        "noisy_marks": True,
    }
    features = "flows,mice_fraction,marked_packets"
    env = Lanes(ecn_marl.make("websearch-star-v0", features=features, telemetry=telemetry))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), ENVS)
    _, state = jax.eval_shape(jax.vmap(env.reset, (0, None)), keys, params)
    action = jax.ShapeDtypeStruct((ENVS, env.num_agents, *env.action.shape), jnp.int32)
    step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    assert "ecn_marl_lanes" in step.lower(keys, state, action, params).as_text()
