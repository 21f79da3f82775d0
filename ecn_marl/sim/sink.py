"""Arrivals at hosts: they count bytes, and learn when the last byte of a flow arrives."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from ecn_marl.sim import last_byte
from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.hops import Moved
from ecn_marl.sim.nic import Sent
from ecn_marl.sim.state import Flows


def advance_clocks(flows: Flows, moved: Moved, sent: Sent, dt: float) -> Flows:
    """Let a substep pass for all clocks of the flows.

    Args:
        flows: slots.
        moved: what the queues did.
        sent: what the senders did.
        dt: substep, µs.
    """
    waiting = flows.start_in >= dt
    fresh = (flows.start_in > 0) & ~waiting
    gate = jnp.where(waiting | fresh, moved.wait, flows.gate - dt)
    n_ways, n_levels = flows.level.shape[0], flows.backlog.shape[0] // flows.level.shape[0]
    now, left, at = last_byte.arrival(moved.last, n_levels, n_ways)
    if flows.flowlets is not None:  # a message is complete once its older flowlets are
        at = jnp.maximum(at, flows.flowlets.behind)
    # Above 0 while the last byte is in the network; then it counts down.
    tail = jnp.where(now, at, jnp.where(left, flows.tail, 2.0 * dt)) - dt
    return replace(
        flows,
        stage=jnp.where(
            sent.finished & (flows.stage == life.SENDING) & (flows.rest_low <= 0),
            life.DRAINING,
            flows.stage,
        ),
        gate=gate,
        tail=tail,
        wait=moved.wait,
        start_in=jnp.maximum(flows.start_in - dt, -dt),
        delivered=flows.delivered + moved.out,
        level=moved.last.level.reshape(flows.level.shape),
        ahead=moved.last.ahead.reshape(flows.ahead.shape),
        by_way=None if moved.by_way is None else flows.by_way + moved.by_way,
    )
