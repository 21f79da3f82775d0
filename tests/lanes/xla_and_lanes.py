"""The same program through XLA and through lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ecn_marl import lanes

CHEAP = {"xla_backend_optimization_level": 0}
"""For XLA's programs, which run once or a few times; lanes keep all passes."""


def raw(x: Any) -> np.ndarray:
    """Numbers of an array; words of keys."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def both(fun: Callable[..., Any], axes: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
    """Leaves of the results of `jax.vmap` and of lanes."""
    expected = jax.jit(jax.vmap(fun, axes), compiler_options=CHEAP)(*args)
    found = jax.jit(lanes.vmap(fun, axes))(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    return [raw(x) for x in jax.tree.leaves(expected)], [raw(x) for x in jax.tree.leaves(found)]


def check(
    fun: Callable[..., Any],
    axes: tuple[int | None, ...],
    *args: Any,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Assert that XLA and lanes agree, types and shapes included."""
    for expected, found in zip(*both(fun, axes, *args), strict=True):
        assert expected.dtype == found.dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
