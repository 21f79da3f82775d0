"""What the packet simulator remembers: tables of records, one per kind of thing.

`H` hosts, `P` ports, `N = H + P` links (NICs first, then ports, as everywhere in `sim`), `C`
traffic classes, `S` switches, `F` flow slots, `L` levels. Times are whole picoseconds since the
start: at 100 Gb/s a byte takes 80. A clock of 64 bits runs for 106 days.

Every link has `C + 1` lanes, numbered `link (C + 1) + class`: one queue per traffic class at its
start, and a last one that PFC never stops, for ACKs with a priority of their own, and for the ACKs
of a host. A lane also has what the switch at the end of its link holds of it, which PFC counts.

Packets are a pool with a list of free ones. They stand in queues, and on links, as linked lists.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

PS_PER_US = 1_000_000
"""Picoseconds in a microsecond."""

PS_PER_NS = 1_000
"""Picoseconds in a nanosecond."""

NEVER = 2**62
"""A time that does not come, ps."""

NONE = -1
"""No packet, no link."""

CLOCK = np.dtype(
    [
        ("now", "i8"),
        ("events", "i8"),  # in the heap
        ("handled", "i8"),  # events since the start
        ("free", "i4"),  # first free packet
        ("n_free", "i4"),
        ("seed", "u8"),  # state of the marking coins
        ("offered", "i8"),  # wire bytes of all flows that have a slot
        ("delivered", "i8"),
        ("dropped", "i8"),
        ("spilled", "i8"),  # of these, bytes of classes that PFC protects
        ("pauses", "i8"),
        ("deferred", "i8"),  # flows that waited for a slot
        ("deferred_ps", "i8"),
    ]
)
"""The clock, and counters of the whole network; one record."""

RULES = np.dtype(
    [
        ("hosts", "i4"),
        ("classes", "i4"),
        ("ack_bytes", "i4"),
        ("packet", "i4"),  # wire bytes of a full packet
        ("header", "i4"),
        ("payload", "i4"),
        ("reserve", "i8"),
        ("resume_gap", "i8"),
        ("ack_priority", "?"),
        ("whole_ns", "?"),
        ("mark_quantum", "f8"),
    ]
)
"""What does not change; one record."""

LINK = np.dtype(
    [
        ("ps_per_byte", "f8"),
        ("delay", "i8"),
        ("busy_until", "i8"),  # the transmitter sends a packet until then
        ("wake", "i8"),  # next time the transmitter is looked at
        ("head", "i4"),  # packets on the wire
        ("tail", "i4"),
        ("from_switch", "i4"),  # NONE for a NIC
        ("to_switch", "i4"),  # NONE for a host
        ("reverse", "i4"),  # the link the other way
        ("turn", "i4"),  # class whose turn it is; at a NIC the place of the last flow served
        ("flows", "i4"),  # at a NIC: flows that have bytes to send
        ("alpha", "f8"),  # share of the free buffer that PFC grants its lanes
        ("headroom", "i8"),
    ]
)

LANE = np.dtype(
    [
        ("head", "i4"),
        ("tail", "i4"),
        ("bytes", "i8"),
        ("deficit", "f8"),
        ("paused", "?"),
        ("held", "i8"),  # bytes in the switch at the end of the link, headroom apart
        ("in_headroom", "i8"),
        ("stopped", "?"),  # that switch has sent a PAUSE
        ("area", "f8"),  # byte ps since the interval began
        ("sent", "i8"),
        ("marked", "i8"),  # bytes
    ]
)

CLASS = np.dtype([("lossless", "?"), ("alpha", "f8"), ("quantum", "f8")])
"""A traffic class; its senders are in `senders.CONSTANTS`."""

SWITCH = np.dtype(
    [
        ("buffer", "i8"),
        ("shared", "i8"),  # buffer less all headroom and reserves
        ("used", "i8"),
        ("used_shared", "i8"),
    ]
)

PORT = np.dtype(
    [
        ("queue", "i8"),  # bytes, the packet in transmission left out
        ("last", "i8"),  # time up to which the sums reach
        ("area", "f8"),
        ("square", "f8"),
        ("peak", "i8"),
        ("sent", "i8"),
        ("marked", "i8"),  # bytes
        ("marked_packets", "i8"),
        ("paused", "f8"),  # ps, mean of the classes
        ("n_paused", "i4"),
        ("sent_ever", "i8"),  # since the start
        ("begun", "i8"),
        ("big", "i8"),  # flows that went beyond 1 MB
        ("by_size", "i8", (3,)),
    ]
)
"""Counters of a switch's egress port over an interval."""

FLOW = np.dtype(
    [
        ("stage", "i4"),  # of `sim.core.lifecycle`
        ("src", "i4"),
        ("dst", "i4"),
        ("kind", "i4"),
        ("flow_id", "i4"),
        ("ticket", "i4"),
        ("hops", "i4"),  # links on the way
        ("hops_back", "i4"),
        ("payload", "i8"),
        ("packets", "i8"),
        ("last_payload", "i4"),
        ("sent", "i8"),  # packets, resent ones left out
        ("acked", "i8"),  # packets
        ("unacked", "i8"),  # payload bytes on the way, and their ACKs
        ("unsent", "i8"),  # wire bytes
        ("lost", "i4"),  # first packet to be sent again
        ("listed", "?"),  # among its NIC's flows
        ("next_send", "i8"),
        ("start", "i8"),
        ("end", "i8"),
        ("delivered", "i8"),  # wire bytes since the tick began
        ("inside", "i8"),  # wire bytes in the network
        ("notice", "i8"),  # ps until a sender learns of a loss
        ("cnp_until", "i8"),  # the receiver sends no CNP before
        ("cnp_owed", "?"),
        ("life", "i8"),  # flows that the slot has had
        ("start_step", "i4"),
        ("start_rest", "f8"),  # µs
        ("ideal", "f8"),  # µs
        ("rtt", "f8"),  # µs
        ("line", "f8"),  # bytes/µs
    ]
)

PACKET = np.dtype(
    [
        ("number", "i8"),
        ("arrive", "i8"),
        ("sent_at", "i8"),
        ("flow", "i4"),
        ("size", "i4"),
        ("next", "i4"),
        ("hop", "i2"),
        ("what", "i1"),
        ("marked", "?"),
    ]
)

DATA, ACK, CNP = range(3)
"""What a packet is. An ACK is its data packet turned around at the receiver."""

ARRIVAL = np.dtype(
    [
        ("tick", "i4"),  # in whose course it begins
        ("src", "i4"),
        ("dst", "i4"),
        ("kind", "i4"),
        ("flow_id", "i4"),
        ("ticket", "i4"),
        ("payload", "i8"),
        ("wire", "i8"),
        ("start", "i8"),
        ("start_step", "i4"),
        ("start_rest", "f8"),
        ("ideal", "f8"),
        ("rtt", "f8"),
        ("line", "f8"),
    ]
)
"""A flow that begins; its way is in a table beside it."""

QUEUE, SENT, TIME = range(3)
"""What a port writes into a packet of HPCC: bytes left behind, bytes it has sent, and when, ps."""

EVENT = np.dtype([("time", "i8"), ("code", "i8")])


class Network(NamedTuple):
    """All tables; arrays of records.

    Attributes:
        clock: one `CLOCK`.
        rules: one `RULES`.
        links: `LINK`, `[N]`.
        lanes: `LANE`, `[N (C + 1)]`.
        classes: `CLASS`, `[C]`.
        switches: `SWITCH`, `[S]`.
        ports: `PORT`, `[P]`.
        flows: `FLOW`, `[F]`.
        senders: `senders.SENDER`, `[F]`.
        constants: `senders.CONSTANTS` of each class, `[C]`.
        way: links of each flow, there and back, int32 `[F, 2, L + 1]`.
        hop: its queue at each level, counted within the level as in `sim.state.Flows`, `[F, L]`.
        bounds: first queue of each level, and one past the last, int32 `[L + 1]`.
        of_nic: slots of each host's flows that have bytes to send, int32 `[H, F]`.
        has_sent: whether a host's flows crossed a port in the interval, `[P, H]`.
        packets: `PACKET`, the pool.
        heap: `EVENT`, those to come, earliest first.
        ecn: Kmin, Kmax (bytes) and Pmax of every port and class, float64 `[P, C, 3]`.
        readings: what the ports on its way have written into each packet of the pool, int64
            `[packets, L, 3]`, columns `QUEUE`, `SENT`, `TIME`; a single row without HPCC.
        last_readings: those of the last ACK of each flow, `[F, L, 3]`; a single row without HPCC.
    """

    clock: Any
    rules: Any
    links: Any
    lanes: Any
    classes: Any
    switches: Any
    ports: Any
    flows: Any
    senders: Any
    constants: Any
    way: Any
    hop: Any
    bounds: Any
    of_nic: Any
    has_sent: Any
    packets: Any
    heap: Any
    ecn: Any
    readings: Any
    last_readings: Any

    def copy(self) -> Network:
        """A network that shares nothing that changes."""
        return Network(*(table.copy() for table in self))


def pool(size: int, first: int = 0) -> np.ndarray:
    """Free packets, each with the next one's number, from `first` on."""
    packets = np.zeros(size, PACKET)
    packets["next"] = np.arange(first + 1, first + size + 1)
    packets["next"][-1] = NONE
    return packets


def with_more_packets(net: Network) -> Network:
    """The same network with a pool of twice the size."""
    clock, n = net.clock.copy(), len(net.packets)
    packets = np.concatenate([net.packets, pool(n, n)])
    # The new ones stand before those that are free still.
    packets["next"][-1] = clock["free"][0]
    clock["free"], clock["n_free"] = n, clock["n_free"] + n
    readings = net.readings
    if len(readings) == n:
        readings = np.concatenate([readings, np.zeros_like(readings)])
    return net._replace(clock=clock, packets=packets, readings=readings)


def with_more_events(net: Network) -> Network:
    """The same network with room for twice as many events."""
    return net._replace(heap=np.concatenate([net.heap, np.zeros(len(net.heap), EVENT)]))
