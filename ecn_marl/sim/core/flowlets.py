"""Flowlets: a flow may change its path after a pause, `SimConfig.load_balancing = "flowlet"`.

A switch that has not seen a packet of a flow for `flowlet_gap_us` takes the next one for the first
of a new flowlet (Alizadeh et al., CONGA, SIGCOMM'14, §3.4) and draws one of its equal-cost paths at
random (Vanini et al., LetFlow, NSDI'17, §3). There is such a pause where a window is full, where
PFC stops a NIC, and between any two packets of a sender below a packet per gap.

Bytes of older flowlets stay in the queues of their path and drain from there. A flow has bytes on
two paths at most: one that draws a third keeps its path until the older of the two has drained,
which is counted. Paths are drawn once per tick, ahead of the packet that they are for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from ecn_marl._types import Leaf
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.paths import as_offer, find_paths, queue_numbers
from ecn_marl.sim.random import Stream, hash_bits
from ecn_marl.sim.state import Flows, NetParams

WAYS = 2
"""Paths that a flow may have bytes on: that of new bytes, and that of the flowlet before."""

EMPTY = 0.5
"""Bytes on a path below which it has drained; what is left moves to the new path."""


@struct.dataclass
class Flowlets:
    """Flowlet state of each flow, leaves `[F]`.

    Attributes:
        since: µs since the last packet was sent; negative once a path is drawn for the next one.
        part: bytes sent of the packet under way.
        through: µs until the last byte sent has crossed the queues of its path.
        behind: the same for the last byte of the flowlets before this one.
        draw: the random number of this flowlet, uint32.
    """

    since: Leaf
    part: Leaf
    through: Leaf
    behind: Leaf
    draw: Leaf


def empty(slots: int, real: DTypeLike) -> Flowlets:
    """No packet sent."""
    zero = jnp.zeros((slots,), real)
    return Flowlets(zero, zero, zero, zero, jnp.zeros((slots,), jnp.uint32))


def restart(flowlets: Flowlets, new: Bool[Array, " flows"], coin: Array) -> Flowlets:
    """Forget the former flow of the slots `new`; `coin` is the first draw of the new flows."""
    fresh = replace(empty(new.shape[0], flowlets.since.dtype), draw=coin)
    return jax.tree.map(lambda initial, old: jnp.where(new, initial, old), fresh, flowlets)


def advance(
    flowlets: Flowlets,
    give: Float[Array, " flows"],
    wait: Float[Array, " flows"],
    packet: Float[Array, ""],
    dt: float,
) -> Flowlets:
    """Let a substep pass.

    Args:
        flowlets: flowlets.
        give: bytes each flow sent, `[F]`.
        wait: queueing delay on the path of new bytes, µs, `[F]`.
        packet: wire bytes of a packet.
        dt: substep, µs.
    """
    part = flowlets.part + give
    over = part >= packet
    since = jnp.where(flowlets.since < 0, flowlets.since, flowlets.since + dt)
    return replace(
        flowlets,
        since=jnp.where(over, 0.0, since),
        part=jnp.where(over, part - packet * jnp.floor(part / packet), part),
        through=jnp.where(give > 0, wait, jnp.maximum(flowlets.through - dt, 0.0)),
        behind=jnp.maximum(flowlets.behind - dt, 0.0),
    )


class Redrawn(NamedTuple):
    """Result of `redraw`: slots, which drew a path, which have to wait for one, `[F]`."""

    flows: Flows
    drawn: Bool[Array, " flows"]
    waiting: Bool[Array, " flows"]


def redraw(
    flows: Flows,
    used: Bool[Array, " flows"],
    net: NetParams,
    seed: Array,
    gap_us: float,
    bounds: tuple[int, ...],
    classes: int,
    up: Bool[Array, " ports"] | None = None,
) -> Redrawn:
    """Draw a path, there and back, for every flow whose next packet begins a flowlet.

    Args:
        flows: slots.
        used: those in use whose flows did not begin just now, `[F]`.
        net: the network.
        seed: uint32 of the episode.
        gap_us: pause that ends a flowlet, µs.
        bounds: first queue of each level, and one past the last.
        classes: queues per port.
        up: which ports' links work, None for all.
    """
    flowlets: Flowlets = flows.flowlets
    expired = used & (flowlets.since > gap_us) & (flows.stage == life.SENDING)
    new_empty, old_empty = (_way(flows.backlog, k).sum(0) < EMPTY for k in range(WAYS))
    # Each draw is the counter of the next one, so flowlets need not be counted.
    bits = hash_bits(seed, flowlets.draw, Stream.FLOWLET)
    paths = find_paths(net, as_offer(flows), bits, up)
    hop, back = queue_numbers(paths, flows.kind, bounds, classes, WAYS)
    first = _way(hop, 0)
    same, other = ((_way(flows.hop, k) == first).all(0) for k in range(WAYS))
    drawn = expired & (same | other | new_empty | old_empty)
    turn = drawn & ~same
    swap = turn & other
    push = turn & ~other & ~new_empty  # the path so far has bytes: it becomes the old one

    # In the backlog, `fresh` is what is left on the older path: less than `EMPTY` bytes.
    def moved(rows: Array, fresh: Array | float) -> Array:
        current, older = _way(rows, 0), _way(rows, 1)
        new = jnp.where(swap, older, jnp.where(push, fresh, current))
        return jnp.stack([new, jnp.where(swap | push, current, older)], 1).reshape(rows.shape)

    ways = moved(flows.hop, first)
    ways = jnp.stack([jnp.where(turn, first, _way(ways, 0)), _way(ways, 1)], 1)
    flowlets = replace(
        flowlets,
        since=jnp.where(drawn, -1.0, flowlets.since),
        behind=jnp.where(
            turn & ~new_empty, jnp.maximum(flowlets.behind, flowlets.through), flowlets.behind
        ),
        draw=jnp.where(drawn, bits, flowlets.draw),
    )
    flows = replace(
        flows,
        hop=ways.reshape(flows.hop.shape),
        back=jnp.where(drawn, back, flows.back),
        rtt=jnp.where(drawn, paths.rtt, flows.rtt),
        after=jnp.where(drawn, paths.after, flows.after),
        wait=jnp.where(turn, 0.0, flows.wait),
        backlog=moved(flows.backlog, _way(flows.backlog, 1)),
        due=moved(flows.due, 0.0),
        waiting=tuple(moved(x, 0.0) for x in flows.waiting),
        flowlets=flowlets,
    )
    return Redrawn(flows, drawn, expired & ~drawn)


def _way(rows: Array, k: int) -> Array:
    """Rows of one of the ways, `[L, F]`."""
    return rows[k::WAYS]


__all__ = ["EMPTY", "WAYS", "Flowlets", "Redrawn", "advance", "empty", "redraw", "restart"]
