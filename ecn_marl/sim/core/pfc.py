"""Priority flow control (IEEE 802.1Qbb): which links stop, and the buffer that decides it.

Dynamic thresholds on the shared buffer of each switch, as switches implement them (alibaba-edu HPCC
simulator, `switch-mmu`; equations in Zhu et al., SIGCOMM'15, §4). Once per tick every switch counts
the bytes it holds from each of its links (`ingress_links`), and decides (`police`). The effect on
the flows lasts for the next tick (`stops`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core import ways
from ecn_marl.sim.core.slots import in_use, look_up_one, segment_sum
from ecn_marl.sim.state import Flows, NetParams, SimState


class Stops(NamedTuple):
    """Which queues and flows are paused, for the length of a tick.

    Attributes:
        open: which queues are not paused, `[Q]`.
        nic: flows whose class is paused at their NIC, `[F]`.
        stalled: flows with bytes in a paused queue, `[F]`.
        accept: whether bytes may enter each level: its headroom is not full, `[L W, F]`. Bytes
            of done flows always may.
    """

    open: Bool[Array, " queues"]
    nic: Bool[Array, " flows"]
    stalled: Bool[Array, " flows"]
    accept: Bool[Array, "rows flows"]


def stops(cfg: SimConfig, state: SimState, queues: Int[Array, "rows flows"]) -> Stops:
    """Which queues and flows the pauses of the last tick stop.

    Args:
        cfg: shapes.
        state: state at the start of the tick, its arrivals admitted.
        queues: queue of every flow at every level of every way, `Q` for none, `[L W, F]`.
    """
    flows, n_hosts, c = state.flows, cfg.topology.n_hosts, cfg.n_classes
    shut = state.paused[n_hosts * c :]
    # Entry Q is for levels that a flow passes by: nothing stops it there.
    queue_shut = jnp.append(shut, False)[queues]
    links = ingress_links(flows, n_hosts, cfg.queue_bounds, c, cfg.n_ways)
    kind = flows.kind if c > 1 else 0
    return Stops(
        open=~shut,
        nic=look_up_one(state.paused[: n_hosts * c], flows.src * c + kind),
        stalled=(queue_shut & (flows.backlog > 0)).any(0),
        accept=~jnp.append(state.full, False)[links] | (flows.stage == life.DONE),
    )


def paused_ports(cfg: SimConfig, state: SimState) -> Float[Array, " ports"]:
    """Share of each port's classes that are paused, `[P]`."""
    shut = state.paused[cfg.topology.n_hosts * cfg.n_classes :]
    return shut.reshape(-1, cfg.n_classes).mean(1).astype(state.queue.dtype)


def police(cfg: SimConfig, state: SimState, net: NetParams) -> SimState:
    """Decide, for the next tick, which links pause and which headrooms are full.

    Pauses are per link and class; only lossless classes have them. Without such classes nothing is
    decided: full buffers drop.
    """
    t, c = cfg.topology, cfg.n_classes
    n_links = t.n_hosts + t.n_ports
    used = _buffer_use(cfg, state)
    receiver = jnp.asarray(np.repeat(t.link_switch(), c))
    if not any(cfg.lossless):
        return state  # full buffers drop, see `hops.forward`
    overfull = jnp.append(used >= net.buffer, False)[receiver]
    links = ingress_links(state.flows, t.n_hosts, cfg.queue_bounds, c, cfg.n_ways)
    backlog = in_use(state.flows.backlog, state.flows.stage != life.FREE)
    ingress = segment_sum(backlog.reshape(-1), links.reshape(-1), n_links * c)
    # Bytes that arrive until the next decision get room in addition to the headroom.
    rate = jnp.concatenate([net.nic_rate, net.port_rate])
    headroom = net.headroom + rate * cfg.tick_us
    pause = decide(
        ingress,
        used,
        state.paused,
        receiver,
        _shared(cfg, net),
        jnp.repeat(jnp.asarray(net.pfc_alpha), c, total_repeat_length=n_links * c),
        jnp.repeat(headroom, c, total_repeat_length=n_links * c),
        net.reserve,
        net.resume_gap,
    )
    guarded = jnp.asarray(np.tile(np.array(cfg.lossless), n_links))
    paused, full = pause.paused & guarded, pause.full & guarded
    started = jnp.sum(paused & ~state.paused).astype(jnp.int32)
    totals = replace(state.totals, pauses=state.totals.pauses + started)
    return replace(state, paused=paused, full=full | overfull, totals=totals)


def spilled(
    cfg: SimConfig, full: Bool[Array, " links"], dropped: Float[Array, ""]
) -> Float[Array, ""]:
    """Bytes dropped in a tick, if bytes that PFC protects were among them; else 0.

    Args:
        cfg: shapes.
        full: links whose headroom was full, per class, `[(H + P) C]`.
        dropped: bytes dropped in the tick, of all classes.
    """
    guarded = np.tile(np.array(cfg.lossless), full.shape[0] // cfg.n_classes)
    return jnp.where((full & jnp.asarray(guarded)).any(), dropped, 0.0)


class Pause(NamedTuple):
    """PFC state of the directed links (NICs first, then ports).

    Attributes:
        paused: which links are paused, `[H + P]`.
        full: which links have a full headroom at their far end, `[H + P]`.
        started: number of pauses that started.
    """

    paused: Bool[Array, " links"]
    full: Bool[Array, " links"]
    started: Int[Array, ""]


def decide(
    ingress: Float[Array, " links"],
    used: Float[Array, " switches"],
    paused: Bool[Array, " links"],
    link_switch: Int[Array, " links"],
    shared: Float[Array, " switches"],
    alpha: Float[Array, " links"],
    headroom: Float[Array, " links"],
    reserve: float | Float[Array, ""],
    resume_gap: float | Float[Array, ""],
) -> Pause:
    """Pause and resume upstream links by dynamic thresholds on the shared buffer.

    A link is paused when its ingress use beyond the reserve reaches `alpha` times the free shared
    buffer of the receiving switch, and resumed `resume_gap` bytes below. Its headroom is full when
    the use exceeds the threshold by more than `headroom`: only then may bytes be dropped.

    Args:
        ingress: bytes in the receiving switch that came over each link, `[H + P]`.
        used: bytes queued in each switch, `[S]`.
        paused: which links are paused now, `[H + P]`.
        link_switch: receiving switch of each link, `S` for links into hosts, `[H + P]`.
        shared: buffer of each switch less all headroom and reserves, bytes, `[S]`.
        alpha: share of the free buffer one ingress may take, `[H + P]`.
        headroom: bytes set aside for data in flight when a pause is sent, `[H + P]`.
        reserve: bytes of each ingress that count towards no threshold.
        resume_gap: hysteresis, bytes.

    Returns:
        The new pause state and the number of pauses that started.
    """
    free = jnp.maximum(shared - used, 0.0)
    # Hosts, entry S, take all that comes: links into them never pause.
    threshold = alpha * jnp.append(free, jnp.inf)[link_switch]
    use = jnp.maximum(ingress - reserve, 0.0)
    remain = paused & (use + resume_gap > threshold)
    # In a full buffer the threshold is 0, and a link with no bytes there must not pause.
    pausing = (use >= threshold) & (use > 0) | remain
    started = jnp.sum(pausing & ~paused)
    return Pause(pausing, use > threshold + headroom, started)


def ingress_links(
    flows: Flows, n_hosts: int, bounds: tuple[int, ...], classes: int = 1, n_ways: int = 1
) -> Int[Array, "rows flows"]:
    """Directed link and class by which each flow's bytes reached each level, `[L W, F]`.

    Numbered `link * classes + class`, `(H + P) * classes` for none.
    """
    no_link = n_hosts * classes + bounds[-1]
    previous = flows.src if classes == 1 else flows.src * classes + flows.kind
    previous = ways.per_way(previous, n_ways)
    links = []
    for i, (low, high) in enumerate(itertools.pairwise(bounds)):
        hop = ways.level(flows.hop, i, n_ways)
        on_level = hop < high - low
        links.append(jnp.where(on_level, previous, no_link))
        previous = jnp.where(on_level, n_hosts * classes + low + hop, previous)
    return ways.stacked(links, n_ways)


def _buffer_use(cfg: SimConfig, state: SimState) -> Array:
    """Bytes queued in each switch, `[S]`."""
    t = cfg.topology
    by_port = state.queue.reshape(-1, cfg.n_classes).sum(1)
    return segment_sum(by_port, jnp.asarray(t.port_switch()), t.n_switches)


def _shared(cfg: SimConfig, net: NetParams) -> Array:
    """Buffer of each switch less headroom and reserve of its ingresses, bytes, `[S]`."""
    t, n_lossless = cfg.topology, sum(cfg.lossless)
    per_link = (net.headroom + net.reserve) * n_lossless
    set_aside = segment_sum(per_link, jnp.asarray(t.link_switch()), t.n_switches)
    return jnp.maximum(net.buffer - set_aside, 0.0)


def lossy_limits(cfg: SimConfig, state: SimState, net: NetParams) -> Array | None:
    """Largest queue of each class that drops on its own account, bytes, `[Q]`; None without."""
    alpha = np.array(cfg.lossy_alpha)
    if not np.isfinite(alpha).any():
        return None
    free = jnp.maximum(_shared(cfg, net) - _buffer_use(cfg, state), 0.0)
    at_port = free[jnp.asarray(cfg.topology.port_switch())]
    finite = np.isfinite(alpha)
    # An infinite alpha times a full buffer, 0, would be NaN.
    limit = jnp.where(finite, at_port[:, None] * np.where(finite, alpha, 1.0), 1e12)
    return limit.reshape(-1).astype(state.queue.dtype)
