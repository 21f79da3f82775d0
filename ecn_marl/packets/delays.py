"""Senders that follow the round-trip times of their packets: TIMELY and SWIFT.

The rules are those of `sim.transports.timely` and `swift` there, whose constants they take.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ecn_marl.packets.compiling import called
from ecn_marl.packets.records import PS_PER_US
from ecn_marl.sim.transports import Swift, Timely
from ecn_marl.sim.transports.swift import SEGMENT

TIMELY_CONSTANTS = ("ewma", "beta", "t_low", "t_high", "min_rtt", "patience", "segment")
SWIFT_CONSTANTS = ("base", "per_hop", "fs_range", "fs_min", "fs_max", "beta", "max_cut", "least")

CONSTANTS = [
    *((name, "f8") for name in dict.fromkeys((*TIMELY_CONSTANTS, *SWIFT_CONSTANTS))),
    ("share", "f8"),
    ("patched", "?"),
]
"""Columns of `senders.CONSTANTS` that these add; rates in bytes/µs, times in µs."""

SENDER = [
    ("last_rtt", "f8"),
    ("slope", "f8"),
    ("raises", "f8"),
    ("since", "i8"),  # of the last completion event, ps
    ("cwnd", "f8"),  # segments
]
"""Columns of `senders.SENDER` that only these have."""


def fill_timely(row: Any, senders: Timely, p: Any) -> None:
    """Constants of TIMELY."""
    for name in (*TIMELY_CONSTANTS, "ai", "hai", "min_rate", "share"):
        row[name] = float(getattr(p, name))
    row["patched"] = senders.patched


def fill_swift(row: Any, senders: Swift, p: Any) -> None:
    """Constants of SWIFT."""
    row["windowed"] = True
    for name in (*SWIFT_CONSTANTS, "ai"):
        row[name] = float(getattr(p, name))


@called
def timely_starts(x: Any, c: Any) -> None:
    """Begin a flow of TIMELY at its share of the line rate."""
    x.rate = x.line * c.share
    x.last_rtt = x.slope = x.raises = 0.0
    x.since = 0


@called
def timely_hears(x: Any, c: Any, now: int, number: int, next_number: int, rtt: float) -> None:
    """An ACK arrives at a TIMELY sender.

    Args:
        x: sender.
        c: its constants.
        now: ps.
        number: number of the packet.
        next_number: number of the next packet to be sent.
        rtt: time since the packet was sent, µs.
    """
    if number < x.round_end:
        return
    x.round_end = next_number
    pause = max(c.segment / x.rate, c.min_rtt)
    if c.segment > 0.0 and now - x.since < pause * PS_PER_US:
        return
    # The first RTT of a flow has none before it to differ from.
    if not x.young:
        x.slope += c.ewma * (rtt - x.last_rtt - x.slope)
        rate = x.rate + (c.ai if x.raises < c.patience else c.hai)
        if c.patched:
            rate = _patched(x, c, rtt, rate)
            up = rate > x.rate
        else:
            up = rtt < c.t_low or (rtt <= c.t_high and x.slope <= 0.0)
            if not up:
                steep = 1.0 - c.t_high / rtt if rtt > c.t_high else x.slope / c.min_rtt
                # Without the bound a steep gradient would make the rate negative.
                rate = x.rate * max(1.0 - c.beta * steep, 0.0)
        x.raises = x.raises + 1.0 if up else 0.0
        x.rate = min(max(rate, min(c.min_rate, x.line)), x.line)
    x.last_rtt, x.since, x.young = rtt, now, False


@called
def _patched(x: Any, c: Any, rtt: float, raised: float) -> float:
    """CoNEXT'16, Algorithm 2: `(1 - w) AI` up and `w beta (rtt - t_low) / t_low` down."""
    if rtt < c.t_low:
        return raised
    if rtt > c.t_high:
        return x.rate * (1.0 - c.beta * (1.0 - c.t_high / rtt))
    weight = min(max(2.0 * x.slope / c.min_rtt + 0.5, 0.0), 1.0)
    error = (rtt - c.t_low) / c.t_low
    return x.rate * (1.0 - c.beta * weight * error) + (1.0 - weight) * (raised - x.rate)


@called
def swift_starts(x: Any, c: Any) -> None:
    """Begin a flow of SWIFT with a window of a bandwidth-delay product."""
    x.cwnd, x.rtt = x.top / SEGMENT, c.base_rtt


@called
def swift_rate(x: Any) -> float:
    """Line rate, or less than a segment per round trip, bytes/µs."""
    if x.cwnd >= 1.0:
        return x.line
    return min(SEGMENT * x.cwnd / max(x.rtt, 1e-3), x.line)


@called
def swift_hears(x: Any, c: Any, now: int, queues: int, rtt: float) -> None:
    """The ACK of a packet arrives at a SWIFT sender.

    Args:
        x: sender.
        c: its constants.
        now: ps.
        queues: queues on the way.
        rtt: time since the packet was sent, µs.
    """
    x.rtt = rtt
    target = swift_target(c, x.cwnd, queues)
    if rtt >= target:
        if now >= x.hold_until:
            x.cwnd *= max(1.0 - c.beta * (rtt - target) / rtt, 1.0 - c.max_cut)
            x.hold_until = now + int(rtt * PS_PER_US)
    elif SEGMENT * x.cwnd < x.line * rtt:
        # Only windows that limit their flow grow (RFC 7661).
        x.cwnd += c.ai / max(x.cwnd, 1.0)
    x.cwnd = max(x.cwnd, c.least)


@called
def swift_target(c: Any, cwnd: float, queues: int) -> float:
    """Target delay, µs, see `sim.transports.swift.swift_target`."""
    at_min, at_max = 1.0 / np.sqrt(c.fs_min), 1.0 / np.sqrt(c.fs_max)
    a = c.fs_range / (at_min - at_max)
    scaling = a / np.sqrt(max(cwnd, 1e-6)) - a * at_max
    return c.base + c.per_hop * queues + min(max(scaling, 0.0), c.fs_range)
