"""`websearch-star-v0`: web-search traffic at 60 % load around one switch, the smallest scenario."""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.poisson import Poisson


def scenario() -> Scenario:
    """8 hosts at 25 Gb/s around one switch: 8 ports, every flow crosses one queue."""
    return Scenario(
        topology=star(8, gbps=25.0),
        traffic=(Poisson(load=0.6, table="WebSearch", width=4),),
        slots=64,
    )
