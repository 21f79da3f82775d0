"""`acc-incast-v0`, `acc-incast-small-v0`: N to 1 at some load (ACC, Fig. 1).

The figure shows that the best static setting depends on the incast degree and on the load. Bursts
of N flows of 1 MB go to one server, each NIC's link of which they load by 60 %. Other degrees and
loads are options, e.g. `traffic="incast:n_min=8,n_max=8,flow_kb=1000,load=0.3,min_gap_us=10"`.
Sizes and degrees of the figure are not in the excerpt of the paper that this follows.
"""

from __future__ import annotations

from ecn_marl.envs.registry import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.incast import Incast

FLOW_KB = 1000.0


def _scenario(small: bool, most: int, slots: int) -> Scenario:
    bursts = Incast(load=0.6, n_min=2, n_max=most, flow_kb=FLOW_KB, min_gap_us=an.TICK_US)
    return Scenario(traffic=(bursts,), slots=slots, max_steps=400, **an.common(small))


def full() -> Scenario:
    """2 to 64 flows from 23 servers, episodes of 40 ms."""
    return _scenario(False, 64, 1024)


def small() -> Scenario:
    """2 to 16 flows from 7 servers, episodes of 40 ms."""
    return _scenario(True, 16, 384)
