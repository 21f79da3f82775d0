"""Rules of tuners against per-packet and float64 twins."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from portcases import IDLE, INTERVAL, LINE, ONE, SPINE, SWITCH, statistics
from roundoff import U

from ecn_marl.sim import Simulator
from ecn_marl.sim.core.queues import mark_probability
from ecn_marl.sim.network.topology import MIB
from ecn_marl.sim.tuners import (
    BufferCoupled,
    EcnSharp,
    HillClimbing,
    PiMarker,
    QueueDriven,
    UtilisationDriven,
    parse_tuner,
)


def marks_per_packet(sojourns):
    """ECN# persistent marking of a packet every 0.335 µs, marks so far at the end of each interval.

    `sojourns`: the constant sojourn time in each interval, µs.
    """
    target, persist, gap = 10.0, 100.0, 1048 / LINE
    above = following = None
    count, marks, totals = 0, 0, []
    for i, sojourn in enumerate(sojourns):
        for now in np.arange(i * INTERVAL, (i + 1) * INTERVAL, gap):
            if sojourn <= target:
                above = following = None
                continue
            above = now if above is None else above
            if now - above < persist:
                continue
            if following is None:
                count, following = 1, now + persist
                marks += 1
            elif now >= following:
                count += 1
                following += persist / math.sqrt(count)
                marks += 1
        totals.append(marks)
    return np.array(totals)


def test_ecn_sharp_marks_as_many_packets_as_the_per_packet_rule():
    """A queue that stands for 5 ms, is gone for an interval, and stands again."""
    sojourns = [15.0] * 50 + [1.0] + [15.0] * 50
    tuner = EcnSharp()
    state, ecn = tuner.update(tuner.init(ONE), IDLE, ONE, INTERVAL)
    by_thresholds, marks = [], 0.0
    for sojourn in sojourns:
        queue = sojourn * LINE
        probability = mark_probability(jnp.full((1,), queue), ecn)[0]
        marks += float(probability) * LINE * INTERVAL / 1048
        by_thresholds.append(marks)
        state, ecn = tuner.update(state, statistics(queue_mean=queue), ONE, INTERVAL)
    per_packet = marks_per_packet(sojourns)
    assert per_packet[0] == 0 and per_packet[-1] > 1000
    np.testing.assert_allclose(by_thresholds, per_packet, rtol=0.05, atol=2)


def test_ecn_sharp_does_not_take_a_swinging_queue_for_a_standing_one():
    """A saw-tooth from 0 to 40 µs (mean 20 µs) and one from 12 to 28 µs, of the same mean."""
    tuner = EcnSharp()
    for low, high, stands in ((0.0, 40.0, False), (12.0, 28.0, True)):
        wave = np.linspace(low, high, 1001) * LINE
        stats = statistics(
            queue_mean=wave.mean(), queue_sq=(wave**2).mean(), queue=high * LINE, queue_max=wave[-1]
        )
        _, ecn = tuner.update(tuner.init(ONE), stats, ONE, INTERVAL)
        assert (float(ecn.pmax[0]) > 1e-3) == stands
        np.testing.assert_allclose([ecn.kmin[0], ecn.kmax[0]], [10 * LINE, 20 * LINE], rtol=1e-6)


def test_pi_is_the_published_recursion():
    """Float64 twin in packets, over errors within its limits; the ramp marks with p at qref."""
    rng = np.random.default_rng(0)
    tuner = PiMarker()
    queues = 125e3 * (1.3 + np.cumsum(rng.uniform(-0.05, 0.05, 60)))
    state = tuner.init(ONE)
    p, former = 1e-4, 0.0
    for queue in queues:
        state, ecn = tuner.update(state, statistics(queue_mean=queue), ONE, INTERVAL)
        packets = queue / 1000
        p += tuner.a * (packets - 125) - tuner.b * (former - 125)
        former = packets
        assert float(state.p[0]) == pytest.approx(p, rel=1e-3)
        mark = mark_probability(jnp.full((1,), 125e3), ecn)
        assert float(mark[0]) == pytest.approx(p, rel=1e-3)
    assert p > 0.02


def test_pi_has_the_same_gains_at_any_interval():
    """Over 20 ms of a slow wave, p at 400 µs stays close to p at 25 µs."""

    def run(interval):
        tuner, net = PiMarker(), ONE
        state = tuner.init(net)
        probabilities = []
        for now in np.arange(interval, 20e3 + 1, interval):
            queue = 125e3 * (1.2 + 0.5 * math.sin(now / 3e3))
            state, _ = tuner.update(state, statistics(queue_mean=queue), net, interval)
            probabilities.append(float(state.p[0]))
        return np.array(probabilities)

    coarse, fine = run(400.0), run(25.0)[15::16]
    assert np.ptp(fine) > 0.02
    np.testing.assert_allclose(coarse, fine, atol=2e-3)


def test_pi_recovers_from_a_burst():
    """50 qref for a millisecond: p stays below 1 %, though its integral would reach 30 %."""
    tuner = PiMarker()
    state = tuner.init(ONE)
    for _ in range(10):
        state, _ = tuner.update(state, statistics(queue_mean=50 * 125e3), ONE, INTERVAL)
    assert 125 * (tuner.a - tuner.b) * 49 * 10 > 0.3
    assert 0.005 < float(state.p[0]) < 0.02


@given(
    st.lists(st.floats(0, 2e6), min_size=14, max_size=14), st.integers(0, 13), st.floats(1e5, 4e6)
)
def test_buffer_coupled_shrinks_where_another_port_fills_the_buffer(queues, port, added):
    """Ports of the same switch fall, those of others stay; closed form in float64."""
    tuner = parse_tuner("buffer", SPINE)
    sim = Simulator(SPINE, ())
    net = sim.default_params().net
    after = np.array(queues)
    after[port] += added
    rate = np.array([p.gbps for p in SPINE.ports]) / 25

    def kmax(queue):
        stats = replace(statistics(14), queue=jnp.asarray(queue, jnp.float32))
        ecn = tuner.update(tuner.init(net), stats, net, INTERVAL)[1]
        np.testing.assert_array_equal(ecn.kmin, np.asarray(ecn.kmax) / 4)
        return np.asarray(ecn.kmax, np.float64)

    before, lowered = kmax(queues), kmax(after)
    same = np.equal(SWITCH, SWITCH[port])
    assert (lowered[same] < before[same]).all()
    np.testing.assert_array_equal(lowered[~same], before[~same])
    used = np.bincount(SWITCH, after)[SWITCH]
    want = rate * np.maximum(0.0125 * np.maximum(32 * MIB - used, 0), 5e3)
    # Less than the free buffer is used, so the difference is as exact as its sum of 5 queues.
    np.testing.assert_allclose(lowered, want, rtol=16 * U)


@given(st.lists(st.floats(0, 2e6), min_size=14, max_size=14), st.sampled_from((10, 20, 35)))
def test_relative_is_a_percentage_of_what_a_queue_may_take(queues, low):
    """Closed form in float64; the rate of a port does not matter."""
    tuner = parse_tuner(f"relative:low={low},quota=0.5", SPINE)
    net = Simulator(SPINE, ()).default_params().net
    stats = replace(statistics(14), queue=jnp.asarray(queues, jnp.float32))
    ecn = tuner.update(tuner.init(net), stats, net, INTERVAL)[1]
    free = np.maximum(32 * MIB - np.bincount(SWITCH, queues)[SWITCH], 0)
    np.testing.assert_allclose(ecn.kmax, np.maximum(0.8 * 0.5 * free, 5e3), rtol=16 * U)
    np.testing.assert_allclose(ecn.kmin, low / 80 * np.asarray(ecn.kmax), rtol=4 * U)
    np.testing.assert_allclose(ecn.pmax, 0.02)


def test_buffer_coupled_has_a_floor():
    stats = statistics(queue_mean=64 * MIB)
    ecn = BufferCoupled().update((), stats, ONE, INTERVAL)[1]
    assert (ecn.kmin[0], ecn.kmax[0]) == (1250, 5000)


@pytest.mark.parametrize(
    ("utilisation", "queue_kb", "peak", "factor"),
    [
        (0.5, 1.0, 50e3, 1.25),  # throttled: queued at times, idle at others
        (0.5, 1.0, 500.0, 1.0),  # nobody to throttle
        (0.5, 10.0, 50e3, 1.0),
        (0.99, 1.0, 50e3, 1.0),
        (0.99, 30.0, 50e3, 0.8),
        (0.5, 30.0, 50e3, 1.0),
    ],
)
def test_utilisation_driven_steps(utilisation, queue_kb, peak, factor):
    tuner = UtilisationDriven()
    stats = statistics(queue_mean=queue_kb * 1e3, queue_max=peak, utilisation=utilisation)
    k, ecn = tuner.update(tuner.init(ONE), stats, ONE, INTERVAL)
    assert float(k[0]) == pytest.approx(20 * factor)
    np.testing.assert_allclose([ecn.kmin[0], ecn.kmax[0]], np.array([20e3, 80e3]) * factor, 1e-6)


@given(st.floats(2e3, 200e3), st.floats(2e3, 200e3), st.floats(1, 50e3))
def test_queue_driven_falls_with_level_and_growth(queue, former, added):
    """More queue now, or the same after less before (growth), never raises K; closed form."""
    tuner = QueueDriven()

    def k(before, now):
        state = tuner.init(ONE)
        state, _ = tuner.update(state, statistics(queue_mean=before), ONE, INTERVAL)
        reset = state._replace(k=jnp.full((1,), 20.0))
        return float(tuner.update(reset, statistics(queue_mean=now), ONE, INTERVAL)[0].k[0])

    assert k(former, queue + added) <= k(former, queue)
    assert k(former + added, queue) >= k(former, queue)
    level, last = (min(q / 20e3 - 1, 1) for q in (queue, former))
    # Levels of at most 1 and a gain of 0.1: mostly the roundings of exp and of k.
    assert k(former, queue) == pytest.approx(20 * math.exp(-0.1 * (2 * level - last)), rel=16 * U)


@partial(jax.jit, static_argnums=0)
def climbing(tuner, optimum_kb, noise, busy):
    """K in use, utilisation and mean queue (KB) of every interval, `[T]` each, of one port.

    The queue is K, and half of the link is used at `optimum_kb` and above, less below.
    """

    def interval(carry, drawn):
        state, kmin = carry
        error, is_busy = drawn
        k = kmin[0] / 1e3
        used = 0.5 * jnp.minimum(1.0, k / optimum_kb) + error
        queue = jnp.where(is_busy, 1e3 * k, 100.0)
        seen = {"queue_mean": queue[None], "queue_max": queue[None], "utilisation": used[None]}
        state, ecn = tuner.update(state, replace(IDLE, **seen), ONE, INTERVAL)
        return (state, ecn.kmin), (k, used, queue / 1e3)

    state, ecn = tuner.update(tuner.init(ONE), IDLE, ONE, INTERVAL)
    return jax.lax.scan(interval, (state, ecn.kmin), (noise, busy))[1]


def climbs(seed, tuner, optimum_kb, spread, intervals):
    """The same with random noise, as arrays of float64; a fifth of the intervals are idle."""
    rng = np.random.default_rng(seed)
    noise, busy = rng.normal(0.0, spread, intervals), rng.random(intervals) < 0.8
    rows = climbing(tuner, optimum_kb, jnp.asarray(noise, jnp.float32), busy)
    return (*(np.asarray(x, np.float64) for x in rows), busy)


def climbing_twin(tuner, used, queue, busy):
    """K in use, from the same utilisation and queues, `[T]`."""
    k, before, up, trying = tuner.start_kb, tuner.start_kb, True, False
    now, last, found = [], [], []
    for utility, is_busy in zip(used - queue / tuner.price_kb, busy, strict=True):
        found.append(k)
        now += [utility] * int(is_busy)
        if len(now) < tuner.trial:
            continue
        if trying:
            error = math.sqrt((np.var(now, ddof=1) + np.var(last, ddof=1)) / len(now))
            if not np.mean(now) - np.mean(last) > tuner.gate * error:
                k, up, trying, now = before, not up, False, []
                continue
        up = False if k >= tuner.high_kb else True if k <= tuner.low_kb else up
        before, trying, last, now = k, True, now, []
        k = float(np.clip(k * tuner.factor if up else k / tuner.factor, 5.0, tuner.high_kb))
    return np.array(found)


@pytest.mark.parametrize("factor", [2.0, 1.7])
@given(st.integers(0, 2**32 - 1), st.floats(5.0, 200.0))
def test_hill_climbing_is_its_twin_in_float64(factor, seed, optimum_kb):
    tuner = HillClimbing(factor=factor, trial=4.0)
    k, *seen = climbs(seed, tuner, optimum_kb, 0.1, 300)
    np.testing.assert_allclose(k, climbing_twin(tuner, *seen), rtol=1e-5)


def test_hill_climbing_finds_the_optimum_and_stays_beside_it():
    k, *_ = climbs(0, HillClimbing(price_kb=1000.0), 80.0, 0.02, 2000)
    assert np.isin(k[500:].round(), (40.0, 80.0, 160.0)).all()
    assert np.mean(k[500:].round() == 80.0) > 0.45


def test_hill_climbing_does_not_climb_on_noise():
    """With a gate of 3 standard errors of ten intervals each, few trials in a thousand pass."""
    tuner = HillClimbing(price_kb=1e9, gate=3.0)
    first = [np.mean(climbs(i, tuner, 1e-3, 0.1, 400)[0].round() == 20.0) for i in range(20)]
    assert np.mean(first) > 0.45
