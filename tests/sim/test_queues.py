"""Queues: marking, one level of service."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from roundoff import TINY, U

from ecn_marl.sim import Poisson, Simulator, leaf_spine, scaled_ecn, star
from ecn_marl.sim.core.queues import (
    PARTS,
    Burst,
    Ecn,
    Fluid,
    Level,
    Service,
    mark_probability,
    serve_level,
)
from ecn_marl.sim.core.ways import MAX_MARK

N_PORTS, N_FLOWS = 3, 8


def floats(low, high, size):
    numbers = st.floats(low, high, width=32, allow_subnormal=False)
    return npst.arrays(np.float32, size, elements=numbers)


def f32(values):
    return jnp.asarray(np.asarray(values, np.float32))


# --- marking --------------------------------------------------------------------------------------


def red(queue, kmin, kmax, pmax):
    """RED as switches implement it, one number at a time."""
    if queue <= kmin:
        return 0.0
    if queue > kmax:
        return 1.0
    return pmax * (queue - kmin) / (kmax - kmin)


@given(floats(0, 2e6, 16), floats(0, 1e6, 16), floats(1, 1e6, 16), floats(2.0**-10, 1, 16))
def test_mark_probability(queue, kmin, width, pmax):
    kmax = kmin + width
    queue[:3] = kmin[0], kmax[1], kmin[2] + width[2] / 2  # the corners, and the middle
    got = jax.jit(mark_probability)(f32(queue), Ecn(f32(kmin), f32(kmax), f32(pmax)))
    rows = zip(*(x.astype(np.float64) for x in (queue, kmin, kmax, pmax)), strict=True)
    # Two differences, a quotient and a product; and `kmax - kmin` counts as at least 1.
    np.testing.assert_allclose(got, [red(*row) for row in rows], rtol=8 * U, atol=TINY)


def test_mark_probability_by_hand():
    """SECN1: 5 to 200 KB, 1 %."""
    queue = f32([0, 5e3, 102.5e3, 200e3, 200.1e3, 1e6])
    ecn = Ecn(*(jnp.full(6, x) for x in (5e3, 200e3, 0.01)))
    np.testing.assert_allclose(mark_probability(queue, ecn), [0, 0, 0.005, 0.01, 1, 1], rtol=1e-6)


def test_a_stair_of_whole_percents():
    """Rounded down: 0 below 1 %, and the whole ramp of a Pmax of 1 % is 0 but for its end."""
    ecn = Ecn(f32([0.0]), f32([100e3]), f32([0.05]))
    queue = f32([0.0, 19e3, 20e3, 39e3, 41e3, 99e3, 100e3, 101e3])
    got = mark_probability(queue, ecn, quantum=0.01)
    np.testing.assert_allclose(got, [0, 0, 0.01, 0.01, 0.02, 0.04, 0.05, 1], rtol=1e-6)
    secn1 = Ecn(f32([5e3]), f32([200e3]), f32([0.01]))
    got = mark_probability(f32([6e3, 150e3, 199e3, 200e3, 201e3]), secn1, quantum=0.01)
    np.testing.assert_allclose(got, [0, 0, 0, 0.01, 1], rtol=1e-6)


def test_step_marking():
    """Kmin = Kmax, as DCTCP has it: nothing up to there, everything above."""
    queue = f32([0, 74e3, 75e3, np.nextafter(np.float32(75e3), np.float32(1e9)), 75.1e3, 1e9])
    for pmax in (1.0, 0.2):
        ecn = Ecn(*(jnp.full(6, x) for x in (75e3, 75e3, pmax)))
        np.testing.assert_array_equal(mark_probability(queue, ecn), [0, 0, 0, 1, 1, 1])


def test_a_rounded_step_is_a_logistic_curve():
    """Whatever Pmax is, and also where Kmax is a byte or less above Kmin; the slope is 1/4w."""
    softness = 1000.0
    queue = np.linspace(60e3, 90e3, 31).astype(np.float32)
    for pmax, kmax in ((1.0, 75e3), (0.2, 75e3), (1.0, 75e3 + 1), (0.3, 75e3 + 8)):
        ecn = Ecn(*(jnp.full(queue.size, x, jnp.float32) for x in (75e3, kmax, pmax)))
        got = mark_probability(jnp.asarray(queue), ecn, softness)
        right = 1.0 / (1.0 + np.exp((75e3 - queue.astype(np.float64)) / softness))
        np.testing.assert_allclose(got, right, atol=(kmax - 75e3) / softness / 2 + 1e-6)
        assert got[0] < 1e-6 and got[-1] > 1 - 1e-6 and (np.diff(got) > 0).all()

    def at(queue):
        ecn = Ecn(*(jnp.full(1, x) for x in (75e3, 75e3, 1.0)))
        return mark_probability(queue[None], ecn, softness)[0]

    assert jax.grad(at)(jnp.float32(75e3)) == pytest.approx(1 / (4 * softness), rel=1e-5)


@pytest.mark.parametrize("width", [5.0, 9.9, 10.1, 100.0, 1e4, 1e5])
def test_a_rounded_ramp_is_the_mean_of_logistic_curves(width):
    """Over its width, which the sum below computes in float64; also at the width of the switch."""
    softness, kmin = 1000.0, 75e3
    queue = np.linspace(kmin - 8e3, kmin + width + 8e3, 17).astype(np.float32)
    ecn = Ecn(*(jnp.full(queue.size, x, jnp.float32) for x in (kmin, kmin + width, 1.0)))
    corners = kmin + width * (np.arange(4000) + 0.5) / 4000
    right = (1.0 / (1.0 + np.exp((corners - queue[:, None].astype(np.float64)) / softness))).mean(1)
    # Float32 loses digits in the difference of two soft corners a hundredth of their width apart.
    np.testing.assert_allclose(mark_probability(f32(queue), ecn, softness), right, atol=1e-4)


def test_thresholds_scale_with_the_rate():
    net = Simulator(leaf_spine(2, 2, 2), (Poisson(),)).default_params().net
    ecn = scaled_ecn(net, 5, 200, 0.01)
    fast = np.asarray(net.port_rate) > 4000
    np.testing.assert_allclose(ecn.kmin, np.where(fast, 20e3, 5e3))
    np.testing.assert_allclose(ecn.kmax, np.where(fast, 800e3, 200e3))
    np.testing.assert_allclose(ecn.pmax, 0.01)
    step = scaled_ecn(net, 75, 75, 1.0)
    np.testing.assert_array_equal(step.kmin, step.kmax)
    np.testing.assert_allclose(step.kmax, np.where(fast, 300e3, 75e3))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ((201, 200, 0.1), r"Kmin, Kmax = \(201.0, 200.0\) is not allowed: expected 0 <= Kmin <= K"),
        ((0, 0, 0.1), r"Kmin, Kmax = \(0.0, 0.0\) is not allowed: expected .* Kmax > 0"),
        ((-1, 200, 0.1), r"Kmin, Kmax = \(-1, 200\) is not allowed"),
        ((5, float("nan"), 0.1), r"Kmin, Kmax = \(5, nan\) is not allowed"),
        ((5, float("inf"), 0.1), r"Kmin, Kmax = \(5, inf\) is not allowed"),
        ((5, 200, 0.0), r"Pmax = 0.0 is not allowed: expected a probability in \(0, 1\]"),
        ((5, 200, 1.1), r"Pmax = 1.1 is not allowed"),
        ((5, 200, 0.1, 0.0), r"base_gbps = 0.0 is not allowed"),
    ],
)
def test_bad_thresholds(setting, message):
    net = Simulator(star(2), (Poisson(),)).default_params().net
    with pytest.raises(ValueError, match=message):
        scaled_ecn(net, *setting)


# --- service --------------------------------------------------------------------------------------


@jax.jit
def serve(flows, level):
    """A substep in which no flow begins or ends."""
    zero = jnp.zeros(level.open.shape)
    parts = jnp.zeros((PARTS, *level.open.shape))
    burst = Burst(fresh=zero, moment=zero, arrived=parts, ending=parts, owed=zero)
    return serve_level(flows, level, burst, Service(f32([1]), f32(1048.0), dt=1.0))


@given(
    floats(0, 1e6, N_FLOWS),
    npst.arrays(np.int32, N_FLOWS, elements=st.integers(0, N_PORTS)),
    floats(0, 1e5, (2, N_PORTS)),
    floats(0, 5e4, N_PORTS),
    st.lists(st.booleans(), min_size=N_PORTS, max_size=N_PORTS),
    floats(0, 1, N_FLOWS),
    floats(0, 1, N_FLOWS),
)
def test_service_conserves_bytes(backlog, hop, pool, capacity, paused, part, arrived):
    """Bytes of each flow stay or are sent; no port sends more than it may.

    A batch planned a while ago may be more than its flow still has.
    """
    rate = np.array([1250.0, 3125.0, 12500.0], np.float32)
    ecn = Ecn(*(jnp.full(N_PORTS, x) for x in (5e3, 2e5, 0.5)))
    stop = jnp.asarray(np.array(paused))
    # Subnormal numbers are flushed to 0 by XLA.
    queued, entering = (
        np.where(x < 1e-30, 0, x).astype(np.float32)
        for x in (backlog * (1 - arrived), backlog * arrived)
    )
    backlog = queued + entering
    due = np.where(hop < N_PORTS, queued * 2 * part, 0)
    before = np.bincount(hop, queued, N_PORTS + 1)[:N_PORTS] + pool.sum(0)
    s = serve(
        Fluid(f32(queued), f32(entering), f32(due), jnp.asarray(hop)),
        Level(
            pool=f32(pool),
            queue=f32(before),
            open=~stop,
            ecn=ecn,
            capacity=f32(capacity),
            rate=f32(rate),
        ),
    )
    capacity = np.where(paused, 0, capacity)
    s = type(s)(*(np.asarray(x, np.float64) for x in s[:-1]), s.standing)
    for part in (s.backlog, s.out, s.pool, s.pool_out, s.queue, s.sent):
        assert (part >= 0).all()
    # What stays is a difference, and rounds once.
    np.testing.assert_allclose(s.backlog + s.out, backlog, rtol=U)
    np.testing.assert_allclose(s.pool + s.pool_out, pool, rtol=U)
    passing = hop == N_PORTS
    np.testing.assert_array_equal(s.out[passing], backlog[passing])
    assert (s.backlog[passing] == 0).all()
    assert (s.wait[passing] == 0).all()
    assert (s.log_survival[passing] == 0).all()
    for p in range(N_PORTS):
        at_port = hop == p
        total = backlog[at_port].astype(np.float64).sum() + pool[:, p].astype(np.float64).sum()
        # Sums of 8 flows and 2 pools; each flow's part is a quotient of differences of such sums,
        # which are off by 9 u of the total, and of what is due, and of less than what is sent.
        assert s.sent[p] == pytest.approx(min(total, capacity[p]), rel=10 * U)
        out = s.out[at_port].sum() + s.pool_out[:, p].sum()
        assert out <= capacity[p] * (1 + 32 * U)
        assert out == pytest.approx(s.sent[p], rel=32 * U)
        assert s.queue[p] == pytest.approx(total - s.sent[p], rel=U, abs=10 * U * total)
        # The queue in the middle of the substep as float32 has it, or the jump would be missed.
        middle = (np.float32(before[p]) + np.float32(s.queue[p])) / np.float32(2)
        mark = red(float(middle), 5e3, 2e5, 0.5)
        assert s.mark[p] == pytest.approx(mark, rel=8 * U)
        np.testing.assert_allclose(s.wait[at_port], s.queue[p] / rate[p], rtol=U, atol=TINY)
        survival = np.exp(-s.log_survival[at_port])
        # A logarithm of at most 14, to 4 u of itself.
        np.testing.assert_allclose(survival, 1 - min(mark, MAX_MARK), rtol=64 * U)


def test_service_by_hand():
    """Port 0 may send 300 of 100 + 200 + 300 B of ACKs; port 1 sends all; flow 3 passes by."""
    ecn = Ecn(*(jnp.full(2, x) for x in (0.0, 600.0, 0.8)))
    zeros = f32([0, 0, 0, 0])
    s = serve(
        Fluid(f32([100, 200, 50, 70]), zeros, zeros, jnp.array([0, 0, 1, 2])),
        Level(
            pool=f32([[300, 0], [0, 0]]),
            queue=f32([600, 50]),
            open=jnp.array([True, True]),
            ecn=ecn,
            capacity=f32([300, 300]),
            rate=f32([100, 100]),
        ),
    )
    np.testing.assert_allclose(s.out, [50, 100, 50, 70])
    np.testing.assert_allclose(s.backlog, [50, 100, 0, 0])
    np.testing.assert_allclose(s.pool, [[150, 0], [0, 0]])
    np.testing.assert_allclose(s.queue, [300, 0])
    np.testing.assert_allclose(s.mark, [0.6, 1 / 30], rtol=1e-6)
    np.testing.assert_allclose(s.wait, [3, 3, 0, 0])
    np.testing.assert_allclose(
        s.log_survival, [-np.log(0.4), -np.log(0.4), -np.log(29 / 30), 0], rtol=1e-6
    )


@pytest.mark.parametrize(("start", "inflow"), [(0.0, 900.0), (60e3, 300.0), (30e3, 650.0)])
def test_marks_of_a_long_substep_are_those_of_short_ones(start: float, inflow: float) -> None:
    """A queue that grows or drains evenly: the bytes of 40 µs are marked as in 400 times 0.1 µs."""
    rate, ecn = 600.0, Ecn(*(f32([x]) for x in (0.0, 100e3, 0.8)))

    def marked(steps: int) -> tuple[float, float]:
        dt, backlog, queue, bytes_marked = 40.0 / steps, start, start, 0.0
        for _ in range(steps):
            level = Level(
                pool=jnp.zeros((2, 1)),
                queue=f32([queue]),
                open=jnp.array([True]),
                ecn=ecn,
                capacity=f32([rate * dt]),
                rate=f32([rate]),
            )
            fluid = Fluid(f32([backlog]), f32([inflow * dt]), f32([0.0]), jnp.array([0]))
            served = serve(fluid, level)
            backlog, queue = float(served.backlog[0]), float(served.queue[0])
            bytes_marked += float(served.mark[0]) * float(served.out[0])
        return bytes_marked, queue

    (coarse_marked, end), (fine_marked, fine_end) = marked(1), marked(400)
    assert end == pytest.approx(fine_end, rel=1e-3)
    assert coarse_marked == pytest.approx(fine_marked, rel=5e-3)
