"""`mixed-rtt-v0`: short and long round trips at one switch, and tenants that move.

Rack hosts are 1 µs from the switch, storage hosts 20 µs. So round trips of a port's flows are 4, 42
or 80 µs, depending on sender and receiver. Two tenants share the switch, each with half of the rack
and half of the storage. While a tenant loads, its rack hosts read from its storage, and its storage
is copied from the other tenant's. While it serves, its rack hosts exchange large flows and
requests, and its storage receives small writes from the other tenant's rack. One tenant loads while
the other serves, and they swap after phases of random length.

A port that loads needs deep thresholds, deeper for longer round trips; one that serves needs
shallow ones. All ports do both in turn, so no setting per port is right for long.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.network.topology import Link, Topology, from_links
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline

HALF = 4
"""Rack hosts of a tenant, and its storage hosts."""

NEAR_US, FAR_US = 1.0, 20.0
"""Delay of the links of rack hosts, 0 to 7, and of storage hosts, 8 to 15."""

TIMELINE = Timeline((8000.0, 8000.0), length_jitter=0.5, names=("load", "serve"))

RACKS = (tuple(range(HALF)), tuple(range(HALF, 2 * HALF)))
STORAGE = (tuple(range(2 * HALF, 3 * HALF)), tuple(range(3 * HALF, 4 * HALF)))
"""Hosts of the two tenants."""


def network(gbps: float = 100.0, far_us: float = FAR_US) -> Topology:
    """16 hosts around one switch, 8 near and 8 far."""
    hosts = [f"host{i}" for i in range(4 * HALF)]
    delays = [NEAR_US] * (2 * HALF) + [far_us] * (2 * HALF)
    links = [Link(h, "switch0", gbps, delay) for h, delay in zip(hosts, delays, strict=True)]
    return from_links(f"star:{4 * HALF}-near-and-far", hosts, ["switch0"], links)


def _tenant(index: int, streams: int = 6) -> tuple[Source, ...]:
    """Traffic to the hosts of a tenant; the second one runs a phase behind."""
    rack, storage = RACKS[index], STORAGE[index]
    other_rack, other_storage = RACKS[1 - index], STORAGE[1 - index]
    common: dict[str, Any] = {"timeline": TIMELINE, "shift": index}
    reads = tuple((storage[(j + i) % HALF], rack[j]) for j in range(HALF) for i in range(2))
    copies = tuple(
        (other_storage[(j + i) % HALF], storage[j]) for j in range(HALF) for i in range(2)
    )
    senders = [(s, d) for d in rack for s in rack if s != d]
    shuffle = tuple(pair for pair in senders for _ in range(streams // (HALF - 1)))
    return (
        FlowSets(phase=0, pairs=reads, fill=0.9, **common),
        FlowSets(phase=0, pairs=copies, fill=0.9, **common),
        FlowSets(phase=1, pairs=shuffle, fill=0.8, **common),
        Requests(per_us=(0.01, 0.0), sources=storage, destinations=rack, width=4, **common),
        Requests(per_us=(0.0, 0.1), sources=rack, destinations=rack, width=8, **common),
        Requests(per_us=(0.0, 0.05), sources=other_rack, destinations=storage, width=8, **common),
    )


def scenario() -> Scenario:
    """16 hosts at 100 Gb/s, 8 of them 20 µs away; phases of 4 to 12 ms, episodes of 32 ms."""
    names = network().hosts
    groups = (("rack", RACKS), ("storage", STORAGE))
    return Scenario(
        topology=network(),
        traffic=_tenant(0) + _tenant(1),
        **ai.FAR_APART,
        slots=256,
        slowdown_weights=(0.00799, 1.0, 0.217),
        margins_us=(1000.0, 1000.0),
        benchmark=True,
        host_groups=tuple(
            HostGroup(f"{kind} {tenant}", tuple(names[i] for i in hosts[index]), shift=index)
            for kind, hosts in groups
            for index, tenant in enumerate("AB")
        ),
    )
