"""`pet-websearch-v0`: the network of ACC and PET's large-scale simulations."""

from __future__ import annotations

from ecn_marl.envs.registry import Scenario
from ecn_marl.sim.poisson import Poisson
from ecn_marl.sim.topology import leaf_spine


def scenario() -> Scenario:
    """288 hosts on 12 leaves with 6 spines: 432 ports, 25 and 100 Gb/s (PET, §5.1)."""
    return Scenario(
        topology=leaf_spine(12, 24, 6, gbps=25.0, uplink_gbps=100.0),
        traffic=(Poisson(load=0.6, table="WebSearch", width=32),),
        slots=1024,
        action_options={"alpha_kb": 20.0},
    )
