"""`websearch-v0`: web-search traffic at 60 % load on a small leaf-spine network."""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.network.topology import leaf_spine
from ecn_marl.sim.traffic.poisson import Poisson


def scenario() -> Scenario:
    """8 hosts on 2 leaves with 2 spines: 16 ports, 25 Gb/s to hosts, 50 Gb/s to spines (1:1)."""
    return Scenario(
        topology=leaf_spine(2, 4, 2, gbps=25.0, uplink_gbps=50.0),
        traffic=(Poisson(load=0.6, table="WebSearch", width=4),),
        slots=64,
    )
