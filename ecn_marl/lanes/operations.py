"""Operations on elements, as LLVM instructions.

All take and return values of one type: a vector with one element per environment, or a scalar for
what environments share. Results follow XLA: NaN wins in `max` and `min`, conversions saturate,
shifts by more than 31 give 0. Exponentials and logarithms are polynomials of float32 accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.lax import RoundingMethod

from ecn_marl.lanes.graph import BOOL, F32, I32, U32

COMPARISONS = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
"""LLVM's predicates for floats, signed and unsigned integers."""


@runtime_checkable
class Writer(Protocol):
    """What operations are written with; `wide` is whether values are vectors."""

    wide: bool

    def emit(self, text: str) -> str:
        """Append an instruction; the name of its result."""

    def type(self, dtype: str) -> str:
        """LLVM's name of a type."""

    def number(self, value: Any, dtype: str) -> str:
        """A constant."""

    def call(self, name: str, dtype: str, *args: str) -> str:
        """Call an intrinsic of `dtype` whose arguments are all of this type."""


def combine(w: Writer, op: str, dtype: str, a: str, b: str) -> str:
    """Result of an associative operation."""
    if dtype == BOOL:
        name = {"add": "or", "max": "or", "or": "or", "mul": "and", "min": "and", "and": "and"}[op]
        return w.emit(f"{name} {w.type(BOOL)} {a}, {b}")
    return apply(w, op, dtype, [dtype, dtype], [a, b], {})


def apply(
    w: Writer,
    op: str,
    dtype: str,
    kinds: Sequence[str],
    args: Sequence[str],
    params: dict[str, Any],
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
    if op in COMPARISONS:
        return _compare(w, op, kinds[0], *args)
    if op in _SIMPLE:
        instruction = _SIMPLE[op][{F32: 0, I32: 1, U32: 2, BOOL: 3}[kinds[0]]]
        return w.emit(f"{instruction} {w.type(dtype)} {args[0]}, {args[1]}")
    return _RULES[op](w, dtype, kinds, args, params)


_SIMPLE = {
    "add": ("fadd contract", "add", "add", "or"),
    "sub": ("fsub contract", "sub", "sub", "xor"),
    "mul": ("fmul contract", "mul", "mul", "and"),
    "and": ("", "and", "and", "and"),
    "or": ("", "or", "or", "or"),
    "xor": ("", "xor", "xor", "xor"),
}


def _compare(w: Writer, op: str, kind: str, a: str, b: str) -> str:
    real, signed, unsigned = COMPARISONS[op]
    if kind == F32:
        return w.emit(f"fcmp {real} {w.type(F32)} {a}, {b}")
    return w.emit(f"icmp {signed if kind == I32 else unsigned} {w.type(kind)} {a}, {b}")


Rule = Callable[[Writer, str, Sequence[str], Sequence[str], dict[str, Any]], str]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


@_rule("copy")
def _copy(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    return args[0]


@_rule("select_n")
def _select(w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Any) -> str:
    which, no, *others = args
    if kinds[0] != BOOL:
        for k, case in enumerate(others, start=1):
            here = _compare(w, "eq", kinds[0], which, w.number(k, kinds[0]))
            no = select(w, dtype, here, case, no)
        return no
    (yes,) = others
    return w.emit(f"select {w.type(BOOL)} {which}, {w.type(dtype)} {yes}, {w.type(dtype)} {no}")


def select(w: Writer, dtype: str, which: str, yes: str, no: str) -> str:
    """`yes` where `which`, else `no`."""
    return w.emit(f"select {w.type(BOOL)} {which}, {w.type(dtype)} {yes}, {w.type(dtype)} {no}")


@_rule("div")
def _div(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    if dtype == F32:
        return w.emit(f"fdiv {w.type(F32)} {args[0]}, {args[1]}")
    return _quotient(w, dtype, *args)


def _quotient(w: Writer, dtype: str, a: str, b: str) -> str:
    """Integer quotient, rounded towards zero: exact in float64, in which 32-bit integers fit."""
    double = w.type("f64")
    sign = "s" if dtype == I32 else "u"
    x = w.emit(f"{sign}itofp {w.type(dtype)} {a} to {double}")
    y = w.emit(f"{sign}itofp {w.type(dtype)} {b} to {double}")
    q = w.emit(f"fdiv {double} {x}, {y}")
    return w.emit(f"fpto{sign}i {double} {q} to {w.type(dtype)}")


@_rule("rem")
def _rem(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    if dtype == F32:
        return w.emit(f"frem {w.type(F32)} {args[0]}, {args[1]}")
    q = _quotient(w, dtype, *args)
    back = w.emit(f"mul {w.type(dtype)} {q}, {args[1]}")
    return w.emit(f"sub {w.type(dtype)} {args[0]}, {back}")


def _max_min(op: str) -> Rule:
    def rule(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
        if dtype == F32:
            for x, other in (args, args[::-1]):
                if other.startswith(("splat", "0x")):
                    return bound(w, op, x, other)
            return w.call(f"llvm.{op}imum", F32, *args)
        if dtype == BOOL:
            return w.emit(f"{'or' if op == 'max' else 'and'} {w.type(BOOL)} {args[0]}, {args[1]}")
        return w.call(f"llvm.{'s' if dtype == I32 else 'u'}{op}", dtype, *args)

    return rule


_RULES["max"], _RULES["min"] = _max_min("max"), _max_min("min")


@_rule("clamp")
def _clamp(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    low, x, high = args
    x = _RULES["max"](w, dtype, kinds, (x, low), params)
    return _RULES["min"](w, dtype, kinds, (x, high), params)


@_rule("neg")
def _neg(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    if dtype == F32:
        return w.emit(f"fneg {w.type(F32)} {args[0]}")
    return w.emit(f"sub {w.type(dtype)} {w.number(0, dtype)}, {args[0]}")


@_rule("not")
def _not(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    ones = w.number(True, BOOL) if dtype == BOOL else w.number(-1, I32)
    return w.emit(f"xor {w.type(dtype)} {args[0]}, {ones}")


@_rule("abs")
def _abs(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    if dtype == F32:
        return w.call("llvm.fabs", F32, args[0])
    return _RULES["max"](w, dtype, kinds, (args[0], _neg(w, dtype, kinds, args, params)), params)


@_rule("sign")
def _sign(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    zero, one, x = w.number(0, dtype), w.number(1, dtype), args[0]
    if dtype == U32:
        return select(w, dtype, _compare(w, "ne", dtype, x, zero), one, zero)
    less, more = _compare(w, "lt", dtype, x, zero), _compare(w, "gt", dtype, x, zero)
    rest = x if dtype == F32 else zero  # keeps NaN, and the sign of zero
    found = select(w, dtype, more, one, rest)
    return select(w, dtype, less, w.number(-1, dtype), found)


def _intrinsic(name: str) -> Rule:
    def rule(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
        return args[0] if dtype != F32 else w.call(name, F32, args[0])

    return rule


_RULES["floor"] = _intrinsic("llvm.floor")
_RULES["ceil"] = _intrinsic("llvm.ceil")
_RULES["sqrt"] = _intrinsic("llvm.sqrt")


@_rule("rsqrt")
def _rsqrt(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    root = w.call("llvm.sqrt", F32, args[0])
    return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {root}")


@_rule("round")
def _round(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: dict[str, Any]) -> str:
    even = params["rounding_method"] == RoundingMethod.TO_NEAREST_EVEN
    return w.call("llvm.roundeven" if even else "llvm.round", F32, args[0])


@_rule("is_finite")
def _is_finite(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    size = w.call("llvm.fabs", F32, args[0])
    return _compare(w, "lt", F32, size, w.number(np.inf, F32))


@_rule("square")
def _square(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    return combine(w, "mul", dtype, args[0], args[0])


@_rule("integer_pow")
def _integer_pow(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    y, square, found = abs(params["y"]), args[0], None
    while y:
        if y & 1:
            found = square if found is None else combine(w, "mul", dtype, found, square)
        y >>= 1
        if y:
            square = combine(w, "mul", dtype, square, square)
    found = found or w.number(1, dtype)
    if params["y"] < 0:
        return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {found}")
    return found


def _shift(instruction: str) -> Rule:
    def rule(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
        x, by = args
        t = w.type(dtype)
        inside = w.emit(f"icmp ult {t} {by}, {w.number(32, U32)}")
        safe = w.emit(f"and {t} {by}, {w.number(31, U32)}")
        found = w.emit(f"{instruction} {t} {x}, {safe}")
        out = w.number(0, dtype)
        if instruction == "ashr":
            out = w.emit(f"ashr {t} {x}, {w.number(31, U32)}")
        return select(w, dtype, inside, found, out)

    return rule


_RULES["shift_left"] = _shift("shl")
_RULES["shift_right_logical"] = _shift("lshr")
_RULES["shift_right_arithmetic"] = _shift("ashr")


def _total(op: str) -> Rule:
    def rule(w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Any) -> str:
        if kinds[0] != F32:
            return _compare(w, op, kinds[0], *args)
        ordered = []
        for x in args:  # negative floats count down as integers
            bits = bits_of(w, x)
            flip = w.emit(f"ashr {w.type(I32)} {bits}, {w.number(31, I32)}")
            flip = w.emit(f"lshr {w.type(I32)} {flip}, {w.number(1, I32)}")
            ordered.append(w.emit(f"xor {w.type(I32)} {bits}, {flip}"))
        return _compare(w, op, I32, *ordered)

    return rule


_RULES["lt_to"], _RULES["le_to"] = _total("lt"), _total("le")


@_rule("convert_element_type")
def _convert(w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Any) -> str:
    (kind,), (x,) = kinds, args
    source, target = w.type(kind), w.type(dtype)
    if kind == dtype or {kind, dtype} == {I32, U32}:
        return x
    if dtype == BOOL:
        return _compare(w, "ne", kind, x, w.number(0, kind))
    if kind == BOOL:
        return select(w, dtype, x, w.number(1, dtype), w.number(0, dtype))
    if dtype == F32:
        return w.emit(f"{'s' if kind == I32 else 'u'}itofp {source} {x} to {target}")
    return _to_integer(w, dtype, x)


def _to_integer(w: Writer, dtype: str, x: str) -> str:
    """Rounded towards zero; to the nearest integer there is, 0 for NaN."""
    # The largest floats that fit, so that no lane overflows.
    low, high, top = (
        (-(2.0**31), 2.0**31 - 128, 2**31 - 1) if dtype == I32 else (0.0, 2.0**32 - 256, -1)
    )
    bounded = bound(w, "min", bound(w, "max", x, low), high)
    number = w.emit(
        f"fpto{'s' if dtype == I32 else 'u'}i {w.type(F32)} {bounded} to {w.type(dtype)}"
    )
    number = select(
        w, dtype, _compare(w, "gt", F32, x, w.number(high, F32)), w.number(top, I32), number
    )
    nan = w.emit(f"fcmp uno {w.type(F32)} {x}, {x}")
    return select(w, dtype, nan, w.number(0, dtype), number)


def bound(w: Writer, op: str, x: str, by: float | str) -> str:
    """`max` or `min` with a number; one instruction, as the number is not NaN."""
    number = by if isinstance(by, str) else w.number(by, F32)
    beyond = "ogt" if op == "max" else "olt"
    beaten = w.emit(f"fcmp {beyond} {w.type(F32)} {number}, {x}")
    return select(w, F32, beaten, number, x)


@_rule("bitcast_convert_type")
def _bitcast(w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Any) -> str:
    if w.type(kinds[0]) == w.type(dtype):
        return args[0]
    return w.emit(f"bitcast {w.type(kinds[0])} {args[0]} to {w.type(dtype)}")


def bits_of(w: Writer, x: str) -> str:
    """The bits of floats."""
    return w.emit(f"bitcast {w.type(F32)} {x} to {w.type(I32)}")


def _float_of(w: Writer, bits: str) -> str:
    return w.emit(f"bitcast {w.type(I32)} {bits} to {w.type(F32)}")


def _f(w: Writer, op: str, a: str, b: str | float) -> str:
    other = b if isinstance(b, str) else w.number(b, F32)
    return w.emit(f"f{op} contract {w.type(F32)} {a}, {other}")


def _polynomial(w: Writer, x: str, coefficients: Sequence[float]) -> str:
    """Horner's scheme, highest power first."""
    found = w.number(coefficients[0], F32)
    for c in coefficients[1:]:
        found = _f(w, "add", _f(w, "mul", found, x), c)
    return found


LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""Parts of the logarithm of 2: multiples of the first are exact for small integers."""


@_rule("exp")
def _exp(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    """`exp(n ln 2 + r) = 2^n exp(r)`, |r| <= ln(2)/2, by the series of exp up to r^7."""
    x = args[0]
    bounded = bound(w, "max", bound(w, "min", x, 90.0), -105.0)
    n = w.call("llvm.roundeven", F32, _f(w, "mul", bounded, 1.4426950408889634))
    r = _f(w, "sub", bounded, _f(w, "mul", n, LN2_HIGH))
    r = _f(w, "sub", r, _f(w, "mul", n, LN2_LOW))
    series = [1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0]
    found = _polynomial(w, r, series)
    # In two steps: 2^n alone may be out of range where the result is not.
    whole = w.emit(f"fptosi {w.type(F32)} {n} to {w.type(I32)}")
    whole = w.emit(f"freeze {w.type(I32)} {whole}")  # NaN
    half = w.emit(f"ashr {w.type(I32)} {whole}, {w.number(1, I32)}")
    for power in (half, w.emit(f"sub {w.type(I32)} {whole}, {half}")):
        biased = w.emit(f"add {w.type(I32)} {power}, {w.number(127, I32)}")
        scale = _float_of(w, w.emit(f"shl {w.type(I32)} {biased}, {w.number(23, I32)}"))
        found = _f(w, "mul", found, scale)
    return found


def _log(w: Writer, x: str) -> str:
    """`log(2^n m) = n ln 2 + 2 artanh(s)`, s = (m-1)/(m+1), sqrt(1/2) <= m < sqrt(2)."""
    t = w.type(I32)
    tiny = _compare(w, "lt", F32, x, w.number(1.17549435e-38, F32))
    scaled = select(w, F32, tiny, _f(w, "mul", x, 8388608.0), x)
    bits = bits_of(w, scaled)
    shifted = w.emit(f"sub {t} {bits}, {w.number(0x3F3504F3, I32)}")
    n = w.emit(f"ashr {t} {shifted}, {w.number(23, I32)}")
    mantissa = w.emit(f"sub {t} {bits}, {w.emit(f'shl {t} {n}, {w.number(23, I32)}')}")
    m = _float_of(w, mantissa)
    less = select(w, I32, tiny, w.number(23, I32), w.number(0, I32))
    power = w.emit(f"sitofp {t} {w.emit(f'sub {t} {n}, {less}')} to {w.type(F32)}")
    f = _f(w, "sub", m, 1.0)
    s = w.emit(f"fdiv {w.type(F32)} {f}, {_f(w, 'add', f, 2.0)}")
    z = _f(w, "mul", s, s)
    tail = _f(w, "mul", _polynomial(w, z, [2 / 11, 2 / 9, 2 / 7, 2 / 5, 2 / 3]), z)
    # log(m) = f - (f^2/2 - s (f^2/2 + tail)): exact in the leading term near 1.
    square = _f(w, "mul", _f(w, "mul", f, f), 0.5)
    rest = _f(w, "mul", s, _f(w, "add", square, tail))
    low = _f(w, "sub", square, _f(w, "add", rest, _f(w, "mul", power, LN2_LOW)))
    found = _f(w, "add", _f(w, "mul", power, LN2_HIGH), _f(w, "sub", f, low))
    zero, infinite = w.number(0, F32), w.number(np.inf, F32)
    found = select(w, F32, _compare(w, "eq", F32, x, infinite), infinite, found)
    found = select(w, F32, _compare(w, "eq", F32, x, zero), w.number(-np.inf, F32), found)
    bad = w.emit(f"fcmp ult {w.type(F32)} {x}, {zero}")
    return select(w, F32, bad, w.number(np.nan, F32), found)


@_rule("log")
def _log_rule(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    return _log(w, args[0])


@_rule("log1p")
def _log1p(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    """`log(u) + (x - (u - 1)) / u` with u = 1 + x as rounded: makes up for that rounding."""
    x, t = args[0], w.type(F32)
    u = w.emit(f"fadd {t} {x}, {w.number(1, F32)}")
    lost = w.emit(f"fsub {t} {x}, {w.emit(f'fsub {t} {u}, {w.number(1, F32)}')}")
    found = _f(w, "add", _log(w, u), w.emit(f"fdiv {t} {lost}, {u}"))
    plain = _compare(w, "gt", F32, u, w.number(0, F32))
    finite = _is_finite(w, BOOL, kinds, [u], params)
    both = w.emit(f"and {w.type(BOOL)} {plain}, {finite}")
    return select(w, F32, both, found, _log(w, u))


@_rule("expm1")
def _expm1(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    """The series for small arguments, `exp(x) - 1` for others."""
    x = args[0]
    series = [1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0]
    near = _f(w, "mul", _polynomial(w, x, series), x)
    far = _f(w, "sub", _exp(w, F32, kinds, args, params), 1.0)
    small = _compare(w, "lt", F32, w.call("llvm.fabs", F32, x), w.number(0.5, F32))
    return select(w, F32, small, near, far)


@_rule("logistic")
def _logistic(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    minus = w.emit(f"fneg {w.type(F32)} {args[0]}")
    below = _f(w, "add", _exp(w, F32, kinds, [minus], params), 1.0)
    return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {below}")


@_rule("tanh")
def _tanh(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    """`e / (e + 2)` with e = expm1(2x); 2x is kept below 40, where the result is 1."""
    twice = _f(w, "mul", args[0], 2.0)
    twice = bound(w, "min", twice, 40.0)
    e = _expm1(w, F32, kinds, [twice], params)
    return w.emit(f"fdiv {w.type(F32)} {e}, {_f(w, 'add', e, 2.0)}")


ERF_INV_NEAR = (
    *(2.79895561e-08, 3.43073433e-07, -3.52223649e-06, -4.38963429e-06, 0.000218577379),
    *(-0.00125372984, -0.00417767872, 0.246640744, 1.50140942),
)
ERF_INV_FAR = (
    *(-0.000143566581, 6.80022062e-05, 0.00127087829, -0.0036407101, 0.00577523886),
    *(-0.00763105238, 0.00943346766, 1.00167457, 2.83297705),
)
"""erf_inv(x) / x for w = -log(1 - x^2): below 5 by powers of w - 2.5, above of sqrt(w) - 3.

The variables are those of Giles (2012); the coefficients were fitted to float64 at Chebyshev nodes
of w from 0 to 5 and from 5 to 17, and are off by 1e-7 at most.
"""


@_rule("erf_inv")
def _erf_inv(w: Writer, dtype: str, kinds: Any, args: Sequence[str], params: Any) -> str:
    """`x p(w)`; infinite at 1 and -1, NaN beyond. `jax.random.normal` is made of it."""
    x, one = args[0], w.number(1, F32)
    t = w.type(F32)
    product = w.emit(f"fmul {t} {w.emit(f'fsub {t} {one}, {x}')}, {_f(w, 'add', x, 1.0)}")
    depth = w.emit(f"fneg {t} {_log(w, product)}")
    near = _polynomial(w, _f(w, "sub", depth, 2.5), list(ERF_INV_NEAR))
    root = w.call("llvm.sqrt", F32, depth)
    far = _polynomial(w, _f(w, "sub", root, 3.0), list(ERF_INV_FAR))
    found = select(w, F32, _compare(w, "lt", F32, depth, w.number(5, F32)), near, far)
    at_end = _compare(w, "eq", F32, w.call("llvm.fabs", F32, x), one)
    found = select(w, F32, at_end, w.number(np.inf, F32), found)
    return w.emit(f"fmul {t} {found}, {x}")


@_rule("pow")
def _pow(w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Any) -> str:
    """`exp(y log |x|)`; for x < 0 negative if y is odd, and NaN if it is no whole number."""
    x, y = args
    if kinds[1] != F32:
        y = _convert(w, F32, [kinds[1]], [y], params)
    zero, one = w.number(0, F32), w.number(1, F32)
    product = _f(w, "mul", y, _log(w, w.call("llvm.fabs", F32, x)))
    found = _exp(w, F32, kinds, [product], params)
    half = _f(w, "mul", y, 0.5)
    whole = _compare(w, "eq", F32, y, w.call("llvm.floor", F32, y))
    even = _compare(w, "eq", F32, half, w.call("llvm.floor", F32, half))
    signed = select(w, F32, even, found, w.emit(f"fneg {w.type(F32)} {found}"))
    below = select(w, F32, whole, signed, w.number(np.nan, F32))
    found = select(w, F32, _compare(w, "lt", F32, x, zero), below, found)
    return select(w, F32, _compare(w, "eq", F32, y, zero), one, found)


ELEMENTWISE = frozenset({*COMPARISONS, *_SIMPLE, *_RULES}) - {"copy"}
"""Primitives that are operations on elements."""
