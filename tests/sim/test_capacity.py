"""No byte arrives before it is sent: no set of flows is through a link before it can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from netcases import by_packets
from onepath import NETWORKS, cases, runner
from tiers import tiers

from ecn_marl.errors import BrokenInvariant
from ecn_marl.sim import fat_tree, star
from ecn_marl.sim.replay import FlowList, Settings, capacity, replay
from ecn_marl.sim.replay.capacity import Crossings, worst
from ecn_marl.sim.traffic.sizes import HEADER, PAYLOAD

PROGRAMS = {
    "star, 2 µs": ("star", "dcqcn:hpcc-paper", 2.0),
    "star, HPCC": ("star", "hpcc:hpcc", 1.0),
    "leaf-spine, 2 µs": ("leaf-spine", "dcqcn:hpcc-run", 2.0),
    "leaf-spine, 5 µs": ("leaf-spine", "dcqcn:hpcc-paper", 5.0),
    "leaf-spine, flowlets": ("leaf-spine", "timely:hpcc", 1.0, "flowlet"),
    "fat-tree, windows": ("fat-tree", "dctcp:sigcomm10", 2.0),
    "fat-tree, sprayed": ("fat-tree", "dcqcn:hpcc-paper", 2.0, "spray"),
}

PACKET_US = 8.0 * (PAYLOAD + HEADER) / 1e3
"""Time of a packet at 1 Gb/s, µs: a fluid may be a packet of its slowest link ahead."""


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers(PROGRAMS, "star, 2 µs"))
@given(data=st.data())
def test_no_set_of_flows_is_ahead_of_a_link_by_a_packet(name, data):
    network, _, dt_us, *_ = program = PROGRAMS[name]
    case = data.draw(cases(network, dt_us))
    found = runner(*program).worst(case)
    assert found.early_us < PACKET_US / min(*case["nic"], *case["port"]), found


@pytest.mark.parametrize("network", tiers(NETWORKS, "star"))
@given(data=st.data())
def test_a_lone_flow_takes_the_time_of_its_packets(network, data):
    """Of any size, on any path, at any rates; in whatever part of a substep it starts."""
    case = data.draw(cases(network, 2.0, largest=300_000))
    case = case | {k: case[k][:1] for k in ("src", "dst", "size_B", "start_ns")}
    run = runner(network, "dcqcn:hpcc-paper", 2.0)
    fct, paths = run.run(case)
    n = run.topology.n_ports
    ports = [p for p in paths.forward[0] if p < n]
    rates = [case["nic"][case["src"][0]], *(case["port"][p] for p in ports)]
    delays = [1.0] * len(rates)
    back = [p for p in paths.back[0] if p < n]
    way_back = [case["nic"][case["dst"][0]], *(case["port"][p] for p in back)]
    size = int(case["size_B"][0])
    acks = 8e-3 * 60.0 * (sum(1 / g for g in way_back) - sum(1 / g for g in rates))
    expected = by_packets(size, rates, delays) + acks
    # float32 of the time, and of the bytes left in each of its substeps.
    assert fct[0] == pytest.approx(expected, rel=2e-5, abs=0.002)
    assert float(paths.ideal[0]) == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_the_check_finds_the_set_that_is_ahead():
    """Of three flows into one port at 100 Gb/s the last two are .05 µs too early together."""
    link = 12.5e3
    wire = 10_000 + 10 * HEADER
    begin = np.array([0.0, 10.0, 10.0])
    end = begin + 4.0 + np.array([wire, wire, 2 * wire]) / link
    end[2] -= 0.05
    net = star(4, gbps=100.0)
    port = next(i for i, p in enumerate(net.ports) if p.peer == "host0")
    to_others = next(i for i, p in enumerate(net.ports) if p.peer == "host1")
    flows = Crossings(
        src=np.array([1, 2, 3]),
        dst=np.zeros(3, int),
        forward=np.full((3, 1), port),
        back=np.full((3, 1), to_others),
        payload=np.full(3, 10_000.0),
        begin=begin,
        end=end,
    )
    found = worst(net, flows, HEADER)
    assert found.early_us == pytest.approx(0.05, abs=1e-9)
    assert (found.n_flows, found.link) == (2, "switch0 to host0")
    assert found.wire_bytes == 2 * wire
    assert worst(net, flows._replace(end=end + 0.06), HEADER).early_us < 0
    unfinished = flows._replace(end=np.full(3, np.nan))
    assert worst(replace(net), unfinished, HEADER).n_flows == 0


def test_a_replay_checks_itself(monkeypatch):
    """A burst through four levels holds; if completion times were halved, it would be told."""
    net = fat_tree(4, gbps=10.0, uplink_gbps=40.0)
    n = 15
    flows = FlowList(
        flow_id=np.arange(n),
        src=np.arange(1, n + 1),
        dst=np.zeros(n, int),
        size=np.full(n, 20_000),
        start_ns=np.linspace(0.0, 3e3, n),
        spine_data=np.full(n, -1),
        spine_ack=np.full(n, -1),
    )
    settings = Settings(ecn=(1e5, 2e5, 0.01), duration_ms=1.0, dt_us=2.0)
    result = replay(flows, net, settings, check=True)
    assert np.isfinite(result.fct_ns).all()
    held = capacity.worst
    monkeypatch.setattr(
        capacity, "worst", lambda net, x, header: held(net, x._replace(end=x.end / 2), header)
    )
    with pytest.raises(BrokenInvariant, match=r"edge0.0 to host0: 15 flows of 314400 wire"):
        replay(flows, net, settings, check=True)
