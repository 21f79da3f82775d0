"""Statistics of every port over a tuning interval."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from ecn_marl.sim import flows as fl
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.queues import segment_sum
from ecn_marl.sim.state import Flows, PortStats, PortSums, SimParams, SimState
from ecn_marl.sim.substep import Moved
from ecn_marl.sim.traffic import CHUNK, PAYLOAD, wire_bytes

ELEPHANT = 1e6
"""Bytes sent above which a flow counts as an elephant (PET, §4.2.1)."""


def empty_sums(cfg: SimConfig, zero: Array) -> PortSums:
    """Sums over no time; `zero` is `[P]`."""
    by_class = None
    if cfg.n_classes > 1:
        by_class = jnp.zeros((2, cfg.n_queues), zero.dtype)
    accrued = jnp.zeros((zero.shape[0], 3), zero.dtype) if cfg.accrue else None
    return PortSums(zero, zero, zero, zero, zero, zero, by_class, accrued)


def add(cfg: SimConfig, sums: PortSums, moved: Moved) -> PortSums:
    """Take in what the queues did in a substep."""
    c = cfg.n_classes

    def port(x: Array) -> Array:
        return x if c == 1 else x.reshape(-1, c).sum(1)

    queue, by_class = port(moved.queue), sums.by_class
    if by_class is not None:
        by_class = by_class + jnp.stack([moved.queue, moved.sent])
    return PortSums(
        queue=sums.queue + queue,
        square=sums.square + queue * queue,
        peak=jnp.maximum(sums.peak, queue),
        sent=sums.sent + port(moved.sent),
        marked=sums.marked + port(moved.sent * moved.mark),
        paused=sums.paused,
        by_class=by_class,
        accrued=sums.accrued,
    )


def summarise(cfg: SimConfig, state: SimState, params: SimParams, sums: PortSums) -> PortStats:
    """Turn the interval's sums into statistics, and count flows per port."""
    n, us, c = cfg.interval_steps, cfg.interval_us, cfg.n_classes
    flows, bounds = state.flows, cfg.topology.level_bounds
    real = state.queue.dtype
    running = (flows.stage == fl.SENDING) & (flows.start_in <= 0)
    live = (running | (flows.stage == fl.DRAINING)).astype(real)
    gone = wire_bytes(flows.payload, params.net.packet_bytes - PAYLOAD) - flows.rest_low
    big = live * (gone - flows.rest_high * CHUNK > ELEPHANT)
    ports = flows.hop if c == 1 else flows.hop // c

    def per_port(values: Array) -> Array:
        spans = zip(ports, bounds[:-1], bounds[1:], strict=True)
        return jnp.concatenate([segment_sum(values, h, b - a) for h, a, b in spans])

    n_flows, n_big = per_port(live), per_port(big)
    by_class = None if sums.by_class is None else sums.by_class.reshape(2, -1, c)
    return PortStats(
        queue=state.queue if c == 1 else state.queue.reshape(-1, c).sum(1),
        queue_mean=sums.queue / n,
        queue_sq=sums.square / n,
        queue_max=sums.peak,
        tx_bytes=sums.sent,
        marked_bytes=sums.marked,
        utilisation=jnp.clip(sums.sent / (params.net.port_rate * us), 0.0, 1.0),
        paused=sums.paused / us,
        n_flows=n_flows,
        n_senders=_senders(cfg, flows, ports, live > 0) if cfg.count_senders else 0.0 * n_flows,
        n_mice=n_flows - n_big,
        n_elephants=n_big,
        class_queue_mean=None if by_class is None else by_class[0] / n,
        class_tx_bytes=None if by_class is None else by_class[1],
        accrued=sums.accrued,
    )


def _senders(cfg: SimConfig, flows: Flows, ports: Array, live: Array) -> Array:
    """Distinct source hosts of the flows that cross each port, `[P]`."""
    bounds, n_hosts = cfg.topology.level_bounds, cfg.topology.n_hosts
    counts = []
    for hop, low, high in zip(ports, bounds[:-1], bounds[1:], strict=True):
        cell = jnp.where(live & (hop < high - low), hop * n_hosts + flows.src, -1)
        size = (high - low) * n_hosts
        row = jnp.where(cell < 0, size, cell)
        seen = jnp.zeros((size,), bool).at[row].set(True, mode="drop")
        counts.append(seen.reshape(high - low, n_hosts).sum(1))
    return jnp.concatenate(counts).astype(flows.backlog.dtype)
