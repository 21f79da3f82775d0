"""NICs: max-min shares of their flows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ecn_marl.sim.nic import water_level

N_FLOWS = 8


def floats(low, high, size):
    numbers = st.floats(low, high, width=32, allow_subnormal=False)
    return npst.arrays(np.float32, size, elements=numbers)


def f32(values):
    return jnp.asarray(np.asarray(values, np.float32))


def max_min(demand, capacity):
    """Serve the smallest demands first; the others share the rest."""
    share, left = np.zeros(len(demand)), capacity
    order = np.argsort(demand)
    for i, f in enumerate(order):
        share[f] = min(demand[f], left / (len(order) - i))
        left -= share[f]
    return share


level = jax.jit(water_level)
HOSTS = 2
NIC_CASE = {
    "demand": floats(0, 12500, N_FLOWS),
    "src": npst.arrays(np.int32, N_FLOWS, elements=st.integers(0, HOSTS - 1)),
    "capacity": floats(0, 12500, HOSTS),
    "start": floats(0, 12500, HOSTS),
}


def shares(demand, src, capacity, start):
    """Rate of each flow, and the levels."""
    levels = level(f32(demand), jnp.asarray(src), f32(capacity), f32(start))
    return np.minimum(demand, np.asarray(levels)[src]).astype(np.float64), levels


@given(**NIC_CASE)
def test_water_level_never_overbooks(demand, src, capacity, start):
    """Also on the way there, from any level."""
    for _ in range(3):
        got, start = shares(demand, src, capacity, start)
        assert (np.asarray(start) >= 0).all()
        for h in range(HOSTS):
            assert got[src == h].sum() <= capacity[h] * (1 + 1e-5) + 1e-3


@given(**NIC_CASE)
def test_water_level_converges_to_max_min(demand, src, capacity, start):
    for _ in range(N_FLOWS):
        got, start = shares(demand, src, capacity, start)
    for h in range(HOSTS):
        of_host = src == h
        want = max_min(demand[of_host].astype(np.float64), float(capacity[h]))
        np.testing.assert_allclose(got[of_host], want, rtol=1e-4, atol=0.05)


def test_water_level_by_hand():
    """10 for three that want 1, 4 and 9: all of 1, then 4 and 5."""
    demand, src, start = f32([1, 4, 9]), np.zeros(3, np.int32), f32([10])
    for _ in range(2):
        got, start = shares(demand, src, f32([10]), start)
    np.testing.assert_allclose(got, [1, 4, 5])
    np.testing.assert_allclose(start, 5)
    _, start = shares(demand, src, f32([15]), start)
    np.testing.assert_allclose(start, 15, err_msg="no limit where all demands fit")
