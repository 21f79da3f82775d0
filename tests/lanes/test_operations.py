"""Operations on elements against XLA's, special numbers included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.special import erfinv
from xla_and_lanes import both, check

from ecn_marl import lanes

BATCH = 19
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1.2e-38, 0.5, 1.5, 2.5, -2.5],
    np.float32,
)


def floats(seed: int, scale: float = 1.0, special: bool = True) -> jax.Array:
    """Numbers of all sizes, `[BATCH, 40]`, with special ones among them."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(BATCH, 40)) * scale * 10.0 ** rng.uniform(-4, 4, (BATCH, 40))).astype(
        np.float32
    )
    if special:
        x[:, : len(SPECIAL)] = rng.permuted(np.tile(SPECIAL, (BATCH, 1)), axis=1)
    return jnp.asarray(x)


def integers(seed: int, dtype: np.dtype) -> jax.Array:
    """Integers from all over the range, `[BATCH, 40]`."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (BATCH, 40), dtype=dtype, endpoint=True)
    x[:, :3] = [info.min, info.max, 7]
    return jnp.asarray(x)


def test_arithmetic_and_comparisons_of_floats_are_exact() -> None:
    """One operation at a time, so that nothing can be contracted."""
    check_floats(floats(1), floats(2))


def check_floats(x: jax.Array, y: jax.Array) -> None:
    """Every operation on two arrays of floats gives XLA's bits."""

    def fun(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        return (
            a + b, a - b, a * b, a / b, -a, jnp.abs(a), jnp.sign(a), jnp.sqrt(a),
            jnp.maximum(a, b), jnp.minimum(a, b), jnp.maximum(a, 1.0), jnp.minimum(0.5, b),
            jnp.floor(a), jnp.ceil(a), jnp.round(a), lax.round(a), jnp.isfinite(a), jnp.isnan(a),
            a < b, a <= b, a > b, a >= b, a == b, a != b, jnp.where(a > b, a, b),
            jnp.clip(a, -1.0, 1.0), a**2, a**3, lax.integer_pow(a, -1),
            *(own(a) for own in [getattr(lax, "one_minus_square", None)] if own),  # jax >= 0.12
        )  # fmt: skip

    check(fun, (0, 0), x, y)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers_are_exact(dtype: np.dtype) -> None:
    """Arithmetic wraps around, shifts beyond the width give nothing, quotients round to zero."""

    def fun(a: jax.Array, b: jax.Array, by: jax.Array) -> tuple[jax.Array, ...]:
        return (
            a + b, a - b, a * b, a & b, a | b, a ^ b, ~a, jnp.maximum(a, b), jnp.minimum(a, b),
            lax.div(a, b), lax.rem(a, b), lax.shift_left(a, by), lax.shift_right_logical(a, by),
            lax.shift_right_arithmetic(a, by), a < b, a <= b, a > b, a >= b, a == b, a != b,
            jnp.sign(a), a.astype(jnp.float32), a.astype(jnp.int32), a.astype(jnp.uint32),
            a.astype(bool), a == 0, lax.select_n((by % 3).astype(jnp.int32), a, b, a & b),
        )  # fmt: skip

    rng = np.random.default_rng(3)
    by = jnp.asarray(rng.integers(0, 40, (BATCH, 40)).astype(dtype))
    b = integers(5, dtype)
    check(fun, (0, 0, 0), integers(4, dtype), jnp.where(b == 0, 3, b), by)


def test_conversions_saturate() -> None:
    """Floats beyond the range of integers, and NaN."""

    def fun(a: jax.Array) -> tuple[jax.Array, ...]:
        flag = a > 0
        bits = lax.bitcast_convert_type(a, jnp.int32)
        return (
            a.astype(jnp.int32), a.astype(jnp.uint32), flag.astype(jnp.float32),
            flag.astype(jnp.int32), ~flag, flag & (a < 1), flag | (a < 1), flag ^ (a < 1), bits,
            lax.bitcast_convert_type(bits, jnp.float32), a.astype(bool),
        )  # fmt: skip

    check(fun, (0,), floats(6, 1e6))


@pytest.mark.parametrize(
    ("name", "scale"),
    [("exp", 10.0), ("log", 1.0), ("log1p", 1.0), ("expm1", 3.0), ("tanh", 1.0), ("logistic", 5.0)],
)
def test_transcendentals_against_float64(name: str, scale: float) -> None:
    """Within four units in the last place of float64's; special numbers as XLA has them."""
    x = floats(7, scale)
    function = {"logistic": jax.nn.sigmoid}.get(name) or getattr(jnp, name)
    (expected,), (found,) = both(function, (0,), x)
    odd = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[odd], expected[odd])
    wide = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        exact = {"logistic": lambda v: 1 / (1 + np.exp(-v))}.get(name, getattr(np, name, None))(
            wide
        )
    ordinary = ~odd & (np.abs(exact) > 1e-35)
    ulp = np.spacing(np.abs(exact[ordinary]).astype(np.float32)).astype(np.float64)
    assert (np.abs(found[ordinary] - exact[ordinary]) <= 4 * ulp).all()


def test_the_inverse_of_erf_against_float64() -> None:
    """To the very ends, where float32 has few numbers; special numbers as XLA has them."""
    rng = np.random.default_rng(10)
    ends = 1 - 2.0 ** -rng.uniform(1, 24, (BATCH, 60))
    x = np.concatenate([rng.uniform(-1, 1, (BATCH, 60)), ends, -ends], 1).astype(np.float32)
    x[:, :6] = [0.0, 1.0, -1.0, np.nan, 1.5, -np.inf]
    (expected,), (found,) = both(lax.erf_inv, (0,), jnp.asarray(x))
    odd = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[odd], expected[odd])
    exact = erfinv(x.astype(np.float64))
    np.testing.assert_allclose(found[~odd], exact[~odd], rtol=5e-7)


def test_total_order_sorts_like_integers() -> None:
    """`searchsorted` compares in the total order of floats."""

    def fun(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.searchsorted(jnp.sort(a), b, method="compare_all")

    check(fun, (0, 0), floats(8, special=False), floats(9, special=False))


def test_powers_and_remainders() -> None:
    """Negative bases under whole and broken exponents; remainders have the sign of the dividend."""

    def fun(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
        return lax.pow(a, b), lax.pow(a, jnp.round(b)), lax.pow(jnp.abs(a), b)

    rng = np.random.default_rng(8)
    a = jnp.asarray(rng.normal(size=(BATCH, 40)).astype(np.float32) * 5).at[:, :3].set(0.0)
    b = jnp.asarray(rng.uniform(-4, 4, (BATCH, 40)).astype(np.float32)).at[:, 2:4].set(0.0)
    check(fun, (0, 0), a, b, rtol=5e-6)
    check(lax.rem, (0, 0), a, jnp.where(b == 0, 1.0, b))


@pytest.mark.parametrize("name", ["exp2", "nextafter"])
def test_operations_without_a_rule_are_named(name: str) -> None:
    """So that a batch can be left to XLA."""
    fun = {"exp2": jnp.exp2, "nextafter": lambda x: jnp.nextafter(x, 1.0)}[name]
    with pytest.raises(lanes.Unsupported, match=name):
        lanes.vmap(fun, (0,))(floats(10))
