"""The mean-field DCQCN source: against theory, an independent solver, and finite differences.

The published delay equations have one bottleneck, fluid without packets and a constant delay. So
the networks here are a star of links at 40 Gb/s with packets of one byte, ACKs without size in a
class of their own, and a buffer that never fills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from delay_equations import DcqcnFlows, Solution, expected, integrate
from flax import struct
from hypothesis import given
from hypothesis import strategies as st
from roundoff import U64
from tiers import tiers

from ecn_marl.sim import Ecn, Schedule, Simulator, schedule, star, theory
from ecn_marl.sim.core.queues import mark_probability
from ecn_marl.sim.traffic.sizes import counter_value
from ecn_marl.sim.transports import preset
from ecn_marl.sim.transports.dcqcn import DcqcnParams
from ecn_marl.sim.transports.dcqcn_fluid import DcqcnFluid, _events

LINE = 5000.0
"""40 Gb/s in bytes/µs."""

SECN1 = (5e3, 200e3, 0.01)
"""Marks a packet in a hundred at the end of the ramp, then all: the curve jumps."""

SLOTS = 10
SAMPLE_US = 20.0
CHUNK = 50
"""Samples per call of the compiled program."""


@struct.dataclass
class StartParams(DcqcnParams):
    """Constants, and the rate each slot starts at."""

    first: Any = None


@dataclass(frozen=True)
class Started(DcqcnFluid):
    """Mean-field senders that start at rates of one's own choice, below line rate."""

    def start(self, state, params, new, line, base_rtt=0.0):
        state = super().start(state, params, new, line, base_rtt)
        first = jnp.where(new, params.first, state.rate)
        return replace(state, rate=first, target=jnp.where(new, first, state.target))


@cache
def simulator(dt, softness=0.0):
    """All cases share one set of shapes per substep."""
    return Simulator(
        star(SLOTS + 1, gbps=40.0),
        (Schedule(dt, SLOTS),),
        Started("paper", byte_counter=True),
        dt_us=dt,
        tick_steps=4,
        interval_steps=round(SAMPLE_US / dt),
        slots=SLOTS,
        bins=0,
        pfc=False,
        ack_priority=True,
        memory_us=90.0,
        softness=softness,
    )


def setting(sim, delay, starts, rates=None, **constants):
    """Parameters of flows from a host each to host 0.

    Args:
        delay: feedback delay, µs.
        starts: when each flow starts, µs.
        rates: at what rate, bytes/µs; at line rate if None.
        constants: replace those of the preset.
    """
    n = len(starts)
    begin = np.append(starts, np.full(SLOTS - n, 1e8))
    columns = {
        "src": np.arange(1, SLOTS + 1),
        "dst": np.zeros(SLOTS, int),
        "size_B": np.full(SLOTS, 2**31 - 1),
        "start_ns": begin * 1e3,
    }
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    net, real = params.net, params.net.port_rate.dtype.type
    first = np.full(SLOTS, LINE, real)
    first[:n] = LINE if rates is None else rates
    values = {k: real(v) for k, v in vars(preset("paper", **constants)).items()}
    net = replace(
        net,
        port_delay=np.full_like(net.port_delay, delay / 4),
        nic_delay=np.full_like(net.nic_delay, delay / 4),
        packet_bytes=real(1.0),
        ack_bytes=real(0.0),
        buffer=real(1e4) * net.buffer,
    )
    return replace(params, net=net, transport=StartParams(**values, first=first))


def everywhere(ecn):
    """The same thresholds on all ports."""
    return Ecn(*(jnp.full(SLOTS + 1, x, float) for x in ecn))


@cache
def program(sim):
    def run(state, params, ecn):
        def interval(state, _):
            state, stats = sim.interval(state, params, ecn)
            senders = state.flows.transport
            port = jax.tree.map(lambda x: x[0], stats)
            return state, (
                port,
                senders.rate,
                senders.alpha,
                counter_value(state.totals.late_feedback),
            )

        return jax.lax.scan(interval, state, None, length=CHUNK)

    return jax.jit(sim.init), jax.jit(run)


@dataclass
class Trace:
    """A record every `SAMPLE_US`: statistics `[T]`, rates and alphas `[T, F]`."""

    stats: Any
    rates: np.ndarray
    alphas: np.ndarray

    def after(self, us):
        k = round(us / SAMPLE_US)
        return Trace(jax.tree.map(lambda x: x[k:], self.stats), self.rates[k:], self.alphas[k:])

    @property
    def queue_mean(self):
        return float(self.stats.queue_mean.mean())

    @property
    def queue_sd(self):
        return math.sqrt(self.stats.queue_sq.mean() - self.queue_mean**2)


def simulate(sim, params, ecn, span):
    init, run = program(sim)
    state, parts = init(jax.random.key(0), params), []
    for _ in range(round(span / (CHUNK * SAMPLE_US))):
        state, part = run(state, params, everywhere(ecn))
        parts.append(part)
    stats, rates, alphas, late = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    assert late[-1] == 0
    return Trace(stats, rates, alphas)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


# --- steady state and oscillation -----------------------------------------------------------------


@pytest.mark.parametrize(("n", "span"), tiers(((2, 120e3), (10, 80e3)), (10, 80e3)))
def test_settles_at_the_fixed_point(n, span):
    """In float32, from line rate; alpha takes tau' / g = 14 ms to follow."""
    sim = simulator(1.0)
    point = theory.dcqcn_fixed_point(LINE, n, *SECN1, preset("paper"))
    end = simulate(sim, setting(sim, 4.0, np.zeros(n)), SECN1, span).after(span - 2e3)
    assert end.queue_mean == pytest.approx(point.queue, rel=0.01)
    assert end.stats.queue.std() < 0.01 * point.queue
    np.testing.assert_allclose(end.rates[:, :n], point.rate, rtol=0.01)
    np.testing.assert_allclose(end.alphas[:, :n], point.alpha, rtol=0.01)
    np.testing.assert_allclose(end.stats.utilisation, 1.0, rtol=1e-5)


@pytest.mark.thorough
def test_oscillates_as_the_delay_equations_do():
    """10 flows, 85 µs, the second 100 ms: what the solver finds, see `test_theory`."""
    sim = simulator(1.0)
    late = simulate(sim, setting(sim, 85.0, np.zeros(10)), SECN1, 200e3).after(100e3)
    assert late.queue_mean == pytest.approx(56e3, rel=0.1)
    assert late.queue_sd == pytest.approx(79e3, rel=0.1)
    assert late.stats.utilisation.mean() == pytest.approx(0.949, abs=0.005)


# --- trajectories ---------------------------------------------------------------------------------


class Floored(DcqcnFlows):
    """The delay equations with the senders' smallest rate."""

    def slopes(self, time, y, past):
        n = 1 + 2 * len(self.counts)
        change = super().slopes(time, y, past)
        low = [0 < i < n and y[i] <= self.k.min_rate and d < 0 for i, d in enumerate(change)]
        return [0.0 if stuck else d for stuck, d in zip(low, change, strict=True)]

    def project(self, y):
        super().project(y)
        for i in range(1, 1 + 2 * len(self.counts)):
            y[i] = max(y[i], self.k.min_rate)


def solve(ecn, delay, span, counts, rates=None, alphas=None, step=1.0):
    """The solver's trajectory every `SAMPLE_US`, without time 0; groups of `counts` flows."""
    n = len(counts)
    flows = Floored(preset("paper"), LINE, ecn, delay, counts, 1000.0)
    rates = [LINE] * n if rates is None else list(rates)
    state = [0.0, *rates, *rates, *([1.0] * n if alphas is None else alphas)]
    time, y = integrate(flows.slopes, state, span, step, flows.project, flows.jumps)
    k = slice(round(SAMPLE_US / step), None, round(SAMPLE_US / step))
    queue, rate, target, alpha = np.split(y[k], [1, 1 + n, 1 + 2 * n], axis=1)
    return Solution(time[k], queue[:, 0], rate, alpha, target, np.asarray(counts, float), LINE)


def errors(trace, solution):
    """Largest difference of queue (over the largest queue), rates (over the line rate), alphas."""
    group = np.repeat(np.arange(len(solution.counts)), solution.counts.astype(int))
    m = len(group)
    queue = np.abs(trace.stats.queue - solution.queue).max() / solution.queue.max()
    rate = np.abs(trace.rates[:, :m] - solution.rates[:, group]).max() / LINE
    alpha = np.abs(trace.alphas[:, :m] - solution.alphas[:, group]).max()
    return np.array([queue, rate, alpha])


def first_alpha(us):
    """Alpha of a flow that has been alone, so without marks, for some time."""
    k = preset("paper")
    return math.exp(-k.g * us / k.alpha_us)


RAMP = (5e3, 4e6, 1.0)
"""No jump: no queue here reaches the end of the ramp."""

HEADSTART = 4000.0

CASES: dict[str, Any] = {
    "10 from line rate, no jump": (RAMP, 4.0, np.zeros(10), {"counts": (10,)}),
    "2 from line rate": (SECN1, 4.0, np.zeros(2), {"counts": (2,)}),
    "10 from line rate, 85 µs": (SECN1, 85.0, np.zeros(10), {"counts": (10,)}),
    "1, later 3 more": (
        SECN1,
        4.0,
        [0.0, *[HEADSTART] * 3],
        {"counts": (1, 3), "alphas": (first_alpha(HEADSTART), 1.0)},
    ),
    "3 fast, 2 slow": (
        RAMP,
        20.0,
        np.zeros(5),
        {"counts": (3, 2), "rates": (2000.0, 500.0)},
    ),
}
SPAN = 4000.0


def differences(case, *substeps):
    """`errors` for some substeps, µs, `[len(substeps), 3]`."""
    ecn, delay, starts, groups = CASES[case]
    solution = solve(ecn, delay, SPAN, **groups)
    rates = np.repeat(groups["rates"], groups["counts"]) if "rates" in groups else None
    rows = []
    for dt in substeps:
        sim = simulator(dt)
        params = setting(sim, delay, starts, rates)
        trace = simulate(sim, params, ecn, SPAN + starts[-1]).after(starts[-1])
        rows.append(errors(trace, solution))
    return np.array(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_trajectories_converge_to_the_delay_equations(case, x64):
    """Euler's method: a quarter of the substep, a quarter of the error, over 4 ms.

    The norm is the largest difference at any sample: of the queue relative to its peak, of all
    rates relative to the line rate, of the alphas. The instants when the curve's jump is crossed
    fall on substeps, so a single halving may gain more or less than 2.
    """
    coarse, fine = differences(case, 0.5, 0.125)
    assert (fine < [3e-3, 1e-3, 1e-4]).all()
    gain = coarse / fine
    assert (gain > 3.0).all() and (gain < 5.0).all()


def test_a_trajectory_is_that_of_the_delay_equations(x64):
    """Where nothing is clipped after the start and nothing jumps."""
    (fine,) = differences("3 fast, 2 slow", 0.25)
    assert (fine < [6e-3, 2e-3, 2e-4]).all()


@pytest.mark.thorough
def test_half_the_substep_is_half_the_difference(x64):
    """Where nothing is clipped after the start and nothing jumps."""
    coarse, fine = differences("3 fast, 2 slow", 0.5, 0.25)
    np.testing.assert_allclose(coarse / fine, 2.0, atol=0.1)


# --- the marking curve ----------------------------------------------------------------------------


@st.composite
def curves(draw):
    kmin = draw(st.floats(0.0, 4e5))
    return kmin, kmin + draw(st.floats(1e2, 1e6)), draw(st.floats(1e-3, 1.0))


def marks(queue, ecn, softness):
    ones = np.ones(np.shape(queue))
    curve = Ecn(*(jnp.asarray(x * ones) for x in ecn))
    return np.asarray(mark_probability(jnp.asarray(queue), curve, softness))


@given(curves(), st.floats(1.0, 1e5))
def test_the_marking_curve_rises_from_0_to_1(ecn, softness):
    """But for rounding: eps q / (kmax - kmin), as two softplus cancel; up to 4e-12 here."""
    queue = np.concatenate([np.linspace(0, 2e6, 401), ecn[1] + np.linspace(-5, 5, 41)])
    with jax.enable_x64(True):
        for width in (0.0, softness):
            p = marks(np.sort(queue), ecn, width)
            assert (p >= 0).all() and (p <= 1 + 1e-11).all()
            assert (np.diff(p) >= -1e-11).all()
            # e^-40 is 4e-18.
            assert marks([ecn[1] + 40 * softness], ecn, width)[0] == pytest.approx(1.0, abs=1e-11)


@given(curves(), st.floats(0.0, 2e6))
def test_the_rounded_curve_tends_to_red(ecn, queue):
    """Softplus is at most log 2 off the corners, the logistic step e^-x off the jump.

    Rounding as above.
    """
    kmin, kmax, pmax = ecn
    red = 1.0 if queue > kmax else pmax * min(max((queue - kmin) / (kmax - kmin), 0.0), 1.0)
    with jax.enable_x64(True):
        # The same four operations.
        assert marks([queue], ecn, 0.0)[0] == pytest.approx(red, rel=4 * U64)
        for width in (1e4, 1e2, 1.0):
            corner = pmax * width * math.log(2.0) / (kmax - kmin)
            step = (1.0 - pmax) * math.exp(-abs(queue - kmax) / width)
            assert abs(marks([queue], ecn, width)[0] - red) <= corner + step + 1e-11


# --- increase events ------------------------------------------------------------------------------

PACKETS = np.array([0.01, 0.3, 3.0, 55.0, 275.0, 1e4])
MARKS = np.concatenate([[0.0], np.logspace(-12, -0.01, 200)])


def test_increase_events_are_those_of_the_equations(x64):
    for n in PACKETS:
        events, past_recovery = _events(jnp.log1p(-MARKS), jnp.full(MARKS.shape, n), 5.0)
        want = np.array([expected(p, n, 1 / n, 5.0) for p in MARKS])
        np.testing.assert_allclose(events, want[:, 0], rtol=1e-11, atol=1e-20)
        np.testing.assert_allclose(past_recovery, want[:, 1], rtol=1e-11, atol=1e-20)
    idle = _events(jnp.log1p(-MARKS), jnp.zeros(MARKS.shape), 5.0)
    np.testing.assert_array_equal(idle, np.zeros((2, MARKS.size)))


def test_gradients_of_increase_events_hold_in_float32():
    """Without the series they are a difference of two numbers near 1 / (n p)."""

    def slopes():
        def of(part):
            return jax.vmap(jax.grad(lambda x, n: _events(x, n, 5.0)[part], (0, 1)))

        x, n = (a.ravel() for a in np.meshgrid(np.log1p(-MARKS), PACKETS))
        return np.array([of(i)(jnp.asarray(x, float), jnp.asarray(n, float)) for i in (0, 1)])

    single = slopes()
    with jax.enable_x64(True):
        double = slopes()
    np.testing.assert_allclose(single, double, rtol=1e-3, atol=1e-5)


# --- gradients of an episode ----------------------------------------------------------------------

CONSTANTS = ("ai", "g", "alpha_us", "decrease_us", "increase_us")

EPISODES = {
    "on the ramp": ((20e3, 150e3, 0.1), 8.0),
    "over the jump": ((20e3, 80e3, 0.01), 40.0),
}
"""Thresholds, feedback delay (µs); the queue runs empty and builds up again in both."""


def mean_queue(x, sim, state, params):
    """Mean queue over 4 ms for thresholds and constants `x`; and the largest."""
    ecn = Ecn(*(jnp.full(SLOTS + 1, x[k]) for k in ("kmin", "kmax", "pmax")))
    constants = {k: x[k] for k in CONSTANTS}
    params = replace(params, transport=replace(params.transport, **constants))

    def interval(state, _):
        state, stats = sim.interval(state, params, ecn)
        return state, (stats.queue_mean[0], stats.queue_max[0])

    _, (mean, top) = jax.lax.scan(jax.checkpoint(interval), state, None, length=200)
    return mean.mean(), top


def episode(case):
    """The compiled function of many points and its gradient at one, and where to take it."""
    ecn, delay = EPISODES[case]
    sim = simulator(1.0, softness=2e3)
    params = setting(sim, delay, np.zeros(4), [1500.0, 1400.0, 1300.0, 1200.0], alpha_init=0.15)
    state = program(sim)[0](jax.random.key(0), params)
    x = dict(zip(("kmin", "kmax", "pmax"), map(jnp.asarray, ecn), strict=True))
    x |= {k: jnp.asarray(float(getattr(params.transport, k))) for k in CONSTANTS}
    value, slope = both()
    return (
        lambda x: value(x, sim, state, params),
        lambda x: slope(x, sim, state, params),
        x,
    )


@cache
def both():
    return (
        jax.jit(jax.vmap(mean_queue, (0, None, None, None)), static_argnums=1),
        jax.jit(jax.grad(mean_queue, has_aux=True), static_argnums=1),
    )


@cache
def exact_gradient(case):
    """In float64."""
    with jax.enable_x64(True):
        _, slope, x = episode(case)
        return jax.tree.map(float, slope(x)[0])


@pytest.mark.slow
@pytest.mark.parametrize("case", tiers(EPISODES, "over the jump"))
def test_gradients_are_those_of_finite_differences(case, x64):
    value, _, x = episode(case)
    steps = {name: 1e-5 * x[name] for name in x}
    points = [x, *(x | {k: x[k] + d} for k, h in steps.items() for d in (h, -h))]
    mean, tops = value(jax.tree.map(lambda *y: jnp.stack(y), *points))
    ups, downs = np.asarray(mean)[1::2], np.asarray(mean)[2::2]
    slopes = {k: (up - down) / (2 * steps[k]) for k, up, down in zip(x, ups, downs, strict=True)}
    (ecn, _), top = EPISODES[case], np.asarray(tops)[0]
    assert (top.max() > ecn[1]) == (case == "over the jump")
    assert top.max() > 3e4 and top.min() == 0.0
    for name, slope in exact_gradient(case).items():
        assert slope == pytest.approx(float(slopes[name]), rel=1e-5), name


@pytest.mark.thorough
@pytest.mark.parametrize("case", EPISODES)
def test_gradients_hold_in_float32(case):
    """To a percent: a queue may run empty a substep earlier than in float64.

    That is a kink of the function, which moves some of its slopes by 0.4 %.
    """
    _, slope, x = episode(case)
    single, exact = slope(x)[0], exact_gradient(case)
    for name in exact:
        assert float(single[name]) == pytest.approx(exact[name], rel=1e-2), name
