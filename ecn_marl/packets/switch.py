"""A switch: packets wait in the lane of their class, are marked as they leave, and PFC watches.

Marks are drawn when a packet starts to be sent, from the bytes that are left behind in its lane.
PFC is that of `sim.core.pfc`, decided with every packet instead of every tick: a lane upstream is
stopped when what it has in this switch, beyond a reserve, reaches its share of the free buffer.
What still arrives then goes into the lane's headroom.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ecn_marl.packets import telemetry
from ecn_marl.packets.compiling import inlined
from ecn_marl.packets.heap import LOST, PAUSE, RESUME, push
from ecn_marl.packets.records import DATA, NONE, Network
from ecn_marl.sim.core.queues import ROUNDING
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES

MICE, MEDIUM = int(SIZE_CLASSES[0]), int(SIZE_CLASSES[1])

FRAME = 64
"""Bytes of a PAUSE frame. It takes its time on the wire, and no capacity."""

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64 (Steele, Lea, Flood, OOPSLA'14, Fig. 14)."""


@inlined
def coin(clock: Any) -> float:
    """Uniform in [0, 1): the next number of SplitMix64."""
    # Numba takes a big literal for signed; the sums and products wrap as they should.
    clock[0].seed += np.uint64(GOLDEN)
    z = clock[0].seed
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inlined
def lane_of(net: Network, link: int, k: int) -> int:
    """Lane of a packet on a link."""
    rules = net.rules[0]
    p = net.packets[k]
    kind = net.flows[p.flow].kind
    if p.what != DATA and rules.ack_priority:
        kind = rules.classes
    return link * (rules.classes + 1) + kind


@inlined
def append(net: Network, lane: int, k: int) -> None:
    """Put a packet at the end of a lane."""
    q = net.lanes[lane]
    net.packets[k].next = NONE
    if q.head == NONE:
        q.head = k
    else:
        net.packets[q.tail].next = k
    q.tail = k


@inlined
def add_up(net: Network, port: int, now: int) -> None:
    """Bring the time integrals of a port up to now."""
    count, rules = net.ports[port], net.rules[0]
    time = float(now - count.last)
    if time > 0.0:
        queue = float(count.queue)
        count.area += queue * time
        count.square += queue * queue * time
        count.paused += time * count.n_paused / rules.classes
        if rules.classes > 1:
            first = (rules.hosts + port) * (rules.classes + 1)
            for lane in range(first, first + rules.classes):
                net.lanes[lane].area += net.lanes[lane].bytes * time
        count.last = now


@inlined
def enqueue(net: Network, out: int, k: int, came_by: int, now: int) -> bool:
    """Take a packet that arrived over a link into a queue; False if it is dropped.

    Args:
        net: tables.
        out: link that it is to leave by.
        k: packet.
        came_by: link that it came by.
        now: ps.
    """
    rules, p = net.rules[0], net.packets[k]
    c = rules.classes
    lane = lane_of(net, out, k)
    kind = lane - out * (c + 1)
    q, switch = net.lanes[lane], net.switches[net.links[out].from_switch]
    if kind < c:
        upstream = came_by * (c + 1) + kind
        if not admit(net, upstream, lane, k):
            return False
        port = out - rules.hosts
        add_up(net, port, now)
        count = net.ports[port]
        count.queue += p.size
        count.peak = max(count.peak, count.queue)
        q.bytes += p.size
        switch.used += p.size
        if net.classes[kind].lossless:
            stop_or_resume(net, upstream, came_by, kind, now)
    append(net, lane, k)
    return True


@inlined
def admit(net: Network, upstream: int, lane: int, k: int) -> bool:
    """Whether a packet finds room, which it then takes. ACKs always do."""
    rules, size = net.rules[0], net.packets[k].size
    c = rules.classes
    link = upstream // (c + 1)
    kind = upstream - link * (c + 1)
    switch = net.switches[net.links[link].to_switch]
    full = net.packets[k].what == DATA and switch.used + size > switch.buffer
    if not net.classes[kind].lossless:
        free = max(switch.shared - switch.used, 0)
        limit = net.classes[kind].alpha * free
        return net.packets[k].what != DATA or not (full or net.lanes[lane].bytes + size > limit)
    held = net.lanes[upstream]
    beyond = held.held + size - rules.reserve
    if beyond > threshold(net, link, switch):
        room = held.in_headroom + size <= net.links[link].headroom
        if net.packets[k].what == DATA and (full or not room):
            return False
        held.in_headroom += size
        return True
    if full:
        return False
    held.held += size
    switch.used_shared += min(size, max(beyond, 0))
    return True


@inlined
def threshold(net: Network, link: int, switch: Any) -> float:
    """Bytes beyond the reserve at which the lanes of a link are stopped."""
    return net.links[link].alpha * max(switch.shared - switch.used_shared, 0)


@inlined
def release(net: Network, upstream: int, size: int, now: int) -> None:
    """Give the room of a packet that leaves back."""
    rules = net.rules[0]
    c = rules.classes
    link = upstream // (c + 1)
    kind = upstream - link * (c + 1)
    if not net.classes[kind].lossless:
        return
    switch, held = net.switches[net.links[link].to_switch], net.lanes[upstream]
    from_headroom = min(size, held.in_headroom)
    held.in_headroom -= from_headroom
    rest = size - from_headroom
    switch.used_shared -= min(rest, max(held.held - rules.reserve, 0))
    held.held -= rest
    stop_or_resume(net, upstream, link, kind, now)


@inlined
def stop_or_resume(net: Network, upstream: int, link: int, kind: int, now: int) -> None:
    """Send a PAUSE, or the end of one, if what a lane has in this switch asks for it."""
    held, rules = net.lanes[upstream], net.rules[0]
    shared = max(held.held - rules.reserve, 0)
    limit = threshold(net, link, net.switches[net.links[link].to_switch])
    if not held.stopped:
        if held.in_headroom > 0 or (shared > 0 and shared >= limit):
            held.stopped = True
            net.clock[0].pauses += 1
            push(net, frame_arrival(net, link, now), PAUSE, upstream)
    elif held.in_headroom == 0 and (shared == 0 or shared + rules.resume_gap <= limit):
        held.stopped = False
        push(net, frame_arrival(net, link, now), RESUME, upstream)


@inlined
def frame_arrival(net: Network, link: int, now: int) -> int:
    """When a PAUSE frame reaches the start of a link: it waits for the packet in transmission."""
    back = net.links[net.links[link].reverse]
    return max(now, back.busy_until) + int(FRAME * back.ps_per_byte) + back.delay


@inlined
def drop(net: Network, k: int, kind: int, now: int) -> None:
    """Lose a packet; its sender learns of it a round trip later, and sends it again."""
    p, clock = net.packets[k], net.clock
    clock[0].dropped += p.size
    clock[0].offered += p.size
    if net.classes[kind].lossless:
        clock[0].spilled += p.size
    flow = net.flows[p.flow]
    flow.inside -= p.size
    flow.unsent += p.size
    push(net, now + flow.notice, LOST, k)


@inlined
def mark_probability(net: Network, port: int, kind: int, queue: float) -> float:
    """Chance that a packet is marked that leaves `queue` bytes behind, see `sim.core.queues`."""
    kmin, kmax, pmax = net.ecn[port, kind, 0], net.ecn[port, kind, 1], net.ecn[port, kind, 2]
    if queue > kmax:
        return 1.0
    if queue <= kmin:
        return 0.0
    chance = pmax * min((queue - kmin) / max(kmax - kmin, 1.0), 1.0)
    quantum = net.rules[0].mark_quantum
    if quantum > 0.0:
        chance = quantum * math.floor(chance / quantum + ROUNDING)
    return chance


@inlined
def next_lane(net: Network, link: int) -> int:
    """The lane whose packet a port sends next, -1 for none: deficit round robin over classes."""
    rules = net.rules[0]
    c = rules.classes
    first = link * (c + 1)
    if net.lanes[first + c].head != NONE:
        return first + c
    if c == 1:
        q = net.lanes[first]
        return first if q.head != NONE and not q.paused else -1
    ready = False
    for lane in range(first, first + c):
        ready = ready or (net.lanes[lane].head != NONE and not net.lanes[lane].paused)
    if not ready:
        return -1
    x = net.links[link]
    while True:
        q = net.lanes[first + x.turn]
        if q.head != NONE and not q.paused:
            size = net.packets[q.head].size
            if q.deficit >= size:
                q.deficit -= size
                return first + x.turn
        else:  # a lane that may not send saves nothing up
            q.deficit = 0.0
        x.turn = (x.turn + 1) % c
        net.lanes[first + x.turn].deficit += net.classes[x.turn].quantum


@inlined
def dequeue(net: Network, link: int, came_by: int, lane: int, now: int) -> int:
    """Take the first packet of a lane out, and mark it perhaps; its number.

    Args:
        net: tables.
        link: link that it leaves by.
        came_by: link that it came by.
        lane: its lane.
        now: ps.
    """
    rules, q = net.rules[0], net.lanes[lane]
    k = q.head
    p = net.packets[k]
    q.head = p.next
    port, c = link - rules.hosts, rules.classes
    kind = lane - link * (c + 1)
    count = net.ports[port]
    count.sent += p.size
    count.sent_ever += p.size
    if kind == c:
        return k
    add_up(net, port, now)
    count.queue -= p.size
    q.bytes -= p.size
    q.sent += p.size
    net.switches[net.links[link].from_switch].used -= p.size
    release(net, came_by * (c + 1) + kind, p.size, now)
    if p.what == DATA:
        chance = mark_probability(net, port, kind, float(q.bytes))
        if chance > 0.0 and (chance >= 1.0 or coin(net.clock) < chance):
            p.marked = True
            count.marked += p.size
            q.marked += p.size
            count.marked_packets += 1
        count_size(net, port, p.flow, p.size)
        if net.constants[kind].telemetry:
            telemetry.write(net, k, port, q.bytes, now)
    return k


@inlined
def count_size(net: Network, port: int, f: int, size: int) -> None:
    """Count bytes by what their flow has sent in all."""
    so_far = net.flows[f].sent * net.rules[0].payload
    which = 0 if so_far <= MICE else (1 if so_far <= MEDIUM else 2)
    net.ports[port].by_size[which] += size
