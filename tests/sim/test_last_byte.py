"""Bursts through several levels of queues: no flow ends before its bytes can have crossed a link.

All senders have one receiver. When k flows have ended, the bytes of k flows have crossed its link,
whatever their order and wherever they waited: that takes k times the bytes over its rate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers

from ecn_marl import lanes
from ecn_marl.sim import Ecn, Schedule, Simulator, Topology, fat_tree, leaf_spine, schedule
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.traffic.sizes import HEADER, PAYLOAD
from ecn_marl.sim.transports import parse_transport

SENDERS, BURSTS, DT = 15, 8, 2.0
RATE = 25.0 * GBPS
ROUND_TRIP = {"fat tree": 12.0, "one spine": 8.0, "fast uplinks": 8.0}
NETWORKS: dict[str, Topology] = {
    "fat tree": fat_tree(4),
    "one spine": leaf_spine(2, 8, 1),
    "fast uplinks": leaf_spine(4, 4, 2, uplink_gbps=100.0),
}


def wire(size: np.ndarray) -> np.ndarray:
    """Bytes of a flow on the wire."""
    return size + HEADER * np.ceil(size / PAYLOAD)


@cache
def ends(name):
    """Bytes per flow and jitter of bursts; ends of their flows, µs after the first start."""
    rng = np.random.default_rng(3)
    size = np.exp(rng.uniform(np.log(3e3), np.log(2e5), BURSTS)).astype(int)
    jitter = np.where(np.arange(BURSTS) % 2, 40.0, 0.0)
    start = np.sort(rng.uniform(0.0, 1.0, (BURSTS, SENDERS)) * jitter[:, None], axis=1)
    sim = Simulator(
        NETWORKS[name],
        (Schedule(DT, SENDERS),),
        parse_transport("dcqcn:hpcc-paper"),
        dt_us=DT,
        tick_steps=5,
        interval_steps=50,
        slots=SENDERS,
        scheduled=SENDERS,
        bins=0,
    )
    schedules = [
        schedule(
            {
                "src": np.arange(1, SENDERS + 1),
                "dst": np.zeros(SENDERS, int),
                "size_B": np.full(SENDERS, size[i]),
                "start_ns": 1e3 * start[i],
            },
            DT,
        )
        for i in range(BURSTS)
    ]
    lists = jax.tree.map(lambda *x: np.stack(x), *schedules)
    common = sim.default_params(traffic=(schedules[0],))
    common = replace(common, net=replace(common.net, ack_bytes=np.float32(0.0)))

    @lanes.mapped
    def run(flows):
        params = replace(common, traffic=(flows,))
        ports = jnp.ones((sim.topology.n_ports,))
        deep = Ecn(1e9 * ports, 2e9 * ports, 0.01 * ports)

        def interval(state, _):
            return sim.interval(state, params, deep)[0], None

        state = sim.init(jax.random.key(0), params)
        return jax.lax.scan(interval, state, None, length=14)[0].fct_log

    fct = np.asarray(jax.jit(jax.vmap(run))(lists), float)
    assert np.isfinite(fct).all()
    return size, jitter, np.sort(fct + start, axis=1) - start[:, :1]


@pytest.mark.parametrize("name", tiers(NETWORKS, "fat tree"))
def test_no_flow_ends_before_the_link_can_have_carried_it(name):
    size, _, end = ends(name)
    earliest = np.arange(1, SENDERS + 1) * wire(size)[:, None] / RATE
    assert (end > earliest - 2 * DT).all()


@pytest.mark.parametrize("name", tiers(NETWORKS, "fat tree"))
def test_the_last_of_a_burst_ends_when_the_link_has_carried_all(name):
    """Where all start at once the receiver's link is never idle: its time, and one round trip."""
    size, jitter, end = ends(name)
    link = SENDERS * wire(size) / RATE
    late = end[:, -1] - link - ROUND_TRIP[name]
    assert (late[jitter == 0.0] < 3 * DT).all()
