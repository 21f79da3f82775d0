"""Counters of bytes lose none to rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import tiers

from ecn_marl.sim import Simulator, scaled_ecn, star
from ecn_marl.sim.metrics import counted, counter_bytes
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.sizes import (
    SLOWDOWN_UNIT,
    add_headers,
    counter_value,
    exact_add,
    make_table,
    size_class,
    sum_exactly,
    wire_bytes,
    wire_chunks,
    wire_size,
)
from ecn_marl.sim.transports import parse_transport

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


def test_slowdowns_of_two_million_flows_add_up():
    """One after the other, against float64; a float32 sum of them is 2 % off."""
    rng = np.random.default_rng(1)
    slowdown = np.exp(rng.gamma(2.0, 0.5, 2_000_000)).astype(np.float32) * np.float32(20)

    @jax.jit
    def run(amounts):
        def add(counter, amount):
            exact, plain = counter
            return (exact_add(*exact, amount, SLOWDOWN_UNIT), plain + amount), None

        return jax.lax.scan(add, ((jnp.int32(0), jnp.float32(0)), jnp.float32(0)), amounts)[0]

    counter, plain = run(slowdown)
    right = slowdown.sum(dtype=np.float64)
    assert counted(counter, SLOWDOWN_UNIT) == pytest.approx(right, rel=1e-8)
    assert float(counter_value(counter, SLOWDOWN_UNIT)) == pytest.approx(right, rel=1e-7)
    assert abs(float(plain) - right) > 1e-4 * right


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


def in_bytes(chunks):
    """Chunks and a rest as Python integers."""
    high, low = (np.asarray(x).tolist() for x in chunks)
    assert all(x == int(x) for x in low)
    return [x * 2**18 + int(y) for x, y in zip(high, low, strict=True)]


PAYLOADS = [1, 1000, 1001, 2**18, 20_000_001, 500_000_001, 999_999_937, 10**9, 2**31 + 128, 10**12]


@given(st.lists(st.integers(1, 10**12), min_size=24, max_size=24))
def test_wire_bytes_up_to_a_terabyte(sizes):
    """Payload, usual headers and those of HPCC (42 B) and TIMELY (8 B), in whole bytes."""
    payload = np.array([*PAYLOADS, *sizes], np.float32)
    chunks = jax.jit(wire_chunks)(jnp.asarray(payload))
    exact = [int(x) for x in payload]
    packets = [-(-x // 1000) for x in exact]
    assert in_bytes(chunks) == [x + 48 * n for x, n in zip(exact, packets, strict=True)]
    for header in (8, 42, 1000):
        longer = jax.jit(add_headers, static_argnums=2)(*chunks, float(header))
        each = 48 + header
        assert in_bytes(longer) == [x + each * n for x, n in zip(exact, packets, strict=True)]
        for high, low in (chunks, longer):
            # NICs send from the rest, which holds a chunk while there is one.
            kept = (high == 0) | ((low >= UNIT) & (low < 2 * UNIT))
            assert bool(kept.all()) and bool((high >= 0).all())


def test_headers_of_endless_flows():
    """141 TB, more packets than an int32 counts."""
    size = 2**29 * 2**18
    chunks = (jnp.array([2**29 - 1]), jnp.array([UNIT], jnp.float32))
    assert in_bytes(add_headers(*chunks, 42.0)) == [size + 42 * -(-size // 1048)]


@pytest.mark.parametrize("n", [1, 100, 65_536, 2**20])
def test_large_sums_keep_every_byte(n):
    """Rests of two chunks each, and a fraction, as of an incast of that many senders."""
    amounts = np.random.default_rng(n).integers(0, 2**19, n).astype(np.float32)
    high, low = jax.jit(sum_exactly)((jnp.int32(3), jnp.float32(262_143.5)), jnp.asarray(amounts))
    assert int(high) * 2**18 + float(low) == 4 * 2**18 - 0.5 + int(amounts.astype(np.int64).sum())
    assert 0.0 <= float(low) < UNIT


@pytest.mark.parametrize(
    ("senders", "header"), tiers((("hpcc:hpcc", 42), ("timely:hpcc", 8)), ("hpcc:hpcc", 42))
)
@pytest.mark.parametrize("size", tiers((500_000_001, 999_999_937), 999_999_937))
def test_large_flows_with_longer_headers_deliver_every_byte(senders, header, size):
    """Alone on 400 Gb/s, from the first byte to the last: offered and delivered, as integers."""
    sim = Simulator(
        star(2, gbps=400.0),
        (Schedule(2.0, 1),),
        parse_transport(senders),
        dt_us=2.0,
        slots=1,
        interval_steps=500,
    )
    rows = {"src": [1], "dst": [0], "size_B": [size], "start_ns": [0.0]}
    columns = {name: np.array(x) for name, x in rows.items()}
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    ecn = scaled_ecn(params.net, 1e6, 2e6, 0.01)

    @jax.jit
    def run(key):
        def interval(state, _):
            return sim.interval(state, params, ecn)[0], None

        return jax.lax.scan(interval, sim.init(key, params), None, length=31)[0]

    totals = run(jax.random.key(0)).totals
    wire = size + (48 + header) * -(-size // 1000)
    assert float(counter_bytes(totals.offered)) == float(counter_bytes(totals.delivered)) == wire
    assert int(totals.finished[2]) == 1
