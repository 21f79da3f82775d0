"""No byte arrives before it is sent: completion times held against what every link can carry.

For every link and every set of flows that cross it: their wire bytes are at most its rate times the
time from the first of them reaching it, at best, to the last of them having left it, at latest. A
flow reaches a link no sooner than the propagation delay after it begins. It has left it before
the flow completes, by the propagation delays of the rest of its way and of the ACK. Whatever queues
and senders do in between, a network cannot break this bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ecn_marl.errors import BrokenInvariant
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.sizes import PAYLOAD
from ecn_marl.sim.units import GBPS


class Crossings(NamedTuple):
    """Flows and the links that they cross, `N` flows and `L` levels of ports.

    Attributes:
        src: sending hosts, `[N]`.
        dst: receiving hosts, `[N]`.
        forward: ports on the way of the data, the number of ports for none, `[N, L]`.
        back: ports on the way of the ACKs, likewise, `[N, L]`.
        payload: bytes, `[N]`.
        begin: start of each flow, µs, `[N]`.
        end: arrival of its last ACK, µs, NaN if unfinished, `[N]`.
    """

    src: Int[np.ndarray, " n"]
    dst: Int[np.ndarray, " n"]
    forward: Int[np.ndarray, "n levels"]
    back: Int[np.ndarray, "n levels"]
    payload: np.ndarray
    begin: Float[np.ndarray, " n"]
    end: Float[np.ndarray, " n"]


class Overbooking(NamedTuple):
    """The set of flows that is furthest ahead of its link, see `worst`.

    Attributes:
        early_us: how much more time its link needs for its bytes, µs; at most 0 if none is ahead.
        link: name of the link.
        n_flows: flows in the set.
        wire_bytes: their bytes on the wire.
        first_us: when the first of them reaches the link, at best, µs.
        last_us: when the last of them has left it, at latest, µs.
    """

    early_us: float
    link: str
    n_flows: int
    wire_bytes: float
    first_us: float
    last_us: float

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.link}: {self.n_flows} flows of {self.wire_bytes:.0f} wire bytes are through "
            f"between {self.first_us:.3f} and {self.last_us:.3f} µs, {self.early_us:.3f} µs before "
            "the link can have carried them"
        )


def check_capacity(topology: Topology, flows: Crossings, packet: float) -> None:
    """Hold completion times against what links can carry, to a packet of the slowest link.

    Args:
        topology: the network.
        flows: the flows.
        packet: bytes of a whole packet on the wire.

    Raises:
        BrokenInvariant: flows are through a link before it can have carried them.
    """
    found = worst(topology, flows, packet - PAYLOAD)
    rates = (*topology.nic_gbps, *(port.gbps for port in topology.ports))
    if found.early_us > packet / (min(rates) * GBPS):
        raise BrokenInvariant(str(found))


def worst(topology: Topology, flows: Crossings, header: float) -> Overbooking:
    """The set of finished flows that is furthest ahead of what its link can have carried.

    Args:
        topology: the network.
        flows: flows with one path each.
        header: bytes of headers per packet, see `Transport.header` and `sizes.HEADER`.
    """
    t = topology
    done = np.isfinite(flows.end)
    flows = Crossings(*(np.asarray(x)[done] for x in flows))
    delay = np.append([p.delay_us for p in t.ports], 0.0)
    nic_delay = np.array(t.nic_delay_us)
    wire = flows.payload + header * np.ceil(flows.payload / PAYLOAD)
    forth = np.concatenate([nic_delay[flows.src][:, None], delay[flows.forward]], 1)
    round_trip = forth.sum(1) + nic_delay[flows.dst] + delay[flows.back].sum(1)
    # Column j: the propagation delay before the j-th link of the way, the NIC's first.
    before = np.cumsum(forth, 1) - forth
    columns = np.concatenate([flows.src[:, None], t.n_hosts + flows.forward], 1)
    rates = np.concatenate([t.nic_gbps, [p.gbps for p in t.ports]]) * GBPS
    found = Overbooking(-np.inf, "no link", 0, 0.0, 0.0, 0.0)
    for link in np.unique(columns[columns < rates.size]):
        row, column = np.nonzero(columns == link)
        first = flows.begin[row] + before[row, column]
        last = flows.end[row] - (round_trip[row] - before[row, column])
        one = _ahead(first, last, wire[row], rates[link])
        if one.early_us > found.early_us:
            port = None if link < t.n_hosts else t.ports[link - t.n_hosts]
            name = f"NIC of host{link}" if port is None else f"{port.switch} to {port.peer}"
            found = one._replace(link=name)
    return found


def _ahead(first: np.ndarray, last: np.ndarray, wire: np.ndarray, rate: float) -> Overbooking:
    """The worst set at one link, named nothing; sets are all flows within a span of time."""
    by_end = np.argsort(last, kind="stable")
    first, last, wire = first[by_end], last[by_end], wire[by_end]
    found = Overbooking(-np.inf, "", 0, 0.0, 0.0, 0.0)
    for since in np.unique(first):
        within = first >= since
        through = np.cumsum(np.where(within, wire, 0.0))
        early = np.where(within, through / rate - (last - since), -np.inf)
        j = int(np.argmax(early))
        if early[j] > found.early_us:
            n = int(within[: j + 1].sum())
            found = Overbooking(float(early[j]), "", n, through[j], since, last[j])
    return found
