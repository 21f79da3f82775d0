"""Senders packet by packet: what an ACK does to a rate or a window, and what timers do.

The rules are those of `sim.transports`, whose presets and constants they take. Timers cost no
events: a sender's clockwork is wound up to the present when its rate is read or an ACK arrives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.packets import delays, telemetry
from ecn_marl.packets.compiling import called
from ecn_marl.packets.records import NEVER, PS_PER_US
from ecn_marl.sim.transports import Dcqcn, Dctcp, Hpcc, Mixed, Swift, Timely, Transport
from ecn_marl.sim.transports.dctcp import SEGMENT

DCQCN, DCTCP_PACED, DCTCP_WINDOW, TIMELY, SWIFT, HPCC = range(6)
"""Kinds of senders."""

CONSTANTS = np.dtype(
    [
        ("kind", "i4"),
        ("windowed", "?"),
        ("base_rtt", "f8"),  # µs
        ("decrease", "i8"),  # ps, as the next two
        ("alpha", "i8"),
        ("increase", "i8"),
        ("cnp_interval", "i8"),
        ("g", "f8"),
        ("byte_counter", "f8"),
        ("recovery_steps", "f8"),
        ("ai", "f8"),
        ("hai", "f8"),
        ("min_rate", "f8"),
        ("alpha_init", "f8"),
        ("clamp_target", "?"),
        ("cut_at_first_cnp", "?"),
        ("ai_bytes", "f8"),
        ("ai_rate", "f8"),
        ("initial", "f8"),
        *delays.CONSTANTS,  # SWIFT's `least` is DCTCP's, too
        *telemetry.CONSTANTS,
    ]
)
"""Constants of a class's senders, those of all kinds side by side; rates in bytes/µs."""

SENDER = np.dtype(
    [
        ("rate", "f8"),
        ("target", "f8"),
        ("line", "f8"),
        ("alpha", "f8"),
        ("next_decrease", "i8"),
        ("next_alpha", "i8"),
        ("next_increase", "i8"),
        ("to_count", "f8"),
        ("timer_stage", "i4"),
        ("count_stage", "i4"),
        ("has_had_cnp", "?"),
        ("cnp_decrease", "?"),
        ("cnp_alpha", "?"),
        ("window", "f8"),
        ("top", "f8"),  # bandwidth-delay product, bytes
        ("rtt", "f8"),  # of the last ACK, µs
        ("round_end", "i8"),  # number of the packet whose ACK ends the round trip
        ("acked", "i8"),
        ("marked", "i8"),
        ("hold_until", "i8"),
        ("slow_start", "?"),
        ("young", "?"),
        *delays.SENDER,
        *telemetry.SENDER,
    ]
)
"""State of a sender, see the modules of `sim.transports`."""

ALLOWED = "dcqcn (with timers), dctcp, timely, swift, hpcc: packets know no other senders"


def constants_of(transport: Transport, params: Any, classes: int, base_rtt: float) -> np.ndarray:
    """Constants of the senders of each class, `[C]`.

    Args:
        transport: senders of a simulator.
        params: their constants.
        classes: number of traffic classes.
        base_rtt: longest round trip of the network, µs.

    Raises:
        ValueError: senders that packets do not know.
    """
    members: list[tuple[Transport, Any]] = [(transport, params)] * classes
    if isinstance(transport, Mixed):
        members = list(zip(transport.members, params, strict=True))
    table = np.zeros(classes, CONSTANTS)
    for row, (senders, p) in zip(table, members, strict=True):
        row["base_rtt"] = base_rtt
        if isinstance(senders, Dcqcn):
            _fill_dcqcn(row, senders, p)
        elif isinstance(senders, Dctcp):
            _fill_dctcp(row, senders, p)
        elif isinstance(senders, Timely):
            row["kind"] = TIMELY
            delays.fill_timely(row, senders, p)
        elif isinstance(senders, Swift):
            row["kind"] = SWIFT
            delays.fill_swift(row, senders, p)
        elif isinstance(senders, Hpcc):
            row["kind"] = HPCC
            telemetry.fill(row, senders, p)
        else:
            raise bad_value("transport", f"{senders.kind}:{senders.name}", ALLOWED)
    return table


def _fill_dcqcn(row: Any, senders: Dcqcn, p: Any) -> None:
    """Constants of DCQCN."""
    row["kind"], row["windowed"] = DCQCN, senders.windowed
    for name in ("decrease", "alpha", "increase"):
        row[name] = round(float(getattr(p, f"{name}_us")) * PS_PER_US)
    if senders.cnp_paced:
        row["cnp_interval"] = round(float(p.cnp_interval_us) * PS_PER_US)
    row["byte_counter"] = float(p.byte_counter) if senders.byte_counter else math.inf
    for name in ("g", "recovery_steps", "ai", "hai", "min_rate", "alpha_init"):
        row[name] = float(getattr(p, name))
    for name in ("clamp_target", "cut_at_first_cnp"):
        row[name] = float(getattr(p, name)) > 0


def _fill_dctcp(row: Any, senders: Dctcp, p: Any) -> None:
    """Constants of DCTCP."""
    row["kind"], row["windowed"] = DCTCP_PACED if senders.paced else DCTCP_WINDOW, True
    for name in ("g", "ai_bytes", "ai_rate", "initial", "least", "alpha_init", "min_rate"):
        row[name] = float(getattr(p, name))


@called
def start(x: Any, c: Any, line: float) -> None:
    """Begin a flow: DCQCN and HPCC at line rate, others with their first rate or window."""
    x.line = x.rate = x.target = line
    x.alpha = c.alpha_init
    x.next_decrease = x.next_alpha = x.next_increase = NEVER
    x.to_count = c.byte_counter
    x.timer_stage = x.count_stage = 0
    x.has_had_cnp = x.cnp_decrease = x.cnp_alpha = False
    x.top = line * c.base_rtt
    initial = c.initial
    if c.kind == DCTCP_PACED:
        initial = min(initial, x.top)
    x.window = initial if initial > 0.0 else x.top
    x.rtt = 0.0
    x.round_end = x.acked = x.marked = x.hold_until = 0
    x.slow_start = c.kind == DCTCP_WINDOW
    x.young = True
    if c.kind == TIMELY:
        delays.timely_starts(x, c)
    elif c.kind == SWIFT:
        delays.swift_starts(x, c)
    elif c.kind == HPCC:
        x.reference, x.load, x.stage, x.heard = line, 1.0, 0.0, False


@called
def rate(x: Any, c: Any, now: int) -> float:
    """Rate that a sender allows now, bytes/µs."""
    if c.kind == DCQCN:
        _wind_up(x, c, now)
        return x.rate
    if c.kind == DCTCP_PACED:
        return x.line * x.window / x.top
    if c.kind == TIMELY or c.kind == HPCC:
        return x.rate
    if c.kind == SWIFT:
        return delays.swift_rate(x)
    return x.line


@called
def may_send(x: Any, c: Any, now: int, unacked: int, payload: int) -> bool:
    """Whether the window of a sender has room for a packet."""
    if not c.windowed:
        return True
    if c.kind == DCTCP_WINDOW:  # a whole packet has to fit, as TCP has it
        return unacked + payload <= max(x.window, SEGMENT)
    if c.kind == SWIFT:
        return unacked + payload <= SEGMENT * max(x.cwnd, 1.0)
    window = x.window
    if c.kind == DCQCN:
        _wind_up(x, c, now)
    if c.kind == DCQCN or c.kind == HPCC:
        window = x.top * x.rate / x.line
    return unacked < window


@called
def on_sent(x: Any, c: Any, now: int, size: int) -> None:
    """Count the bytes of a packet that leaves."""
    if c.kind == DCQCN and x.has_had_cnp and c.byte_counter < np.inf:
        _wind_up(x, c, now)
        x.to_count -= size
        if x.to_count <= 0.0:
            x.to_count += c.byte_counter
            _rise(x, c)
            x.count_stage += 1


@called
def on_cnp(x: Any, c: Any, now: int) -> None:
    """A CNP, or the ACK of a marked packet, arrives at a DCQCN sender."""
    _wind_up(x, c, now)
    if x.has_had_cnp:
        x.cnp_decrease = x.cnp_alpha = True
        return
    # The first one starts the timers, and belongs to no alpha interval.
    x.has_had_cnp = True
    x.next_alpha, x.next_decrease = now + c.alpha, now + c.decrease
    x.cnp_decrease = not c.cut_at_first_cnp
    if c.cut_at_first_cnp:
        _cut(x, c, now)


@called
def _wind_up(x: Any, c: Any, now: int) -> None:
    """Let all timers of a DCQCN sender run out that do so until now, in order."""
    if not x.has_had_cnp:
        return
    while True:
        time = min(x.next_alpha, x.next_decrease, x.next_increase)
        if time > now:
            return
        # At one time alpha comes first, so that a cut uses the new one; a cut restarts the rise.
        if time == x.next_alpha:
            x.alpha += c.g * ((1.0 if x.cnp_alpha else 0.0) - x.alpha)
            x.cnp_alpha = False
            x.next_alpha += c.alpha
        elif time == x.next_decrease:
            x.next_decrease += c.decrease
            if x.cnp_decrease:
                x.cnp_decrease = False
                _cut(x, c, time)
        else:
            x.next_increase += c.increase
            _rise(x, c)
            x.timer_stage += 1


@called
def _cut(x: Any, c: Any, now: int) -> None:
    """Cut the rate by alpha / 2, and restart the rise."""
    if c.clamp_target or x.timer_stage > 0 or x.count_stage > 0:
        x.target = x.rate
    x.rate = max(x.rate * (1.0 - 0.5 * x.alpha), c.min_rate)
    x.timer_stage = x.count_stage = 0
    x.to_count = c.byte_counter
    x.next_increase = now + c.increase


@called
def _rise(x: Any, c: Any) -> None:
    """One increase: fast recovery, then additive, then hyper."""
    low = high = x.timer_stage
    if c.byte_counter < np.inf:
        low, high = min(low, x.count_stage), max(high, x.count_stage)
    if low > c.recovery_steps:
        x.target += c.hai
    elif high >= c.recovery_steps:
        x.target += c.ai
    x.target = min(x.target, x.line)
    x.rate = 0.5 * (x.rate + x.target)


@called
def on_ack(
    x: Any, c: Any, now: int, marked: bool, number: int, next_number: int, rtt: float
) -> None:
    """An ACK arrives at a DCTCP sender.

    Args:
        x: sender.
        c: its constants.
        now: ps.
        marked: whether its packet was marked.
        number: number of the packet.
        next_number: number of the next packet to be sent.
        rtt: time since the packet was sent, µs.
    """
    x.rtt = rtt
    x.acked += 1
    x.marked += marked
    turn = number >= x.round_end
    learn = turn and not x.young
    if learn:
        x.alpha += c.g * (x.marked / x.acked - x.alpha)
    free = now >= x.hold_until
    step = 0.0
    if x.slow_start:
        step = SEGMENT
    elif learn and free and not marked:
        step = c.ai_bytes + c.ai_rate * c.base_rtt
    if marked and free:
        x.window *= 1.0 - 0.5 * x.alpha
        x.hold_until = now + int(x.rtt * PS_PER_US)
        x.slow_start = False
    elif c.kind == DCTCP_PACED:
        x.window = min(x.window + step, x.top)
    elif x.window / (2.0 if x.slow_start else 1.0) < x.line * x.rtt:
        # Only windows that limit their flow grow (RFC 7661); slow start doubles them, so it needed
        # half of it.
        x.window += step
    x.window = max(x.window, max(c.least, c.min_rate * c.base_rtt))
    if turn:
        x.acked = x.marked = 0
        x.round_end = next_number
        x.young = False
