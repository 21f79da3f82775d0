"""`all-reduce-v0`, a control: one job alone in a fabric that is not oversubscribed.

A ring of twelve hosts, each of which sends one flow and receives one. Operators run such jobs
without any marking (Gangidi et al., "RDMA over Ethernet for distributed AI training at Meta scale",
SIGCOMM'24). So there should be nothing to gain here, and a method that gains something is worth a
second look.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import ring_all_reduce
from ecn_marl.sim.traffic.graphs import Graph

HOSTS, GRADIENTS = tuple(range(12)), 12_000_000
"""Hosts of the job, six on each leaf, and bytes of its gradients."""


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, as much bandwidth up as down; episodes of 32 ms."""
    ring = Graph(
        ring_all_reduce(HOSTS, GRADIENTS), pause_us=1000.0, pause_jitter=0.5, start_us=1000.0
    )
    ideal_us = ai.ring_us(len(HOSTS), GRADIENTS)
    return Scenario(
        topology=ai.fabric(6, uplink_gbps=300.0),
        traffic=(ring,),
        slots=32,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=(Part("all-reduce", 1.0, (0,), ideal_us, reward=1.0, par=1.05),),
        max_steps=320,
        **ai.COMMON,
    )
