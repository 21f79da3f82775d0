"""All levels of queues on the way through the switches, one after the other, in one substep.

Fluid that finds empty queues crosses all levels at once; propagation delay is part of the feedback
delay and of the completion time instead.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._errors import bad_value
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core import last_byte, ways
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.nic import Sent
from ecn_marl.sim.core.queues import Ecn, Fluid, Level, Served, Service, serve_level, tail_drop
from ecn_marl.sim.core.slots import in_use, segment_sum
from ecn_marl.sim.state import Flows, NetParams, SimState


class Ports(NamedTuple):
    """Limits and settings of the ports, constant within a tick.

    Attributes:
        capacity: bytes each may send per substep, `[P]`.
        rate: link rates, bytes/µs, `[P]`.
        weights: round-robin weight of each class, `[C]`.
        packet: wire bytes of a packet.
        ecn: thresholds, `[Q]`.
        open: which queues are not paused, `[Q]`.
        ack_bytes: ACK bytes that join each queue per substep, `[Q]`.
        accept: whether bytes may enter each level, `[L W, F]`.
        limit: largest queue of the classes that drop on their own account, bytes, `[Q]`; None
            without such.
        buffer: shared buffer of each switch, bytes, `[S]`.
        site: switch of each port, and of the queue of each flow at each level (S for none), where
            full buffers drop, `[P]` and `[L W, F]`; None where pauses keep them from filling.
        share: share of each way in what flows send, `[W, F]`; None with one way, see `ways`.
    """

    capacity: Float[Array, " ports"]
    rate: Float[Array, " ports"]
    weights: Float[Array, " classes"]
    packet: Float[Array, ""]
    ecn: Ecn
    open: Bool[Array, " queues"]
    ack_bytes: Float[Array, " queues"]
    accept: Bool[Array, "rows flows"]
    limit: Float[Array, " queues"] | None
    buffer: Float[Array, " switches"]
    site: tuple[Int[Array, " ports"], Int[Array, "rows flows"]] | None
    share: Float[Array, "ways flows"] | None = None


class Moved(NamedTuple):
    """Result of one substep of all queues.

    Attributes:
        out: bytes delivered per flow, `[F]`.
        log_survival: `-log` of the chance that a packet crosses all hops unmarked, `[F]`.
        wait: forward queueing delay at the end of the substep, µs, `[F]`.
        pool: ACKs and released data left in the queues, `[2, Q]`.
        released: bytes of released flows that left.
        dropped: bytes of each flow that were dropped, `[F]`.
        queue: backlog of each queue, bytes, `[Q]`.
        sent: bytes sent by each queue, `[Q]`.
        mark: marking probability of each queue, `[Q]`.
        pace: rate at which each queue is served, bytes/µs, `[Q]`.
        last: last bytes at the end of the substep.
        by_way: bytes delivered by each way, `[W, F]`; None with one.
    """

    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    pool: Float[Array, "2 queues"]
    released: Float[Array, ""]
    dropped: Float[Array, " flows"]
    queue: Float[Array, " queues"]
    sent: Float[Array, " queues"]
    mark: Float[Array, " queues"]
    pace: Float[Array, " queues"]
    last: last_byte.LastByte
    by_way: Float[Array, "ways flows"] | None = None


def forward(
    cfg: SimConfig, state: SimState, sent: Sent, ports: Ports, busy: Bool[Array, " flows"]
) -> tuple[Flows, Moved]:
    """Move bytes through all levels of queues.

    Args:
        cfg: shapes and clocks.
        state: state at the start of the substep; its queues and their pools are read.
        sent: what the NICs sent in it.
        ports: limits and settings of the ports.
        busy: slots in use, `[F]`.

    Returns:
        Slots with new backlogs (dropped bytes are to be sent again), and the result.
    """
    flows, queue, c, w = sent.flows, state.queue, cfg.n_classes, cfg.n_ways
    busy = ways.per_way(busy, w)
    moving = sent.give
    if ports.share is not None:
        moving = in_use((ports.share * sent.give).reshape(-1), busy)
    dropped = jnp.zeros_like(moving)
    way = _Way(*(jnp.zeros_like(moving),) * 3)
    last = last_byte.start(flows, sent, ports.share)
    levels = []
    pool = state.pool.at[0].add(ports.ack_bytes)
    service = Service(ports.weights, ports.packet, cfg.dt_us, cfg.softness, cfg.mark_quantum)
    free = None if ports.site is None else _free_buffer(queue, ports)
    # Unrolled, since levels have different numbers of queues.
    for i, (low, high) in enumerate(itertools.pairwise(cfg.queue_bounds)):
        span = slice(low, high)
        entering, free = _entering(moving, flows, busy, (i, w), span, queue, free, ports)
        dropped = dropped + (moving - entering)
        hop = ways.level(flows.hop, i, w)
        fluid = Fluid(
            backlog=in_use(ways.level(flows.backlog, i, w), busy),
            entering=entering,
            due=in_use(ways.level(flows.due, i, w), busy),
            hop=hop,
        )
        burst = last_byte.burst(last, i, entering, way.behind, hop, high - low, cfg.dt_us)
        served = serve_level(fluid, _level(pool, queue, span, c, ports), burst, service)
        moving = in_use(served.out, busy)
        last = last_byte.cross(last, i, served.standing, entering, hop, cfg.dt_us)
        way = _further(way, served, ways.meetings(hop, w))
        levels.append(served)
    dropped = ways.total(dropped, w)
    along = ways.Joined(moving, way.log_survival, way.wait)
    along = ways.joined(along, ports.share)
    # A flow whose last byte was in the network may have lost it: it sends again.
    back = (dropped > 0) & (flows.stage > life.SENDING) & (flows.stage < life.DONE)
    flows = replace(
        flows,
        backlog=ways.stacked([s.backlog for s in levels], w),
        rest_low=flows.rest_low + dropped,
        stage=jnp.where(back, life.SENDING, flows.stage),
    )
    return flows, _moved(levels, along, moving, dropped, last, ports)


def _moved(
    levels: list[Served],
    along: ways.Joined,
    moving: Float[Array, " n"],
    dropped: Float[Array, " flows"],
    last: last_byte.LastByte,
    ports: Ports,
) -> Moved:
    """The result of all levels; `moving` bytes of each way left the last one, `[W F]`."""
    return Moved(
        out=along.out,
        log_survival=along.log_survival,
        wait=along.wait,
        pool=jnp.concatenate([s.pool for s in levels], axis=1),
        released=sum((s.pool_out[1].sum() for s in levels), jnp.zeros((), moving.dtype)),
        dropped=dropped,
        queue=jnp.concatenate([s.queue for s in levels]),
        sent=jnp.concatenate([s.sent for s in levels]),
        mark=jnp.concatenate([s.mark for s in levels]),
        pace=jnp.concatenate([s.pace for s in levels]),
        last=last,
        by_way=None if ports.share is None else moving.reshape(ports.share.shape),
    )


def _entering(
    arriving: Float[Array, " n"],
    flows: Flows,
    busy: Bool[Array, " n"],
    position: tuple[int, int],
    span: slice,
    queue: Float[Array, " queues"],
    free: Float[Array, " switches"] | None,
    ports: Ports,
) -> tuple[Float[Array, " n"], Float[Array, " switches"] | None]:
    """How many of the `arriving` bytes enter a level, and the free buffers then; others drop.

    `position` is the number of the level and that of the ways; `span` are its queues. Bytes that a
    done flow left upstream are never dropped: a FIFO has delivered them.
    """
    i, w = position
    entering = jnp.where(ways.level(ports.accept, i, w), arriving, 0.0)
    stage = ways.per_way(flows.stage, w)
    if ports.limit is not None:
        room = ports.limit[span] - queue[span]
        keep = tail_drop(entering, ways.level(flows.hop, i, w), room)
        entering = in_use(jnp.where(stage == life.DONE, entering, entering * keep), busy)
    if ports.site is not None and free is not None:
        switch = ways.level(ports.site[1], i, w)
        keep = jnp.where(stage == life.DONE, 1.0, tail_drop(entering, switch, free))
        entering = in_use(entering * keep, busy)
        # A switch may have ports on several levels: what enters here takes room there.
        free = jnp.maximum(free - segment_sum(entering, switch, free.shape[0]), 0.0)
    return entering, free


def _level(pool: Array, queue: Array, span: slice, c: int, ports: Ports) -> Level:
    """The level with the queues `span`, `c` per port."""
    port_span = slice(span.start // c, span.stop // c)
    return Level(
        pool=pool[:, span],
        capacity=ports.capacity[port_span],
        open=ports.open[span],
        rate=ports.rate[port_span],
        ecn=Ecn(ports.ecn.kmin[span], ports.ecn.kmax[span], ports.ecn.pmax[span]),
        queue=queue[span],
    )


class _Way(NamedTuple):
    """Sums along each way, leaves `[W F]`; the first two as in `Moved`.

    Attributes:
        log_survival: see there.
        wait: see there.
        behind: bytes queued at the levels passed, after the substep.
    """

    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    behind: Float[Array, " flows"]


def _further(way: _Way, served: Served, meeting: Array | None) -> _Way:
    """One level further."""
    behind = ways.together(way.behind, meeting)
    return _Way(
        log_survival=way.log_survival + served.log_survival,
        # When a byte sent now reaches this level, all bytes of its flow further back are here too.
        wait=served.wait + jnp.maximum(way.wait, behind * served.slowness),
        behind=way.behind + served.backlog,
    )


def _free_buffer(queue: Float[Array, " queues"], ports: Ports) -> Float[Array, " switches"]:
    """Bytes that fit into the shared buffer of each switch in a substep, `[S]`.

    Bytes that its ports send in the substep make room.
    """
    assert ports.site is not None
    buffer, n = ports.buffer, ports.capacity.shape[0]
    by_port = queue.reshape(n, -1).sum(1)
    staying = by_port - jnp.minimum(by_port, ports.capacity)
    return jnp.maximum(buffer - segment_sum(staying, ports.site[0], buffer.shape[0]), 0.0)


def own_queues(cfg: SimConfig, flows: Flows) -> Int[Array, "rows flows"]:
    """Queue of every flow at every level of every way, `Q` for none, `[L W, F]`."""
    bounds = np.array(cfg.queue_bounds, np.int32)[:, None]
    low, high = (np.repeat(b, cfg.n_ways, axis=0) for b in (bounds[:-1], bounds[1:]))
    on_level = flows.hop < high - low
    return jnp.where(on_level, low + flows.hop, bounds[-1])


def queue_waits(state: SimState, net: NetParams) -> Float[Array, " queues"]:
    """Virtual waiting time of every queue at its present pace, µs, `[Q]`."""
    return state.queue / (net.port_rate if state.pace is None else state.pace)


def per_queue(cfg: SimConfig, ecn: Ecn) -> Ecn:
    """Thresholds of every queue, `[Q]`: those of its class, or of its port.

    Raises:
        ValueError: thresholds that are neither `[P]` nor `[P, C]`.
    """
    n, c = cfg.topology.n_ports, cfg.n_classes

    def to_queues(x: ArrayLike) -> Array:
        x = jnp.asarray(x)
        if x.shape not in ((n,), (n, c)):
            raise bad_value("shape of ecn", x.shape, f"({n},) or ({n}, {c}): ports, or and classes")
        return jnp.broadcast_to(x.reshape(n, -1), (n, c)).reshape(-1)

    return Ecn(to_queues(ecn.kmin), to_queues(ecn.kmax), to_queues(ecn.pmax))


def sites(cfg: SimConfig, queues: Array) -> tuple[Array, Array]:
    """Switch of every port, `[P]`, and of each flow's queue at each level, `[L W, F]`."""
    site = jnp.asarray(cfg.topology.port_switch())
    none = jnp.int32(cfg.topology.n_switches)
    # The last entry is for levels that a flow passes by.
    return site, jnp.append(jnp.repeat(site, cfg.n_classes), none)[queues]
