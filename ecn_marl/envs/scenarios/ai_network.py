"""What scenarios of AI fabrics share: links, senders, clock, and ideal times of jobs' steps."""

from __future__ import annotations

from typing import Any

from ecn_marl.sim.network.topology import Topology, leaf_spine
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
