"""`near-far-v0`: short and long round trips at one port, with flows that arrive at random.

Hosts of a rack exchange flows over round trips of 4 µs, and receive others from storage 40 µs away,
all of WebSearch's sizes. Few far flows need a queue that outlasts their round trip, and short flows
of the rack wait behind it. There are no phases: what a port carries changes whenever a flow begins
or ends.

Round trips of one region reach from some µs within a rack to 2 ms between buildings (Bai et al.,
"Empowering Azure storage with RDMA", NSDI'23).
"""

from __future__ import annotations

import numpy as np

from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.envs.scenarios import mixed_rtt
from ecn_marl.sim.traffic.poisson import Poisson

RACK, STORAGE = 8, 8
"""Hosts of the rack, numbers 0 to 7, and storage servers, 8 to 15."""

FAR_US = 19.0
"""Delay of a storage server's link; that of the rack's is 1 µs: round trips of 40 and 4 µs."""


def _between(senders: slice, receivers: slice) -> tuple[tuple[float, ...], ...]:
    """Equal weights from each sender to each receiver but itself."""
    weights = np.zeros((RACK + STORAGE,) * 2)
    weights[senders, receivers] = 1.0
    np.fill_diagonal(weights, 0.0)
    return tuple(tuple(row) for row in weights.tolist())


def scenario() -> Scenario:
    """16 hosts at 100 Gb/s; ports to the rack carry 70 % on average; episodes of 32 ms."""
    rack, storage = slice(0, RACK), slice(RACK, RACK + STORAGE)
    network = mixed_rtt.network(far_us=FAR_US)
    names = network.hosts
    share = RACK / (RACK + STORAGE)  # loads are shares of all NICs, and only the rack receives
    return Scenario(
        topology=network,
        traffic=(
            Poisson(load=0.3 * share, warm=True, matrix=_between(rack, rack)),
            Poisson(load=0.4 * share, warm=True, matrix=_between(storage, rack)),
        ),
        **ai.FAR_APART,
        slots=256,
        slowdown_weights=(0.0338, 0.188, 0.0778),
        margins_us=(2000.0, 2000.0),
        host_groups=(
            HostGroup("rack", names[:RACK]),
            HostGroup("storage", names[RACK:]),
        ),
    )
