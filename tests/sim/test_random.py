"""The random bits behind traffic, paths and marks."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import kolmogorov

import ecn_marl
from ecn_marl.sim.random import (
    STREAMS,
    IncastStream,
    binomial,
    hash_bits,
    member_bits,
    normal_quantile,
    to_unit,
    uniform,
    xorshift,
)


def test_uniform_is_uniform_on_every_stream():
    n = 20_000
    draws = [np.asarray(uniform(jnp.uint32(7), jnp.arange(n), stream)) for stream in range(4)]
    for u in draws:
        assert (u > 0).all()
        assert (u < 1).all()
        assert kolmogorov(u, lambda x: x) < 1.95 / math.sqrt(n)
        assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / math.sqrt(n)
    off_diagonal = np.corrcoef(draws) - np.eye(4)
    assert np.abs(off_diagonal).max() < 4 / math.sqrt(n)
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


def test_all_members_of_large_groups_have_bits_of_their_own():
    """65,536 members, groups in a row and far apart; the first 4096 have those of a counter."""
    groups, number = jnp.array([0, 1, 2, 3, 15, 16, 40_000])[:, None], jnp.arange(65_536)
    for stream in (IncastStream.START, IncastStream.SENDER_NIC):
        bits = np.asarray(member_bits(jnp.uint32(5), groups, number, stream))
        assert np.unique(bits).size == bits.size == 7 * 65_536
        counter = 4096 * groups + number[:4096]
        plain = np.asarray(hash_bits(jnp.uint32(5), counter, stream))
        np.testing.assert_array_equal(bits[:, :4096], plain)
    # Streams of the same source stay apart from those beyond the first 4096 members.
    assert max(IncastStream) < STREAMS


def test_xorshift_follows_marsaglia():
    """32-bit xorshift with the shifts 13, 17, 5 of the paper, in Python integers."""
    state, want = jnp.uint32(2463534242), 2463534242
    for _ in range(100):
        want ^= want << 13 & 0xFFFFFFFF
        want ^= want >> 17
        want ^= want << 5 & 0xFFFFFFFF
        state = xorshift(state)
        assert int(state) == want


def test_every_draw_has_a_stream_with_a_name():
    """No stream is a literal number, so two draws cannot share one by accident."""
    place, unnamed = {"hash_bits": 2, "uniform": 2, "binomial": 2, "member_bits": 3}, []
    for path in sorted(Path(ecn_marl.__file__).parent.rglob("*.py")):
        if path.name == "random.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if not called or node.func.id not in place:
                continue
            stream = node.args[place[node.func.id]]
            if any(isinstance(x, ast.Constant) for x in ast.walk(stream)):
                unnamed.append(f"{path}:{node.lineno}")
    assert unnamed == []


@jax.jit
def _draws(trials, chance):
    return binomial(jnp.uint32(11), jnp.arange(trials.size), (21, 22), trials, chance)


def draws(n, p, size=400_000):
    """Binomial numbers as float64."""
    numbers = _draws(np.full(size, n, np.float32), np.full(size, p, np.float32))
    assert numbers.dtype == jnp.float32
    return np.asarray(numbers, np.float64)


@pytest.mark.parametrize("p", [0.003, 0.05, 0.3, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("n", [1, 7, 19.4, 60, 298, 3000.5])
def test_binomial_numbers_have_its_mean_and_variance(n, p):
    """Whatever branch they come from; a fraction of a trial adds what its coin adds."""
    x = draws(n, p)
    fraction = n - math.floor(n)
    variance = n * p * (1 - p) + fraction * (1 - fraction) * p * p
    np.testing.assert_array_equal(x, np.round(x))
    assert x.min() >= 0
    assert x.max() <= math.ceil(n)
    assert abs(x.mean() - n * p) < 4.5 * math.sqrt(variance / len(x))
    assert x.var() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize(("n", "p"), [(12, 0.25), (100, 0.04), (30, 0.9)])
def test_small_binomial_numbers_follow_its_distribution(n, p):
    x, size = draws(n, p), 400_000
    for k in range(n + 1):
        share = math.comb(n, k) * p**k * (1 - p) ** (n - k)
        error = math.sqrt(share * (1 - share) / size)
        assert abs((x == k).mean() - share) < 5 * error + 1e-6


def test_binomial_numbers_at_the_edges():
    assert draws(0, 0.5, 100).max() == 0
    assert draws(50, 0, 100).max() == 0
    assert draws(50, 1, 100).min() == 50
    assert set(draws(3.5, 1, 1000)) == {3, 4}


def test_quantiles_of_the_normal_distribution():
    u = np.array([1e-6, 0.001, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999])
    want = [-4.753424, -3.090232, -1.644854, -0.524401, 0, 0.524401, 1.644854, 3.090232]
    np.testing.assert_allclose(normal_quantile(jnp.asarray(u, jnp.float32)), want, atol=1e-3)
