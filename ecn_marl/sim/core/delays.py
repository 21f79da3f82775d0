"""Slowdown of flows: as it accrues in each tick, and the total of an episode.

Little's law: the sum of all slowdowns is the integral, over time, of the sum of 1 / ideal FCT over
the flows in the system. So every tick has a cost of its own, and the costs of an episode's ticks
add up to the slowdowns of its flows. Unfinished flows count with their age.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core import ways
from ecn_marl.sim.core.slots import in_use, look_up_one, segment_sum
from ecn_marl.sim.state import Flows, NetParams, SimParams, SimState
from ecn_marl.sim.traffic.sizes import (
    CHUNK,
    HEADER,
    SLOWDOWN_UNIT,
    counter_value,
    exact_add,
    size_class,
    wire_bytes,
)


class Queues(NamedTuple):
    """What is read of a state: see there.

    Attributes:
        step: substeps since the start.
        queue: backlog of each queue, bytes, `[Q]`.
        pace: rate at which each queue is served, bytes/µs, `[Q]`; None with a single class.
    """

    step: Leaf
    queue: Leaf
    pace: Leaf


def residence(
    cfg: SimConfig, step: Int[Array, ""], before: Flows, after: Flows
) -> Float[Array, " flows"]:
    """Time that each flow was in the system since the last tick, µs, `[F]`.

    A flow is in the system from its arrival until its last ACK is back. One that waited for a slot
    accrues all its waiting in the tick that admits it.

    Args:
        cfg: shapes and clocks.
        step: substeps at the end of the tick.
        before: slots at the end of the tick, before completion.
        after: the same slots after `lifecycle.finish`.
    """
    inside = (before.stage != life.FREE) & (before.stage != life.DONE)
    new = before.start_step == step - cfg.tick_steps
    done = inside & (after.stage == life.DONE)
    time = cfg.tick_us - jnp.where(new, before.start_rest, 0.0) + jnp.where(done, after.tail, 0.0)
    return jnp.where(inside, time, 0.0)


def age(cfg: SimConfig, step: Int[Array, ""], flows: Flows) -> Float[Array, " flows"]:
    """Time since each flow began, µs, `[F]`.

    Args:
        cfg: shapes and clocks.
        step: substeps since the start.
        flows: slots.
    """
    # Subtracted as integers: float32 clocks would lose microseconds in long episodes.
    substeps = (step - flows.start_step).astype(flows.tail.dtype)
    return substeps * cfg.dt_us - flows.start_rest


def progress(
    cfg: SimConfig, before: Flows, after: Flows, busy: Bool[Array, " flows"]
) -> Float[Array, " flows"]:
    """Share of its bytes that each flow delivered since the last tick, `[F]`; 1 over its life.

    Args:
        cfg: shapes and clocks.
        before: slots at the end of the tick, before completion.
        after: the same slots after `lifecycle.finish`.
        busy: which are in use.
    """
    inside = (before.stage != life.FREE) & (before.stage != life.DONE)
    done = inside & (after.stage == life.DONE)
    # Free slots hold zeros: the masks let `lanes` skip them, see `slots.in_use`. Without them it
    # goes through all slots in the substeps, too, which takes two thirds as long again.
    backlog = in_use(before.backlog, busy).sum(0)
    unsent = before.rest_low + before.rest_high * CHUNK + backlog
    delivered = in_use(before.delivered, busy)
    delivered += jnp.where(done, unsent, 0.0)  # a FIFO would have sent it
    wire = wire_bytes(before.payload, HEADER + cfg.transport.header)
    return jnp.where(inside, delivered / jnp.maximum(wire, 1.0), 0.0)


def accrued(
    cfg: SimConfig,
    queues: Queues,
    net: NetParams,
    before: Flows,
    after: Flows,
    busy: Bool[Array, " flows"],
) -> tuple[Float[Array, "ports 3"], Float[Array, "ports 3"]]:
    """Slowdown and progress that accrued in a tick, by port and size class.

    Every flow accrues its `residence` over its ideal FCT, or what that adds to its cost, see `bent`
    and `SimConfig.accrue_powers`. The ports on its way account for it in
    proportion to the time a packet takes at each now, (queue + packet) / rate: its wait there and
    its transmission. The shares of a flow add up to one, so the ports add up to its total. Its
    `progress` is shared likewise. With `accrue_whole` each port accounts for all of both.

    Args:
        cfg: shapes and clocks.
        queues: those at the end of the tick.
        net: the network.
        before: slots at the end of the tick, before completion.
        after: the same slots after `lifecycle.finish`.
        busy: which are in use: the others have values of 0, and `lanes` can skip them.

    Returns:
        Slowdown and progress, `[P, 3]` each; if they are shared, their sums over ports are those
        of all flows of a class.
    """
    bounds, classes = cfg.queue_bounds, cfg.n_classes
    pace = jnp.repeat(net.port_rate, classes) if queues.pace is None else queues.pace
    transit = (queues.queue + net.packet_bytes) / jnp.maximum(pace, 1e-6)
    # The last entry is for levels that a flow passes by.
    table = jnp.append(transit, jnp.zeros((1,), transit.dtype))
    w = cfg.n_ways
    lows = jnp.array(np.repeat(bounds[:-1], w), jnp.int32)[:, None]
    sizes = jnp.array(np.repeat(np.diff(bounds), w), jnp.int32)[:, None]
    number = jnp.where(before.hop < sizes, lows + before.hop, bounds[-1])
    hop_time = look_up_one(table, number)
    parts = ways.shares(before.hop, w, cfg.load_balancing, cfg.queues_last)
    if parts is not None:
        hop_time = hop_time * jnp.tile(parts, (len(bounds) - 1, 1))
    share = hop_time / jnp.maximum(hop_time.sum(0), 1e-9)
    if cfg.accrue_whole:
        ones = jnp.ones_like(hop_time)
        share = ones if parts is None else ones * jnp.tile(parts, (len(bounds) - 1, 1))
    kind = size_class(before.payload)
    ideal = jnp.maximum(before.ideal, 1e-6)
    cost = stay = residence(cfg, queues.step, before, after) / ideal
    if cfg.accrue_powers:
        done = (before.stage != life.DONE) & (after.stage == life.DONE)
        end = age(cfg, queues.step, before) + jnp.where(done, after.tail, 0.0)
        now = jnp.where(stay > 0.0, end / ideal, 0.0)
        was = jnp.maximum(now - stay, 0.0)
        cost = bent(now, kind, cfg.accrue_powers) - bent(was, kind, cfg.accrue_powers)

    def by_port(values: Array) -> Array:
        levels, kinds = [], ways.per_way(kind, w)
        for i, (low, high) in enumerate(itertools.pairwise(bounds)):
            n, hop, part = high - low, ways.level(before.hop, i, w), ways.level(share, i, w)
            cell = jnp.where(hop < n, hop * 3 + kinds, 3 * n)
            amount = in_use(ways.per_way(values, w) * part, ways.per_way(busy, w))
            by_queue = segment_sum(amount, cell, 3 * n)
            levels.append(by_queue.reshape(n // classes, classes, 3).sum(1))
        return jnp.concatenate(levels)

    return by_port(cost), by_port(progress(cfg, before, after, busy))


def bent(
    slowdown: Float[Array, " flows"], kind: Int[Array, " flows"], powers: tuple[float, ...]
) -> Float[Array, " flows"]:
    """What a slowdown costs: Box and Cox' curve of the flow's size class.

    It is s up to a slowdown s of 1, which no flow can avoid, and 1 + (s^p - 1) / p beyond: the
    slowdown itself with p = 1, its logarithm with 0, and with 2 the late flows cost more.

    Args:
        slowdown: age over ideal FCT of each flow, `[F]`.
        kind: size class of each, `[F]`.
        powers: p of each size class.
    """
    beyond = jnp.maximum(slowdown, 1.0)
    cost = jnp.minimum(slowdown, 1.0)
    for number, power in enumerate(powers):
        more = jnp.log(beyond) if power == 0.0 else (beyond**power - 1.0) / power
        cost = cost + jnp.where(kind == number, more, 0.0)
    return cost


class Completion(NamedTuple):
    """Slowdowns of the measured flows, by size class `[3]`; unfinished ones at their age.

    Attributes:
        begun: flows that began in the window and were admitted.
        unfinished: of these, those still in progress. Their slowdown is a lower bound.
        total: sum of the slowdowns.
        log_total: sum of their natural logarithms (those below 1 count as 1).
        histogram: in log-spaced bins, `[3, bins]`.
    """

    begun: Int[Array, "3"]
    unfinished: Int[Array, "3"]
    total: Float[Array, "3"]
    log_total: Float[Array, "3"]
    histogram: Int[Array, "3 bins"]


def completion(cfg: SimConfig, state: SimState, params: SimParams) -> Completion:
    """Slowdowns of the flows that began in `params.window`, those in progress at their age.

    The age of a flow is taken as at least its ideal FCT: it cannot end before that.

    Args:
        cfg: shapes and clocks.
        state: state at the end of a tick.
        params: parameters.
    """
    flows, totals, bins = state.flows, state.totals, cfg.bins
    inside = (flows.stage != life.FREE) & (flows.stage != life.DONE)
    ongoing = inside & life.in_window(flows.start_step, flows.start_rest, cfg.dt_us, params.window)
    so_far = age(cfg, state.step, flows)
    slowdown = jnp.maximum(so_far / jnp.maximum(flows.ideal, 1e-6), 1.0)
    kind = size_class(flows.payload)
    by_class = ongoing & (kind == jnp.arange(3)[:, None])
    histogram = jnp.zeros((0,), jnp.int32) if totals.histogram is None else totals.histogram
    if bins:
        cell = jnp.where(ongoing, kind * bins + life.slowdown_bin(slowdown, bins), 3 * bins)
        histogram = histogram.at[cell].add(ongoing.astype(histogram.dtype), mode="drop")

    def summed(counter: tuple[Leaf, Leaf], values: Array) -> Array:
        open_sum = jnp.where(by_class, values, 0.0).sum(1)
        return counter_value(exact_add(*counter, open_sum, SLOWDOWN_UNIT), SLOWDOWN_UNIT)

    return Completion(
        begun=totals.begun,
        unfinished=by_class.sum(1).astype(jnp.int32),
        total=summed(totals.slowdown, slowdown),
        log_total=summed(totals.log_slowdown, jnp.log(slowdown)),
        histogram=histogram.reshape(3, bins),
    )
