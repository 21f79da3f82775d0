"""How many flows a simulation has to hold: `width` of a source, `slots` of a simulator.

Arrays have fixed sizes: a source offers at most `width` flows per tick, and at most `slots` flows
are in progress. If either is too small, flows wait that would not wait in a network. So both follow
from the traffic unless they are given.

*Width*: the flows that arrive in a tick, exceeded once in a million ticks (Poisson).

*Slots*: the sum of

* flows in progress: every link is a queue that flows share, with `rho / (1 - rho)` flows at load
  rho (processor sharing), as if each flow were held up by every link on its way;
* flows that wait behind a deep queue: arrivals times the longest wait, which is that of a FIFO
  queue without any marking (Pollaczek and Khinchine), but at most `DEEP_US`, the deepest threshold
  that a switch is set to;
* flow sets, twice, since the next may begin before the last has finished;
* five standard deviations of these;
* flows that begin when others have finished (`tickets`): their largest number is known. They
  get that many slots, and 1.5 times as many in networks of several levels, where a finished flow
  holds its slot until its bytes have left all but the last switch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.stats import poisson

from ecn_marl._errors import bad_value
from ecn_marl._memory import check_memory
from ecn_marl.sim.network.servers import apart
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.units import GBPS

DEEP_US = 5120e3 / (25.0 * GBPS)
"""Wait behind a queue of 5120 KB on a port of 25 Gb/s, the deepest Kmax of the literature, µs."""

RARE = 1e-6
"""Share of the ticks in which more flows may arrive than a source offers."""

SIGMAS = 5.0
"""Standard deviations of the flows in progress for which there are slots."""

HELD = 1.5
"""Slots for each flow of a closed loop in networks of several levels; loops of 32 to 128 flows
through oversubscribed fabrics used up to 1.2."""

FULL = 0.99
"""Load of a link above which flows pile up without bound."""


class Demand(NamedTuple):
    """Traffic of a source when it is busiest.

    Attributes:
        per_us: arrivals per µs, of bursts if flows come in bursts.
        burst: flows per arrival.
        wire: mean bytes of an arrival on the wire.
        square: mean of their square, bytes².
        pairs: share of the arrivals from host i to host j, `[H, H]`.
        standing: flows that may be in progress besides.
        most: flows that arrive within a tick at most; None for a Poisson process.
        bound: flows that are in progress at most, whatever the network does, besides those above.
    """

    per_us: float
    burst: float
    wire: float
    square: float
    pairs: np.ndarray
    standing: float = 0.0
    most: int | None = None
    bound: int = 0


def uniform_pairs(sources: Iterable[int], destinations: Iterable[int], hosts: int) -> np.ndarray:
    """Equal shares for all pairs of different hosts of two groups, `[H, H]`."""
    pairs = np.zeros((hosts, hosts))
    pairs[np.ix_(list(sources), list(destinations))] = 1.0
    np.fill_diagonal(pairs, 0.0)
    return pairs / max(pairs.sum(), 1.0)


def demand_of(source: Source, topology: Topology, tick_us: float) -> Demand | None:
    """Demand of a source; None if it has no method `demand`."""
    method = getattr(source, "demand", None)
    if method is None:
        return None
    demand: Demand = method(np.array(topology.nic_gbps) * GBPS, tick_us)
    return demand


def width_for(demand: Demand, tick_us: float) -> int:
    """Flows that a source has to offer per tick."""
    if demand.most is not None:
        return max(demand.most, 1)
    return int(poisson.isf(RARE, demand.per_us * tick_us)) + 1


def with_widths(
    traffic: Sequence[Source], topology: Topology, tick_us: float
) -> tuple[Source, ...]:
    """Sources whose `width` is a number.

    Args:
        traffic: sources.
        topology: the network.
        tick_us: time between admissions, µs.

    Returns:
        The sources. Where servers have several NICs, they know them.

    Raises:
        ValueError: a source without `demand` has no number as its width, or a source that does not
            know servers has flows between NICs of one server.
    """
    hosts = topology.n_hosts
    pairs = 8.0 * hosts**2 * max(len(traffic), 1)
    # Before anything is allocated: `demand` makes tables of all pairs.
    check_memory("topology", topology.name, pairs, "the traffic between all pairs of its hosts")
    sources = [_with_servers(source, topology, tick_us) for source in traffic]
    widths = [_width(source, topology, tick_us) for source in sources]
    return tuple(
        replace(s, width=w) if getattr(s, "width", None) == "auto" else s
        for s, w in zip(sources, widths, strict=True)
    )


def _with_servers(source: Source, topology: Topology, tick_us: float) -> Source:
    """A source that knows which hosts are NICs of one server."""
    if hasattr(source, "check_network"):
        source.check_network(topology.n_hosts)
    server = topology.bonds
    if hasattr(source, "server"):
        return source if source.server == server else replace(source, server=server)
    demand = demand_of(source, topology, tick_us) if server else None
    if demand is not None:
        listed = np.array(getattr(source, "pairs", ()), int).reshape(-1, 2)
        within = ~apart(server)
        if (demand.pairs[within] > 0).any() or within[tuple(listed.T)].any():
            allowed = f"hosts of {topology.name} of which no pair has one server in common"
            raise bad_value(f"hosts of {type(source).__name__}", "NICs of one server", allowed)
    return source


def _width(source: Source, topology: Topology, tick_us: float) -> int:
    width = getattr(source, "width", 1)
    if width != "auto":
        if not isinstance(width, int) or width < 1:
            raise bad_value("width", width, "an integer >= 1, or auto")
        return width
    demand = demand_of(source, topology, tick_us)
    if demand is None:
        raise bad_value("width", width, f"a number: {type(source).__name__} has no demand()")
    return width_for(demand, tick_us)


def link_loads(demands: Sequence[Demand], topology: Topology) -> np.ndarray:
    """Load of every NIC and port, share of its rate, `[H + P]`; paths are taken evenly."""
    t = topology
    rate = np.array([*t.nic_gbps, *(p.gbps for p in t.ports)]) * GBPS
    offered = np.zeros(t.n_hosts + t.n_ports + 1)
    edge = np.array(t.edge)
    member = np.eye(len(t.n_paths))[edge]  # [H, E]
    for d in demands:
        rates = d.per_us * d.wire * d.pairs
        offered[: t.n_hosts] += rates.sum(1)
        np.add.at(offered, t.n_hosts + t.last, rates.sum(0))
        between = member.T @ rates @ member / np.maximum(t.n_paths, 1)
        shares = np.broadcast_to(between[..., None, None], t.routes.shape)
        exists = np.arange(t.routes.shape[2]) < t.n_paths[..., None]
        # Not `+=`, which would count a port once that several paths share.
        np.add.at(offered, t.n_hosts + t.routes, shares * exists[..., None])
    return offered[:-1] / rate


def least_slots(demands: Sequence[Demand], topology: Topology, tick_us: float) -> int:
    """Flows in progress if no flow ever met another: the mean that any table has to hold.

    A flow has a slot for a tick longer than it takes: slots are taken and freed once per tick.
    """
    arrivals = sum(d.per_us * d.burst for d in demands)
    receivers = link_loads(demands, topology)[topology.n_hosts + topology.last]
    return math.ceil(arrivals * tick_us + receivers.sum())


def slots_for(demands: Sequence[Demand], topology: Topology, tick_us: float) -> int:
    """Flow slots that hold the traffic under thresholds as deep as `DEEP_US`.

    Raises:
        ValueError: a link is offered more than it can carry.
    """
    loads = link_loads(demands, topology)
    if loads.max() >= FULL:
        allowed = f"a number: a link is offered {100 * loads.max():.0f} % of its rate"
        raise bad_value("slots", "auto", f"{allowed}, and flows pile up without bound")
    wait = _longest_wait(demands, topology, loads)
    mean = sum(d.standing + d.per_us * d.burst * (tick_us + wait) for d in demands)
    variance = mean
    burst = max((d.burst for d in demands), default=1.0)
    mean += burst * float((loads / (1.0 - loads)).sum())
    variance += burst**2 * float((loads / (1.0 - loads) ** 2).sum())
    bound = sum(d.bound for d in demands) * (HELD if topology.n_levels > 1 else 1.0)
    return 16 * math.ceil((mean + SIGMAS * math.sqrt(variance) + bound) / 16)


def _longest_wait(demands: Sequence[Demand], topology: Topology, loads: np.ndarray) -> float:
    """Wait of a flow behind the deepest queue that can arise towards a host, µs."""
    if any(d.standing or d.bound for d in demands):
        return DEEP_US
    t = topology
    rate = np.array([t.ports[i].gbps for i in t.last]) * GBPS
    squares = sum((d.per_us * d.square * d.pairs.sum(0) for d in demands), np.zeros(t.n_hosts))
    queue = squares / (2.0 * rate**2 * (1.0 - loads[t.n_hosts + t.last]))
    return min(DEEP_US, float(queue.max(initial=0.0)))
