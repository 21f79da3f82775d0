"""Look-ups, scatters, dynamic slices and sorts: positions that depend on data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.arithmetic import reduce
from ecn_marl.lanes.builder import Builder, constant_value
from ecn_marl.lanes.compat import aval_of, canonical, out_of_bounds
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, F32, I32, Place, View
from ecn_marl.lanes.primitives import primitive

GROUP = "Positions that depend on data"

COMBINING = {
    "scatter_add": "add",
    "scatter_mul": "mul",
    "scatter_min": "min",
    "scatter_max": "max",
}
"""How these scatters combine a new number with the old one; `scatter` replaces the old one."""


@primitive(GROUP, "gather")
def gather(build: Builder, eqn: JaxprEqn, x: View, index: View) -> list[View]:
    """Rows of a table; a view if positions are known when the program is compiled."""
    d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    shape = aval_of(eqn.outvars[0]).shape
    skipped = (*d.collapsed_slice_dims, *d.operand_batching_dims)
    window = [k for k in range(x.where.ndim) if k not in skipped]
    batch = [k for k in range(len(shape)) if k not in d.offset_dims]
    at = np.indices(shape, sparse=True)
    strides = _strides(x.where.shape)
    fixed = np.zeros(shape, np.int64)
    for k, o in zip(window, d.offset_dims, strict=True):
        fixed = fixed + at[o] * strides[k]
    rows = _rows(index, [at[k] for k in batch], shape)
    for k, i in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
        fixed = fixed + at[batch[i]] * strides[k]
    mode = _mode(eqn.params["mode"], "fill")
    mode = "clip" if mode == "promise" else mode  # XLA clips, too, if the promise is broken
    fill = eqn.params["fill_value"]
    if fill is None:
        # The default of `jax.lax.gather`; -1 is the largest unsigned number.
        fill = {F32: np.nan, I32: np.iinfo(np.int32).min}.get(x.node.dtype, -1)
    parts = [
        (rows[j], strides[k], x.where.shape[k] - sizes[k]) for j, k in enumerate(d.start_index_map)
    ]
    there = _fixed_place(fixed, parts) if mode == "clip" else None
    if there is not None:
        return [View(x.node, x.where.reshape(-1)[np.broadcast_to(there, shape)])]
    return [build.look_up(x, build.place(fixed, parts, mode), shape, fill)]


@primitive(GROUP, "dynamic_slice")
def dynamic_slice(build: Builder, eqn: JaxprEqn, x: View, *starts: View) -> list[View]:
    """A look-up whose position is clipped to the array."""
    shape = eqn.params["slice_sizes"]
    strides = _strides(x.where.shape)
    fixed = _offsets(shape, strides)
    parts = [
        (View(v.node, np.broadcast_to(v.where, shape)), s, n - k)
        for v, s, n, k in zip(starts, strides, x.where.shape, shape, strict=True)
        # A block as long as its axis can only start at 0.
        if n > k
    ]
    if not parts:
        return [x]
    return [build.look_up(x, build.place(fixed, parts, "clip"), shape)]


@primitive(GROUP, "dynamic_update_slice")
def dynamic_update_slice(
    build: Builder, eqn: JaxprEqn, x: View, new: View, *starts: View
) -> list[View]:
    """The array, then the block written over it at a position that is clipped to the array."""
    shape = new.where.shape
    strides = _strides(x.where.shape)
    fixed = _offsets(shape, strides)
    parts = [
        (View(v.node, np.broadcast_to(v.where, shape)), s, n - k)
        for v, s, n, k in zip(starts, strides, x.where.shape, shape, strict=True)
    ]
    whole = ("set", x, np.arange(x.where.size))
    place = build.place(fixed, parts, "clip")
    node = build.store(x.where.size, x.node.dtype, [whole, ("set", new, place)])
    return [View(node, np.arange(node.size).reshape(x.where.shape))]


@primitive(GROUP, *COMBINING)
@primitive(GROUP, "scatter", limits="a function (`at[].apply`)")
def scatter(build: Builder, eqn: JaxprEqn, x: View, index: View, new: View) -> list[View]:
    """The array, then its updates in order: each is written or combined with what is there."""
    d, shape = eqn.params["dimension_numbers"], new.where.shape
    op = COMBINING.get(canonical(eqn.primitive.name), "set")
    if op == "set" and eqn.params.get("update_jaxpr") is not None:
        raise Unsupported("'scatter' with a function")
    skipped = (*d.inserted_window_dims, *d.operand_batching_dims)
    window = [k for k in range(x.where.ndim) if k not in skipped]
    batch = [k for k in range(len(shape)) if k not in d.update_window_dims]
    at, strides = np.indices(shape, sparse=True), _strides(x.where.shape)
    fixed = np.zeros(shape, np.int64)
    extent = dict.fromkeys(range(x.where.ndim), 1)
    for k, o in zip(window, d.update_window_dims, strict=True):
        fixed = fixed + at[o] * strides[k]
        extent[k] = shape[o]
    for k, i in zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True):
        fixed = fixed + at[batch[i]] * strides[k]
    rows = _rows(index, [at[k] for k in batch], shape)
    mode = _mode(eqn.params["mode"], "drop")
    mode = "drop" if mode == "promise" else mode  # XLA drops, too, if the promise is broken
    parts = [
        (rows[j], strides[k], x.where.shape[k] - extent[k])
        for j, k in enumerate(d.scatter_dims_to_operand_dims)
    ]
    dtype = x.node.dtype
    whole, place = ("set", x, np.arange(x.where.size)), build.place(fixed, parts, mode)
    # Writes at fixed positions can share a loop with their values, and take no scatter.
    there = _fixed_place(fixed, parts) if mode != "drop" or _in_bounds(parts) else None
    to: Place | np.ndarray = place if there is None else np.broadcast_to(there, shape)
    node = build.store(x.where.size, dtype, [whole, (op, new, to)])
    return [View(node, np.arange(node.size).reshape(x.where.shape))]


@primitive(GROUP, "sort", limits="several keys")
def sort(build: Builder, eqn: JaxprEqn, *args: View) -> list[View]:
    """Stable sort of short rows: an element's rank is how many elements come before it."""
    axis, n = eqn.params["dimension"], args[0].where.shape[eqn.params["dimension"]]
    if eqn.params["num_keys"] != 1:
        raise Unsupported("a sort by several keys")
    keys = np.moveaxis(args[0].where, axis, -1)
    node, lead = args[0].node, keys.shape[:-1]
    own, other = View(node, keys[..., :, None]), View(node, keys[..., None, :])
    pairs = (*lead, n, n)
    # All pairs are compared: n^2 comparisons, but no exchange depends on data, so lanes stay
    # together.
    less = build.map("lt", BOOL, pairs, other, own)
    equal = build.map("eq", BOOL, pairs, other, own)
    # Equal elements keep their order, as `jax.lax.sort` is stable.
    earlier = build.constant(np.broadcast_to(np.tri(n, n, -1, bool), pairs))
    ahead = build.map("or", BOOL, pairs, less, build.map("and", BOOL, pairs, equal, earlier))
    rank = reduce(
        build, build.map("convert_element_type", I32, pairs, ahead), (len(lead) + 1,), "add"
    )
    fixed = np.broadcast_to((np.arange(math.prod(lead)).reshape(lead) * n)[..., None], (*lead, n))
    results = []
    for a in args:
        moved = View(a.node, np.moveaxis(a.where, axis, -1))
        place = build.place(fixed, [(rank, 1, n - 1)], "promise")
        target = build.store(moved.where.size, a.node.dtype, [("set", moved, place)])
        out = np.arange(target.size).reshape(*lead, n)
        results.append(View(target, np.moveaxis(out, -1, axis)))
    return results


def _fixed_place(fixed: np.ndarray, parts: list[tuple[View, int, int]]) -> np.ndarray | None:
    """Positions clipped to their bounds, if they are known when the program is compiled."""
    for view, stride, limit in parts:
        numbers = constant_value(view)
        if numbers is None:
            return None
        # 64 bits: unsigned indices would wrap around in 32.
        fixed = fixed + np.clip(numbers.astype(np.int64), 0, limit) * stride
    return np.asarray(fixed)


def _in_bounds(parts: list[tuple[View, int, int]]) -> bool:
    """Whether all positions are known and within bounds."""
    numbers = [(constant_value(view), limit) for view, _, limit in parts]
    return bool(parts) and all(
        n is not None and bool((n >= 0).all() and (n <= limit).all()) for n, limit in numbers
    )


def _strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, per axis."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _rows(index: View, batch: list[np.ndarray], shape: Sequence[int]) -> list[View]:
    """Components of an index array, each broadcast to the shape of the result or the updates."""
    return [
        View(
            index.node,
            np.broadcast_to(
                index.where[..., j][tuple(batch)] if batch else index.where[..., j], shape
            ),
        )
        for j in range(index.where.shape[-1])
    ]


def _mode(mode: object, fill: str) -> str:
    """What happens to positions out of bounds, in the words of `Place.mode`."""
    return {"fill_or_drop": fill}.get(out_of_bounds(mode), out_of_bounds(mode))


def _offsets(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """How far every element of a block is from its first."""
    offsets = np.zeros(shape, np.int64)
    for index, stride in zip(np.indices(shape, sparse=True), strides, strict=True):
        offsets = offsets + index * stride
    return offsets
