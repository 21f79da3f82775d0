"""Arrivals at hosts: they count bytes, and learn when the last byte of a flow arrives.

That time follows from the virtual waiting time, see `queues.serve_level`.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.hops import Moved
from ecn_marl.sim.nic import Sent
from ecn_marl.sim.state import Flows


def advance_clocks(flows: Flows, moved: Moved, sent: Sent, dt: float) -> Flows:
    """Let a substep pass for all clocks of the flows.

    The last byte of a flow waits for the forward queueing delay, interpolated to the moment within
    the substep when it is sent. Linear interpolation spreads arrivals evenly over the substep; the
    flow's own bytes all arrive before its last byte, so their wait is added. From then on the wait
    is computed again from the queues that are still ahead of it (`last_byte`), or, where last bytes
    are not tracked, counted down at the pace of the queues on the way.

    Args:
        flows: slots.
        moved: what the queues did.
        sent: what the senders did.
        dt: substep, µs.
    """
    part = sent.finished_at / dt
    queue_wait = flows.wait + (moved.wait - flows.wait) * part
    queue_wait = queue_wait + moved.own * (1.0 - part) + moved.residual
    waiting = flows.start_in >= dt
    fresh = (flows.start_in > 0) & ~waiting
    gate = jnp.where(waiting | fresh, moved.wait, flows.gate - dt)
    remaining = flows.tail
    if moved.ahead is not None:
        # Other classes begin or end: the bytes ahead of the last byte take longer, or less long.
        stretch = moved.ahead / jnp.maximum(flows.wait, 1e-6)
        # A wait of nothing has no pace to change, and `stretch` would be a quotient of roundings.
        changed = (flows.stage == life.DRAINING) & (remaining > 0) & (flows.wait > 1e-6)
        remaining = jnp.where(changed & (moved.ahead > 0), remaining * stretch, remaining)
    remaining = remaining - dt
    beyond = flows.beyond
    if moved.last is not None and moved.beyond is not None:
        last_byte, (wait, own) = moved.last, moved.beyond
        draining = flows.stage == life.DRAINING
        paused = last_byte.shut.any(0)
        under_way = draining & ((flows.tail > 0) | paused)
        later_wait = beyond + (wait - beyond) * part + own * (1.0 - part)
        later_wait = jnp.where(sent.finished, later_wait, wait)
        beyond = jnp.where(
            under_way, last_byte.tail - last_byte.head, jnp.where(draining, beyond, later_wait)
        )
        # It was under way before the substep, so it cannot have left earlier.
        earliest = jnp.where(paused, last_byte.tail, -dt)
        remaining = jnp.where(under_way, jnp.maximum(last_byte.tail, earliest), remaining)
    arrival = queue_wait + sent.finished_at
    if flows.flowlets is not None:  # a message is complete once its older flowlets are
        arrival = jnp.maximum(arrival, flows.flowlets.behind)
    tail = jnp.where(sent.finished, arrival - dt, remaining)
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
        level=None if moved.last is None else jnp.where(sent.finished, 0, moved.last.level),
        beyond=beyond,
        by_way=None if moved.by_way is None else flows.by_way + moved.by_way,
    )
