"""The simulator in cases with known answers: completion times, sharing, PFC, drops, ACKs, marks."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import (
    DETERMINISTIC,
    SPINE,
    SPINE_COARSE,
    STAR,
    STAR_COARSE,
    alone_us,
    imbalance,
    simulate,
    start,
    wire,
)
from tiers import tiers

from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.metrics import counted, histogram_quantile
from ecn_marl.sim.network.topology import MIB, star
from ecn_marl.sim.traffic.sizes import CHUNK, SIZE_CLASSES, SLOWDOWN_UNIT
from ecn_marl.sim.traffic.tickets import TIME_UNIT

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

# --- a flow alone ---------------------------------------------------------------------------------

SIZES = (1, 100, 1000, 1001, 20_000, 99_999, 100_000, 500_000, 1_000_000, 3_000_000)
"""From a byte to an elephant, both sides of a packet and of the size classes."""


def one_after_another(src, dst):
    """All sizes, far apart, each starting at another fraction of a substep."""
    rows, now = [], 0.0
    for i, size in enumerate(SIZES):
        rows.append((src, dst, size, now))
        now = np.ceil(now + wire(size) / LINE + 60) + 0.137 * i
    return rows


ALONE = {
    "star": (STAR, 3, 7, [25]),
    "star, dt 5": (STAR_COARSE, 3, 7, [25]),
    "leaf-spine": (SPINE, 0, 3, [100, 100, 25]),
    "leaf-spine, dt 5": (SPINE_COARSE, 0, 3, [100, 100, 25]),
    "one leaf": (SPINE, 0, 1, [25]),
}


@pytest.mark.parametrize("case", tiers(ALONE, "star", "leaf-spine", "one leaf"))
def test_a_flow_alone_takes_its_ideal_time(case):
    sim, src, dst, hops = ALONE[case]
    rows = one_after_another(src, dst)
    run = simulate(sim, rows, 2500 / sim.interval_us + 1)
    want = [alone_us(size, hops) for size in SIZES]
    np.testing.assert_allclose(run.fct[: len(SIZES)], want, rtol=2e-5, atol=2e-3)
    # And so the slowdown is 1.
    classes = np.array([7, 2, 1])
    np.testing.assert_array_equal(run.totals.finished, [7, 2, 1])
    np.testing.assert_allclose(counted(run.totals.slowdown, SLOWDOWN_UNIT), classes, rtol=1e-4)


def test_a_slow_port_is_the_bottleneck():
    """10 Gb/s behind a 25 Gb/s NIC: the last byte waits until the port has sent the queue."""
    port_rate = np.full(9, LINE)
    port_rate[7] = 1250.0
    run = simulate(STAR, [(3, 7, 500_000, 0.0)], 10, port_rate=port_rate)
    assert run.fct[0] == pytest.approx(alone_us(500_000, [10]), abs=1.0)
    queue = wire(500_000) * (1 - 1250 / LINE)
    assert run.stats.queue_max[:, 7].max() == pytest.approx(queue, rel=0.01)


def test_delays_count_on_the_way_there_and_back():
    nic_delay, port_delay = np.arange(9) + 0.5, np.arange(9) * 3.0
    run = simulate(STAR, [(3, 7, 1000, 0.0)], 10, nic_delay=nic_delay, port_delay=port_delay)
    extra = (3.5 + 21.0) + (7.5 + 9.0) - 4.0
    assert run.fct[0] == pytest.approx(alone_us(1000, [25]) + extra, abs=1e-3)


def test_a_gigabyte_is_counted_to_the_byte():
    """At 400 Gb/s, 50000 B per substep, for 21 ms."""
    size, rate = 10**9, 50_000.0
    run = simulate(STAR, [(3, 7, size, 0.0)], 10, nic_rate=rate, port_rate=rate)
    for steps in range(2000, 23_000, 1000):
        run = run.on(10)
        flows, slot = run.state.flows, run.slot(0)
        unsent = int(flows.rest_high[slot]) * int(CHUNK) + int(flows.rest_low[slot])
        assert unsent == max(wire(size) - steps * int(rate), 0)
        assert float(flows.rest_low[slot]) % 1 == 0
    assert run.fct[0] == pytest.approx(alone_us(size, [400], 400), rel=1e-6)
    assert imbalance(run.state) == (0.0, wire(size))


# --- sharing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sim", "near"), [(STAR, 1.0), pytest.param(STAR_COARSE, 5.0, marks=pytest.mark.thorough)]
)
def test_two_flows_share_a_port_equally(sim, near):
    """Both last bytes find a queue of the other's size before them."""
    size = 400_000
    fct = simulate(sim, [(1, 0, size, 0.0), (2, 0, size, 0.0)], 10).fct
    assert fct[0] == fct[1]
    assert fct[0] == pytest.approx(alone_us(size, [25]) + wire(size) / LINE, abs=near)


def test_a_shorter_flow_leaves_first():
    a, b = 200_000, 500_000
    fct = simulate(STAR, [(1, 0, a, 0.0), (2, 0, b, 0.0)], 10).fct
    assert fct[0] == pytest.approx(alone_us(a, [25]) + wire(a) / LINE, abs=1)
    assert fct[1] == pytest.approx(alone_us(b, [25]) + wire(a) / LINE, abs=1)


def test_a_nic_serves_its_flows_round_robin():
    """Three flows of one host to three others: shares of 1/3, then 1/2, then all."""
    sizes = 100_000, 200_000, 400_000
    fct = simulate(STAR, [(1, 2 + i, s, 0.0) for i, s in enumerate(sizes)], 10).fct
    a, b, c = (wire(s) / LINE for s in sizes)
    tail = alone_us(1000, [25]) - wire(1000) / LINE
    np.testing.assert_allclose(fct[:3], np.array([3 * a, 2 * b + a, a + b + c]) + tail, atol=1)


def test_a_slow_flow_leaves_the_rest_of_the_nic_to_others():
    """One flow is held at a tenth of the line rate by a slow sender: max-min, not proportional.

    The other flow always has a packet ready, so one of the slow flow finds the link busy whenever
    it is due, and waits for half a packet: its spacing of ten packets becomes 10.5.
    """
    sim = STAR
    run = simulate(sim, [(1, 2, 10**8, 0.0), (1, 3, 10**8, 0.0)], 10)
    flows = run.state.flows
    slow = np.asarray(flows.flow_id) == 0
    transport = replace(flows.transport, rate=jnp.where(slow, LINE / 10, flows.transport.rate))
    state = replace(run.state, flows=replace(flows, transport=transport))
    after = replace(run, state=state).on(10)
    sent = after.stats.tx_bytes[:, [2, 3]].mean(0) / sim.interval_us
    slow = LINE / 10.5
    np.testing.assert_allclose(sent, [slow, LINE - slow], rtol=2e-3)


CROWD = [(1, 0, 300_000), (2, 0, 120_000), (3, 0, 5_000), (2, 4, 77_000), (1, 4, 9_123)]
CROWD += [(5, 6, 1_000), (6, 5, 250_000), (5, 0, 50_001)]


def test_the_order_of_simultaneous_flows_does_not_matter():
    rows = [(*row, 12.5) for row in CROWD]
    fct = simulate(STAR, rows, 10).fct[: len(rows)]
    assert np.isfinite(fct).all()
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(rows))
        again = simulate(STAR, [rows[i] for i in order], 10).fct[: len(rows)]
        np.testing.assert_allclose(again, fct[order], rtol=1e-5)


def test_hosts_of_a_star_are_alike():
    """Other names for the hosts, the same bits, marks included."""
    start = np.cumsum([0.0, 3.1, 0.2, 7.7, 1.3, 0.6, 9.0, 2.2])
    name = np.array([4, 8, 1, 0, 7, 2, 5, 3, 6])
    rows = [(*row, t) for row, t in zip(CROWD, start, strict=True)]
    renamed = [(name[s], name[d], size, t) for s, d, size, t in rows]
    a, b = (simulate(STAR, x, 20, ecn=(2, 50, 0.2)) for x in (rows, renamed))
    assert np.asarray(a.stats.marked_bytes).sum() > 1e4, "there are marks"
    np.testing.assert_array_equal(a.fct, b.fct)
    np.testing.assert_array_equal(a.stats.queue_sq, b.stats.queue_sq[:, name])


# --- slots ----------------------------------------------------------------------------------------


def test_flows_wait_for_a_slot_and_their_time_counts_from_arrival():
    """Twenty flows of one host, sixteen slots: in the end the NIC has sent them all."""
    size, n = 50_000, 20
    run = simulate(STAR, [(1, 0, size, 2.0)] * n, 10)
    assert int(run.totals.deferred) == n - 16
    assert int(run.totals.started) == n + 0
    fct = np.sort(run.fct[:n])
    first = 16 * wire(size) / LINE
    tail = alone_us(1000, [25]) - wire(1000) / LINE
    np.testing.assert_allclose(fct[:16], first + tail, atol=1.5)
    # The last four get their slots at the first tick after that.
    gap = fct[16:] - (n * wire(size) / LINE + tail)
    assert (gap > tail - 1).all()
    assert (gap < tail + 2 * STAR.tick_us).all()
    waited = float(counted(run.totals.deferred_us, TIME_UNIT)) / 4
    assert waited == pytest.approx(fct[0], abs=STAR.tick_us)


def test_a_used_slot_remembers_nothing():
    """Packets between idle hosts, in slots whose last flows crossed a queue that still stands."""
    rows = [(1, 0, 1000, 30.0)] * 8 + [(s, 0, 10**6, 0.0) for s in range(2, 8)]
    rows = sorted(rows, key=lambda row: row[3])
    late = [500.0, 502.0, 505.0, 517.5, 521.0, 525.0, 530.0]
    run = simulate(STAR, rows + [(1, 8, 1000, t) for t in late], 30)
    assert int(run.totals.deferred) == 0
    assert run.stats.queue[4:6, 0].min() > 1e6
    np.testing.assert_allclose(run.fct[14:21], alone_us(1000, [25]), atol=1e-3)


# --- statistics -----------------------------------------------------------------------------------


def test_counts_per_port():
    """How many flows cross a port at the end of an interval; `test_counts` has the others."""
    rows = [(1, 0, 10**7, 0.0), (1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0), (2, 3, 50, 10**5)]
    value = np.asarray(simulate(STAR, rows, 30).stats.n_flows)
    assert (value[:, 0] == 3).all()
    assert (value[:, 1:] == 0).all()


def test_queue_statistics_of_a_linear_queue():
    """Two line rates into one: the queue grows by 3125 B every substep."""
    run = simulate(STAR, [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)], 10)
    queue = LINE * (np.arange(1000) + 1).reshape(10, 100)
    stats = jax.tree.map(lambda x: np.asarray(x)[:, 0], run.stats)
    np.testing.assert_allclose(stats.queue, queue[:, -1], rtol=1e-3)
    np.testing.assert_allclose(stats.queue_mean, queue.mean(1), rtol=1e-3)
    np.testing.assert_allclose(stats.queue_sq, (queue**2).mean(1), rtol=2e-3)
    np.testing.assert_allclose(stats.queue_max, queue[:, -1], rtol=1e-3)
    np.testing.assert_allclose(stats.tx_bytes, 100 * LINE, rtol=1e-5)
    np.testing.assert_allclose(stats.utilisation, 1, rtol=1e-5)


def test_counters_of_long_runs_keep_their_digits():
    """Counts go on from where 43 s of 10^4 busy slots lead, where float32 and int32 fail."""
    short = [*CROWD, *[(7, 8, 50_000)] * 12]
    plain = simulate(STAR, [(*row, 12.5) for row in (*short, (4, 3, 10**9))], 30)
    totals = plain.totals
    assert totals.deferred > 0
    ticks = 2**31 - 7
    before = replace(
        start(STAR)(jax.random.key(0), plain.params).totals,
        slowdown=(jnp.full(3, 10**8), jnp.full(3, 15.75)),
        log_slowdown=(jnp.full(3, 10**8), jnp.full(3, 15.75)),
        deferred_us=(jnp.int32(10**8), jnp.float32(1023.5)),
        flow_ticks=(jnp.int32(ticks >> 18), jnp.float32(ticks % 2**18)),
        late_feedback=(jnp.int32(10**6), jnp.float32(3.0)),
    )
    state = replace(start(STAR)(jax.random.key(0), plain.params), totals=before)
    after = replace(plain, state=state).on(30).totals
    units = {"slowdown": SLOWDOWN_UNIT, "log_slowdown": SLOWDOWN_UNIT, "deferred_us": TIME_UNIT}
    units |= {"flow_ticks": CHUNK, "late_feedback": CHUNK}
    for name, unit in units.items():
        first, last, want = (counted(getattr(x, name), unit) for x in (before, after, totals))
        np.testing.assert_allclose(last - first, want, rtol=1e-5, atol=1e-4, err_msg=name)
    slowdown = plain.fct[: len(short)] / [alone_us(row[2], [25]) for row in short]
    kind = np.searchsorted(SIZE_CLASSES, [row[2] for row in short])
    exact = {"slowdown": slowdown, "log_slowdown": np.log(np.maximum(slowdown, 1.0))}
    for name, values in exact.items():
        total = counted(getattr(totals, name), SLOWDOWN_UNIT)
        np.testing.assert_allclose(total, np.bincount(kind, values, 3), rtol=1e-5, err_msg=name)
    assert totals.finished.sum() == len(short)


def test_ticks_of_flows_are_counted_to_the_last():
    """Two flows that do not end hold two slots in all ticks but those before the second begins."""
    run = simulate(STAR, [(1, 0, 10**9, 0.0), (2, 3, 10**9, 20.0)], 10)
    n = 10 * STAR.interval_us / STAR.tick_us
    assert counted(run.totals.flow_ticks, CHUNK) == 2 * n - 20.0 / STAR.tick_us


def test_histogram_of_slowdowns():
    run = simulate(STAR, [(*row, 12.5) for row in CROWD], 10)
    size = np.array([row[2] for row in CROWD])
    slowdown = run.fct[: len(CROWD)] / [alone_us(s, [25]) for s in size]
    histogram = np.asarray(run.totals.histogram).reshape(3, -1)
    np.testing.assert_array_equal(histogram.sum(1), run.totals.finished)
    mice = np.sort(slowdown[size <= 100_000])
    width = 1e4 ** (1 / histogram.shape[1])
    for q in (0.2, 0.6, 1.0):
        rank = int(np.ceil(q * len(mice))) - 1
        quantile = histogram_quantile(histogram[0], q)
        assert max(mice[rank], 1) / width <= quantile <= max(mice[rank], 1) * width
    assert np.isnan(histogram_quantile(histogram[2], 0.5))


# --- what the constructor refuses -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dt_us": 0.0}, "dt_us = 0.0 is not allowed: expected a number > 0 and <="),
        ({"tick_steps": 0}, "tick_steps = 0 is not allowed: expected an integer >= 1 and <= 32"),
        ({"tick_steps": 50}, "tick_steps = 50 is not allowed"),
        ({"interval_steps": 99}, "interval_steps = 99 is not allowed: expected a multiple of tick"),
        ({"interval_steps": 0}, "interval_steps = 0 is not allowed"),
        ({"slots": 0}, "slots = 0 is not allowed: expected an integer >= 1"),
        ({"buffer_mib": 0.0}, "buffer_mib = 0.0 is not allowed: expected a number > 0"),
        ({"buffer_mib": float("nan")}, "buffer_mib = nan is not allowed"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        replace(STAR, **options)


def test_a_buffer_that_the_headroom_fills_is_refused():
    """A star's host sets aside three link delays at line rate, 9,375 B, and 4 KiB of reserve."""
    sim = replace(STAR, topology=star(4, gbps=25.0, delay_us=1.0), traffic=())
    needed = 4 * (3 * 1.0 * 25.0 * 125.0 + 4096) / MIB
    with pytest.raises(ValueError, match=r"buffer_mib = 0\.05.* expected more than .*0\.0514 MiB"):
        replace(sim, buffer_mib=0.05).default_params()
    replace(sim, buffer_mib=1.001 * needed).default_params()
    lossy = (TrafficClass("web", sim.transport, lossless=False),)
    replace(sim, buffer_mib=0.01, classes=lossy).default_params()


def test_float64_twin():
    """Float32 times flows to five digits."""
    single = simulate(STAR, DETERMINISTIC, 20)
    with jax.enable_x64(True):
        twin = simulate(STAR, DETERMINISTIC, 20)
        assert twin.state.fct_log.dtype == np.float64
    n = len(DETERMINISTIC)
    assert np.isfinite(twin.fct[:n]).all()
    np.testing.assert_allclose(single.fct[:n], twin.fct[:n], rtol=1e-5)
