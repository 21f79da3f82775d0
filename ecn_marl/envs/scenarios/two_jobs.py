"""`two-jobs-v0`: two training jobs with barriers on oversubscribed uplinks.

Each job has four hosts in each of two racks and exchanges gradients all-to-all, as sharded training
does (its parts all at once, so every host is the target of an incast); then it computes. Their
exchanges meet in the uplinks when they coincide. One job's exchanges are four times as large as the
other's, so the small one waits behind the large one's queues.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import all_to_all
from ecn_marl.sim.traffic.graphs import Graph

LARGE, SMALL = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
"""Hosts of the two jobs; eight hosts on each leaf."""

LARGE_BYTES, SMALL_BYTES = 24_000_000, 6_000_000
"""What each host of a job exchanges in a step."""

UPLINK_GBPS = 200.0


def exchange_us(size: int) -> float:
    """Time of an exchange alone: half of it crosses the uplinks, which its rack's hosts share."""
    hosts, far = 8, 4
    across = far * far * size / hosts / (2 * UPLINK_GBPS / ai.HOST_GBPS)
    return ai.fill_us(max(int(across), size - size // hosts))


def scenario() -> Scenario:
    """2 leaves of 8 hosts, 2 spines, 2:1 oversubscribed: 24 ports; episodes of 32 ms."""
    jobs = tuple(
        Graph(
            all_to_all(hosts, size),
            pause_us=pause_us,
            pause_jitter=0.5,
            size_jitter=0.2,
            start_us=2000.0,
        )
        for hosts, size, pause_us in ((LARGE, LARGE_BYTES, 2000.0), (SMALL, SMALL_BYTES, 1000.0))
    )
    return Scenario(
        topology=ai.fabric(8, uplink_gbps=UPLINK_GBPS),
        traffic=jobs,
        slots=112,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=(
            Part("large job", 0.5, (0,), exchange_us(LARGE_BYTES), reward=1.0, par=1.2),
            Part("small job", 0.5, (1,), exchange_us(SMALL_BYTES), reward=0.5, par=1.2),
        ),
        max_steps=320,
        **ai.COMMON,
    )


def full() -> Scenario:
    """`two-jobs-v0` eight times: 8 leaves of 16 hosts, 4 spines, 192 ports; 32 ms."""
    return ai.cluster(scenario(), UPLINK_GBPS)
