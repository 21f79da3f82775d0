"""HAECN's networks and traffic, four sizes, each full and `-small` (Hu et al.).

12 leaves and 6 spines; a leaf has 12, 24, 36 or 48 links of 25 Gb/s to servers (the paper's SECN1
to SECN4) and one of 100 Gb/s to every spine (§5). Flows of 5 MB go to a server of leaf 1.

`haecn-bursty-N-v0` (Figs. 2 and 6): every fourth server of each leaf sends one flow after the
other. `haecn-gradual-N-v0` (Figs. 3 and 7): one of 12 servers sends, chosen at random, and from
200 ms on one of 6. A server has one flow at a time, because the paper does not state a load. The
tuning interval is 15 round trips (Table 1). ACKs and CNPs have their own class, as NICs send them.

Small: 4 leaves and 2 spines, half of the links, and times divided by 10.
"""

from __future__ import annotations

import math
from typing import Any

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios.pings import WAITING, pings
from ecn_marl.sim.network.topology import Topology, leaf_spine
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.sizing import HELD
from ecn_marl.sim.traffic.streams import Streams

LINKS = (12, 24, 36, 48)
"""Links of a leaf to servers."""

FLOW_KB = 5_000.0

WEIGHTS = (0.0225, 1.0, 0.47)
"""Weights of slowdowns in `haecn-bursty-24-small-v0`, where learners train: pings and large flows
count alike under SECN1, and an interval earns -1. Measured in 4 episodes."""

CHANGE_US = 200_000.0
"""When the number of senders doubles (Fig. 3, t2), and how long it stays so."""

SMALL_FACTOR = 10.0

TRANSPORT = "dcqcn:paper"
"""Constants of DCQCN's authors; the paper states none."""

INTERVAL_US = 150.0
"""15 round trips of 10 µs between leaves, with links of 1 µs, which the paper does not state."""


def network(links: int, small: bool) -> Topology:
    """The topology; the first server of the first leaf receives."""
    leaves, spines, per_leaf = (4, 2, links // 2) if small else (12, 6, links)
    return leaf_spine(leaves, per_leaf, spines, gbps=25.0, uplink_gbps=100.0)


def _scenario(topology: Topology, streams: Streams, flows: int, steps: int) -> Scenario:
    """Streams and pings; at most `flows` of the streams are in progress."""
    fields: dict[str, Any] = {
        **{"features": "haecn", "reward": "haecn", "action_options": {"alpha_kb": 20.0}},
        **{"interval_us": INTERVAL_US, "memory_us": 1024.0, "transport": TRANSPORT},
        **{"ack_priority": True, "slowdown_weights": WEIGHTS},
    }
    everyone = tuple(range(1, topology.n_hosts))
    traffic = (streams, pings(everyone, 0))
    # Uplinks that the receiver's leaf pauses hold about as many pings again: 235 in all with
    # senders of TIMELY and 48 links.
    slots = 16 * math.ceil((HELD * flows + 2 * WAITING) / 16.0)
    return Scenario(topology=topology, traffic=traffic, slots=slots, max_steps=steps, **fields)


def bursty(links: int, small: bool) -> Scenario:
    """Every fourth server of each leaf sends; episodes of 900 ms, 90 ms if small."""
    topology = network(links, small)
    per_leaf = links // 2 if small else links
    senders = tuple(h for h in range(1, topology.n_hosts) if h % per_leaf % 4 == 3)
    timeline = Timeline((2e6,), names=("bursts",))
    n = len(senders)
    streams = Streams(timeline, senders, 0, ((n, n),), flow_kb=FLOW_KB, start_us=1000.0)
    return _scenario(topology, streams, n, 600 if small else 6000)


def gradual(links: int, small: bool) -> Scenario:
    """One of 12 servers sends, then one of 6; episodes of 400.5 ms, 42 ms if small."""
    topology = network(links, small)
    n = topology.n_hosts
    part_us = CHANGE_US / (SMALL_FACTOR if small else 1.0)
    timeline = Timeline((part_us, 10.0 * part_us), names=("one of 12", "one of 6"))
    few, many = max(n // 12, 1), max(n // 6, 2)
    streams = Streams(
        timeline,
        tuple(range(1, n)),
        0,
        senders=((few, few), (many, many)),
        flows=((1, 1), (1, 1)),
        flow_kb=FLOW_KB,
        start_us=1000.0,
        width=many,
    )
    return _scenario(topology, streams, few + many, 280 if small else 2670)
