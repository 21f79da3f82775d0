"""`decode-cache-v0`: rounds of expert-parallel decoding beside reads of KV caches.

Decoding a token dispatches it to the experts of a layer and combines their results: an all-to-all
of short messages, over within 160 to 370 µs (DeepEP's figures for 128 tokens), round after round.
The same hosts load KV caches of other requests from storage, as Mooncake and 3FS do, in flows of
megabytes. A round waits for its slowest message, which waits behind the caches' bytes. Users of a
model notice the slowest of its tokens, so the longest round counts as much as the mean one: with
fewer than a hundred rounds in an episode it is their p99.
"""

from __future__ import annotations

from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.sim.traffic.collectives import stripe_read
from ecn_marl.sim.traffic.graphs import Graph, Node

DECODING, STORAGE = (0, 1, 2, 3, 6, 7, 8, 9), (4, 5, 10, 11)
"""Hosts with the experts, and storage servers; six hosts on each leaf."""

DISPATCH, COMBINE = 57_000, 114_000
"""Bytes from each host to each other one, 8 and 16 messages of 7.2 KB."""

CACHE, WIDTH = 6_000_000, 6
"""Bytes of a cache that is loaded, and its parts."""

UPLINK_GBPS = 300.0


def rounds() -> tuple[Node, ...]:
    """Dispatch to all other hosts; a host's results go back once it has what all have sent it."""
    pairs = [(a, b) for a in DECODING for b in DECODING if a != b]
    out = [Node(f"dispatch {a} to {b}", a, b, DISPATCH) for a, b in pairs]
    back = [
        Node(
            f"combine {a} to {b}",
            a,
            b,
            COMBINE,
            20.0,
            tuple(f"dispatch {c} to {a}" for c in DECODING if c != a),
        )
        for a, b in pairs
    ]
    return (*out, *back)


def scenario() -> Scenario:
    """2 leaves of 6 hosts, 2 spines, not oversubscribed: 20 ports; episodes of 32 ms."""
    caches = tuple(
        Graph(
            stripe_read(STORAGE, client, CACHE, WIDTH),
            pause_us=800.0,
            pause_jitter=1.0,
            start_us=1500.0,
        )
        for client in DECODING[::2]
    )
    ideal_us = ai.fill_us(7 * DISPATCH) + 20.0 + ai.fill_us(7 * COMBINE)
    return Scenario(
        topology=ai.fabric(6, uplink_gbps=UPLINK_GBPS),
        traffic=(Graph(rounds(), pause_us=100.0, pause_jitter=0.2), *caches),
        slots=160,
        slowdown_weights=ai.JOBS_ALONE,
        phased_by=0,
        objective=(
            Part("token round", 0.25, (0,), ideal_us, reward=1.0, par=3.0),
            Part("longest round", 0.25, (0,), ideal_us, longest=True),
            Part("cache", 0.5, (1, 2, 3, 4), ai.fill_us(CACHE), reward=1.5, par=1.2),
        ),
        max_steps=320,
        **ai.COMMON,
    )


def full() -> Scenario:
    """`decode-cache-v0` eight times: 8 leaves of 12 hosts, 4 spines, 160 ports; 32 ms."""
    return ai.cluster(scenario(), UPLINK_GBPS)
