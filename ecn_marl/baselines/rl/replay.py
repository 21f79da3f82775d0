"""Replay memories on the device: rings of rows, sampling by reward, exchange between agents.

A memory is a `Ring`: a pytree of arrays whose leading axis is its capacity, overwritten from the
oldest row on. A memory for each agent is a `Ring` whose leaves have one more leading axis A; the
functions here are for one ring and are mapped over agents with `jax.vmap`.

ACC (SIGCOMM'21, §3.4) keeps a local memory at every switch and one global memory, between which
experience is sampled periodically, both ways: `exchange`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl._types import Leaf

FLOOR = 0.1
"""Priority of the smallest reward in a memory where the largest has 1 + `FLOOR`."""


@struct.dataclass
class Ring:
    """A memory of the latest rows.

    Attributes:
        rows: pytree of the rows, leaves `[capacity, ...]`.
        head: slot that is written next.
        size: number of slots that hold a row; they are the first ones.
    """

    rows: PyTree
    head: Leaf
    size: Leaf

    @property
    def capacity(self) -> int:
        """Number of slots (of a single ring, not of one per agent)."""
        return int(jax.tree.leaves(self.rows)[0].shape[0])


def empty(example: PyTree, capacity: int) -> Ring:
    """A ring without rows.

    Args:
        example: one row, arrays or `jax.ShapeDtypeStruct`.
        capacity: number of slots.
    """
    rows = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)
    zero = jnp.zeros((), jnp.int32)
    return Ring(rows, zero, zero)


def copies(tree: PyTree, n: int) -> PyTree:
    """A pytree `n` times over, leaves `[n, ...]`: a ring per agent, a gate per environment."""
    return jax.tree.map(lambda x: jnp.repeat(x[None], n, axis=0), tree)


def append(
    ring: Ring, rows: PyTree, keep: Bool[Array, " n"] | None = None
) -> tuple[Ring, Int[Array, ""]]:
    """Write rows in order, over the oldest ones where the ring is full.

    Args:
        ring: the ring.
        rows: leaves `[n, ...]`.
        keep: which rows are written, all if None. Where they exceed the capacity, the last remain.

    Returns:
        The ring, and how many rows were lost: overwritten, or not written because there were more
        than the ring holds.
    """
    n, capacity = jax.tree.leaves(rows)[0].shape[0], ring.capacity
    keep = jnp.ones((n,), bool) if keep is None else keep
    total = jnp.sum(keep, dtype=jnp.int32)
    rank = jnp.cumsum(keep, dtype=jnp.int32) - 1
    written = keep & (rank >= total - capacity)
    # How many rows are kept is known only at run time, so all are written; rows that are not
    # wanted go to a slot out of range, and `mode="drop"` leaves them out.
    slot = jnp.where(written, (ring.head + rank) % capacity, capacity)
    stored = jax.tree.map(lambda old, new: old.at[slot].set(new, mode="drop"), ring.rows, rows)
    lost = jnp.maximum(ring.size + total - capacity, 0)
    head = (ring.head + total) % capacity
    return Ring(stored, head, jnp.minimum(ring.size + total, capacity)), lost


def drawn(ring: Ring, key: jax.Array, n: int) -> PyTree:
    """Rows drawn uniformly, with repetition, leaves `[n, ...]`; the ring holds one at least."""
    slot = jax.random.randint(key, (n,), 0, ring.size)
    return jax.tree.map(lambda x: x[slot], ring.rows)


@struct.dataclass
class SamplingTable:
    """Probabilities of drawing each row of a ring.

    Attributes:
        probability: `[capacity]`, 0 where no row is held.
        cumulative: `[capacity]`, its running sum.
        size: number of rows held.
    """

    probability: Leaf
    cumulative: Leaf
    size: Leaf


def sampling_table(
    score: Float[Array, " capacity"], size: Int[Array, ""], exponent: float | Float[Array, ""]
) -> SamplingTable:
    """Probabilities that prefer large scores: P(i) ∝ p_i^exponent (Schaul et al. 2016, Eq. 1).

    ACC says "actions resulting large reward will be prioritised" (§4.3) and gives no formula. Here
    p_i = `FLOOR` + (s_i - min s) / (max s - min s). It does not depend on the unit or the offset of
    the rewards, and the smallest one is still drawn.

    Args:
        score: score of every slot, e.g. its reward.
        size: rows held, in the first slots.
        exponent: 0 draws uniformly.
    """
    filled = jnp.arange(score.shape[0]) < size
    low = jnp.min(jnp.where(filled, score, jnp.inf))
    high = jnp.max(jnp.where(filled, score, -jnp.inf))
    # Equal scores would divide 0 by 0; in an empty memory the difference is minus infinity.
    score_range = jnp.where(high > low, high - low, 1.0)
    # Slots without a row may hold anything: they count as the lowest, then as nothing.
    priority = FLOOR + (jnp.where(filled, score, low) - low) / score_range
    weight = jnp.where(filled, priority**exponent, 0.0)
    # An empty memory has no weight: 0 / 0.
    probability = weight / jnp.maximum(jnp.sum(weight), 1e-30)
    return SamplingTable(probability, jnp.cumsum(probability), size)


def draw(
    key: jax.Array, table: SamplingTable, n: int, correction: float
) -> tuple[Int[Array, " n"], Float[Array, " n"]]:
    """Slots drawn with replacement, and the weights that undo the preference.

    Args:
        key: PRNG key.
        table: probabilities of the rows.
        n: number of draws.
        correction: exponent beta of the weights (N P(i))^-beta, scaled so that the largest weight
            of the memory is 1 (Schaul et al. 2016, §3.4). 1 makes the mean of the weighted rows
            that of uniform draws (but for a factor), 0 gives all rows weight 1.
    """
    # The last sum, not 1: rounding may leave it below, and points above it would hit no row.
    point = jax.random.uniform(key, (n,)) * table.cumulative[-1]
    slot = jnp.searchsorted(table.cumulative, point, side="right")
    # In an empty memory all sums are 0, and the search ends behind the last slot.
    slot = jnp.clip(slot, 0, jnp.maximum(table.size - 1, 0))
    least = jnp.min(jnp.where(table.probability > 0.0, table.probability, jnp.inf))
    weight = (table.probability[slot] / least) ** -correction
    return slot, weight


def draw_each(
    key: jax.Array, rings: Ring, table: SamplingTable, n: int, correction: float
) -> tuple[PyTree, Float[Array, "n agents"]]:
    """Rows that every agent draws from its own ring, and their weights; see `draw`.

    Args:
        key: PRNG key.
        rings: a ring per agent, leaves with a leading axis A.
        table: their tables, leaves with a leading axis A.
        n: number of draws of each agent.
        correction: exponent of the weights.

    Returns:
        Rows, leaves `[n, A, ...]`, and weights.
    """
    keys = jax.random.split(key, rings.size.shape[0])
    slot, weight = jax.vmap(draw, (0, 0, None, None))(keys, table, n, correction)
    rows = jax.tree.map(
        lambda x: jax.vmap(lambda column, i: column[i], out_axes=1)(x, slot), rings.rows
    )
    return rows, weight.T


class Moved(NamedTuple):
    """Rows that an exchange moved, in all."""

    up: Array
    """Rows copied from local memories to the global one."""
    down: Array
    """Rows copied from the global memory to local ones."""
    lost_up: Array
    """Rows that the global memory lost."""
    lost_down: Array
    """Rows that the local memories lost."""


def exchange(
    key: jax.Array, local: Ring, shared: Ring, up: int, down: int
) -> tuple[Ring, Ring, Moved]:
    """Sample experience from every local memory to the global one, then back (ACC, §3.4).

    Rows are copied; both directions draw uniformly with replacement, as minibatches are drawn. A
    memory never gives more rows than it holds.

    Args:
        key: PRNG key.
        local: a ring per agent, leaves with a leading axis A.
        shared: the global ring, of the same rows.
        up: rows that every agent gives.
        down: rows that every agent gets.

    Returns:
        Local rings, global ring, and numbers of rows.
    """
    agents = local.size.shape[0]
    up_key, down_key = jax.random.split(key)
    rows, keep = jax.vmap(_pick, (0, 0, None))(jax.random.split(up_key, agents), local, up)
    flat = jax.tree.map(lambda x: x.reshape(agents * up, *x.shape[2:]), rows)
    shared, lost_up = append(shared, flat, keep.reshape(-1))
    copied_up = keep.sum(dtype=jnp.int32)
    rows, keep = jax.vmap(_pick, (0, None, None))(jax.random.split(down_key, agents), shared, down)
    local, lost_down = jax.vmap(append)(local, rows, keep)
    copied_down = keep.sum(dtype=jnp.int32)
    return local, shared, Moved(copied_up, copied_down, lost_up, lost_down.sum(dtype=jnp.int32))


def _pick(key: jax.Array, ring: Ring, n: int) -> tuple[PyTree, Bool[Array, " n"]]:
    """`n` rows at random, and which of them count: no more than the ring holds."""
    # An empty range is not allowed; what an empty ring gives is marked as not counting.
    slot = jax.random.randint(key, (n,), 0, jnp.maximum(ring.size, 1))
    return jax.tree.map(lambda x: x[slot], ring.rows), jnp.arange(n) < ring.size
