"""`restore-files-v0`: what is restored has many small files, so counts of flows tell no phase.

In `restore-serve-v0` few flows begin while a rack restores and many while it serves, and a rule
that counts them does nearly what the oracle does. Here a restore reads small files, too, as often
as requests come while serving. A read from far away takes 84 µs in an empty network, so it hardly
suffers from a deep queue; a request takes 6 µs, and does. What tells the phases apart is how queues
and rates answer to a setting, not how many flows there are.

Data sets and models are kept as many small files beside few large ones (Xu et al., "FalconFS:
Distributed file system for large-scale deep learning pipeline", arXiv 2507.10367, section 2).
"""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import restore_serve as rs

PER_US, WIDTH = 0.2, 12
"""Small reads per µs while restoring and requests per µs while serving, for the whole rack; and how
many may begin in a tick."""


def scenario() -> Scenario:
    """`restore-serve-v0` with 0.2 small reads per µs while restoring; three large flows to serve.

    So two or three large flows and five to nine small ones per 100 µs begin at a host's port in
    both phases.
    """
    hosts = tuple(range(rs.RACK))
    return replace(
        rs.scenario(),
        traffic=rs.tenant(
            hosts, streams=3, rpc_per_us=PER_US, reads_per_us=PER_US, read_width=WIDTH
        ),
        slots=224,
        slowdown_weights=(0.0036, 1.0, 0.5),
        benchmark=False,
    )
