"""Packets sprayed over equal-cost paths: `load_balancing="spray"`, against three other models.

In a symmetric fabric they are one path of the pooled rate; every message as one flow per path, each
pinned to its path; and packets, one by one, also where paths are unequal.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import OFF, Run, alone_us, flow_list, imbalance, network, start, wire
from packet_paths import ACK, PACKET, Message, send
from tiers import tiers

from ecn_marl.sim import fat_tree, leaf_spine, scaled_ecn, schedule
from ecn_marl.sim.core.failures import NEVER
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.state import COUNTS
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.transports import preset

PATHS = network(leaf_spine(2, 4, 2, uplink_gbps=25.0))
"""Two leaves of four hosts, two spines: two uplinks of 25 Gb/s for 100 Gb/s of NICs."""

SPRAYED = network(PATHS.topology, load_balancing="spray", failures=True, accrue=True, counts=COUNTS)
"""The same, packets sprayed."""

POOLED = network(leaf_spine(2, 4, 1, uplink_gbps=50.0))
"""The same with both uplinks in one."""

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

STEADY = replace(preset("hpcc-paper"), min_rate=LINE)
"""Senders whom no CNP slows down."""


def simulate(sim, rows, paths, intervals, ecn=OFF, **net):
    """Run flows pinned to paths, ACKs too; `net` replaces fields of `NetParams`."""
    columns = flow_list(rows)
    pins = np.append(paths, np.zeros(len(columns["src"]) - len(paths), int))
    columns |= {"spine_data": pins, "spine_ack": pins}
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    real = params.net.port_rate.dtype
    params = replace(params, transport=jax.tree.map(real.type, STEADY))
    params = replace(params, net=replace(params.net, **net))
    state = start(sim)(jax.random.key(0), params)
    return Run(sim, state, params, scaled_ecn(params.net, *ecn)).on(intervals)


SIZE = 2_000_000


def test_two_flows_that_would_share_an_uplink():
    """Sprayed, each has its line rate."""
    rows = [(0, 4, SIZE, 0.0), (1, 5, SIZE, 0.0)]
    alone = alone_us(SIZE, [50, 50, 25])
    for sim in (POOLED, SPRAYED):
        sprayed = simulate(sim, rows, [0, 0], 20).fct[:2]
        np.testing.assert_allclose(sprayed, alone, rtol=2e-3)


@pytest.mark.thorough
def test_two_flows_that_share_an_uplink():
    """Hashed to one of two uplinks they get half of it each."""
    shared = simulate(PATHS, [(0, 4, SIZE, 0.0), (1, 5, SIZE, 0.0)], [0, 0], 20).fct[:2]
    np.testing.assert_allclose(shared, alone_us(SIZE, [50, 50, 25]) + wire(SIZE) / LINE, rtol=5e-3)


@cache
def congested(how):
    """Four hosts send to four, twice what the uplinks carry: striped over both, pooled, sprayed."""
    ecn = (50.0, 2000.0, 0.5)
    begin = (0.0, 31.0, 75.0, 120.5)
    flows = [(h, h + 4, SIZE, t) for h, t in enumerate(begin)]
    if how == "striped":
        halves = [(s, d, SIZE // 2, t) for s, d, _, t in flows for _ in range(2)]
        return simulate(PATHS, halves, [0, 1] * 4, 30, ecn)
    return simulate({"pooled": POOLED, "sprayed": SPRAYED}[how], flows, [0] * 4, 30, ecn)


WAYS = tiers(("sprayed", "striped"), "sprayed")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("statistic", ["queue_mean", "queue_max", "tx_bytes", "marked_bytes"])
@pytest.mark.parametrize("switch", ["leaf0", "spine", "leaf1"])
def test_ports_together_are_the_pooled_port(how, statistic, switch):
    """Thresholds of the pooled port are those of a port times the paths, so the marks agree too."""
    sums = []
    for run in map(congested, ("pooled", how)):
        kinds = {"leaf0": "leaf-up", "spine": "spine-down", "leaf1": "host"}
        ports = [
            i
            for i, p in enumerate(run.sim.topology.ports)
            if p.kind == kinds[switch] and (p.switch.startswith(switch) or p.peer == "leaf1")
        ]
        sums.append(np.asarray(getattr(run.stats, statistic), float)[:, ports].sum(1))
    pooled, other = sums
    if switch == "leaf0":  # where the queues are
        assert pooled.max() > 1e5
    np.testing.assert_allclose(other, pooled, rtol=0.01, atol=0.01 * pooled.max() + 2000)


@pytest.mark.parametrize("how", WAYS)
def test_messages_take_as_long(how):
    """A striped message is complete with its last stripe."""
    pooled, fct = congested("pooled").fct[:4], congested(how).fct
    took = fct[:8].reshape(4, 2).max(1) if how == "striped" else fct[:4]
    assert (pooled > 1.4 * alone_us(SIZE, [50, 50, 25])).all()
    np.testing.assert_allclose(took, pooled, rtol=0.01)


def test_ports_side_by_side_are_equal():
    """Each has half of the bytes, the queue and the marks; a flow counts once at every port."""
    sprayed = congested("sprayed")
    ups, downs = (number(SPRAYED, *names) for names in (UPLINKS, DOWNLINKS))
    for name in ("tx_bytes", "queue_mean", "queue_max", "marked_bytes", "n_flows", "n_senders"):
        for a, b in (ups, downs):
            values = np.asarray(getattr(sprayed.stats, name), float)
            np.testing.assert_allclose(values[:, a], values[:, b], rtol=1e-4, atol=1.0)
    stats, hosts = sprayed.stats, number(SPRAYED, "leaf1->host4", "leaf1->host7")
    assert np.asarray(stats.n_flows)[2, [*ups, *downs]].tolist() == [4] * 4
    assert np.asarray(stats.n_flows)[2, hosts].tolist() == [1, 1]
    assert np.asarray(stats.flows_begun)[:, [*ups, *hosts]].sum(0).tolist() == [4, 4, 1, 1]
    assert np.asarray(stats.n_senders)[2, ups].tolist() == [4, 4]
    # The progress of a flow is shared among the ports on its ways, and adds up to 1.
    np.testing.assert_allclose(np.asarray(stats.progress).sum(), 4, rtol=1e-3)
    sizes = np.asarray(stats.class_bytes).sum(-1)[:, [*ups, *downs, *hosts]]
    sent = np.asarray(stats.tx_bytes)[:, [*ups, *downs, *hosts]]
    np.testing.assert_allclose(sizes.sum(0), sent.sum(0), rtol=1e-3, atol=2000)


UPLINKS, DOWNLINKS = [f"leaf0->spine{s}" for s in (0, 1)], [f"spine{s}->leaf1" for s in (0, 1)]


def number(sim, *names):
    """Port numbers of `switch->peer`."""
    return [sim.topology.port_names.index(name) for name in names]


def conserved(run):
    """No byte is lost; float32 queues round in every substep, as in `test_conservation`."""
    error, offered = imbalance(run.state)
    queue_sum = np.asarray(run.stats.queue_mean).sum(dtype=float) * run.sim.interval_steps
    assert abs(error) <= 1e-6 * offered + 1e-8 * queue_sum


@pytest.mark.parametrize("second", [1.0, 0.5], ids=["equal", "second uplink half as fast"])
def test_sprayed_packets(second):
    """Three hosts at line rate, packets in turn over both uplinks, whatever these carry."""
    rows = [(0, 4, SIZE, 0.0), (1, 5, SIZE // 2, 31.0), (2, 6, SIZE, 75.0)]
    rates = np.full(SPRAYED.topology.n_ports, LINE, np.float32)
    ups = number(SPRAYED, *UPLINKS)
    rates[ups[1]] *= second
    run = simulate(SPRAYED, rows, [-1] * 3, 30, port_rate=rates)
    messages = [
        Message(src, dst, size // 1000, PACKET / LINE, start) for src, dst, size, start in rows
    ]
    up = [LINE, LINE * second]
    twin = send(messages, lambda i, k: (i + k) % 2, LINE, up, [LINE] * 2, LINE)
    back = 4 * (1.0 + ACK / LINE)
    starts = np.array([m.start for m in messages])
    np.testing.assert_allclose(run.fct[:3], np.array(twin.arrival) + back - starts, rtol=0.01)
    peaks = np.asarray(run.stats.queue_max).max(0)[ups]
    assert peaks.min() > 3e5
    np.testing.assert_allclose(peaks, [twin.peak["up0"], twin.peak["up1"]], rtol=0.02)
    conserved(run)


def test_a_dead_link_is_left_out_and_comes_back():
    """From 0.5 to 1.5 ms all goes over the other uplink; what the dead one held is sent again."""
    sim, ups = SPRAYED, number(SPRAYED, *UPLINKS)
    fail, repair = np.full((2, sim.topology.n_ports), NEVER, np.int32)
    fail[ups[1]], repair[ups[1]] = 500, 1500
    rows = [(h, 4 + h, 8 * SIZE, 0.0) for h in range(3)]
    run = simulate(sim, rows, [-1] * 3, 20, fail_step=fail, repair_step=repair)
    sent = np.asarray(run.stats.tx_bytes)[:, ups] / (100 * LINE)
    np.testing.assert_allclose(sent[[*range(1, 5), *range(16, 20)]], 1.0, rtol=1e-3)
    np.testing.assert_allclose(sent[6:14], [[1.0, 0.0]] * 8, atol=1e-3)
    # Three flows at line rate on two uplinks: each had queued half a line rate by then.
    assert run.dropped() == pytest.approx(500 * LINE / 2, rel=0.01)
    conserved(run)


@pytest.mark.thorough
def test_the_bottleneck_of_a_sprayed_flow():
    """Of four paths through a fat-tree two share each uplink: 2 x 5 Gb/s, and 5 within a path."""
    sim = network(fat_tree(4, uplink_gbps=5.0), load_balancing="spray")
    assert sim.n_ways == 4
    net = jax.tree.map(jnp.asarray, sim.default_params(traffic=(None,)).net)
    unset, zero = jnp.full(3, -1, jnp.int32), jnp.zeros(3)
    offer = Offer(
        start=zero,
        src=jnp.array([0, 0, 0], jnp.int32),
        dst=jnp.array([1, 2, 15], jnp.int32),
        payload=zero + SIZE,
        wire_high=unset + 1,
        wire_low=zero + wire(SIZE),
        path=unset,
        path_back=unset,
        flow_id=unset,
        valid=zero == 0,
    )
    paths = find_paths(net, offer, jnp.zeros(3, jnp.uint32), n_ways=4)
    ports = [[25], [5, 5, 25], [5, 5, 5, 5, 25]]
    bottleneck = np.array([25.0, 10.0, 10.0])
    want = [
        wire(SIZE) / (125 * b) + sum((1048 + 60) / (125 * g) + 2.0 for g in hops) + 60 / 3125 + 2.0
        for b, hops in zip(bottleneck, ports, strict=True)
    ]
    np.testing.assert_allclose(paths.ideal, want, rtol=1e-6)
    used = np.asarray(paths.forward).reshape(3, -1, 4)[:, -1] < sim.topology.n_ports
    assert used.sum(1).tolist() == [1, 2, 4]
