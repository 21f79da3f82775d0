"""`pet-switching-v0`, `pet-switching-small-v0`: traffic changes abruptly (PET, Fig. 6).

WebSearch; DataMining from 4.1 s on; WebSearch again from 8.1 s on; at 9.1 s "another sudden traffic
switching" (§5.5.4), to DataMining here. All at 60 % load, which PET does not state. The small
scenario has all times divided by 100: 41, 81 and 91 ms of 100.
"""

from __future__ import annotations

from itertools import pairwise

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import pet_network as pn
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.jobs import Requests, Timeline
from ecn_marl.sim.traffic.sizes import size_table

AT_US = (0.0, 4.1e6, 8.1e6, 9.1e6, 10e6)
"""Times at which traffic changes, and the end."""

NAMES = ("WebSearch", "DataMining", "WebSearch again", "DataMining again")

LOAD = 0.6


def timeline(factor: float) -> Timeline:
    """The four parts, times multiplied by a factor."""
    lengths = tuple(factor * (b - a) for a, b in pairwise(AT_US))
    return Timeline(lengths, names=NAMES)


def traffic(small: bool, factor: float, load: float = LOAD) -> tuple[Source, ...]:
    """Two sources that take turns, each with its table of sizes."""
    net = pn.network(small)
    hosts = tuple(range(net.n_hosts))
    sources = []
    for turn, table in enumerate(("WebSearch", pn.LARGEST_TABLE if small else "DataMining")):
        per_us = load * sum(net.nic_gbps) * GBPS / float(size_table(table).mean)
        rates = tuple(per_us if part % 2 == turn else 0.0 for part in range(len(NAMES)))
        width = 8 if small else 32
        sources.append(Requests(timeline(factor), rates, hosts, hosts, table=table, width=width))
    return tuple(sources)


def _scenario(small: bool, factor: float, slots: int) -> Scenario:
    fields = pn.common(small) | {"max_steps": round(factor * AT_US[-1] / 100.0)}
    fields["margins_us"] = (pn.WARM_UP_US, 0.0)  # no cool-down: the last part counts as well
    return Scenario(traffic=traffic(small, factor), slots=slots, **fields)


def full() -> Scenario:
    """288 hosts, the paper's 10 s: 100 000 intervals."""
    return _scenario(False, 1.0, 1024)


def small() -> Scenario:
    """12 hosts, 100 ms."""
    return _scenario(True, pn.SMALL_FACTOR, 320)
