"""The random bits behind traffic, paths and marks."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from netcases import kolmogorov

from ecn_marl.sim.random import hash_bits, to_unit, uniform, xorshift


def test_uniform_is_uniform_on_every_lane():
    n = 20_000
    draws = [np.asarray(uniform(jnp.uint32(7), jnp.arange(n), lane)) for lane in range(4)]
    for u in draws:
        assert (u > 0).all()
        assert (u < 1).all()
        assert kolmogorov(u, lambda x: x) < 1.95 / math.sqrt(n)
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / math.sqrt(n)
    off = np.corrcoef(draws) - np.eye(4)
    assert np.abs(off).max() < 4 / math.sqrt(n)
    other = np.asarray(uniform(jnp.uint32(8), jnp.arange(n), 0))
    assert abs(np.corrcoef(draws[0], other)[0, 1]) < 4 / math.sqrt(n)


def test_unit_interval_is_open():
    ends = np.asarray(to_unit(jnp.array([0, 2**32 - 1], jnp.uint32)))
    assert 0 < ends[0] < 1e-7
    assert 1 - 1e-7 < ends[1] < 1


def test_every_output_bit_is_fair():
    bits = np.asarray(hash_bits(jnp.uint32(3), jnp.arange(20_000), 1))
    ones = [(bits >> k & 1).mean() for k in range(32)]
    np.testing.assert_allclose(ones, 0.5, atol=4 * 0.5 / math.sqrt(20_000))


def test_xorshift_follows_marsaglia():
    """32-bit xorshift with the shifts 13, 17, 5 of the paper, in Python integers."""
    state, want = jnp.uint32(2463534242), 2463534242
    for _ in range(100):
        want ^= want << 13 & 0xFFFFFFFF
        want ^= want >> 17
        want ^= want << 5 & 0xFFFFFFFF
        state = xorshift(state)
        assert int(state) == want
