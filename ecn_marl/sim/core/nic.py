"""NICs of hosts: each serves its flows round robin and spaces their packets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.slots import busy, in_use, look_up, look_up_one, segment_sum
from ecn_marl.sim.state import Flows
from ecn_marl.sim.traffic.sizes import CHUNK

LAST_BYTE = 0.5
"""A flow with fewer bytes left to send has sent all: what is left is rounding of float32."""


class Nic(NamedTuple):
    """Limits of the NICs, constant within a tick.

    Attributes:
        capacity: bytes/µs each host may send, `[H]`.
        may_send: flows that are not paused at their NIC and have a path that works, `[F]`.
        packet: wire bytes of a packet.
    """

    capacity: Float[Array, " hosts"]
    may_send: Bool[Array, " flows"]
    packet: Float[Array, ""]


class Events(NamedTuple):
    """Flows that start or may end within a substep.

    Attributes:
        flag: whether a flow does, or its last byte is in the network, `[F]`. Few are at a time, and
            `lanes` passes over the others.
        begin: when within the substep each flow starts, 0 if it did before, µs, `[F]`.
    """

    flag: Bool[Array, " flows"]
    begin: Float[Array, " flows"]


class Sent(NamedTuple):
    """Result of one substep of the NICs.

    Attributes:
        flows: slots with less left to send.
        give: bytes each flow sent into the network, `[F]`.
        finished: flows that sent their last byte, `[F]`.
        finished_at: when within the substep they did, µs, `[F]`.
        level: round-robin share of each NIC, bytes/µs, `[H]`.
        events: flows that start or may end.
    """

    flows: Flows
    give: Float[Array, " flows"]
    finished: Bool[Array, " flows"]
    finished_at: Float[Array, " flows"]
    level: Float[Array, " hosts"]
    events: Events


def send(
    flows: Flows,
    level: Float[Array, " hosts"],
    nic: Nic,
    rate: Float[Array, " flows"],
    room: Float[Array, " flows"] | None,
    events: Events,
    dt: float,
    latched: bool,
) -> Sent:
    """Let every flow send, at most its rate, its window and its share of the NIC.

    NICs space packets by the rate at which each was sent: a sender at 100 Mb/s whose rate jumps up
    still sends its next packet at the old spacing, up to 84 µs later. With `latched` a new rate
    waits for the packet under way; in deep incasts this is what makes bursts of 64 senders as
    strong as they are.

    A flow that starts or ends within the substep demands only what it can send in it; the rest of
    its share goes to the others. A NIC sends nothing before its first flow starts, see `Fresh`,
    and no flow has sent all before the NIC can have sent that, see `_finish_times`.

    Args:
        flows: slots.
        level: NIC levels of the last substep, bytes/µs, `[H]`.
        nic: limits of the NICs in this tick.
        rate: rate that each sender allows, bytes/µs, `[F]`.
        room: bytes that each window still allows, `[F]`; None without windows.
        events: flows that start or may end, see `events`.
        dt: substep, µs.
        latched: whether a new rate waits for the packet under way.

    Returns:
        Bytes that each flow sent, and slots with the rest.
    """
    eventful, begin = events
    active = (flows.stage == life.SENDING) & (flows.start_in < dt) & nic.may_send
    if latched:
        rate = jnp.where(flows.spaced > 0, flows.pace, rate)
    part = jnp.clip(1.0 - flows.start_in / dt, 0.0, 1.0)
    most = flows.rest_low / dt
    if room is not None:
        most = jnp.minimum(most, jnp.maximum(room, 0.0) / dt)

    def demand_at(rate: Array) -> Array:
        return jnp.where(active, jnp.minimum(rate * part, most), 0.0)

    demand, slower = demand_at(rate), None
    if latched:

        def slower(per_byte: Array, share: Array) -> Array:
            return demand_at(rate / (1.0 + rate * per_byte * (1.0 - share)))

    fresh = _fresh(in_use(demand, eventful), begin, flows.src, nic.capacity.shape[0], dt)
    sharing = water_level(demand, flows.src, nic.capacity, level, fresh, slower)
    level, demand = sharing.level, sharing.demand
    share = look_up_one(level, flows.src)
    give = jnp.minimum(demand, share) * dt
    finished = active & (flows.rest_high == 0) & (flows.rest_low - give < LAST_BYTE)
    give = jnp.where(finished, flows.rest_low, give)
    rest = flows.rest_low - give
    # While whole chunks are left, `rest_low` holds one at least and does not limit a substep.
    borrow = (flows.rest_high > 0) & (rest < CHUNK)
    lent = jnp.where(borrow, CHUNK, 0.0)
    rest = rest + lent
    # Exactly the bytes that float32 took off the rest: no byte is lost to rounding.
    give = jnp.where(active, flows.rest_low - (rest - lent), 0.0)
    size = in_use(jnp.where(finished, give, 0.0), eventful)
    finished_at = _finish_times(size, rate, demand, begin, flows.src, sharing, nic.capacity, dt)
    if latched:
        spacing = flows.spaced + jnp.where(flows.spaced > 0, 0.0, nic.packet) - give
        spacing = jnp.where(give >= nic.packet, 0.0, spacing)
        flows = replace(flows, pace=rate, spaced=jnp.where(give > 0, spacing, flows.spaced))
    flows = replace(
        flows,
        rest_low=rest,
        rest_high=flows.rest_high - borrow,
    )
    return Sent(flows, give, finished, finished_at, level, events)


def events(flows: Flows, nic: Nic, dt: float) -> Events:
    """What begins and may end in a substep.

    It is of the state alone and comes first: loops that compute the flag, or old values that it is
    made of, cannot skip.

    Args:
        flows: slots at its start.
        nic: limits of the NICs.
        dt: substep, µs.
    """
    n_levels = flows.backlog.shape[0] // flows.level.shape[0]
    inside = ((flows.level >= 0) & (flows.level < n_levels)).any(0)
    starts = (flows.start_in > 0) & (flows.start_in < dt)
    may_end = (flows.rest_high == 0) & (flows.rest_low < nic.capacity.max() * dt + LAST_BYTE)
    eventful = busy((flows.stage != life.FREE) & (inside | starts | may_end))
    return Events(eventful, in_use(jnp.clip(flows.start_in, 0.0, dt), eventful))


class Sharing(NamedTuple):
    """How NICs share their links.

    Attributes:
        level: round-robin share, bytes/µs; the capacity where all demands fit, `[H]`.
        satisfied: what the flows below it demand, bytes/µs, `[H]`.
        n_limited: flows at it, `[H]`.
        demand: what flows demand that wait for their turns, bytes/µs, `[F]`.
    """

    level: Float[Array, " hosts"]
    satisfied: Float[Array, " hosts"]
    n_limited: Float[Array, " hosts"]
    demand: Float[Array, " flows"]


class Fresh(NamedTuple):
    """Flows that start within a substep, `[H]` each.

    Attributes:
        demand: what they demand on average over the substep, bytes/µs.
        idle: share of the substep that has passed when they start, their mean weighted by demand.
    """

    demand: Float[Array, " hosts"]
    idle: Float[Array, " hosts"]


def water_level(
    demand: Float[Array, " flows"],
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
    start: Float[Array, " hosts"],
    fresh: Fresh | None = None,
    slower: Callable[[Array, Array], Array] | None = None,
) -> Sharing:
    """Round-robin (max-min) share of each host's NIC.

    The level `l` solves `sum_f min(demand_f, l) = capacity`; if the demands fit, none is limited.
    The left side is concave in `l`, so a Newton step from anywhere with a positive slope lands at
    or below the root: two steps from the last substep's level never overbook the NIC, and reach the
    root exactly once the set of limited flows has settled.

    Until flows start, a NIC sends what the others demand, and no more: with nothing else to send,
    flows that start in the middle of a substep have half of it.

    Args:
        demand: bytes/µs each flow could send, 0 for idle slots, `[F]`.
        src: source host of each slot, `[F]`.
        capacity: bytes/µs each host may send, `[H]`.
        start: a level to start from, e.g. that of the last substep, `[H]`.
        fresh: flows that start within the substep; None for none.
        slower: what flows demand that wait for their turns, by what `_turns` returns and each
            flow's share of all demands, `[F]` each; None if they do not wait.

    Returns:
        The level, the flows below and at it before the last step, and what they demand.
    """
    n, line = capacity.shape[0], jnp.maximum(capacity, 1e-3)
    level = start
    satisfied = n_limited = jnp.zeros_like(start)
    share = look_up_one(level, src)
    for i in range(2):
        limited = (demand >= share) & (demand > 0)
        columns = [jnp.where(limited, 0.0, demand), limited.astype(demand.dtype)]
        if i == 0 and slower is not None:
            columns += [demand, demand * demand]
        satisfied, n_limited, *moments = segment_sum(jnp.stack(columns, -1), src, n).T
        if i == 0 and fresh is not None:
            used = satisfied + n_limited * jnp.minimum(level, capacity)
            others = jnp.maximum(used - fresh.demand, 0.0)
            capacity = capacity - jnp.maximum(capacity - others, 0.0) * fresh.idle
        # At a level far too high, flows below it may demand more than the capacity: restart at 0.
        settled = jnp.where(satisfied <= capacity, capacity, 0.0)
        level = jnp.where(
            n_limited > 0, (capacity - satisfied) / jnp.maximum(n_limited, 1.0), settled
        )
        level = jnp.maximum(level, 0.0)
        if i == 0 and slower is not None:
            # Slower flows leave more to the others, so this level is not too high for them.
            total = jnp.maximum(moments[0], 1e-3)
            table = jnp.stack([level, _turns(total, moments[1], line), 1.0 / total], -1)
            share, per_byte, part = look_up(table, src).T
            demand = slower(per_byte, demand * part)
        elif i == 0:
            share = look_up_one(level, src)
    return Sharing(level, satisfied, n_limited, demand)


def _turns(
    total: Float[Array, " hosts"], squares: Float[Array, " hosts"], line: Float[Array, " hosts"]
) -> Float[Array, " hosts"]:
    """How much longer a byte takes since packets wait for their turns, µs, `[H]`.

    A packet whose spacing is over waits while its NIC sends those of other flows, and only then
    does the next spacing begin. So flows whose rates together fill a link use 85 to 95 % of it.
    Where flows use a part `u` of a link, and each a share `s` of that, a packet waits for half a
    packet whenever others are being sent, and for those that wait already: `u (1 - s) / 2 / (1 - u
    (1 - 2 s))` packets, as in a closed queueing network, if spacings are independent of each other.

    Args:
        total: what flows would send alone, together, bytes/µs.
        squares: sum of the squares of that.
        line: rate of each NIC, bytes/µs.

    Returns:
        The waiting time per byte of a packet, of a flow whose share is next to nothing; for others
        it is `1 - s` of that.
    """
    typical = squares / total
    share, offered = typical / total, total / line
    used, wait = jnp.minimum(offered, 1.0), jnp.zeros_like(total)
    for i in range(3):
        # An idle NIC has a share of 0, and a used part of next to nothing.
        wait = 0.5 * used / (1.0 - used * jnp.clip(1.0 - 2.0 * share, 0.0, 0.999))
        if i < 2:
            slowed = 1.0 + typical / line * wait * (1.0 - share)
            used = jnp.minimum(offered / slowed, 1.0)
    return wait / line


def _fresh(
    demand: Float[Array, " flows"],
    begin: Float[Array, " flows"],
    src: Int[Array, " flows"],
    hosts: int,
    dt: float,
) -> Fresh:
    """The flows that start within a substep, at `begin` µs, 0 for others, `[F]`."""
    demand = jnp.where(begin > 0, demand, 0.0)
    total, moment = segment_sum(jnp.stack([demand, demand * begin], -1), src, hosts).T
    return Fresh(total, moment / jnp.maximum(total, 1e-6) / dt)


def _finish_times(
    size: Float[Array, " flows"],
    rate: Float[Array, " flows"],
    demand: Float[Array, " flows"],
    begin: Float[Array, " flows"],
    src: Int[Array, " flows"],
    sharing: Sharing,
    capacity: Float[Array, " hosts"],
    dt: float,
) -> Float[Array, " flows"]:
    """When within the substep the flows that send their last byte do so, µs, `[F]`.

    Served round robin, a flow of `m` bytes has sent all when the NIC has sent it, as much of every
    flow that goes on at the level of the NIC, what slower flows demand meanwhile, and all of the
    flows that end in the same substep. That is exact for flows of one size that start together;
    otherwise the shorter ones end later, at most by what the NIC takes for the others that end.

    Args:
        size: bytes left of the flows that send their last byte, 0 for others, `[F]`.
        rate: rate that each sender allows, bytes/µs, `[F]`.
        demand: bytes/µs that each could send, `[F]`.
        begin: when each flow starts, µs, `[F]`.
        src: source host of each slot, `[F]`.
        sharing: how the NICs share their links.
        capacity: bytes/µs each host may send, `[H]`.
        dt: substep, µs.
    """
    columns = jnp.stack([size, jnp.where(size > 0, demand, 0.0)], -1)
    ending, demanded = segment_sum(columns, src, capacity.shape[0]).T
    free = capacity - jnp.maximum(sharing.satisfied - demanded, 0.0)
    ending, n_limited, line, free = look_up(
        jnp.stack([ending, sharing.n_limited, capacity, free], -1), src
    ).T
    alone = size / jnp.maximum(jnp.minimum(rate, line), 1e-6)
    shared = (ending + n_limited * size) / jnp.maximum(free, 1e-6)
    return jnp.minimum(begin + jnp.maximum(alone, shared), dt)
