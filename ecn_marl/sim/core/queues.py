"""Queues: ECN marking, one level of fluid FIFO service, drops.

Marking follows RED as switches implement it (on the instantaneous egress queue, at dequeue).
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE, Real, check_value
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.core.slots import look_up_fields, look_up_one, segment_sum
from ecn_marl.sim.core.ways import MAX_MARK
from ecn_marl.sim.state import NetParams
from ecn_marl.sim.units import GBPS, KB

LARGEST_KB = 1e9
"""Deepest threshold, KB: a terabyte."""

STEEP = 0.01
"""A ramp this many times as wide as the softness, or narrower, is a step: the two differ by less
than 1e-6."""


@struct.dataclass
class Ecn:
    """RED/ECN thresholds of every port.

    Attributes:
        kmin: queue where marking starts, bytes, `[P]`.
        kmax: queue above which every packet is marked, bytes, `[P]`.
        pmax: marking probability at `kmax`, in (0, 1], `[P]`.
    """

    kmin: Annotated[Leaf, NOT_NEGATIVE]
    kmax: Annotated[Leaf, POSITIVE]
    pmax: Annotated[Leaf, FRACTION]


ROUNDING = 1e-4
"""A marking probability this little below a step, in steps, is at it."""


def mark_probability(
    queue: Float[Array, " ports"], ecn: Ecn, softness: float = 0.0, quantum: float = 0.0
) -> Float[Array, " ports"]:
    """Probability that a packet leaving a queue is marked.

    Zero up to `kmin`, linear to `pmax` at `kmax`, one above (Zhu et al., SIGCOMM'15, Fig. 5). With
    `kmin = kmax` that is a step, as DCTCP has it: zero up to and including `kmin`, one above.
    With a softness w the corners are rounded by softplus and the jump by a logistic step, both of
    width w; it tends to the above as w goes to 0, and has gradients everywhere. With a quantum
    the ramp is a stair, as in switches whose probabilities are whole percents.

    Args:
        queue: backlog after the packet has left, bytes, `[P]`.
        ecn: thresholds of the ports.
        softness: width of the rounding, bytes; 0 for none.
        quantum: height of a step of the ramp, rounded down; 0 for none. Without softness only.

    Returns:
        Probabilities in [0, 1], `[P]`.
    """
    if softness > 0:
        low, high = (queue - ecn.kmin) / softness, (queue - ecn.kmax) / softness
        rounded = jax.nn.softplus(low) - jax.nn.softplus(high)
        width, step = ecn.kmax - ecn.kmin, STEEP * softness
        # Of a steep ramp the difference is lost to rounding; its limit is a logistic step, too.
        ramp = rounded * softness / jnp.maximum(width, step)
        ramp = jnp.where(width < step, jax.nn.sigmoid(0.5 * (low + high)), ramp)
        return ecn.pmax * ramp + (1.0 - ecn.pmax) * jax.nn.sigmoid(high)
    # A step (Kmin = Kmax, as DCTCP has it) must not divide by zero.
    ramp = (queue - ecn.kmin) / jnp.maximum(ecn.kmax - ecn.kmin, 1.0)
    chance = ecn.pmax * jnp.clip(ramp, 0.0, 1.0)
    if quantum > 0:
        chance = quantum * jnp.floor(chance / quantum + ROUNDING)
    return jnp.where(queue > ecn.kmax, 1.0, chance)


class Fluid(NamedTuple):
    """Bytes of the flows at one level of queues, in one substep.

    Attributes:
        backlog: bytes queued there at the start of the substep, `[F]`.
        entering: bytes that arrive in it, `[F]`.
        due: bytes that are to leave in it, see `sim.core.fifo`, `[F]`.
        hop: local index of the flow's queue, `n` for flows that pass this level by, `[F]`.
    """

    backlog: Float[Array, " flows"]
    entering: Float[Array, " flows"]
    due: Float[Array, " flows"]
    hop: Int[Array, " flows"]


class Level(NamedTuple):
    """Ports and queues of one level; the queues of a port, one per class, are side by side.

    Attributes:
        pool: bytes that belong to no slot (ACKs; data of released flows), `[kinds, n]`.
        queue: backlog at the start of the substep, bytes, `[n]`.
        open: which queues are not paused, `[n]`.
        ecn: thresholds, `[n]`.
        capacity: bytes each port may send in this substep, `[P]`.
        rate: link rates, bytes/µs, `[P]`.
    """

    pool: Float[Array, "kinds n"]
    queue: Float[Array, " n"]
    open: Bool[Array, " n"]
    ecn: Ecn
    capacity: Float[Array, " ports"]
    rate: Float[Array, " ports"]


class Service(NamedTuple):
    """How all ports serve and mark.

    Attributes:
        weights: round-robin weight of each class, `[C]`.
        packet: wire bytes of a packet.
        dt: substep, µs.
        softness: see `mark_probability`, as for the next.
        quantum: see there.
    """

    weights: Float[Array, " classes"]
    packet: Float[Array, ""]
    dt: float
    softness: float = 0.0
    quantum: float = 0.0


PARTS = 4
"""Parts of a substep at whose ends it is known what has arrived, see `Burst`."""


class Burst(NamedTuple):
    """Bytes of flows that begin or end at the queues of a level within a substep, `[n]` each.

    Attributes:
        fresh: bytes arriving of flows that start within the substep.
        moment: the same, times when they start, bytes µs.
        arrived: bytes of flows that begin or end, or have a last byte in the network, that have
            arrived by the end of each part of the substep, `[PARTS, n]`.
        ending: bytes that arrive in each part, of flows whose last byte does, `[PARTS, n]`.
        owed: bytes still at levels before, of flows whose last byte has come this far.
    """

    fresh: Float[Array, " n"]
    moment: Float[Array, " n"]
    arrived: Float[Array, "parts n"]
    ending: Float[Array, "parts n"]
    owed: Float[Array, " n"]


class Standing(NamedTuple):
    """Values by which last bytes take their places in the queues of a level, `[n]` each.

    Attributes:
        queued: bytes there at the start of the substep, and those that `Burst.owed` counts.
        evenly: bytes that arrive in it of flows that are not in `burst`.
        idle: time before anything arrives, µs.
        service: bytes that the queue can send in the substep, were there as many.
        residual: mean wait for a packet of another flow that is being sent by a port without a
            queue, µs.
        burst: bytes of flows that begin or end.
    """

    queued: Float[Array, " n"]
    evenly: Float[Array, " n"]
    idle: Float[Array, " n"]
    service: Float[Array, " n"]
    residual: Float[Array, " n"]
    burst: Burst


class Served(NamedTuple):
    """Result of one level in one substep.

    Attributes:
        backlog: bytes of each flow that stay, `[F]`.
        out: bytes of each flow that leave, `[F]`.
        log_survival: `-log(1 - p)` of the marking probability p that a packet meets, `[F]`.
        wait: waiting time of the queue, µs, `[F]`.
        pool: bytes that belong to no slot and stay, `[kinds, n]`.
        pool_out: those that leave, `[kinds, n]`.
        queue: backlog, bytes, `[n]`.
        sent: bytes sent, `[n]`.
        mark: marking probability, `[n]`.
        pace: rate at which each queue is served, bytes/µs, `[n]`.
        slowness: its inverse, µs/byte, 0 for flows that pass by, `[F]`.
        standing: what last bytes need, `[n]`.
    """

    backlog: Float[Array, " flows"]
    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    pool: Float[Array, "kinds n"]
    pool_out: Float[Array, "kinds n"]
    queue: Float[Array, " n"]
    sent: Float[Array, " n"]
    mark: Float[Array, " n"]
    pace: Float[Array, " n"]
    slowness: Float[Array, " flows"]
    standing: Standing


def serve_level(flows: Fluid, level: Level, burst: Burst, service: Service) -> Served:
    """Serve every port of one level for one substep.

    A port sends at most its capacity, shared among its classes by their weights. Within a class
    every flow first sends its `due` bytes (see `fifo`), then all share the remaining capacity in
    proportion to their remaining backlog. That fixes how much of every flow is in the queue, but
    not *when* a given byte leaves: the last bytes of a flow would leave exponentially late. They
    leave when the port has sent all that was ahead of them, see `last_byte`.

    Flows that start within the substep have the port from then on only, see `_arrived`.

    Bytes that leave in a substep are marked by the queue in the middle of it. The queue at its end
    would make every mark half a substep early, which damps the oscillation of shallow queues.

    Args:
        flows: bytes of the flows here.
        level: ports and queues.
        burst: bytes of flows that begin or end here within the substep.
        service: how they serve.
    """
    n = level.open.shape[0]
    backlog = flows.backlog + flows.entering
    # A batch never takes more than its flow still has: bytes that ports count stay exact.
    due = jnp.minimum(flows.due, backlog)
    # One scatter of pairs, not two: every scatter ends a fused loop of XLA.
    total, planned = segment_sum(jnp.stack([backlog, due], -1), flows.hop, n).T
    total = total + level.pool.sum(axis=0)
    arrived, idle = _arrived(total, burst, level, service)
    link = _send(jnp.where(level.open, arrived, 0.0), level, service)
    queue = total - link.sent
    due_part, rest_part = _parts(total, planned, link.sent)
    mark = mark_probability(
        0.5 * (level.queue + queue), level.ecn, service.softness, service.quantum
    )
    table = _AtQueue(
        due_part,
        rest_part,
        log_survival=-jnp.log1p(-jnp.minimum(mark, MAX_MARK)),
        wait=queue / link.pace,
        slowness=1.0 / link.pace,
    )
    at_queue = look_up_fields(table, flows.hop, PASSING)
    due_out = due * at_queue.due_part
    # Rounding may make the sum a little more, or less, than the backlog.
    out = jnp.minimum(due_out + (backlog - due_out) * at_queue.rest_part, backlog)
    # A queue that empties keeps exactly 0 bytes of a flow; rounding would leave some 1e-8.
    out = jnp.where(at_queue.rest_part < 1.0, out, backlog)
    pool_out = level.pool * rest_part
    return Served(
        backlog=backlog - out,
        out=out,
        log_survival=at_queue.log_survival,
        wait=at_queue.wait,
        pool=level.pool - pool_out,
        pool_out=pool_out,
        queue=queue,
        sent=link.sent,
        mark=mark,
        pace=link.pace,
        slowness=at_queue.slowness,
        standing=Standing(
            queued=level.queue + burst.owed,
            evenly=jnp.maximum(total - level.queue - burst.arrived[-1], 0.0),
            idle=idle,
            service=_could_send(queue, link, level, service),
            residual=_residual(queue, burst.arrived[-1], link, service),
            burst=burst,
        ),
    )


def _arrived(
    total: Float[Array, " n"],
    burst: Burst,
    level: Level,
    service: Service,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Bytes that each queue can have sent if its port has served it alone, and its idle time, µs.

    Before flows start, the port sends what is queued and what arrives from others. Where that is
    less than it could send, the rest of the time until then is lost. Two bounds of it hold, and the
    smaller counts: one takes all flows to start at their mean start, exact where they do; the other
    is at most a part of the substep too large.

    Args:
        total: bytes queued at the start and arriving, `[n]`.
        burst: those of flows that start within the substep.
        level: ports and queues.
        service: how they serve.
    """
    n_classes = service.weights.shape[0]
    capacity = jnp.repeat(level.capacity, n_classes, total_repeat_length=total.shape[0])
    part = burst.moment / jnp.maximum(burst.fresh, 1e-6) / service.dt
    lost = capacity * part - level.queue - (total - level.queue - burst.fresh) * part
    # As if what arrives in a part arrived at its end.
    ends = jnp.arange(1, PARTS + 1)[:, None] / PARTS
    evenly = total - level.queue - burst.arrived[-1]
    arrived = jnp.concatenate([jnp.zeros_like(burst.arrived[:1]), burst.arrived[:-1]])
    by_parts = capacity * ends - level.queue - evenly * (ends - 1.0 / PARTS) - arrived
    lost = jnp.minimum(lost, by_parts.max(0))
    # The slack of 1e-6 keeps rounding from leaving a thousandth of a byte in an empty queue.
    lost = jnp.maximum(lost, 0.0) * (1.0 - 1e-6)
    idle = lost / jnp.maximum(capacity, 1e-3) * service.dt
    return jnp.minimum(total, capacity - lost), idle


class _Sending(NamedTuple):
    """Bytes that ports send, for each of their queues, `[n]`.

    `sent` bytes of the queue and `load` bytes of its port, at the `rate` of the link; `pace` is the
    rate at which the queue is served (bytes/µs).
    """

    sent: Float[Array, " n"]
    pace: Float[Array, " n"]
    rate: Float[Array, " n"]
    load: Float[Array, " n"]


def _send(ready: Float[Array, " n"], level: Level, service: Service) -> _Sending:
    """Send the `ready` bytes (0 while paused), up to the capacities of the ports."""
    rate, n, c = level.rate, ready.shape[0], service.weights.shape[0]
    if c == 1:
        sent = jnp.minimum(ready, level.capacity)
        return _Sending(sent, pace=rate, rate=rate, load=sent)
    sent, pace = round_robin(ready, level.capacity, rate, service.weights)
    load = sent.reshape(-1, c).sum(1)
    return _Sending(
        sent,
        pace,
        rate=jnp.repeat(rate, c, total_repeat_length=n),
        load=jnp.repeat(load, c, total_repeat_length=n),
    )


def _parts(
    total: Float[Array, " n"], planned: Float[Array, " n"], sent: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Parts of the due bytes, and of the other bytes, that leave each queue, in [0, 1]."""
    # The floors are large enough for derivatives in float32.
    due_part = jnp.where(planned > sent, sent / jnp.maximum(planned, 1e-15), 1.0)
    free, excess = jnp.maximum(sent - planned, 0.0), jnp.maximum(total - planned, 0.0)
    excess_part = jnp.where(excess > free, free / jnp.maximum(excess, 1e-15), 1.0)
    return due_part, jnp.where(free > 0, excess_part, jnp.where(total > sent, 0.0, 1.0))


class _AtQueue(NamedTuple):
    """Values at a queue that its flows need, one per queue `[n]`, then one per flow `[F]`.

    Attributes:
        due_part: part of the bytes due that leave.
        rest_part: part of all others that leave.
        log_survival: `-log(1 - p)` of the marking probability p.
        wait: waiting time, µs.
        slowness: time a byte takes, µs.
    """

    due_part: Array
    rest_part: Array
    log_survival: Array
    wait: Array
    slowness: Array


PASSING = {"due_part": 1.0, "rest_part": 1.0}
"""Values for flows without a queue at a level: all bytes leave at once. Others are 0."""


def _could_send(
    queue: Float[Array, " n"], link: _Sending, level: Level, service: Service
) -> Float[Array, " n"]:
    """Bytes that each queue can send in the substep, were there as many, `[n]`."""
    if service.weights.shape[0] == 1:
        return jnp.where(level.open, level.capacity, 0.0)
    return jnp.where(queue > 0, link.sent, link.pace * service.dt)


def _residual(
    queue: Float[Array, " n"], events: Float[Array, " n"], link: _Sending, service: Service
) -> Float[Array, " n"]:
    """Mean wait for a packet that is being sent by a port without a queue, µs, `[n]`.

    The port sends packets of others for a share of the time, and half a packet is left on average.
    The bytes of flows that begin or end in the substep count by themselves, see `last_byte`.
    """
    packet = service.packet
    share = jnp.maximum(link.load - events, 0.0) / (service.dt * link.rate)
    return jnp.clip(1.0 - queue / packet, 0.0, 1.0) * share * packet / (2.0 * link.rate)


def round_robin(
    ready: Float[Array, " n"],
    capacity: Float[Array, " ports"],
    rate: Float[Array, " ports"],
    weights: Float[Array, " classes"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Deficit-weighted round robin among the classes of each port, as a fluid.

    Every class gets its weighted share; the part that a class does not need goes to the others in
    proportion to their weights (weighted max-min fairness; Shreedhar and Varghese, SIGCOMM'95, in
    the limit of small packets).

    Args:
        ready: bytes that each queue could send, 0 while paused, `[n]`, `n = ports * classes`.
        capacity: bytes each port may send.
        rate: link rates, bytes/µs.
        weights: weight of each class.

    Returns:
        Bytes sent by each queue, and the rate at which its backlog is served: its share of what
        the classes without a backlog leave of the link (bytes/µs), `[n]` each.
    """
    c = weights.shape[0]
    demand = ready.reshape(-1, c)
    sent, spare = jnp.zeros_like(demand), capacity[:, None]
    # C rounds suffice: each satisfies a class for good, or shares out all that is left.
    for _ in range(c):
        missing = demand - sent
        wanting = jnp.where(missing > 0, weights, 0.0)
        # Ports that no class wants anything of would divide 0 by 0.
        share = spare * wanting / jnp.maximum(wanting.sum(1, keepdims=True), 1e-30)
        added = jnp.minimum(missing, share)
        sent = jnp.minimum(sent + added, demand)
        spare = jnp.maximum(spare - added.sum(1, keepdims=True), 0.0)

    def others(x: Array) -> Array:
        return x.sum(1, keepdims=True) - x

    backlogged = demand > sent
    # The capacity is 0 where ACKs of a class of their own, or a failed link, leave nothing.
    free = 1.0 - others(jnp.where(backlogged, 0.0, sent)) / jnp.maximum(capacity[:, None], 1e-3)
    part = weights / (others(jnp.where(backlogged, weights, 0.0)) + weights)
    pace = rate[:, None] * jnp.maximum(free * part, weights / weights.sum())
    return sent.reshape(-1), pace.reshape(-1)


def tail_drop(
    entering: Float[Array, " flows"], hop: Int[Array, " flows"], room: Float[Array, " n"]
) -> Float[Array, " flows"]:
    """Share of the entering bytes that fit into the queue of each flow, `[F]`."""
    n = room.shape[0]
    arriving = segment_sum(entering, hop, n)
    # The floor is large enough for derivatives in float32.
    keep = jnp.clip(room / jnp.maximum(arriving, 1e-3), 0.0, 1.0)
    table = jnp.append(keep, 1.0)
    return look_up_one(table, hop)


def checked_thresholds(
    setting: tuple[float, ...] | list[float], field: str = "", above_zero: bool = False
) -> tuple[float, float, float]:
    """Check Kmin and Kmax in KB, and Pmax; Kmin = Kmax is a step.

    Args:
        setting: the three.
        field: their name, for the error; none if empty.
        above_zero: whether Kmin has to be above 0.

    Returns:
        The three as floats.

    Raises:
        InvalidValue: not three numbers, or not `0 <= Kmin <= Kmax`, `0 < Kmax <= LARGEST_KB`,
            `0 < Pmax <= 1`.
    """
    if not isinstance(setting, tuple | list) or len(setting) != 3:
        allowed = "three numbers Kmin, Kmax, Pmax (KB, KB, probability)"
        raise bad_value(field or "Kmin, Kmax, Pmax", setting, allowed)
    prefix, depth = f"{field}: " if field else "", Real(low=0.0, high=LARGEST_KB)
    if not depth.fits(setting[0]) or not depth.fits(setting[1]):
        numbers = f"two numbers of KB from 0 to {LARGEST_KB:g}"
        raise bad_value(f"{prefix}Kmin, Kmax", tuple(setting[:2]), numbers)
    if not Real(above=0.0, high=1.0).fits(setting[2]):
        raise bad_value(f"{prefix}Pmax", setting[2], "a probability in (0, 1]")
    kmin, kmax, pmax = (float(x) for x in setting)
    if kmin > kmax or kmax == 0.0 or (above_zero and kmin == 0.0):
        order = "0 < Kmin <= Kmax" if above_zero else "0 <= Kmin <= Kmax and Kmax > 0"
        raise bad_value(f"{prefix}Kmin, Kmax", (kmin, kmax), f"{order} (KB)")
    return kmin, kmax, pmax


def scaled_ecn(
    net: NetParams, kmin_kb: float, kmax_kb: float, pmax: float, base_gbps: float = 25.0
) -> Ecn:
    """The same setting on every port, thresholds scaled with the link rate.

    Args:
        net: the network.
        kmin_kb: threshold where marking starts on a port of `base_gbps`, KB.
        kmax_kb: threshold above which all is marked on a port of `base_gbps`, KB; `kmin_kb` for a
            step.
        pmax: marking probability at `kmax`.
        base_gbps: rate the thresholds are for, Gb/s.

    Returns:
        Thresholds of all ports, `[P]`.

    Raises:
        ValueError: no numbers, or not `0 <= kmin <= kmax`, `0 < pmax <= 1`, or a rate of 0.
    """
    kmin_kb, kmax_kb, pmax = checked_thresholds((kmin_kb, kmax_kb, pmax))
    check_value("base_gbps", base_gbps, Real(above=0.0, unit="Gb/s"))
    scale = jnp.asarray(net.port_rate) / (base_gbps * GBPS)
    return Ecn(kmin_kb * KB * scale, kmax_kb * KB * scale, jnp.full_like(scale, pmax))
