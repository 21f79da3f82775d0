"""`storage-train-v0`: a training job's all-reduce and the reads of its data share one fabric.

The case of Fire-Flyer (An et al., SC'24, arXiv 2408.14158, section VI), where DCQCN was switched
off, as no parameters were found that serve both HFReduce and 3FS. Eight hosts compute, then sum
their gradients on a ring: each sends to the next, step after step, so a late flow delays all. Four
of them read stripes of 16 MB from four storage servers, eight parts at once: an incast of large
flows into a port over which the ring runs, too. Shallow thresholds hold queues short, which the
ring needs, but under them the parts of a stripe leave the link idle; deep ones serve the reads and
let the ring wait.

`storage-train-full-v0` has eight such jobs in a cluster of 96 hosts.

Computing takes 3 to 9 ms, drawn each time, and agents see no phase. While the hosts compute, reads
have the links to themselves.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import ring_all_reduce, stripe_read
from ecn_marl.sim.traffic.graphs import Graph

TRAINING, READERS, STORAGE = (0, 1, 2, 3, 6, 7, 8, 9), (0, 1, 6, 7), (4, 5, 10, 11)
"""Hosts of the job, those of them that read, and the storage servers; six hosts on each leaf."""

GRADIENTS, STRIPE, WIDTH = 8_000_000, 16_000_000, 8
"""Bytes of the gradients and of a stripe, and its number of parts."""

UPLINK_GBPS = 150.0


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, 2:1 oversubscribed: 20 ports; episodes of 48 ms."""
    ring = Graph(
        ring_all_reduce(TRAINING, GRADIENTS),
        pause_us=6000.0,
        pause_jitter=0.5,
        start_us=4000.0,
    )
    reads = (
        Graph(
            stripe_read(STORAGE, client, STRIPE, WIDTH),
            pause_us=300.0,
            pause_jitter=1.0,
            start_us=1000.0,
        )
        for client in READERS
    )
    all_reduce_us = ai.ring_us(len(TRAINING), GRADIENTS)
    return Scenario(
        topology=ai.fabric(6, uplink_gbps=UPLINK_GBPS),
        traffic=(ring, *reads),
        slots=64,
        max_steps=480,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=(
            Part("all-reduce", 0.5, (0,), all_reduce_us, reward=1.0, par=1.9),
            Part("read", 0.5, (1, 2, 3, 4), ai.fill_us(STRIPE), reward=0.1, par=1.3),
        ),
        **ai.COMMON,
    )


def full() -> Scenario:
    """`storage-train-v0` eight times: 8 leaves of 12 hosts, 4 spines, 160 ports; 48 ms."""
    return ai.cluster(scenario(), UPLINK_GBPS)
