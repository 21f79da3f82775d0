"""The network as the fluid simulator's state and sums, for all code that reads these.

Completions, slowdowns and what accrues are computed by the functions of `sim`, from the slots as
they were at the end of every tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ecn_marl.packets.records import PS_PER_US, Network
from ecn_marl.packets.slots import SLOT
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import delays, flow_log
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.stats import empty_sums
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.state import Flows, PortSums, SimParams, Totals
from ecn_marl.sim.traffic.sizes import CHUNK, size_class

SLOT_FIELDS = ("stage", "start_step", "start_rest", "payload", "ideal", "delivered", "flow_id")

COPIED = ("src", "dst", "kind", "flow_id", "payload", "ideal", "rtt", "start_step", "start_rest")
"""Columns of `SLOT` that are fields of `sim.state.Flows` as they stand."""


class Ticks(NamedTuple):
    """Slots and queues at the end of each tick, before slots are freed.

    Attributes:
        slots: columns of `slots.SLOT` by name, `[ticks, F]` each, and `hop`, `[ticks, L, F]`.
        queue: bytes, `[ticks, Q]`.
        step: substeps since the start, `[ticks]`.
    """

    slots: dict[str, np.ndarray]
    queue: np.ndarray
    step: np.ndarray


def columns(cfg: SimConfig, slots: np.ndarray, hop: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of slots at the end of ticks, see `Ticks`.

    Args:
        cfg: shapes.
        slots: `SLOT`, `[ticks, F]`.
        hop: `[ticks, F, L]`.
    """
    named = {name: np.ascontiguousarray(slots[name]) for name in SLOT_FIELDS}
    # A flow whose last ACK is back is one that `lifecycle.finish` will find so.
    done = slots["done"] & (slots["stage"] != life.FREE)
    named["stage"] = np.where(done, life.RETURNING, named["stage"])
    named["tail"] = np.where(done, -slots["ago"], cfg.tick_us * 1e3).astype(np.float32)
    named["hop"] = np.ascontiguousarray(np.moveaxis(hop, -1, -2))
    return named


@partial(jax.jit, static_argnums=0)
def completed(
    cfg: Simulator, totals: Totals, ticks: Ticks, log: Array | None, params: SimParams
) -> tuple[Totals, Array | None, Array, Array]:
    """Counters after some ticks, and what accrued in them.

    Args:
        cfg: shapes.
        totals: counters before.
        ticks: what the slots held.
        log: completion times of scheduled flows, or None.
        params: parameters.

    Returns:
        Counters, log, and slowdown and progress that accrued, `[P, 3]` each.
    """
    net = jax.tree.map(jnp.asarray, params.net)
    zero = jnp.zeros((cfg.topology.n_ports, 3), jnp.float32)
    template = cfg.empty_flows()

    def tick(carry: PyTree, row: Any) -> tuple[PyTree, None]:
        totals, log, cost, progress = carry
        before = replace(template, **row.slots)
        totals = replace(totals, begun=totals.begun + _begun(cfg, before, row.step, params))
        after, totals, log = life.finish(
            before, totals, row.step, cfg.dt_us, log, params.window, cfg.tick_us
        )
        if cfg.accrue:
            queues = delays.Queues(row.step, row.queue, None)
            more = delays.accrued(cfg, queues, net, before, after, before.stage != life.FREE)
            cost, progress = cost + more[0], progress + more[1]
        return (totals, log, cost, progress), None

    (totals, log, cost, progress), _ = jax.lax.scan(tick, (totals, log, zero, zero), ticks)
    return totals, log, cost, progress


def _begun(
    cfg: SimConfig, slots: Flows, step: Int[Array, ""], params: SimParams
) -> Int[Array, "3"]:
    """Measured flows that got their slots in the tick that ends at a step, of each size class."""
    new = (slots.stage != life.FREE) & (slots.start_step == step - cfg.tick_steps)
    begun = new & life.in_window(slots.start_step, slots.start_rest, cfg.dt_us, params.window)
    by_class = begun & (size_class(slots.payload) == jnp.arange(3)[:, None])
    return by_class.sum(1).astype(jnp.int32)


class Ended(NamedTuple):
    """Flows that have finished in an interval, in the order in which they did.

    Attributes:
        slots: `slots.SLOT`, `[n]`.
        hop: their queues, `[n, L]`.
        step: substeps since the start, at the end of the tick, `[n]`.
    """

    slots: np.ndarray
    hop: np.ndarray
    step: np.ndarray


def ended(slots: np.ndarray, hop: np.ndarray, step: np.ndarray) -> Ended:
    """The flows that have finished, from slots at the ends of ticks `[ticks, F]`, see `columns`."""
    tick, slot = np.nonzero(slots["done"] & (slots["stage"] != life.FREE))
    return Ended(slots[tick, slot], hop[tick, slot], step[tick].astype(np.int32))


def log_of(parts: Sequence[Ended], levels: int) -> flow_log.FlowLog:
    """All flows that have finished as the log of the fluid simulator, as long as it must be."""
    none = Ended(np.zeros(0, SLOT), np.zeros((0, levels), np.int32), np.zeros(0, np.int32))
    slots, hop, step = (np.concatenate(x) for x in zip(none, *parts, strict=True))
    real = {name: slots[name].astype(np.float32) for name in flow_log.REAL if name != "tail"}
    return flow_log.FlowLog(
        count=np.int32(len(slots)),
        whole={name: slots[name].copy() for name in flow_log.WHOLE} | {"end_step": step},
        real=real | {"tail": -slots["ago"].astype(np.float32)},
        hop=np.ascontiguousarray(hop.T),
    )


def flows_of(template: Flows, slots: np.ndarray, hop: np.ndarray) -> Flows:
    """Slots as they are now, those of finished flows free.

    Args:
        template: slots whose other fields do not matter.
        slots: `SLOT`, `[F]`.
        hop: `[F, L]`.
    """
    free = (slots["stage"] == life.FREE) | slots["done"]
    whole, rest = np.divmod(slots["unsent"], int(CHUNK))
    backlog = np.zeros(template.backlog.shape, np.float32)
    backlog[0] = np.where(free, 0.0, slots["inside"])
    copied: dict[str, Any] = {name: slots[name].copy() for name in COPIED}
    flows: Flows = replace(
        template,
        **copied,
        stage=np.where(free, life.FREE, slots["stage"]).astype(np.int32),
        rest_high=np.where(free, 0, whole).astype(np.int32),
        rest_low=np.where(free, 0, rest).astype(np.float32),
        hop=np.ascontiguousarray(hop.T),
        backlog=backlog,
    )
    return flows


def clear_counters(net: Network) -> None:
    """Begin an interval: the ports' counters are 0."""
    kept = {n: net.ports[n].copy() for n in ("queue", "last", "n_paused", "sent_ever")}
    net.ports[:] = 0
    for name, values in kept.items():
        net.ports[name] = values
    net.ports["peak"] = kept["queue"]
    net.lanes["area"], net.lanes["sent"], net.lanes["marked"] = 0.0, 0, 0
    net.has_sent[:] = False


def port_sums(cfg: SimConfig, net: Network, empty: PortSums, accrued: PyTree) -> PortSums:
    """What the ports counted in an interval, as the sums of the fluid simulator.

    Args:
        cfg: shapes.
        net: tables.
        empty: sums at the start of the interval, see `stats.empty_sums`.
        accrued: slowdown and progress, `[P, 3]` each, or None.
    """
    ports, real = net.ports, np.float32
    # Sums over substeps of dt: integrals over it.
    per_step = 1.0 / (cfg.dt_us * PS_PER_US)
    by_class = None
    if cfg.n_classes > 1:
        lanes = net.lanes[cfg.topology.n_hosts * (cfg.n_classes + 1) :]
        lanes = lanes.reshape(-1, cfg.n_classes + 1)[:, :-1].reshape(-1)
        counted = (lanes["area"] * per_step, lanes["sent"], lanes["marked"])
        by_class = np.stack(counted).astype(real)
    cost, progress = accrued if cfg.accrue else (None, None)
    sums: PortSums = replace(
        empty,
        queue=(ports["area"] * per_step).astype(real),
        square=(ports["square"] * per_step).astype(real),
        peak=ports["peak"].astype(real),
        sent=ports["sent"].astype(real),
        marked=ports["marked"].astype(real),
        paused=(ports["paused"] / PS_PER_US).astype(real),
        by_class=by_class,
        counts=_counts(cfg, net, empty.counts),
        accrued=cost,
        progress=progress,
    )
    return sums


def _counts(cfg: SimConfig, net: Network, start: PyTree) -> PyTree:
    """Counters of flows: those at the start, and what the ports counted since."""
    if start is None:
        return None
    ports, real, changed = net.ports, np.float32, {}
    for field, column in (("begun", "begun"), ("entered", "begun"), ("big_since", "big")):
        if getattr(start, field) is not None:
            changed[field] = ports[column].astype(real)
    if start.senders is not None:
        low_high = zip(cfg.topology.level_bounds, cfg.topology.level_bounds[1:], strict=False)
        since = [net.has_sent[low:high].reshape(-1) for low, high in low_high]
        changed["senders"] = tuple(
            np.asarray(a) | b for a, b in zip(start.senders, since, strict=True)
        )
    if start.class_bytes is not None:
        changed["class_bytes"] = ports["by_size"].astype(real)
    if start.square is not None:
        # Packets are counted here, not drawn: whoever draws does so with chance 1 of this number.
        changed["square"] = ports["marked"].astype(real)
    return replace(start, settled=None, away=None, **changed)


start_of_interval = jax.jit(empty_sums, static_argnums=0)
"""Sums over no time, with the counts of flows that are in progress."""
