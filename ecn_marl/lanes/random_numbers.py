"""Random numbers of JAX. Typed keys are rows of two words; the block cipher is an operation.

Everything else is traced from JAX's own implementation, so that the numbers are JAX's to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from ecn_marl.lanes.compat import aval_of, threefry_prng_impl
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import U32, View
from ecn_marl.lanes.lowering import Lowering
from ecn_marl.lanes.primitives import primitive

GROUP = "Random numbers"

KEYS = "fiuk"
"""Types, typed keys included."""


@primitive(GROUP, "threefry2x32", kinds="u")
def threefry2x32(build: Lowering, eqn: JaxprEqn, *args: View) -> list[View]:
    """Both words of a block of the cipher."""
    shape = aval_of(eqn.outvars[0]).shape
    return [build.map("threefry", U32, shape, *args, word=w) for w in (0, 1)]


@primitive(GROUP, "random_split", kinds=KEYS)
def random_split(build: Lowering, eqn: JaxprEqn, key: View) -> list[View]:
    """Traced by JAX's own implementation."""
    shape = eqn.params["shape"]
    return _per_key(build, lambda k: threefry_prng_impl.split(k, shape), key)


@primitive(GROUP, "random_bits", kinds=KEYS)
def random_bits(build: Lowering, eqn: JaxprEqn, key: View) -> list[View]:
    """Traced by JAX's own implementation."""
    p = eqn.params
    return _per_key(
        build, lambda k: threefry_prng_impl.random_bits(k, p["bit_width"], p["shape"]), key
    )


@primitive(GROUP, "random_fold_in", kinds=KEYS, limits="several keys at once")
def random_fold_in(build: Lowering, eqn: JaxprEqn, key: View, data: View) -> list[View]:
    """Traced by JAX's own implementation."""
    if key.where.ndim != 1:
        raise Unsupported("fold_in of several keys at once")
    if data.node.dtype != U32:
        data = build.map("convert_element_type", U32, data.where.shape, data)
    return build.traced(threefry_prng_impl.fold_in, key, data)


@primitive(GROUP, "random_seed", kinds=KEYS)
def random_seed(build: Lowering, eqn: JaxprEqn, seed: View) -> list[View]:
    """Traced by JAX's own implementation."""
    return build.traced(threefry_prng_impl.seed, seed)


@primitive(GROUP, "random_wrap", "random_unwrap", kinds=KEYS)
def random_wrap(build: Lowering, eqn: JaxprEqn, x: View) -> list[View]:
    """The same elements: a key is its words."""
    return [x]


def _per_key(build: Lowering, fun: Callable[..., Any], key: View) -> list[View]:
    for _ in range(key.where.ndim - 1):
        fun = jax.vmap(fun)
    return build.traced(fun, key)
