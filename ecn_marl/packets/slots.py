"""Flow slots: flows that begin get one, those that have finished give it back, tick by tick.

A slot holds at most one flow per tick, as in the fluid simulator, so its statistics of a tick have
one flow per slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ecn_marl.packets.compiling import compiled, inlined
from ecn_marl.packets.engine import NEEDS_EVENTS, SPARE, UP_TO_DATE, run
from ecn_marl.packets.heap import START, push
from ecn_marl.packets.records import NONE, PS_PER_US, Network
from ecn_marl.sim.core.lifecycle import DONE, FREE, SENDING

LATE = 1000
"""A flow that gets its slot this long after its start has waited; less is rounding, ps."""

SLOT = np.dtype(
    [
        ("stage", "i4"),
        ("src", "i4"),
        ("dst", "i4"),
        ("kind", "i4"),
        ("flow_id", "i4"),
        ("ticket", "i4"),
        ("start_step", "i4"),
        ("start_rest", "f4"),
        ("payload", "f4"),
        ("ideal", "f4"),
        ("rtt", "f4"),
        ("delivered", "f4"),
        ("unsent", "i8"),
        ("inside", "f4"),
        ("done", "?"),
        ("ago", "f8"),  # µs from its last ACK to the end of the tick
        ("fct", "f8"),  # µs
    ]
)
"""A slot at the end of a tick, as `sim.state.Flows` has it."""


PLACE = np.dtype(
    [
        ("tick", "i8"),
        ("last", "i8"),  # one past the last tick
        ("start", "i8"),  # of tick 0, ps
        ("length", "i8"),
        ("steps", "i8"),  # substeps of a tick
        ("at", "i8"),  # first arrival without a slot
        ("crowded", "?"),  # whether a flow found none in the last tick
        ("was_crowded", "?"),  # in any tick
    ]
)
"""Where `advance` is."""


@inlined
def place(
    net: Network, arrivals: Any, ways: Any, hops: Any, at: int, tick: int, begin: int, step: int
) -> int:
    """Give free slots to arrivals, from number `at` on, that begin in a tick or before.

    Args:
        net: tables.
        arrivals: `ARRIVAL`s in the order in which they get slots.
        ways: their links, int32 `[M, 2, L + 1]`, NONE behind the last.
        hops: their queues, int32 `[M, L]`.
        at: first that has no slot yet.
        tick: number of the tick.
        begin: start of the tick, ps.
        step: the same in substeps.

    Returns:
        The first arrival that has no slot now.
    """
    f = 0
    while at < len(arrivals) and arrivals[at].tick <= tick:
        while f < len(net.flows) and net.flows[f].stage != FREE:
            f += 1
        if f == len(net.flows):
            break
        _fill(net, f, arrivals[at], begin, step)
        net.flows[f].hops = _copy_way(net, f, 0, ways[at, 0])
        net.flows[f].hops_back = _copy_way(net, f, 1, ways[at, 1])
        for level in range(hops.shape[1]):
            net.hop[f, level] = hops[at, level]
        at += 1
    return at


@inlined
def _copy_way(net: Network, f: int, direction: int, links: Any) -> int:
    """Copy the links of a way; their number."""
    n = 0
    for i in range(len(links)):
        net.way[f, direction, i] = links[i]
        n += links[i] != NONE
    return n


@inlined
def _fill(net: Network, f: int, arrival: Any, begin: int, step: int) -> None:
    """Put a flow into a free slot; it begins at its start, or now if it has waited.

    Its start is counted from this tick even so, as in `sim`: all its waiting accrues in it.
    """
    flow, rules = net.flows[f], net.rules[0]
    flow.stage = SENDING
    flow.src, flow.dst, flow.kind = arrival.src, arrival.dst, arrival.kind
    flow.flow_id, flow.ticket = arrival.flow_id, arrival.ticket
    flow.payload, flow.unsent = arrival.payload, arrival.wire
    flow.packets = (arrival.payload + rules.payload - 1) // rules.payload
    flow.last_payload = arrival.payload - (flow.packets - 1) * rules.payload
    flow.sent = flow.acked = flow.unacked = flow.delivered = flow.inside = 0
    flow.lost, flow.listed, flow.next_send = NONE, False, 0
    flow.cnp_until, flow.cnp_owed = 0, False
    flow.start, flow.start_step = arrival.start, step
    flow.start_rest, flow.ideal = arrival.start_rest, arrival.ideal
    if arrival.start_step != step:
        flow.start_rest = (arrival.start - begin) / PS_PER_US
    flow.rtt, flow.line = arrival.rtt, arrival.line
    flow.notice = int(arrival.rtt * PS_PER_US)
    clock = net.clock[0]
    clock.offered += arrival.wire
    if begin - arrival.start > LATE:
        clock.deferred += 1
        clock.deferred_ps += begin - arrival.start
    push(net, max(arrival.start, begin), START, f)


@inlined
def close_tick(net: Network, end: int, slots: Any, hops: Any, queues: Any) -> None:
    """Write every slot and queue at the end of a tick down, and free those of finished flows."""
    c = net.rules[0].classes
    for f in range(len(net.flows)):
        flow, row = net.flows[f], slots[f]
        row.stage = flow.stage
        if flow.stage == FREE:
            continue
        row.src, row.dst, row.kind = flow.src, flow.dst, flow.kind
        row.flow_id, row.ticket = flow.flow_id, flow.ticket
        row.start_step, row.start_rest = flow.start_step, flow.start_rest
        row.payload, row.ideal, row.rtt = flow.payload, flow.ideal, flow.rtt
        row.delivered, row.unsent, row.inside = flow.delivered, flow.unsent, flow.inside
        for level in range(hops.shape[1]):
            hops[f, level] = net.hop[f, level]
        row.done = flow.stage == DONE
        if row.done:
            row.ago = (end - flow.end) / PS_PER_US
            row.fct = (flow.end - flow.start) / PS_PER_US
            flow.stage = FREE
            flow.life += 1
        flow.delivered = 0
    first = net.rules[0].hosts
    for port in range(len(net.ports)):
        for kind in range(c):
            queues[port * c + kind] = net.lanes[(first + port) * (c + 1) + kind].bytes


@compiled
def advance(net: Network, arrivals: Any, ways: Any, hops: Any, place_in: Any, log: Any) -> int:
    """Simulate ticks: begin their flows, move packets, and note what has finished.

    Args:
        net: tables.
        arrivals: see `place`.
        ways: see `place`.
        hops: see `place`.
        place_in: one `PLACE`; says which ticks, and goes on from there when it is called again.
        log: slots, hops and queues at the end of every tick: `SLOT` `[ticks, F]`, int32
            `[ticks, F, L]`, float32 `[ticks, Q]`.

    Returns:
        `engine.UP_TO_DATE`, or which table is full.
    """
    x = place_in[0]
    while x.tick < x.last:
        if len(net.heap) < net.clock[0].events + len(net.flows) + SPARE * (
            net.rules[0].classes + 1
        ):
            return NEEDS_EVENTS
        begin = x.start + x.tick * x.length
        step = begin // x.length * x.steps
        x.at = place(net, arrivals, ways, hops, x.at, x.tick, begin, step)
        x.crowded = x.at < len(arrivals) and arrivals[x.at].tick <= x.tick
        x.was_crowded = x.was_crowded or x.crowded
        status = run(net, begin + x.length)
        if status != UP_TO_DATE:
            return status
        close_tick(net, begin + x.length, log[0][x.tick], log[1][x.tick], log[2][x.tick])
        x.tick += 1
    return UP_TO_DATE
