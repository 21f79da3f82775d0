"""Where the last byte of a flow is, and how long it has yet to wait.

When it is sent, its wait follows from the queues on its way as they are then (`sink`). Later queues
may grow before it reaches them: all flows of a burst fill the queue of one receiver, but reach it
one queue after the other. So the wait is computed again in every substep, from the queues that are
still ahead of it.

For a flow on several ways the slowest way counts, at each level. With several traffic classes the
wait stays as computed when the last byte was sent. With one level no queue lies beyond the first.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.queues import Served
from ecn_marl.sim.state import Flows
from ecn_marl.sim.ways import slowest


class LastByte(NamedTuple):
    """The last bytes that are in the network, leaves `[F]`; meaningless for other flows.

    Attributes:
        level: level of queues where it is.
        head: time until it leaves that level, µs.
        tail: time until it leaves the last one, µs.
        slowness: time that a byte takes at its level, µs; 0 if the flow has no queue there.
        shut: whether its queue at each level is paused, `[L, F]`.
    """

    level: Int[Array, " flows"]
    head: Float[Array, " flows"]
    tail: Float[Array, " flows"]
    slowness: Float[Array, " flows"]
    shut: Bool[Array, "levels flows"]


def at_end(flows: Flows, shut: Bool[Array, "levels flows"], dt: float) -> LastByte | None:
    """Where they are at the end of a substep, before `at_level` adds the queues ahead."""
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
    """Add the wait of a level.

    A last byte leaves a level at the time fixed when it arrived there, since queues are first in,
    first out. It reaches the next level within the substep, and waits for what is queued there
    then. At levels further on it waits for what is queued there now, after the bytes that its own
    flow has yet to bring there. These are at most what can leave its level before it does, though
    queues served in proportion to backlogs may hold more of them.

    Args:
        last: where it is, after the levels before this one.
        i: number of the level.
        served: result of the level in the substep.
        behind: bytes of the flow at the levels before, of each way, `[W F]`.
        share: share of each way in what flows send; None with one way.
        dt: substep, µs.
    """
    if last is None or served.ahead is None:
        return last
    slowness = slowest(served.slowness, share)
    if i == 0:
        return last._replace(slowness=jnp.where(last.level == 0, slowness, 0.0))
    wait, wait_before, own_wait = (
        slowest(x, share) for x in (served.wait, served.ahead, behind * served.slowness)
    )
    # A flow without a queue at its level has a slowness of 0; its quotient is not used below.
    limit = jnp.maximum(last.head, 0.0) * slowness / jnp.maximum(last.slowness, 1e-9)
    own_wait = jnp.where(last.slowness > 0.0, jnp.minimum(own_wait, limit), own_wait)
    arrives = (last.head <= 0.0) & (last.level == i - 1) & ~last.shut[i - 1]
    # A byte sent in the last substep may have arrived in that one.
    since = jnp.minimum(-last.head / dt, 2.0)
    queued = jnp.maximum(wait + (wait_before - wait) * since, 0.0)
    head = jnp.where(arrives, last.head + queued, last.head)
    level = jnp.where(arrives, i, last.level)
    further = jnp.maximum(last.tail, own_wait) + wait
    tail = jnp.where(level < i, further, jnp.where(arrives, head, last.tail))
    slowness = jnp.where(level == i, slowness, last.slowness)
    return LastByte(level, head, tail, slowness, last.shut)
