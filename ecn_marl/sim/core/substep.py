"""One substep, stage by stage: NIC, hops, feedback, sink, senders.

The order is that of a byte. Every stage is a function of its own module, and takes what the stage
before returns; another function with the same types may replace it. The feedback comes before the
sink, since it reads the clocks that the sink advances.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl.sim import feedback
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import flowlets, hops, nic, recovery, sink, slots, stats
from ecn_marl.sim.core.tick import Tick
from ecn_marl.sim.state import PortSums, SimState


def substep(
    cfg: SimConfig, state: SimState, sums: PortSums, slotless: Float[Array, "3"], tick: Tick
) -> tuple[SimState, PortSums, Array]:
    """Move senders and queues by `cfg.dt_us`.

    Args:
        cfg: shapes, clocks and senders.
        state: state at the start of the substep.
        sums: statistics of the ports.
        slotless: bytes of released flows that left, bytes dropped, and bytes to be sent again for
            them, since the tick began.
        tick: what is constant within the tick.

    Returns:
        State, statistics and `slotless` at its end.
    """
    dt, transport = cfg.dt_us, cfg.transport
    events = nic.events(state.flows, tick.nic, dt)
    senders = state.flows.transport
    rate, window = transport.rate(senders), transport.window(senders)
    room = None if window is None else feedback.room(state.echo.out, window, tick.line.packet)
    sent = nic.send(state.flows, state.level, tick.nic, rate, room, events, dt, transport.latched)
    flows, moved = hops.forward(cfg, state, sent, tick.ports, tick.busy)
    if flows.gaps is not None:
        line = tick.line
        flows, moved = recovery.discard(flows, moved, tick.busy, line.back_wait, line.packet, dt)
    # What the rests have gained: the bytes dropped, but for the rounding of the rests.
    again = slots.in_use(flows.rest_low - sent.flows.rest_low, tick.busy)
    observed = feedback.Observed(
        flows=flows,
        give=sent.give,
        rate=rate,
        dropped=moved.dropped,
        out=moved.out,
        log_survival=moved.log_survival,
        wait=moved.wait,
        queue=moved.queue,
        sent=moved.sent,
        busy=tick.busy,
    )
    echo, flows, signals = feedback.listen(
        state.echo,
        observed,
        tick.line,
        state.step,
        transport.needs,
        dt,
        _notify(cfg, tick),
        cfg.fine,
    )
    left_us = (cfg.tick_steps - 1 - state.step % cfg.tick_steps) * dt
    flows = sink.advance_clocks(flows, moved, sent, dt, left_us)
    if flows.flowlets is not None:
        updated = flowlets.advance(flows.flowlets, sent.give, moved.wait, tick.line.packet, dt)
        flows = replace(flows, flowlets=updated)
    senders = transport.update(flows.transport, tick.transport, signals, dt)
    state = replace(
        state,
        step=state.step + 1,
        flows=slots.kept(replace(flows, transport=senders), state.flows, tick.busy),
        echo=feedback.kept(echo, state.echo, tick.busy),
        pool=moved.pool,
        level=sent.level,
        queue=moved.queue,
        sent=moved.sent,
        # A single class is served at the rate of its link: nothing to carry through the loop.
        pace=None if cfg.n_classes == 1 else moved.pace,
    )
    slotless = slotless + jnp.stack([moved.released, moved.dropped.sum(), again.sum()])
    return state, stats.add(cfg, sums, moved), slotless


def _notify(cfg: SimConfig, tick: Tick) -> feedback.Notify | None:
    """The receivers' side of the senders, None if every mark leaves as a CNP."""
    notify = getattr(cfg.transport, "notify", None)
    if notify is None:
        return None
    return lambda senders, marked: notify(senders, tick.transport, marked, cfg.dt_us)
