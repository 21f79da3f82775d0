"""Where the last byte of a flow is, and when it leaves the network.

Queues are first in, first out: a last byte leaves its queue when the port has sent all that was
ahead of it. So it takes its place when it arrives, `ahead` bytes from the head, and moves up by
what the queue can send in every substep, whatever else arrives later. At the next level it takes a
place in the same way. Flows whose last bytes arrive at a queue within the same part of a substep
are taken to be ahead of each other: none leaves before the port can have sent the bytes of all.
So no set of flows is ever through a link before it can be (`capacity`).

Marks, queues and accounts are those of the fluid (`queues`), in which the bytes of a flow leave in
proportion to backlogs. `drained` keeps the two together.

For a flow on several ways each has a last byte, and the slowest counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.nic import Sent
from ecn_marl.sim.core.queues import PARTS, Burst, Standing
from ecn_marl.sim.core.slots import in_use, look_up, look_up_fields, segment_sum
from ecn_marl.sim.core.ways import per_way
from ecn_marl.sim.state import Flows

INSIDE_US = 1e9
"""`Flows.tail` while the last byte is in the network."""

UNSENT = -1
"""Level of a last byte that has not been sent."""


class LastByte(NamedTuple):
    """First and last bytes of all ways of all flows in a substep, leaves `[W F]`.

    Attributes:
        begin: when within the substep the flow starts, 0 if it did before, µs.
        level: level of queues where its last byte is: `UNSENT` before, and the number of levels
            beyond them.
        ahead: bytes that its queue has to send until it has left, itself included.
        moving: whether it arrives at `level` in this substep.
        at: when within the substep it arrives, µs.
        eventful: see `nic.Events`.
    """

    begin: Float[Array, " n"]
    level: Int[Array, " n"]
    ahead: Float[Array, " n"]
    moving: Bool[Array, " n"]
    at: Float[Array, " n"]
    eventful: Bool[Array, " n"]


def start(
    flows: Flows,
    sent: Sent,
    share: Float[Array, "ways flows"] | None,
) -> LastByte:
    """Where they are at the start of a substep, and those that NICs send in it.

    Args:
        flows: slots.
        sent: what the NICs did in the substep.
        share: share of each way in what flows send, `[W, F]`; None with one way.
    """
    n_ways = flows.level.shape[0]
    n_levels = flows.backlog.shape[0] // n_ways
    level = jnp.where(sent.events.flag & (flows.stage == life.SENDING), UNSENT, flows.level)
    finished = jnp.broadcast_to(sent.finished & sent.events.flag, level.shape)
    used = finished if share is None else finished & (share > 0)
    level = jnp.where(used, 0, jnp.where(finished, n_levels, level))
    return LastByte(
        begin=per_way(sent.events.begin, n_ways),
        level=level.reshape(-1),
        ahead=flows.ahead.reshape(-1),
        moving=used.reshape(-1),
        at=per_way(sent.finished_at, n_ways),
        eventful=per_way(sent.events.flag, n_ways),
    )


def drained(
    flows: Flows,
    due: Float[Array, "rows flows"],
    rate: Float[Array, "rows flows"],
    dt: float,
) -> Float[Array, "rows flows"]:
    """Bytes of each flow that are to leave each level per substep, `[L W, F]`.

    The fluid of a flow leaves evenly until its last byte does.

    Args:
        flows: slots.
        due: the same by `fifo.plan`, for other flows.
        rate: rates of the ports on each way, 0 for none, bytes/µs.
        dt: substep, µs.
    """
    n_ways = flows.level.shape[0]
    levels = jnp.arange(flows.backlog.shape[0] // n_ways)[:, None, None]
    draining = (flows.level == levels) & (flows.stage == life.DRAINING)
    part = jnp.minimum(rate * dt / jnp.maximum(jnp.tile(flows.ahead, (len(levels), 1)), 1.0), 1.0)
    return jnp.where(draining.reshape(due.shape), jnp.maximum(due, flows.backlog * part), due)


def burst(
    last: LastByte,
    i: int,
    entering: Float[Array, " n"],
    behind: Float[Array, " n"],
    hop: Int[Array, " n"],
    n: int,
    dt: float,
) -> Burst:
    """Bytes of flows that begin or end within the substep at the `n` queues of level `i`.

    Args:
        last: last bytes, after the levels before this one.
        i: number of the level.
        entering: bytes that arrive of each flow, `[W F]`.
        behind: bytes of each flow still at the levels before, `[W F]`.
        hop: queue of each flow there, `n` for none, `[W F]`.
        n: number of queues there.
        dt: substep, µs.
    """
    fresh = jnp.where(last.begin > 0, entering, 0.0)
    ends = last.moving & (last.level == i)
    end = jnp.where(ends, last.at, dt)
    rate = entering / jnp.maximum(end - last.begin, 1e-6)
    columns = [fresh, fresh * last.begin, jnp.where(last.level >= i, behind, 0.0)]
    columns += [
        jnp.clip(rate * (k * (dt / PARTS) - last.begin), 0.0, entering) for k in range(1, PARTS)
    ]
    columns = [in_use(x, last.eventful) for x in (*columns, entering)]
    fresh, moment, owed, *arrived = segment_sum(jnp.stack(columns, -1), hop, n).T
    part = _part(last, dt)
    within = jnp.maximum(end - jnp.maximum(last.begin, part * (dt / PARTS)), 0.0)
    ending = jnp.where(ends & last.eventful, jnp.minimum(rate * within, entering), 0.0)
    # The row of queues that stands for none is the last one.
    ending = segment_sum(ending, jnp.minimum(hop * PARTS + part, n * PARTS), n * PARTS)
    return Burst(fresh, moment, jnp.stack(arrived), ending.reshape(n, PARTS).T, owed)


def cross(
    last: LastByte,
    i: int,
    standing: Standing,
    entering: Float[Array, " n"],
    hop: Int[Array, " n"],
    dt: float,
) -> LastByte:
    """Let a level serve.

    Args:
        last: last bytes, after the levels before this one.
        i: number of the level.
        standing: values of its queues.
        entering: bytes that arrive of each flow, `[W F]`.
        hop: queue of each flow there, the number of queues for none, `[W F]`.
        dt: substep, µs.
    """
    n = standing.queued.shape[0]
    here = (last.level == i) & last.eventful
    arrives = here & last.moving
    table = _Queue(*standing[:-1])
    queue = look_up_fields(table, hop, {})
    rate = queue.service / dt
    slowness = 1.0 / jnp.maximum(rate, 1e-6)
    ahead = jnp.where(arrives, _ahead(last, queue, standing.burst, hop, dt), last.ahead)
    # The port was idle until flows started, but not longer than until this one did.
    since = jnp.where(arrives, jnp.minimum(queue.idle, last.begin), 0.0)
    leaves = since + ahead * slowness
    own = jnp.maximum(last.at, last.begin + entering * slowness)
    leaves = jnp.where(arrives, jnp.maximum(leaves, own) + queue.residual, leaves)
    leaves = jnp.where(hop < n, leaves, last.at)
    out = here & (leaves <= dt)
    # Paused queues send nothing: what is ahead stays.
    rest = jnp.where(queue.service > 0, (leaves - dt) * rate, ahead)
    return last._replace(
        level=jnp.where(out, i + 1, last.level),
        ahead=jnp.where(here, rest, last.ahead),
        moving=jnp.where(here, out, last.moving),
        at=jnp.where(out, leaves, last.at),
    )


class _Queue(NamedTuple):
    """Values of each flow's queue, `[W F]`; names as in `Standing`."""

    queued: Float[Array, " n"]
    evenly: Float[Array, " n"]
    idle: Float[Array, " n"]
    service: Float[Array, " n"]
    residual: Float[Array, " n"]


def _part(last: LastByte, dt: float) -> Int[Array, " n"]:
    """Part of the substep in which each last byte arrives, of `PARTS`, from 0, `[W F]`."""
    part = jnp.floor(jnp.where(last.eventful, last.at, 0.0) * (PARTS / dt))
    return jnp.clip(part, 0, PARTS - 1).astype(jnp.int32)


def _ahead(
    last: LastByte, queue: _Queue, burst: Burst, hop: Int[Array, " n"], dt: float
) -> Float[Array, " n"]:
    """Bytes ahead of each last byte that arrives within the substep, itself included, `[W F]`.

    Those queued at its start or owed to it, what has arrived of other flows, and, of flows that end
    in the same part of the substep, all that arrives in it.
    """
    before = jnp.concatenate([jnp.zeros_like(burst.arrived[:1]), burst.arrived[:-1]])
    table = jnp.stack([before.T, (burst.arrived - before).T, burst.ending.T], -1).reshape(-1, 3)
    part = _part(last, dt)
    row = jnp.minimum(hop * PARTS + part, table.shape[0])
    rows = look_up(jnp.concatenate([table, jnp.zeros_like(table[:1])]), row)
    arrived, arriving, ending = rows[..., 0], rows[..., 1], rows[..., 2]
    passed = jnp.clip(last.at * (PARTS / dt) - part, 0.0, 1.0)
    others = queue.evenly * (last.at / dt) + jnp.maximum(arriving - ending, 0.0) * passed
    return queue.queued + arrived + ending + others


def landed(flows: Flows, last: LastByte, dt: float, left_us: Float[Array, ""]) -> Flows:
    """Slots with their last bytes where they are at the end of a substep.

    The last byte of the slowest way counts. A message is complete once its older flowlets are.

    Args:
        flows: slots.
        last: last bytes, after all levels.
        dt: substep, µs.
        left_us: time from its end to that of the tick, µs.
    """
    shape = flows.level.shape
    n_levels = flows.backlog.shape[0] // shape[0]
    level, moving, at = (x.reshape(shape) for x in (last.level, last.moving, last.at))
    eventful = last.eventful.reshape(shape)[0]
    left = level == n_levels
    tail = jnp.where(moving & left, at, 0.0).max(0)
    if flows.flowlets is not None:
        tail = jnp.maximum(tail, flows.flowlets.behind)
    inside = ((level >= 0) & ~left).any(0)
    leaves = left.all(0) & (moving & left).any(0)
    tail = jnp.where(leaves, tail - dt - left_us, jnp.where(inside, INSIDE_US, flows.tail))
    return replace(
        flows,
        level=level,
        ahead=last.ahead.reshape(shape),
        tail=jnp.where(eventful, tail, flows.tail),
    )
