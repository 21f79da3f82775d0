"""Counters of switches, over an interval, of the flows that cross their ports.

A snapshot at an interval's end misses the flows that came and went within it, which are half of
them or more where flows are short. So flows are counted where they begin, and those in progress
at the start are added. All of it happens once per tick, and only for the counters that
`SimConfig.counts` names.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core import ways
from ecn_marl.sim.core.slots import in_use, segment_sum
from ecn_marl.sim.random import Stream, binomial
from ecn_marl.sim.state import FlowCounts, Flows, NetParams, PortSums, SimState
from ecn_marl.sim.traffic.sizes import CHUNK, PAYLOAD, SIZE_CLASSES, wire_bytes

ELEPHANT = SIZE_CLASSES[1]
"""Bytes sent above which a flow counts as an elephant (PET, §4.2.1)."""


class FlowsOfTick(NamedTuple):
    """The flow slots in the course of a tick.

    Attributes:
        start: those after admission.
        end: those at the end of the tick.
        released: those of finished flows are free.
        new: which got a flow, `[F]`.
        busy: which were in use after admission, `[F]`.
    """

    start: Flows
    end: Flows
    released: Flows
    new: Bool[Array, " flows"]
    busy: Bool[Array, " flows"]


def start(cfg: SimConfig, flows: Flows, net: NetParams) -> FlowCounts | None:
    """Counts at the start of an interval; None if nothing is counted."""
    if not cfg.counts:
        return None
    names, real = set(cfg.counts), flows.payload.dtype
    counts = FlowCounts()
    zeros = jnp.zeros((cfg.topology.n_ports,), real)
    inside = (flows.stage == life.SENDING) | (flows.stage == life.DRAINING)
    # Decided while tracing: what is not requested is not in the compiled program.
    if names & {"flows_seen", "n_mice"}:
        present = by_port(cfg, flows, inside.astype(real))
        counts = replace(counts, present=present, entered=zeros)
    if names & {"flows_seen", "n_mice", "n_senders", "n_elephants"}:
        counts = replace(counts, away=(flows.stage != life.FREE) & ~inside)
    if "flows_begun" in names:
        counts = replace(counts, begun=zeros)
    if "n_senders" in names:
        sizes = [n * cfg.topology.n_hosts for n in _level_sizes(cfg)]
        no_senders = tuple(jnp.zeros((size,), bool) for size in sizes)
        counts = replace(counts, senders=_with_senders(cfg, no_senders, flows, inside))
    if names & {"n_mice", "n_elephants"}:
        big = inside & (bytes_so_far(flows, net) > ELEPHANT)
        counts = replace(
            counts,
            big_before=by_port(cfg, flows, big.astype(real)),
            big_since=zeros,
            settled=big | ~inside,
        )
    if "class_bytes" in names:
        counts = replace(counts, class_bytes=jnp.zeros((*zeros.shape, 3), real))
    if "marked_packets" in names:
        counts = replace(counts, square=zeros)
    return counts


def add(
    cfg: SimConfig, counts: FlowCounts | None, slots: FlowsOfTick, net: NetParams
) -> FlowCounts | None:
    """Count what happened in a tick.

    A slot holds at most one flow per tick: flows are admitted at its start, slots freed at its end.
    A flow that had sent all before the interval, and lost bytes since, is in progress again.
    """
    if counts is None:
        return None
    real = slots.start.payload.dtype
    used, new = slots.busy, slots.new
    entered = new
    if counts.away is not None:
        sending = (slots.end.stage == life.SENDING) | (slots.end.stage == life.DRAINING)
        away = counts.away & used & ~new
        entered = new | (away & sending)
        # Free slots keep what they had, so that `lanes` can skip them; nothing reads it there.
        counts = replace(counts, away=jnp.where(used, away & ~sending, counts.away))
    if counts.entered is not None:
        since = counts.entered + by_port(cfg, slots.start, entered.astype(real))
        counts = replace(counts, entered=since)
    if counts.begun is not None:
        begun = counts.begun + by_port(cfg, slots.start, new.astype(real))
        counts = replace(counts, begun=begun)
    if counts.senders is not None:
        counts = replace(counts, senders=_with_senders(cfg, counts.senders, slots.start, entered))
    if counts.settled is not None:
        settled = counts.settled & ~entered
        big = used & ~settled & (bytes_so_far(slots.end, net) > ELEPHANT)
        since = counts.big_since + by_port(cfg, slots.start, big.astype(real))
        settled = jnp.where(used, settled | big, counts.settled)
        counts = replace(counts, big_since=since, settled=settled)
    if counts.class_bytes is not None:
        counts = replace(counts, class_bytes=counts.class_bytes + _class_bytes(cfg, slots, net))
    return counts


def results(
    cfg: SimConfig, sums: PortSums, state: SimState, net: NetParams
) -> dict[str, Float[Array, "ports ..."]]:
    """The counters that `SimConfig.counts` names, as leaves of `PortStats`."""
    counts: FlowCounts | None = sums.counts
    if counts is None:
        return {}
    counters: dict[str, Array] = {}
    if counts.begun is not None:
        counters["flows_begun"] = counts.begun
    if counts.present is not None:
        counters["flows_seen"] = counts.present + counts.entered
    if counts.senders is not None:
        hosts = cfg.topology.n_hosts
        rows = [s.reshape(-1, hosts).sum(1) for s in counts.senders]
        counters["n_senders"] = jnp.concatenate(rows).astype(sums.queue.dtype)
    if counts.big_before is not None:
        counters["n_elephants"] = counts.big_before + counts.big_since
        if counts.present is not None:
            counters["n_mice"] = counters["flows_seen"] - counters["n_elephants"]
    if counts.class_bytes is not None:
        counters["class_bytes"] = counts.class_bytes
    if counts.square is not None:
        counters["marked_packets"] = _marked_packets(sums, state, net)
    return {name: counters[name] for name in cfg.counts}


def by_port(cfg: SimConfig, flows: Flows, values: Float[Array, " flows"]) -> Float[Array, " ports"]:
    """Sum of a value of each flow over the flows that cross each port."""
    values = ways.per_way(values, cfg.n_ways)
    spans = zip(_crossed(cfg, flows), _level_sizes(cfg), strict=True)
    return jnp.concatenate([segment_sum(values, port, n) for port, n in spans])


def bytes_so_far(flows: Flows, net: NetParams) -> Float[Array, " flows"]:
    """Payload bytes that each flow has sent; exactly its payload once nothing is left."""
    wire = wire_bytes(flows.payload, net.packet_bytes - PAYLOAD)
    left = flows.rest_low + flows.rest_high * CHUNK
    return flows.payload - left * (flows.payload / jnp.maximum(wire, 1.0))


def _class_bytes(cfg: SimConfig, slots: FlowsOfTick, net: NetParams) -> Float[Array, "ports 3"]:
    """Bytes that left each port in a tick, by size class of their flows at its end.

    A tick knows what each flow delivered, and its backlog at every level before and after. A port
    has sent what was delivered, plus what the backlogs of later levels grew by, on each way. Bytes
    that a later level dropped are missed. Bytes that a flow leaves in a queue when its slot is
    freed count then: a FIFO would have sent them already (see `lifecycle.release`).
    """
    arrived = slots.end.delivered if slots.end.by_way is None else slots.end.by_way
    delivered, busy = in_use(arrived, slots.busy), ways.per_way(slots.busy, cfg.n_ways)
    grown = slots.end.backlog - slots.start.backlog
    freed = slots.end.backlog - slots.released.backlog
    w, rows, ports = cfg.n_ways, [], _ports(cfg, slots.start)
    if w == 1:
        beyond = delivered + grown.sum(0)
    else:
        beyond = (delivered + grown.reshape(-1, *delivered.shape).sum(0)).reshape(-1)
    so_far = ways.per_way(bytes_so_far(slots.end, net), w)
    size = sum((so_far > bound).astype(jnp.int32) for bound in SIZE_CLASSES)
    for i, n in enumerate(_level_sizes(cfg)):
        beyond = beyond - ways.level(grown, i, w)
        port = ways.level(ports, i, w)
        cell = jnp.where(port < n, port * 3 + size, 3 * n)
        # Differences of backlogs may round to below 0.
        sent = in_use(jnp.maximum(beyond + ways.level(freed, i, w), 0.0), busy)
        rows.append(segment_sum(sent, cell, 3 * n).reshape(n, 3))
    return jnp.concatenate(rows)


def _marked_packets(sums: PortSums, state: SimState, net: NetParams) -> Float[Array, " ports"]:
    """Marked packets as a counter shows them.

    Every packet is marked by a coin of its own, with the probability `p` of its moment. Their
    number has the mean `sum p` and the variance `sum p - sum p^2`. The binomial distribution with
    both is that of `(sum p)^2 / sum p^2` packets, which is at most the number of packets sent.
    """
    mean = sums.marked / net.packet_bytes
    square = sums.counts.square / net.packet_bytes
    # The floors keep ports that marked nothing from 0 / 0.
    chance = jnp.clip(square / jnp.maximum(mean, 1e-6), 1e-6, 1.0)
    n_ports = mean.shape[0]
    counter = state.step * n_ports + jnp.arange(n_ports, dtype=jnp.int32)
    return binomial(state.seed, counter, (Stream.MARKED_OF, Stream.MARKED), mean / chance, chance)


def _with_senders(
    cfg: SimConfig, senders: tuple[Array, ...], flows: Flows, which: Bool[Array, " flows"]
) -> tuple[Array, ...]:
    """Sources of some flows added to those that have sent through each port."""
    hosts, added = cfg.topology.n_hosts, []
    which, src = (ways.per_way(x, cfg.n_ways) for x in (which, flows.src))
    for sent_before, port, n in zip(senders, _crossed(cfg, flows), _level_sizes(cfg), strict=True):
        # Flows that do not count get an index past the end, which is dropped.
        cell = jnp.where(which & (port < n), port * hosts + src, n * hosts)
        added.append(sent_before.at[cell].set(True, mode="drop"))
    return tuple(added)


def _ports(cfg: SimConfig, flows: Flows) -> Int[Array, "rows flows"]:
    """Port at each level of each flow's ways, counted within the level, `[L W, F]`."""
    return flows.hop if cfg.n_classes == 1 else flows.hop // cfg.n_classes


def _crossed(cfg: SimConfig, flows: Flows) -> list[Int[Array, " n"]]:
    """The same for each level, `[W F]`, with every port of a flow only once."""
    ports, sizes = _ports(cfg, flows), _level_sizes(cfg)
    return ways.crossings(ports, sizes, cfg.n_ways, cfg.load_balancing)


def _level_sizes(cfg: SimConfig) -> list[int]:
    """Number of ports of each level."""
    bounds = cfg.topology.level_bounds
    return [high - low for low, high in pairwise(bounds)]
