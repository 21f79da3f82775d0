"""`acc-tcp-2-v0`, `acc-tcp-7-v0`, each also `-small`: RDMA beside TCP (ACC, Fig. 8).

Eight servers with NICs of 100 Gb/s around a switch; 2 or 7 of them send to one. Ports serve RDMA
and TCP by deficit-weighted round robin, 70 to 30. Every sender has 1 to 32 queue pairs, drawn again
from time to time (§5.2), and TCP streams. TCP backs off only on loss, with tail drop; RDMA is
lossless and marked. Both are always busy, so their shares of the link show which class exceeds its
weight. The paper does not state how often queue pairs change or the number of TCP streams: every
5 ms and 4 streams here.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.streams import Streams

SHARES = {"rdma": 0.7, "tcp": 0.3}
"""Weights of the classes."""

PART_US = 5_000.0

TCP_STREAMS = 4


def scenario(senders: int, small: bool) -> Scenario:
    """Episodes of 20 ms.

    Args:
        senders: 2 or 7.
        small: whether senders have 1 to 8 queue pairs instead of 1 to 32, and 2 TCP streams.
    """
    pairs, tcp = (8, 2) if small else (32, TCP_STREAMS)
    timeline = Timeline((PART_US,), names=("a draw",))
    hosts, everyone = tuple(range(1, senders + 1)), ((senders, senders),)
    return Scenario(
        topology=star(8, gbps=100.0, delay_us=0.58),
        traffic=(
            Streams(timeline, hosts, 0, everyone, ((1, pairs),), fill=0.7 * SHARES["rdma"]),
            Streams(timeline, hosts, 0, everyone, ((tcp, tcp),), flow_kb=10_000.0),
        ),
        classes=(
            {"name": "rdma", "weight": SHARES["rdma"]},
            {
                "name": "tcp",
                "weight": SHARES["tcp"],
                "transport": "reno:rfc5681",
                "lossless": False,
            },
        ),
        class_of=(0, 1),
        max_steps=200,
        # TCP hears of a loss when the packet behind it has crossed the queue, milliseconds later.
        **an.fields() | {"memory_us": 8192.0},
    )
