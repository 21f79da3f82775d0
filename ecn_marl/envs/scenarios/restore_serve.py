"""`restore-serve-v0`: a rack restores data from far away, then serves requests, in turns.

While it restores, each rack host reads from two storage hosts over an 84 µs round trip. Shallow
thresholds cost these reads half their link, and their rest delays the next phase. While it serves,
large flows and small requests cross the rack, and with deep thresholds requests wait behind
megabytes. Slowdown measures both. So thresholds should be deep in one phase and shallow in the
other. A port can distinguish the phases: a few long flows, or many that begin. Their lengths are
drawn each time, so the time does not reveal when a phase ends.

`moving-tenants-v0`, `shuffle-serve-v0` and `restore-files-v0` are variants, see there.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.network.topology import Topology, dumbbell
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline

RACK, STORAGE = 4, 8
"""Hosts of the rack, numbers 0 to 3, and of the storage system, 4 to 11."""

TIMELINE = Timeline((8000.0, 8000.0), length_jitter=0.5, names=("restore", "serve"))

SLOTS = 192


def tenant(
    hosts: tuple[int, ...],
    shift: int = 0,
    streams: int = 6,
    timeline: Timeline = TIMELINE,
    rpc_per_us: float = 0.2,
    reads_per_us: float = 0.02,
) -> tuple[Source, ...]:
    """Traffic to some hosts of the rack.

    Args:
        hosts: the hosts.
        shift: phases by which they run behind the timeline.
        streams: large flows to each host in a serving phase, a multiple of `RACK - 1`.
        timeline: restore and serve.
        rpc_per_us: requests per µs while serving, for the whole rack; `hosts` get their share.
        reads_per_us: small reads from storage per µs while restoring, likewise; 0 for none.
    """
    rack = tuple(range(RACK))
    storage = tuple(range(RACK, RACK + STORAGE))
    reads = tuple((RACK + 2 * d + i, d) for d in hosts for i in range(2))
    senders = [(s, d) for d in hosts for s in rack if s != d]
    shuffle = tuple(pair for pair in senders for _ in range(streams // (RACK - 1)))
    rack_share = len(hosts) / RACK
    common: dict[str, Any] = {"timeline": timeline, "shift": shift}
    per_us = (reads_per_us * rack_share, 0.0)
    small_reads = Requests(per_us=per_us, sources=storage, destinations=hosts, width=4, **common)
    return (
        FlowSets(phase=0, pairs=reads, fill=0.9, **common),
        FlowSets(phase=1, pairs=shuffle, fill=0.8, **common),
        *((small_reads,) if reads_per_us else ()),
        Requests(
            per_us=(0.0, rpc_per_us * rack_share),
            sources=rack,
            destinations=hosts,
            width=12,
            **common,
        ),
    )


def network(gbps: float = 100.0, trunk_gbps: float = 800.0) -> Topology:
    """Two switches 40 µs apart: 4 rack hosts on one, 8 storage hosts on the other."""
    return dumbbell(RACK, STORAGE, gbps=gbps, uplink_gbps=trunk_gbps, uplink_delay_us=40.0)


def host_names(hosts: tuple[int, ...]) -> tuple[str, ...]:
    """Names of hosts by their numbers."""
    return tuple(f"host{i}" for i in hosts)


def scenario() -> Scenario:
    """4 rack and 8 storage hosts at 100 Gb/s, 14 ports; phases of 4 to 12 ms, episodes of 32 ms.

    Requests of 0.5 to 50 KB: 0.02 per µs while restoring, 0.2 while serving.
    """
    return Scenario(
        topology=network(),
        traffic=tenant(tuple(range(RACK))),
        **ai.FAR_APART,
        slots=SLOTS,
        slowdown_weights=(0.0076, 1.0, 0.5),
        margins_us=(1000.0, 1000.0),
        benchmark=True,
        host_groups=(
            HostGroup("rack", host_names(tuple(range(RACK)))),
            HostGroup("storage", host_names(tuple(range(RACK, RACK + STORAGE)))),
        ),
    )
