"""Flow bookkeeping: equal-cost paths, path constants; metrics of the counters."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import alone_us, wire
from roundoff import U

from ecn_marl.sim import Poisson, Simulator, leaf_spine
from ecn_marl.sim.core.lifecycle import SLOWDOWN_TOP, slowdown_bin
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.metrics import counter_bytes, histogram_quantile, slowdown_summary
from ecn_marl.sim.random import hash_bits
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.sizes import CHUNK

SPINES = 4
TOPOLOGY = leaf_spine(3, 2, SPINES)
NET = jax.tree.map(jnp.asarray, Simulator(TOPOLOGY, (Poisson(),)).default_params().net)


@partial(jax.jit, static_argnums=1)
def paths_of(plan, n, seed):
    source = Schedule(1.0, n)
    offer = source.offer(source.init(jax.random.key(0), plan, NET.nic_rate), plan, NET.nic_rate)
    return find_paths(NET, offer, hash_bits(seed, jnp.arange(n), 17))


def paths(src, dst, size=1000, seed=0, **spines):
    """Paths of flows, as numpy."""
    n = len(src)
    flows = {"src": np.array(src), "dst": np.array(dst), "start_ns": np.zeros(n)}
    flows["size_B"] = np.broadcast_to(size, n)
    flow_paths = paths_of(schedule(flows | spines, 1.0), n, jnp.uint32(seed))
    return jax.tree.map(np.asarray, flow_paths)


def names(row):
    return [TOPOLOGY.port_names[p] for p in row if p < TOPOLOGY.n_ports]


def test_given_paths_are_taken():
    spine = {"spine_data": np.array([0, 1, 2, 3]), "spine_ack": np.array([3, 2, 1, 0])}
    flow_paths = paths([0] * 4, [5] * 4, **spine)
    for k in range(4):
        forward = [f"leaf0->spine{k}", f"spine{k}->leaf2", "leaf2->host5"]
        back = [f"leaf2->spine{3 - k}", f"spine{3 - k}->leaf0", "leaf0->host0"]
        assert names(flow_paths.forward[k]) == forward
        assert names(flow_paths.back[k]) == back


def test_neighbours_on_a_leaf_need_one_hop():
    flow_paths = paths([2], [3])
    assert names(flow_paths.forward[0]) == ["leaf1->host3"]
    assert names(flow_paths.back[0]) == ["leaf1->host2"]


def test_hashed_paths_spread_evenly_and_independently():
    n = 4000
    flow_paths = paths([0] * n, [5] * n)
    first = {p: k for k in range(SPINES) for p in [TOPOLOGY.port_names.index(f"leaf0->spine{k}")]}
    forth = np.array([first[p] for p in flow_paths.forward[:, 0]])
    last = {p: k for k in range(SPINES) for p in [TOPOLOGY.port_names.index(f"spine{k}->leaf0")]}
    back = np.array([last[p] for p in flow_paths.back[:, 1]])
    counts = np.zeros((SPINES, SPINES))
    np.add.at(counts, (forth, back), 1)
    expected = n / SPINES**2
    assert np.abs(counts - expected).max() < 4.5 * math.sqrt(expected)
    other = paths([0] * n, [5] * n, seed=1)
    assert (other.forward != flow_paths.forward).any()


@pytest.mark.parametrize(
    ("src", "dst", "hops"), [(0, 1, [25]), (0, 5, [100, 100, 25])], ids=["leaf", "spine"]
)
def test_path_constants(src, dst, hops):
    sizes = np.array([1, 1000, 1001, 64_000, 1_000_000, 10_000_000])
    flow_paths = paths([src] * len(sizes), [dst] * len(sizes), sizes)
    np.testing.assert_allclose(flow_paths.ideal, [alone_us(int(s), hops) for s in sizes], rtol=1e-5)
    after = [alone_us(int(s), hops) - wire(int(s)) / 3125 for s in sizes]
    np.testing.assert_allclose(flow_paths.after, after, rtol=1e-3, atol=1e-3)
    rtt = alone_us(1000, hops) - wire(1000) / 3125
    np.testing.assert_allclose(flow_paths.rtt, rtt, rtol=1e-5)
    np.testing.assert_array_equal(flow_paths.line, 3125)


# --- metrics --------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(1.0, 5000.0), min_size=1, max_size=50),
    st.floats(0.0, 1.0),
    st.sampled_from([40, 160]),
)
@settings(max_examples=30)
def test_quantiles_of_a_histogram_are_right_to_a_bin(slowdowns, q, bins):
    cells = np.asarray(slowdown_bin(jnp.asarray(slowdowns, jnp.float32), bins))
    got = histogram_quantile(np.bincount(cells, minlength=bins), q)
    rank = max(math.ceil(q * len(slowdowns) - 1e-9), 1) - 1
    want = sorted(slowdowns)[rank]
    # A logarithm of at most 9.2, to 4 u of itself, may be on the other side of an edge.
    width = SLOWDOWN_TOP ** (1 / bins) * (1 + 40 * U)
    assert want / width <= got <= want * width


def test_slowdowns_off_the_scale_land_in_the_end_bins():
    cells = slowdown_bin(jnp.array([0.5, 1.0, 9.9e3, 1e5]), 10)
    np.testing.assert_array_equal(cells, [0, 0, 9, 9])
    empty = histogram_quantile(np.zeros((2, 10)), 0.5)
    assert np.isnan(empty).all()


def test_counter_bytes_of_a_batch():
    high, low = np.array([0, 3, 2**30]), np.array([1.5, 0.0, 7.0])
    want = [1.5, 3 * 2**18, 2**48 + 7]
    np.testing.assert_array_equal(counter_bytes((high, low)), want)
    assert CHUNK == 2**18


def test_slowdown_summary():
    slowdown = np.array([1.0, 3.0, 2.0, np.nan, 5.0])
    payload = np.array([100_000, 10, 100_001, 10, 1_000_000])
    summary = slowdown_summary(slowdown, payload)
    assert {k: v["flows"] for k, v in summary.items()} == {
        "all": 4,
        "mice": 2,
        "medium": 2,
        "elephants": 0,
    }
    assert summary["mice"]["mean"] == 2
    assert summary["mice"]["p50"] == 2
    assert summary["medium"]["mean"] == 3.5
    assert summary["all"]["p99"] == pytest.approx(np.percentile([1, 3, 2, 5], 99))
    assert all(np.isnan(summary["elephants"][k]) for k in ("mean", "p50", "p95", "p99"))
