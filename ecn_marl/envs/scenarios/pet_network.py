"""The network of ACC's and PET's large simulations (PET, §5.2), full size and small.

Full: 288 hosts on 12 leaves with 6 spines; every leaf has 24 ports of 25 Gb/s to hosts and 6 of
100 Gb/s to spines, as much up as down. Small: 12 hosts on 3 leaves with 2 spines and the same
rates, so that an uplink has four times the rate of a host; leaves have twice as much up as down.
PET does not state delays, buffers and its senders' constants. Here: links of 1 µs, 32 MiB per
switch, and the DCQCN of HPCC's simulator, the source of its traffic generator. ACKs and CNPs have
their own class, as NICs send them: behind the deep queues that a learner may choose, feedback would
otherwise be later than the simulator's memory.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.sim.network.topology import Topology, leaf_spine

WARM_UP_US, COOL_DOWN_US = 4_000.0, 10_000.0
"""Flows that begin within these times after the start or before the end are not measured."""

SMALL_FACTOR = 0.01
"""Times of the small scenarios over those of the paper: seconds become tens of milliseconds."""

LARGEST_TABLE = "DataMining_10MB"
"""Sizes of DataMining with flows above 10 MB cut to 10 MB: the largest, 1 GB, times 1/100."""


SMALL_WEIGHTS = {"WebSearch": (0.188, 0.58, 0.27), "DataMining": (0.0443, 0.37, 0.31)}
"""Weights of slowdowns on the small network: all classes count alike under SECN1 at 60 % load, and
an interval earns -1. Measured in 8 episodes of each with uplinks of 50 Gb/s and a cold start; full
size has 24 times the flows."""


def weights(table: str, small: bool) -> tuple[float, float, float]:
    """Weights of slowdowns for a table of sizes."""
    factor = 1.0 if small else 12.0 / 288.0
    short, medium, long = SMALL_WEIGHTS[table]
    return (factor * short, factor * medium, factor * long)


def network(small: bool) -> Topology:
    """The topology; 24 ports if small, else 432."""
    if small:
        return leaf_spine(3, 4, 2, gbps=25.0, uplink_gbps=100.0)
    return leaf_spine(12, 24, 6, gbps=25.0, uplink_gbps=100.0)


def common(small: bool) -> dict[str, Any]:
    """Fields that all of PET's scenarios share."""
    return {
        "topology": network(small),
        "max_steps": 400,
        "memory_us": 1024.0,
        "ack_priority": True,
        "margins_us": (WARM_UP_US, COOL_DOWN_US),
        "action_options": {"alpha_kb": 20.0},
        "features": "pet",
        "reward": "pet",
    }
