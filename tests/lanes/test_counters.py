"""Counters of ports, features and telemetry through lanes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_and_lanes import raw

import ecn_marl
from ecn_marl import lanes
from ecn_marl.sim import Dcqcn, Ecn, Poisson, Simulator, leaf_spine
from ecn_marl.sim.random import binomial
from ecn_marl.sim.state import COUNTS
from ecn_marl.wrappers import Lanes

ENVS = 16


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


@pytest.mark.slow
def test_counters_are_those_of_xla() -> None:
    """All of them, on two levels, from the same states."""
    sim = Simulator(
        leaf_spine(2, 2, 2),
        (Poisson(load=0.7, table="FbHdp"),),
        Dcqcn.of("hpcc-paper"),
        dt_us=2.0,
        interval_steps=20,
        slots=24,
        counts=COUNTS,
    )
    params, ports = sim.default_params(), sim.topology.n_ports
    ecn = Ecn(jnp.full(ports, 20e3), jnp.full(ports, 80e3), jnp.full(ports, 0.2))
    quick = {"xla_backend_optimization_level": 0}
    states = jax.vmap(sim.init, (0, None))(jax.random.split(jax.random.key(0), ENVS), params)
    batch = jax.vmap(lambda s: sim.interval(s, params, ecn))
    plain = jax.jit(batch).lower(states).compile(quick)
    for _ in range(4):
        states, _ = plain(states)
    _, want = plain(states)
    _, found = jax.jit(lanes.vmap(lambda s: sim.interval(s, params, ecn), (0,)))(states)
    for name in COUNTS:
        a, b = raw(getattr(want, name)), raw(getattr(found, name))
        assert a.shape == b.shape
        assert name == "n_elephants" or a.sum() > 10, name
        assert np.isclose(a, b, rtol=1e-3, atol=1.0).mean() > 0.99, name


@pytest.mark.parametrize(
    "options",
    [
        {"features": "flows,mice_fraction,marked_packets"},
        {
            "features": "flows",
            "telemetry": {
                "period_us": 300.0,
                "observation_delay": 2,
                "action_delay": 1,
                "pmax_percent": True,
                "one_profile": True,
                "quantum_kb": 5.0,
                "noisy_marks": True,
            },
        },
    ],
)
def test_steps_compile_for_lanes(options: dict[str, Any]) -> None:
    """An operation without a rule would leave the whole step to XLA, in silence."""
    env = Lanes(ecn_marl.make("websearch-star-v0", **options))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), ENVS)
    _, state = jax.eval_shape(jax.vmap(env.reset, (0, None)), keys, params)
    action = jax.ShapeDtypeStruct((ENVS, env.num_agents, *env.action.shape), jnp.int32)
    step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    assert "ecn_marl_lanes" in step.lower(keys, state, action, params).as_text()
