"""Sources whose flows follow from earlier ones, through lanes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from xla_and_lanes import raw

from ecn_marl import lanes
from ecn_marl.sim import ClosedLoop, Dcqcn, Graph, Simulator, leaf_spine, ring_all_reduce
from ecn_marl.sim.simulator import scaled_ecn

BATCH, WARM = 16, 6


@pytest.mark.slow
def test_closed_loops_and_graphs_are_those_of_xla() -> None:
    """From the same states: all that sources keep, and nearly all of the network."""
    loop = ClosedLoop(
        (0, 1), (2, 3), depth=3, response="FbHdp", read_share=0.5, think_us=9.0, think="exponential"
    )
    sim = Simulator(
        leaf_spine(2, 2, 2),
        (loop, Graph(ring_all_reduce((0, 2, 3), 60_000), pause_us=20.0)),
        Dcqcn.of("hpcc-paper"),
        dt_us=2.0,
        interval_steps=20,
        slots=16,
        bins=0,
    )
    params = sim.default_params()
    ecn = scaled_ecn(params.net, 20.0, 80.0, 0.2)

    def advance(state: Any) -> Any:
        return sim.interval(state, params, ecn)[0]

    keys = jax.random.split(jax.random.key(0), BATCH)
    states = jax.jit(jax.vmap(sim.init, (0, None)))(keys, params)
    quick = {"xla_backend_optimization_level": 0}
    plain = jax.jit(jax.vmap(advance)).lower(states).compile(quick)
    for _ in range(WARM):
        states = plain(states)
    expected, found = plain(states), jax.jit(lanes.vmap(advance, (0,)))(states)
    before, after = (s.traffic[0].operations.sum(-1) for s in (states, expected))
    assert (after > before).mean() > 0.5
    assert int(expected.traffic[1].steps.sum()) > BATCH
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
