"""The longest substep that senders tolerate, and a choice of substep and tick."""

from __future__ import annotations

import math

from ecn_marl._errors import bad_value
from ecn_marl.sim.network.topology import GBPS, Topology
from ecn_marl.sim.transports.base import Bound, Transport

CERTIFIED_US = 2.0
"""Longest substep at which incasts of up to 32 senders keep the queue statistics of 0.25 µs
(docs/validation.md), µs."""

MAX_TICK = 32
"""Most substeps per tick: the near part of the delay line of the CNPs has 32 bits."""

TICK_US = 10.0
"""Longest tick that `choose_clock` takes, µs."""


def longest_dt_us(transport: Transport, topology: Topology) -> Bound:
    """The longest substep at which the state machine of the senders works correctly.

    Args:
        transport: senders; only those with timers or counters have a `bound_dt`.
        topology: the network; the fastest NIC counts.
    """
    bound_dt = getattr(transport, "bound_dt", None)
    if bound_dt is None:
        return Bound(math.inf, "nothing in these senders")
    bound: Bound = bound_dt(max(topology.nic_gbps) * GBPS)
    return bound


def check_dt(dt_us: float, transport: Transport, topology: Topology) -> None:
    """Refuse a substep that is too long for the senders.

    Raises:
        ValueError: it is longer than `longest_dt_us`.
    """
    bound = longest_dt_us(transport, topology)
    # A substep from `choose_clock` is a quotient, which may round to just above the bound.
    if dt_us > bound.dt_us * (1.0 + 1e-6):
        allowed = (
            f"at most {bound.dt_us:.3g} us with {transport.kind}:{transport.name} ({bound.why})"
        )
        raise bad_value("dt_us", dt_us, allowed)


def choose_clock(transport: Transport, topology: Topology, interval_us: float) -> tuple[float, int]:
    """Substep and substeps per tick for some senders in a network.

    The tick is the longest one up to `TICK_US` that divides the interval, halved until `MAX_TICK`
    substeps suffice. The substep is the longest one that divides the tick, is at most
    `CERTIFIED_US`, and is tolerated by the senders.

    Args:
        transport: senders.
        topology: the network.
        interval_us: tuning interval, µs.

    Returns:
        Substep (µs) and substeps per tick.
    """
    longest = min(CERTIFIED_US, longest_dt_us(transport, topology).dt_us) * (1.0 + 1e-6)
    # The small number keeps a quotient that rounds up from adding a tick.
    tick = interval_us / math.ceil(interval_us / TICK_US - 1e-9)
    while tick / MAX_TICK > longest:
        tick /= 2.0
    steps = math.ceil(tick / longest)
    return tick / steps, steps
