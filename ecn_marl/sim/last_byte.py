"""Where the last byte of a flow is, and how long it has yet to wait.

When it is sent, it is told the queues on its way as they are (`sink`). Those further on may grow
before it comes to them: all flows of a burst fill the queue of one receiver, but reach it one queue
after the other. So the wait is told anew in every substep, from the queues still ahead of it.

Of a flow on several ways it is the slowest way that counts, level by level. Where ports have
several classes of traffic a last byte waits as it was told when it was sent; where there is one
level there is nothing to foresee.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.queues import Served
from ecn_marl.sim.state import Flows
from ecn_marl.sim.ways import slowest


class LastByte(NamedTuple):
    """The last bytes that are in the network, leaves `[F]`; of other flows they mean nothing.

    Attributes:
        level: level of queues where it is.
        head: time until it leaves that level, µs.
        tail: time until it leaves the last one, µs.
        slowness: time that a byte takes at its level, µs; 0 where the flow passes that by.
        shut: whether its queue at each level is paused, `[L, F]`.
    """

    level: Int[Array, " flows"]
    head: Float[Array, " flows"]
    tail: Float[Array, " flows"]
    slowness: Float[Array, " flows"]
    shut: Bool[Array, "levels flows"]


def at_end(flows: Flows, shut: Bool[Array, "levels flows"], dt: float) -> LastByte | None:
    """Where they are at the end of a substep, before the queues ahead are asked."""
    if flows.level is None:
        return None
    head = flows.tail - flows.beyond - dt
    return LastByte(flows.level, head, head, jnp.zeros_like(head), shut)


def at_level(
    last: LastByte | None,
    i: int,
    served: Served,
    behind: Float[Array, " n"],
    share: Float[Array, "ways flows"] | None,
    dt: float,
) -> LastByte | None:
    """What a level adds.

    A last byte leaves a level as it was told when it came there, for queues are first in, first
    out. It comes to the next one within the substep, and waits for what is queued there then. Still
    further on it is told what is queued now, after what its own flow has yet to bring there: that
    is no more than can leave its level before it does, though queues that are shared in proportion
    to backlogs may hold more of it.

    Args:
        last: where it is, as far as the levels before know.
        i: number of the level.
        served: what the level did in the substep.
        behind: bytes of the flow at the levels before, of each way, `[W F]`.
        share: share of each way in what flows send; None with one way.
        dt: substep, µs.
    """
    if last is None or served.ahead is None:
        return last
    slowness = slowest(served.slowness, share)
    if i == 0:
        return last._replace(slowness=jnp.where(last.level == 0, slowness, 0.0))
    wait, before, late = (
        slowest(x, share) for x in (served.wait, served.ahead, behind * served.slowness)
    )
    most = jnp.maximum(last.head, 0.0) * slowness / jnp.maximum(last.slowness, 1e-9)
    late = jnp.where(last.slowness > 0.0, jnp.minimum(late, most), late)
    comes = (last.head <= 0.0) & (last.level == i - 1) & ~last.shut[i - 1]
    # One that was sent in the last substep may have come in that.
    since = jnp.minimum(-last.head / dt, 2.0)
    met = jnp.maximum(wait + (before - wait) * since, 0.0)
    head = jnp.where(comes, last.head + met, last.head)
    level = jnp.where(comes, i, last.level)
    further = jnp.maximum(last.tail, late) + wait
    tail = jnp.where(level < i, further, jnp.where(comes, head, last.tail))
    slowness = jnp.where(level == i, slowness, last.slowness)
    return LastByte(level, head, tail, slowness, last.shut)
