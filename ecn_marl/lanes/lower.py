"""From a jaxpr of one environment to nodes (`graph`).

Calls are inlined, what is fixed within a loop moves out of it, and everything that only moves
elements about (slices, transpositions, broadcasts, reshapes) becomes a `View`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.random import threefry_prng_impl

from ecn_marl.lanes.graph import (
    BOOL,
    DTYPES,
    F32,
    I32,
    U32,
    Argument,
    Block,
    Bundle,
    Carry,
    Constant,
    Final,
    Loop,
    Map,
    Node,
    Operand,
    Place,
    Store,
    View,
    Write,
)

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}
"""Primitives that call a jaxpr, and the parameter that holds it."""

ELEMENTWISE = frozenset(
    "add sub mul div rem max min neg sign abs floor ceil round exp exp2 log log1p expm1 tanh logistic"
    " sqrt rsqrt pow integer_pow square and or xor not shift_left shift_right_logical"
    " shift_right_arithmetic eq ne lt le gt ge lt_to le_to select_n clamp is_finite"
    " convert_element_type bitcast_convert_type nextafter".split()
)
"""Primitives that are operations on elements; see `operations`."""

REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_and": "and",
}

RUNNING = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}

SCATTERS = {"scatter": "set", "scatter-add": "add", "scatter_add": "add"}


PIECES = 16
"""An array is computed in at most so many pieces, where it is made of several."""


LONG = 16
"""Rows of so many elements are carried through loops one by one."""


class Unsupported(NotImplementedError):
    """The program uses something that cannot be compiled for lanes."""


class Lowering:
    """Nodes of one program.

    Attributes:
        top: the outermost block.
    """

    def __init__(self) -> None:
        """An empty program."""
        self.top = Block(None)
        self.block = self.top
        self._constants: dict[tuple[str, bytes], Constant] = {}

    # --- nodes ------------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: str | None = None) -> View:
        """A view of numbers known now; `dtype` only where numpy's is not the right one."""
        data = np.asarray(value)
        if data.dtype not in DTYPES:
            data = data.astype({"f": np.float32, "i": np.int32, "u": np.uint32}[data.dtype.kind])
        kind = dtype or DTYPES[data.dtype]
        flat = np.ascontiguousarray(data.reshape(-1))
        key = (kind, flat.tobytes())
        node = self._constants.get(key)
        if node is None:
            node = Constant(flat.size, kind, False, None, flat)
            self._constants[key] = node
        return View(node, np.arange(flat.size).reshape(data.shape))

    def _common(self, operands: Sequence[Operand]) -> tuple[bool, Block]:
        """Whether lanes differ in any operand, and the innermost block among theirs."""
        lanes = any(o.node.lanes for o in operands)
        blocks = [o.node.block for o in operands if o.node.block is not None]
        return lanes, max(blocks, key=lambda b: b.depth, default=self.top)

    def map(self, op: str, dtype: str, shape: Sequence[int], *args: View, **params: Any) -> View:
        """An elementwise operation on views of one shape."""
        args = tuple(View(a.node, np.broadcast_to(a.where, shape)) for a in args)
        pieces = self._pieces(args)
        if pieces is not None:
            parts = [self.map(op, dtype, p.shape, *self._at(args, p), **params) for p in pieces]
            return self.bundle(parts, pieces, shape)
        operands = tuple(self.settled(a).flat for a in args)
        lanes, block = self._common(operands)
        node = Map(math.prod(shape), dtype, lanes, block, op, operands, params)
        block.items.append(node)
        return View(node, np.arange(node.size).reshape(shape))

    # --- arrays joined only in name ---------------------------------------------------------------

    def bundle(self, parts: Sequence[View], pieces: Sequence[np.ndarray], shape: Any) -> View:
        """Views side by side; `pieces` are the flat positions of each in an array of `shape`."""
        starts = np.cumsum([0, *(p.where.size for p in parts)])
        where = np.empty(math.prod(shape), np.int64)
        for piece, start in zip(pieces, starts[:-1], strict=True):
            where[piece.reshape(-1)] = start + np.arange(piece.size)
        first = parts[0].node
        lanes = any(p.node.lanes for p in parts)
        blocks = [p.node.block for p in parts if p.node.block is not None]
        block = max(blocks, key=lambda b: b.depth, default=self.top)
        size = int(starts[-1])
        node = Bundle(size, first.dtype, lanes, block, list(parts), starts)
        return View(node, where.reshape(shape))

    def _owners(self, view: View) -> np.ndarray:
        """Part of a bundle that each element belongs to."""
        assert isinstance(view.node, Bundle)
        return np.searchsorted(view.node.starts, view.where.reshape(-1), side="right") - 1

    def settled(self, view: View) -> View:
        """The view as one of a node that is computed: of a bundle's part, or of its parts joined."""
        while isinstance(view.node, Bundle):
            node, owners = view.node, self._owners(view)
            if owners.size and (owners == owners[0]).all():
                part = node.parts[owners[0]]
                inner = part.where.reshape(-1)[view.where - node.starts[owners[0]]]
                view = View(part.node, inner)
                continue
            if node.whole is None:
                spots = np.split(np.arange(node.size), node.starts[1:-1])
                writes = [("set", p, at) for p, at in zip(node.parts, spots, strict=True)]
                joined = self.store(node.size, node.dtype, writes)
                node.whole = View(joined, np.arange(node.size))
            view = View(node.whole.node, view.where)
        return view

    def _pieces(self, views: Sequence[View]) -> list[np.ndarray] | None:
        """Flat positions that belong to the same parts of all bundles; None if there is one piece."""
        owners = [self._owners(v) for v in views if isinstance(v.node, Bundle) and v.where.size]
        owners = [o for o in owners if (o != o[0]).any()]
        if not owners:
            return None
        _, which = np.unique(np.stack(owners), axis=1, return_inverse=True)
        which = which.reshape(-1)
        if which.max() >= PIECES:
            return None
        return [np.flatnonzero(which == k) for k in range(which.max() + 1)]

    def _at(self, views: Sequence[View], piece: np.ndarray) -> list[View]:
        """The elements of views at flat positions."""
        return [View(v.node, v.where.reshape(-1)[piece]) for v in views]

    def _place(self, fixed: np.ndarray, parts: list[tuple[View, int, int]], mode: str) -> Place:
        """A data-dependent position; `parts` are (index, stride, limit)."""
        indices = tuple(self.settled(p[0]).flat for p in parts)
        strides, limits = tuple(p[1] for p in parts), tuple(p[2] for p in parts)
        return Place(np.ascontiguousarray(fixed.reshape(-1)), indices, strides, limits, mode)

    def look_up(
        self, table: View, place: Place, shape: Sequence[int], fill: Any = None
    ) -> View:
        """Elements of a table at data-dependent positions, `fill` where they are out of bounds."""
        if table.node.dtype == BOOL:  # one bit per lane: not addressed by lanes
            whole = self.map("convert_element_type", I32, table.where.shape, table)
            found = self.look_up(whole, place, shape, 1)
            return self.map("ne", BOOL, shape, found, self.constant(np.int32(0)))
        source = self.whole(table).node
        windows = _windows(place)
        if windows is not None:
            parts = [self._looked_up(source, _cut(place, w), fill) for w in windows]
            return self.bundle(parts, windows, shape)
        return View(self._looked_up(source, place, fill).node, np.arange(math.prod(shape)).reshape(shape))

    def _looked_up(self, source: Node, place: Place, fill: Any) -> View:
        lanes, block = self._common([*place.indices, Operand(source, place.fixed)])
        size = len(place.fixed)
        node = Map(size, source.dtype, lanes, block, "look_up", (), {"fill": fill}, place, source)
        block.items.append(node)
        return View(node, np.arange(size))

    def whole(self, view: View) -> View:
        """The view's elements as a node of their own, in order."""
        view, n = self.settled(view), view.where.size
        if view.node.size == n and np.array_equal(view.where.reshape(-1), np.arange(n)):
            return view
        return self.map("copy", view.node.dtype, view.where.shape, view)

    def own(self, view: View) -> View:
        """The view's elements as a node that differs between environments."""
        view = self.whole(view)
        if view.node.lanes:
            return view
        found = self.map("copy", view.node.dtype, view.where.shape, view)
        found.node.lanes = True
        return found

    def store(self, size: int, dtype: str, writes: Sequence[tuple[str, View, Any]]) -> Store:
        """A store and its writes, (operation, value, `Place` or positions), in order."""
        writes = [part for w in writes for part in self._split_write(*w)]
        operands = [w[1].flat for w in writes]
        for _, _, place in writes:
            if isinstance(place, Place):
                operands += place.indices
        lanes, block = self._common(operands)
        node = Store(size, dtype, lanes, block)
        for op, value, place in writes:
            placed = place if isinstance(place, Place) else None
            fixed = None if placed is not None else np.ascontiguousarray(place.reshape(-1))
            write = Write(node, op, value.flat, placed, fixed)
            node.writes.append(write)
            block.items.append(write)
        return node

    def _split_write(self, op: str, value: View, place: Any) -> list[tuple[str, View, Any]]:
        """A write of a bundle, part by part: each is written as it is computed."""
        if value.node.size == 0 or value.where.size == 0:
            return [(op, value, place)] if not isinstance(value.node, Bundle) else []
        ordered = isinstance(place, Place) and op == "set"
        pieces = None if ordered else self._pieces([value])
        if pieces is None:
            return [(op, self.settled(value), place)]
        found = []
        for piece in pieces:
            (part,) = self._at([value], piece)
            if isinstance(place, Place):
                there: Any = _cut(place, piece)
            else:
                there = np.asarray(place).reshape(-1)[piece]
            found += self._split_write(op, part, there)
        return found

    def filled(self, value: Any, dtype: str, size: int) -> tuple[str, View, np.ndarray]:
        """The write that sets a whole store to one value."""
        view = self.constant(value, dtype)
        return "set", View(view.node, np.zeros(size, np.int64)), np.arange(size)

    # --- programs ---------------------------------------------------------------------------------

    def run(self, jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[View]) -> list[View]:
        """Lower a jaxpr applied to views."""
        env: dict[Any, View] = {}

        def read(atom: Any) -> View:
            if isinstance(atom, core.Literal):
                return self.constant(np.asarray(atom.val, atom.aval.dtype))
            return env[atom]

        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = const if isinstance(const, View) else self.constant(raw(const))
        for var, arg in zip(jaxpr.invars, args, strict=True):
            env[var] = arg
        for eqn in jaxpr.eqns:
            found = self.equation(eqn, [read(v) for v in eqn.invars])
            for var, view in zip(eqn.outvars, found, strict=True):
                env[var] = view
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn: Any, args: list[View]) -> list[View]:
        """Lower one equation."""
        name = eqn.primitive.name
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            if isinstance(inner, core.Jaxpr):
                return self.run(inner, (), args)
            return self.run(inner.jaxpr, inner.consts, args)
        if name in ELEMENTWISE:
            return [self._elementwise(eqn, name, args)]
        if name in REDUCTIONS:
            return [self._reduce(args[0], eqn.params["axes"], REDUCTIONS[name])]
        if name in RUNNING:
            return [self._running(args[0], RUNNING[name], **eqn.params)]
        rule: Callable[..., list[View]] | None = getattr(self, f"_{name.replace('-', '_')}", None)
        if rule is None:
            raise Unsupported(f"primitive {name!r} cannot be compiled for lanes")
        return rule(eqn, *args)

    def _traced(self, fun: Callable[..., Any], eqn: Any, *args: View) -> list[View]:
        """Lower a function of raw key data, traced for these shapes."""
        kinds = {F32: np.float32, I32: np.int32, U32: np.uint32, BOOL: np.bool_}
        avals = [jax.ShapeDtypeStruct(a.where.shape, kinds[a.node.dtype]) for a in args]
        closed = jax.make_jaxpr(fun)(*avals)
        return self.run(closed.jaxpr, closed.consts, args)

    # --- arithmetic -------------------------------------------------------------------------------

    def _elementwise(self, eqn: Any, name: str, args: list[View]) -> View:
        out = eqn.outvars[0].aval
        if _is_key(out):
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
        shape = _raw_shape(out)
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
        return [self._best(x, eqn.params["axes"], eqn.outvars[0].aval, "min", "lt")]

    def _argmax(self, eqn: Any, x: View) -> list[View]:
        return [self._best(x, eqn.params["axes"], eqn.outvars[0].aval, "max", "gt")]

    def _best(self, x: View, axes: Sequence[int], aval: Any, op: str, _: str) -> View:
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
        left = np.expand_dims(left, tuple(range(nb + len(fa), nb + len(fa) + len(fb))))
        right = np.expand_dims(right, tuple(range(nb, nb + len(fa))))
        shape = np.broadcast_shapes(left.shape, right.shape)
        product = self.map(
            "mul", dtype_of(out.dtype), shape, View(a.node, left), View(b.node, right)
        )
        axes = tuple(range(len(shape) - len(ca), len(shape)))
        return [self._reduce(product, axes, "add")]

    # --- moving elements --------------------------------------------------------------------------

    def _broadcast_in_dim(self, eqn: Any, x: View, *_: View) -> list[View]:
        shape, dims = _raw_shape(eqn.outvars[0].aval), eqn.params["broadcast_dimensions"]
        if _is_key(eqn.outvars[0].aval):
            dims = (*dims, len(shape) - 1)
        place = [1] * len(shape)
        for d, size in zip(dims, x.where.shape, strict=True):
            place[d] = size
        return [View(x.node, np.broadcast_to(x.where.reshape(place), shape))]

    def _reshape(self, eqn: Any, x: View, *_: View) -> list[View]:
        return [View(x.node, x.where.reshape(_raw_shape(eqn.outvars[0].aval)))]

    def _squeeze(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.squeeze(x.where, eqn.params["dimensions"]))]

    def _expand_dims(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.expand_dims(x.where, eqn.params["dimensions"]))]

    def _transpose(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.transpose(x.where, eqn.params["permutation"]))]

    def _rev(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.flip(x.where, eqn.params["dimensions"]))]

    def _slice(self, eqn: Any, x: View) -> list[View]:
        p = eqn.params
        steps = p["strides"] or [1] * len(p["start_indices"])
        cut = tuple(
            slice(a, b, s)
            for a, b, s in zip(p["start_indices"], p["limit_indices"], steps, strict=True)
        )
        return [View(x.node, x.where[cut])]

    def _split(self, eqn: Any, x: View) -> list[View]:
        ends = np.cumsum(eqn.params["sizes"])[:-1]
        return [View(x.node, w) for w in np.split(x.where, ends, eqn.params["axis"])]

    def _copy(self, eqn: Any, x: View) -> list[View]:
        return [x]

    _copy_p = _stop_gradient = _reshard = _pvary = _copy

    def _tile(self, eqn: Any, x: View) -> list[View]:
        return [View(x.node, np.tile(x.where, eqn.params["reps"]))]

    def _iota(self, eqn: Any, *_: View) -> list[View]:
        p = eqn.params
        shape = [1] * len(p["shape"])
        shape[p["dimension"]] = p["shape"][p["dimension"]]
        line = np.arange(p["shape"][p["dimension"]]).astype(np.dtype(p["dtype"])).reshape(shape)
        view = self.constant(line)
        return [View(view.node, np.broadcast_to(view.where, p["shape"]))]

    def _iota_2x32_shape(self, eqn: Any) -> list[View]:
        shape = eqn.params["shape"]
        low = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
        return [self.constant(np.zeros(shape, np.uint32)), self.constant(low)]

    def _stack(self, eqn: Any, *args: View) -> list[View]:
        axis = int(eqn.params["axis"])
        parts = [View(a.node, np.expand_dims(a.where, axis)) for a in args]
        return [self._joined(parts, axis)]

    def _concatenate(self, eqn: Any, *args: View) -> list[View]:
        return [self._joined(list(args), int(eqn.params["dimension"]))]

    def _joined(self, parts: list[View], axis: int) -> View:
        parts = [p for p in parts if p.where.size]
        shapes = [list(p.where.shape) for p in parts]
        shape = list(shapes[0])
        shape[axis] = sum(s[axis] for s in shapes)
        if all(isinstance(p.node, Constant) for p in parts):
            whole = [p.node.data[p.where] for p in parts]  # type: ignore[attr-defined]
            return self.constant(np.concatenate(whole, axis), parts[0].node.dtype)
        if all(p.node is parts[0].node for p in parts):
            return View(parts[0].node, np.concatenate([p.where for p in parts], axis))
        numbers = np.arange(math.prod(shape)).reshape(shape)
        places = np.split(numbers, np.cumsum([s[axis] for s in shapes])[:-1], axis)
        return self.bundle(parts, places, shape)

    def _pad(self, eqn: Any, x: View, value: View) -> list[View]:
        shape = eqn.outvars[0].aval.shape
        numbers = np.arange(math.prod(shape)).reshape(shape)
        inside, outside = [], np.ones(shape, bool)
        for (low, _, gap), n in zip(eqn.params["padding_config"], x.where.shape, strict=True):
            if low < 0:
                raise Unsupported("negative padding")
            inside.append(slice(low, low + (n - 1) * (gap + 1) + 1 if n else low, gap + 1))
        if any(high < 0 for _, high, _ in eqn.params["padding_config"]):
            raise Unsupported("negative padding")
        outside[tuple(inside)] = False
        rest = numbers[outside]
        filler = View(value.node, np.broadcast_to(value.where.reshape(1), rest.shape))
        writes = [("set", x, numbers[tuple(inside)]), ("set", filler, rest)]
        return [View(self.store(numbers.size, x.node.dtype, writes), numbers)]

    # --- data-dependent positions -----------------------------------------------------------------

    def _gather(self, eqn: Any, x: View, index: View) -> list[View]:
        d, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        shape = eqn.outvars[0].aval.shape
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
        if all(isinstance(p[0].node, Constant) for p in parts) and mode == "clip":
            for view, stride, limit in parts:
                numbers = view.node.data[view.where].astype(np.int64)  # type: ignore[attr-defined]
                fixed = fixed + np.clip(numbers, 0, limit) * stride
            return [View(x.node, x.where.reshape(-1)[np.broadcast_to(fixed, shape)])]
        return [self.look_up(x, self._place(fixed, parts, mode), shape, fill)]

    def _dynamic_slice(self, eqn: Any, x: View, *starts: View) -> list[View]:
        shape = eqn.params["slice_sizes"]
        at, strides = np.indices(shape, sparse=True), _strides(x.where.shape)
        fixed = np.zeros(shape, np.int64) + sum(a * s for a, s in zip(at, strides, strict=True))
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
        at, strides = np.indices(shape, sparse=True), _strides(x.where.shape)
        fixed = np.zeros(shape, np.int64) + sum(a * s for a, s in zip(at, strides, strict=True))
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
        if dtype == BOOL:  # one bit per lane: not addressed by lanes
            one, new = (
                self.map("convert_element_type", I32, v.where.shape, v) for v in (x, new)
            )
            (done,) = self._scatter(eqn, one, index, new)
            return [self.map("ne", BOOL, x.where.shape, done, self.constant(np.int32(0)))]
        whole, place = ("set", x, np.arange(x.where.size)), self._place(fixed, parts, mode)
        static = all(isinstance(p[0].node, Constant) for p in parts) and mode != "drop"
        if static or (parts and _constant_in_bounds(parts)):
            for view, stride, limit in parts:
                numbers = view.node.data[view.where].astype(np.int64)  # type: ignore[attr-defined]
                fixed = fixed + np.clip(numbers, 0, limit) * stride
            to: Any = np.broadcast_to(fixed, shape)
            node = self.store(x.where.size, dtype, [whole, (op, new, to)])
        else:
            node = self.store(x.where.size, dtype, [whole, (op, new, place)])
        return [View(node, np.arange(node.size).reshape(x.where.shape))]

    _scatter_add = _scatter

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

    # --- random numbers: keys are their two words ---------------------------------------------------

    def _threefry2x32(self, eqn: Any, *args: View) -> list[View]:
        shape = eqn.outvars[0].aval.shape
        return [self.map("threefry", U32, shape, *args, word=w) for w in (0, 1)]

    def _random_split(self, eqn: Any, key: View) -> list[View]:
        shape = eqn.params["shape"]
        return self._per_key(lambda k: threefry_prng_impl.split(k, shape), eqn, key)

    def _random_bits(self, eqn: Any, key: View) -> list[View]:
        p = eqn.params
        return self._per_key(
            lambda k: threefry_prng_impl.random_bits(k, p["bit_width"], p["shape"]), eqn, key
        )

    def _random_fold_in(self, eqn: Any, key: View, data: View) -> list[View]:
        if key.where.ndim != 1:
            raise Unsupported("fold_in of several keys at once")
        if data.node.dtype != U32:
            data = self.map("convert_element_type", U32, data.where.shape, data)
        return self._traced(threefry_prng_impl.fold_in, eqn, key, data)

    def _random_seed(self, eqn: Any, seed: View) -> list[View]:
        return self._traced(threefry_prng_impl.seed, eqn, seed)

    def _random_wrap(self, eqn: Any, x: View) -> list[View]:
        return [x]

    _random_unwrap = _random_wrap

    def _per_key(self, fun: Callable[..., Any], eqn: Any, key: View) -> list[View]:
        for _ in range(key.where.ndim - 1):
            fun = jax.vmap(fun)
        return self._traced(fun, eqn, key)

    # --- control ----------------------------------------------------------------------------------

    def _cond(self, eqn: Any, which: View, *args: View) -> list[View]:
        """Both branches, and a selection: lanes may differ in which they take."""
        runs = [self.run(b.jaxpr, b.consts, args) for b in eqn.params["branches"]]
        if len(runs) > 2:
            raise Unsupported("a switch of more than two branches")
        if len(runs) == 1:
            return runs[0]
        second = self.map("ne", BOOL, (), which, self.constant(np.int32(0)))
        return [
            self.map("select_n", a.node.dtype, a.where.shape, second, a, b)
            for a, b in zip(*runs, strict=True)
        ]

    def _scan(self, eqn: Any, *args: View) -> list[View]:
        p = eqn.params
        nc, nk, length = p["num_consts"], p["num_carry"], p["length"]
        consts, start, xs = args[:nc], args[nc : nc + nk], args[nc + nk :]
        if p["reverse"] and (xs or len(eqn.outvars) > nk):
            raise Unsupported("a reverse scan over rows")
        outer, shapes = self.block, [_raw_shape(v.aval) for v in eqn.outvars]
        loop = Loop(outer, Block(outer), length)
        handed = list(start)
        if xs or len(shapes) > nk:
            handed.append(self.constant(np.int32(0)))
        for var, shape in zip(eqn.outvars[nk:], shapes[nk:], strict=True):
            kind = U32 if _is_key(var.aval) else dtype_of(var.aval.dtype)
            zero = self.constant(neutral("add", kind))
            handed.append(View(zero.node, np.broadcast_to(zero.where, shape)))
        carried = [self._carry(loop, v) for v in handed]
        turn = carried[nk] if len(handed) > nk else None
        self.block = loop.body
        rows = [self._row(x, turn) for x in xs]
        found = self.run(p["jaxpr"].jaxpr, p["jaxpr"].consts, [*consts, *carried[:nk], *rows])
        following = found[:nk]
        if turn is not None:
            following.append(self.map("add", I32, (), turn, self.constant(np.int32(1))))
        for result, y in zip(carried[nk + 1 :], found[nk:], strict=True):
            following.append(self._put_row(result, y, turn))
        parts = [
            v for value, c in zip(following, carried, strict=True) for v in _split_like(c, value)
        ]
        loop.following = [self._next(loop, k, v).flat for k, v in enumerate(parts)]
        self.block = outer
        outer.items.append(loop)
        finals = iter([View(f, np.arange(f.size)) for f in loop.finals])
        done = [self._joined_like(c, finals) for c in carried]
        if turn is not None:
            del done[nk]
        return [View(v.node, v.where.reshape(s)) for v, s in zip(done, shapes, strict=True)]

    def _carry(self, loop: Loop, start: View) -> View:
        """A carried value; one of a few long rows is carried row by row."""
        shape = start.where.shape
        if len(shape) > 1 and 1 < shape[0] <= PIECES and math.prod(shape[1:]) >= LONG:
            rows = [self._carry_row(loop, View(start.node, w)) for w in start.where]
            pieces = list(np.arange(start.where.size).reshape(shape[0], -1))
            return self.bundle(rows, pieces, shape)
        return self._carry_row(loop, start)

    def _carry_row(self, loop: Loop, start: View) -> View:
        start = self.settled(start)
        carry = Carry(start.where.size, start.node.dtype, True, loop.body, loop)
        loop.carries.append(carry)
        loop.finals.append(Final(carry.size, carry.dtype, True, loop.block, carry))
        loop.initial.append(start.flat)
        return View(carry, np.arange(carry.size).reshape(start.where.shape))

    def _joined_like(self, carried: View, finals: Any) -> View:
        """What a carried value is after the loop."""
        if not isinstance(carried.node, Bundle):
            return next(finals)
        rows = [next(finals) for _ in carried.node.parts]
        pieces = list(np.arange(carried.node.size).reshape(len(rows), -1))
        return self.bundle(rows, pieces, carried.where.shape)

    def _next(self, loop: Loop, k: int, value: View) -> View:
        """A carry's next value, as a node that no other carry's update changes."""
        whole = self.whole(value)
        if whole.node is loop.carries[k] or isinstance(whole.node, Map | Store | Final):
            return whole
        return self.map("copy", whole.node.dtype, whole.where.shape, whole)

    def _row(self, x: View, turn: View | None) -> View:
        assert turn is not None
        shape, size = x.where.shape[1:], math.prod(x.where.shape[1:])
        fixed = np.arange(size).reshape(shape)
        index = View(turn.node, np.broadcast_to(turn.where, shape))
        place = self._place(fixed, [(index, size, x.where.shape[0] - 1)], "promise")
        return self.look_up(x, place, shape)

    def _put_row(self, result: View, y: View, turn: View | None) -> View:
        assert turn is not None
        size = y.where.size
        index = View(turn.node, np.broadcast_to(turn.where, y.where.shape))
        place = self._place(np.arange(size), [(index, size, result.where.shape[0] - 1)], "promise")
        whole = ("set", result, np.arange(result.where.size))
        node = self.store(result.where.size, result.node.dtype, [whole, ("set", y, place)])
        return View(node, np.arange(node.size).reshape(result.where.shape))


def _split_like(carried: View, value: View) -> list[View]:
    """A value row by row, if it is carried so."""
    if not isinstance(carried.node, Bundle):
        return [value]
    return [
        View(value.node, w.reshape(-1)) for w in value.where.reshape(len(carried.node.parts), -1)
    ]


def _windows(place: Place) -> list[np.ndarray] | None:
    """Flat positions of each element of the rows that are looked up; None if a row is one element.

    Elements of a row have the same indices: they are next to each other.
    """
    if not place.indices:
        return None
    same = np.ones(len(place.fixed) - 1, bool)
    for index in place.indices:
        same &= index.where[1:] == index.where[:-1]
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    width = len(place.fixed) // max(len(starts), 1)
    rows = np.arange(len(place.fixed)).reshape(-1, width) if width else np.zeros((0, 0), int)
    if not 1 < width <= PIECES or not np.array_equal(starts, rows[:, 0]):
        return None
    return [np.ascontiguousarray(rows[:, k]) for k in range(width)]


def _cut(place: Place, piece: np.ndarray) -> Place:
    indices = tuple(Operand(o.node, o.where[piece]) for o in place.indices)
    return place._replace(fixed=place.fixed[piece], indices=indices)


def raw(value: Any) -> Any:
    """Key data of typed keys; other arrays as they are."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def dtype_of(dtype: Any) -> str:
    """Element type of an array.

    Raises:
        Unsupported: it is none that lanes have.
    """
    try:
        return DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise Unsupported(f"arrays of {dtype} cannot be compiled for lanes") from None


def neutral(op: str, dtype: str) -> Any:
    """What changes nothing when combined."""
    if op in ("add", "or"):
        return np.zeros((), {F32: np.float32, I32: np.int32, U32: np.uint32}.get(dtype, np.bool_))
    if op == "and":
        return np.bool_(True) if dtype == BOOL else np.array(-1).astype(np.int32)
    if op == "mul":
        return np.ones((), {F32: np.float32, I32: np.int32, U32: np.uint32}[dtype])
    if dtype == F32:
        return np.float32(-np.inf if op == "max" else np.inf)
    info = np.iinfo(np.int32 if dtype == I32 else np.uint32)
    return info.dtype.type(info.min if op == "max" else info.max)


def _fold(lowering: Lowering, name: str, dtype: str, shape: Any, args: list[View]) -> View | None:
    """The result where it is known now: integer arithmetic and conversions of constants."""
    simple: dict[str, Callable[..., Any]] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.invert,
        "max": np.maximum,
        "min": np.minimum,
        "rem": np.fmod,
        "convert_element_type": lambda x: x,
        "select_n": lambda w, *cases: np.choose(w, cases),
    }
    known = all(isinstance(a.node, Constant) for a in args) and name in simple
    if not known or sum(a.node.size for a in args) > 100_000:
        return None
    if name in ("mul", "sub", "add", "rem") and any(a.node.dtype == F32 for a in args):
        return None  # rounding is the machine's
    values = [np.broadcast_to(a.node.data[a.where], shape) for a in args]  # type: ignore[attr-defined]
    if name == "rem" and any((v == 0).any() for v in values[1:]):
        return None
    if name == "convert_element_type" and values[0].dtype == np.float32 and dtype != F32:
        return None
    kinds = {F32: np.float32, I32: np.int32, U32: np.uint32, BOOL: np.bool_}
    with np.errstate(over="ignore"):
        return lowering.constant(np.asarray(simple[name](*values)).astype(kinds[dtype]))


def _constant_in_bounds(parts: list[tuple[View, int, int]]) -> bool:
    """Whether all positions are known and within bounds."""
    for view, _, limit in parts:
        if not isinstance(view.node, Constant):
            return False
        numbers = view.node.data[view.where]
        if (numbers < 0).any() or (numbers > limit).any():
            return False
    return True


def _is_identity(x: View) -> bool:
    """Whether a view is a constant identity matrix."""
    if not isinstance(x.node, Constant) or x.where.ndim != 2:
        return False
    return bool(np.array_equal(x.node.data[x.where], np.eye(*x.where.shape)))


def _is_key(aval: Any) -> bool:
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def _raw_shape(aval: Any) -> tuple[int, ...]:
    """Shape of an array, with the words of keys as a last axis."""
    return (*aval.shape, 2) if _is_key(aval) else tuple(aval.shape)


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


def lower(
    jaxpr: core.ClosedJaxpr, lanes: Sequence[bool]
) -> tuple[Block, list[Argument], list[View]]:
    """Nodes of a program of one environment.

    Args:
        jaxpr: the program.
        lanes: for each argument, whether environments differ in it.

    Returns:
        The outermost block, the arguments, and the results.

    Raises:
        Unsupported: the program uses something that cannot be compiled.
    """
    lowering, arguments, views = Lowering(), [], []
    for slot, (var, own) in enumerate(zip(jaxpr.jaxpr.invars, lanes, strict=True)):
        shape = _raw_shape(var.aval)
        dtype = U32 if _is_key(var.aval) else dtype_of(var.aval.dtype)
        node = Argument(math.prod(shape), dtype, own, lowering.top, slot)
        arguments.append(node)
        views.append(View(node, np.arange(node.size).reshape(shape)))
    results = lowering.run(jaxpr.jaxpr, jaxpr.consts, views)
    return lowering.top, arguments, [lowering.own(r) for r in results]
