"""A packet-by-packet twin of two leaves and some spines, in plain Python.

Senders at a constant rate, FIFO queues without limits, one path per packet. Links go one way, so
every stage (uplinks, links down from the spines, links to the hosts) is served by itself, in order
of arrival: that is the event-driven order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

PACKET, ACK = 1048.0, 60.0
"""Wire bytes."""


class Message(NamedTuple):
    """Packets of a flow: sender, receiver, how many, µs from one to the next, start in µs."""

    src: int
    dst: int
    packets: int
    spacing: float
    start: float


@dataclass
class Result:
    """Arrival of each message's last packet, µs; peak queues, bytes; paths taken."""

    arrival: list[float] = field(default_factory=list)
    peak: dict[str, float] = field(default_factory=dict)
    paths: list[list[int]] = field(default_factory=list)


def send(
    messages: Iterable[Message],
    path: Callable[[int, int], int],
    nic: float,
    up: list[float],
    down: list[float],
    host: float,
    delay: float = 1.0,
) -> Result:
    """Send messages from hosts of one leaf to hosts of the other.

    Args:
        messages: messages.
        path: spine of packet `k` of message `i`.
        nic: rate of the NICs, bytes/µs.
        up: rate of the link to each spine.
        down: rate of the link from each spine.
        host: rate of the links to the hosts.
        delay: propagation delay of every link, µs.
    """
    messages, result = list(messages), Result()
    rates = {f"up{s}": r for s, r in enumerate(up)} | {f"down{s}": r for s, r in enumerate(down)}
    rates |= {f"host{m.dst}": host for m in messages}
    packets = []
    for i, m in enumerate(messages):
        result.paths.append([path(i, k) for k in range(m.packets)])
        for k, spine in enumerate(result.paths[-1]):
            left_nic = m.start + k * m.spacing + PACKET / nic
            packets.append((left_nic + delay, i, spine))
    for stage in ("up", "down", "host"):
        free: dict[str, float] = defaultdict(float)
        departures = []
        for at, i, spine in sorted(packets):
            port = f"host{messages[i].dst}" if stage == "host" else f"{stage}{spine}"
            waiting = max(free[port] - at, 0.0)
            result.peak[port] = max(result.peak.get(port, 0.0), waiting * rates[port])
            free[port] = at + waiting + PACKET / rates[port]
            departures.append((free[port] + delay, i, spine))
        packets = departures
    last: dict[int, float] = defaultdict(float)
    for at, i, _ in packets:
        last[i] = max(last[i], at)
    result.arrival = [last[i] for i in range(len(messages))]
    return result
