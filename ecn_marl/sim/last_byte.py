"""Where the last byte of a flow is, and how long it has yet to wait.

When it is sent, it is told the queues on its way as they are (`sink`). Those further on may grow
before it comes to them: all flows of a burst fill the queue of one receiver, but reach it one queue
after the other. So the wait is told anew in every substep, from the queues still ahead of it.

Only where flows have one way, of several levels, and ports one class of traffic. Elsewhere a last
byte waits as it was told when it was sent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ecn_marl.sim.queues import Served
from ecn_marl.sim.state import Flows


class LastByte(NamedTuple):
    """The last bytes that are in the network, leaves `[F]`; of other flows they mean nothing.

    Attributes:
        level: level of queues where it is.
        head: time until it leaves that level, µs.
        tail: time until it leaves the last one, µs.
    """

    level: Int[Array, " flows"]
    head: Float[Array, " flows"]
    tail: Float[Array, " flows"]


def at_end(flows: Flows, dt: float) -> LastByte | None:
    """Where they are at the end of a substep, before the queues ahead are asked."""
    if flows.level is None:
        return None
    head = flows.tail - flows.beyond - dt
    return LastByte(flows.level, head, head)


def at_level(
    last: LastByte | None, i: int, served: Served, behind: Float[Array, " flows"], dt: float
) -> LastByte | None:
    """What a level adds.

    A last byte leaves a level as it was told when it came there, for queues are first in, first
    out. It comes to the next one within the substep, and waits for what is queued there then. Still
    further on it is told what is queued now. To both is added what of its own flow is further back,
    which queues that are shared in proportion to backlogs let pass too late.

    Args:
        last: where it is, as far as the levels before know.
        i: number of the level.
        served: what the level did in the substep.
        behind: bytes of the flow at the levels before.
        dt: substep, µs.
    """
    if last is None or i == 0 or served.ahead is None:
        return last
    late = behind * served.slowness
    comes = (last.head <= 0.0) & (last.level == i - 1)
    since = jnp.minimum(-last.head / dt, 1.0)
    met = served.wait + (served.ahead - served.wait) * since + late
    head = jnp.where(comes, last.head + met, last.head)
    level = jnp.where(comes, i, last.level)
    further = jnp.maximum(last.tail, late) + served.wait
    return LastByte(level, head, jnp.where(level < i, further, jnp.where(comes, head, last.tail)))
