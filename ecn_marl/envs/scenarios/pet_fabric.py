"""`pet-fabric-v0`: the jobs of `fabric-v0` on PET's network of 432 ports."""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import fabric
from ecn_marl.sim.network.topology import leaf_spine

LEAVES, PER_LEAF, SPINES = 12, 24, 6


def scenario() -> Scenario:
    """288 hosts on 12 leaves with 6 spines, 25 and 100 Gb/s, spines 20 µs away; 432 ports.

    Phases of 4 to 12 ms, episodes of 32 ms. The slots are enough under any setting. It is for tests
    of scale and not part of the benchmark: ten seeds of every learner would take days of CPU, and
    `fabric-v0` has the same decisions.
    """
    topology = leaf_spine(
        LEAVES, PER_LEAF, SPINES, gbps=25.0, uplink_gbps=100.0, uplink_delay_us=20.0
    )
    jobs = tuple(fabric.Job(i, LEAVES, PER_LEAF) for i in (0, 1))
    sources = (fabric.traffic(job, 2, 3, 1.44, (0.1, 0.2), 16) for job in jobs)
    return replace(
        fabric.scenario(),
        topology=topology,
        traffic=tuple(source for job_sources in sources for source in job_sources),
        transport="dcqcn:hpcc-paper",
        slots=2048,
        slowdown_weights=(0.000695, 1.0, 0.0196),
        host_groups=fabric.job_groups(topology, jobs),
        benchmark=False,
    )
