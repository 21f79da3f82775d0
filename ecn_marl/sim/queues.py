"""Queues: ECN marking, one level of fluid FIFO service, and PFC on a shared buffer.

Marking follows RED as switches implement it (on the instantaneous egress queue, at dequeue); PFC
uses dynamic thresholds on the shared buffer (alibaba-edu HPCC simulator, `switch-mmu`; equations in
Zhu et al., SIGCOMM'15, §4).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from ecn_marl._types import Leaf

MAX_MARK = 1.0 - 2.0**-20
"""Largest marking probability per packet that is sampled; keeps the log-survival finite."""


@struct.dataclass
class Ecn:
    """RED/ECN thresholds of every port.

    Attributes:
        kmin: queue where marking starts, bytes, `[P]`.
        kmax: queue above which every packet is marked, bytes, `[P]`.
        pmax: marking probability at `kmax`, in (0, 1], `[P]`.
    """

    kmin: Leaf
    kmax: Leaf
    pmax: Leaf


def mark_probability(
    queue: Float[Array, " ports"], ecn: Ecn, softness: float = 0.0
) -> Float[Array, " ports"]:
    """Probability that a packet leaving a queue is marked.

    Zero up to `kmin`, linear to `pmax` at `kmax`, one above (Zhu et al., SIGCOMM'15, Fig. 5).
    With a softness w the corners are rounded by softplus and the jump by a logistic step, both of
    width w; it tends to the above as w goes to 0, and has gradients everywhere.

    Args:
        queue: backlog after the packet has left, bytes, `[P]`.
        ecn: thresholds of the ports.
        softness: width of the rounding, bytes; 0 for none.

    Returns:
        Probabilities in [0, 1], `[P]`.
    """
    if softness > 0:
        low, high = (queue - ecn.kmin) / softness, (queue - ecn.kmax) / softness
        rounded = jax.nn.softplus(low) - jax.nn.softplus(high)
        ramp = rounded * softness / jnp.maximum(ecn.kmax - ecn.kmin, 1.0)
        return ecn.pmax * ramp + (1.0 - ecn.pmax) * jax.nn.sigmoid(high)
    ramp = (queue - ecn.kmin) / jnp.maximum(ecn.kmax - ecn.kmin, 1.0)
    return jnp.where(queue > ecn.kmax, 1.0, ecn.pmax * jnp.clip(ramp, 0.0, 1.0))


def segment_sum(
    values: Float[Array, " flows"], index: Int[Array, " flows"], size: int
) -> Float[Array, " segments"]:
    """Sum `values` into `size` segments; index `size` (and only that) is left out."""
    sums = jnp.zeros((size + 1,), values.dtype)
    return sums.at[index].add(values, mode="promise_in_bounds")[:size]


def look_up(
    table: Shaped[Array, "rows columns"], index: Int[Array, "*n"]
) -> Shaped[Array, "*n columns"]:
    """Rows of a small table, computed once.

    XLA fuses what computes a table into the gather that reads it, and so computes an entry again
    for every reader: thousands of times for a table of a few ports. A product with the identity is
    exact for finite entries, and no backend fuses across it.

    Args:
        table: finite numbers; at least two columns (XLA turns a product with a 1 x 1 matrix into a
            fusible multiplication).
        index: rows wanted, in bounds.
    """
    once = table @ jnp.eye(table.shape[1], dtype=table.dtype)
    return once.at[index].get(mode="promise_in_bounds")


class Served(NamedTuple):
    """What one level did in one substep; ports are those of the level, `[n]`, flows `[F]`."""

    backlog: Float[Array, " flows"]
    out: Float[Array, " flows"]
    log_survival: Float[Array, " flows"]
    wait: Float[Array, " flows"]
    pool: Float[Array, "kinds n"]
    pool_out: Float[Array, "kinds n"]
    queue: Float[Array, " n"]
    sent: Float[Array, " n"]
    mark: Float[Array, " n"]


def serve_level(
    backlog: Float[Array, " flows"],
    hop: Int[Array, " flows"],
    pool: Float[Array, "kinds n"],
    capacity: Float[Array, " n"],
    rate: Float[Array, " n"],
    ecn: Ecn,
    softness: float = 0.0,
) -> Served:
    """Serve every port of one level for one substep.

    A port sends at most its capacity, shared among flows in proportion to their backlog. That fixes
    how much of every flow is in the queue; *when* a given byte leaves is not read off it (the last
    bytes of a flow would leave exponentially late) but follows from the virtual waiting time
    `queue / rate` that is returned for every flow.

    Args:
        backlog: bytes of every flow at this level, arrivals of the substep included, `[F]`.
        hop: local index of the flow's port, `n` for flows that pass this level by, `[F]`.
        pool: bytes that belong to no slot (ACKs; data of released flows), `[kinds, n]`.
        capacity: bytes each port may send in this substep (0 while paused), `[n]`.
        rate: link rates, bytes/µs, `[n]`.
        ecn: thresholds of the ports of this level.
        softness: see `mark_probability`.

    Returns:
        New backlogs, bytes out, per-flow log-survival `-log(1 - p)` and waiting time (µs), and
        the ports' queues, bytes sent and marking probabilities.
    """
    n = rate.shape[0]
    total = segment_sum(backlog, hop, n) + pool.sum(axis=0)
    sent = jnp.minimum(total, capacity)
    queue = total - sent
    share = jnp.where(total > 0, sent / jnp.maximum(total, 1e-15), 1.0)
    mark = mark_probability(queue, ecn, softness)
    log_survival = -jnp.log1p(-jnp.minimum(mark, MAX_MARK))
    table = jnp.stack([share, log_survival, queue / rate], axis=-1)
    passing = jnp.array([[1.0, 0.0, 0.0]], table.dtype)
    mine = look_up(jnp.concatenate([table, passing]), hop)
    out = backlog * mine[:, 0]
    pool_out = pool * share
    return Served(
        backlog=backlog - out,
        out=out,
        log_survival=mine[:, 1],
        wait=mine[:, 2],
        pool=pool - pool_out,
        pool_out=pool_out,
        queue=queue,
        sent=sent,
        mark=mark,
    )


def water_level(
    demand: Float[Array, " flows"],
    src: Int[Array, " flows"],
    capacity: Float[Array, " hosts"],
    start: Float[Array, " hosts"],
) -> Float[Array, " hosts"]:
    """Round-robin (max-min) share of each host's NIC.

    The level `l` solves `sum_f min(demand_f, l) = capacity`; if the demands fit, none is limited.
    The left side is concave in `l`, so a Newton step from anywhere with a positive slope lands at
    or below the root: two steps from the last substep's level never overbook the NIC, and reach the
    root exactly once the set of limited flows has settled.

    Args:
        demand: bytes/µs each flow could send, 0 for idle slots, `[F]`.
        src: source host of each slot, `[F]`.
        capacity: bytes/µs each host may send, `[H]`.
        start: a level to start from, e.g. that of the last substep, `[H]`.

    Returns:
        The level, `[H]`; the capacity where all demands fit.
    """
    n = capacity.shape[0]
    level = start
    for _ in range(2):
        mine = look_up(jnp.stack([level, level], -1), src)[:, 0]
        above = (demand >= mine) & (demand > 0)
        small = segment_sum(jnp.where(above, 0.0, demand), src, n)
        many = segment_sum(above.astype(demand.dtype), src, n)
        settled = jnp.where(small <= capacity, capacity, 0.0)
        level = jnp.where(many > 0, (capacity - small) / jnp.maximum(many, 1.0), settled)
        level = jnp.maximum(level, 0.0)
    return level


class Pause(NamedTuple):
    """PFC state of the directed links (NICs first, then ports), `[H + P]`."""

    paused: Bool[Array, " links"]
    full: Bool[Array, " links"]
    started: Int[Array, ""]


def pfc(
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
        headroom: bytes set aside for what is in flight when a pause is sent, `[H + P]`.
        reserve: bytes of each ingress that count towards no threshold.
        resume_gap: hysteresis, bytes.

    Returns:
        The new pause state and the number of pauses that started.
    """
    free = jnp.maximum(shared - used, 0.0)
    threshold = alpha * jnp.append(free, jnp.inf)[link_switch]
    use = jnp.maximum(ingress - reserve, 0.0)
    stay = paused & (use + resume_gap > threshold)
    now = (use >= threshold) & (use > 0) | stay
    started = jnp.sum(now & ~paused)
    return Pause(now, use > threshold + headroom, started)


def exact_add(
    high: Int[Array, ...], low: Float[Array, ...], more: Float[Array, ...], unit: float
) -> tuple[Int[Array, ...], Float[Array, ...]]:
    """Add to a counter kept as `high * unit + low`, so that float32 never loses small increments.

    Args:
        high: whole units.
        low: rest, below `unit`.
        more: what to add, >= 0.
        unit: bytes per unit of `high`.
    """
    low = low + more
    carry = jnp.floor(low / unit)
    return high + carry.astype(high.dtype), low - carry * unit


def shift_register_or(
    register: jax.Array, hit: Bool[Array, " flows"], position: Int[Array, " flows"]
) -> jax.Array:
    """Set bit `position` (0..31) of each flow's uint32 `register` where `hit`."""
    bit = jnp.left_shift(jnp.uint32(1), jnp.clip(position, 0, 31).astype(jnp.uint32))
    return register | jnp.where(hit, bit, jnp.uint32(0))
