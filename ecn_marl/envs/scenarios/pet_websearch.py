"""`pet-websearch-v0`: the network of ACC and PET's large-scale simulations."""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.traffic.poisson import Poisson


def scenario() -> Scenario:
    """288 hosts on 12 leaves with 6 spines: 432 ports, 25 and 100 Gb/s (PET, §5.1)."""
    return Scenario(
        topology=pn.network(small=False),
        traffic=(Poisson(load=0.6, table="WebSearch", width=32),),
        slots=1024,
        action_options={"alpha_kb": 20.0},
        slowdown_weights=pn.weights("WebSearch", False),
        margins_us=(pn.WARM_UP_US, pn.COOL_DOWN_US),
    )
