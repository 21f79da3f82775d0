"""HPCC packet by packet: ports write their queue, bytes and time into packets, ACKs bring them.

The rules are those of `sim.transports.hpcc` (Li et al., SIGCOMM'19, Algorithm 1), whose constants
it takes.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.packets.compiling import inlined
from ecn_marl.packets.records import PS_PER_US, QUEUE, SENT, TIME, Network
from ecn_marl.sim.transports import Hpcc

CONSTANTS = [("eta", "f8"), ("max_stage", "f8"), ("telemetry", "?")]
"""Columns of `senders.CONSTANTS` that only HPCC has."""

SENDER = [("reference", "f8"), ("load", "f8"), ("stage", "f8"), ("heard", "?")]
"""Columns of `senders.SENDER` that only HPCC has: see `sim.transports.hpcc.HpccState`."""


def fill(row: Any, senders: Hpcc, p: Any) -> None:
    """Constants of HPCC."""
    row["windowed"] = row["telemetry"] = True
    for name in ("eta", "max_stage", "ai", "min_rate"):
        row[name] = float(getattr(p, name))


@inlined
def write(net: Network, k: int, port: int, queue: int, now: int) -> None:
    """A packet that leaves a port takes the reading of this hop along.

    Args:
        net: tables.
        k: packet.
        port: number of the port.
        queue: bytes that it leaves behind.
        now: ps.
    """
    level = net.packets[k].hop - 1
    net.readings[k, level, QUEUE] = queue
    net.readings[k, level, SENT] = net.ports[port].sent_ever
    net.readings[k, level, TIME] = now


@inlined
def hear(net: Network, f: int, k: int) -> None:
    """An ACK arrives at an HPCC sender with the readings of its packet."""
    flow, x, p = net.flows[f], net.senders[f], net.packets[k]
    c = net.constants[flow.kind]
    if x.heard:
        _estimate(net, f, k)
        cut = x.load >= c.eta or x.stage >= c.max_stage
        rate = (x.reference * c.eta / x.load if cut else x.reference) + c.ai
        x.rate = min(max(rate, min(c.min_rate, x.line)), x.line)
        if p.number >= x.round_end:
            x.round_end = flow.sent
            x.reference = x.rate
            x.stage = 0.0 if cut else x.stage + 1.0
    else:
        # The first ACK has no reading before it to subtract.
        x.heard, x.round_end = True, flow.sent
    for hop in range(flow.hops - 1):
        for i in range(3):
            net.last_readings[f, hop, i] = net.readings[k, hop, i]


@inlined
def _estimate(net: Network, f: int, k: int) -> None:
    """Move the estimate of how full the path is towards its fullest link (MeasureInflight)."""
    flow, x = net.flows[f], net.senders[f]
    span = net.constants[flow.kind].base_rtt
    fullest, since = 0.0, 0.0
    for hop in range(flow.hops - 1):
        time = (net.readings[k, hop, TIME] - net.last_readings[f, hop, TIME]) / PS_PER_US
        if time <= 0:
            continue
        per_us = PS_PER_US / net.links[net.way[f, 0, hop + 1]].ps_per_byte
        # The smaller of two readings filters noise out.
        queue = min(net.readings[k, hop, QUEUE], net.last_readings[f, hop, QUEUE])
        sent = net.readings[k, hop, SENT] - net.last_readings[f, hop, SENT]
        fill = (sent / time + queue / span) / per_us
        if fill > fullest:
            fullest, since = fill, time
    if since > 0.0:
        part = min(since / span, 1.0)
        x.load += part * (fullest - x.load)
