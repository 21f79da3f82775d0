"""NICs of hosts: each serves its flows round robin and spaces their packets."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.sizes import CHUNK
from ecn_marl.sim.slots import look_up_one, segment_sum
from ecn_marl.sim.state import Flows

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


class Sent(NamedTuple):
    """Result of one substep of the NICs.

    Attributes:
        flows: slots with less left to send.
        give: bytes each flow sent into the network, `[F]`.
        finished: flows that sent their last byte, `[F]`.
        finished_at: when within the substep they did, µs, `[F]`.
        level: round-robin share of each NIC, bytes/µs, `[H]`.
    """

    flows: Flows
    give: Float[Array, " flows"]
    finished: Bool[Array, " flows"]
    finished_at: Float[Array, " flows"]
    level: Float[Array, " hosts"]


def send(
    flows: Flows,
    level: Float[Array, " hosts"],
    nic: Nic,
    rate: Float[Array, " flows"],
    room: Float[Array, " flows"] | None,
    dt: float,
    latched: bool,
) -> Sent:
    """Let every flow send, at most its rate, its window and its share of the NIC.

    NICs space packets by the rate at which each was sent: a sender at 100 Mb/s whose rate jumps up
    still sends its next packet at the old spacing, up to 84 µs later. With `latched` a new rate
    waits for the packet under way; in deep incasts this is what makes bursts of 64 senders as
    strong as they are.

    A flow that starts or ends within the substep demands only what it can send in it; the rest of
    its share goes to the others.

    Args:
        flows: slots.
        level: NIC levels of the last substep, bytes/µs, `[H]`.
        nic: limits of the NICs in this tick.
        rate: rate that each sender allows, bytes/µs, `[F]`.
        room: bytes that each window still allows, `[F]`; None without windows.
        dt: substep, µs.
        latched: whether a new rate waits for the packet under way.

    Returns:
        Bytes that each flow sent, and slots with the rest.
    """
    begin = jnp.clip(flows.start_in, 0.0, dt)
    active = (flows.stage == life.SENDING) & (flows.start_in < dt) & nic.may_send
    if latched:
        rate = jnp.where(flows.spaced > 0, flows.pace, rate)
    demand = jnp.minimum(rate * (1.0 - begin / dt), flows.rest_low / dt)
    if room is not None:
        demand = jnp.minimum(demand, jnp.maximum(room, 0.0) / dt)
    demand = jnp.where(active, demand, 0.0)
    level = water_level(demand, flows.src, nic.capacity, level)
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
    # A flow without a share would get 0 / 0.
    pace = jnp.maximum(jnp.minimum(rate, share), 1e-6)
    finished_at = jnp.minimum(begin + flows.rest_low / pace, dt)
    if latched:
        spacing = flows.spaced + jnp.where(flows.spaced > 0, 0.0, nic.packet) - give
        spacing = jnp.where(give >= nic.packet, 0.0, spacing)
        flows = replace(flows, pace=rate, spaced=jnp.where(give > 0, spacing, flows.spaced))
    flows = replace(
        flows,
        rest_low=rest,
        rest_high=flows.rest_high - borrow,
    )
    return Sent(flows, give, finished, finished_at, level)


def water_level(
    demand: Float[Array, " flows"],
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
    start: Float[Array, " hosts"],
) -> Float[Array, " hosts"]:
    """Round-robin (max-min) share of each host's NIC.

    The level `l` solves `sum_f min(demand_f, l) = capacity`; if the demands fit, none is limited.
    The left side is concave in `l`, so a Newton step from anywhere with a positive slope lands at
    or below the root: two steps from the last substep's level never overbook the NIC, and reach the
    root exactly once the set of limited flows has settled.

    Args:
        demand: bytes/µs each flow could send, 0 for idle slots, `[F]`.
        src: source host of each slot, `[F]`.
        capacity: bytes/µs each host may send, `[H]`.
        start: a level to start from, e.g. that of the last substep, `[H]`.

    Returns:
        The level, `[H]`; the capacity where all demands fit.
    """
    n = capacity.shape[0]
    level = start
    for _ in range(2):
        share = look_up_one(level, src)
        limited = (demand >= share) & (demand > 0)
        satisfied = segment_sum(jnp.where(limited, 0.0, demand), src, n)
        n_limited = segment_sum(limited.astype(demand.dtype), src, n)
        # At a level far too high, flows below it may demand more than the capacity: restart at 0.
        settled = jnp.where(satisfied <= capacity, capacity, 0.0)
        level = jnp.where(
            n_limited > 0, (capacity - satisfied) / jnp.maximum(n_limited, 1.0), settled
        )
        level = jnp.maximum(level, 0.0)
    return level
