"""`wide-restore-v0`: wide stripes onto few hosts, beside requests that should not notice.

A checkpoint is restored, or a cache is filled: stripes of 8, 16 and 32 parts from all storage
servers of the other racks, so that the number of senders into a port jumps from 0 to 32 at once.
Between reads the same hosts serve small requests. Depth that is right for 8 parts is wrong for 32.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import stripe_read
from ecn_marl.sim.traffic.graphs import Graph
from ecn_marl.sim.traffic.jobs import Requests, Timeline

READERS, STORAGE = (0, 1, 2, 3), tuple(range(4, 16))
"""Hosts that restore, the first of their rack's eight, and the storage servers."""

WIDTHS, STRIPE = (8, 16, 32, 16), 24_000_000
"""Parts of the stripes of each reader, and their bytes."""

UPLINK_GBPS = 400.0


def scenario() -> Scenario:
    """2 leaves of 8 hosts, 2 spines, not oversubscribed: 24 ports; episodes of 32 ms."""
    reads = tuple(
        Graph(
            stripe_read(STORAGE, client, STRIPE, width),
            pause_us=1500.0,
            pause_jitter=0.8,
            start_us=2000.0,
        )
        for client, width in zip(READERS, WIDTHS, strict=True)
    )
    requests = Requests(
        Timeline((8000.0,), names=("all",)), (0.15,), sources=STORAGE, destinations=READERS
    )
    return Scenario(
        topology=ai.fabric(8, uplink_gbps=UPLINK_GBPS),
        traffic=(*reads, requests),
        slots=512,
        slowdown_weights=(0.005, 0.0, 0.0),
        objective=(
            Part("restore", 0.5, (0, 1, 2, 3), ai.fill_us(STRIPE), reward=0.25, par=1.05),
            Part("short_mean", 0.25),
            Part("short_p99", 0.25),
        ),
        max_steps=320,
        **ai.COMMON,
    )


def full() -> Scenario:
    """`wide-restore-v0` eight times: 8 leaves of 16 hosts, 4 spines, 192 ports; 32 ms."""
    return ai.cluster(scenario(), UPLINK_GBPS)
