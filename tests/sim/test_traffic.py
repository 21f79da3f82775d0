"""Traffic: size tables, arrival processes, incasts, schedules."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import cache, partial
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import kolmogorov, wire
from roundoff import U

from ecn_marl.sim import Simulator, star
from ecn_marl.sim.random import uniform
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.poisson import Poisson, PoissonParams
from ecn_marl.sim.traffic.schedules import Schedule, schedule, widest_tick
from ecn_marl.sim.traffic.sizes import (
    CHUNK,
    TABLES,
    make_table,
    packet_count,
    sample_in_progress,
    sample_size,
    size_table,
    wire_bytes,
)

NIC = np.array([3125.0, 3125.0, 12500.0, 6250.0], np.float32)


# --- size tables ----------------------------------------------------------------------------------


@cache
def published(name):
    """First line, sizes and probabilities of a table, read with the csv module."""
    text = resources.files("ecn_marl.sim.traffic").joinpath("data", f"{name}.csv").read_text()
    first, header, *rows = text.splitlines()
    assert header == "bytes,cdf"
    values = [(float(a), float(b)) for a, b in csv.reader(rows)]
    return first, np.array([v[0] for v in values]), np.array([v[1] for v in values])


@pytest.mark.parametrize("name", TABLES)
def test_table_mean_is_the_published_one(name):
    first = published(name)[0]
    assert first.startswith("# source: https://")
    stated = float(first.split("mean_bytes=")[1])
    assert float(size_table(name).mean) == pytest.approx(stated, rel=1e-6, abs=0.06)


def test_no_table_is_left_out():
    files = resources.files("ecn_marl.sim.traffic").joinpath("data").iterdir()
    assert {f.name.removesuffix(".csv") for f in files if f.name.endswith(".csv")} == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_sampled_sizes_follow_the_table(name):
    """Below every size lies the share that linear interpolation of the points says."""
    n = 20_000
    u = uniform(jnp.uint32(5), jnp.arange(n), 9)
    got = np.sort(np.asarray(sample_size(size_table(name), u), np.float64))
    _, size, cdf = published(name)
    assert got[0] >= 1
    assert got[-1] <= size[-1]
    np.testing.assert_array_equal(got, np.floor(got))
    grid = np.unique(np.concatenate([size, (size[1:] + size[:-1]) / 2]))
    grid = np.floor(grid[grid > 1])
    share = np.searchsorted(got, grid, side="right") / n
    # Sizes are rounded down: x or less is below x + 1 before.
    near = 1.95 / math.sqrt(n)
    assert (share > np.interp(grid, size, cdf) - near).all()
    assert (share < np.interp(grid + 1, size, cdf) + near).all()


@given(st.floats(0.0, 1.0, exclude_max=True))
@settings(max_examples=30)
def test_sample_is_the_inverse_of_the_table(u):
    _, size, cdf = published("WebSearch")
    u = np.float32(u)
    want = max(math.floor(np.interp(u, cdf, size)), 1)
    got = float(sample_size(size_table("WebSearch"), jnp.array([u]))[0])
    # Knots and u are off by U each, which counts by the slope; a whole byte by rounding down.
    i = np.clip(np.searchsorted(cdf, u), 1, len(cdf) - 1)
    around = slice(max(i - 2, 0), i + 2)
    slope = (np.diff(size)[around] / np.diff(cdf)[around]).max()
    assert abs(got - want) <= 1 + 4 * U * (slope + want)


def test_table_mean_by_hand():
    table = make_table(np.array([100.0, 300.0, 1000.0]), np.array([0.5, 0.75, 1.0]))
    assert float(table.mean) == pytest.approx(0.5 * 100 + 0.25 * 200 + 0.25 * 650)


def test_flows_of_the_first_size_are_in_progress_too():
    """Four in five have 100 KB, others up to 200 KB: met by bytes, E[S^2] / E[S] in the mean."""
    table = make_table(np.array([1e5, 2e5]), np.array([0.8, 1.0]))
    assert float(table.mean) == pytest.approx(110e3)
    u = (jnp.arange(10_000) + 0.5) / 10_000
    whole = np.asarray(sample_in_progress(table, u, jnp.ones_like(u)), np.float64)
    square = 0.8 * 1e10 + 0.2 * (8e15 - 1e15) / 3e5
    assert whole.mean() == pytest.approx(square / 110e3, rel=1e-4)


@pytest.mark.parametrize("name", ["WebSearch", "FbHdp"])
def test_what_is_left_of_flows_in_progress(name):
    """Renewal theory: its mean is E[S^2] / (2 E[S]), the share above x is E[(S - x)+] / E[S]."""
    n = 200_000
    u, v = (uniform(jnp.uint32(7), jnp.arange(n), stream) for stream in (3, 4))
    left = np.asarray(sample_in_progress(size_table(name), u, v), np.float64)
    _, size, cdf = published(name)
    sizes = np.interp((np.arange(1_000_000) + 0.5) / 1_000_000, cdf, size)
    mean = (sizes**2).mean() / (2.0 * sizes.mean())
    assert left.mean() == pytest.approx(mean, abs=4.0 * left.std() / math.sqrt(n))
    assert left.min() >= 1.0
    for x in np.quantile(sizes, [0.5, 0.9, 0.99]):
        want = np.maximum(sizes - x, 0.0).mean() / sizes.mean()
        # Four standard deviations of a share, and 1 byte of rounding down.
        near = 4.0 * math.sqrt(want * (1.0 - want) / n) + 1.0 / sizes.mean()
        assert (left > x).mean() == pytest.approx(want, abs=near)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_a_warm_start_has_the_flows_of_processor_sharing(load):
    """A geometric number at each of 4 hosts: mean rho / (1 - rho), variance rho / (1 - rho)^2."""
    source = Poisson(load=load, warm=True, width=8)
    keys = jax.random.split(jax.random.key(0), 20_000)
    params, nic = source.default_params(), jnp.asarray(NIC)
    standing = jax.vmap(lambda key: source.init(key, params, nic).standing)(keys)
    counts = np.asarray(standing, np.float64)
    mean, variance = 4 * load / (1 - load), 4 * load / (1 - load) ** 2
    assert counts.mean() == pytest.approx(mean, abs=4.0 * math.sqrt(variance / len(keys)))
    assert counts.var() == pytest.approx(variance, rel=0.1)


def test_flows_of_a_warm_start_come_first_and_are_no_others():
    """They begin 5 µs apart; later flows are those of a cold start, moved by what came before."""
    key, nic = jax.random.key(3), jnp.asarray(NIC)
    warm, cold = Poisson(load=0.9, warm=True, width=400), Poisson(load=0.9, width=400)
    params = warm.default_params()
    state = warm.init(key, params, nic)
    n = int(state.standing)
    assert 0 < n < 300
    ours = warm.offer(state, params, nic)
    theirs = cold.offer(cold.init(key, params, nic), params, nic)
    np.testing.assert_allclose(ours.start[:n], 5.0 * np.arange(1, n + 1), rtol=1e-6)
    np.testing.assert_array_equal(ours.payload[n:], theirs.payload[n:])
    gaps = np.diff(np.asarray(ours.start, np.float64))[n:]
    np.testing.assert_allclose(gaps, np.diff(np.asarray(theirs.start, np.float64))[n:], atol=0.01)
    assert (np.asarray(ours.payload[:n]) != np.asarray(theirs.payload[:n])).any()


BAD_TABLES = [
    ([1.0], [1.0], r"size table = \(1,\) is not allowed: expected two equally long columns of"),
    ([1.0, 2.0], [0.0, 0.5, 1.0], "expected two equally long columns"),
    ([2.0, 1.0], [0.0, 1.0], "size table = 'columns' is not allowed: expected non-decreasing"),
    ([-1.0, 1.0], [0.0, 1.0], "expected non-decreasing sizes >= 0"),
    ([1.0, 2.0, 3.0], [0.0, 0.8, 0.7], "expected non-decreasing sizes >= 0 and probabilities"),
    ([1.0, 2.0], [0.0, 0.9], "cdf = .* is not allowed: expected a first value >= 0 and a last v"),
    ([1.0, 2.0], [-0.1, 1.0], "cdf = .* is not allowed: expected a first value >= 0"),
]


@pytest.mark.parametrize(("size", "cdf", "message"), BAD_TABLES)
def test_bad_tables(size, cdf, message):
    with pytest.raises(ValueError, match=message):
        make_table(np.array(size), np.array(cdf))


# --- wire bytes -----------------------------------------------------------------------------------


def test_whole_packets_have_one_header_each():
    """Compiled, since XLA turns the division by 1000 into a multiplication."""
    payload = np.arange(1, 16_001) * 1000
    got = jax.jit(wire_bytes)(jnp.asarray(payload, jnp.float32))
    np.testing.assert_array_equal(np.asarray(got, np.int64), payload // 1000 * 1048)


@given(st.lists(st.integers(1, 15_000_000), min_size=32, max_size=32))
def test_wire_bytes_of_exact_floats(payload):
    got = jax.jit(wire_bytes)(jnp.array(payload, jnp.float32))
    assert [int(x) for x in got] == [wire(p) for p in payload]
    packets = jax.jit(packet_count)(jnp.array(payload, jnp.float32))
    assert [int(x) for x in packets] == [math.ceil(p / 1000) for p in payload]


def columns(size, start_ns, **others):
    n = len(size)
    return {
        "src": np.zeros(n, int),
        "dst": np.ones(n, int),
        "size_B": np.array(size),
        "start_ns": np.array(start_ns),
    } | others


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=20))
def test_schedule_keeps_every_wire_byte(sizes):
    plan = schedule(columns(sizes, [0] * len(sizes)), 1.0)
    for size, high, low in zip(sizes, plan.wire_high, plan.wire_low, strict=True):
        assert int(high) * int(CHUNK) + int(low) == wire(size)
        assert high == 0 or CHUNK <= low < 2 * CHUNK, "the low part can always be sent from"


def test_wire_bytes_of_a_flow_of_4_gigabytes():
    plan = schedule(columns([4_000_000_000], [0]), 1.0)
    total = int(plan.wire_high[0]) * int(CHUNK) + int(plan.wire_low[0])
    assert total == 4_000_000_000 + 48 * 4_000_000 == 4_192_000_000


# --- processes ------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 4))
def offers(source, params, nic, takes, tick_us, seed):
    """Offer and advance, tick by tick; take at most `takes[t]` of the flows that are due."""

    def tick(state, most):
        offer = source.offer(state, params, nic)
        due = offer.valid & (offer.start < tick_us)
        taken = due & (jnp.cumsum(due) <= most)
        return source.advance(state, params, nic, taken.sum(), tick_us), (offer, taken)

    return jax.lax.scan(tick, source.init(jax.random.key(seed), params, nic), takes)[1]


def drive(source, params, nic, takes, tick_us, seed=0):
    """The flows taken, in order: absolute start (µs), src, dst, payload, tick."""
    offer, taken = offers(source, params, jnp.asarray(nic), jnp.asarray(takes), tick_us, seed)
    taken = np.asarray(taken)
    number = np.broadcast_to(np.arange(len(takes))[:, None], taken.shape)[taken]
    start = np.asarray(offer.start, np.float64)[taken] + number * tick_us
    src, dst, payload = (np.asarray(x)[taken] for x in (offer.src, offer.dst, offer.payload))
    order = np.diff(np.where(offer.valid, offer.start, 1e30), axis=1)
    assert not (order < 0).any(), "every offer is in order of start"
    return start, src, dst, payload, number


LINEAR = make_table(np.array([0.0, 2e5]), np.array([0.0, 1.0]))
"""Sizes uniform up to 200 KB."""


@pytest.fixture(scope="module")
def poisson():
    """320 ms of arrivals at load 0.4 on four hosts of different rates."""
    params = PoissonParams(np.float32(0.4), LINEAR)
    return drive(Poisson(width=64), params, NIC, np.full(800, 64), 400.0)


def test_poisson_rate_and_load(poisson):
    start, _, _, payload, _ = poisson
    n, span = len(start), 800 * 400.0
    expected = 0.4 * NIC.sum() / 1e5 * span
    assert n > 25_000
    assert abs(n - expected) < 4 * math.sqrt(expected)
    assert payload.sum() / (NIC.sum() * span) == pytest.approx(0.4, rel=0.03)


def test_poisson_gaps_are_exponential_and_independent(poisson):
    gaps = np.diff(poisson[0])
    n, mean = len(gaps), 1e5 / (0.4 * NIC.sum())
    assert kolmogorov(gaps, lambda x: 1 - np.exp(-x / mean)) < 1.95 / math.sqrt(n)
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4 / math.sqrt(n)
    assert abs(np.corrcoef(gaps, poisson[3][1:])[0, 1]) < 4 / math.sqrt(n)


def test_poisson_sources_by_rate_and_uniform_destinations(poisson):
    _, src, dst, _, _ = poisson
    counts = np.zeros((4, 4))
    np.add.at(counts, (src, dst), 1)
    share = NIC / NIC.sum()
    expected = len(src) * share[:, None] * (1 - np.eye(4)) / 3
    assert (np.diag(counts) == 0).all(), "no host sends to itself"
    off = ~np.eye(4, dtype=bool)
    assert (np.abs(counts - expected)[off] < 4.5 * np.sqrt(expected[off])).all()


def test_two_hosts_send_to_each_other():
    params = PoissonParams(np.float32(0.4), LINEAR)
    _, src, dst, _, _ = drive(Poisson(width=8), params, NIC[:2], np.full(20, 8), 50.0)
    np.testing.assert_array_equal(dst, 1 - src)
    assert set(src) == {0, 1}


def test_seeds_differ_and_repeat():
    params = PoissonParams(np.float32(0.4), LINEAR)
    a, b, c = (
        drive(Poisson(width=8), params, NIC, np.full(20, 8), 50.0, seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(a[0], b[0])
    assert a[0].shape != c[0].shape or (a[0] != c[0]).any()


def incast_flows(nic=None, ticks=4000, tick_us=400.0, **fields):
    """Bursts of an incast, one per tick at most: lists of (starts, senders, receiver)."""
    source = Incast(**({"width": 16} | fields))
    nic = jnp.full((8,), 3125.0) if nic is None else nic
    params = source.default_params()
    start, src, dst, payload, number = drive(source, params, nic, np.full(ticks, 99), tick_us)
    assert (payload == fields.get("flow_kb", 500.0) * 1000).all()
    edges = np.flatnonzero(np.diff(number)) + 1
    groups = (np.split(x, edges) for x in (start, src, dst))
    return list(zip(*groups, strict=True))


@pytest.fixture(scope="module")
def bursts():
    return incast_flows(load=0.5, n_min=2, n_max=6, flow_kb=100.0)


def test_incast_sizes_are_log_uniform(bursts):
    n = np.array([len(b[1]) for b in bursts])
    assert len(n) > 3000
    assert set(n) == {2, 3, 4, 5, 6}
    for size in range(2, 7):
        p = math.log((size + 1) / size) / math.log(7 / 2)
        assert abs((n == size).mean() - p) < 4 * math.sqrt(p * (1 - p) / len(n))


def test_incast_senders_are_distinct(bursts):
    senders = np.zeros(8)
    for start, src, dst in bursts:
        assert len(set(src)) == len(src)
        assert set(dst) == {0}
        assert np.ptp(start) == 0, "without jitter a burst starts at once"
        senders[src] += 1
    assert senders[0] == 0, "the receiver does not send"
    share = senders[1:] / senders.sum()
    np.testing.assert_allclose(share, 1 / 7, atol=0.01)


def test_incast_senders_are_drawn_anew(bursts):
    """Every pair of hosts sends together, near ones as often as far ones."""
    together = np.zeros((8, 8))
    for _, src, _ in bursts:
        if len(src) == 2:
            together[src[0], src[1]] += 1
    pairs = (together + together.T)[1:, 1:][np.triu_indices(7, 1)]
    np.testing.assert_allclose(pairs / pairs.mean(), 1.0, atol=5 / np.sqrt(pairs.mean()))


def test_incast_load_does_not_depend_on_the_number_of_senders(bursts):
    """Gap after a burst of N: exponential with mean N x wire bytes / (load x rate)."""
    n = np.array([len(b[1]) for b in bursts])[:-1]
    gaps = np.diff([b[0][0] for b in bursts])
    mean = n * wire(100_000) / (0.5 * 3125.0)
    assert kolmogorov(gaps / mean, lambda x: 1 - np.exp(-x)) < 1.95 / math.sqrt(len(n))
    for subset in (n <= 3, n > 3):
        assert (gaps / mean)[subset].mean() == pytest.approx(1, abs=4 / math.sqrt(subset.sum()))
    load = (n * wire(100_000)).sum() / (gaps.sum() * 3125.0)
    assert load == pytest.approx(0.5, rel=4 / math.sqrt(len(n)))


def test_bursts_keep_their_distance_and_the_load():
    bursts = incast_flows(load=0.5, n_min=2, n_max=6, flow_kb=100.0, min_gap_us=50.0, tick_us=50.0)
    n = np.array([len(b[1]) for b in bursts])[:-1]
    gaps = np.diff([b[0][0] for b in bursts])
    assert gaps.min() >= 49.9 and gaps.min() < 60.0
    load = (n * wire(100_000)).sum() / (gaps.sum() * 3125.0)
    assert load == pytest.approx(0.5, rel=4 / math.sqrt(len(n)))


def test_random_receivers_each_get_the_load():
    bursts = incast_flows(load=0.5, n_min=2, n_max=6, flow_kb=100.0, receiver=-1, tick_us=50.0)
    received, span = np.zeros(8), bursts[-1][0][0]
    for _, src, dst in bursts:
        assert len(set(dst)) == 1
        assert dst[0] not in src
        received[dst[0]] += len(src) * wire(100_000)
    assert received.sum() / (8 * span * 3125.0) == pytest.approx(0.5, rel=0.08)
    np.testing.assert_allclose(received / received.sum(), 1 / 8, rtol=0.25)


def test_jitter_spreads_a_burst():
    bursts = incast_flows(load=0.1, n_min=4, n_max=4, flow_kb=100.0, jitter_us=80.0, ticks=800)
    full_bursts = [b[0] - b[0][0] for b in bursts if len(b[0]) == 4]
    assert len(full_bursts) > 100
    last_start = np.array([x[-1] for x in full_bursts])
    assert (last_start < 80.0).all()
    assert (last_start > 40.0).all(), "one start in each quarter"


def test_a_wide_burst_starts_over_several_ticks():
    """Ten senders, four places: three ticks, and all starts are that of the burst."""
    source = Incast(load=0.01, n_min=10, n_max=10, width=4)
    nic = jnp.full((16,), 3125.0)
    flows = drive(source, source.default_params(), nic, np.full(3, 99), 5.0)
    start, src, _, _, number = flows
    np.testing.assert_array_equal(np.bincount(number), [4, 4, 2])
    np.testing.assert_allclose(start, 0.0, atol=1e-5)
    assert len(set(src)) == 10


def test_senders_of_the_largest_bursts_start_independently():
    """Start of sender k: (k + coin) / 65,536 of the jitter; float32 keeps 1/128 of the coin."""
    n = 65_536
    source = Incast(load=0.01, n_min=n, n_max=n, width=n, jitter_us=1e6)
    params, nic = replace(source.default_params(), jitter_us=np.float32(n)), jnp.full((8,), 3125.0)
    state = source.init(jax.random.key(0), params, nic)
    coins = []
    for burst in range(3):
        offer = source.offer(replace(state, burst=jnp.int32(burst)), params, nic)
        coins.append(np.asarray(offer.start, np.float64) - np.arange(n))
    coins = np.array(coins)
    assert coins.min() >= 0.0 and coins.max() <= 1.0
    for later in range(4096, n, 4096):
        for first, second in ((0, 1), (1, 2)):
            match = np.corrcoef(coins[first, later:], coins[second, : n - later])[0, 1]
            assert abs(match) < 5 / (n - later) ** 0.5


def test_more_senders_than_hosts_take_turns():
    source = Incast(load=0.01, n_min=14, n_max=14, width=16)
    nic = jnp.full((8,), 3125.0)
    _, src, _, _, _ = drive(source, source.default_params(), nic, np.full(1, 99), 5.0)
    np.testing.assert_array_equal(np.bincount(src, minlength=8), [0, 2, 2, 2, 2, 2, 2, 2])


# --- what is not taken is offered again -----------------------------------------------------------

LIST = columns(
    1000 + np.arange(60),
    np.cumsum(np.arange(60) * 397 % 2000) + 0.25,
    src=np.arange(60) % 4,
    dst=(np.arange(60) + 1) % 4,
)
SOURCES = {
    "poisson": (Poisson(width=4), PoissonParams(np.float32(0.4), LINEAR), 30.0),
    "incast": (Incast(load=0.9, n_min=2, n_max=6, flow_kb=20.0, receiver=-1, width=4), None, 10.0),
    "schedule": (Schedule(1.0, 4), schedule(LIST, 1.0), 3.0),
}


PLENTY = np.full(160, 4)


@pytest.mark.parametrize("name", SOURCES)
@given(data=st.data())
@settings(max_examples=20)
def test_flows_not_taken_are_offered_again(name, data):
    """Whenever flows are taken, they and their absolute starts are the same."""
    source, params, tick_us = SOURCES[name]
    params = source.default_params() if params is None else params
    seed = data.draw(st.integers(0, 3))
    takes = np.array(data.draw(st.lists(st.integers(0, 4), min_size=160, max_size=160)))
    prompt = drive(source, params, NIC, PLENTY, tick_us, seed)
    delayed = drive(source, params, NIC, takes, tick_us, seed)
    n = len(delayed[0])
    assert n <= len(prompt[0])
    # Starts of up to the whole time are counted down in as many ticks, rounded by U of it each.
    ticks = len(takes)
    np.testing.assert_allclose(delayed[0], prompt[0][:n], rtol=0, atol=ticks**2 * tick_us * U)
    for a, b in zip(delayed[1:4], prompt[1:4], strict=True):
        np.testing.assert_array_equal(a, b[:n])
    assert (delayed[4] >= prompt[4][:n]).all(), "no flow is taken before it was due"


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_taken_is_overdue(name):
    source, params, tick_us = SOURCES[name]
    params = source.default_params() if params is None else params
    offer, _ = offers(source, params, jnp.asarray(NIC), jnp.zeros(160, int), tick_us, 0)
    start = np.asarray(offer.start)
    np.testing.assert_allclose(start[1:] - start[:-1], -tick_us, atol=0.01)
    np.testing.assert_array_equal(offer.src[0], offer.src[-1])


# --- schedules ------------------------------------------------------------------------------------


MILLION = 1_000_000


@partial(jax.jit, static_argnums=0)
def offer_after_a_million(source, params):
    """The offer of a schedule after 10^6 substeps in which no flow was taken."""
    nic = jnp.asarray(NIC)
    state = source.init(jax.random.key(0), params, nic)
    state = source.advance(state, params, nic, jnp.int32(0), MILLION * source.dt_us)
    return source.offer(state, params, nic)


@given(
    st.lists(st.integers(0, 3_000_000), min_size=8, max_size=8),
    st.sampled_from([0.5, 1.0, 5.0]),
)
def test_schedule_starts_are_exact_after_a_million_substeps(offsets, dt_us):
    """To the nanosecond, up to 3 ms ahead: 3e6 U is 0.18."""
    now = round(MILLION * dt_us * 1000)
    starts = sorted(now + x for x in offsets)
    params = schedule(columns([1000] * 8, starts), dt_us)
    start = np.asarray(offer_after_a_million(Schedule(dt_us, 8), params).start, np.float64)
    np.testing.assert_allclose(start * 1000 + now, starts, rtol=0, atol=0.5)


def test_schedule_columns():
    flows = columns([1500, 10], [0, 7], src=np.array([2, 3]), dst=np.array([0, 1]))
    flows |= {"spine_data": np.array([1, -1]), "spine_ack": np.array([-1, 0])}
    source = Schedule(1.0, 3)
    params = schedule(flows, 1.0)
    offer = source.offer(
        source.init(jax.random.key(0), params, jnp.asarray(NIC)), params, jnp.asarray(NIC)
    )
    np.testing.assert_array_equal(offer.valid, [True, True, False])
    np.testing.assert_array_equal(offer.src[:2], [2, 3])
    np.testing.assert_array_equal(offer.dst[:2], [0, 1])
    np.testing.assert_array_equal(offer.payload[:2], [1500, 10])
    np.testing.assert_array_equal(offer.wire_low[:2], [1596, 58])
    np.testing.assert_array_equal(offer.path[:2], [1, -1])
    np.testing.assert_array_equal(offer.path_back[:2], [-1, 0])
    np.testing.assert_array_equal(offer.flow_id[:2], [0, 1])
    assert (schedule(columns([1], [0]), 1.0).path == -1).all(), "left to the hash"


def test_widest_tick():
    starts = np.array([0, 100, 4999, 5000, 9999, 20_000])
    assert widest_tick(starts, 5.0, 64) == 3
    assert widest_tick(starts, 5.0, 2) == 2
    assert widest_tick(starts, 0.1, 64) == 1


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Poisson(load=0.0), "load = 0.0 is not allowed: expected a number > 0"),
        (lambda: Poisson(load=-1.0), "load = -1.0 is not allowed"),
        (lambda: Poisson(load=float("nan")), "load = nan is not allowed"),
        (
            lambda: Poisson(table="Websearch"),
            "unknown flow-size table 'Websearch': did you mean 'W",
        ),
        (
            lambda: size_table("x"),
            "unknown flow-size table 'x': known: AccMessages, AliStorage2019",
        ),
        (lambda: Incast(load=0.0), "load = 0.0 is not allowed: expected a number > 0"),
        (lambda: Incast(n_min=0), "n_min = 0 is not allowed: expected an integer >= 1"),
        (lambda: Incast(n_min=5, n_max=4), r"n_min, n_max = \(5, 4\) is not allowed"),
        (lambda: Incast(flow_kb=0.0), "flow_kb = 0.0 is not allowed: expected a number > 0"),
        (
            # Two flows of 10 KB are 20960 B: they make half of the load of 25 Gb/s every 13.4 µs.
            lambda: Simulator(
                star(3), (Incast(load=0.5, n_max=2, flow_kb=10.0, min_gap_us=13.5),), slots=8
            ).default_params(),
            r"min_gap_us = 13.5 is not allowed: expected at most 13.41\d*, the mean gap",
        ),
        (lambda: Schedule(1.0, 4).default_params(), "schedule = None .* a list of flows: see"),
        (
            lambda: schedule(columns([1, 1, 1], [5, 9, 8]), 1.0),
            r"start_ns\[2\] = .*8.* is not allowed: expected flows in order of their start",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()
