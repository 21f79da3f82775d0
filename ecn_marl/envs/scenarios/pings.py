"""Pings: short messages to the receiver of a scenario, so that latency is measured, too.

Perftest and storage benchmarks report latency, and policies are compared by short and long flows.
"""

from __future__ import annotations

from ecn_marl.sim.traffic.jobs import Requests, Timeline

PING_KB = 1.0

PER_US = 0.01
"""One in 100 µs: 0.3 % of a link of 25 Gb/s."""

WAITING = 192
"""Slots for pings: the most that wait behind a buffer of 32 MiB, which empties in 10.7 ms."""


def pings(sources: tuple[int, ...], receiver: int) -> Requests:
    """Messages of 1 KB from hosts chosen at random, Poisson arrivals."""
    return Requests(
        Timeline((1e6,), names=("pings",)),
        per_us=(PER_US,),
        sources=sources,
        destinations=(receiver,),
        smallest_kb=PING_KB,
        largest_kb=PING_KB,
    )
