"""Makes nodes of a program, and joins arrays without copying them.

An array that is put together from others (`concatenate`, `stack`) is a `Bundle` of their views. Its
readers are computed piece by piece, from the parts. Only if one reader needs too many parts
are they written side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn

from ecn_marl.lanes import compat
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import (
    BOOL,
    DTYPES,
    F32,
    I32,
    NUMPY,
    U32,
    Block,
    Bundle,
    Constant,
    Map,
    Node,
    Operand,
    Place,
    Store,
    View,
    Write,
)

PIECES = 16
"""Largest number of pieces in which a reader of joined arrays is computed; more are joined first.

Each piece is an item of its own, and makes the code longer.
"""


def constant_value(view: View) -> np.ndarray | None:
    """The numbers of a view, if they are known when the program is compiled."""
    if not isinstance(view.node, Constant):
        return None
    return np.asarray(view.node.data[view.where])


def operand_decided_by_constant(op: str, args: Sequence[View]) -> View | None:
    """The operand that a constant makes the result: `x & False`, or one case of a selection.

    Parameters that are fixed when a program is traced decide many operations. The operands that
    they leave unused would otherwise be computed, and could keep a loop from skipping idle
    elements.

    Args:
        op: name of the operation.
        args: its operands, of one shape.

    Returns:
        The operand; None if none is known to be the result.
    """
    if op == "select_n":
        which = constant_value(args[0])
        if which is None or not which.size or (which != which.flat[0]).any():
            return None
        return args[1 + int(which.flat[0])]
    if op not in ("and", "or"):
        return None
    for one, other in (args, args[::-1]):
        bits = constant_value(one)
        if bits is None or bits.dtype != np.bool_ or not bits.size:
            continue
        if (bits == (op == "or")).all():
            return one
        if (bits == (op == "and")).all():
            return other
    return None


class Builder:
    """Nodes of one program.

    Attributes:
        top: the outermost block.
        flags: which elements are busy, see `optimisation_hints`.
        origin: the equation that is being lowered, for `origins`.
        origins: the equation that each item comes from, for `explain`.
    """

    def __init__(self) -> None:
        """An empty program."""
        self.top = Block(None)
        self.block = self.top
        self.flags: list[Map] = []
        self.origin: JaxprEqn | None = None
        self.origins: dict[Map | Write, JaxprEqn | None] = {}
        self._constants: dict[tuple[str, bytes], Constant] = {}

    def constant(self, value: object, dtype: str | None = None) -> View:
        """A view of constant numbers; `dtype` is given if it is not that of numpy's array."""
        data = np.asarray(value)
        if data.dtype not in DTYPES:
            short = {"f": np.float32, "i": np.int32, "u": np.uint32}.get(data.dtype.kind)
            if short is None:
                raise Unsupported(f"arrays of {data.dtype} cannot be compiled for lanes")
            # Python's numbers become 64 bits in numpy; JAX's programs have 32.
            data = data.astype(short)
        kind = dtype or DTYPES[data.dtype]
        flat = np.ascontiguousarray(data.reshape(-1))
        # By bits: 0 and -0 are not the same constant, equal NaNs are.
        key = (kind, flat.tobytes())
        node = self._constants.get(key)
        if node is None:
            node = Constant(flat.size, kind, False, None, flat)
            self._constants[key] = node
        return View(node, np.arange(flat.size).reshape(data.shape))

    def empty(self, aval: ShapedArray) -> View:
        """An array without elements."""
        kind = U32 if is_key(aval) else dtype_of(aval.dtype)
        return self.constant(np.zeros(raw_shape(aval), NUMPY[kind]))

    def put(self, block: Block, item: Map | Write) -> None:
        """Add an item to a block."""
        block.items.append(item)
        self.origins[item] = self.origin

    def common(self, operands: Sequence[Operand]) -> tuple[bool, Block]:
        """Whether environments differ in any operand, and the innermost block among theirs."""
        varies = any(o.node.varies for o in operands)
        blocks = [o.node.block for o in operands if o.node.block is not None]
        # The innermost loop that changes an operand: items that no turn changes stay outside of it.
        return varies, max(blocks, key=lambda b: b.depth, default=self.top)

    def map(self, op: str, dtype: str, shape: Sequence[int], *args: View, **params: object) -> View:
        """An elementwise operation on views of one shape."""
        args = tuple(View(a.node, np.broadcast_to(a.where, shape)) for a in args)
        one = operand_decided_by_constant(op, args)
        if one is not None:
            return one
        # Piece by piece: values of the parts stay in registers, where a joined array would be
        # written to memory first.
        pieces = self._pieces(args)
        if pieces is not None:
            parts = [self.map(op, dtype, p.shape, *self._at(args, p), **params) for p in pieces]
            return self.bundle(parts, pieces, shape)
        args = tuple(self.settled(a) for a in args)
        numbers = constant_value(args[1]) if op == "div" and dtype == F32 else None
        if numbers is not None:  # XLA multiplies by the inverse, too, so results round alike
            with np.errstate(divide="ignore", over="ignore"):
                op, args = "mul", (args[0], self.constant(np.float32(1.0) / numbers))
        operands = tuple(a.flat for a in args)
        varies, block = self.common(operands)
        node = Map(math.prod(shape), dtype, varies, block, op, operands, params)
        self.put(block, node)
        return View(node, np.arange(node.size).reshape(shape))

    def bundle(
        self, parts: Sequence[View], pieces: Sequence[np.ndarray], shape: Sequence[int]
    ) -> View:
        """Views side by side; `pieces` are the flat positions of each in an array of `shape`."""
        starts = np.cumsum([0, *(p.where.size for p in parts)])
        where = np.empty(math.prod(shape), np.int64)
        for piece, start in zip(pieces, starts[:-1], strict=True):
            where[piece.reshape(-1)] = start + np.arange(piece.size)
        first = parts[0].node
        varies = any(p.node.varies for p in parts)
        blocks = [p.node.block for p in parts if p.node.block is not None]
        block = max(blocks, key=lambda b: b.depth, default=self.top)
        size = int(starts[-1])
        node = Bundle(size, first.dtype, varies, block, list(parts), starts)
        return View(node, where.reshape(shape))

    def _owners(self, view: View) -> np.ndarray:
        """Part of a bundle that each element belongs to."""
        assert isinstance(view.node, Bundle)
        return np.searchsorted(view.node.starts, view.where.reshape(-1), side="right") - 1

    def settled(self, view: View) -> View:
        """The same elements of a node that is computed: one part of a bundle, or all, joined."""
        while isinstance(view.node, Bundle):
            node, owners = view.node, self._owners(view)
            if owners.size and (owners == owners[0]).all():
                part = node.parts[owners[0]]
                inner = part.where.reshape(-1)[view.where - node.starts[owners[0]]]
                view = View(part.node, inner)
                continue
            # Joined once, for all its readers.
            if node.whole is None:
                spots = np.split(np.arange(node.size), node.starts[1:-1])
                writes = [("set", p, at) for p, at in zip(node.parts, spots, strict=True)]
                joined = self.store(node.size, node.dtype, writes)
                node.whole = View(joined, np.arange(node.size))
            view = View(node.whole.node, view.where)
        return view

    def _pieces(self, views: Sequence[View]) -> list[np.ndarray] | None:
        """Flat positions that belong to the same parts of all bundles.

        None if there is one piece only, or if there are too many.
        """
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
        """Those elements of views that are at some flat positions."""
        return [View(v.node, v.where.reshape(-1)[piece]) for v in views]

    def place(self, fixed: np.ndarray, parts: list[tuple[View, int, int]], mode: str) -> Place:
        """A data-dependent position; `parts` are (index, stride, limit)."""
        indices = tuple(self.settled(p[0]).flat for p in parts)
        strides, limits = tuple(p[1] for p in parts), tuple(p[2] for p in parts)
        return Place(np.ascontiguousarray(fixed.reshape(-1)), indices, strides, limits, mode)

    def look_up(self, table: View, place: Place, shape: Sequence[int], fill: object = None) -> View:
        """Elements of a table at data-dependent positions, `fill` where they are out of bounds."""
        if table.node.dtype == BOOL:  # flags are a bit per lane: single lanes have no address
            return self.flag(self.look_up(self.number(table), place, shape, int(bool(fill))))
        source = self.whole(table).node
        # A column of looked-up rows is a value of its own: it can stay in a register, where whole
        # rows would be written to memory.
        windows = _windows(place)
        if windows is not None:
            parts = [self._looked_up(source, _cut(place, w), fill) for w in windows]
            return self.bundle(parts, windows, shape)
        return View(
            self._looked_up(source, place, fill).node, np.arange(math.prod(shape)).reshape(shape)
        )

    def _looked_up(self, source: Node, place: Place, fill: object) -> View:
        varies, block = self.common([*place.indices, Operand(source, place.fixed)])
        size = len(place.fixed)
        node = Map(size, source.dtype, varies, block, "look_up", (), {"fill": fill}, place, source)
        self.put(block, node)
        return View(node, np.arange(size))

    def whole(self, view: View) -> View:
        """The view's elements as a node of their own, in order."""
        view, n = self.settled(view), view.where.size
        if view.node.size == n and np.array_equal(view.where.reshape(-1), np.arange(n)):
            return view
        return self.map("copy", view.node.dtype, view.where.shape, view)

    def number(self, view: View) -> View:
        """Flags as integers, 0 or 1."""
        return self.map("convert_element_type", I32, view.where.shape, view)

    def flag(self, view: View) -> View:
        """Integers as flags: whether they are not 0."""
        return self.map("ne", BOOL, view.where.shape, view, self.constant(np.int32(0)))

    def own(self, view: View) -> View:
        """The view's elements as a node that differs between environments."""
        view = self.whole(view)
        if view.node.varies:
            return view
        copy = self.map("copy", view.node.dtype, view.where.shape, view)
        # Results are given back from the workspace of each vector, also those that all share.
        copy.node.varies = True
        return copy

    def store(
        self, size: int, dtype: str, writes: Sequence[tuple[str, View, Place | np.ndarray]]
    ) -> Node:
        """A store and its writes, (operation, value, `Place` or positions), in order."""
        if dtype == BOOL and any(isinstance(place, Place) for _, _, place in writes):
            numbers = [(op, self.number(value), place) for op, value, place in writes]
            stored = self.store(size, I32, numbers)  # as in `look_up`
            return self.flag(View(stored, np.arange(size))).node
        writes = [part for w in writes for part in self._split_write(*w)]
        operands = [w[1].flat for w in writes]
        for _, _, place in writes:
            if isinstance(place, Place):
                operands += place.indices
        varies, block = self.common(operands)
        node = Store(size, dtype, varies, block)
        for op, value, place in writes:
            placed = place if isinstance(place, Place) else None
            fixed = None if isinstance(place, Place) else np.ascontiguousarray(place.reshape(-1))
            write = Write(node, op, value.flat, placed, fixed)
            node.writes.append(write)
            self.put(block, write)
        return node

    def _split_write(
        self, op: str, value: View, place: Place | np.ndarray
    ) -> list[tuple[str, View, Place | np.ndarray]]:
        """A write of a bundle, part by part: each is written as it is computed."""
        if value.node.size == 0 or value.where.size == 0:
            return [(op, value, place)] if not isinstance(value.node, Bundle) else []
        # Positions that depend on data may overlap: the last write has to win, element by element.
        ordered = isinstance(place, Place) and op == "set"
        pieces = None if ordered else self._pieces([value])
        if pieces is None:
            return [(op, self.settled(value), place)]
        parts = []
        for piece in pieces:
            (part,) = self._at([value], piece)
            if isinstance(place, Place):
                there: Place | np.ndarray = _cut(place, piece)
            else:
                there = place.reshape(-1)[piece]
            parts += self._split_write(op, part, there)
        return parts

    def filled(self, value: object, dtype: str, size: int) -> tuple[str, View, np.ndarray]:
        """The write that sets a whole store to one value."""
        view = self.constant(value, dtype)
        return "set", View(view.node, np.zeros(size, np.int64)), np.arange(size)


def _windows(place: Place) -> list[np.ndarray] | None:
    """Flat positions of each element of the rows that are looked up; None if a row is one element.

    Elements of a row have the same indices and are next to each other.
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


def raw(value: object) -> Any:
    """Key data of typed keys; other arrays unchanged."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value


def dtype_of(dtype: Any) -> str:
    """Element type of an array.

    Raises:
        Unsupported: there is no vector code for it.
    """
    try:
        return DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError):
        raise Unsupported(f"arrays of {dtype} cannot be compiled for lanes") from None


def neutral(op: str, dtype: str) -> np.generic | np.ndarray:
    """The neutral element of an operation: combined with it, a number stays the same."""
    if op in ("add", "or"):
        return np.zeros((), NUMPY[dtype])
    if op == "and":
        return np.bool_(True) if dtype == BOOL else np.array(-1).astype(np.int32)
    if op == "mul":
        return np.ones((), NUMPY[dtype])
    if dtype == F32:
        return np.float32(-np.inf if op == "max" else np.inf)
    info = np.iinfo(np.int32 if dtype == I32 else np.uint32)
    return info.dtype.type(info.min if op == "max" else info.max)


def is_key(aval: ShapedArray) -> bool:
    """Whether an array holds typed keys."""
    return compat.is_key(aval.dtype)


def raw_shape(aval: ShapedArray) -> tuple[int, ...]:
    """Shape of an array, with the words of keys as a last axis."""
    return (*aval.shape, 2) if is_key(aval) else tuple(aval.shape)
