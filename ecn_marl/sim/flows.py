"""Flow bookkeeping: admission into slots, completion, release.

Flows live in a fixed table of slots. Admission happens once per tick and keeps exact start times;
a flow that finds no slot waits at its host and its FCT still counts from its arrival. Completion is
read off the virtual waiting time of the last byte and of the last ACK, interpolated within the
substep.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim import slots
from ecn_marl.sim.random import Stream, hash_bits, to_unit
from ecn_marl.sim.sizes import PAYLOAD, packet_count, wire_bytes
from ecn_marl.sim.slots import look_up, segment_sum
from ecn_marl.sim.state import Flows, NetParams, Totals
from ecn_marl.sim.traffic import Offer

FREE, SENDING, DRAINING, RETURNING, DONE = range(5)
"""Stages of a slot, see `Flows.stage`."""

SIZE_CLASSES = (100e3, 1e6)
"""Upper bounds of the size classes: mice, medium; elephants are larger. Payload bytes."""

SLOWDOWN_TOP = 1e4
"""Largest slowdown the histogram resolves; the last bin takes what is above."""


class Paths(NamedTuple):
    """What a flow's way through the network implies, leaves `[M]` or `[M, L]` (global ports)."""

    forward: Int[Array, "m levels"]
    back: Int[Array, "m levels"]
    rtt: Float[Array, " m"]
    after: Float[Array, " m"]
    ideal: Float[Array, " m"]
    line: Float[Array, " m"]


def find_paths(
    net: NetParams, offer: Offer, bits: Array, up: Bool[Array, " ports"] | None = None
) -> Paths:
    """Paths and path constants of offered flows.

    The ideal completion time is the packet simulator's `standalone`: both propagation delays, one
    store-and-forward time of a 1000 B packet per hop, and the wire bytes at the bottleneck's rate.

    Args:
        net: the network.
        offer: flows, `[M]`.
        bits: random uint32 per flow for the ECMP choice, `[M]`.
        up: which ports' links work; None for all. Paths that do not work are left out of the
            choice, as long as there are others.

    Returns:
        Ports, feedback delay, return delay and ideal FCT (µs), NIC rate (bytes/µs).
    """
    real = net.port_rate.dtype
    rate = jnp.append(net.port_rate, jnp.asarray(jnp.inf, real))
    delay = jnp.append(net.port_delay, jnp.asarray(0.0, real))
    here, there = net.edge[offer.src], net.edge[offer.dst]

    def choose(edge: Array, end: Array, host: Array, wanted: Array, shift: int) -> Array:
        n, last = net.n_paths[edge, end], net.last[host][:, None]
        wanted = jnp.where(wanted >= 0, jnp.minimum(wanted, n - 1), -1)
        if up is None:
            hashed = ((bits >> shift) % n.astype(jnp.uint32)).astype(jnp.int32)
            chosen = jnp.where(wanted >= 0, wanted, hashed)
            return jnp.concatenate([net.routes[edge, end, chosen], last], axis=1)
        routes = net.routes[edge, end]
        works = jnp.append(up, True)[routes].all(-1) & up[last]
        works = works & (jnp.arange(routes.shape[1]) < n[:, None])
        count = jnp.maximum(works.sum(-1), 1)
        pick = ((bits >> shift) % count.astype(jnp.uint32)).astype(jnp.int32)
        hashed = jnp.argmax(works & (jnp.cumsum(works, -1) == pick[:, None] + 1), axis=-1)
        given = (wanted >= 0) & jnp.take_along_axis(works, wanted[:, None], 1)[:, 0]
        chosen = jnp.where(given, wanted, hashed)
        middle = jnp.take_along_axis(routes, chosen[:, None, None], 1)[:, 0]
        return jnp.concatenate([middle, last], axis=1)

    forward = choose(here, there, offer.dst, offer.path, 0)
    back = choose(there, here, offer.src, offer.path_back, 8)
    go = net.nic_delay[offer.src] + delay[forward].sum(-1)
    home = net.nic_delay[offer.dst] + delay[back].sum(-1)
    ack = net.ack_bytes / net.nic_rate[offer.dst] + (net.ack_bytes / rate[back]).sum(-1)
    header = net.packet_bytes - PAYLOAD
    wire = wire_bytes(offer.payload, header)
    last = offer.payload - PAYLOAD * (packet_count(offer.payload) - 1.0) + header
    line = net.nic_rate[offer.src]
    bottleneck = jnp.minimum(line, rate[forward].min(-1))
    stored = PAYLOAD / line + (PAYLOAD / rate[forward]).sum(-1)
    return Paths(
        forward=forward,
        back=back,
        rtt=go + (net.packet_bytes / rate[forward]).sum(-1) + home + ack,
        after=go + (last[:, None] / rate[forward]).sum(-1) + home + ack,
        ideal=go + home + stored + wire / bottleneck,
        line=line,
    )


def queue_numbers(
    paths: Paths, kind: Int[Array, " m"], bounds: tuple[int, ...], classes: int
) -> tuple[Int[Array, "levels m"], Int[Array, "levels m"]]:
    """Queues on the way: those ahead counted within their level, those of the ACKs as they are.

    Args:
        paths: ways in terms of ports.
        kind: traffic class of each flow.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.

    Returns:
        Local queues, the size of the level for none; and global ones, Q for none, `[L, M]`.
    """
    lows = jnp.array(bounds[:-1], jnp.int32)
    highs = jnp.array(bounds[1:], jnp.int32)
    ahead, home = paths.forward, paths.back
    if classes > 1:
        n_ports = bounds[-1] // classes
        ahead = jnp.where(ahead < n_ports, ahead * classes + kind[:, None], bounds[-1])
        home = jnp.where(home < n_ports, home * classes + kind[:, None], bounds[-1])
    local = jnp.where(ahead < bounds[-1], ahead - lows, highs - lows)
    return local.T, home.T


class Admission(NamedTuple):
    """Result of `admit`: slots, which are new, which in use, NIC rate per slot, offers taken."""

    flows: Flows
    new: Bool[Array, " flows"]
    busy: Bool[Array, " flows"]
    line: Float[Array, " flows"]
    taken: Bool[Array, " m"]


def admit(
    flows: Flows,
    net: NetParams,
    offer: Offer,
    step: Int[Array, ""],
    started: Int[Array, ""],
    seed: Array,
    tick_us: float,
    bounds: tuple[int, ...],
    kind: Int[Array, " m"],
    classes: int = 1,
    up: Bool[Array, " ports"] | None = None,
    staggered: bool = True,
) -> Admission:
    """Put offered flows that start within this tick into free slots.

    Args:
        flows: slots.
        net: the network.
        offer: flows of all sources, `[M]`, each source's in order of start.
        step: substep at the start of the tick.
        started: number of flows admitted before; with `seed` it fixes a flow's path and coins,
            whatever slot it gets.
        seed: uint32 of the episode.
        tick_us: length of a tick, µs.
        bounds: first queue of each level, and one past the last.
        kind: traffic class of each offer, `[M]`.
        classes: queues per port.
        up: which ports' links work, None for all.
        staggered: whether the packets of each flow have a random phase; otherwise the first packet
            counts with its first byte, and every packet exactly once.

    Returns:
        Slots with the new flows in them, and which offers were taken (a prefix of each source's).
    """
    m = offer.src.shape[0]
    free = flows.stage == FREE
    rank = jnp.cumsum(free) - 1
    want = offer.valid & (offer.start < tick_us)
    place = jnp.cumsum(want) - 1
    taken = want & (place < free.sum())
    order = (
        jnp.zeros((m,), jnp.int32)
        .at[jnp.where(taken, place, m)]
        .set(jnp.arange(m, dtype=jnp.int32), mode="drop")
    )
    new = free & (rank < taken.sum())
    new = slots.busy(new)
    busy = slots.busy((flows.stage != FREE) | new)
    pick = order[jnp.clip(rank, 0, m - 1)]
    number = started + place.astype(jnp.int32)
    paths = find_paths(net, offer, hash_bits(seed, number, Stream.PATH), up)
    coin = jax.lax.bitcast_convert_type(
        hash_bits(seed, number, Stream.COIN) | jnp.uint32(1), jnp.int32
    )
    local, home = queue_numbers(paths, kind, bounds, classes)

    reals = jnp.stack(
        [
            offer.start,
            offer.payload,
            offer.wire_low,
            paths.rtt,
            paths.after,
            paths.ideal,
            paths.line,
        ],
        axis=-1,
    )
    numbers = [offer.src, offer.dst, offer.flow_id, offer.wire_high, coin, kind]
    ticketed = flows.ticket is not None
    whole = jnp.stack([*numbers, offer.ticket] if ticketed else numbers, axis=-1)
    start, payload, low, rtt, late, ideal, line = look_up(reals, pick).T
    ports = jnp.concatenate([whole, local.T, home.T], axis=-1)
    src, dst, flow_id, high, coins, kinds, *hops = look_up(ports, pick).T
    ticket = hops.pop(0) if ticketed else None
    n_levels = len(bounds) - 1

    def put(value: Array, old: Array) -> Array:
        return jnp.where(new, value.astype(old.dtype), old)

    bits = jax.lax.bitcast_convert_type(coins, jnp.uint32)
    phase = to_unit(bits).astype(flows.payload.dtype) if staggered else jnp.ones_like(flows.payload)
    zero, none = jnp.zeros_like(flows.payload), jnp.zeros_like(flows.stage)
    after = replace(
        flows,
        stage=put(none + SENDING, flows.stage),
        src=put(src, flows.src),
        dst=put(dst, flows.dst),
        flow_id=put(flow_id, flows.flow_id),
        kind=put(kinds, flows.kind),
        payload=put(payload, flows.payload),
        rest_high=put(high, flows.rest_high),
        rest_low=put(low, flows.rest_low),
        start_in=put(jnp.maximum(start, 0.0), flows.start_in),
        start_step=put(none + step, flows.start_step),
        start_rest=put(start, flows.start_rest),
        hop=put(jnp.stack(hops[:n_levels]), flows.hop),
        back=put(jnp.stack(hops[n_levels:]), flows.back),
        backlog=put(jnp.zeros_like(flows.backlog), flows.backlog),
        due=put(jnp.zeros_like(flows.backlog), flows.due),
        left=put(jnp.zeros_like(flows.backlog), flows.left),
        partial=put(net.packet_bytes * phase, flows.partial),
        pace=put(zero, flows.pace),
        spaced=put(zero, flows.spaced),
        gate=put(zero, flows.gate),
        tail=put(zero, flows.tail),
        after=put(late, flows.after),
        rtt=put(rtt, flows.rtt),
        ideal=put(ideal, flows.ideal),
        delivered=put(zero, flows.delivered),
        marks=put(jnp.zeros_like(flows.marks), flows.marks),
        late_marks=put(none, flows.late_marks),
        coin=put(bits, flows.coin),
        ticket=None if ticket is None else put(ticket, flows.ticket),
    )
    return Admission(after, new, busy, line, taken)


def size_class(payload: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """0 for mice, 1 for medium flows, 2 for elephants, by `SIZE_CLASSES`."""
    large = (payload > SIZE_CLASSES[0]).astype(jnp.int32)
    return large + (payload > SIZE_CLASSES[1]).astype(jnp.int32)


def in_window(
    step: Int[Array, "*#n"], rest: Float[Array, "*n"], dt: float, window: tuple[Leaf, Leaf]
) -> Bool[Array, "*n"]:
    """Whether flows that start `rest` µs after a substep begin within a window of substeps."""
    begin = step + jnp.floor(jnp.clip(rest, -1e9, 1e9) / dt).astype(jnp.int32)
    return (begin >= window[0]) & (begin < window[1])


def finish(
    flows: Flows,
    totals: Totals,
    step: Int[Array, ""],
    dt: float,
    fct_log: Array,
    window: tuple[Leaf, Leaf],
) -> tuple[Flows, Totals, Array]:
    """Complete flows whose last ACK is back, at the end of a tick.

    Args:
        flows: slots; `tail` may have run below zero: that is how long ago it happened.
        totals: counters.
        step: substeps since the start, at the end of the tick.
        dt: substep, µs.
        fct_log: completion times of scheduled flows, `[N]`.
        window: substeps in which a flow has to begin to be measured, first and one past the last.

    Returns:
        Slots (completed ones in stage `DONE`), counters and log.
    """
    real = flows.tail.dtype
    arrived = (flows.stage == DRAINING) & (flows.tail <= 0)
    tail = jnp.where(arrived, flows.tail + flows.after + flows.back_wait, flows.tail)
    stage = jnp.where(arrived, RETURNING, flows.stage)
    done = (stage == RETURNING) & (tail <= 0)
    stage = jnp.where(done, DONE, stage)
    steps = (step - flows.start_step).astype(real)
    fct = steps * dt + (tail - flows.start_rest)
    slowdown = fct / jnp.maximum(flows.ideal, 1e-6)
    size = size_class(flows.payload)
    counts = done & in_window(flows.start_step, flows.start_rest, dt, window)
    mine = size == jnp.arange(3)[:, None]
    logs = jnp.log(jnp.maximum(slowdown, 1.0))
    histogram = totals.histogram
    bins = histogram.shape[0] // 3
    if bins:
        cell = size * bins + slowdown_bin(slowdown, bins)
        cell = jnp.where(counts, cell, 3 * bins)
        one = counts.astype(histogram.dtype)
        histogram = histogram.at[cell].add(one, mode="drop")
    n = fct_log.shape[0]
    if n:
        row = jnp.where(done & (flows.flow_id >= 0), flows.flow_id, n)
        fct_log = fct_log.at[row].set(fct, mode="drop")
    totals = replace(
        totals,
        finished=totals.finished + (mine & done).sum(1).astype(jnp.int32),
        measured=totals.measured + (mine & counts).sum(1).astype(jnp.int32),
        slowdown=totals.slowdown
        + segment_sum(jnp.where(counts, slowdown, 0.0), jnp.where(counts, size, 3), 3),
        log_slowdown=totals.log_slowdown
        + segment_sum(jnp.where(counts, logs, 0.0), jnp.where(counts, size, 3), 3),
        histogram=histogram,
    )
    return replace(flows, stage=stage, tail=tail), totals, fct_log


def slowdown_bin(slowdown: Float[Array, " n"], bins: int) -> Int[Array, " n"]:
    """Index of a slowdown among `bins` log-spaced bins from 1 to `SLOWDOWN_TOP`."""
    scale = bins / jnp.log(SLOWDOWN_TOP)
    cell = jnp.floor(jnp.log(jnp.maximum(slowdown, 1.0)) * scale)
    return jnp.clip(cell, 0, bins - 1).astype(jnp.int32)


def release(
    flows: Flows, pool: Float[Array, "2 queues"], packet: Array, bounds: tuple[int, ...]
) -> tuple[Flows, Float[Array, "2 queues"]]:
    """Free the slots of completed flows.

    Service in proportion to backlog leaves a completed flow some bytes that a FIFO would have sent
    already (others of the same queue are ahead by as much). They go to the pool of their port and
    leave with it. A flow with more than a packet upstream of its last port keeps its slot, so that
    these bytes still load the ports ahead.

    Args:
        flows: slots.
        pool: ACKs and released data in each queue, `[2, Q]`.
        packet: wire bytes of a packet.
        bounds: first queue of each level, and one past the last.

    Returns:
        Slots and pool.
    """
    upstream = flows.backlog[:-1].sum(0)
    free = (flows.stage == DONE) & (upstream < packet)
    left = jnp.where(free, flows.backlog, 0.0)
    parts = [
        segment_sum(left[i], flows.hop[i], high - low)
        for i, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    pool = pool.at[1].add(jnp.concatenate(parts))
    return (
        replace(
            flows,
            stage=jnp.where(free, FREE, flows.stage),
            backlog=jnp.where(free, 0.0, flows.backlog),
            due=jnp.where(free, 0.0, flows.due),
        ),
        pool,
    )


def empty_flows(
    slots: int,
    n_levels: int,
    words: int,
    transport: object,
    real: jax.typing.DTypeLike,
    tickets: bool = False,
) -> Flows:
    """A table of free slots; `words` of 32 substeps each are the near delay line of the CNPs.

    With `tickets`, flows carry the tickets of their sources, see `sim.tickets`.
    """
    zero = jnp.zeros((slots,), real)
    whole = jnp.zeros((slots,), jnp.int32)
    bits = jnp.zeros((slots,), jnp.uint32)
    levels = jnp.zeros((n_levels, slots), jnp.int32)
    return Flows(
        stage=whole,
        src=whole,
        dst=whole,
        flow_id=whole - 1,
        kind=whole,
        payload=zero,
        rest_high=whole,
        rest_low=zero,
        start_in=zero,
        start_step=whole,
        start_rest=zero,
        hop=levels,
        back=levels,
        backlog=jnp.zeros((n_levels, slots), real),
        due=jnp.zeros((n_levels, slots), real),
        left=jnp.zeros((n_levels, slots), real),
        partial=zero,
        pace=zero,
        spaced=zero,
        gate=zero,
        wait=zero,
        tail=zero,
        after=zero,
        rtt=zero,
        ideal=zero + 1.0,
        back_wait=zero,
        delivered=zero,
        marks=jnp.zeros((words, slots), jnp.uint32),
        late_marks=bits,
        coin=bits + 1,
        transport=transport,
        ticket=whole - 1 if tickets else None,
    )
