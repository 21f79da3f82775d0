"""Arrivals at hosts: they count bytes, and learn when the last byte of a flow arrives."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl.sim.core import last_byte
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.hops import Moved
from ecn_marl.sim.core.nic import Sent
from ecn_marl.sim.state import Flows


def advance_clocks(
    flows: Flows, moved: Moved, sent: Sent, dt: float, left_us: Float[Array, ""]
) -> Flows:
    """Let a substep pass for all clocks of the flows.

    Args:
        flows: slots.
        moved: what the queues did.
        sent: what the senders did.
        dt: substep, µs.
        left_us: time from its end to that of the tick, µs.
    """
    waiting = flows.start_in >= dt
    fresh = (flows.start_in > 0) & ~waiting
    gate = jnp.where(waiting | fresh, moved.wait, flows.gate - dt)
    flows = last_byte.landed(flows, moved.last, dt, left_us)
    return replace(
        flows,
        stage=jnp.where(
            sent.finished & (flows.stage == life.SENDING) & (flows.rest_low <= 0),
            life.DRAINING,
            flows.stage,
        ),
        gate=gate,
        wait=moved.wait,
        start_in=jnp.maximum(flows.start_in - dt, -dt),
        delivered=flows.delivered + moved.out,
        by_way=None if moved.by_way is None else flows.by_way + moved.by_way,
    )
