"""`websearch-load-v0`, a control: web search at a steady load between all hosts of a fabric.

Random arrivals of the same kind at all hosts, without phases, jobs or distances. All ports see the
same mix at all times, so one good setting should do for all of them, always.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.poisson import Poisson


def scenario() -> Scenario:
    """2 leaves of 4 hosts, 2 spines, as much bandwidth up as down; episodes of 32 ms."""
    return Scenario(
        topology=ai.fabric(4, uplink_gbps=200.0),
        traffic=(Poisson(load=0.6, table="WebSearch", warm=True),),
        slots=256,
        slowdown_weights=(0.0568, 0.18, 0.0824),
        max_steps=320,
        margins_us=(2000.0, 2000.0),
        **ai.COMMON,
    )
