"""Counters of bytes lose none to rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl.sim.sizes import exact_add

UNIT = float(2**18)


@jax.jit
def add_all(amounts):
    def add(counter, amount):
        return exact_add(*counter, amount, UNIT), None

    return jax.lax.scan(add, (jnp.zeros((), jnp.int32), jnp.zeros(())), amounts)[0]


def total_of(amounts):
    """Add float32 amounts one by one; the total in units and rest."""
    return add_all(jnp.asarray(amounts, jnp.float32))


def test_a_million_small_adds_lose_nothing():
    amounts = np.random.default_rng(0).integers(0, 3126, 1_000_000)
    high, low = total_of(amounts)
    assert int(high) * 2**18 + int(low) == int(amounts.sum())
    naive = np.cumsum(amounts.astype(np.float32), dtype=np.float32)[-1]
    assert int(naive) != int(amounts.sum()), "a float32 sum loses bytes"


@given(st.lists(st.integers(0, 2**23), min_size=10, max_size=10))
def test_large_adds_carry_over(amounts):
    """Up to 32 units at once."""
    high, low = total_of(np.array(amounts))
    assert int(high) * 2**18 + float(low) == sum(amounts)
    assert 0 <= float(low) < UNIT


def test_fractions_of_a_byte_add_up():
    """A million times 1/32 B more than 3 KB."""
    high, low = total_of(np.full(1_000_000, 3000 + 1 / 32))
    assert int(high) * 2**18 + float(low) == 1e6 * (3000 + 1 / 32)
