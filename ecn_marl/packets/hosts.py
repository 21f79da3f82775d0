"""A host: its NIC serves flows round robin at their rates, and it answers data with ACKs.

A NIC sends ACKs first. Then the flows take turns: each that has bytes, room in its window and no
PAUSE, and whose last packet has had its spacing. A packet is spaced by the rate at which it is
sent, so a new rate waits for it.
"""

from __future__ import annotations

from ecn_marl.packets import delays, senders, telemetry
from ecn_marl.packets.compiling import inlined
from ecn_marl.packets.heap import CNP_DUE, push
from ecn_marl.packets.records import ACK, CNP, DATA, NEVER, NONE, PS_PER_NS, PS_PER_US, Network
from ecn_marl.packets.switch import MEDIUM, append, lane_of
from ecn_marl.sim.core.lifecycle import DONE, DRAINING, RETURNING, SENDING

ROUNDING = 1e-3
"""A time this little above a whole number of ps is that number, and its rest rounding."""


@inlined
def duration(net: Network, ps: float) -> int:
    """A time in whole ps, never shorter than it is; or cut to whole ns, if the rules say so."""
    if net.rules[0].whole_ns:
        return int(ps / PS_PER_NS + ROUNDING) * PS_PER_NS
    whole = int(ps)
    return whole + (ps - whole > ROUNDING)


@inlined
def take_packet(net: Network) -> int:
    """A free packet, no longer free."""
    clock = net.clock[0]
    k = clock.free
    clock.free = net.packets[k].next
    clock.n_free -= 1
    return k


@inlined
def free_packet(net: Network, k: int) -> None:
    """Give a packet back."""
    clock = net.clock[0]
    net.packets[k].next = clock.free
    clock.free = k
    clock.n_free += 1


@inlined
def begin(net: Network, f: int) -> None:
    """A flow begins; the ports on its way count it."""
    flow, rules = net.flows[f], net.rules[0]
    senders.start(net.senders[f], net.constants[flow.kind], flow.line)
    for hop in range(1, flow.hops):
        port = net.way[f, 0, hop] - rules.hosts
        net.ports[port].begun += 1
        net.has_sent[port, flow.src] = True
    enlist(net, f)


@inlined
def enlist(net: Network, f: int) -> None:
    """Put a flow among those of its NIC."""
    flow = net.flows[f]
    if not flow.listed:
        nic = net.links[flow.src]
        net.of_nic[flow.src, nic.flows] = f
        nic.flows += 1
        flow.listed = True


@inlined
def delist(net: Network, host: int, place: int) -> None:
    """Remove the flow at a place from those of its NIC; the others keep their order."""
    nic = net.links[host]
    net.flows[net.of_nic[host, place]].listed = False
    nic.flows -= 1
    for i in range(place, nic.flows):
        net.of_nic[host, i] = net.of_nic[host, i + 1]
    if nic.turn >= place:
        nic.turn -= 1


@inlined
def next_packet(net: Network, host: int, now: int) -> tuple[int, int]:
    """The packet that a NIC sends now, NONE for none, and when to look again if there is none."""
    rules, nic = net.rules[0], net.links[host]
    c = rules.classes
    for kind in range(c, -1, -1):
        lane = host * (c + 1) + kind
        q = net.lanes[lane]
        if q.head != NONE and not (kind < c and q.paused):
            k = q.head
            q.head = net.packets[k].next
            return k, now
    n, again = nic.flows, NEVER
    for i in range(1, n + 1):
        place = (nic.turn + i) % n
        f = net.of_nic[host, place]
        flow = net.flows[f]
        if net.lanes[host * (c + 1) + flow.kind].paused:
            continue
        if flow.next_send > now:
            again = min(again, flow.next_send)
            continue
        constants = net.constants[flow.kind]
        if senders.may_send(net.senders[f], constants, now, flow.unacked, rules.payload):
            nic.turn = place
            k = send(net, f, now)
            if flow.sent == flow.packets and flow.lost == NONE:
                delist(net, host, place)
            return k, now
    return NONE, again


@inlined
def send(net: Network, f: int, now: int) -> int:
    """The next packet of a flow, a lost one first; its spacing begins."""
    flow, rules = net.flows[f], net.rules[0]
    if flow.lost != NONE:
        k = flow.lost
        flow.lost = net.packets[k].next
    else:
        k = take_packet(net)
        net.packets[k].number = flow.sent
        net.packets[k].flow = f
        flow.sent += 1
        payload = payload_of(net, f, flow.sent - 1)
        net.packets[k].size = payload + rules.header
        if flow.sent * rules.payload > MEDIUM and (flow.sent - 1) * rules.payload <= MEDIUM:
            for hop in range(1, flow.hops):
                net.ports[net.way[f, 0, hop] - rules.hosts].big += 1
    p = net.packets[k]
    p.what, p.marked, p.hop, p.sent_at = DATA, False, 0, now
    flow.unsent -= p.size
    flow.inside += p.size
    flow.unacked += p.size - rules.header
    x, constants = net.senders[f], net.constants[flow.kind]
    rate = senders.rate(x, constants, now)
    # At line rate exactly the time of the packet on the link: nothing is rounded in between.
    per_byte = net.links[flow.src].ps_per_byte if rate >= x.line else PS_PER_US / rate
    flow.next_send = now + duration(net, p.size * per_byte)
    senders.on_sent(x, constants, now, p.size)
    if flow.stage == SENDING and flow.sent == flow.packets and flow.lost == NONE:
        flow.stage = DRAINING
    return k


@inlined
def payload_of(net: Network, f: int, number: int) -> int:
    """Payload of a flow's packet, bytes."""
    flow = net.flows[f]
    return flow.last_payload if number == flow.packets - 1 else net.rules[0].payload


@inlined
def receive(net: Network, k: int, now: int) -> int:
    """Data, an ACK or a CNP arrives at a host; the host whose NIC is to be looked at, or NONE."""
    p = net.packets[k]
    f = p.flow
    if p.what == DATA:
        return receive_data(net, k, now)
    flow = net.flows[f]
    x, constants = net.senders[f], net.constants[flow.kind]
    # A CNP of its own acknowledges nothing, and may come when its flow has gone.
    if p.what == ACK or p.number == flow.life:
        if p.marked and constants.kind == senders.DCQCN:
            senders.on_cnp(x, constants, now)
        if p.what == ACK:
            flow.acked += 1
            flow.unacked -= payload_of(net, f, p.number)
            rtt = (now - p.sent_at) / PS_PER_US
            if constants.kind == senders.TIMELY:
                delays.timely_hears(x, constants, now, p.number, flow.sent, rtt)
            elif constants.kind == senders.SWIFT:
                delays.swift_hears(x, constants, now, flow.hops - 1, rtt)
            elif constants.kind == senders.HPCC:
                telemetry.hear(net, f, k)
            elif constants.kind != senders.DCQCN:
                senders.on_ack(x, constants, now, p.marked, p.number, flow.sent, rtt)
            if flow.acked == flow.packets:
                flow.stage, flow.end = DONE, now
    free_packet(net, k)
    return flow.src if flow.listed and constants.windowed else NONE


@inlined
def receive_data(net: Network, k: int, now: int) -> int:
    """Turn a data packet around as its ACK; the host that sends it."""
    p = net.packets[k]
    f, clock, rules = p.flow, net.clock[0], net.rules[0]
    flow, constants = net.flows[f], net.constants[net.flows[f].kind]
    clock.delivered += p.size
    flow.delivered += p.size
    flow.inside -= p.size
    if flow.stage == DRAINING and flow.inside == 0 and flow.unsent == 0:
        flow.stage = RETURNING
    if constants.cnp_interval > 0 and p.marked:
        p.marked = now >= flow.cnp_until
        if p.marked:
            flow.cnp_until = now + constants.cnp_interval
        elif not flow.cnp_owed:
            flow.cnp_owed = True
            push(net, flow.cnp_until, CNP_DUE, f)
    p.what, p.hop, p.size = ACK, 0, rules.ack_bytes
    append(net, lane_of(net, flow.dst, k), k)
    return flow.dst


@inlined
def send_cnp(net: Network, f: int, now: int) -> int:
    """A receiver sends the CNP that it owes; the host that sends it."""
    flow, rules = net.flows[f], net.rules[0]
    # Nothing for a flow that has gone, or whose data are all there.
    sends = flow.stage == SENDING or flow.stage == DRAINING
    if not sends or not flow.cnp_owed or flow.cnp_until != now:
        return NONE
    flow.cnp_owed = False
    flow.cnp_until = now + net.constants[flow.kind].cnp_interval
    k = take_packet(net)
    p = net.packets[k]
    p.flow, p.number, p.size, p.what, p.marked = f, flow.life, rules.ack_bytes, CNP, True
    p.hop, p.sent_at = 0, now
    append(net, lane_of(net, flow.dst, k), k)
    return flow.dst


@inlined
def resend(net: Network, k: int) -> int:
    """A sender learns that a packet is lost; the host that sends it again."""
    p, rules = net.packets[k], net.rules[0]
    flow = net.flows[p.flow]
    flow.unacked -= p.size - rules.header
    p.next = flow.lost
    flow.lost = k
    if flow.stage > SENDING:
        flow.stage = SENDING
    enlist(net, p.flow)
    return flow.src
