"""Setting flags, the bits of `SimState.flags`; `FLAGS` is the table of what they mean.

Bits are set once per tick, in the substep nothing. See `ecn_marl._flags`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, UInt

from ecn_marl._flags import (
    BITS,
    BUFFERS,
    COUNTERS,
    FLAGS,
    MARKS,
    MEMORY,
    NUMBERS,
    SLOTS,
    WAYS,
    WIDTH,
    Flag,
    flag,
    names,
)

__all__ = [
    "BITS",
    "BUFFERS",
    "COUNTERS",
    "FLAGS",
    "MARKS",
    "MEMORY",
    "NUMBERS",
    "SLOTS",
    "WAYS",
    "WIDTH",
    "Flag",
    "flag",
    "has_nan",
    "names",
    "none",
    "raised",
    "wrapped",
]


def none() -> UInt[Array, ""]:
    """No bit set."""
    return jnp.zeros((), jnp.uint32)


def raised(flags: Array, number: int, when: Bool[Array, ""]) -> UInt[Array, ""]:
    """Flags with the bit `number` set if `when`, and as they are otherwise."""
    return flags | (when.astype(jnp.uint32) << number)


def wrapped(counters: PyTree) -> Bool[Array, ""]:
    """Whether a counter among some arrays has passed the largest integer: it is negative then."""
    signed = [x for x in jax.tree.leaves(counters) if jnp.issubdtype(x.dtype, jnp.signedinteger)]
    return _any([(x < 0).any() for x in signed])


def has_nan(params: PyTree) -> Bool[Array, ""]:
    """Whether a number among some arrays is NaN."""
    reals = [x for x in map(jnp.asarray, jax.tree.leaves(params)) if x.dtype.kind == "f"]
    return _any([jnp.isnan(x).any() for x in reals])


def _any(conditions: list[Array]) -> Bool[Array, ""]:
    """Whether one of them holds."""
    return jnp.stack(conditions).any() if conditions else jnp.zeros((), bool)
