"""`storage-train-v0`: a training job's all-reduce and the reads of its data share one fabric.

The case of Fire-Flyer (An et al., SC'24, arXiv 2408.14158, section VI): "we could not find
parameters that support" both HFReduce and 3FS traffic, so DCQCN was switched off there. Eight hosts
compute, then sum their gradients on a ring: each sends to the next, step after step, so a late
flow delays all. Four of them read stripes of 16 MB from four storage servers, eight parts at once:
an incast of large flows into a port over which the ring runs, too. Shallow thresholds hold queues
short, which the ring needs, but under them the parts of a stripe leave the link idle; deep ones
serve the reads and let the ring wait.

Computing takes 1 to 3 ms, drawn each time, and agents see no phase.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.collectives import ring_all_reduce, stripe_read
from ecn_marl.sim.graphs import Graph
from ecn_marl.sim.topology import leaf_spine
from ecn_marl.sim.units import GBPS

GBPS_HOST, RATE = 100.0, 100.0 * GBPS
"""Rate of the hosts, Gb/s and bytes/µs."""

TRAINING, READERS, STORAGE = (0, 1, 2, 3, 6, 7, 8, 9), (0, 1, 6, 7), (4, 5, 10, 11)
"""Hosts of the job, those of them that read, and the storage servers; six hosts on each leaf."""

GRADIENTS, STRIPE, PARTS = 8_000_000, 16_000_000, 8
"""Bytes of the gradients and of a stripe, and its number of parts."""

RTT_US, WIRE = 12.0, 1.048
"""Round trip between leaves, µs; bytes on the wire per byte of payload."""


def ring_ideal_us(hosts: int, size: int) -> float:
    """Time of a ring all-reduce in an empty network: 2 (n - 1) chunks, each with its round trip."""
    return 2 * (hosts - 1) * (WIRE * size / hosts / RATE + RTT_US)


def stripe_ideal_us(size: int) -> float:
    """Time in which a stripe fills its reader's link, and a round trip."""
    return WIRE * size / RATE + RTT_US


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, 2:1 oversubscribed; episodes of 32 ms."""
    topology = leaf_spine(
        2, 6, 2, gbps=GBPS_HOST, uplink_gbps=150.0, delay_us=1.0, uplink_delay_us=2.0
    )
    ring = Graph(
        ring_all_reduce(TRAINING, GRADIENTS),
        pause_us=2000.0,
        pause_jitter=0.5,
        start_us=2000.0,
    )
    reads = tuple(
        Graph(
            stripe_read(STORAGE, client, STRIPE, PARTS),
            pause_us=300.0,
            pause_jitter=1.0,
            start_us=1000.0,
        )
        for client in READERS
    )
    numbers = tuple(range(1, 1 + len(reads)))
    return Scenario(
        topology=topology,
        traffic=(ring, *reads),
        transport="dcqcn:hpcc-paper,ai=2.5,hai=25",
        dt_us=2.0,
        tick_steps=5,
        slots="auto",
        max_steps=320,
        ack_priority=True,
        memory_us=1024.0,
        features="flows",
        reward="slowdown",
        slowdown_weights=(0.0, 0.0, 0.0),
        objective=(
            Part("all-reduce", 0.5, (0,), ring_ideal_us(len(TRAINING), GRADIENTS), 1.0),
            Part("read", 0.5, numbers, stripe_ideal_us(STRIPE), 0.25),
        ),
    )
