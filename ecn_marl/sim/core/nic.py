"""NICs of hosts: each serves its flows round robin and spaces their packets."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.sharing import Begins, Paced, Sharing, take_turns, water_level
from ecn_marl.sim.core.slots import busy, in_use, look_up, look_up_one, segment_sum
from ecn_marl.sim.state import Flows
from ecn_marl.sim.traffic.sizes import CHUNK

LAST_BYTE = 0.5
"""A flow with fewer bytes left to send has sent all: what is left is rounding of float32."""


class Nic(NamedTuple):
    """Limits of the NICs, constant within a tick.

    Attributes:
        capacity: bytes/µs each host may send beside its ACKs, `[H]`.
        may_send: flows that are not paused at their NIC and have a path that works, `[F]`.
        packet: wire bytes of a packet.
        line: rate of its link, bytes/µs, `[H]`.
    """

    capacity: Float[Array, " hosts"]
    may_send: Bool[Array, " flows"]
    packet: Float[Array, ""]
    line: Float[Array, " hosts"]


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
    its share goes to the others. A NIC sends nothing before its first flow starts, see
    `sharing`, and no flow has sent all before the NIC can have sent that, see `_finish_times`.

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

    demand, begins = demand_at(rate), Begins(eventful, begin / dt, part)
    if latched:
        paced = Paced(rate, lambda wait: demand_at(rate / (1.0 + rate * wait)))
        sharing = take_turns(demand, paced, flows.src, nic.capacity, nic.line, level, begins)
    else:
        sharing = water_level(demand, flows.src, nic.capacity, level, begins)
    level, demand = sharing.level, sharing.demand
    share = look_up_one(level, flows.src) * part
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
    finished_at = _finish_times(size, rate, demand, begin, flows.src, sharing, nic, dt)
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


SLOW_US = 10.0
"""Spacing between packets from which on a flow counts as slow, µs."""


def meet_when_sent(flows: Flows, packet: Float[Array, ""]) -> Flows:
    """Let the packets of slow flows meet the queues when they are sent.

    A packet is marked as a whole, at one time, see `feedback.packets`. For slow flows that is when
    its first byte crosses. Its spacing follows, and what happens to the queues meanwhile is not for
    this packet to see. So senders at 100 Mb/s that recover from a burst together do not hear of
    each other for 84 µs.

    Args:
        flows: slots.
        packet: wire bytes of a packet.
    """
    slow = (flows.stage == life.SENDING) & (flows.spaced > 0) & (flows.pace * SLOW_US < packet)
    ahead = jnp.mod(flows.backlog.sum(0) + flows.spaced, packet)
    partial = packet - ahead
    # A packet is counted once: rounding is not to move one across its end.
    apart = jnp.abs(partial - flows.partial)
    slow &= jnp.minimum(apart, packet - apart) > 0.02 * packet
    return replace(flows, partial=jnp.where(slow, partial, flows.partial))


def _finish_times(
    size: Float[Array, " flows"],
    rate: Float[Array, " flows"],
    demand: Float[Array, " flows"],
    begin: Float[Array, " flows"],
    src: Int[Array, " flows"],
    sharing: Sharing,
    nic: Nic,
    dt: float,
) -> Float[Array, " flows"]:
    """When within the substep the flows that send their last byte do so, µs, `[F]`.

    Served round robin, a flow of `m` bytes has sent all when the NIC has sent it, as much of every
    flow that goes on at the level of the NIC, what slower flows demand meanwhile, and all of the
    flows that end in the same substep. That is exact for flows of one size that start together;
    otherwise the shorter ones end later, at most by what the NIC takes for the others that end.

    The first packet of a flow waits for half a packet or half a round of turns, not for a whole
    one: a spaced flow that ends alone does so sooner by that, see `sharing.Sharing.lead`.

    Args:
        size: bytes left of the flows that send their last byte, 0 for others, `[F]`.
        rate: rate that each sender allows, bytes/µs, `[F]`.
        demand: bytes/µs that each could send, `[F]`.
        begin: when each flow starts, µs, `[F]`.
        src: source host of each slot, `[F]`.
        sharing: how the NICs share their links.
        nic: limits of the NICs.
        dt: substep, µs.
    """
    capacity = nic.capacity
    ends = (size > 0).astype(size.dtype)
    columns = jnp.stack([size, ends * demand, ends], -1)
    ending, demanded, n_ending = segment_sum(columns, src, capacity.shape[0]).T
    slower = jnp.maximum(sharing.satisfied - demanded, 0.0)
    lead = jnp.zeros_like(capacity)
    if sharing.crowded is not None and sharing.lead is not None:
        slower, lead = slower * sharing.crowded, sharing.lead * nic.packet
    table = jnp.stack([ending, n_ending, sharing.n_limited, capacity, capacity - slower, lead], -1)
    ending, n_ending, n_limited, line, free, lead = look_up(table, src).T
    alone = size / jnp.maximum(jnp.minimum(rate, line), 1e-6)
    # Of each that ends, the NIC sends as much as of this flow at most.
    others = jnp.minimum(ending, n_ending * size)
    shared = (others + n_limited * size) / jnp.maximum(free, 1e-6)
    shared = shared - jnp.where(n_ending > 1, 0.0, lead)
    return jnp.minimum(begin + jnp.maximum(alone, shared), dt)
