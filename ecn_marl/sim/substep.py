"""One substep: senders fill the network, queues move bytes, clocks advance.

The order within a substep is that of a byte: NIC (round robin), every level of queues, the feedback
(`feedback`), the senders' machines. Fluid that finds empty queues crosses all levels at once;
propagation delay is in the feedback delay and in the completion time instead.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ecn_marl.sim import flows as fl
from ecn_marl.sim.feedback import Line
from ecn_marl.sim.nic import Nic, Sent
from ecn_marl.sim.queues import Ecn, Fluid, Level, Service, serve_level, tail_drop
from ecn_marl.sim.slots import in_use, segment_sum
from ecn_marl.sim.state import Flows, NetParams


class Tick(NamedTuple):
    """What stays fixed within a tick.

    Attributes:
        nic: what the NICs may send.
        port_capacity: bytes each port may send per substep, `[P]`.
        open: which queues are not paused, `[Q]`.
        ack_bytes: ACK bytes that join each queue per substep, `[Q]`.
        line: feedback delays.
        busy: slots in use, `[F]`.
        accept: whether bytes may enter each level, `[L, F]`.
        limit: largest queue of the classes that drop on their own account, bytes, `[Q]`; None
            without such.
        site: switch of each port, and of the queue of each flow at each level (S for none), where
            full buffers drop, `[P]` and `[L, F]`; None where pauses keep them from filling.
        weights: round-robin weight of each class, `[C]`.
        transport: constants of the senders.
        ecn: thresholds, `[Q]`.
        net: the network.
    """

    nic: Nic
    port_capacity: Float[Array, " ports"]
    open: Bool[Array, " queues"]
    ack_bytes: Float[Array, " queues"]
    line: Line
    busy: Bool[Array, " flows"]
    accept: Bool[Array, "levels flows"]
    limit: Float[Array, " queues"] | None
    site: tuple[Int[Array, " ports"], Int[Array, "levels flows"]] | None
    weights: Float[Array, " classes"]
    transport: Any
    ecn: Ecn
    net: NetParams


class Moved(NamedTuple):
    """What the queues did in a substep.

    Attributes:
        out: bytes delivered per flow, `[F]`.
        log_survival: `-log` of the chance that a packet crosses all hops unmarked, `[F]`.
        wait: forward queueing delay at the end of the substep, µs, `[F]`.
        own: time the busy ports on the way take for the flow's bytes of this substep, µs, `[F]`.
        residual: mean wait for packets that are being sent by ports without a queue, µs, `[F]`.
        pool: ACKs and released data left in the queues, `[2, Q]`.
        released: bytes of released flows that left.
        dropped: bytes of each flow that were dropped, `[F]`.
        queue: backlog of each queue, bytes, `[Q]`.
        sent: bytes sent by each queue, `[Q]`.
        mark: marking probability of each queue, `[Q]`.
        pace: rate at which each queue is served, bytes/µs, `[Q]`.
        ahead: time the queues that were on the way take at these rates, µs, `[F]`; None with one
            traffic class.
    """

    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    own: Float[Array, " flows"]
    residual: Float[Array, " flows"]
    pool: Float[Array, "2 queues"]
    released: Float[Array, ""]
    dropped: Float[Array, " flows"]
    queue: Float[Array, " queues"]
    sent: Float[Array, " queues"]
    mark: Float[Array, " queues"]
    pace: Float[Array, " queues"]
    ahead: Float[Array, " flows"] | None


def forward(
    flows: Flows,
    pool: Float[Array, "2 queues"],
    queue: Float[Array, " queues"],
    give: Float[Array, " flows"],
    tick: Tick,
    bounds: tuple[int, ...],
    dt: float,
    softness: float = 0.0,
) -> tuple[Flows, Moved]:
    """Move bytes through all levels of queues.

    Args:
        flows: slots.
        pool: ACKs and released data in each queue, `[2, Q]`.
        queue: backlog of each queue, bytes, `[Q]`.
        give: bytes that enter the network, `[F]`.
        tick: constants of the tick.
        bounds: first queue of each level, and one past the last.
        dt: substep, µs.
        softness: width over which the marking curve is rounded, bytes.

    Returns:
        Slots with new backlogs (dropped bytes are to be sent again), and what moved.
    """
    x, dropped = give, jnp.zeros_like(give)
    log_survival = wait = own = residual = behind = jnp.zeros_like(give)
    ahead, was_behind = (None if tick.weights.shape[0] == 1 else wait), behind
    levels, backlog = [], []
    pool = pool.at[0].add(tick.ack_bytes)
    classes = tick.weights.shape[0]
    free = None if tick.site is None else _free_buffer(queue, tick)
    for i, (low, high) in enumerate(itertools.pairwise(bounds)):
        here, ports = slice(low, high), slice(low // classes, high // classes)
        entering = jnp.where(tick.accept[i], x, 0.0)
        if tick.limit is not None:
            room = tick.limit[here] - queue[here]
            keep = tail_drop(entering, flows.hop[i], room)
            entering = jnp.where(flows.stage == fl.DONE, entering, entering * keep)
        if tick.site is not None and free is not None:
            at = tick.site[1][i]
            kept = jnp.where(flows.stage == fl.DONE, 1.0, tail_drop(entering, at, free))
            entering = entering * kept
            free = jnp.maximum(free - segment_sum(entering, at, free.shape[0]), 0.0)
        dropped = dropped + (x - entering)
        served = serve_level(
            Fluid(
                in_use(flows.backlog[i], tick.busy),
                entering,
                in_use(flows.due[i], tick.busy),
                flows.hop[i],
            ),
            Level(
                pool=pool[:, here],
                capacity=tick.port_capacity[ports],
                open=tick.open[here],
                rate=tick.net.port_rate[ports],
                ecn=Ecn(tick.ecn.kmin[here], tick.ecn.kmax[here], tick.ecn.pmax[here]),
                queue=queue[here],
            ),
            Service(tick.weights, tick.net.packet_bytes, dt, softness),
        )
        x = in_use(served.out, tick.busy)
        log_survival = log_survival + served.log_survival
        # By the time the last byte comes here, all that its flow has further back is here too.
        wait = served.wait + jnp.maximum(wait, behind * served.slowness)
        if ahead is not None and served.ahead is not None:
            ahead = served.ahead + jnp.maximum(ahead, was_behind * served.slowness)
        behind, was_behind = behind + served.backlog, was_behind + flows.backlog[i]
        own, residual = own + served.own, residual + served.residual
        backlog.append(served.backlog)
        levels.append(served)
    back = (dropped > 0) & (flows.stage > fl.SENDING) & (flows.stage < fl.DONE)
    flows = replace(
        flows,
        backlog=jnp.stack(backlog),
        rest_low=flows.rest_low + dropped,
        stage=jnp.where(back, fl.SENDING, flows.stage),
    )
    return flows, Moved(
        out=x,
        log_survival=log_survival,
        wait=wait,
        own=own,
        residual=residual,
        pool=jnp.concatenate([s.pool for s in levels], axis=1),
        released=sum((s.pool_out[1].sum() for s in levels), jnp.zeros((), x.dtype)),
        dropped=dropped,
        queue=jnp.concatenate([s.queue for s in levels]),
        sent=jnp.concatenate([s.sent for s in levels]),
        mark=jnp.concatenate([s.mark for s in levels]),
        pace=jnp.concatenate([s.pace for s in levels]),
        ahead=ahead,
    )


def _free_buffer(queue: Float[Array, " queues"], tick: Tick) -> Float[Array, " switches"]:
    """Bytes that fit into the shared buffer of each switch in a substep, `[S]`.

    What its ports send in the substep makes room.
    """
    assert tick.site is not None
    buffer, ports = tick.net.buffer, tick.port_capacity.shape[0]
    by_port = queue.reshape(ports, -1).sum(1)
    staying = by_port - jnp.minimum(by_port, tick.port_capacity)
    return jnp.maximum(buffer - segment_sum(staying, tick.site[0], buffer.shape[0]), 0.0)


def advance_clocks(flows: Flows, moved: Moved, sent: Sent, dt: float) -> Flows:
    """Let a substep pass for everything that is timed per flow.

    The last byte of a flow waits the forward queueing delay it finds, interpolated to the moment
    within the substep when it is sent. Linear interpolation takes arrivals as spread evenly over
    the substep; the flow's own all come before its last byte, which is added. From then on the wait
    is counted down at the pace of the queues on the way.

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
        changed = (flows.stage == fl.DRAINING) & (left > 0) & (flows.wait > 1e-6)
        left = jnp.where(changed & (moved.ahead > 0), left * stretch, left)
    tail = jnp.where(sent.finished, found + sent.at, left) - dt
    return replace(
        flows,
        stage=jnp.where(
            sent.finished & (flows.stage == fl.SENDING) & (flows.rest_low <= 0),
            fl.DRAINING,
            flows.stage,
        ),
        gate=gate,
        tail=tail,
        wait=moved.wait,
        start_in=jnp.maximum(flows.start_in - dt, -dt),
        delivered=flows.delivered + moved.out,
    )
