"""Constructs that are there for the compilers, XLA and `ecn_marl.lanes`, and why.

None of them is physics: results would be the same with plain indexing and without masks. `busy`, of
`lanes`, marks which slots are in use: so `lanes` knows which slots it may skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from ecn_marl.lanes import busy
from ecn_marl.sim.state import Flows

__all__ = ["busy", "in_use", "kept", "look_up", "look_up_fields", "look_up_one", "segment_sum"]

T = TypeVar("T", bound=Any)


def kept(flows: Flows, before: Flows, busy: Bool[Array, " flows"]) -> Flows:
    """Slots in use as they are now, free ones as they were.

    Why: a free slot that never changes is one that `lanes` can prove it may pass over.

    Of the senders' leaves, only arrays with slots on their last axis, `[..., F]`, stay as they
    were: a transport may have other leaves, too.

    Args:
        flows: slots now.
        before: slots at an earlier moment.
        busy: which are in use, `[F]`.
    """

    def keep(new: Array, old: Array) -> Array:
        return new if new is old else jnp.where(busy, new, old)

    def sender(new: Array, old: Array) -> Array:
        return keep(new, old) if jnp.shape(new)[-1:] == busy.shape else new

    senders = jax.tree.map(sender, flows.transport, before.transport)
    others = jax.tree.map(keep, replace(flows, transport=None), replace(before, transport=None))
    return replace(others, transport=senders)


def in_use(
    values: Float[Array, "*levels flows"], busy: Bool[Array, " flows"]
) -> Float[Array, "*levels flows"]:
    """Values of the slots in use, 0 for free ones.

    Why: free slots hold zeros here anyway, but only a mask lets `lanes` prove that a sum may pass
    over them.

    Args:
        values: a number per slot, `[F]` or `[L, F]`.
        busy: which are in use, `[F]`.
    """
    return jnp.where(busy, values, 0.0)


def segment_sum(
    values: Float[Array, "flows ..."], index: Int[Array, " flows"], size: int
) -> Float[Array, "segments ..."]:
    """Sum `values` into `size` segments; index `size` (and only that) is left out.

    Why: a row for what is left out spares the compilers a check of every index.
    """
    sums = jnp.zeros((size + 1, *values.shape[1:]), values.dtype)
    return sums.at[index].add(values, mode="promise_in_bounds")[:size]


def look_up(
    table: Shaped[Array, "rows columns"], index: Int[Array, "*n"]
) -> Shaped[Array, "*n columns"]:
    """Rows of a small table, computed once.

    Why: XLA fuses the computation of a table into the gather that reads it, and so computes an
    entry again for every reader, thousands of times for a table of a few ports; a product with the
    identity is exact for finite entries, and no backend fuses across it.

    Args:
        table: finite numbers; at least two columns (XLA turns a product with a 1 x 1 matrix into a
            fusible multiplication).
        index: rows wanted, in bounds.
    """
    # Of numpy: as an operation XLA would make it anew in every substep on a GPU, two launches each.
    rows = table @ np.eye(table.shape[1], dtype=table.dtype)
    return rows.at[index].get(mode="promise_in_bounds")


def look_up_fields(table: T, index: Int[Array, "*n"], beyond: Mapping[str, float]) -> T:
    """Rows of a small table whose columns are the fields of a named tuple, computed once.

    Why: one gather of whole rows is cheaper than one for each column.

    Args:
        table: finite numbers, `[n]` each; None for absent columns.
        index: rows wanted, up to `n`.
        beyond: numbers of row `n`, 0 for names without one.

    Returns:
        The fields of the rows, in the shape of `index`.
    """
    names = [name for name in table._fields if getattr(table, name) is not None]
    columns = jnp.stack([getattr(table, name) for name in names], axis=-1)
    last = jnp.array([[beyond.get(name, 0.0) for name in names]], columns.dtype)
    rows = look_up(jnp.concatenate([columns, last]), index)
    return table._replace(**{name: rows[..., i] for i, name in enumerate(names)})


def look_up_one(table: Shaped[Array, " rows"], index: Int[Array, "*n"]) -> Shaped[Array, "*n"]:
    """Entries of a small table of one column, computed once.

    Why: `look_up` needs two columns, so the only one is there twice.

    Args:
        table: finite numbers, or flags.
        index: entries wanted, in bounds.
    """
    pair = jnp.stack([table, table], -1)
    if pair.dtype == bool:
        return look_up(pair.astype(jnp.result_type(float)), index)[..., 0] > 0
    return look_up(pair, index)[..., 0]
