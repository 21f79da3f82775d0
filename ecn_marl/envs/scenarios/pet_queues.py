"""`pet-two-queues-v0`, `pet-two-queues-small-v0`: ports with two queues (PET, §4.5.2).

PET describes ports of several queues and measures none. Here WebSearch and DataMining, 30 % load
each, have separate queues at every port, served in turn with equal weights. A port's agent has the
observation and the reward of both queues together, and sets the thresholds of both.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import PRIORITIES, Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.traffic.poisson import Poisson


def _scenario(small: bool, slots: int) -> Scenario:
    width = 8 if small else 32
    return Scenario(
        traffic=(
            Poisson(load=0.3, table="WebSearch", width=width),
            Poisson(load=0.3, table=pn.LARGEST_TABLE if small else "DataMining", width=width),
        ),
        classes=({"name": "WebSearch"}, {"name": "DataMining"}),
        class_of=(0, 1),
        reward_options={"utilisation_weight": PRIORITIES["latency"]},
        slots=slots,
        **pn.common(small),
    )


def full() -> Scenario:
    """288 hosts."""
    return _scenario(False, 1024)


def small() -> Scenario:
    """12 hosts."""
    return _scenario(True, 320)
