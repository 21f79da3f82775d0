"""Stages of a flow: it gets a slot, its last byte and last ACK arrive, the slot is released.

Flows live in a fixed table of slots. A slot goes through these stages:

| from | to | when | by |
|---|---|---|---|
| `FREE` | `SENDING` | its flow starts within the tick that begins | `admit` |
| `SENDING` | `DRAINING` | the last byte has left the NIC | `sink.advance_clocks` |
| `DRAINING` | `RETURNING` | the last byte has left the last queue | `finish` |
| `RETURNING` | `DONE` | the last ACK is back at the sender: the flow has finished | `finish` |
| `DRAINING`, `RETURNING` | `SENDING` | bytes were lost on the way | `hops.forward`, \
`recovery.discard`, `failures.reroute` |
| `DONE` | `FREE` | less than a packet of it is upstream of its last port | `release` |

Admission, completion and release happen once per tick and keep exact times. A flow that finds no
slot waits at its host, and its FCT still counts from its arrival. Completion is read off the
virtual waiting time of the last byte and of the last ACK, interpolated within the substep.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl._types import Leaf
from ecn_marl.sim.core import fifo, slots
from ecn_marl.sim.core.paths import ALONE, Paths, find_paths, queue_numbers
from ecn_marl.sim.core.slots import look_up, segment_sum
from ecn_marl.sim.core.ways import level
from ecn_marl.sim.random import Stream, hash_bits, to_unit
from ecn_marl.sim.state import Flows, NetParams, Totals
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.sizes import SLOWDOWN_UNIT, exact_add, size_class

FREE, SENDING, DRAINING, RETURNING, DONE = range(5)
"""Stages of a slot, see `Flows.stage`."""

SLOWDOWN_TOP = 1e4
"""Largest slowdown the histogram resolves; the last bin takes larger ones."""


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
    ways: tuple[int, int] = (1, 1),
    ideal: str = ALONE,
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
        ways: number of paths there, and back, that a flow can be on at once; new flows take all
            there are if the second is more than one.
        ideal: one of `paths.IDEALS`.

    Returns:
        Slots with the new flows in them, and which offers were taken (a prefix of each source's).
    """
    seats = _seat(flows, offer, tick_us)
    number = started + seats.place.astype(jnp.int32)
    paths = find_paths(
        net, offer, hash_bits(seed, number, Stream.PATH), up, n_ways=ways[1], ideal=ideal
    )
    # A xorshift generator that is 0 stays 0.
    coin = hash_bits(seed, number, Stream.COIN) | jnp.uint32(1)
    queues = queue_numbers(paths, kind, bounds, classes, ways[0])
    ticketed = flows.ticket is not None
    arrival = _look_up_offers(offer, paths, coin, kind, queues, seats.pick, ticketed)
    after = _fill(flows, seats.new, arrival, step, net.packet_bytes, staggered)
    return Admission(after, seats.new, seats.busy, arrival.line, seats.taken)


class _Seats(NamedTuple):
    """Which offer gets which slot.

    Attributes:
        place: place of each offer in the line, `[M]`.
        taken: whether it gets a slot, `[M]`.
        new: whether each slot gets a flow, `[F]`.
        busy: whether it is in use then, `[F]`.
        pick: number of the offer that it gets, `[F]`.
    """

    place: Int[Array, " m"]
    taken: Bool[Array, " m"]
    new: Bool[Array, " flows"]
    busy: Bool[Array, " flows"]
    pick: Int[Array, " flows"]


def _seat(flows: Flows, offer: Offer, tick_us: float) -> _Seats:
    """Give the free slots, in order, to the offers that start within the tick."""
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
    # In ticks without arrivals `lanes` skips what only new flows need.
    new = slots.busy(new)
    busy = slots.busy((flows.stage != FREE) | new)
    # Ranks are -1 before the first free slot, and may be beyond the offers.
    return _Seats(place, taken, new, busy, order[jnp.clip(rank, 0, m - 1)])


class _Arrival(NamedTuple):
    """The offer of each slot's new flow; names as in `Offer` and `Flows`."""

    start: Float[Array, " flows"]
    payload: Float[Array, " flows"]
    wire_low: Float[Array, " flows"]
    rtt: Float[Array, " flows"]
    after: Float[Array, " flows"]
    ideal: Float[Array, " flows"]
    line: Float[Array, " flows"]
    src: Int[Array, " flows"]
    dst: Int[Array, " flows"]
    flow_id: Int[Array, " flows"]
    wire_high: Int[Array, " flows"]
    coin: Int[Array, " flows"]
    kind: Int[Array, " flows"]
    ticket: Int[Array, " flows"] | None
    hop: Int[Array, "rows flows"]
    back: Int[Array, "back_rows flows"]


def _look_up_offers(
    offer: Offer,
    paths: Paths,
    coin: Array,
    kind: Int[Array, " m"],
    queues: tuple[Int[Array, "rows m"], Int[Array, "back_rows m"]],
    pick: Int[Array, " flows"],
    ticketed: bool,
) -> _Arrival:
    """The offer `pick` of every slot: one gather of reals and one of whole numbers."""
    reals = [offer.start, offer.payload, offer.wire_low]
    reals += [paths.rtt, paths.after, paths.ideal, paths.line]
    # As int32 the coins fit into the same table as the other whole numbers.
    bits = jax.lax.bitcast_convert_type(coin, jnp.int32)
    integers = [offer.src, offer.dst, offer.flow_id, offer.wire_high, bits, kind]
    integers += [offer.ticket] if ticketed else []
    hop, back = queues
    table = jnp.concatenate([jnp.stack(integers, axis=-1), hop.T, back.T], axis=-1)
    start, payload, low, rtt, after, ideal, line = look_up(jnp.stack(reals, axis=-1), pick).T
    src, dst, flow_id, high, coins, kinds, *rows = look_up(table, pick).T
    ticket, n = rows.pop(0) if ticketed else None, hop.shape[0]
    return _Arrival(
        start=start,
        payload=payload,
        wire_low=low,
        rtt=rtt,
        after=after,
        ideal=ideal,
        line=line,
        src=src,
        dst=dst,
        flow_id=flow_id,
        wire_high=high,
        coin=coins,
        kind=kinds,
        ticket=ticket,
        hop=jnp.stack(rows[:n]),
        back=jnp.stack(rows[n:]),
    )


def _fill(
    flows: Flows,
    new: Bool[Array, " flows"],
    arrival: _Arrival,
    step: Int[Array, ""],
    packet: Array,
    staggered: bool,
) -> Flows:
    """Start new flows in the slots `new`."""

    def put(value: Array, old: Array) -> Array:
        return jnp.where(new, value.astype(old.dtype), old)

    bits = jax.lax.bitcast_convert_type(arrival.coin, jnp.uint32)
    phase = to_unit(bits).astype(flows.payload.dtype) if staggered else jnp.ones_like(flows.payload)
    zeros = jnp.zeros_like(flows.stage)
    copied = ("src", "dst", "flow_id", "kind", "payload", "hop", "back", "after", "rtt", "ideal")
    zeroed = ("backlog", "due", "pace", "spaced", "gate", "tail", "delivered", "marks")
    leaves: dict[str, Any] = {
        **{name: put(getattr(arrival, name), getattr(flows, name)) for name in copied},
        **{name: put(jnp.zeros_like(x), x) for name in zeroed for x in (getattr(flows, name),)},
    }
    return replace(
        flows,
        **leaves,
        stage=put(zeros + SENDING, flows.stage),
        rest_high=put(arrival.wire_high, flows.rest_high),
        rest_low=put(arrival.wire_low, flows.rest_low),
        # A flow that has waited begins now; its FCT still counts from `start_rest`, below 0.
        start_in=put(jnp.maximum(arrival.start, 0.0), flows.start_in),
        start_step=put(zeros + step, flows.start_step),
        start_rest=put(arrival.start, flows.start_rest),
        partial=put(packet * phase, flows.partial),
        late_marks=put(zeros, flows.late_marks),
        coin=put(bits, flows.coin),
        ticket=None if arrival.ticket is None else put(arrival.ticket, flows.ticket),
    )


def in_window(
    step: Int[Array, "*#n"], rest: Float[Array, "*n"], dt: float, window: tuple[Leaf, Leaf]
) -> Bool[Array, "*n"]:
    """Whether flows that start `rest` µs after a substep begin within a window of substeps."""
    # Clipped, because a float beyond int32 has no defined value as an integer.
    begin = step + jnp.floor(jnp.clip(rest, -1e9, 1e9) / dt).astype(jnp.int32)
    return (begin >= window[0]) & (begin < window[1])


def finish(
    flows: Flows,
    totals: Totals,
    step: Int[Array, ""],
    dt: float,
    fct_log: Array | None,
    window: tuple[Leaf, Leaf],
    tick_us: float,
) -> tuple[Flows, Totals, Array | None]:
    """Complete flows whose last ACK is back, at the end of a tick.

    Args:
        flows: slots; a negative `tail` is how long ago its time ran out.
        totals: counters.
        step: substeps since the start, at the end of the tick.
        dt: substep, µs.
        fct_log: completion times of scheduled flows, `[N]`; None without such.
        window: substeps in which a flow has to begin to be measured, first and one past the last.
        tick_us: length of a tick, µs.

    Returns:
        Slots (completed ones in stage `DONE`), counters and log.
    """
    real = flows.tail.dtype
    arrived = (flows.stage == DRAINING) & (flows.tail <= 0)
    tail = jnp.where(arrived, flows.tail + flows.after + flows.back_wait, flows.tail)
    stage = jnp.where(arrived, RETURNING, flows.stage)
    done = (stage == RETURNING) & (tail <= 0)
    stage = jnp.where(done, DONE, stage)
    # Subtracted as integers: float32 clocks would lose microseconds in long episodes.
    steps = (step - flows.start_step).astype(real)
    fct = steps * dt + (tail - flows.start_rest)
    slowdown = fct / jnp.maximum(flows.ideal, 1e-6)
    size = size_class(flows.payload)
    measured = done & in_window(flows.start_step, flows.start_rest, dt, window)
    of_class = size == jnp.arange(3)[:, None]
    logs = jnp.log(jnp.maximum(slowdown, 1.0))
    histogram = totals.histogram
    if histogram is not None:
        bins = histogram.shape[0] // 3
        cell = size * bins + slowdown_bin(slowdown, bins)
        cell = jnp.where(measured, cell, 3 * bins)
        weights = measured.astype(histogram.dtype)
        # What is out of bounds is dropped, so `lanes` may skip slots that finish nothing.
        histogram = histogram.at[cell].add(weights, mode="drop")
    if fct_log is not None:
        n_scheduled = fct_log.shape[0]
        row = jnp.where(done & (flows.flow_id >= 0), flows.flow_id, n_scheduled)
        fct_log = fct_log.at[row].set(fct, mode="drop")
    cell = jnp.where(measured, size, 3)
    sums, log_sums = (segment_sum(jnp.where(measured, x, 0.0), cell, 3) for x in (slowdown, logs))
    totals = replace(
        totals,
        finished=totals.finished + (of_class & done).sum(1).astype(jnp.int32),
        measured=totals.measured + (of_class & measured).sum(1).astype(jnp.int32),
        slowdown=exact_add(*totals.slowdown, sums, SLOWDOWN_UNIT),
        log_slowdown=exact_add(*totals.log_slowdown, log_sums, SLOWDOWN_UNIT),
        histogram=histogram,
    )
    # From now on it is relative to the end of the next tick.
    waits = (stage == DRAINING) | (stage == RETURNING)
    return replace(flows, stage=stage, tail=jnp.where(waits, tail - tick_us, tail)), totals, fct_log


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
    n_ways = flows.backlog.shape[0] // (len(bounds) - 1)
    upstream = flows.backlog[:-n_ways].sum(0)
    free = (flows.stage == DONE) & (upstream < packet)
    leftover = jnp.where(free, flows.backlog, 0.0)
    parts = [
        segment_sum(level(leftover, i, n_ways), level(flows.hop, i, n_ways), high - low)
        for i, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    pool = pool.at[1].add(jnp.concatenate(parts))
    return (
        replace(
            flows,
            stage=jnp.where(free, FREE, flows.stage),
            backlog=jnp.where(free, 0.0, flows.backlog),
            due=jnp.where(free, 0.0, flows.due),
            waiting=tuple(jnp.where(free, 0.0, x) for x in flows.waiting),
        ),
        pool,
    )


def counted(flows: Flows) -> Flows:
    """Slots with the counters of delivered bytes reset, after the tick was counted."""
    by_way = None if flows.by_way is None else jnp.zeros_like(flows.by_way)
    return replace(flows, delivered=jnp.zeros_like(flows.delivered), by_way=by_way)


def empty_flows(
    slots: int,
    n_levels: int,
    words: int,
    transport: PyTree,
    real: jax.typing.DTypeLike,
    tickets: bool = False,
    ways: tuple[int, int] = (1, 1),
    late_words: int = 1,
) -> Flows:
    """A table of free slots.

    The delay line of the CNPs has `words` of 32 substeps each in its near part, and `late_words` in
    its far part. With `tickets`, flows carry the tickets of their sources (`traffic.tickets`).
    `ways` is the number of paths there, and back, that a flow can be on at once.
    """
    zero = jnp.zeros((slots,), real)
    integers = jnp.zeros((slots,), jnp.int32)
    bits = jnp.zeros((slots,), jnp.uint32)
    levels, back = (jnp.zeros((n_levels * n, slots), jnp.int32) for n in ways)
    bytes_ = jnp.zeros(levels.shape, real)
    return Flows(
        stage=integers,
        src=integers,
        dst=integers,
        flow_id=integers - 1,
        kind=integers,
        payload=zero,
        rest_high=integers,
        rest_low=zero,
        start_in=zero,
        start_step=integers,
        start_rest=zero,
        hop=levels,
        back=back,
        backlog=bytes_,
        due=bytes_,
        waiting=(bytes_,) * fifo.WAITING,
        partial=zero,
        pace=zero,
        spaced=zero,
        gate=zero,
        wait=zero,
        level=jnp.full((ways[0], slots), -1, jnp.int32),
        ahead=jnp.zeros((ways[0], slots), real),
        tail=zero,
        after=zero,
        rtt=zero,
        ideal=zero + 1.0,
        back_wait=zero,
        delivered=zero,
        marks=jnp.zeros((words, slots), jnp.uint32),
        late_marks=jnp.zeros((late_words, slots), jnp.uint32),
        coin=bits + 1,
        transport=transport,
        ticket=integers - 1 if tickets else None,
        by_way=jnp.zeros((ways[0], slots), real) if ways[0] > 1 else None,
    )
