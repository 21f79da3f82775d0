"""The testbed of ACC (Yan et al., SIGCOMM'21, §5.1), full size and small, with its constants.

Full: two spines, four leaves and 24 servers, each with two NICs of 25 Gb/s on two leaves; every
leaf has four uplinks of 100 Gb/s. Small: the same with 8 servers and two uplinks per leaf. PFC
pauses an ingress that takes 1/9 of the free buffer (alpha = 1/8) on links of any rate. The round
trip is 6 µs between leaves; the tuning interval is the package's, 100 µs (the paper: an order of
magnitude above it). ACKs and CNPs have their own class, as NICs send them.

The paper's times of seconds are divided by `FACTOR`, or by `SMALL_FACTOR` in the small scenarios.
The functions that make scenarios take the factor: with 1 the times are the paper's.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.sim.network.topology import Topology, acc_testbed, leaf_spine

FACTOR, SMALL_FACTOR = 1_000.0, 10_000.0
"""Divisors of the paper's times: 100 s are 100 ms, and 10 ms in small scenarios."""

TRANSPORT = "dcqcn:mellanox"
"""ConnectX-5 with the constants of its firmware; the paper states none."""

TICK_US = 10.0
"""Tick of the simulator: no two bursts begin within one."""

PFC_ALPHA = 0.125
"""The NIC vendor's default (§5.1)."""


def network(small: bool) -> Topology:
    """The testbed; 80 ports, or 32 if small."""
    if not small:
        return acc_testbed()
    return leaf_spine(4, 4, 2, nics_per_server=2, uplink_gbps=100.0, delay_us=0.58,
                      uplink_delay_us=0.9525)  # fmt: skip


def first_nics(topology: Topology) -> tuple[int, ...]:
    """The first NIC of every server, in the order of servers."""
    return tuple(topology.server.index(s) for s in range(max(topology.server) + 1))


def common(small: bool) -> dict[str, Any]:
    """Fields that scenarios on the testbed share."""
    return {"topology": network(small), **fields()}


def fields() -> dict[str, Any]:
    """Fields that scenarios on other networks share with them."""
    return {
        "transport": TRANSPORT,
        "pfc_alpha": PFC_ALPHA,
        "memory_us": 1024.0,
        "ack_priority": True,
        "action_options": {"alpha_kb": 20.0},
    }
