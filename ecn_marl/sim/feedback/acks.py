"""Acknowledgements: counts at the receiver, and the counts that the sender knows."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import packets as pk
from ecn_marl.sim.feedback.signals import FINE, Line, Observed, write

MOST = 2.0**22
"""Most bytes that a flow can lose at once: a count has to stay far from 2^31 of what is known."""


@struct.dataclass
class Acks:
    """Counts of packets, of marked packets in 1/256, and of lost bytes in 1/256, modulo 2^32.

    Attributes:
        arrived: at the receiver so far, `[3, F]`.
        known: the same, as far as the sender knows, `[3, F]`.
        log: history of `arrived`, `[D, 3, F]`.
    """

    arrived: Leaf
    known: Leaf
    log: Leaf


def init(slots: int, depth: int) -> Acks:
    """Nothing arrived."""
    zeros = jnp.zeros((3, slots), jnp.int32)
    return Acks(arrived=zeros, known=zeros, log=jnp.zeros((depth, 3, slots), jnp.int32))


def restart(acks: Acks, new: Bool[Array, " flows"]) -> Acks:
    """Mark counts of the former flow of the slots `new` as known; counts run on."""
    return replace(acks, known=jnp.where(new, acks.arrived, acks.known))


def step(
    acks: Acks,
    out: pk.Outstanding,
    begun: Float[Array, " flows"],
    arrivals: pk.Arrived,
    observed: Observed,
    line: Line,
    step: Int[Array, ""],
    dt: float,
) -> tuple[Acks, pk.Outstanding, Float[Array, "3 flows"]]:
    """Count packets at the receiver, and read the counts in the ACKs that arrive now.

    When a delay grows, ACKs come late; when it shrinks, they overtake others: a count never falls.
    A loss shows when the packet behind the lost one, which waits in the queues first, is
    acknowledged.

    Rows of the history are not renewed for free slots. No count falls, so an old row adds nothing
    for the next flow of the slot.

    Args:
        acks: counts.
        out: packets on the way.
        begun: packets that begin in this substep, `[F]`.
        arrivals: packets that arrive in it.
        observed: what the queues did.
        line: delays.
        step: substep (integer clock).
        dt: substep, µs.

    Returns:
        Counts, packets on the way, and news for the sender: packets, marked packets and lost bytes,
        `[3, F]`.
    """
    marks = pk.marked(arrivals, observed)
    dropped = jnp.round(observed.dropped * FINE)
    arrived = acks.arrived + jnp.stack([arrivals.packets, marks, dropped]).astype(jnp.int32)
    log = write(acks.log, arrived, step, observed.busy)
    depth, flow = log.shape[0], jnp.arange(arrived.shape[1])
    later = jnp.minimum(line.delay + jnp.round(observed.wait / dt).astype(jnp.int32), depth - 1)
    delay = jnp.stack([line.delay, line.delay, later])
    acknowledged = log[(step - delay) % depth, jnp.arange(3)[:, None], flow]
    # int32 differences are right across a wrap, while less than 2^31 apart.
    increments = jnp.maximum(acknowledged - acks.known, 0)
    packets, marked, lost = increments.astype(observed.give.dtype)
    learned = jnp.stack([packets, marked / FINE, lost / FINE])
    # Below 0 by part of a packet where lost bytes were not whole packets.
    unacked = out.unacked + begun - packets - learned[2] / line.packet
    acks = Acks(arrived=arrived, known=acks.known + increments, log=log)
    return acks, replace(out, unacked=unacked), learned


def unheard_losses(acks: Acks) -> Bool[Array, " flows"]:
    """Flows that have lost bytes of which their senders do not know yet, `[F]`."""
    return jnp.asarray(acks.arrived[2] != acks.known[2])


def lose(acks: Acks, lost: Float[Array, " flows"]) -> Acks:
    """Count bytes as lost that no queue dropped, `[F]`; of each flow `MOST` at most."""
    increments = jnp.round(jnp.minimum(lost, MOST) * FINE).astype(jnp.int32)
    return replace(acks, arrived=acks.arrived.at[2].add(increments))
