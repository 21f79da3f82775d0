"""The loop over events: packets move from link to link until a given time."""

from __future__ import annotations

from ecn_marl.packets import hosts, switch
from ecn_marl.packets.compiling import inlined
from ecn_marl.packets.heap import (
    ARRIVE,
    CNP_DUE,
    FREE,
    KIND,
    LOST,
    PAUSE,
    START,
    pop,
    push,
)
from ecn_marl.packets.records import DATA, NEVER, NONE, Network

UP_TO_DATE, NEEDS_PACKETS, NEEDS_EVENTS = range(3)
"""Why `run` returns: the time has come, or a table is full."""

SPARE = 8
"""Packets and events that one event may need at most, for every class of traffic."""


@inlined
def run(net: Network, until: int) -> int:
    """Handle all events before a time, ps; tables that are full are to grow, and it goes on."""
    clock, heap = net.clock, net.heap
    n_events = len(heap) - SPARE * (net.rules[0].classes + 1)
    while clock[0].events > 0 and heap[0].time < until:
        if clock[0].n_free < SPARE:
            return NEEDS_PACKETS
        if clock[0].events > n_events:
            return NEEDS_EVENTS
        now, code = heap[0].time, heap[0].code
        pop(net)
        clock[0].now = now
        clock[0].handled += 1
        link = handle(net, code // KIND, code % KIND, now)
        if link != NONE:
            transmit(net, link, now)
    clock[0].now = until
    for port in range(len(net.ports)):
        switch.add_up(net, port, until)
    return UP_TO_DATE


@inlined
def handle(net: Network, kind: int, number: int, now: int) -> int:
    """One event; the link whose transmitter is to be looked at then, or NONE."""
    if kind == ARRIVE:
        return arrive(net, number, now)
    if kind == FREE:
        if net.links[number].wake != now:  # it was woken sooner
            return NONE
        net.links[number].wake = NEVER
        return number
    if kind == START:
        hosts.begin(net, number)
        return net.flows[number].src
    if kind == CNP_DUE:
        return hosts.send_cnp(net, number, now)
    if kind == LOST:
        return hosts.resend(net, number)
    return stop(net, number, kind == PAUSE, now)


@inlined
def transmit(net: Network, link: int, now: int) -> None:
    """Send the next packet of a link, if its transmitter is free; else look again when it is."""
    x, n_hosts = net.links[link], net.rules[0].hosts
    if x.busy_until > now:
        look_again(net, link, x.busy_until)
        return
    again = NEVER
    if link < n_hosts:
        k, again = hosts.next_packet(net, link, now)
    else:
        k, lane = NONE, switch.next_lane(net, link)
        if lane >= 0:
            p = net.packets[net.lanes[lane].head]
            came_by = net.way[p.flow, 0 if p.what == DATA else 1, p.hop - 1]
            k = switch.dequeue(net, link, came_by, lane, now)
    if k == NONE:
        if again < NEVER:
            look_again(net, link, again)
        return
    p = net.packets[k]
    x.busy_until = now + hosts.duration(net, p.size * x.ps_per_byte)
    p.arrive = x.busy_until + x.delay
    p.next = NONE
    if x.head == NONE:
        x.head = k
        push(net, p.arrive, ARRIVE, link)
    else:
        net.packets[x.tail].next = k
    x.tail = k
    if has_more(net, link):
        look_again(net, link, x.busy_until)


@inlined
def has_more(net: Network, link: int) -> bool:
    """Whether a link has something else to send, now or later."""
    if link < net.rules[0].hosts and net.links[link].flows > 0:
        return True
    c = net.rules[0].classes
    waiting = False
    for lane in range(link * (c + 1), (link + 1) * (c + 1)):
        waiting = waiting or net.lanes[lane].head != NONE
    return waiting


@inlined
def look_again(net: Network, link: int, time: int) -> None:
    """Wake a transmitter at a time, unless it wakes sooner."""
    x = net.links[link]
    if time < x.wake:
        x.wake = time
        push(net, time, FREE, link)


@inlined
def arrive(net: Network, link: int, now: int) -> int:
    """The first packet on a link reaches its end, a switch or a host; the link it goes on by."""
    x = net.links[link]
    k = x.head
    x.head = net.packets[k].next
    if x.head != NONE:
        push(net, net.packets[x.head].arrive, ARRIVE, link)
    if x.to_switch == NONE:
        return hosts.receive(net, k, now)
    p = net.packets[k]
    p.hop += 1
    out = net.way[p.flow, 0 if p.what == DATA else 1, p.hop]
    if switch.enqueue(net, out, k, link, now):
        return out
    switch.drop(net, k, net.flows[p.flow].kind, now)
    return NONE


@inlined
def stop(net: Network, lane: int, paused: bool, now: int) -> int:
    """A PAUSE frame, or the end of a pause, arrives at a lane; the link that may send again."""
    rules = net.rules[0]
    link = lane // (rules.classes + 1)
    if link >= rules.hosts:
        port = link - rules.hosts
        switch.add_up(net, port, now)
        net.ports[port].n_paused += 1 if paused else -1
    net.lanes[lane].paused = paused
    return NONE if paused else link
