"""`restore-files-v0`: what is restored has many small files, so counts of flows tell no phase.

In `restore-serve-v0` few flows begin while a rack restores and many while it serves, and a rule
that counts them does nearly what the oracle does. Here a restore reads small files, too, as often
as requests come while serving, and from as many hosts. A read from far away takes 84 µs in an empty
network, so it hardly suffers from a deep queue; a request takes 6 µs, and does. What tells the
phases apart is how queues and rates answer to a setting.

Data sets and models are kept as many small files beside few large ones (Xu et al., "FalconFS:
Distributed file system for large-scale deep learning pipeline", arXiv 2507.10367, section 2).
"""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import restore_serve as rs
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.jobs import Requests

PER_US, WIDTH = 0.05, 4
"""Small reads of a host per µs, as many as it gets requests, and how many may begin in a tick."""


def scenario() -> Scenario:
    """`restore-serve-v0` with as many small reads as requests, from three hosts each.

    Storage keeps three copies: a host reads two large files from two storage hosts, and small ones
    from these and a third. While serving, it gets a large flow from each of three rack hosts.
    """
    hosts = tuple(range(rs.RACK))
    large = rs.tenant(hosts, streams=rs.RACK - 1, rpc_per_us=rs.RACK * PER_US, reads_per_us=0.0)
    return replace(
        rs.scenario(),
        traffic=(*large, *(_small_reads(host) for host in hosts)),
        slots=224,
        slowdown_weights=(0.0096, 1.0, 1.31),
    )


def _small_reads(host: int) -> Source:
    """Small files that a rack host reads from the storage hosts of its large ones, and the next."""
    storage = [rs.RACK + (2 * host + i) % rs.STORAGE for i in range(3)]
    return Requests(
        per_us=(PER_US, 0.0),
        sources=tuple(storage),
        destinations=(host,),
        width=WIDTH,
        timeline=rs.TIMELINE,
    )
