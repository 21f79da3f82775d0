"""Rule-based tuners: in a closed loop with senders, beside per-packet and float64 twins, bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from ecn_marl.sim import Dcqcn, Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim.queues import mark_probability
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.topology import GBPS, MIB
from ecn_marl.sim.tuners import (
    TUNERS,
    BufferCoupled,
    EcnSharp,
    PiMarker,
    QueueDriven,
    UtilisationDriven,
    parse_tuner,
)

LINE = 25 * GBPS
INTERVAL = 100.0


def network(rates, switches=1):
    """Network parameters, of which tuners read rates, buffers and the size of a packet."""
    n = len(rates)
    base = Simulator(star(max(n, 2)), ()).default_params(traffic=((),)).net
    return replace(
        base,
        port_rate=np.asarray(rates, np.float32),
        buffer=np.full(switches, 32 * MIB, np.float32),
    )


def statistics(n=1, **known):
    """Statistics of `n` ports, zero where nothing is known; a steady queue if only that is."""
    if "queue_mean" in known:
        mean = np.asarray(known["queue_mean"], np.float64)
        known = {"queue": mean, "queue_sq": mean**2, "queue_max": mean} | known
    values = {f.name: known.get(f.name, 0.0) for f in fields(PortStats)}
    return PortStats(**{k: jnp.full((n,), jnp.asarray(v, jnp.float32)) for k, v in values.items()})


ONE = network([LINE])
IDLE = statistics()


# --- closed loops: N long flows into one port of 25 Gb/s ------------------------------------------

SETTLED = slice(200, 600)
"""Intervals that are looked at, 20 to 60 ms."""

SENDERS = (2, 8, 16)


@dataclass(frozen=True)
class Fixed:
    """A static setting (KB, KB, 1), as a tuner."""

    setting: tuple[float, float, float]

    def init(self, net):
        return ()

    def update(self, state, stats, net, interval_us):
        return (), scaled_ecn(net, *self.setting)


SECN1 = Fixed((5.0, 200.0, 0.01))
RAMP = {qref: Fixed((0.0, qref / 0.0134, 1.0)) for qref in (60.0, 125.0)}
"""Static ramps with the marking that 8 senders need, 1.34 %, at `qref` KB."""

LANES = (
    *(PiMarker(qref_kb=qref) for qref in RAMP),
    *RAMP.values(),
    EcnSharp(),
    EcnSharp(instant_us=200.0),
    EcnSharp(instant_us=200.0, persist_us=1e9),
    QueueDriven(),
    UtilisationDriven(start_kb=200.0),
    UtilisationDriven(start_kb=5.0),
    SECN1,
    *(Fixed(setting) for setting in ((5.0, 20.0, 0.2), (20.0, 80.0, 0.2), (200.0, 800.0, 0.2))),
)
"""Everything that closes a loop here; one compiled program runs them all."""


@pytest.fixture(scope="module")
def settled():
    """Once settled, by controller: mean queue (KB), utilisation and Kmin (KB), for every N."""
    sim = Simulator(
        star(17),
        (Schedule(5.0, 16),),
        Dcqcn.of("hpcc-paper"),
        dt_us=5.0,
        tick_steps=4,
        interval_steps=20,
        slots=16,
        scheduled=16,
    )

    def params_of(n):
        start = np.where(np.arange(16) < n, 10e3 * np.arange(16), 2e12)
        rows = {"src": np.arange(1, 17), "dst": np.zeros(16, int)}
        rows |= {"size_B": np.full(16, 10**9), "start_ns": start}
        return sim.default_params(traffic=(schedule(rows, sim.dt_us),))

    def run(lane, params):
        def decide(states, stats):
            told = [
                tuner.update(state, stats, params.net, sim.interval_us)
                for tuner, state in zip(LANES, states, strict=True)
            ]
            ecn = jax.tree.map(lambda *x: jnp.stack(x)[lane], *(ecn for _, ecn in told))
            return tuple(state for state, _ in told), ecn

        def one(carry, _):
            network_state, (states, ecn) = carry
            network_state, stats = sim.interval(network_state, params, ecn)
            seen = jnp.stack([stats.queue_mean, stats.utilisation, ecn.kmin])[:, 0]
            return (network_state, decide(states, stats)), seen

        first = decide(tuple(tuner.init(params.net) for tuner in LANES), statistics(17))
        start = sim.init(jax.random.key(1), params)
        return jax.lax.scan(one, (start, first), None, length=SETTLED.stop)[1]

    params = jax.tree.map(lambda *x: np.stack(x), *map(params_of, SENDERS))
    program = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))
    seen = np.asarray(program(jnp.arange(len(LANES)), params), np.float64)[:, :, SETTLED].mean(2)
    seen /= np.array([1e3, 1.0, 1e3])
    return {lane: Settled(*seen[i].T) for i, lane in enumerate(LANES)}


class Settled(NamedTuple):
    """Means over time for 2, 8 and 16 senders."""

    queue: np.ndarray
    utilisation: np.ndarray
    kmin: np.ndarray

    @property
    def sojourn(self):
        """µs."""
        return self.queue * 1e3 / LINE


@pytest.mark.parametrize("qref", RAMP)
def test_pi_holds_the_queue_that_is_asked_for(settled, qref):
    """Within 8 % with 8 and with 16 senders, at full rate.

    RED needs more queue for more senders: on a static ramp that is right for 8, 16 senders have
    twice as much; SECN1 cannot be told.
    """
    pi, static = settled[PiMarker(qref_kb=qref)], settled[RAMP[qref]]
    np.testing.assert_allclose(pi.queue[1:], qref, rtol=0.08)
    assert (pi.utilisation[1:] > 0.99).all()
    assert static.queue[1] == pytest.approx(qref, rel=0.15)
    assert static.queue[2] > 1.8 * qref
    assert (settled[SECN1].queue[1:] > 1.2 * qref).all()


def test_ecn_sharp_keeps_sojourn_below_its_target(settled):
    """Below 20 µs on average, where SECN1 lets packets wait for 50 µs."""
    sharp = settled[EcnSharp()]
    assert (sharp.sojourn < 20).all()
    assert (sharp.utilisation > 0.95).all()
    assert (settled[SECN1].sojourn[1:] > 40).all()


def test_persistent_marking_takes_down_a_standing_queue(settled):
    """With instantaneous marking out of the way (200 µs) it alone at least halves the queue."""
    without = settled[EcnSharp(instant_us=200.0, persist_us=1e9)]
    assert (without.sojourn > 180).all()
    assert (settled[EcnSharp(instant_us=200.0)].queue < 0.5 * without.queue).all()


def test_queue_driven_keeps_the_queue_at_its_target_whatever_the_load(settled):
    np.testing.assert_allclose(settled[QueueDriven()].queue, 20.0, rtol=0.1)
    static = settled[Fixed((20.0, 80.0, 0.2))].queue
    assert static[2] > 2 * static[0]


def test_utilisation_driven_finds_short_queues_from_either_side(settled):
    """From 200 KB down, from 5 KB up where 2 senders leave the link idle: the same in the end."""
    high = settled[UtilisationDriven(start_kb=200.0)]
    low = settled[UtilisationDriven(start_kb=5.0)]
    loose, tight = settled[Fixed((200.0, 800.0, 0.2))], settled[Fixed((5.0, 20.0, 0.2))]
    assert high.queue.max() < 20 < 150 < loose.queue.min()
    assert (high.utilisation > tight.utilisation).all()
    assert (low.kmin > 5.5).all()
    np.testing.assert_allclose(low.kmin, high.kmin, rtol=0.15)
    assert low.queue[0] > 2 * tight.queue[0]


# --- the rules ------------------------------------------------------------------------------------


def marks_per_packet(sojourns):
    """ECN# persistent marking of a packet every 0.335 µs, marks so far at the end of each interval.

    `sojourns`: the constant sojourn time in each interval, µs.
    """
    target, persist, gap = 10.0, 100.0, 1048 / LINE
    above = following = None
    count, marks, told = 0, 0, []
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
        told.append(marks)
    return np.array(told)


def test_ecn_sharp_marks_as_many_packets_as_the_per_packet_rule():
    """A queue that stands for 5 ms, is gone for an interval, and stands again."""
    sojourns = [15.0] * 50 + [1.0] + [15.0] * 50
    tuner = EcnSharp()
    state, ecn = tuner.update(tuner.init(ONE), IDLE, ONE, INTERVAL)
    expected, marks = [], 0.0
    for sojourn in sojourns:
        queue = sojourn * LINE
        probability = mark_probability(jnp.full((1,), queue), ecn)[0]
        marks += float(probability) * LINE * INTERVAL / 1048
        expected.append(marks)
        state, ecn = tuner.update(state, statistics(queue_mean=queue), ONE, INTERVAL)
    told = marks_per_packet(sojourns)
    assert told[0] == 0 and told[-1] > 1000
    np.testing.assert_allclose(expected, told, rtol=0.05, atol=2)


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
        at = mark_probability(jnp.full((1,), 125e3), ecn)
        assert float(at[0]) == pytest.approx(p, rel=1e-3)
    assert p > 0.02


def test_pi_has_the_same_gains_at_any_interval():
    """Over 20 ms of a slow wave, p at 400 µs stays close to p at 25 µs."""

    def run(interval):
        tuner, net = PiMarker(), ONE
        state = tuner.init(net)
        told = []
        for now in np.arange(interval, 20e3 + 1, interval):
            queue = 125e3 * (1.2 + 0.5 * math.sin(now / 3e3))
            state, _ = tuner.update(state, statistics(queue_mean=queue), net, interval)
            told.append(float(state.p[0]))
        return np.array(told)

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


SPINE = leaf_spine(2, 3, 2)
SWITCH = SPINE.port_switch()


@given(
    st.lists(st.floats(0, 2e6), min_size=14, max_size=14), st.integers(0, 13), st.floats(1e5, 4e6)
)
def test_buffer_coupled_shrinks_where_another_port_fills_the_buffer(queues, port, more):
    """Ports of the same switch fall, those of others stay; closed form in float64."""
    tuner = parse_tuner("buffer", SPINE)
    sim = Simulator(SPINE, ())
    net = sim.default_params(traffic=((),)).net
    after = np.array(queues)
    after[port] += more
    rate = np.array([p.gbps for p in SPINE.ports]) / 25

    def kmax(queue):
        stats = replace(statistics(14), queue=jnp.asarray(queue, jnp.float32))
        ecn = tuner.update(tuner.init(net), stats, net, INTERVAL)[1]
        np.testing.assert_allclose(ecn.kmin, np.asarray(ecn.kmax) / 4, rtol=1e-6)
        return np.asarray(ecn.kmax, np.float64)

    before, then = kmax(queues), kmax(after)
    same = np.equal(SWITCH, SWITCH[port])
    assert (then[same] < before[same]).all()
    np.testing.assert_array_equal(then[~same], before[~same])
    used = np.bincount(SWITCH, after)[SWITCH]
    want = rate * np.maximum(0.0125 * np.maximum(32 * MIB - used, 0), 5e3)
    np.testing.assert_allclose(then, want, rtol=1e-5)


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
def test_queue_driven_falls_with_level_and_growth(queue, former, more):
    """More queue now, or the same after less before (growth), never raises K; closed form."""
    tuner = QueueDriven()

    def k(before, now):
        state = tuner.init(ONE)
        state, _ = tuner.update(state, statistics(queue_mean=before), ONE, INTERVAL)
        kept = state._replace(k=jnp.full((1,), 20.0))
        return float(tuner.update(kept, statistics(queue_mean=now), ONE, INTERVAL)[0].k[0])

    assert k(former, queue + more) <= k(former, queue)
    assert k(former + more, queue) >= k(former, queue)
    level, last = (min(q / 20e3 - 1, 1) for q in (queue, former))
    assert k(former, queue) == pytest.approx(20 * math.exp(-0.1 * (2 * level - last)), rel=1e-4)


# --- all of them ----------------------------------------------------------------------------------

RATES = np.array([10, 25, 25, 50, 100, 400]) * GBPS
PORTS = len(RATES)


def stats_from(rng, least=1.0):
    """Statistics of anything from an idle port to a buffer overrun; queues peak at `least` bytes.

    What counts as nothing queued is a packet at any rate, so scaling needs larger queues.
    """
    busy = rng.random(PORTS) < 0.8
    peak = busy * np.exp(rng.uniform(np.log(least), np.log(4e7), PORTS))
    low = peak * rng.random(PORTS)
    mean = (low + peak) / 2
    values = {
        "queue": rng.uniform(low, peak),
        "queue_mean": mean,
        "queue_sq": mean**2 + (peak - low) ** 2 / 12,
        "queue_max": peak,
        "tx_bytes": RATES * INTERVAL * rng.random(PORTS) * busy,
        "utilisation": busy * rng.random(PORTS),
        "marked_bytes": peak,
        "paused": rng.random(PORTS) * busy,
    }
    rest = {f.name: np.zeros(PORTS) for f in fields(PortStats)}
    return PortStats(**{k: jnp.asarray(v, jnp.float32) for k, v in (rest | values).items()})


def spread_over_switches(tuner, switch):
    return (
        replace(tuner, port_switch=tuple(map(int, switch)))
        if isinstance(tuner, BufferCoupled)
        else tuner
    )


def thresholds(tuner, net, history):
    """Thresholds `[T, 3, P]` after each of several intervals."""
    state, told = tuner.init(net), []
    for stats in history:
        state, ecn = tuner.update(state, stats, net, INTERVAL)
        told.append(np.stack([ecn.kmin, ecn.kmax, ecn.pmax]))
    return np.stack(told)


def assert_allowed(told):
    kmin, kmax, pmax = told[:, 0], told[:, 1], told[:, 2]
    assert np.isfinite(told).all()
    assert (kmin >= 0).all()
    assert (kmin < kmax).all()
    assert (pmax > 0).all()
    assert (pmax <= 1).all()


@pytest.mark.parametrize("name", TUNERS)
@given(seed=st.integers(0, 2**32 - 1))
def test_thresholds_are_allowed_and_ports_are_alike(name, seed):
    """Any statistics give allowed thresholds; permuting the ports permutes them."""
    rng = np.random.default_rng(seed)
    switch = rng.integers(0, 3, PORTS)
    net = network(RATES, switches=3)
    tuner = spread_over_switches(parse_tuner(name), switch)
    history = [statistics(PORTS)] + [stats_from(rng) for _ in range(4)]
    told = thresholds(tuner, net, history)
    assert_allowed(told)
    order = rng.permutation(PORTS)
    moved = thresholds(
        spread_over_switches(tuner, switch[order]),
        replace(net, port_rate=net.port_rate[order]),
        [jax.tree.map(lambda x: x[order], stats) for stats in history],
    )
    np.testing.assert_allclose(moved, told[:, :, order], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "constant"), [(name, c) for name, kind in TUNERS.items() for c in kind.constants()]
)
def test_every_allowed_constant_gives_allowed_thresholds(name, constant):
    """At the ends of its range and far from its default; what is not allowed says so by name."""
    rng = np.random.default_rng(0)
    net, built = network(RATES), 0
    history = [statistics(PORTS)] + [stats_from(rng) for _ in range(10)]
    for value in (1e-9, 1e-3, 0.5, 1.0, 1.5, 10.0, 1e3, 1e9):
        try:
            tuner = parse_tuner(f"{name}:{constant}={value}")
        except ValueError as error:
            assert f"{name}: " in str(error) and "is not allowed" in str(error)
            continue
        built += 1
        assert_allowed(thresholds(tuner, net, history))
    assert built >= 1


@pytest.mark.parametrize("name", sorted(set(TUNERS) - {"buffer"}))
def test_thresholds_grow_with_the_rate(name):
    """Queues and rate twice as large: thresholds twice as large."""
    rng = np.random.default_rng(3)
    history = [stats_from(rng, least=5e3) for _ in range(6)]

    def double(stats):
        sizes = {n: 2 * getattr(stats, n) for n in ("queue", "queue_mean", "queue_max", "tx_bytes")}
        return replace(stats, queue_sq=4 * stats.queue_sq, **sizes)

    tuner = parse_tuner(name)
    one = thresholds(tuner, network(RATES), history)
    two = thresholds(tuner, network(2 * RATES), [double(stats) for stats in history])
    np.testing.assert_allclose(two[:, :2], 2 * one[:, :2], rtol=1e-5)


def test_parse_tuner():
    assert parse_tuner("ecn-sharp") == EcnSharp()
    assert parse_tuner(" PI:qref_kb=100, a=4e-5") == PiMarker(qref_kb=100.0, a=4e-5)
    assert parse_tuner("queue:lead=2") == QueueDriven(lead=2.0)
    assert parse_tuner("utilisation") == UtilisationDriven()
    assert parse_tuner("buffer:alpha=0.02", SPINE) == BufferCoupled(
        alpha=0.02, port_switch=tuple(SWITCH.tolist())
    )
    assert hash(parse_tuner("buffer", SPINE)) == hash(parse_tuner("buffer", SPINE))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pie", "unknown tuner 'pie': did you mean 'pi'"),
        ("pi:qref=1", "unknown constant of pi 'qref': did you mean 'qref_kb'"),
        ("buffer:port_switch=1", "unknown constant of buffer 'port_switch'"),
        ("pi:qref_kb=x", "pi: qref_kb = 'x' is not allowed: expected a number"),
        ("pi:qref_kb", "pi: qref_kb = '' is not allowed"),
        ("pi:qref_kb=-1", "pi: qref_kb = -1.0 is not allowed"),
        ("pi:qref_kb=nan", "pi: qref_kb = nan is not allowed"),
        ("pi:a=1e-6", "pi: b = 2.906e-05 is not allowed: expected less than a"),
        ("ecn-sharp:target_us=20", "ecn-sharp: target_us = 20.0 is not allowed"),
        ("queue:pmax=1.5", "queue: pmax = 1.5 is not allowed: expected a probability"),
        ("queue:spread=1", "queue: spread = 1.0 is not allowed"),
        ("utilisation:start_kb=500", "utilisation: start_kb = 500.0 is not allowed"),
        ("utilisation:up=0.9", "utilisation: up = 0.9 is not allowed"),
    ],
)
def test_bad_tuners_are_named(text, message):
    with pytest.raises(ValueError, match=r".") as error:
        parse_tuner(text)
    assert message in str(error.value)


def test_buffer_coupled_must_know_the_switches():
    net = Simulator(SPINE, ()).default_params(traffic=((),)).net
    for tuner in (BufferCoupled(), BufferCoupled(port_switch=(0,) * 13)):
        with pytest.raises(ValueError, match="give parse_tuner a topology"):
            tuner.init(net)
