"""Counters of bytes lose none to rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecn_marl.sim.sizes import exact_add, make_table, size_class, wire_bytes, wire_size

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


def test_mice_end_at_100_kb_and_elephants_begin_above_1_mb():
    """The classes of PET (§4.2.2) and ACC: up to 100 KB, above 1 MB, and between."""
    payload = jnp.asarray([1.0, 100_000.0, 100_001.0, 1_000_000.0, 1_000_001.0, 1e9])
    np.testing.assert_array_equal(size_class(payload), [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize("header", [48, 90, 56])
def test_bytes_on_the_wire(header):
    """Payload and a header per packet of 1000 B, to the byte up to a terabyte, both ways."""
    payload = [1, 999, 1000, 1001, 2000, 10**6 - 1, 10**6, 10**12 - 1, 10**12]
    right = [n + header * -(-n // 1000) for n in payload]
    np.testing.assert_array_equal(wire_size(np.array(payload), header), right)
    small = jnp.asarray(payload[:7], jnp.float32)
    np.testing.assert_array_equal(wire_bytes(small, float(header)), right[:7])


GOOD = ([0.0, 10.0, 20.0], [0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("size", "cdf", "message"),
    [
        ([-1.0, 10.0, 20.0], GOOD[1], "sizes >= 0"),
        ([0.0, 30.0, 20.0], GOOD[1], "non-decreasing sizes"),
        (GOOD[0], [0.0, 0.7, 0.5], "non-decreasing sizes"),
        (GOOD[0], [0.0, 1.0, 1.5], "a last value of 1"),
        (GOOD[0], [0.0, 0.5, 0.9], "a last value of 1"),
        (GOOD[0], [-0.1, 0.5, 1.0], "a first value >= 0"),
        ([5.0], [1.0], "at least 2 rows"),
        (GOOD[0], [0.0, 1.0], "equally long"),
    ],
)
def test_tables_that_are_no_distributions_are_refused(size, cdf, message):
    make_table(*map(np.array, GOOD))
    with pytest.raises(ValueError, match=message):
        make_table(np.array(size), np.array(cdf))
