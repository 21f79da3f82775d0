"""What scenarios of AI fabrics share: links, senders, clock, ideal times, and clusters of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.network.topology import Topology, leaf_spine
from ecn_marl.sim.traffic.graphs import Graph
from ecn_marl.sim.traffic.jobs import Requests
from ecn_marl.sim.units import GBPS

HOST_GBPS = 100.0

RATE = HOST_GBPS * GBPS
"""Rate of a host's link, bytes/µs."""

WIRE = 1.048
"""Bytes on the wire per byte of payload."""

FAR_US, NEAR_US = 12.0, 4.0
"""Round trips between leaves and within one, µs."""

COMMON: dict[str, Any] = {
    "transport": "dcqcn:hpcc-paper",
    "dt_us": 2.0,
    "tick_steps": 5,
    "ack_priority": True,
    "memory_us": 1024.0,
    "features": "flows",
    "reward": "slowdown",
}
"""Fields of `Scenario` that all of them have."""

FAR_APART = COMMON | {"transport": "dcqcn:hpcc-paper,ai=2.5,hai=25", "max_steps": 320}
"""Those of scenarios with round trips up to 84 µs: DCQCN's increases scaled to 100 Gb/s, 32 ms."""

JOBS_ALONE = (0.0, 0.0, 0.0)
"""Slowdown weights where only steps of jobs count."""


def fabric(per_leaf: int, uplink_gbps: float, leaves: int = 2, spines: int = 2) -> Topology:
    """Leaves and spines, 1 µs from a host to its leaf, 2 µs from there to a spine."""
    return leaf_spine(
        leaves,
        per_leaf,
        spines,
        gbps=HOST_GBPS,
        uplink_gbps=uplink_gbps,
        delay_us=1.0,
        uplink_delay_us=2.0,
    )


def ring_us(hosts: int, size: int) -> float:
    """Time of a ring all-reduce in an empty network: 2 (n - 1) chunks, each with its round trip."""
    return 2 * (hosts - 1) * (WIRE * size / hosts / RATE + FAR_US)


def fill_us(size: int) -> float:
    """Time in which `size` bytes of payload fill a host's link, and a round trip."""
    return WIRE * size / RATE + FAR_US


PAIRS, SHARING = 4, 2
"""Pairs of leaves of a cluster, and copies of the small scenario that share a pair."""


def cluster(small: Scenario, uplink_gbps: float) -> Scenario:
    """Eight copies of a scenario of two leaves and two spines, in one cluster.

    It has 8 leaves, twice as large, and 4 spines. Two copies share a pair of leaves, and the hosts
    of a leaf change places in every episode. It is for tests of scale, and of policies of the small
    one: none is trained on it.

    Args:
        small: the scenario; its traffic is of `Graph`s and `Requests`.
        uplink_gbps: rate of its uplinks, Gb/s.
    """
    half = small.topology.n_hosts // 2
    leaves = [tuple(range(SHARING * half * i, SHARING * half * (i + 1))) for i in range(2 * PAIRS)]
    copies = [
        left[half * i :][:half] + right[half * i :][:half]
        for left, right in zip(leaves[::2], leaves[1::2], strict=True)
        for i in range(SHARING)
    ]
    sources = len(small.traffic)
    return replace(
        small,
        topology=fabric(SHARING * half, uplink_gbps, leaves=2 * PAIRS, spines=2 * SHARING),
        traffic=tuple(_between(hosts, source) for hosts in copies for source in small.traffic),
        slots=small.slots * len(copies),
        placement=tuple(leaves),
        phased_by=None,
        objective=tuple(
            replace(
                part,
                sources=tuple(sources * i + j for i in range(len(copies)) for j in part.sources),
            )
            for part in small.objective
        ),
    )


def _between(hosts: Sequence[int], source: Any) -> Graph | Requests:
    """A source between other hosts: number i is `hosts[i]`."""
    if isinstance(source, Requests):
        senders, receivers = (
            tuple(hosts[i] for i in side) for side in (source.sources, source.destinations)
        )
        return replace(source, sources=senders, destinations=receivers)
    assert isinstance(source, Graph)
    return replace(
        source,
        nodes=tuple(
            replace(node, src=hosts[node.src], dst=hosts[node.dst]) for node in source.nodes
        ),
    )
