"""Values constant within a tick: capacities, feedback delays, paused links, room in buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from ecn_marl.sim import feedback as fb
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import fifo, flags, last_byte, pfc, ways
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.failures import links_up
from ecn_marl.sim.core.hops import Ports, own_queues, per_queue, queue_waits, sites
from ecn_marl.sim.core.nic import Nic, meet_when_sent
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.slots import kept, look_up, look_up_one
from ecn_marl.sim.core.ways import FLOWLET
from ecn_marl.sim.feedback import cnp
from ecn_marl.sim.random import Stream, hash_bits, to_unit
from ecn_marl.sim.state import Flows, NetParams, SimParams, SimState
from ecn_marl.sim.traffic.sizes import CHUNK, exact_add


class Tick(NamedTuple):
    """Values constant within a tick, by the stages that need them.

    Attributes:
        nic: limits of the NICs.
        ports: limits and settings of the ports.
        line: feedback delays.
        transport: constants of the senders.
        busy: slots in use, `[F]`.
    """

    nic: Nic
    ports: Ports
    line: fb.Line
    transport: PyTree
    busy: Bool[Array, " flows"]


def prepare(
    cfg: SimConfig,
    state: SimState,
    params: SimParams,
    ecn: Ecn,
    busy: Bool[Array, " flows"] | None = None,
) -> tuple[Tick, SimState]:
    """Compute what is constant within a tick.

    Args:
        cfg: shapes.
        state: state at the start of the tick, its arrivals admitted.
        params: parameters.
        ecn: thresholds, `[P]` or `[P, C]`.
        busy: slots in use, `[F]`; None to look them up.

    Returns:
        The constants of the tick, and the state with delays refreshed.
    """
    net, flows, c = params.net, state.flows, cfg.n_classes
    busy = flows.stage != life.FREE if busy is None else busy
    queues = own_queues(cfg, flows)
    share = ways.shares(flows.hop, cfg.n_ways, cfg.load_balancing, cfg.queues_last)
    wait = queue_waits(state, net)
    flows = _waits(cfg, state, net, queues, wait, share)
    stops = pfc.stops(cfg, state, queues)
    stalled = stops.stalled
    batches, due, waiting = fifo.plan(
        state.batches,
        flows.backlog,
        flows.due,
        flows.waiting,
        queues,
        wait,
        stops.open,
        cfg.tick_us,
        cfg.dt_us,
    )
    # Rates of links: a paused or failed one sends nothing, whatever is due.
    rates = look_up_one(jnp.append(jnp.asarray(net.port_rate), 0.0), queues // c)
    due = last_byte.drained(flows, due, rates, cfg.dt_us)
    flows = replace(flows, due=due, waiting=waiting)
    if cfg.transport.latched and fb.ACKS not in cfg.transport.needs:
        flows = meet_when_sent(flows, net.packet_bytes)
    line, flows, late = _line(cfg, state, flows, net, queues, stalled)
    express = jnp.zeros_like(net.port_rate)
    if cfg.ack_priority:
        express = state.ack_rate.reshape(-1, c).sum(1)
    joining = jnp.zeros_like(state.ack_rate) if cfg.ack_priority else state.ack_rate
    stopped = stops.nic
    port_rate = jnp.maximum(net.port_rate - express, 0.0)
    if cfg.failures:
        up = links_up(net, state.step)
        port_rate = port_rate * up
        stopped = stopped | ~_passable(jnp.append(up, True)[queues // c], share)
    tick = Tick(
        nic=Nic(
            capacity=jnp.maximum(net.nic_rate - state.nic_acks, 0.0),
            may_send=~stopped,
            packet=net.packet_bytes,
            line=net.nic_rate,
        ),
        ports=Ports(
            capacity=port_rate * cfg.dt_us,
            rate=net.port_rate,
            weights=jnp.asarray(cfg.weights, net.port_rate.dtype),
            packet=net.packet_bytes,
            ecn=per_queue(cfg, ecn),
            open=stops.open,
            ack_bytes=joining * cfg.dt_us,
            accept=stops.accept,
            limit=pfc.lossy_limits(cfg, state, net),
            buffer=net.buffer,
            site=None if any(cfg.lossless) else sites(cfg, queues),
            share=share,
        ),
        line=line,
        transport=params.transport,
        busy=busy,
    )
    flows = kept(flows, state.flows, busy)
    counted = replace(_with_late(state, late), flows=flows, batches=batches)
    return tick, counted


class _Late(NamedTuple):
    """Flows whose feedback is older than what is kept, `[F]` each: histories, CNPs' delay line."""

    history: Bool[Array, " flows"]
    marks: Bool[Array, " flows"]


def _with_late(state: SimState, late: _Late) -> SimState:
    """The state with late feedback counted and flagged."""
    n_late = (late.history | late.marks).sum().astype(state.queue.dtype)
    counted = exact_add(*state.totals.late_feedback, n_late, CHUNK)
    totals = replace(state.totals, late_feedback=counted)
    raised = flags.raised(state.flags, flags.MEMORY, late.history.any())
    raised = flags.raised(raised, flags.MARKS, late.marks.any())
    return replace(state, totals=totals, flags=raised)


def _waits(
    cfg: SimConfig,
    state: SimState,
    net: NetParams,
    queues: Array,
    wait: Array,
    share: Array | None,
) -> Flows:
    """Slots with the waits of new flows and of ACKs; `wait` is that of each queue, µs, `[Q]`."""
    flows = state.flows
    back = wait + _residual(cfg, state, net)
    # Queue Q stands for none, so the table has a row of zeros for it.
    waits = jnp.append(jnp.stack([wait, back], -1), jnp.zeros((1, 2), wait.dtype), axis=0)
    back_wait = jnp.zeros_like(flows.back_wait)
    if not cfg.ack_priority:
        back_wait = ways.longest(look_up(waits, flows.back)[..., 1], cfg.n_ways_back)
    ahead = look_up(waits, queues)[..., 0]
    way_wait = ways.longest(ahead, cfg.n_ways, None if share is None else share > 0)
    # Equality is safe: the clock counts substeps in whole numbers.
    new = flows.start_step == state.step
    return replace(
        flows,
        wait=jnp.where(new, way_wait, flows.wait),
        gate=jnp.where(new, way_wait, flows.gate),
        back_wait=back_wait,
    )


def _line(
    cfg: SimConfig, state: SimState, flows: Flows, net: NetParams, queues: Array, stalled: Array
) -> tuple[fb.Line, Flows, _Late]:
    """Feedback delays, slots whose far marks have moved on, and flows whose delay is too long."""
    c, needs = cfg.n_classes, cfg.transport.needs
    back_wait = flows.back_wait
    if cfg.jitter_us > 0:
        n = back_wait.shape[0]
        bits = hash_bits(state.seed, state.step * n + jnp.arange(n, dtype=jnp.int32), Stream.JITTER)
        back_wait = back_wait + cfg.jitter_us * to_unit(bits).astype(back_wait.dtype)
    # Marks are drawn in the middle of a substep and reach senders at the end of one.
    delay = jnp.round((flows.rtt + back_wait) / cfg.dt_us - 0.5)
    delay = jnp.maximum(delay, 0.0).astype(jnp.int32)
    flows, far, late = cnp.refresh(flows, delay, state.step, cfg.coarse)
    sending, none = flows.stage == life.SENDING, jnp.zeros_like(late)
    too_old = delay >= cfg.memory if needs - {fb.CNP, fb.PROBE} else none
    if state.echo.acks is not None:
        # A loss shows when the packet behind it has crossed the queues, too, see `acks.step`.
        crossing = jnp.round(flows.wait / cfg.dt_us).astype(jnp.int32)
        too_old |= fb.unheard_losses(state.echo.acks) & (delay + crossing >= cfg.memory)
    late_flows = _Late(sending & too_old, sending & late if fb.CNP in needs else none)
    # Rate of the queue that stands for none: nothing waits there.
    rates = jnp.append(net.port_rate, jnp.inf)
    if cfg.n_ways > 1:
        queues = _probed(cfg, queues)
    line = fb.Line(
        # Histories are `memory` substeps long. CNPs have a delay line of their own.
        delay=jnp.minimum(delay, cfg.memory - 1) if needs - {fb.CNP} else delay,
        far=far,
        back_wait=back_wait,
        stalled=stalled,
        queues=queues,
        hop_rate=rates[queues // c] if needs & {fb.TELEMETRY, fb.PROBE} else None,
        packet=net.packet_bytes,
    )
    return line, flows, late_flows


def _passable(up: Bool[Array, "rows flows"], share: Array | None) -> Bool[Array, " flows"]:
    """Whether any way that takes new bytes works, `[F]`; `up` says which rows work."""
    if share is None:
        return up.all(0)
    works = up.reshape(-1, *share.shape).all(0)
    return (works & (share > 0)).any(0)


def _probed(cfg: SimConfig, queues: Int[Array, "rows flows"]) -> Int[Array, "levels flows"]:
    """One queue per level for telemetry and probes: that of new bytes, `[L, F]`."""
    if cfg.load_balancing == FLOWLET:
        return queues[:: cfg.n_ways]
    return queues.reshape(-1, cfg.n_ways, queues.shape[1]).min(1)


def _residual(cfg: SimConfig, state: SimState, net: NetParams) -> Array:
    """Mean wait of an ACK for the data packet that a port without a queue is sending, µs, `[Q]`."""
    data = jnp.maximum(state.sent - state.ack_rate * cfg.dt_us, 0.0).reshape(-1, cfg.n_classes)
    rate = net.port_rate[:, None]
    wait = data / (cfg.dt_us * rate) * net.packet_bytes / (2.0 * rate)
    return wait.reshape(-1) * jnp.clip(1.0 - state.queue / net.packet_bytes, 0.0, 1.0)
