"""What cannot be compiled runs through XLA, with one warning that names it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from xla_and_lanes import check, raw

from ecn_marl import lanes
from ecn_marl.lanes.lower import primitives_table

BATCH = 5
X = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2.0, (BATCH, 3, 4)).astype(np.float32))
AT = jnp.array([2, 0])


def of_matrix(x: jax.Array, **options: Any) -> jax.Array:
    whole = lax.convert_element_type(10.0 * x, jnp.int32)
    return lax.dot_general(whole, whole, (((1,), (1,)), ((), ())), **options)


def reverse_rows(x: jax.Array) -> Any:
    return lax.scan(lambda c, row: (c + row, c * row), jnp.ones(4), x, reverse=True)


FUNCTIONS: dict[str, tuple[str, Callable[[jax.Array], Any]]] = {
    "reduction by a function": (
        "'reduce'",
        lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b + a, (0,)),
    ),
    "scatter by a function": ("'scatter'", lambda x: x.at[AT].apply(jnp.tanh)),
    "scatter that subtracts": ("'scatter-sub'", lambda x: x.at[AT].subtract(1.0)),
    "reshape in another order": ("'reshape'", lambda x: lax.reshape(x, (4, 3), (1, 0))),
    "accuracy": ("'exp' with accuracy", lambda x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST)),
    "products of another type": (
        "'dot_general'",
        lambda x: of_matrix(x, preferred_element_type=jnp.float32),
    ),
    "no record": ("'sin'", jnp.sin),
    "running logarithm": ("'cumlogsumexp'", lambda x: lax.cumlogsumexp(x, 0)),
    "sort by two keys": ("several keys", lambda x: lax.sort((x, x * 2), num_keys=2)),
    "loop of unknown length": (
        "'while'",
        lambda x: lax.while_loop(lambda v: v.sum() < 99, lambda v: 2 * v, x),
    ),
    "three branches": (
        "more than two branches",
        lambda x: (
            lax.switch(1, [lambda: x, lambda: x + 1, lambda: x * 3])
            + lax.switch((x[0, 0] > 1).astype(int) * 2, [lambda: x, lambda: x + 1, lambda: x * 3])
        ),
    ),
    "rows from the last": ("reverse scan", reverse_rows),
    "negative padding": ("negative padding", lambda x: lax.pad(x, 0.0, [(-1, 0, 0), (0, 0, 0)])),
    "half precision": ("float16", lambda x: x.astype(jnp.float16) * 2),
    "complex numbers": ("complex64", lambda x: jnp.abs(x + 1j)),
}


def told(fun: Callable[[], Any]) -> tuple[Any, list[str]]:
    """A result, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fun()
    return result, [str(w.message) for w in caught if "left to XLA" in str(w.message)]


def assert_equal(result: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(raw(a), raw(b))


@pytest.mark.parametrize("case", FUNCTIONS)
def test_what_cannot_be_compiled_is_named_and_runs_through_xla(case: str) -> None:
    name, fun = FUNCTIONS[case]
    result, messages = told(lambda: jax.vmap(lanes.mapped(fun))(X))
    assert_equal(result, jax.vmap(fun)(X))
    (message,) = messages
    assert name in message
    with pytest.raises(lanes.Unsupported):
        lanes.vmap(fun, (0,))(X)


KEYED: dict[str, tuple[str, str, Callable[[jax.Array], Any]]] = {
    "another generator": ("rbg", "'rbg'", lambda k: jax.random.uniform(k, (3,))),
    "look-ups of keys": ("threefry2x32", "'gather' of typed keys", lambda k: jnp.stack([k, k])[AT]),
}


@pytest.mark.parametrize("case", KEYED)
def test_keys_that_cannot_be_compiled(case: str) -> None:
    implementation, name, fun = KEYED[case]
    keys = jax.random.split(jax.random.key(0, impl=implementation), BATCH)
    result, messages = told(lambda: jax.vmap(lanes.mapped(fun))(keys))
    assert_equal(result, jax.vmap(fun)(keys))
    (message,) = messages
    assert name in message


def test_a_rule_that_fails_leaves_its_primitive_to_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer JAX may have parameters that no rule was written for."""

    def failing(build: Any, eqn: Any, *args: Any) -> Any:
        return eqn.params["of another version"]

    table = primitives_table()
    monkeypatch.setitem(table, "neg", replace(table["neg"], lower=failing))
    result, messages = told(lambda: jax.vmap(lanes.mapped(lambda x: -x))(X))
    assert_equal(result, -X)
    (message,) = messages
    assert "'neg'" in message
    assert "KeyError" in message


def test_loops_without_turns_and_permuted_keys_are_compiled() -> None:
    """A loop compiled for lanes has one turn at least; of keys, the words stay last."""

    def fun(x: jax.Array) -> Any:
        carry, rows = lax.scan(lambda c, _: (c * 2, (c, c > 0)), x, None, length=0)
        keys = jax.random.split(jax.random.key(3), (2, 3)).T
        return carry, rows, carry + 1, jax.random.key_data(keys), x.T

    check(fun, (0,), X)
