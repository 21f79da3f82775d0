"""`acc-heterogeneous-v0`, `acc-heterogeneous-small-v0`: traffic changes (ACC, Figs. 2 and 6).

Every 100 s the number of senders to one server and the number of flows of each are drawn again
(§5.2). Perftest keeps its queue pairs busy, so these streams always have bytes to send, and any
unused capacity is lost throughput. 100 s are 100 ms here, 10 ms in the small scenario. An episode
has three parts, as in Fig. 6. The paper does not state the numbers of senders and flows.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.streams import Streams

PART_US = 100e6
"""Length of a part in the paper."""

PARTS = 3

START = 0.2
"""Share of a part in which its streams start. A real application does not start hundreds of them
within a round trip, and such a burst would dominate a part of a few milliseconds."""


def scenario(small: bool, factor: float) -> Scenario:
    """Episodes of three parts.

    Args:
        small: whether it is the small testbed.
        factor: divisor of the paper's times; 1 for 300 s, three million intervals.
    """
    shared = an.common(small)
    receiver, *senders = an.first_nics(shared["topology"])
    part_us = PART_US / factor
    streams = Streams(
        Timeline((part_us,), names=("a draw",)),
        tuple(senders),
        receiver,
        senders=((1, len(senders)),),
        flows=((1, 8 if small else 16),),
        start_us=min(START * part_us, 1e6),
    )
    steps = round(PARTS * part_us / 100.0)
    return Scenario(traffic=(streams,), max_steps=steps, **shared)


def full() -> Scenario:
    """1 to 23 senders, each with 1 to 16 flows; 300 ms."""
    return scenario(False, an.FACTOR)


def small() -> Scenario:
    """1 to 7 senders, each with 1 to 8 flows; 30 ms."""
    return scenario(True, an.SMALL_FACTOR)
