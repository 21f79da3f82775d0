"""Branches and loops. Both branches are computed; loops update carried values in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.builder import PIECES, dtype_of, is_key, neutral, raw_shape
from ecn_marl.lanes.compat import aval_of, expanded, scan_counts
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, I32, U32, Block, Bundle, Carry, Final, Loop, Map, Store, View
from ecn_marl.lanes.lowering import Lowering
from ecn_marl.lanes.optimisation_hints import BUSY
from ecn_marl.lanes.primitives import primitive

GROUP = "Branches, loops, marks"

ALL = "fiubk"
"""Types, typed keys included."""

LONG = 16
"""Rows of at least this many elements are carried one by one. A row that a turn does not change is
then not copied, and each row is updated in loops of its own size."""


@primitive(GROUP, "name", kinds=ALL)
def name(build: Lowering, eqn: JaxprEqn, x: View) -> list[View]:
    """A name; flags marked by `busy` are recorded."""
    if eqn.params["name"] != BUSY or x.where.ndim > 1:
        return [x]
    # A node of its own: lists of busy elements are made of whole nodes.
    flag = build.map("copy", BOOL, x.where.shape, x)
    if isinstance(flag.node, Map):
        build.flags.append(flag.node)
    return [flag]


@primitive(GROUP, "call_hi_primitive")
def whole_call(build: Lowering, eqn: JaxprEqn, *args: View) -> list[View]:
    """Operations that newer versions of JAX keep whole are expanded."""
    return build.traced(expanded(eqn.params), *args)


@primitive(GROUP, "cond", kinds=ALL, limits="more than two branches")
def cond(build: Lowering, eqn: JaxprEqn, which: View, *args: View) -> list[View]:
    """Both branches and a selection, as environments of a vector may take different ones."""
    branches = [build.inline(b, args) for b in eqn.params["branches"]]
    if len(branches) > 2:
        raise Unsupported("a switch of more than two branches")
    if len(branches) == 1:
        return branches[0]
    second = build.map("ne", BOOL, (), which, build.constant(np.int32(0)))
    return [
        build.map("select_n", a.node.dtype, a.where.shape, second, a, b)
        for a, b in zip(*branches, strict=True)
    ]


@primitive(GROUP, "scan", kinds=ALL, limits="`reverse` over rows")
def scan(build: Lowering, eqn: JaxprEqn, *args: View) -> list[View]:
    """A loop; it looks up its input rows by the number of the turn, and carries its output rows."""
    p = eqn.params
    (nc, nk), length = scan_counts(p), p["length"]
    consts, start, xs = args[:nc], args[nc : nc + nk], args[nc + nk :]
    if p["reverse"] and (xs or len(eqn.outvars) > nk):
        raise Unsupported("a reverse scan over rows")
    outer, shapes = build.block, [raw_shape(aval_of(v)) for v in eqn.outvars]
    if not length:
        return [*start, *(build.empty(aval_of(v)) for v in eqn.outvars[nk:])]
    loop = Loop(outer, Block(outer), length)
    initial = list(start)
    # Loops without rows need no count of their own.
    if xs or len(shapes) > nk:
        initial.append(build.constant(np.int32(0)))  # the number of the turn
    initial += [_empty(build, aval_of(v)) for v in eqn.outvars[nk:]]
    carried = [_carry(build, loop, v) for v in initial]
    turn = carried[nk] if len(initial) > nk else None
    build.block = loop.body
    rows = [_row(build, x, turn) for x in xs]
    after = build.inline(p["jaxpr"], [*consts, *carried[:nk], *rows])
    following = after[:nk]
    if turn is not None:
        following.append(build.map("add", I32, (), turn, build.constant(np.int32(1))))
    for target, y in zip(carried[nk + 1 :], after[nk:], strict=True):
        y = build.number(y) if y.node.dtype == BOOL else y
        following.append(_put_row(build, target, y, turn))
    parts = [v for value, c in zip(following, carried, strict=True) for v in _split_like(c, value)]
    loop.following = [_next(build, loop, k, v).flat for k, v in enumerate(parts)]
    build.block = outer
    outer.items.append(loop)
    finals = iter([View(f, np.arange(f.size)) for f in loop.finals])
    results = [_joined_like(build, c, finals) for c in carried]
    if turn is not None:
        del results[nk]
    for k, var in enumerate(eqn.outvars[nk:], nk):
        if aval_of(var).dtype == np.bool_:
            results[k] = build.flag(results[k])
    return [View(v.node, v.where.reshape(s)) for v, s in zip(results, shapes, strict=True)]


def _empty(build: Lowering, aval: ShapedArray) -> View:
    """Zeros for the rows that a loop writes; flags are numbers, as single bits have no address."""
    kind = U32 if is_key(aval) else dtype_of(aval.dtype)
    zero = build.constant(neutral("add", I32 if kind == BOOL else kind))
    return View(zero.node, np.broadcast_to(zero.where, raw_shape(aval)))


def _carry(build: Lowering, loop: Loop, start: View) -> View:
    """A carried value; one of a few long rows is carried row by row."""
    shape = start.where.shape
    if len(shape) > 1 and 1 < shape[0] <= PIECES and math.prod(shape[1:]) >= LONG:
        rows = [_carry_row(build, loop, View(start.node, w)) for w in start.where]
        pieces = list(np.arange(start.where.size).reshape(shape[0], -1))
        return build.bundle(rows, pieces, shape)
    return _carry_row(build, loop, start)


def _carry_row(build: Lowering, loop: Loop, start: View) -> View:
    start = build.settled(start)
    carry = Carry(start.where.size, start.node.dtype, True, loop.body, loop)
    loop.carries.append(carry)
    loop.finals.append(Final(carry.size, carry.dtype, True, loop.block, carry))
    loop.initial.append(start.flat)
    return View(carry, np.arange(carry.size).reshape(start.where.shape))


def _joined_like(build: Lowering, carried: View, finals: Iterator[View]) -> View:
    """A carried value after the loop."""
    if not isinstance(carried.node, Bundle):
        return next(finals)
    rows = [next(finals) for _ in carried.node.parts]
    pieces = list(np.arange(carried.node.size).reshape(len(rows), -1))
    return build.bundle(rows, pieces, carried.where.shape)


def _next(build: Lowering, loop: Loop, k: int, value: View) -> View:
    """A carry's next value, as a node that no other carry's update changes."""
    # Carries are updated one after the other. Where two swap, say, each needs a copy of the other.
    whole = build.whole(value)
    if whole.node is loop.carries[k] or isinstance(whole.node, Map | Store | Final):
        return whole
    return build.map("copy", whole.node.dtype, whole.where.shape, whole)


def _row(build: Lowering, x: View, turn: View | None) -> View:
    assert turn is not None
    shape, size = x.where.shape[1:], math.prod(x.where.shape[1:])
    fixed = np.arange(size).reshape(shape)
    index = View(turn.node, np.broadcast_to(turn.where, shape))
    # `promise`: the number of a turn is always in bounds.
    place = build.place(fixed, [(index, size, x.where.shape[0] - 1)], "promise")
    return build.look_up(x, place, shape)


def _put_row(build: Lowering, result: View, y: View, turn: View | None) -> View:
    assert turn is not None
    size = y.where.size
    index = View(turn.node, np.broadcast_to(turn.where, y.where.shape))
    place = build.place(np.arange(size), [(index, size, result.where.shape[0] - 1)], "promise")
    whole = ("set", result, np.arange(result.where.size))
    node = build.store(result.where.size, result.node.dtype, [whole, ("set", y, place)])
    return View(node, np.arange(node.size).reshape(result.where.shape))


def _split_like(carried: View, value: View) -> list[View]:
    """A value row by row, if it is carried so."""
    if not isinstance(carried.node, Bundle):
        return [value]
    return [
        View(value.node, w.reshape(-1)) for w in value.where.reshape(len(carried.node.parts), -1)
    ]
