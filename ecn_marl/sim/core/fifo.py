"""First in, first out: in long queues, bytes leave batch by batch, in the order in which they came.

A queue is a fluid: it knows how much of every flow is in it, not in which order. Service in
proportion to backlog alone would let the bytes of a flow that has just sped up, and their marks,
overtake the bytes ahead of them: senders would notice deep queues one queueing delay too early. So
what arrives at a queue is cut into batches. All flows of a queue share their times. Of one batch,
all flows leave evenly until its last byte does; the next one leaves after that.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.core.slots import look_up

WAITING = 2
"""Batches between the one that leaves and the one that arrives. Each is a part of the waiting time;
with more of them a byte leaves closer to its turn, and a tick takes longer."""

DEEP_TICKS = 2.0
"""Shorter queues, in ticks of waiting, are served in proportion to backlog."""


@struct.dataclass
class Batches:
    """Times of the batches of every queue, µs.

    Attributes:
        left: until the batch that leaves has left, `[Q]`.
        spans: what each waiting one takes then, the next one first, 0 for none, `[Q]` each.
    """

    left: Leaf
    spans: tuple[Leaf, ...]


class Plan(NamedTuple):
    """What leaves next; see `Flows.due` and `Flows.waiting`."""

    batches: Batches
    due: Float[Array, "rows flows"]
    waiting: tuple[Float[Array, "rows flows"], ...]


class _Step(NamedTuple):
    """What a tick changes at every queue, `[Q]` each.

    Attributes:
        over: 1 if a batch has left, and the next one follows.
        all: 1 if none waits, so that all that is queued follows.
        close: 1, 2, ... if what has arrived becomes the first, second, ... waiting batch; else 0.
        deep: 1 where batches are kept.
        rest: substeps until the old batch has left.
        part: part of the new batch that leaves per substep.
    """

    over: Array
    all: Array
    close: Array
    deep: Array
    rest: Array
    part: Array


def empty(queues: int, real: DTypeLike) -> Batches:
    """No batches."""
    zero = jnp.zeros((queues,), real)
    return Batches(zero, (zero,) * WAITING)


def plan(
    batches: Batches,
    backlog: Float[Array, "rows flows"],
    due: Float[Array, "rows flows"],
    waiting: tuple[Float[Array, "rows flows"], ...],
    queues: Int[Array, "rows flows"],
    wait: Float[Array, " queues"],
    is_open: Bool[Array, " queues"],
    tick_us: float,
    dt: float,
) -> Plan:
    """Plan the service of a tick.

    Args:
        batches: their times.
        backlog: bytes of every flow at each level, `[L W, F]`.
        due: bytes of its present batch that leave per substep, `[L W, F]`.
        waiting: bytes of its waiting batches, `[L W, F]` each.
        queues: queue of every flow at each level, `Q` for none, `[L W, F]`.
        wait: waiting time of each queue, µs, `[Q]`.
        is_open: queues that are not paused, `[Q]`.
        tick_us: time since the last call, µs.
        dt: substep, µs.
    """
    batches, step = _advance(batches, wait, is_open, tick_us, dt)
    table = jnp.stack(step, -1)
    none = jnp.zeros((1, table.shape[1]), table.dtype)
    at = _Step(*jnp.moveaxis(look_up(jnp.concatenate([table, none]), queues), -1, 0))
    over, deep = at.over > 0, at.deep > 0
    rest = jnp.minimum(due * at.rest, backlog)
    arrived = jnp.maximum(backlog - rest - sum(waiting), 0.0)
    following = jnp.where(at.all > 0, backlog, rest + waiting[0])
    due = jnp.where(over, following * at.part, due)
    shifted = (*waiting[1:], jnp.zeros_like(backlog))
    waiting = tuple(
        jnp.where(deep, jnp.where(at.close == i + 1, arrived, jnp.where(over, later, now)), 0.0)
        for i, (now, later) in enumerate(zip(waiting, shifted, strict=True))
    )
    return Plan(batches, jnp.where(deep, due, 0.0), waiting)


def _advance(
    batches: Batches, wait: Array, is_open: Array, tick_us: float, dt: float
) -> tuple[Batches, _Step]:
    """Times of the batches after a tick."""
    left = jnp.where(is_open, batches.left - tick_us, batches.left)
    deep = wait >= DEEP_TICKS * tick_us
    # Half a tick: a batch ends at the tick that is nearest to its end.
    over = left < 0.5 * tick_us
    none_waits = over & (batches.spans[0] <= 0)
    rest = jnp.maximum(left, 0.0) / dt
    later = (*batches.spans[1:], jnp.zeros_like(left))
    spans = [jnp.where(over, b, a) for a, b in zip(batches.spans, later, strict=True)]
    left = jnp.where(none_waits, wait, jnp.where(over, left + batches.spans[0], left))
    arrived = jnp.maximum(wait - left - sum(spans), 0.0)
    ready = ~none_waits & (arrived >= jnp.maximum(wait / (WAITING + 1), tick_us))
    close = jnp.zeros_like(left)
    for i, span in enumerate(spans):
        here = ready & (span <= 0) & (close == 0)
        close = jnp.where(here, i + 1.0, close)
        spans[i] = jnp.where(here, arrived, span)
    step = _Step(
        over=over.astype(wait.dtype),
        all=none_waits.astype(wait.dtype),
        close=close,
        deep=deep.astype(wait.dtype),
        rest=rest,
        # The bound only keeps the quotient finite.
        part=dt / jnp.maximum(left, 0.5 * tick_us),
    )
    left = jnp.where(deep, left, 0.0)
    return Batches(left, tuple(jnp.where(deep, span, 0.0) for span in spans)), step
