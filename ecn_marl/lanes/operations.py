"""LLVM instructions of each operation: arithmetic, logic, comparisons, bits and conversions.

Results follow XLA: `max` and `min` of NaN are NaN, conversions saturate, and shifts by more than 31
give 0 (-1 for arithmetic shifts of negative numbers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.lax import RoundingMethod

from ecn_marl.lanes.elementwise import (
    Writer,
    bits_of,
    bound,
    combine,
    compare,
    custom_operation,
    operation,
    select,
)
from ecn_marl.lanes.graph import BOOL, F32, I32, NUMPY, U32, Map, Operand
from ecn_marl.lanes.primitives import Emit, Idle, Known, same

# --- arithmetic, logic, comparisons -------------------------------------------------------------


def _instruction(real: str, signed: str, unsigned: str, flag: str) -> Emit:
    """An operation that is one instruction of LLVM for each type."""
    names = {F32: real, I32: signed, U32: unsigned, BOOL: flag}

    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        return w.emit(f"{names[kinds[0]]} {w.type(dtype)} {args[0]}, {args[1]}")

    return rule


def _compared(op: str) -> Emit:
    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        return compare(w, op, kinds[0], *args)

    return rule


def _idle_sub(item: Map, a: Known, b: Known) -> Known | None:
    """The result is `a` where `b` is +0. It is not where `b` is -0: -0 - -0 is +0."""
    if not isinstance(b, Operand) and not b.any() and not np.signbit(b).any():
        return a
    if isinstance(a, Operand) or isinstance(b, Operand):
        return None
    return np.subtract(a, b)


def _bits(like: np.ndarray, ones: bool) -> np.ndarray:
    zero = np.zeros_like(like)
    return ~zero if ones else zero


def _idle_logic(unit: bool) -> Idle:
    """A rule for `and` (`unit` is True: all bits set) or `or` (no bit set).

    The unit leaves the other operand as it is, and the unit's inverse is the result itself.
    """

    def rule(item: Map, a: Known, b: Known) -> Known | None:
        for x, other in ((a, b), (b, a)):
            if not isinstance(x, Operand) and np.array_equal(x, _bits(x, unit)):
                return other
        for x in (a, b):
            if not isinstance(x, Operand) and np.array_equal(x, _bits(x, not unit)):
                return x
        return None

    return rule


# `contract`: LLVM may fuse a product and a sum into one instruction that rounds once.
# Adding 0 has no rule for idle elements: -0 + 0 is +0, so it changes bits.
operation("add", fold=np.add)(_instruction("fadd contract", "add", "add", "or"))
operation("sub", fold=np.subtract, idle=_idle_sub)(
    _instruction("fsub contract", "sub", "sub", "xor")
)
operation("mul", fold=np.multiply)(_instruction("fmul contract", "mul", "mul", "and"))
operation("and", "iub", np.bitwise_and, idle=_idle_logic(True))(
    _instruction("", "and", "and", "and")
)
operation("or", "iub", np.bitwise_or, idle=_idle_logic(False))(_instruction("", "or", "or", "or"))
operation("xor", "iub", np.bitwise_xor)(_instruction("", "xor", "xor", "xor"))

for _name, _fold in {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}.items():
    operation(_name, fold=_fold, folds_floats=True)(_compared(_name))


@custom_operation("copy", "fiubk", None, lambda item, x: x, lower=lambda build, eqn, x: [x])
def _copy(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    return args[0]


def _idle_select(item: Map, which: Known, *cases: Known) -> Known | None:
    """The case that is taken, or what all cases are."""
    if not isinstance(which, Operand) and (which == which[0]).all():
        return cases[int(which[0])]
    return cases[0] if all(same(cases[0], c) for c in cases) else None


@custom_operation(
    "select_n", "fiubk", lambda dtype, which, *cases: np.choose(which, cases), _idle_select
)
def _select_n(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    which, no, *others = args
    if kinds[0] != BOOL:
        for k, case in enumerate(others, start=1):
            here = compare(w, "eq", kinds[0], which, w.number(k, kinds[0]))
            no = select(w, dtype, here, case, no)
        return no
    (yes,) = others
    return select(w, dtype, which, yes, no)


@operation("div", "fiu")
def _div(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    if dtype == F32:
        # Not a product with the inverse, except for constants (`Builder.map`), where XLA does the
        # same. It would save 3.5 % of a step's time, but whole quotients would be off by one bit.
        return w.quotient(*args)
    return _quotient(w, dtype, *args)


def _quotient(w: Writer, dtype: str, a: str, b: str) -> str:
    """Integer quotient, rounded towards zero. It is exact in float64, which holds 32-bit integers.

    Processors have a vector instruction that divides floats, but none that divides integers.
    """
    double = w.type("f64")
    sign = "s" if dtype == I32 else "u"
    x = w.emit(f"{sign}itofp {w.type(dtype)} {a} to {double}")
    y = w.emit(f"{sign}itofp {w.type(dtype)} {b} to {double}")
    # Rounding never reaches the next integer: it is at least 1/b away, and float64 has 53 bits
    # where a and b have 32.
    q = w.emit(f"fdiv {double} {x}, {y}")
    return w.emit(f"fpto{sign}i {double} {q} to {w.type(dtype)}")


def _fold_rem(dtype: str, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Remainders of integers; floats and zero divisors are left to the processor."""
    return None if dtype == F32 or (b == 0).any() else np.fmod(a, b)


@custom_operation("rem", "fiu", _fold_rem, None)
def _rem(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    if dtype == F32:
        return w.emit(f"frem {w.type(F32)} {args[0]}, {args[1]}")
    q = _quotient(w, dtype, *args)
    # From the quotient: there is no vector instruction for integer remainders either.
    back = w.emit(f"mul {w.type(dtype)} {q}, {args[1]}")
    return w.emit(f"sub {w.type(dtype)} {args[0]}, {back}")


def _max_min(op: str) -> Emit:
    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        if dtype == F32:
            # With a constant, which is not NaN, one comparison and one selection are enough. The
            # intrinsic takes four instructions, as it looks for NaN on both sides. Doing without
            # would save 8 % of a step's cycles, but NaN must not disappear.
            for x, other in (args, args[::-1]):
                if other.startswith(("splat", "0x")):
                    return bound(w, op, x, other)
            return w.call(f"llvm.{op}imum", F32, *args)
        if dtype == BOOL:
            return w.emit(f"{'or' if op == 'max' else 'and'} {w.type(BOOL)} {args[0]}, {args[1]}")
        return w.call(f"llvm.{'s' if dtype == I32 else 'u'}{op}", dtype, *args)

    return rule


_max = operation("max", fold=np.maximum, folds_floats=True)(_max_min("max"))
_min = operation("min", fold=np.minimum, folds_floats=True)(_max_min("min"))


@operation("clamp", "fiu")
def _clamp(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    # In XLA's order: where low > high the result is high.
    low, x, high = args
    return _min(w, dtype, kinds, (_max(w, dtype, kinds, (x, low), params), high), params)


@operation("neg", "fiu")
def _neg(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    if dtype == F32:
        # Not 0 - x, which is +0 for x = +0.
        return w.emit(f"fneg {w.type(F32)} {args[0]}")
    return w.emit(f"sub {w.type(dtype)} {w.number(0, dtype)}, {args[0]}")


@operation("not", "iub", np.invert)
def _not(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    ones = w.number(True, BOOL) if dtype == BOOL else w.number(-1, I32)
    return w.emit(f"xor {w.type(dtype)} {args[0]}, {ones}")


@operation("abs", "fi")
def _abs(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    if dtype == F32:
        return w.call("llvm.fabs", F32, args[0])
    return _max(w, dtype, kinds, (args[0], _neg(w, dtype, kinds, args, params)), params)


@operation("sign", "fiu")
def _sign(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    zero, one, x = w.number(0, dtype), w.number(1, dtype), args[0]
    if dtype == U32:
        return select(w, dtype, compare(w, "ne", dtype, x, zero), one, zero)
    less, more = compare(w, "lt", dtype, x, zero), compare(w, "gt", dtype, x, zero)
    otherwise = x if dtype == F32 else zero  # keeps NaN, and the sign of zero
    return select(w, dtype, less, w.number(-1, dtype), select(w, dtype, more, one, otherwise))


def _intrinsic(name: str) -> Emit:
    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        return w.call(name, F32, args[0])

    return rule


operation("floor", "f")(_intrinsic("llvm.floor"))
operation("ceil", "f")(_intrinsic("llvm.ceil"))
operation("sqrt", "f", limits="`accuracy`")(_intrinsic("llvm.sqrt"))


@operation("rsqrt", "f", limits="`accuracy`")
def _rsqrt(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    # Not the processor's approximate instruction: results have to be XLA's within rounding.
    root = w.call("llvm.sqrt", F32, args[0])
    return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {root}")


@operation("round", "f")
def _round(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    even = params["rounding_method"] == RoundingMethod.TO_NEAREST_EVEN
    return w.call("llvm.roundeven" if even else "llvm.round", F32, args[0])


@operation("is_finite", "f")
def is_finite(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """Whether a float is neither infinite nor NaN."""
    size = w.call("llvm.fabs", F32, args[0])
    # False for NaN, too: the comparison is an ordered one.
    return compare(w, "lt", F32, size, w.number(np.inf, F32))


@operation("square", "fiu")
def _square(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    return combine(w, "mul", dtype, args[0], args[0])


@operation("one_minus_square", "fiu")
def _one_minus_square(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """(1 + x) (1 - x) as XLA has it, exact near 1; in derivatives from jax 0.12 on."""
    one = w.number(1, dtype)
    above, below = combine(w, "add", dtype, one, args[0]), combine(w, "sub", dtype, one, args[0])
    return combine(w, "mul", dtype, above, below)


@operation("integer_pow", "fiu")
def _integer_pow(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, Any]
) -> str:
    """Repeated squaring: a product for each bit of the exponent, one more for each bit set."""
    y, square, product = abs(params["y"]), args[0], None
    while y:
        if y & 1:
            product = square if product is None else combine(w, "mul", dtype, product, square)
        y >>= 1
        if y:
            square = combine(w, "mul", dtype, square, square)
    product = product or w.number(1, dtype)
    if params["y"] < 0:
        # One quotient at the end rounds once; powers of an inverse would round each time.
        return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {product}")
    return product


# --- bits and conversions -----------------------------------------------------------------------


def _shift(instruction: str) -> Emit:
    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        x, by = args
        t = w.type(dtype)
        inside = w.emit(f"icmp ult {t} {by}, {w.number(32, U32)}")
        # LLVM leaves shifts by more than 31 undefined, and processors differ in them.
        safe = w.emit(f"and {t} {by}, {w.number(31, U32)}")
        shifted = w.emit(f"{instruction} {t} {x}, {safe}")
        beyond = w.number(0, dtype)
        if instruction == "ashr":
            beyond = w.emit(f"ashr {t} {x}, {w.number(31, U32)}")
        return select(w, dtype, inside, shifted, beyond)

    return rule


operation("shift_left", "iu")(_shift("shl"))
operation("shift_right_logical", "iu")(_shift("lshr"))
operation("shift_right_arithmetic", "iu")(_shift("ashr"))


def _total_order(op: str) -> Emit:
    def rule(
        w: Writer,
        dtype: str,
        kinds: Sequence[str],
        args: Sequence[str],
        params: Mapping[str, object],
    ) -> str:
        if kinds[0] != F32:
            return compare(w, op, kinds[0], *args)
        ordered = []
        for x in args:  # as integers, negative floats are ordered backwards
            bits = bits_of(w, x)
            flip = w.emit(f"ashr {w.type(I32)} {bits}, {w.number(31, I32)}")
            flip = w.emit(f"lshr {w.type(I32)} {flip}, {w.number(1, I32)}")
            ordered.append(w.emit(f"xor {w.type(I32)} {bits}, {flip}"))
        return compare(w, op, I32, *ordered)

    return rule


operation("lt_to")(_total_order("lt"))
operation("le_to")(_total_order("le"))


def _fold_conversion(dtype: str, x: np.ndarray) -> np.ndarray | None:
    """Conversions of numbers; floats to integers saturate, and are left to the rule below."""
    return None if x.dtype == np.float32 and dtype != F32 else x


def _idle_conversion(item: Map, x: Known) -> Known | None:
    return None if isinstance(x, Operand) else x.astype(NUMPY[item.dtype])


@custom_operation("convert_element_type", "fiub", _fold_conversion, _idle_conversion)
def convert(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """The number in another type."""
    (kind,), (x,) = kinds, args
    source, target = w.type(kind), w.type(dtype)
    if kind == dtype or {kind, dtype} == {I32, U32}:
        return x
    if dtype == BOOL:
        return compare(w, "ne", kind, x, w.number(0, kind))
    if kind == BOOL:
        return select(w, dtype, x, w.number(1, dtype), w.number(0, dtype))
    if dtype == F32:
        return w.emit(f"{'s' if kind == I32 else 'u'}itofp {source} {x} to {target}")
    return _to_integer(w, dtype, x)


def _to_integer(w: Writer, dtype: str, x: str) -> str:
    """Rounded towards zero; saturates out of range, and is 0 for NaN, as in XLA."""
    # The bounds are the largest floats that fit, so that no lane overflows: LLVM leaves that
    # undefined. Its saturating conversion is compiled lane by lane; this made a step 10 % faster.
    low, high, top = (
        (-(2.0**31), 2.0**31 - 128, 2**31 - 1) if dtype == I32 else (0.0, 2.0**32 - 256, -1)
    )
    bounded = bound(w, "min", bound(w, "max", x, low), high)
    number = w.emit(
        f"fpto{'s' if dtype == I32 else 'u'}i {w.type(F32)} {bounded} to {w.type(dtype)}"
    )
    above = compare(w, "gt", F32, x, w.number(high, F32))
    number = select(w, dtype, above, w.number(top, I32), number)
    nan = w.emit(f"fcmp uno {w.type(F32)} {x}, {x}")
    return select(w, dtype, nan, w.number(0, dtype), number)


@operation("bitcast_convert_type", "fiu", limits="types of different sizes")
def _bitcast(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    # LLVM has one type for signed and unsigned integers.
    if w.type(kinds[0]) == w.type(dtype):
        return args[0]
    return w.emit(f"bitcast {w.type(kinds[0])} {args[0]} to {w.type(dtype)}")
