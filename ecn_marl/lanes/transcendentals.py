"""Exponentials, logarithms and functions made of them, as polynomials of float32 accuracy.

No mathematical library is called: a call would break up the vector code of a loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ecn_marl.lanes.elementwise import Writer, bits_of, bound, compare, operation, select
from ecn_marl.lanes.graph import BOOL, F32, I32
from ecn_marl.lanes.operations import convert, is_finite

LIMITS = "`accuracy`"
"""A parameter of all that is computed by polynomials."""


def _float_of(w: Writer, bits: str) -> str:
    return w.emit(f"bitcast {w.type(I32)} {bits} to {w.type(F32)}")


def _f(w: Writer, op: str, a: str, b: str | float) -> str:
    """An instruction on floats; LLVM may fuse a product and a sum (`contract`)."""
    other = b if isinstance(b, str) else w.number(b, F32)
    return w.emit(f"f{op} contract {w.type(F32)} {a}, {other}")


def _polynomial(w: Writer, x: str, coefficients: Sequence[float]) -> str:
    """Horner's scheme, highest power first."""
    value = w.number(coefficients[0], F32)
    for c in coefficients[1:]:
        value = _f(w, "add", _f(w, "mul", value, x), c)
    return value


LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""Parts of the logarithm of 2: multiples of the first are exact for small integers."""


@operation("exp", "f", limits=LIMITS)
def _exp(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """`exp(n ln 2 + r) = 2^n exp(r)`, |r| <= ln(2)/2, by the series of exp up to r^7."""
    x = args[0]
    # Beyond these bounds the result is infinite or 0. They keep n small, so that both powers of 2
    # below exist.
    bounded = bound(w, "max", bound(w, "min", x, 90.0), -105.0)
    # The nearest integer keeps |r| small, for which a short series is exact enough.
    n = w.call("llvm.roundeven", F32, _f(w, "mul", bounded, 1.4426950408889634))
    r = _f(w, "sub", bounded, _f(w, "mul", n, LN2_HIGH))
    r = _f(w, "sub", r, _f(w, "mul", n, LN2_LOW))
    series = [1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0]
    value = _polynomial(w, r, series)
    # In two steps: 2^n alone may be out of range where the result is not.
    whole = w.emit(f"fptosi {w.type(F32)} {n} to {w.type(I32)}")
    # NaN has no integer, and LLVM may give it a different one at each use. Any one will do, as
    # `value` is NaN already.
    whole = w.emit(f"freeze {w.type(I32)} {whole}")
    half = w.emit(f"ashr {w.type(I32)} {whole}, {w.number(1, I32)}")
    for power in (half, w.emit(f"sub {w.type(I32)} {whole}, {half}")):
        biased = w.emit(f"add {w.type(I32)} {power}, {w.number(127, I32)}")
        scale = _float_of(w, w.emit(f"shl {w.type(I32)} {biased}, {w.number(23, I32)}"))
        value = _f(w, "mul", value, scale)
    return value


def _log(w: Writer, x: str) -> str:
    """`log(2^n m) = n ln 2 + 2 artanh(s)`, s = (m-1)/(m+1), sqrt(1/2) <= m < sqrt(2)."""
    t = w.type(I32)
    # Subnormal numbers have no leading 1 in their bits: they are scaled by 2^23, and 23 is taken
    # off the exponent again.
    tiny = compare(w, "lt", F32, x, w.number(1.17549435e-38, F32))
    scaled = select(w, F32, tiny, _f(w, "mul", x, 8388608.0), x)
    bits = bits_of(w, scaled)
    # 0x3F3504F3 are the bits of sqrt(1/2): m then lies around 1, where few terms suffice.
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
    correction = _f(w, "mul", s, _f(w, "add", square, tail))
    low = _f(w, "sub", square, _f(w, "add", correction, _f(w, "mul", power, LN2_LOW)))
    value = _f(w, "add", _f(w, "mul", power, LN2_HIGH), _f(w, "sub", f, low))
    # The bits of 0 and of infinity are no mantissa and exponent, so these come last.
    zero, infinite = w.number(0, F32), w.number(np.inf, F32)
    value = select(w, F32, compare(w, "eq", F32, x, infinite), infinite, value)
    value = select(w, F32, compare(w, "eq", F32, x, zero), w.number(-np.inf, F32), value)
    # `ult` is also true of NaN.
    bad = w.emit(f"fcmp ult {w.type(F32)} {x}, {zero}")
    return select(w, F32, bad, w.number(np.nan, F32), value)


@operation("log", "f", limits=LIMITS)
def _log_rule(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    return _log(w, args[0])


@operation("log1p", "f", limits=LIMITS)
def _log1p(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """`log(u) + (x - (u - 1)) / u` with u = 1 + x as rounded: makes up for that rounding."""
    x, t = args[0], w.type(F32)
    u = w.emit(f"fadd {t} {x}, {w.number(1, F32)}")
    # Plain instructions: with fast-math flags LLVM could simplify this to 0.
    lost = w.emit(f"fsub {t} {x}, {w.emit(f'fsub {t} {u}, {w.number(1, F32)}')}")
    value = _f(w, "add", _log(w, u), w.emit(f"fdiv {t} {lost}, {u}"))
    # The correction is NaN where u is 0 (x = -1) or infinite; log(u) alone is right there.
    plain = compare(w, "gt", F32, u, w.number(0, F32))
    finite = is_finite(w, BOOL, kinds, [u], params)
    both = w.emit(f"and {w.type(BOOL)} {plain}, {finite}")
    return select(w, F32, both, value, _log(w, u))


@operation("expm1", "f", limits=LIMITS)
def _expm1(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """The series for small arguments, `exp(x) - 1` for others."""
    x = args[0]
    series = [1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0]
    near = _f(w, "mul", _polynomial(w, x, series), x)
    # Near 0 this difference cancels, hence the series.
    far = _f(w, "sub", _exp(w, F32, kinds, args, params), 1.0)
    small = compare(w, "lt", F32, w.call("llvm.fabs", F32, x), w.number(0.5, F32))
    return select(w, F32, small, near, far)


@operation("logistic", "f", limits=LIMITS)
def _logistic(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    minus = w.emit(f"fneg {w.type(F32)} {args[0]}")
    # For very negative x this is infinite, and the quotient 0 as it should be.
    below = _f(w, "add", _exp(w, F32, kinds, [minus], params), 1.0)
    return w.emit(f"fdiv {w.type(F32)} {w.number(1, F32)}, {below}")


@operation("tanh", "f", limits=LIMITS)
def _tanh(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """`e / (e + 2)` with e = expm1(2x); 2x is kept below 40, where the result is 1."""
    twice = _f(w, "mul", args[0], 2.0)
    # Without the bound, e would become infinite for large x, and the quotient NaN.
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


@operation("erf_inv", "f")
def _erf_inv(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """`x p(w)`; infinite at 1 and -1, NaN beyond. `jax.random.normal` uses it."""
    x, one = args[0], w.number(1, F32)
    t = w.type(F32)
    # Not 1 - x^2, which cancels near 1 and -1.
    product = w.emit(f"fmul {t} {w.emit(f'fsub {t} {one}, {x}')}, {_f(w, 'add', x, 1.0)}")
    depth = w.emit(f"fneg {t} {_log(w, product)}")
    near = _polynomial(w, _f(w, "sub", depth, 2.5), list(ERF_INV_NEAR))
    root = w.call("llvm.sqrt", F32, depth)
    far = _polynomial(w, _f(w, "sub", root, 3.0), list(ERF_INV_FAR))
    value = select(w, F32, compare(w, "lt", F32, depth, w.number(5, F32)), near, far)
    # w is infinite there, and the polynomial has terms of both signs.
    at_end = compare(w, "eq", F32, w.call("llvm.fabs", F32, x), one)
    value = select(w, F32, at_end, w.number(np.inf, F32), value)
    return w.emit(f"fmul {t} {value}, {x}")


@operation("pow", "fiu")
def _pow(
    w: Writer, dtype: str, kinds: Sequence[str], args: Sequence[str], params: Mapping[str, object]
) -> str:
    """`exp(y log |x|)`; for x < 0 negative if y is odd, and NaN if y is not a whole number."""
    x, y = args
    if kinds[1] != F32:
        y = convert(w, F32, [kinds[1]], [y], params)
    zero, one = w.number(0, F32), w.number(1, F32)
    product = _f(w, "mul", y, _log(w, w.call("llvm.fabs", F32, x)))
    value = _exp(w, F32, kinds, [product], params)
    half = _f(w, "mul", y, 0.5)
    whole = compare(w, "eq", F32, y, w.call("llvm.floor", F32, y))
    even = compare(w, "eq", F32, half, w.call("llvm.floor", F32, half))
    signed = select(w, F32, even, value, w.emit(f"fneg {w.type(F32)} {value}"))
    below = select(w, F32, whole, signed, w.number(np.nan, F32))
    value = select(w, F32, compare(w, "lt", F32, x, zero), below, value)
    # x^0 is 1 for all x, but 0 times log(0) or log(infinity) is NaN.
    return select(w, F32, compare(w, "eq", F32, y, zero), one, value)
