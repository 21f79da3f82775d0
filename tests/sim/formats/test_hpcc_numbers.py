"""Numbers of hosts in files of the HPCC simulator: the same in links, flows and results."""

from __future__ import annotations

import numpy as np
import pytest

from ecn_marl.sim.formats.hpcc_flows import read_flows, write_flows
from ecn_marl.sim.formats.hpcc_topology import read_topology, write_topology
from ecn_marl.sim.network.topology import Link, from_links
from ecn_marl.sim.replay import FlowList


@pytest.mark.parametrize("names", [("h1", "h2", "h3"), ("b7", "a0", "c4"), ("a9", "b8", "c7")])
def test_flows_and_links_have_one_number_for_a_host(names, tmp_path):
    """A network with names of its own: the files fit together, and are read as they were meant."""
    switches = ["edge", *(f"core{i}" for i in range(5))]
    links = [Link(name, "edge", 25.0 + i, 1.0) for i, name in enumerate(names)]
    links += [Link("edge", name, 25.0, 1.0) for name in switches[1:]]
    net = from_links("own", names, switches, links)
    src, dst, by_hash = np.array([0, 1]), np.array([2, 0]), np.array([-1, -1])
    start = np.array([0.0, 1.0])
    flows = FlowList(np.arange(2), src, dst, np.array([5, 6]), start, by_hash, by_hash)
    topology, path = tmp_path / "topology.txt", tmp_path / "flow.txt"
    with topology.open("w") as links_file, path.open("w") as flows_file:
        write_topology(net, links_file)
        write_flows(flows, net, flows_file)
    got = read_topology(topology).topology()
    there = read_flows(path, got).flows
    # Rates tell the hosts apart.
    for end, end_there in ((flows.src, there.src), (flows.dst, there.dst)):
        assert [net.nic_gbps[i] for i in end] == [got.nic_gbps[i] for i in end_there]
