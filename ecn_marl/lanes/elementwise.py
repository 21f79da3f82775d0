"""Records, lowering and helpers for writing of all elementwise operations.

An instruction's operands and result are all vectors with one element per environment, or all
scalars, for values that environments share. The operations are in `operations` and
`transcendentals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn
from jax.typing import ArrayLike

from ecn_marl.lanes.builder import Builder, constant_value, dtype_of, is_key, raw_shape
from ecn_marl.lanes.compat import aval_of, canonical
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, F32, I32, NUMPY, U32, Map, Operand, View
from ecn_marl.lanes.primitives import (
    PRIMITIVES,
    Emit,
    Fold,
    Idle,
    Known,
    Lower,
    Primitive,
    add,
)

GROUP = "Element by element"

LETTERS = {F32: "f", I32: "i", U32: "u", BOOL: "b"}
"""Types as `Primitive.kinds` names them."""

MOST_FOLDED = 100_000
"""Largest number of operands' elements that are folded: larger tables only make the code long."""

USED_PARAMETERS = ("y", "rounding_method")
"""Parameters of primitives that the operations' instructions depend on."""


@runtime_checkable
class Writer(Protocol):
    """Writes LLVM instructions; `wide` says whether values are vectors."""

    wide: bool

    def emit(self, text: str) -> str:
        """Append an instruction and return the name of its result."""

    def type(self, dtype: str) -> str:
        """LLVM's name of a type."""

    def number(self, value: ArrayLike, dtype: str) -> str:
        """A constant."""

    def call(self, name: str, dtype: str, *args: str) -> str:
        """Call an intrinsic of `dtype` whose arguments are all of this type."""

    def quotient(self, a: str, b: str) -> str:
        """The quotient of two floats."""


# --- records ----------------------------------------------------------------------------------


def operation(
    name: str,
    kinds: str = "fiub",
    fold: Callable[..., np.ndarray] | None = None,
    folds_floats: bool = False,
    idle: Idle | None = None,
    limits: str = "",
) -> Callable[[Emit], Emit]:
    """Enter the record of an operation; the decorated function writes its instructions.

    Args:
        name: of the JAX primitive.
        kinds: types of its operands.
        fold: numpy's function. It is used for idle elements, too, unless `idle` is given.
        folds_floats: whether numpy and the processor agree to the bit on floats. If not, floats are
            not folded: the processor may fuse `mul` and `add`, and round once.
        idle: follows values of idle elements.
        limits: parameters that are left to XLA, for the documentation.
    """

    def when_known(dtype: str, *numbers: np.ndarray) -> np.ndarray | np.generic | None:
        floats = any(n.dtype == np.float32 for n in numbers)
        return fold(*numbers) if fold is not None and (folds_floats or not floats) else None

    def idle_numbers(item: Map, *args: Known) -> Known | None:
        if fold is None or any(isinstance(a, Operand) for a in args):
            return None
        result: Known = fold(*args)
        return result

    return custom_operation(name, kinds, when_known if fold else None, idle or idle_numbers, limits)


def custom_operation(
    name: str,
    kinds: str,
    fold: Fold | None,
    idle: Idle | None,
    limits: str = "",
    lower: Lower | None = None,
) -> Callable[[Emit], Emit]:
    """Enter the record of an operation whose folding needs the type of its result.

    Args:
        name: of the JAX primitive.
        kinds: types of its operands.
        fold: `(dtype, *numbers)`; None if the operation is never folded.
        idle: follows values of idle elements; None if it does not.
        limits: parameters that are left to XLA, for the documentation.
        lower: makes its nodes; `lower_elementwise` if None.
    """

    def enter(rule: Emit) -> Emit:
        how = lower or lower_elementwise
        add(Primitive(name, GROUP, how, kinds, limits, fold=fold, idle=idle, emit=rule))
        return rule

    return enter


def lower_elementwise(build: Builder, eqn: JaxprEqn, *args: View) -> list[View]:
    """Nodes of an operation on elements.

    Raises:
        Unsupported: a type or a parameter that the operation's record does not have.
    """
    name, out = canonical(eqn.primitive.name), aval_of(eqn.outvars[0])
    record = PRIMITIVES[name]
    if is_key(out):
        return [_select_keys(build, out, *args)]
    for arg in args:
        if LETTERS[arg.node.dtype] not in record.kinds:
            raise Unsupported(f"{name!r} of {arg.node.dtype}")
    if eqn.params.get("accuracy") is not None:
        raise Unsupported(f"{name!r} with accuracy={eqn.params['accuracy']}")
    if name == "bitcast_convert_type" and out.shape != args[0].where.shape:
        raise Unsupported("'bitcast_convert_type' between types of different sizes")
    dtype = dtype_of(out.dtype)
    folded = _folded(build, record, dtype, out.shape, args)
    if folded is not None:
        return [folded]
    # A view of the same node costs nothing; an operation would end up as a copy.
    if name == "convert_element_type" and args[0].node.dtype == dtype:
        return [args[0]]
    params = {k: v for k, v in eqn.params.items() if k in USED_PARAMETERS}
    return [build.map(name, dtype, out.shape, *args, **params)]


def _select_keys(build: Builder, out: ShapedArray, which: View, *cases: View) -> View:
    """A selection among typed keys: each is a row of two words that are selected together."""
    which = View(which.node, which.where[..., None])
    return build.map("select_n", U32, raw_shape(out), which, *cases)


def _folded(
    build: Builder, record: Primitive, dtype: str, shape: Sequence[int], args: Sequence[View]
) -> View | None:
    """The result where all operands are known when the program is compiled."""
    numbers = [n for a in args if (n := constant_value(a)) is not None]
    total = sum(n.size for n in numbers)
    if record.fold is None or len(numbers) < len(args) or total > MOST_FOLDED:
        return None
    # Overflow is no fault of the program: the processor does not report it either.
    with np.errstate(over="ignore"):
        result = record.fold(dtype, *(np.broadcast_to(n, shape) for n in numbers))
    return None if result is None else build.constant(np.asarray(result).astype(NUMPY[dtype]))


# --- what other modules write with ------------------------------------------------------------


def apply(
    w: Writer,
    op: str,
    dtype: str,
    kinds: Sequence[str],
    args: Sequence[str],
    params: Mapping[str, object],
) -> str:
    """Write an operation.

    Args:
        w: writer.
        op: its name, that of the JAX primitive.
        dtype: type of the result.
        kinds: types of the operands.
        args: operands.
        params: parameters of the primitive.

    Returns:
        The result.
    """
    emit = PRIMITIVES[op].emit
    assert emit is not None, op
    return emit(w, dtype, kinds, args, params)


def combine(w: Writer, op: str, dtype: str, a: str, b: str) -> str:
    """Result of an associative operation."""
    if dtype == BOOL:
        name = {"add": "or", "max": "or", "or": "or", "mul": "and", "min": "and", "and": "and"}[op]
        return w.emit(f"{name} {w.type(BOOL)} {a}, {b}")
    return apply(w, op, dtype, [dtype, dtype], [a, b], {})


COMPARISONS = {
    "eq": ("oeq", "eq", "eq"),
    # `une` is also true of NaN: NaN is unequal to itself.
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
"""LLVM's predicates for floats, signed and unsigned integers."""


def compare(w: Writer, op: str, kind: str, a: str, b: str) -> str:
    """A comparison of two values of type `kind`."""
    real, signed, unsigned = COMPARISONS[op]
    if kind == F32:
        return w.emit(f"fcmp {real} {w.type(F32)} {a}, {b}")
    return w.emit(f"icmp {signed if kind == I32 else unsigned} {w.type(kind)} {a}, {b}")


def select(w: Writer, dtype: str, which: str, yes: str, no: str) -> str:
    """`yes` where `which`, else `no`."""
    return w.emit(f"select {w.type(BOOL)} {which}, {w.type(dtype)} {yes}, {w.type(dtype)} {no}")


def bound(w: Writer, op: str, x: str, by: float | str) -> str:
    """`max` or `min` with a number that is not NaN: one comparison and one selection."""
    number = by if isinstance(by, str) else w.number(by, F32)
    # Ordered comparisons are False for NaN: a NaN in x stays.
    beyond = "ogt" if op == "max" else "olt"
    beaten = w.emit(f"fcmp {beyond} {w.type(F32)} {number}, {x}")
    return select(w, F32, beaten, number, x)


def bits_of(w: Writer, x: str) -> str:
    """The bits of floats."""
    return w.emit(f"bitcast {w.type(F32)} {x} to {w.type(I32)}")
