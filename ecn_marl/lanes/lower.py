"""From a jaxpr of one environment to nodes (`graph`).

Calls are inlined, what is fixed within a loop moves out of it, and everything that only moves
elements about (slices, transpositions, broadcasts, reshapes) becomes a `View`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.extend.random import threefry_prng_impl

from ecn_marl.lanes.arithmetic import REDUCTIONS, RUNNING
from ecn_marl.lanes.builder import PIECES, dtype_of, is_key, neutral, raw, raw_shape
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import (
    BOOL,
    I32,
    NUMPY,
    U32,
    Argument,
    Block,
    Bundle,
    Carry,
    Final,
    Loop,
    Map,
    Store,
    View,
)
from ecn_marl.lanes.indexing import Positions
from ecn_marl.lanes.operations import ELEMENTWISE
from ecn_marl.lanes.optimisation_hints import BUSY

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

SYNONYMS = {"add_any": "add"}
"""What derivatives call a primitive."""

LONG = 16
"""Rows of so many elements are carried through loops one by one."""


class Lowering(Positions):
    """Nodes of one program; see `lower`."""

    def run(self, jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[View]) -> list[View]:
        """Lower a jaxpr applied to views."""
        env: dict[Any, View] = {}

        def read(atom: Any) -> View:
            if isinstance(atom, core.Literal):
                return self.constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))
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

    def inline(self, inner: Any, args: Sequence[View]) -> list[View]:
        """Lower a jaxpr, closed or (as jax >= 0.11 has them) without constants."""
        if isinstance(inner, core.ClosedJaxpr):
            return self.run(inner.jaxpr, inner.consts, args)
        return self.run(inner, (), args)

    def equation(self, eqn: Any, args: list[View]) -> list[View]:
        """Lower one equation."""
        name = SYNONYMS.get(eqn.primitive.name, eqn.primitive.name)
        if name in CALLS:
            return self.inline(eqn.params[CALLS[name]], args)
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

    def _traced(self, fun: Callable[..., Any], *args: View) -> list[View]:
        """Lower a function of raw key data, traced for these shapes."""
        avals = [jax.ShapeDtypeStruct(a.where.shape, NUMPY[a.node.dtype]) for a in args]
        closed = jax.make_jaxpr(fun)(*avals)
        return self.run(closed.jaxpr, closed.consts, args)

    def _optimization_barrier(self, eqn: Any, *args: View) -> list[View]:
        """Nothing is moved across loops over elements in any case."""
        return list(args)

    def _name(self, eqn: Any, x: View) -> list[View]:
        """A name; flags of what is busy are remembered."""
        if eqn.params["name"] != BUSY or x.where.ndim > 1:
            return [x]
        flag = self.map("copy", BOOL, x.where.shape, x)
        if isinstance(flag.node, Map):
            self.flags.append(flag.node)
        return [flag]

    def _call_hi_primitive(self, eqn: Any, *args: View) -> list[View]:
        """What jax >= 0.12 keeps whole (searchsorted), spelt out."""
        whole = eqn.params["_prim"]

        def fun(*flat: Any) -> Any:
            return jax.tree.leaves(whole.expand(*jax.tree.unflatten(whole.in_tree, flat)))

        return self._traced(fun, *args)

    def _threefry2x32(self, eqn: Any, *args: View) -> list[View]:
        shape = eqn.outvars[0].aval.shape
        return [self.map("threefry", U32, shape, *args, word=w) for w in (0, 1)]

    def _random_split(self, eqn: Any, key: View) -> list[View]:
        shape = eqn.params["shape"]
        return self._per_key(lambda k: threefry_prng_impl.split(k, shape), key)

    def _random_bits(self, eqn: Any, key: View) -> list[View]:
        p = eqn.params
        return self._per_key(
            lambda k: threefry_prng_impl.random_bits(k, p["bit_width"], p["shape"]), key
        )

    def _random_fold_in(self, eqn: Any, key: View, data: View) -> list[View]:
        if key.where.ndim != 1:
            raise Unsupported("fold_in of several keys at once")
        if data.node.dtype != U32:
            data = self.map("convert_element_type", U32, data.where.shape, data)
        return self._traced(threefry_prng_impl.fold_in, key, data)

    def _random_seed(self, eqn: Any, seed: View) -> list[View]:
        return self._traced(threefry_prng_impl.seed, seed)

    def _random_wrap(self, eqn: Any, x: View) -> list[View]:
        return [x]

    _random_unwrap = _random_wrap

    def _per_key(self, fun: Callable[..., Any], key: View) -> list[View]:
        for _ in range(key.where.ndim - 1):
            fun = jax.vmap(fun)
        return self._traced(fun, key)

    def _cond(self, eqn: Any, which: View, *args: View) -> list[View]:
        """Both branches, and a selection: lanes may differ in which they take."""
        runs = [self.inline(b, args) for b in eqn.params["branches"]]
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
        (nc, nk), length = _counts(p), p["length"]
        consts, start, xs = args[:nc], args[nc : nc + nk], args[nc + nk :]
        if p["reverse"] and (xs or len(eqn.outvars) > nk):
            raise Unsupported("a reverse scan over rows")
        outer, shapes = self.block, [raw_shape(v.aval) for v in eqn.outvars]
        loop = Loop(outer, Block(outer), length)
        handed = list(start)
        if xs or len(shapes) > nk:
            handed.append(self.constant(np.int32(0)))
        for var, shape in zip(eqn.outvars[nk:], shapes[nk:], strict=True):
            kind = U32 if is_key(var.aval) else dtype_of(var.aval.dtype)
            zero = self.constant(neutral("add", I32 if kind == BOOL else kind))  # see `store`
            handed.append(View(zero.node, np.broadcast_to(zero.where, shape)))
        carried = [self._carry(loop, v) for v in handed]
        turn = carried[nk] if len(handed) > nk else None
        self.block = loop.body
        rows = [self._row(x, turn) for x in xs]
        found = self.inline(p["jaxpr"], [*consts, *carried[:nk], *rows])
        following = found[:nk]
        if turn is not None:
            following.append(self.map("add", I32, (), turn, self.constant(np.int32(1))))
        for result, y in zip(carried[nk + 1 :], found[nk:], strict=True):
            y = self.number(y) if y.node.dtype == BOOL else y
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
        for k, var in enumerate(eqn.outvars[nk:], nk):
            if var.aval.dtype == np.bool_:
                done[k] = self.flag(done[k])
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


def _counts(params: dict[str, Any]) -> tuple[int, int]:
    """Numbers of constants and carried values of a scan; jax >= 0.11 has them as a tree."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = params["ft_in"].unpack()
    return len(consts), len(carried)


def _split_like(carried: View, value: View) -> list[View]:
    """A value row by row, if it is carried so."""
    if not isinstance(carried.node, Bundle):
        return [value]
    return [
        View(value.node, w.reshape(-1)) for w in value.where.reshape(len(carried.node.parts), -1)
    ]


class Program(NamedTuple):
    """A lowered program: its outermost block, its arguments, its results, flags of what is busy."""

    top: Block
    arguments: list[Argument]
    results: list[View]
    flags: list[Map]


def lower(jaxpr: core.ClosedJaxpr, lanes: Sequence[bool]) -> Program:
    """Nodes of a program of one environment.

    Args:
        jaxpr: the program.
        lanes: for each argument, whether environments differ in it.

    Raises:
        Unsupported: the program uses something that cannot be compiled.
    """
    lowering, arguments, views = Lowering(), [], []
    for slot, (var, own) in enumerate(zip(jaxpr.jaxpr.invars, lanes, strict=True)):
        shape = raw_shape(var.aval)
        dtype = U32 if is_key(var.aval) else dtype_of(var.aval.dtype)
        node = Argument(math.prod(shape), dtype, own, lowering.top, slot)
        arguments.append(node)
        views.append(View(node, np.arange(node.size).reshape(shape)))
    results = lowering.run(jaxpr.jaxpr, jaxpr.consts, views)
    return Program(lowering.top, arguments, [lowering.own(r) for r in results], lowering.flags)
