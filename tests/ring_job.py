"""A small scenario whose phases are the steps of a job: a ring of three hosts."""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import star
from ecn_marl.sim.traffic.collectives import ring_all_reduce
from ecn_marl.sim.traffic.graphs import Graph

TWO = {
    "actions": "discrete",
    "action_options": {"template": ((5.0, 20.0, 1.0), (10.0, 40.0, 1.0))},
}
"""Options: a list of two settings, one for each phase."""


def ring_job() -> Scenario:
    """Steps of 60 KB with pauses of 50 µs; 4 intervals of 40 µs."""
    ring = Graph(ring_all_reduce([0, 1, 2], 60_000), pause_us=50.0, start_us=20.0)
    return Scenario(
        topology=star(3),
        traffic=(ring,),
        slots=8,
        max_steps=4,
        interval_us=40.0,
        bins=0,
        phased_by=0,
    )
