"""Operations on elements, reductions, running sums and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ecn_marl.lanes.builder import NUMBERS, dtype_of, is_key, known, neutral, raw_shape
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, F32, I32, NUMPY, U32, Map, Store, View, Write, axes_of
from ecn_marl.lanes.shape_ops import Moving

REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_and": "and",
}

LARGE = 256
"""Products of matrices with so many terms are computed in blocks (`matmul`)."""

RUNNING = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


class Arithmetic(Moving):
    """Rules for primitives that compute elements."""

    def _elementwise(self, eqn: Any, name: str, args: list[View]) -> View:
        out = eqn.outvars[0].aval
        if is_key(out):
            return self._select_keys(out, *args)
        if name == "bitcast_convert_type" and out.shape != args[0].where.shape:
            raise Unsupported("bitcast_convert_type between types of different sizes")
        dtype = dtype_of(out.dtype)
        folded = _fold(self, name, dtype, out.shape, args)
        if folded is not None:
            return folded
        if name in ("convert_element_type", "copy") and args[0].node.dtype == dtype:
            return args[0]
        params = {k: v for k, v in eqn.params.items() if k in ("y", "rounding_method", "exponent")}
        return self.map(name, dtype, out.shape, *args, **params)

    def _select_keys(self, out: Any, which: View, *cases: View) -> View:
        shape = raw_shape(out)
        which = View(which.node, which.where[..., None])
        return self.map("select_n", U32, shape, which, *cases)

    def _reduce(self, x: View, axes: Sequence[int], op: str) -> View:
        kept = [a for a in range(x.where.ndim) if a not in axes]
        shape = tuple(x.where.shape[a] for a in kept)
        size = math.prod(shape)
        order = np.transpose(x.where, [*kept, *axes])
        if order.size == size:
            return View(x.node, order.reshape(shape))
        to = np.broadcast_to(np.arange(size).reshape(*shape, *[1] * len(axes)), order.shape)
        # In the order in which elements lie, so that they can be read as they are computed.
        back = np.argsort([*kept, *axes])
        to, value = np.transpose(to, back), View(x.node, x.where)
        start = neutral(op, x.node.dtype)
        node = self.store(
            size, x.node.dtype, [self.filled(start, x.node.dtype, size), (op, value, to)]
        )
        return View(node, np.arange(size).reshape(shape))

    def _running(self, x: View, op: str, axis: int, reverse: bool) -> View:
        where = np.flip(x.where, axis) if reverse else x.where
        value = self.settled(View(x.node, where))
        shape = where.shape
        lines = math.prod(shape) // shape[axis]
        slots = np.expand_dims(
            np.arange(lines).reshape([s for a, s in enumerate(shape) if a != axis]), axis
        )
        slots = np.ascontiguousarray(np.broadcast_to(slots, shape).reshape(-1))
        dtype = x.node.dtype
        lanes, block = self._common([value.flat])
        held = Store(lines, dtype, lanes, block)
        _, start, everywhere = self.filled(neutral(op, dtype), dtype, lines)
        held.writes.append(Write(held, "set", start.flat, None, everywhere))
        block.items.append(held.writes[0])
        params = {"held": held, "slots": slots, "combine": op}
        node = Map(where.size, dtype, lanes, block, "running", (value.flat,), params)
        block.items.append(node)
        out = np.arange(node.size).reshape(shape)
        return View(node, np.flip(out, axis) if reverse else out)

    def _argmin(self, eqn: Any, x: View) -> list[View]:
        return [self._best(x, eqn.params["axes"], eqn.outvars[0].aval, "min")]

    def _argmax(self, eqn: Any, x: View) -> list[View]:
        return [self._best(x, eqn.params["axes"], eqn.outvars[0].aval, "max")]

    def _best(self, x: View, axes: Sequence[int], aval: Any, op: str) -> View:
        """Index of the first extreme element: the least index of those equal to the extreme."""
        (axis,) = axes
        shape = x.where.shape
        if x.node.dtype == BOOL:
            x = self.map("convert_element_type", I32, shape, x)
        best = self._reduce(x, axes, op)
        spread = View(best.node, np.expand_dims(best.where, axis))
        hit = self.map("eq", BOOL, shape, x, spread)
        number = np.expand_dims(
            np.arange(shape[axis], dtype=np.int32), [a for a in range(len(shape)) if a != axis]
        )
        index = self.map(
            "select_n",
            I32,
            shape,
            hit,
            self.constant(np.int32(shape[axis] - 1)),
            self.constant(np.broadcast_to(number, shape)),
        )
        found = self._reduce(index, axes, "min")
        dtype = dtype_of(aval.dtype)
        return found if dtype == I32 else self.map("convert_element_type", dtype, aval.shape, found)

    def _dot_general(self, eqn: Any, a: View, b: View) -> list[View]:
        ((ca, cb), (ba, bb)) = eqn.params["dimension_numbers"]
        out = eqn.outvars[0].aval
        identity = _is_identity(b) and tuple(ca) == (a.where.ndim - 1,) and tuple(cb) == (0,)
        if identity and not ba:
            return [a]
        fa = [d for d in range(a.where.ndim) if d not in (*ca, *ba)]
        fb = [d for d in range(b.where.ndim) if d not in (*cb, *bb)]
        left = np.transpose(a.where, [*ba, *fa, *ca])
        right = np.transpose(b.where, [*bb, *fb, *cb])
        nb = len(ba)
        sizes = [math.prod(a.where.shape[d] for d in axes) for axes in (ba, fa, ca)]
        sizes.insert(2, math.prod(b.where.shape[d] for d in fb))
        if math.prod(sizes) >= LARGE and out.dtype == np.float32:
            return [self._product(View(a.node, left), View(b.node, right), sizes, out.shape)]
        left = np.expand_dims(left, tuple(range(nb + len(fa), nb + len(fa) + len(fb))))
        right = np.expand_dims(right, tuple(range(nb, nb + len(fa))))
        shape = np.broadcast_shapes(left.shape, right.shape)
        product = self.map(
            "mul", dtype_of(out.dtype), shape, View(a.node, left), View(b.node, right)
        )
        axes = tuple(range(len(shape) - len(ca), len(shape)))
        return [self._reduce(product, axes, "add")]

    def _product(self, a: View, b: View, sizes: Sequence[int], shape: Sequence[int]) -> View:
        """A large product: `a` is `[batch, rows, depth]`, `b` is `[batch, columns, depth]`."""
        batch, rows, columns, depth = sizes
        views, axes = [], []
        for view, count in ((a, rows), (b, columns)):
            view = self.settled(View(view.node, view.where.reshape(batch, count, depth)))
            found = axes_of(view.where)
            if found is None:
                view = self.whole(view)
                found = axes_of(view.where)
            views.append(view)
            axes.append(found)
        lanes, block = self._common([v.flat for v in views])
        params = {"shape": tuple(sizes), "left": axes[0], "right": axes[1]}
        size, factors = batch * rows * columns, (views[0].node, views[1].node)
        node = Map(size, F32, lanes, block, "product", (), params, factors=factors)
        block.items.append(node)
        return View(node, np.arange(size).reshape(shape))


def _fold(lowering: Arithmetic, name: str, dtype: str, shape: Any, args: list[View]) -> View | None:
    """The result where it is known now: integer arithmetic and conversions of constants."""
    simple: dict[str, Callable[..., Any]] = {
        **NUMBERS,
        "rem": np.fmod,
        "convert_element_type": lambda x: x,
        "select_n": lambda w, *cases: np.choose(w, cases),
    }
    numbers = [n for a in args if (n := known(a)) is not None]
    if name not in simple or len(numbers) < len(args) or sum(n.size for n in numbers) > 100_000:
        return None
    if name in ("mul", "sub", "add", "rem") and any(a.node.dtype == F32 for a in args):
        return None  # rounding is the machine's
    values = [np.broadcast_to(n, shape) for n in numbers]
    if name == "rem" and any((v == 0).any() for v in values[1:]):
        return None
    if name == "convert_element_type" and values[0].dtype == np.float32 and dtype != F32:
        return None
    with np.errstate(over="ignore"):
        return lowering.constant(np.asarray(simple[name](*values)).astype(NUMPY[dtype]))


def _is_identity(x: View) -> bool:
    """Whether a view is a constant identity matrix."""
    numbers = known(x)
    if numbers is None or numbers.ndim != 2:
        return False
    return bool(np.array_equal(numbers, np.eye(*numbers.shape)))
