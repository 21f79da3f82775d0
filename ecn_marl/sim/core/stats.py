"""Statistics of every port over a tuning interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ecn_marl._types import Leaf
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import counts
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.hops import Moved
from ecn_marl.sim.state import FlowCounts, PortStats, PortSums, SimParams, SimState

SIZES = ("small_bytes", "medium_bytes", "large_bytes")
"""Names of the columns of `PortStats.class_bytes`, where every name has one number per port."""


BY_CLASS = ("class_queue", "class_queue_mean", "class_tx_bytes", "class_marked_bytes")
"""Fields of `PortStats` that are `[P, C]`, one number per traffic class."""


def empty_sums(cfg: SimConfig, state: SimState, params: SimParams) -> PortSums:
    """Sums over no time, at the start of an interval."""
    zero = jnp.zeros((cfg.topology.n_ports,), state.queue.dtype)
    by_class = None
    if cfg.n_classes > 1:
        by_class = jnp.zeros((3, cfg.n_queues), zero.dtype)
    begun = counts.start(cfg, state.flows, params.net)
    accrued = jnp.zeros((*zero.shape, 3), zero.dtype) if cfg.accrue else None
    return PortSums(zero, zero, zero, zero, zero, zero, by_class, begun, accrued, accrued)


def add(cfg: SimConfig, sums: PortSums, moved: Moved) -> PortSums:
    """Add what the queues did in a substep."""
    c = cfg.n_classes

    def port(x: Array) -> Array:
        return x if c == 1 else x.reshape(-1, c).sum(1)

    queue, by_class, flows = port(moved.queue), sums.by_class, sums.counts
    if by_class is not None:
        by_class = by_class + jnp.stack([moved.queue, moved.sent, moved.sent * moved.mark])
    if flows is not None and flows.square is not None:
        flows = replace(flows, square=flows.square + port(moved.sent * moved.mark * moved.mark))
    return replace(
        sums,
        queue=sums.queue + queue,
        square=sums.square + queue * queue,
        peak=jnp.maximum(sums.peak, queue),
        sent=sums.sent + port(moved.sent),
        marked=sums.marked + port(moved.sent * moved.mark),
        by_class=by_class,
        counts=flows,
    )


def closed(sums: PortSums) -> PortSums:
    """Sums without the fields that are only needed while they are collected."""
    if sums.counts is None:
        return sums
    return replace(sums, counts=replace(sums.counts, settled=None, away=None))


def merge(first: PortSums, then: PortSums) -> PortSums:
    """Sums over an interval and the next one, as if both had been one.

    Only a flow that lost bytes may count twice: in `n_elephants` if it falls back below 1 MB and
    exceeds it again in another interval; in `flows_seen` if it had sent all when that one began.

    Args:
        first: sums of `Simulator.collect`, or merged ones.
        then: those of the interval that follows.
    """
    sums: PortSums = jax.tree.map(jnp.add, replace(first, counts=None), replace(then, counts=None))
    flows = None if first.counts is None else _merged(first.counts, then.counts)
    return replace(sums, peak=jnp.maximum(first.peak, then.peak), counts=flows)


SUMMED = ("begun", "entered", "big_since", "class_bytes", "square")
"""Fields of `FlowCounts` that add up over intervals."""


def _merged(first: FlowCounts, then: FlowCounts) -> FlowCounts:
    """Counts of both; flows present at the start of the second were seen in the first."""

    def total(name: str) -> Array | None:
        a, b = getattr(first, name), getattr(then, name)
        return None if a is None else a + b

    senders = first.senders
    if senders is not None:
        senders = tuple(a | b for a, b in zip(senders, then.senders, strict=True))
    return replace(
        first,
        senders=senders,
        **{name: total(name) for name in SUMMED},
    )


def summarise(
    cfg: SimConfig, state: SimState, params: SimParams, sums: PortSums, intervals: int = 1
) -> PortStats:
    """Turn sums into statistics.

    Args:
        cfg: the simulator.
        state: state at the end of the interval.
        params: parameters.
        sums: sums over the interval, or merged ones over several.
        intervals: how many intervals they are from.
    """
    n, us, c = cfg.interval_steps * intervals, cfg.interval_us * intervals, cfg.n_classes
    net, flows = jax.tree.map(jnp.asarray, params.net), state.flows
    running = (flows.stage == life.SENDING) & (flows.start_in <= 0)
    live = (running | (flows.stage == life.DRAINING)).astype(state.queue.dtype)
    by_class = None if sums.by_class is None else sums.by_class.reshape(3, -1, c)
    return PortStats(
        queue=state.queue if c == 1 else state.queue.reshape(-1, c).sum(1),
        queue_mean=sums.queue / n,
        queue_sq=sums.square / n,
        queue_max=sums.peak,
        tx_bytes=sums.sent,
        marked_bytes=sums.marked,
        # Sums of float32 may exceed what the link can carry by a rounding.
        utilisation=jnp.clip(sums.sent / (net.port_rate * us), 0.0, 1.0),
        paused=sums.paused / us,
        n_flows=counts.by_port(cfg, flows, live),
        class_queue=None if by_class is None else state.queue.reshape(-1, c),
        class_queue_mean=None if by_class is None else by_class[0] / n,
        class_tx_bytes=None if by_class is None else by_class[1],
        class_marked_bytes=None if by_class is None else by_class[2],
        accrued=sums.accrued,
        progress=sums.progress,
        **counts.results(cfg, sums, state, net),
    )


def idle(cfg: SimConfig) -> PortStats:
    """Statistics of an interval without traffic, with the counters of `SimConfig.counts`."""
    return _of_ports(cfg, cfg.counts, jnp.zeros)


def shapes(cfg: SimConfig, counted: Sequence[str]) -> PortStats:
    """Shapes of the statistics of an interval, with some counters; nothing is computed."""
    return _of_ports(cfg, counted, jax.ShapeDtypeStruct)


def _of_ports(
    cfg: SimConfig, counted: Sequence[str], make: Callable[[tuple[int, ...], Any], Any]
) -> PortStats:
    """Statistics whose leaves are `make(shape, float32)`."""
    ports = (cfg.topology.n_ports,)
    values = {f.name: make(ports, jnp.float32) for f in fields(PortStats) if f.default is MISSING}
    values |= {name: make(ports, jnp.float32) for name in counted}
    if "class_bytes" in values:
        values["class_bytes"] = make((*ports, 3), jnp.float32)
    if cfg.n_classes > 1:
        wide = make((*ports, cfg.n_classes), jnp.float32)
        values |= {f.name: wide for f in fields(PortStats) if f.name in BY_CLASS}
    return PortStats(**values)


def to_info(stats: PortStats) -> dict[str, Leaf]:
    """The statistics that were counted, by name, without those for rewards (`accrued`, `progress`).

    `class_bytes` is one entry `[P]` per size class (`SIZES`).
    """
    hidden = ("accrued", "progress")
    values = {f.name: getattr(stats, f.name) for f in fields(PortStats) if f.name not in hidden}
    sizes = values.pop("class_bytes")
    if sizes is not None:
        values |= {name: sizes[..., i] for i, name in enumerate(SIZES)}
    return {name: value for name, value in values.items() if value is not None}


def from_info(info: Mapping[str, Leaf]) -> PortStats:
    """Statistics from what `to_info` returned; those for rewards are None."""
    values = {f.name: info[f.name] for f in fields(PortStats) if f.name in info}
    if SIZES[0] in info:
        values["class_bytes"] = jnp.stack([info[name] for name in SIZES], -1)
    return PortStats(**values)
