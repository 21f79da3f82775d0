"""Gathers, scatters, dynamic slices and sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ecn_marl.lanes.arithmetic import Arithmetic
from ecn_marl.lanes.builder import known
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, F32, I32, View

SCATTERS = {
    "scatter": "set",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "mul",
    "scatter_mul": "mul",
    "scatter-min": "min",
    "scatter_min": "min",
    "scatter-max": "max",
    "scatter_max": "max",
}


class Positions(Arithmetic):
    """Rules for primitives with positions that depend on data."""

    def _gather(self, eqn: Any, x: View, index: View) -> list[View]:
        d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        shape = eqn.outvars[0].aval.shape
        if 0 in shape:
            return [View(x.node, np.zeros(shape, np.int64))]
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
        mode = "clip" if mode == "promise" else mode  # as XLA does
        fill = eqn.params["fill_value"]
        if fill is None:
            fill = {F32: np.nan, I32: np.iinfo(np.int32).min}.get(x.node.dtype, -1)
        parts = [
            (rows[j], strides[k], x.where.shape[k] - sizes[k])
            for j, k in enumerate(d.start_index_map)
        ]
        there = _fixed_place(fixed, parts) if mode == "clip" else None
        if there is not None:
            return [View(x.node, x.where.reshape(-1)[np.broadcast_to(there, shape)])]
        return [self.look_up(x, self._place(fixed, parts, mode), shape, fill)]

    def _dynamic_slice(self, eqn: Any, x: View, *starts: View) -> list[View]:
        shape = eqn.params["slice_sizes"]
        strides = _strides(x.where.shape)
        fixed = _offsets(shape, strides)
        parts = [
            (View(v.node, np.broadcast_to(v.where, shape)), s, n - k)
            for v, s, n, k in zip(starts, strides, x.where.shape, shape, strict=True)
            if n > k
        ]
        if not parts:
            return [x]
        return [self.look_up(x, self._place(fixed, parts, "clip"), shape)]

    def _dynamic_update_slice(self, eqn: Any, x: View, new: View, *starts: View) -> list[View]:
        shape = new.where.shape
        strides = _strides(x.where.shape)
        fixed = _offsets(shape, strides)
        parts = [
            (View(v.node, np.broadcast_to(v.where, shape)), s, n - k)
            for v, s, n, k in zip(starts, strides, x.where.shape, shape, strict=True)
        ]
        whole = ("set", x, np.arange(x.where.size))
        place = self._place(fixed, parts, "clip")
        node = self.store(x.where.size, x.node.dtype, [whole, ("set", new, place)])
        return [View(node, np.arange(node.size).reshape(x.where.shape))]

    def _scatter(self, eqn: Any, x: View, index: View, new: View) -> list[View]:
        d, shape = eqn.params["dimension_numbers"], new.where.shape
        op = SCATTERS[eqn.primitive.name]
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
        mode = "drop" if mode == "promise" else mode  # as XLA does
        parts = [
            (rows[j], strides[k], x.where.shape[k] - extent[k])
            for j, k in enumerate(d.scatter_dims_to_operand_dims)
        ]
        dtype = x.node.dtype
        whole, place = ("set", x, np.arange(x.where.size)), self._place(fixed, parts, mode)
        there = _fixed_place(fixed, parts) if mode != "drop" or _in_bounds(parts) else None
        to: Any = place if there is None else np.broadcast_to(there, shape)
        node = self.store(x.where.size, dtype, [whole, (op, new, to)])
        return [View(node, np.arange(node.size).reshape(x.where.shape))]

    _scatter_add = _scatter_mul = _scatter_min = _scatter_max = _scatter

    def _sort(self, eqn: Any, *args: View) -> list[View]:
        """Stable sort of short rows: the rank of an element is how many come before it."""
        axis, n = eqn.params["dimension"], args[0].where.shape[eqn.params["dimension"]]
        if eqn.params["num_keys"] != 1:
            raise Unsupported("a sort by several keys")
        keys = np.moveaxis(args[0].where, axis, -1)
        node, lead = args[0].node, keys.shape[:-1]
        mine, other = View(node, keys[..., :, None]), View(node, keys[..., None, :])
        pairs = (*lead, n, n)
        less = self.map("lt", BOOL, pairs, other, mine)
        equal = self.map("eq", BOOL, pairs, other, mine)
        earlier = self.constant(np.broadcast_to(np.tri(n, n, -1, bool), pairs))
        ahead = self.map("or", BOOL, pairs, less, self.map("and", BOOL, pairs, equal, earlier))
        rank = self._reduce(
            self.map("convert_element_type", I32, pairs, ahead), (len(lead) + 1,), "add"
        )
        fixed = np.broadcast_to(
            (np.arange(math.prod(lead)).reshape(lead) * n)[..., None], (*lead, n)
        )
        found = []
        for a in args:
            moved = View(a.node, np.moveaxis(a.where, axis, -1))
            place = self._place(fixed, [(rank, 1, n - 1)], "promise")
            sorted_ = self.store(moved.where.size, a.node.dtype, [("set", moved, place)])
            out = np.arange(sorted_.size).reshape(*lead, n)
            found.append(View(sorted_, np.moveaxis(out, -1, axis)))
        return found


def _fixed_place(fixed: np.ndarray, parts: list[tuple[View, int, int]]) -> np.ndarray | None:
    """Positions clipped to their bounds, if they are known when the program is compiled."""
    for view, stride, limit in parts:
        numbers = known(view)
        if numbers is None:
            return None
        fixed = fixed + np.clip(numbers.astype(np.int64), 0, limit) * stride
    return np.asarray(fixed)


def _in_bounds(parts: list[tuple[View, int, int]]) -> bool:
    """Whether all positions are known and within bounds."""
    numbers = [(known(view), limit) for view, _, limit in parts]
    return bool(parts) and all(
        n is not None and bool((n >= 0).all() and (n <= limit).all()) for n, limit in numbers
    )


def _strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, per axis."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _rows(index: View, batch: list[np.ndarray], shape: Sequence[int]) -> list[View]:
    """Components of an index array, each broadcast to the shape of what is looked up."""
    return [
        View(
            index.node,
            np.broadcast_to(
                index.where[..., j][tuple(batch)] if batch else index.where[..., j], shape
            ),
        )
        for j in range(index.where.shape[-1])
    ]


def _mode(mode: Any, fill: str) -> str:
    """What happens to positions out of bounds."""
    name = str(mode).rsplit(".", 1)[-1].lower()
    return {"promise_in_bounds": "promise", "clip": "clip", "fill_or_drop": fill}[name]


def _offsets(shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """How far every element of a block is from its first."""
    found = np.zeros(shape, np.int64)
    for index, stride in zip(np.indices(shape, sparse=True), strides, strict=True):
        found = found + index * stride
    return found
