"""Packets sprayed over equal-cost paths are, in the fluid limit, one path of the pooled rate.

The claim of `docs/howto/scenarios.md` for symmetric fabrics, held against spraying spelled out:
every message as one flow per path, each pinned to its path.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from netcases import OFF, Run, alone_us, flow_list, network, start, wire

from ecn_marl.sim import leaf_spine, scaled_ecn, schedule
from ecn_marl.sim.transports import preset

PATHS = network(leaf_spine(2, 4, 2, uplink_gbps=25.0))
"""Two leaves of four hosts, two spines: two uplinks of 25 Gb/s for 100 Gb/s of NICs."""

POOLED = network(leaf_spine(2, 4, 1, uplink_gbps=50.0))
"""The same with both uplinks in one."""

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

STEADY = replace(preset("hpcc-paper"), min_rate=LINE)
"""Senders whom no CNP slows down."""


def simulate(sim, rows, paths, intervals, ecn=OFF):
    """Run flows pinned to paths, ACKs too."""
    columns = flow_list(rows)
    pins = np.append(paths, np.zeros(len(columns["src"]) - len(paths), int))
    columns |= {"spine_data": pins, "spine_ack": pins}
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    real = params.net.port_rate.dtype
    params = replace(params, transport=jax.tree.map(real.type, STEADY))
    state = start(sim)(jax.random.key(0), params)
    return Run(sim, state, params, scaled_ecn(params.net, *ecn)).on(intervals)


SIZE = 2_000_000


def test_two_flows_that_would_share_an_uplink():
    """Hashed to one of two uplinks they get half of it each; sprayed, each has its line rate."""
    rows = [(0, 4, SIZE, 0.0), (1, 5, SIZE, 0.0)]
    one = simulate(PATHS, rows, [0, 0], 20).fct[:2]
    sprayed = simulate(POOLED, rows, [0, 0], 20).fct[:2]
    alone = alone_us(SIZE, [50, 50, 25])
    np.testing.assert_allclose(sprayed, alone, rtol=2e-3)
    np.testing.assert_allclose(one, alone + wire(SIZE) / LINE, rtol=5e-3)


@pytest.fixture(scope="module")
def congested():
    """Four hosts send to four, twice what the uplinks carry: striped over both, and pooled."""
    ecn = (50.0, 2000.0, 0.5)
    begin = (0.0, 31.0, 75.0, 120.5)
    whole = [(h, h + 4, SIZE, t) for h, t in enumerate(begin)]
    halves = [(s, d, SIZE // 2, t) for s, d, _, t in whole for _ in range(2)]
    striped = simulate(PATHS, halves, [0, 1] * 4, 30, ecn)
    return striped, simulate(POOLED, whole, [0] * 4, 30, ecn)


@pytest.mark.parametrize("statistic", ["queue_mean", "queue_max", "tx_bytes", "marked_bytes"])
@pytest.mark.parametrize("switch", ["leaf0", "spine", "leaf1"])
def test_ports_together_are_the_pooled_port(congested, statistic, switch):
    """Thresholds of the pooled port are those of a port times the paths, so the marks agree too."""
    sums = []
    for run in congested:
        kinds = {"leaf0": "leaf-up", "spine": "spine-down", "leaf1": "host"}
        mine = [
            i
            for i, p in enumerate(run.sim.topology.ports)
            if p.kind == kinds[switch] and (p.switch.startswith(switch) or p.peer == "leaf1")
        ]
        sums.append(np.asarray(getattr(run.stats, statistic), float)[:, mine].sum(1))
    striped, pooled = sums
    if switch == "leaf0":  # where the queues are
        assert pooled.max() > 1e5
    np.testing.assert_allclose(striped, pooled, rtol=0.01, atol=0.01 * pooled.max() + 2000)


def test_messages_take_as_long(congested):
    """A striped message is complete with its last stripe."""
    striped, pooled = congested
    last = striped.fct[:8].reshape(4, 2).max(1)
    assert (pooled.fct[:4] > 1.4 * alone_us(SIZE, [50, 50, 25])).all()
    np.testing.assert_allclose(last, pooled.fct[:4], rtol=0.01)
