"""`acc-incast-N-v0` and `acc-incast-N-small-v0`: N to 1 at some load (ACC, Fig. 1).

The figure shows that the best static setting depends on the incast degree and on the load. Bursts
of N flows of 2 MB go to one server and load each of its links by 60 %; the option `load` sets
another load. There are pings as well. Sizes and degrees of the figure are not in the excerpt of the
paper used here: 2, 8 and 64 flows, 16 instead of 64 on the small testbed.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.envs.scenarios.pings import pings
from ecn_marl.sim.traffic.incast import Incast

FLOW_KB = 2000.0

DEGREES, SMALL_DEGREES = (2, 8, 64), (2, 8, 16)


def scenario(degree: int, small: bool) -> Scenario:
    """Episodes of 80 ms.

    Args:
        degree: flows of a burst, from different servers as far as possible.
        small: whether it is the small testbed.
    """
    shared = an.common(small)
    receiver, *senders = an.first_nics(shared["topology"])
    bursts = Incast(load=0.6, n_min=degree, n_max=degree, flow_kb=FLOW_KB, min_gap_us=an.TICK_US)
    return Scenario(
        traffic=(bursts, pings(tuple(senders), receiver)),
        slots=384 if small else 1024,
        max_steps=800,
        **shared,
    )
