"""The events to come: a binary heap, earliest first.

An event is a time and a code: its kind and the number of the link, flow, lane or packet it is
about. Events of one time are in the order of their codes, so a run can be repeated.
"""

from __future__ import annotations

from ecn_marl.packets.compiling import inlined
from ecn_marl.packets.records import Network

ARRIVE, FREE, START, CNP_DUE, LOST, PAUSE, RESUME = range(7)
"""Kinds of events: the first packet on a link arrives; a transmitter may send; a flow begins; a
receiver owes a CNP; a sender learns of a lost packet; a lane is paused, and resumed."""

KIND = 2**40
"""An event's code is its kind times this, plus a number."""


@inlined
def push(net: Network, time: int, kind: int, number: int) -> None:
    """Add an event."""
    heap, clock = net.heap, net.clock
    code = kind * KIND + number
    i = clock[0].events
    clock[0].events = i + 1
    while i > 0:
        above = (i - 1) >> 1
        if heap[above].time < time or (heap[above].time == time and heap[above].code <= code):
            break
        heap[i].time, heap[i].code = heap[above].time, heap[above].code
        i = above
    heap[i].time, heap[i].code = time, code


@inlined
def pop(net: Network) -> None:
    """Remove the earliest event."""
    heap, clock = net.heap, net.clock
    n = clock[0].events - 1
    clock[0].events = n
    time, code = heap[n].time, heap[n].code
    i = 0
    while True:
        below = 2 * i + 1
        if below >= n:
            break
        right = below + 1
        if right < n and (
            heap[right].time < heap[below].time
            or (heap[right].time == heap[below].time and heap[right].code < heap[below].code)
        ):
            below = right
        if time < heap[below].time or (time == heap[below].time and code <= heap[below].code):
            break
        heap[i].time, heap[i].code = heap[below].time, heap[below].code
        i = below
    heap[i].time, heap[i].code = time, code
