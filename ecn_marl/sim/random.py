"""Counter-based random numbers for the inner loop.

Threefry keys cost more than the physics of a substep. Traffic draws from an integer hash of
`(seed, counter, lane)`, and every flow slot carries a 32-bit xorshift state (Marsaglia, "Xorshift
RNGs", J. Stat. Soft. 8(14), 2003) for its marking coins. Both are plain integer arithmetic: the
same seed gives the same bits on every backend, alone or inside a batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def hash_bits(seed: jax.Array, counter: jax.Array, lane: int) -> jax.Array:
    """Scramble `(seed, counter, lane)` into 32 bits (two multiply-xorshift rounds each).

    Args:
        seed: uint32, scalar or broadcastable.
        counter: integer index of the draw.
        lane: static small integer that separates the draws made at one counter.

    Returns:
        uint32 of the broadcast shape.
    """
    x = counter.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(lane) * jnp.uint32(
        0x85EBCA6B
    )
    x = _scramble(x ^ seed)
    return _scramble(x + seed * jnp.uint32(0xC2B2AE35) + jnp.uint32(0x27D4EB2F))


def _scramble(x: jax.Array) -> jax.Array:
    """Avalanche 32 bits: alternate xorshifts and odd multiplications."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def to_unit(bits: jax.Array) -> jax.Array:
    """Map uint32 bits to float32 strictly inside (0, 1), 23 bits fine (24 would round up to 1)."""
    return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)


def uniform(seed: jax.Array, counter: jax.Array, lane: int) -> jax.Array:
    """Uniform float32 in (0, 1) for `(seed, counter, lane)`."""
    return to_unit(hash_bits(seed, counter, lane))


def xorshift(state: jax.Array) -> jax.Array:
    """Next state of a xorshift32 generator; `state` must not be 0."""
    state = state ^ (state << 13)
    state = state ^ (state >> 17)
    return state ^ (state << 5)
