"""Whole packets out of a fluid: which are on the way, which arrive, which of them are marked."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback.signals import FINE, Line, Observed
from ecn_marl.sim.random import to_unit, xorshift
from ecn_marl.sim.state import Flows
from ecn_marl.sim.traffic.sizes import PAYLOAD


@struct.dataclass
class Outstanding:
    """Packets on the way, as their senders count them.

    Attributes:
        unacked: packets sent (or begun), not acknowledged and not known to be lost, `[F]`; None
            without acknowledgements.
        filled: bytes sent of the packet in progress, a full packet if there is none, `[F]`.
    """

    unacked: Leaf
    filled: Leaf


def init(slots: int, acks: bool, real: DTypeLike) -> Outstanding:
    """Nothing on the way."""
    zero = jnp.zeros((slots,), real)
    return Outstanding(unacked=zero if acks else None, filled=zero)


def restart(out: Outstanding, new: Bool[Array, " flows"], packet: Float[Array, ""]) -> Outstanding:
    """Forget the former flow of the slots `new`."""
    out = replace(out, filled=jnp.where(new, packet, out.filled))
    if out.unacked is not None:
        out = replace(out, unacked=jnp.where(new, 0.0, out.unacked))
    return out


class Begun(NamedTuple):
    """Packets that begin in a substep: how many, and the bytes sent before the first, `[F]`."""

    packets: Float[Array, " flows"]
    after: Float[Array, " flows"]


def begin(
    out: Outstanding, give: Float[Array, " flows"], packet: Float[Array, ""]
) -> tuple[Outstanding, Begun]:
    """Count the packets whose first byte is among the bytes `give` that each flow sends."""
    after = packet - out.filled
    packets, filled = _begun(out.filled, give, packet)
    return replace(out, filled=filled), Begun(packets, after)


def room(out: Outstanding, window: Float[Array, " flows"], packet: Float[Array, ""]) -> Array:
    """Wire bytes each flow may still send under its window (payload bytes), `[F]`.

    A packet may begin while less than the window is on the way; once begun, it is sent whole.
    """
    # Tolerances of 1e-3 packets, here and below: rounding must not begin or complete one.
    packets = jnp.maximum(jnp.ceil(window / PAYLOAD - 1e-3), 1.0)
    return jnp.maximum(packets - out.unacked, 0.0) * packet + (packet - out.filled)


class Arrived(NamedTuple):
    """Packets delivered in a substep, and their marks.

    Attributes:
        packets: whole packets, `[F]`.
        hit: whether any of them is marked, `[F]`.
        clear: chance that none is, before the coin was tossed, `[F]`.
    """

    packets: Float[Array, " flows"]
    hit: Bool[Array, " flows"]
    clear: Float[Array, " flows"]


def arrive(flows: Flows, observed: Observed, line: Line, acks: bool) -> tuple[Flows, Arrived]:
    """Packets delivered in this substep, and whether any of them is marked.

    With acknowledgements a packet counts with its first byte, and every packet once; otherwise,
    from a random phase on, when it is complete.

    Marks fall on whole packets: a flow at 1 % of the line rate has a packet to mark only every so
    many substeps, however full the queue is. A flow has no marks before its first byte has
    crossed the queues that it met.

    Args:
        flows: slots.
        observed: what the queues did.
        line: delays.
        acks: whether senders need acknowledgements.
    """
    if acks:
        packets, partial = _begun(flows.partial, observed.out, line.packet)
    else:
        total = flows.partial + observed.out
        packets = jnp.floor(total / line.packet + 1e-3)
        partial = total - packets * line.packet
    coin = xorshift(flows.coin)
    clear = jnp.exp(-packets * observed.log_survival)
    hit = (to_unit(coin) > clear) & (flows.gate <= 0)
    return replace(flows, partial=partial, coin=coin), Arrived(packets, hit, clear)


def marked(arrivals: Arrived, observed: Observed) -> Array:
    """Expected number of marked packets, in 1/256, given whether any is marked, `[F]`."""
    # Without a packet, or without marking, this would be 0 / 0.
    share = (1.0 - jnp.exp(-observed.log_survival)) / (1.0 - arrivals.clear + 1e-9)
    # Expected marks given that there is one: a binomial mean over the chance of any.
    marks = jnp.where(arrivals.hit, arrivals.packets * share, 0.0)
    return jnp.clip(jnp.round(marks * FINE), 0, arrivals.packets * FINE)


def _begun(filled: Array, added: Array, packet: Array) -> tuple[Array, Array]:
    """Packets whose first byte is among `added` bytes, and the bytes since the last one's start."""
    total = filled + added
    begun = jnp.maximum(jnp.ceil(total / packet - (1.0 + 1e-3)), 0.0)
    return begun, total - begun * packet
