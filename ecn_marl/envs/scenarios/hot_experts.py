"""`hot-experts-v0`: all-to-all rounds with a receiver that gets more than its share, and moves.

Tokens prefer some experts. In every step of this job four rounds follow each other; in each another
host receives four times what the others do, so the bottleneck moves within 0.4 ms, faster than a
controller that acts every 10 ms. Another job's reads of large files cross the same ports.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import stripe_read
from ecn_marl.sim.traffic.graphs import Graph, Node

EXPERTS, STORAGE = (0, 1, 2, 3, 6, 7, 8, 9), (4, 5, 10, 11)
"""Hosts with the experts, and storage servers; six hosts on each leaf."""

HOT, COLD, ROUNDS = 400_000, 100_000, 4
"""Bytes from each host to the hot one and to the others, and rounds of a step."""

FILE, WIDTH = 8_000_000, 4
"""Bytes of a file that is read, and its parts."""

UPLINK_GBPS = 300.0


def rounds() -> tuple[Node, ...]:
    """Rounds of all-to-all; a host begins one when all it is sent in the last one has arrived."""
    nodes = []
    for r in range(ROUNDS):
        hot = EXPERTS[3 * r % len(EXPERTS)]
        for a in EXPERTS:
            needs = tuple(f"{r - 1}: {c} to {a}" for c in EXPERTS if c != a) if r else ()
            for b in EXPERTS:
                if a != b:
                    size = HOT if b == hot else COLD
                    nodes.append(Node(f"{r}: {a} to {b}", a, b, size, 10.0 if r else 0.0, needs))
    return tuple(nodes)


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, not oversubscribed: 20 ports; episodes of 32 ms."""
    reads = tuple(
        Graph(
            stripe_read(STORAGE, client, FILE, WIDTH),
            pause_us=600.0,
            pause_jitter=1.0,
            start_us=1000.0,
        )
        for client in EXPERTS[::2]
    )
    ideal_us = ROUNDS * ai.fill_us((len(EXPERTS) - 1) * HOT) + (ROUNDS - 1) * 10.0
    return Scenario(
        topology=ai.fabric(6, uplink_gbps=UPLINK_GBPS),
        traffic=(Graph(rounds(), pause_us=300.0, pause_jitter=0.5), *reads),
        slots=160,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=(
            Part("rounds", 0.5, (0,), ideal_us, reward=1.0, par=1.2),
            Part("read", 0.5, (1, 2, 3, 4), ai.fill_us(FILE), reward=0.2, par=1.3),
        ),
        max_steps=320,
        **ai.COMMON,
    )


def full() -> Scenario:
    """`hot-experts-v0` eight times: 8 leaves of 12 hosts, 4 spines, 160 ports; 32 ms."""
    return ai.cluster(scenario(), UPLINK_GBPS)
