"""`pet-failures-v0`, `pet-failures-small-v0`: links fail for a while (PET, Fig. 7).

10 % of the links between switches are down from 3.1 s to 6.1 s (§5.5.5). WebSearch at 60 % load,
which PET does not state. The small scenario has all times divided by 100, and 1 of its 6 links
fails.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.envs.scenario import PRIORITIES, Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.traffic.poisson import Poisson

DOWN_US, UP_US, END_US = 3.1e6, 6.1e6, 10e6

SHARE = 0.1


def _scenario(small: bool, factor: float, slots: int) -> Scenario:
    fields: dict[str, Any] = pn.common(small) | {"max_steps": round(factor * END_US / 100.0)}
    fields["margins_us"] = (pn.WARM_UP_US, 0.0)
    return Scenario(
        traffic=(Poisson(load=0.6, table="WebSearch", width=8 if small else 32),),
        failing={"share": SHARE, "at_us": factor * DOWN_US, "repair_us": factor * UP_US},
        reward_options={"utilisation_weight": PRIORITIES["latency"]},
        slots=slots,
        **fields,
    )


def full() -> Scenario:
    """288 hosts, the paper's 10 s: 100 000 intervals; 7 of 72 links fail."""
    return _scenario(False, 1.0, 2048)


def small() -> Scenario:
    """12 hosts, 100 ms; 1 of 6 links fails."""
    return _scenario(True, pn.SMALL_FACTOR, 512)
