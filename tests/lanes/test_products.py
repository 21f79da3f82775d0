"""Products of matrices in lanes against float64, whatever their shape and however they lie."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_form import emulate
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax
from xla_and_lanes import both, check

from ecn_marl import lanes
from ecn_marl.lanes.arithmetic import LARGE
from ecn_marl.lanes.graph import axes_of

ENVS = 19

shapes = st.tuples(*(st.integers(1, top) for top in (3, 15, 40, 40)))
"""Batch, rows, columns and depth."""


@settings(max_examples=12, deadline=None)
@given(shapes, st.sampled_from(["own", "left", "right"]), st.booleans(), st.booleans())
@example((1, 16, 64, 18), "left", False, False)
@example((1, 1, 25, 300), "own", True, True)
@example((2, 7, 5, 1), "own", False, False)
def test_products_are_those_of_float64(
    shape: tuple[int, int, int, int], own: str, flip_left: bool, flip_right: bool
) -> None:
    """Within what sums of `depth` rounded terms may be off; factors shared or not."""
    batch, rows, columns, depth = shape
    rng = np.random.default_rng(math.prod(shape))
    lead = (ENVS,) if own != "right" else ()
    a = rng.normal(size=(*lead, batch, *((depth, rows) if flip_left else (rows, depth))))
    lead = (ENVS,) if own != "left" else ()
    b = rng.normal(size=(*lead, batch, *((columns, depth) if flip_right else (depth, columns))))

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        a = a.swapaxes(1, 2) if flip_left else a
        b = b.swapaxes(1, 2) if flip_right else b
        return jnp.matmul(a, b)

    axes = (None if own == "right" else 0, None if own == "left" else 0)
    single = a.astype(np.float32), b.astype(np.float32)
    found = jax.jit(lanes.vmap(product, axes))(*single)
    a, b = (x.astype(np.float64) for x in single)
    a, b = (a.swapaxes(-1, -2) if flip_left else a), (b.swapaxes(-1, -2) if flip_right else b)
    bound = 2.0**-23 * (depth + 1) * np.matmul(np.abs(a), np.abs(b))
    assert (np.abs(np.matmul(a, b) - found) <= bound).all()


def test_factors_may_lie_in_no_order() -> None:
    """Rows of a table, picked by hand: they are put side by side first."""
    pick = np.array([3, 1, 4, 1, 5, 0])
    assert axes_of(pick[None, :, None] * 9 + np.arange(9)) is None

    def fun(x: jax.Array, w: jax.Array) -> jax.Array:
        return x[pick] @ w

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ENVS, 6, 9)).astype(np.float32)
    w = rng.normal(size=(9, 8)).astype(np.float32)
    assert x[0].size * w.shape[1] > LARGE
    check(fun, (0, None), x, w, rtol=1e-5, atol=1e-5)


def network(w: jax.Array, v: jax.Array, x: jax.Array) -> jax.Array:
    """A loss of a small network."""
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ v) ** 2)


def learning(w: jax.Array, v: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    """Three gradient steps: products in a loop, of what the loop carries."""

    def step(nets: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, ...], jax.Array]:
        loss, (gw, gv) = jax.value_and_grad(network, (0, 1))(*nets, x)
        return (nets[0] - 0.01 * gw, nets[1] - 0.01 * gv), loss

    nets, losses = lax.scan(step, (w, v), None, length=3)
    return *nets, losses


@pytest.fixture(scope="module")
def weights() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    sizes = ((11, 30), (30, 5), (ENVS, 8, 11))
    return tuple(rng.normal(size=s, scale=0.3).astype(np.float32) for s in sizes)


def test_networks_learn_as_through_xla(weights: tuple[np.ndarray, ...]) -> None:
    """Every environment's own copy of the same start."""
    check(learning, (None, None, 0), *weights, rtol=1e-4, atol=1e-5)


def test_gpus_compute_the_same_products(
    weights: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's own blocks, emulated."""
    texts = emulate(monkeypatch)
    check(learning, (None, None, 0), *weights, rtol=1e-4, atol=1e-5)
    assert len(texts) == 1
    assert "@product" in texts[0]


def test_small_products_stay_in_their_loops() -> None:
    """Few terms are computed where they are needed: the same numbers as a sum."""

    def fun(x: jax.Array) -> jax.Array:
        return x @ x.T

    x = np.random.default_rng(2).normal(size=(ENVS, 3, 4)).astype(np.float32)
    assert x[0].size * 3 < LARGE
    expected, found = both(fun, (0,), x)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-6)
