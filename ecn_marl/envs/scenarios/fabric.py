"""`fabric-v0`: two jobs share racks and spines; in turns one loads data across them, one serves.

Four racks, 20 µs from their two spines: a round trip between racks takes 84 µs, one within a rack
4 µs. Every rack hosts both jobs, half of its hosts each. A job that loads fetches data from its
hosts in the other racks, through three queues: leaf to spine, spine to leaf, leaf to host. A job
that serves exchanges large flows and requests within its racks, and a few requests between them.
The jobs swap after phases of random length.

The best setting of a port depends on the others. A fetch gets its rate only if marks of none of its
three queues slow it down. While marks at the host ports slow it, deep queues in the fabric gain
nothing, and requests between racks wait in them. When the host ports have deep thresholds, shallow
ones in the fabric slow the fetch, and its rest delays the serving phase.
`ecn_marl.experiments.interaction` measures this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.network.topology import Topology, leaf_spine
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline

TIMELINE = Timeline((8000.0, 8000.0), length_jitter=0.5, names=("load", "serve"))

LEAVES, PER_LEAF, SPINES = 4, 4, 2
"""The fabric; hosts 4 r to 4 r + 3 are on leaf r, the first two of them job A's."""


def network() -> Topology:
    """16 hosts at 100 Gb/s, 4:3 oversubscribed: uplinks are bundles of three 50 Gb/s links."""
    return leaf_spine(LEAVES, PER_LEAF, SPINES, gbps=100.0, uplink_gbps=150.0, uplink_delay_us=20.0)


@dataclass(frozen=True)
class Job:
    """One of two jobs that share all racks.

    Attributes:
        index: 0 or 1; job 1 runs a phase behind.
        leaves: number of racks.
        per_leaf: hosts of a rack, half of them this job's.
    """

    index: int
    leaves: int = LEAVES
    per_leaf: int = PER_LEAF

    @property
    def half(self) -> int:
        """Hosts of the job in a rack."""
        return self.per_leaf // 2

    def rack(self, r: int) -> tuple[int, ...]:
        """Hosts of the job in a rack."""
        first_host = r * self.per_leaf + self.index * self.half
        return tuple(range(first_host, first_host + self.half))

    @property
    def hosts(self) -> tuple[int, ...]:
        """All hosts of the job."""
        return sum((self.rack(r) for r in range(self.leaves)), ())

    def fetches(self, streams: int) -> tuple[tuple[int, int], ...]:
        """`streams` flows to every host, from hosts of the job in the racks that follow."""
        other_racks, pairs = self.leaves - 1, []
        for r in range(self.leaves):
            for j, d in enumerate(self.rack(r)):
                for i in range(streams):
                    source_rack = self.rack((r + 1 + i % other_racks) % self.leaves)
                    pairs.append((source_rack[(j + i // other_racks) % self.half], d))
        return tuple(pairs)

    def exchanges(self, streams: int) -> tuple[tuple[int, int], ...]:
        """`streams` flows to every host, in turn from the others of the job in its rack."""
        pairs = []
        for r in range(self.leaves):
            rack = self.rack(r)
            for j, d in enumerate(rack):
                for i in range(streams):
                    pairs.append((rack[(j + 1 + i % (self.half - 1)) % self.half], d))
        return tuple(pairs)


def traffic(
    job: Job,
    fetched: int = 4,
    exchanged: int = 6,
    near_per_us: float = 0.3,
    far_per_us: tuple[float, float] = (0.02, 0.05),
    width: int = 4,
) -> tuple[Source, ...]:
    """Traffic to the hosts of a job.

    Args:
        job: the job.
        fetched: flows to each host while loading, from other racks.
        exchanged: large flows to each host while serving, within its rack.
        near_per_us: requests per µs while serving, all racks together, each within a rack.
        far_per_us: requests per µs between racks while loading and while serving.
        width: large flows that can begin in a tick.
    """
    common: dict[str, Any] = {"timeline": TIMELINE, "shift": job.index}
    hosts = job.hosts
    within = tuple(
        Requests(
            per_us=(0.0, near_per_us / job.leaves),
            sources=tuple(range(r * job.per_leaf, (r + 1) * job.per_leaf)),
            destinations=job.rack(r),
            width=8,
            **common,
        )
        for r in range(job.leaves)
    )
    return (
        FlowSets(phase=0, pairs=job.fetches(fetched), fill=0.9, width=width, **common),
        FlowSets(phase=1, pairs=job.exchanges(exchanged), fill=0.8, width=width, **common),
        Requests(per_us=far_per_us, sources=hosts, destinations=hosts, width=8, **common),
        *within,
    )


def job_groups(topology: Topology, jobs: tuple[Job, ...]) -> tuple[HostGroup, ...]:
    """Hosts of each job, with its place on the timeline."""
    return tuple(
        HostGroup(f"job {name}", tuple(topology.hosts[i] for i in job.hosts), shift=job.index)
        for name, job in zip("AB", jobs, strict=True)
    )


def scenario() -> Scenario:
    """4 leaves, 2 spines, 16 hosts: 32 ports; phases of 4 to 12 ms, episodes of 32 ms."""
    topology, jobs = network(), (Job(0), Job(1))
    return Scenario(
        topology=topology,
        traffic=traffic(jobs[0]) + traffic(jobs[1]),
        **ai.FAR_APART,
        slots=448,
        slowdown_weights=(0.00333, 1.0, 0.0879),
        margins_us=(1000.0, 1000.0),
        benchmark=True,
        host_groups=job_groups(topology, jobs),
    )
