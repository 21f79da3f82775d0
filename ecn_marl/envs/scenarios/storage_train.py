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

from dataclasses import replace

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import ring_all_reduce, stripe_read
from ecn_marl.sim.traffic.graphs import Graph

TRAINING, READERS, STORAGE = (0, 1, 2, 3, 6, 7, 8, 9), (0, 1, 6, 7), (4, 5, 10, 11)
"""Hosts of the job, those of them that read, and the storage servers; six hosts on each leaf."""

GRADIENTS, STRIPE, WIDTH = 8_000_000, 16_000_000, 8
"""Bytes of the gradients and of a stripe, and its number of parts."""

LEAVES, SHARING = 8, 2
"""Leaves of the cluster, and jobs that share a pair of them."""


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, 2:1 oversubscribed: 20 ports; episodes of 48 ms."""
    return Scenario(
        topology=ai.fabric(6, uplink_gbps=150.0),
        traffic=_job(tuple(range(12))),
        slots=64,
        max_steps=480,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=_objective(jobs=1),
        **ai.COMMON,
    )


def full() -> Scenario:
    """Eight jobs, 8 leaves of 12 hosts, 4 spines, 2:1 oversubscribed: 160 ports; 48 ms.

    Two jobs share a pair of leaves, and the hosts of a leaf change places in every episode. It is
    for tests of scale, and of policies of the small one: none is trained on it.
    """
    size = 6 * SHARING
    leaves = [tuple(range(size * i, size * (i + 1))) for i in range(LEAVES)]
    traffic: list[Graph] = []
    for left, right in zip(leaves[::2], leaves[1::2], strict=True):
        for i in range(SHARING):
            traffic += _job(left[6 * i :][:6] + right[6 * i :][:6])
    return replace(
        scenario(),
        topology=ai.fabric(size, uplink_gbps=150.0, leaves=LEAVES, spines=2 * SHARING),
        traffic=tuple(traffic),
        slots=64 * LEAVES // 2 * SHARING,
        placement=tuple(leaves),
        phased_by=None,
        objective=_objective(jobs=LEAVES // 2 * SHARING),
    )


def _job(hosts: tuple[int, ...]) -> tuple[Graph, ...]:
    """The all-reduces and the reads of a job and its storage, twelve hosts."""
    ring = Graph(
        ring_all_reduce([hosts[i] for i in TRAINING], GRADIENTS),
        pause_us=6000.0,
        pause_jitter=0.5,
        start_us=4000.0,
    )
    reads = (
        Graph(
            stripe_read([hosts[i] for i in STORAGE], hosts[client], STRIPE, WIDTH),
            pause_us=300.0,
            pause_jitter=1.0,
            start_us=1000.0,
        )
        for client in READERS
    )
    return (ring, *reads)


def _objective(jobs: int) -> tuple[Part, ...]:
    """Steps of the all-reduces and of the reads, half of J each."""
    sources = range(jobs * (1 + len(READERS)))
    rings = tuple(sources[:: 1 + len(READERS)])
    reads = tuple(i for i in sources if i not in rings)
    all_reduce_us = ai.ring_us(len(TRAINING), GRADIENTS)
    return (
        Part("all-reduce", 0.5, rings, all_reduce_us, reward=1.0, par=1.9),
        Part("read", 0.5, reads, ai.fill_us(STRIPE), reward=0.1, par=1.3),
    )
