"""The smallest network that has more than one agent, and functions compiled once for all tests."""

from __future__ import annotations

import ecn_marl
from ecn_marl.envs.parallel import PROGRAMS
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.incast import Incast

AGENTS = 3
HORIZON = 3


SCENARIO = "incast-v0"
OPTIONS = {
    "topology": star(AGENTS),
    "traffic": (Incast(load=0.8, n_min=2, n_max=2, flow_kb=200.0, width=2),),
    "slots": 8,
    "max_steps": HORIZON,
}


def tiny(actions="multidiscrete"):
    """Three ports, two senders, three intervals of 100 µs."""
    return ecn_marl.make(SCENARIO, actions=actions, **OPTIONS)


def functions(core):
    """Compiled `reset(key, params)` and `step(key, state, action, params)`, once for all files."""
    reset, step, _ = PROGRAMS.of(core.program)
    return reset, step
