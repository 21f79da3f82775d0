"""Where the last byte of a flow is, and when it leaves the network.

Queues are first in, first out: a last byte leaves its queue when the port has sent all that was
ahead of it. So it takes its place when it arrives, `ahead` bytes from the head, and moves up by
what the queue can send in every substep, whatever else arrives later. At the next level it takes a
place in the same way. Flows whose last bytes arrive at a queue within the same substep are taken to
be ahead of each other: none leaves before the port can have sent the bytes of them all.

Marks, queues and accounts are those of the fluid (`queues`), in which the bytes of a flow leave in
proportion to backlogs. `due` keeps the two together: the fluid of a flow leaves evenly until its
last byte does.

For a flow on several ways each has a last byte, and the slowest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.nic import Sent
from ecn_marl.sim.queues import Fluid, Place
from ecn_marl.sim.state import Flows

UNSENT = -1
"""Level of a last byte that has not been sent."""


class LastByte(NamedTuple):
    """The last bytes of all ways of all flows in a substep, leaves `[W F]`.

    Attributes:
        level: level of queues where it is: `UNSENT` before, and the number of levels beyond them.
        ahead: bytes that its queue has to send until it has left, itself included.
        moving: whether it arrives at `level` in this substep.
        at: when within the substep it arrives, µs.
    """

    level: Int[Array, " n"]
    ahead: Float[Array, " n"]
    moving: Bool[Array, " n"]
    at: Float[Array, " n"]


def start(
    flows: Flows, sent: Sent, share: Float[Array, "ways flows"] | None, n_levels: int
) -> LastByte:
    """Where they are at the start of a substep, and those that NICs send in it.

    Args:
        flows: slots.
        sent: what the NICs did in the substep.
        share: share of each way in what flows send, `[W, F]`; None with one way.
        n_levels: number of levels.
    """
    level = jnp.where(flows.stage == life.SENDING, UNSENT, flows.level)
    finished = jnp.broadcast_to(sent.finished, level.shape)
    used = finished if share is None else finished & (share > 0)
    level = jnp.where(used, 0, jnp.where(finished, n_levels, level))
    at = jnp.broadcast_to(sent.finished_at, level.shape)
    return LastByte(*(x.reshape(-1) for x in (level, flows.ahead, used, at)))


def due(
    last: LastByte, i: int, due: Float[Array, " n"], backlog: Float[Array, " n"], capacity: Array
) -> Float[Array, " n"]:
    """Bytes of each flow that are to leave level `i` in a substep, `[W F]`.

    Args:
        last: last bytes.
        i: number of the level.
        due: the same by `queues.batches`.
        backlog: bytes of each flow there.
        capacity: bytes that the port of each flow can send in the substep.
    """
    waits = (last.level == i) & ~last.moving
    part = jnp.minimum(capacity / jnp.maximum(last.ahead, 1.0), 1.0)
    return jnp.where(waits, jnp.maximum(due, backlog * part), due)


def cross(
    last: LastByte,
    i: int,
    place: Place,
    fluid: Fluid,
    n: int,
    dt: float,
) -> LastByte:
    """Let a level serve, in the middle of a substep.

    Args:
        last: last bytes, after the levels before this one.
        i: number of the level.
        place: places of those that arrive there.
        fluid: the flows' bytes at the level in the substep.
        n: number of queues there.
        dt: substep, µs.
    """
    here = last.level == i
    arrives = here & last.moving
    ahead = jnp.where(arrives, place.ahead, last.ahead)
    rate = place.service / dt
    # The port was idle until flows started, but not longer than until this one did.
    slowness = 1.0 / jnp.maximum(rate, 1e-6)
    since = jnp.where(arrives, jnp.minimum(place.idle, fluid.begin), 0.0)
    leaves = since + ahead * slowness
    own = jnp.maximum(last.at, fluid.begin + fluid.ending * slowness)
    leaves = jnp.where(arrives, jnp.maximum(leaves, own) + place.residual, leaves)
    leaves = jnp.where(fluid.hop < n, leaves, last.at)
    out = here & (leaves <= dt)
    # Paused queues send nothing: what is ahead stays.
    rest = jnp.where(place.service > 0, (leaves - dt) * rate, ahead)
    return LastByte(
        level=jnp.where(out, i + 1, last.level),
        ahead=jnp.where(here, rest, last.ahead),
        moving=jnp.where(here, out, last.moving),
        at=jnp.where(out, leaves, last.at),
    )


def arrival(
    last: LastByte, n_levels: int, ways: int
) -> tuple[Bool[Array, " flows"], Bool[Array, " flows"], Float[Array, " flows"]]:
    """Which flows' last bytes leave the last level in a substep, which have left it, and when.

    Returns:
        Whether the slowest way leaves in the substep, `[F]`; whether all ways have left, `[F]`;
        when within the substep, µs, `[F]`.
    """
    left = last.level.reshape(ways, -1) == n_levels
    now = last.moving.reshape(ways, -1) & left
    at = jnp.where(now, last.at.reshape(ways, -1), 0.0).max(0)
    return now.any(0) & left.all(0), left.all(0), at
