"""What a host does with bytes that arrive: it counts them, and knows when the last one is through.

That is read off the virtual waiting time, see `queues.serve_level`.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from ecn_marl.sim import lifecycle as life
from ecn_marl.sim.hops import Moved
from ecn_marl.sim.nic import Sent
from ecn_marl.sim.state import Flows


def advance_clocks(flows: Flows, moved: Moved, sent: Sent, dt: float) -> Flows:
    """Let a substep pass for everything that is timed per flow.

    The last byte of a flow waits the forward queueing delay it finds, interpolated to the moment
    within the substep when it is sent. Linear interpolation takes arrivals as spread evenly over
    the substep; the flow's own all come before its last byte, which is added. From then on the wait
    is told anew from the queues that are still ahead of it (`last_byte`), or, where last bytes are
    not followed, counted down at the pace of the queues on the way.

    Args:
        flows: slots.
        moved: what the queues did.
        sent: what the senders did.
        dt: substep, µs.
    """
    part = sent.at / dt
    found = flows.wait + (moved.wait - flows.wait) * part
    found = found + moved.own * (1.0 - part) + moved.residual
    waiting = flows.start_in >= dt
    fresh = (flows.start_in > 0) & ~waiting
    gate = jnp.where(waiting | fresh, moved.wait, flows.gate - dt)
    left = flows.tail
    if moved.ahead is not None:
        # Other classes came or went: what is ahead of the last byte takes longer, or less long.
        stretch = moved.ahead / jnp.maximum(flows.wait, 1e-6)
        changed = (flows.stage == life.DRAINING) & (left > 0) & (flows.wait > 1e-6)
        left = jnp.where(changed & (moved.ahead > 0), left * stretch, left)
    left = left - dt
    beyond = flows.beyond
    if moved.last is not None and moved.beyond is not None:
        last_byte, (wait, own) = moved.last, moved.beyond
        draining = flows.stage == life.DRAINING
        held = last_byte.shut.any(0)
        goes = draining & ((flows.tail > 0) | held)
        told = beyond + (wait - beyond) * part + own * (1.0 - part)
        told = jnp.where(sent.finished, told, wait)
        beyond = jnp.where(goes, last_byte.tail - last_byte.head, jnp.where(draining, beyond, told))
        # Before the substep it was on its way, so it did not leave earlier than that.
        earliest = jnp.where(held, last_byte.tail, -dt)
        left = jnp.where(goes, jnp.maximum(last_byte.tail, earliest), left)
    last = found + sent.at
    if flows.flowlets is not None:  # a message is there when its older flowlets are, too
        last = jnp.maximum(last, flows.flowlets.behind)
    tail = jnp.where(sent.finished, last - dt, left)
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
