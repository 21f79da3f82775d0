"""Reductions, running sums and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.builder import Builder, constant_value, dtype_of, neutral
from ecn_marl.lanes.compat import aval_of, canonical
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, F32, I32, Map, Store, View, Write, axes_of
from ecn_marl.lanes.primitives import primitive

GROUP = "Sums, extremes, products of matrices"

REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_and": "and",
}
"""How a reduction combines two elements."""

RUNNING = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}
"""How a running sum combines two elements."""

LARGE = 256
"""Products of matrices with at least this many terms are computed in blocks (`matmul`)."""


@primitive(GROUP, *REDUCTIONS)
def reduction(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """A store; each of its elements combines the elements along some axes."""
    return [reduce(build, x, eqn.params["axes"], REDUCTIONS[canonical(eqn.primitive.name)])]


def reduce(build: Builder, x: View, axes: Sequence[int], op: str) -> View:
    """Combine the elements along some axes; a view, if there is nothing to combine."""
    kept = [a for a in range(x.where.ndim) if a not in axes]
    shape = tuple(x.where.shape[a] for a in kept)
    size = math.prod(shape)
    order = np.transpose(x.where, [*kept, *axes])
    if order.size == size:
        return View(x.node, order.reshape(shape))
    to = np.broadcast_to(np.arange(size).reshape(*shape, *[1] * len(axes)), order.shape)
    # In the order in which elements lie: a loop can then add each one in the turn that computes it.
    back = np.argsort([*kept, *axes])
    to, value = np.transpose(to, back), View(x.node, x.where)
    # A sum starts from the neutral element: every term is then added in the same way, in any turn.
    start = neutral(op, x.node.dtype)
    node = build.store(
        size, x.node.dtype, [build.filled(start, x.node.dtype, size), (op, value, to)]
    )
    return View(node, np.arange(size).reshape(shape))


@primitive(GROUP, *RUNNING)
def running(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """A loop over all elements in order; a store holds the running value of each line."""
    op = RUNNING[canonical(eqn.primitive.name)]
    axis, reverse = eqn.params["axis"], eqn.params["reverse"]
    # Running backwards is a matter of positions, and costs nothing.
    where = np.flip(x.where, axis) if reverse else x.where
    value = build.settled(View(x.node, where))
    shape = where.shape
    lines = math.prod(shape) // shape[axis]
    slots = np.expand_dims(
        np.arange(lines).reshape([s for a, s in enumerate(shape) if a != axis]), axis
    )
    slots = np.ascontiguousarray(np.broadcast_to(slots, shape).reshape(-1))
    dtype = x.node.dtype
    varies, block = build.common([value.flat])
    held = Store(lines, dtype, varies, block)
    _, start, everywhere = build.filled(neutral(op, dtype), dtype, lines)
    held.writes.append(Write(held, "set", start.flat, None, everywhere))
    build.put(block, held.writes[0])
    params = {"held": held, "slots": slots, "combine": op}
    node = Map(where.size, dtype, varies, block, "running", (value.flat,), params)
    build.put(block, node)
    out = np.arange(node.size).reshape(shape)
    return [View(node, np.flip(out, axis) if reverse else out)]


@primitive(GROUP, "argmin")
def argmin(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The least index of those equal to the minimum."""
    return [_best(build, x, eqn.params["axes"], aval_of(eqn.outvars[0]), "min")]


@primitive(GROUP, "argmax")
def argmax(build: Builder, eqn: JaxprEqn, x: View) -> list[View]:
    """The least index of those equal to the maximum."""
    return [_best(build, x, eqn.params["axes"], aval_of(eqn.outvars[0]), "max")]


def _best(build: Builder, x: View, axes: Sequence[int], aval: ShapedArray, op: str) -> View:
    """Least index of the elements that are equal to the extreme.

    Two reductions, each a plain loop of `min` or `max`: no pairs of value and index are compared.
    """
    (axis,) = axes
    shape = x.where.shape
    if x.node.dtype == BOOL:
        x = build.map("convert_element_type", I32, shape, x)
    best = reduce(build, x, axes, op)
    along = View(best.node, np.expand_dims(best.where, axis))
    hit = build.map("eq", BOOL, shape, x, along)
    number = np.expand_dims(
        np.arange(shape[axis], dtype=np.int32), [a for a in range(len(shape)) if a != axis]
    )
    index = build.map(
        "select_n",
        I32,
        shape,
        hit,
        # Of NaN, nothing is equal to the extreme: the index stays in bounds.
        build.constant(np.int32(shape[axis] - 1)),
        build.constant(np.broadcast_to(number, shape)),
    )
    first = reduce(build, index, axes, "min")
    dtype = dtype_of(aval.dtype)
    return first if dtype == I32 else build.map("convert_element_type", dtype, aval.shape, first)


@primitive(GROUP, "dot_general", limits="results of another type than the factors'")
def dot_general(build: Builder, eqn: JaxprEqn, a: View, b: View) -> list[View]:
    """Small ones become terms and sums; large ones get loops of their own, see `matmul`."""
    ((ca, cb), (ba, bb)) = eqn.params["dimension_numbers"]
    out = aval_of(eqn.outvars[0])
    if {a.node.dtype, b.node.dtype} != {dtype_of(out.dtype)}:
        raise Unsupported("'dot_general' with results of another type than the factors'")
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
        return [_matmul(build, View(a.node, left), View(b.node, right), sizes, out.shape)]
    left = np.expand_dims(left, tuple(range(nb + len(fa), nb + len(fa) + len(fb))))
    right = np.expand_dims(right, tuple(range(nb, nb + len(fa))))
    shape = np.broadcast_shapes(left.shape, right.shape)
    product = build.map("mul", dtype_of(out.dtype), shape, View(a.node, left), View(b.node, right))
    axes = tuple(range(len(shape) - len(ca), len(shape)))
    return [reduce(build, product, axes, "add")]


def _matmul(build: Builder, a: View, b: View, sizes: Sequence[int], shape: Sequence[int]) -> View:
    """A large product: `a` is `[batch, rows, depth]`, `b` is `[batch, columns, depth]`."""
    batch, rows, columns, depth = sizes
    views, axes = [], []
    for view, count in ((a, rows), (b, columns)):
        # A factor is read in place, whatever its layout, if its elements lie at equal steps.
        view = build.settled(View(view.node, view.where.reshape(batch, count, depth)))
        steps = axes_of(view.where)
        if steps is None:
            # Copied once: else the innermost loop would look up every position in a table.
            view = build.whole(view)
            steps = axes_of(view.where)
        views.append(view)
        axes.append(steps)
    varies, block = build.common([v.flat for v in views])
    params = {"shape": tuple(sizes), "left": axes[0], "right": axes[1]}
    size, factors = batch * rows * columns, (views[0].node, views[1].node)
    node = Map(size, F32, varies, block, "matmul", (), params, factors=factors)
    build.put(block, node)
    return View(node, np.arange(size).reshape(shape))


def _is_identity(x: View) -> bool:
    """Whether a view is a constant identity matrix."""
    numbers = constant_value(x)
    if numbers is None or numbers.ndim != 2:
        return False
    return bool(np.array_equal(numbers, np.eye(*numbers.shape)))
