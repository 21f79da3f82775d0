"""`pet-many-to-one-v0`, `pet-many-to-one-small-v0`: mice and elephants, many to one (PET, §5.3).

PET extends its traffic generator "to support generating many-to-one traffic patterns and mice and
elephant flows", and gives no numbers. Here the traffic is WebSearch at 40 % load and bursts to
hosts chosen at random: mice of 90 KB from 8 to 11 hosts (8 to 128 at full size), and elephants of
5 MB from 2 to 4 hosts at 10 % load.

A source offers one burst per tick, and a second one waits for the next tick. To keep the waiting
flows below 0.1 %, bursts of mice are rare, some 0.3 in a millisecond (0.7 at full size), and a
tick is one substep.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import PRIORITIES, Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.poisson import Poisson


def _scenario(small: bool, load: float, most: int, slots: int) -> Scenario:
    return Scenario(
        traffic=(
            Poisson(load=0.4, table="WebSearch", width=8 if small else 32),
            Incast(load=load, n_min=8, n_max=most, flow_kb=90.0, receiver=-1, width=most),
            Incast(load=0.1, n_min=2, n_max=4, flow_kb=5000.0, receiver=-1, width=4),
        ),
        dt_us=2.0,
        tick_steps=1,
        reward_options={"utilisation_weight": PRIORITIES["latency"]},
        slots=slots,
        **pn.common(small),
    )


def full() -> Scenario:
    """288 hosts, bursts of up to 128 senders."""
    return _scenario(False, 0.003, 128, 2048)


def small() -> Scenario:
    """12 hosts, bursts of up to 11 senders."""
    return _scenario(True, 0.006, 11, 320)
