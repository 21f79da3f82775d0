"""Closed forms against solutions of the delay equations, packet by packet runs and iterations."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from congestion_points import adpg_fixed_point, swift_target
from delay_equations import (
    Past,
    Solution,
    TimelyConstants,
    dcqcn_forcing,
    integrate,
    solve_dcqcn,
    solve_timely,
)
from hypothesis import given
from hypothesis import strategies as st
from tiers import tiers

from ecn_marl.sim import theory
from ecn_marl.sim.transports.dcqcn import PRESETS, preset

GBPS = 125.0
"""Bytes per µs in one Gb/s."""

PAPER = preset("paper")
SECN1 = (5e3, 200e3, 0.01)
LINE = 40 * GBPS


def nothing(_state):
    """No bounds."""


# The solver itself


@pytest.mark.parametrize("step", [0.1, 0.05])
def test_the_solver_has_order_four(step):
    """y' = -y(t - 1) from y = 1, whose solution is a polynomial on every unit interval."""

    def exact(time):
        return sum(
            (-1) ** j * (time - j + 1) ** j / math.factorial(j) for j in range(int(time) + 2)
        )

    time, y = integrate(lambda t, _y, past: [-past.at(t - 1.0, 0)], [1.0], 6.0, step, nothing)
    truth = np.array([exact(t) for t in time])
    # The largest error is 1.736e-3 step^4 at 0.1 and 0.05 alike.
    assert np.abs(y[:, 0] - truth).max() < 2e-3 * step**4


def test_delayed_jumps_cost_no_accuracy():
    """A relay with delay 1: a triangle wave of period 4, its corners off the grid."""

    def relay(t, _y, past):
        return [-1.0 if past.at(t - 1.0, 0) > 0 else 1.0]

    def corners(past: Past):
        return [t + 1.0 for t in past.crossings(0, {0.0})]

    time, y = integrate(relay, [0.3], 20.0, 0.098, nothing, corners)
    phase = (time - 1.3) % 4.0
    wave = np.where(phase < 2.0, phase - 1.0, 3.0 - phase)
    assert np.abs(y[:, 0] - np.where(time < 1.3, 0.3 - time, wave)).max() < 1e-12


def test_dcqcn_solutions_converge_with_order_four_between_events():
    runs = [
        solve_dcqcn(
            PAPER, LINE, SECN1, 85, 680, h, (10,), (480.0,), start_queue=90e3, start_alpha=0.16
        )
        for h in (8.5, 4.25, 2.125)
    ]
    fall, fine = (np.abs(a.queue - b.queue[::2]).max() for a, b in pairwise(runs))
    assert runs[0].queue.max() - runs[0].queue.min() > 80e3
    assert fine < 1e-3 and fall > 12 * fine


def test_dcqcn_solutions_converge_through_overflow_idleness_and_line_rate():
    """From line rate the queue rises to 7.3 MB and empties; halving the step hardly matters."""
    coarse = solve_dcqcn(PAPER, LINE, SECN1, 85, 20e3, 4.25, (10,))
    fine = solve_dcqcn(PAPER, LINE, SECN1, 85, 20e3, 2.125, (10,))
    assert fine.queue.max() > 7e6 and fine.queue[1000:].min() == 0.0
    assert np.abs(coarse.queue - fine.queue[::2]).max() < 2e-4 * fine.queue.max()


def test_identical_flows_can_be_grouped_in_any_way():
    whole = solve_dcqcn(PAPER, LINE, SECN1, 20, 5e3, 4, (6,))
    split = solve_dcqcn(PAPER, LINE, SECN1, 20, 5e3, 4, (1, 5))
    np.testing.assert_allclose(whole.queue, split.queue, atol=1e-3)
    np.testing.assert_allclose(whole.rates[:, 0], split.rates[:, 1], rtol=1e-9)


# DCQCN


@pytest.mark.parametrize(
    ("n", "mark", "queue"), [(2, 7.77e-4, 20.2e3), (10, 6.03e-3, 122.6e3)], ids=["2", "10"]
)
def test_dcqcn_fixed_point_has_the_known_values(n, mark, queue):
    """Recorded with an earlier solver (three digits); the cube-root formula is 19 to 58 % off."""
    point = theory.dcqcn_fixed_point(LINE, n, *SECN1, PAPER)
    assert point.mark == pytest.approx(mark, abs=0.005 * 10 ** math.floor(math.log10(mark)))
    assert point.queue == pytest.approx(queue, abs=50)


def test_no_dcqcn_fixed_point_beyond_the_ramp():
    with pytest.raises(ValueError, match=r"marking probability of 0\.0590.*pmax = 0\.01"):
        theory.dcqcn_fixed_point(LINE, 64, *SECN1, PAPER)


def test_beyond_the_ramp_the_queue_cycles_about_kmax():
    """16 flows at 25 Gb/s need more than 1 %: marking alternates between the ramp and always."""
    with pytest.raises(ValueError, match="no fixed point on the marking ramp"):
        theory.dcqcn_fixed_point(25 * GBPS, 16, *SECN1, PAPER)
    late = solve_dcqcn(PAPER, 25 * GBPS, SECN1, 8, 60e3, 4, (16,)).after(30e3)
    above = late.queue > SECN1[1]
    assert np.count_nonzero(above[1:] & ~above[:-1]) > 20
    assert late.queue_sd > 5e3


constants = st.fixed_dictionaries(
    {
        "decrease_us": st.floats(2, 300),
        "alpha_us": st.floats(1, 300),
        "increase_us": st.floats(2, 1000),
        "byte_counter": st.one_of(st.floats(1e3, 1e8), st.just(math.inf)),
        "recovery_steps": st.integers(0, 7),
        "ai": st.floats(0.1, 100),
    }
)


@given(constants, st.floats(1e3, 1e5), st.integers(4, 300))
def test_nothing_moves_at_the_dcqcn_fixed_point(values, capacity, n):
    """The right-hand sides, as the solver writes them, vanish to what a double holds of 1 - p."""
    k = preset("paper", **values)
    try:
        point = theory.dcqcn_fixed_point(capacity, n, 0.0, 1e6, 1.0, k)
    except ValueError:
        return
    rel = 1e-9 + 1e-14 / (1 - point.mark)
    cut, events, beyond = dcqcn_forcing(point.mark, point.rate / 1000, k, 1000.0)
    falls = point.rate * point.alpha * cut / (2 * k.decrease_us)
    assert 0.5 * (point.target - point.rate) * events == pytest.approx(falls, rel=rel)
    gap = (point.target - point.rate) * cut / k.decrease_us
    assert k.ai * beyond == pytest.approx(gap, rel=rel)
    unmarked = math.exp(k.alpha_us * point.rate / 1000 * math.log1p(-point.mark))
    assert point.alpha == pytest.approx(1 - unmarked, rel=rel, abs=1e-12)
    assert point.queue == pytest.approx(1e6 * point.mark)


@given(st.integers(2, 50), st.floats(1250, 50000), st.sampled_from([1e-6, 1e-9, 1e-12]))
def test_dcqcn_fixed_point_tends_to_the_cube_root_formula(n, capacity, shrink):
    """For small probabilities p = (R_AI (1/B + 1/(T R))² / (tau' R²))^(1/3), per packet."""
    k = preset("paper", ai=PAPER.ai * shrink)
    point = theory.dcqcn_fixed_point(capacity, n, 0.0, 1e6, 1.0, k)
    rate, ai = point.rate / 1000, k.ai / 1000
    per_packet = 1000 / k.byte_counter + 1 / (k.increase_us * rate)
    formula = (ai * per_packet**2 / (k.alpha_us * rate**2)) ** (1 / 3)
    # The next order is p times the packets per event, F of them for c and e; twice that is room for
    # the orders after it, as no factor has a coefficient above 1.
    off = formula * ((k.recovery_steps + 1) / per_packet + k.decrease_us * rate)
    assert point.mark == pytest.approx(formula, rel=2 * off + 1e-9)


@given(st.integers(2, 16), st.floats(0.1, 10))
def test_dcqcn_fixed_point_counts_in_packets(n, scale):
    """Packets of another size, and constants in bytes scaled likewise: the same probability.

    To the tolerance of the solver.
    """
    point = theory.dcqcn_fixed_point(LINE, n, 5e3, 200e3, 1.0, PAPER)
    k = preset("paper", byte_counter=PAPER.byte_counter * scale, ai=PAPER.ai * scale)
    scaled = theory.dcqcn_fixed_point(LINE * scale, n, 5e3, 200e3, 1.0, k, 1000.0 * scale)
    assert scaled.mark == pytest.approx(point.mark, rel=1e-9)
    assert scaled.target == pytest.approx(point.target * scale, rel=1e-9)


@given(
    st.sampled_from(sorted(PRESETS)), st.floats(10, 400), st.integers(2, 500), st.integers(1, 99)
)
def test_more_senders_never_lower_the_dcqcn_queue(name, gbps, n, more):
    """With the constants of real NICs, at 10 to 400 Gb/s."""
    k = preset(name)
    few = theory.dcqcn_fixed_point(gbps * GBPS, n, *SECN1[:2], 1.0, k)
    many = theory.dcqcn_fixed_point(gbps * GBPS, n + more, *SECN1[:2], 1.0, k)
    assert many.queue >= few.queue


@given(constants, st.floats(1e3, 1e5), st.integers(4, 300), st.integers(1, 99))
def test_more_senders_never_lower_the_dcqcn_queue_unless_cuts_saturate(values, capacity, n, more):
    """For which constants it is a theorem.

    At fixed p the balance `a² alpha / (R (b + d) (c + e))` grows with R if there is no byte
    counter, and with any if `a² alpha / R` does: if `2 s(tau R L) + s(tau' R L) >= 1` with
    `s(x) = x / (e^x - 1)`.
    """
    k = preset("paper", **values)
    try:
        few = theory.dcqcn_fixed_point(capacity, n, 0.0, 1e6, 1.0, k)
        many = theory.dcqcn_fixed_point(capacity, n + more, 0.0, 1e6, 1.0, k)
    except ValueError:
        return
    loss = -math.log1p(-few.mark) * few.rate / 1000
    cuts, averages = k.decrease_us * loss, k.alpha_us * loss
    slope = sum(w * x * math.exp(-x) / -math.expm1(-x) for w, x in ((2, cuts), (1, averages)))
    if math.isinf(k.byte_counter) or slope >= 1:
        assert many.mark >= few.mark * (1 - 1e-9)  # the tolerance of the solver


def test_with_a_small_byte_counter_more_senders_can_lower_the_queue():
    """Where every interval has a cut anyway, more events per cut need more marks, not fewer."""
    k = preset("paper", decrease_us=115.0, alpha_us=10.0, increase_us=400.0, byte_counter=4300.0)
    few, many = (theory.dcqcn_fixed_point(43e3, n, 0.0, 1e6, 1.0, k) for n in (4, 400))
    assert many.queue < 0.9 * few.queue


@pytest.mark.parametrize("n", tiers((2, 10), 2))
def test_dcqcn_settles_at_its_fixed_point(n):
    """From line rate, at 4 µs of feedback delay; alpha takes tau' / g = 14 ms to follow."""
    point = theory.dcqcn_fixed_point(LINE, n, *SECN1, PAPER)
    end = solve_dcqcn(PAPER, LINE, SECN1, 4, 180e3, 4, (n,)).after(170e3)
    assert end.queue_mean == pytest.approx(point.queue, rel=1e-4)
    assert end.queue_sd < 1e-4 * point.queue
    np.testing.assert_allclose(end.rates, point.rate, rtol=1e-5)
    np.testing.assert_allclose(end.targets, point.target, rtol=1e-5)
    np.testing.assert_allclose(end.alphas, point.alpha, rtol=1e-4)


def test_unequal_dcqcn_flows_become_equal():
    point = theory.dcqcn_fixed_point(LINE, 2, *SECN1, PAPER)
    run = solve_dcqcn(PAPER, LINE, SECN1, 4, 150e3, 4, (1, 1), (4000.0, 1000.0))
    assert run.rates[0, 0] - run.rates[0, 1] == 3000
    assert abs(run.rates[-1, 0] - run.rates[-1, 1]) < 1.0
    assert run.queue[-1] == pytest.approx(point.queue, rel=1e-3)


def test_dcqcn_with_long_feedback_oscillates_as_recorded():
    """10 flows, 85 µs: an earlier solver had 56 KB mean, 79 KB deviation, utilisation .949.

    The tolerance is that record's rounding.
    """
    late = solve_dcqcn(PAPER, LINE, SECN1, 85, 200e3, 4.25, (10,)).after(100e3)
    assert late.queue_mean == pytest.approx(56e3, abs=0.5e3)
    assert late.queue_sd == pytest.approx(79e3, abs=0.5e3)
    assert late.utilisation == pytest.approx(0.949, abs=5e-4)


GREEDY = preset(
    "paper", ai=2e4, decrease_us=5, recovery_steps=0, byte_counter=math.inf, increase_us=300
)
"""Increases so large and rare that the target would have to exceed the line rate."""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 1}, "at least 2 flows"),
        ({"kmin": 200e3}, "a step has no fixed point"),
        ({"pmax": 0.0}, "pmax"),
        ({"pmax": 1.5}, "pmax"),
        ({"capacity": 0.0}, "capacity"),
        ({"packet": -1.0}, "packet"),
        ({"params": preset("paper", ai=0.0)}, "ai"),
        ({"params": GREEDY, "pmax": 1.0}, "target rate of 6291.09 bytes/µs, above the line rate"),
    ],
)
def test_dcqcn_fixed_point_refuses(change, message):
    valid = {"capacity": LINE, "n": 2, "kmin": 5e3, "kmax": 200e3, "pmax": 0.01, "params": PAPER}
    with pytest.raises(ValueError, match=message):
        theory.dcqcn_fixed_point(**(valid | change))


# DCTCP


@dataclass
class DctcpRun:
    """`n` DCTCP flows in lockstep at one queue, packet by packet; the unit of time is a packet's.

    Every flow sends its next packet at the same instant as the others, and it is marked if the
    queue, itself included, exceeds `k`. A window grows by `1 / w` per ACK, alpha is updated once
    per window of data, and the first marked ACK of a window cuts it. With `at_dequeue` a packet is
    marked if the queue that it leaves behind exceeds `k`, and windows do not grow in the round of a
    cut.
    """

    bdp: float
    k: float
    n: int
    gain: float
    at_dequeue: bool = False
    tops: list[float] = field(default_factory=list)
    bottoms: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    drops: list[float] = field(default_factory=list)
    alphas: list[float] = field(default_factory=list)

    def run(self, periods: int) -> DctcpRun:
        window, alpha = 0.8 * (self.bdp + self.k) / self.n, 0.3
        acks: deque[tuple[float, bool]] = deque()
        now = free = top = 0.0
        bottom = math.inf
        sent = acked = marked = round_acks = window_end = cut_end = 0
        starts, ends = [], []  # of sending together, and when the queue will then be empty
        while len(self.times) < periods:
            while sent - acked < int(window):
                free = max(free, now) + self.n
                queue = free - now
                acks.append((free + self.bdp, queue > self.k))
                starts.append(now)
                ends.append(free)
                sent += 1
                top = max(top, queue)
            bottom = min(bottom, max(free - now, 0.0))
            now, mark = acks.popleft()
            if self.at_dequeue:
                departed = now - self.bdp
                mark = ends[bisect_right(starts, departed) - 1] - departed > self.k
            acked, round_acks, marked = acked + 1, round_acks + 1, marked + mark
            if not self.at_dequeue or acked > cut_end:
                window += 1.0 / window
            if acked > window_end:
                alpha += self.gain * (marked / round_acks - alpha)
                round_acks, marked, window_end = 0, 0, sent
            if mark and acked > cut_end:
                self.times.append(now)
                self.tops.append(top)
                self.bottoms.append(bottom)
                self.drops.append(window * alpha / 2)
                self.alphas.append(alpha)
                window, cut_end, top, bottom = window * (1 - alpha / 2), sent, 0.0, math.inf
        return self


@pytest.mark.parametrize(
    ("bdp", "k", "n"), [(83, 40, 2), (83, 40, 4), (83, 20, 1), (400, 100, 4)], ids=str
)
def test_dctcp_sawtooth(bdp, k, n):
    """Against packets, to the size of what the flows send at once and 6 % of the rest."""
    tooth = theory.dctcp_sawtooth(1.0, bdp, k, n, 1.0)
    run = DctcpRun(bdp, k, n, gain=1 / 128).run(600)
    late = slice(300, None)
    assert tooth.alpha == pytest.approx(np.mean(run.alphas[late]), rel=0.06)
    assert tooth.rounds == pytest.approx(np.mean(run.drops[late]), rel=0.06)
    assert tooth.amplitude == n * tooth.rounds
    assert tooth.period == pytest.approx(np.mean(np.diff(run.times[late])), rel=0.06)
    assert abs(tooth.q_max - np.mean(run.tops[late])) <= n
    assert abs(tooth.q_min - np.mean(run.bottoms[late])) <= n + 0.06 * tooth.amplitude


@pytest.mark.parametrize(("bdp", "k", "n"), [(400, 100, 8), (955, 130, 32)], ids=str)
def test_dctcp_sawtooth_of_marks_at_dequeue(bdp, k, n):
    tooth = theory.dctcp_sawtooth(1.0, bdp, k, n, 1.0, at_dequeue=True)
    run = DctcpRun(bdp, k, n, gain=1 / 128, at_dequeue=True).run(600)
    late = slice(300, None)
    assert tooth.alpha == pytest.approx(np.mean(run.alphas[late]), rel=0.06)
    assert tooth.amplitude == pytest.approx(n * np.mean(run.drops[late]), rel=0.06)
    assert tooth.period == pytest.approx(np.mean(np.diff(run.times[late])), rel=0.06)
    assert abs(tooth.q_max - np.mean(run.tops[late])) <= n
    paper = theory.dctcp_sawtooth(1.0, bdp, k, n, 1.0)
    assert tooth.amplitude < 0.95 * paper.amplitude, "marks that return sooner"
    kilobytes = theory.dctcp_sawtooth(1e3, bdp, 1e3 * k, n, 1e3, at_dequeue=True)
    for name in ("q_max", "q_min", "amplitude"):
        assert getattr(kilobytes, name) == pytest.approx(1e3 * getattr(tooth, name))
    assert kilobytes.period == pytest.approx(tooth.period)


@given(st.floats(100, 1e5), st.floats(10, 1000), st.floats(0, 1e6), st.integers(1, 50))
def test_dctcp_sawtooth_tends_to_the_papers_formulas(capacity, rtt, k, n):
    """Amplitude sqrt(n (C RTT + K) / 2) and period sqrt((C RTT + K) / (2 n)) for large windows."""
    window = (capacity * rtt + k) / 1000 / n
    tooth = theory.dctcp_sawtooth(capacity, rtt, k, n, 1000.0)
    assert tooth.q_max == pytest.approx(k + 1000 * n)
    assert 0 <= tooth.q_min <= tooth.q_max
    if window > 10:
        # The next order is alpha / 8 of each, and a round of about sqrt(W / 2): below 1 / sqrt(W).
        off = 1 / math.sqrt(window)
        assert tooth.amplitude / 1000 == pytest.approx(n * math.sqrt(window / 2), rel=off)
        assert tooth.rounds == pytest.approx(math.sqrt(window / 2), rel=off)
        assert tooth.alpha == pytest.approx(math.sqrt(2 / window), rel=off)


# TIMELY

C10 = 10 * GBPS
APART = (635.0, 615.0)
"""Two rates that drift apart."""

STARTS = [(625.0, 625.0), (875.0, 375.0), (1100.0, 150.0), (300.0, 200.0)]


@cache
def timely(
    start: tuple[float, ...], patched: bool, span: float = 250e3, step: float = 4.0
) -> Solution:
    k = TimelyConstants(beta=0.008 if patched else 0.8)
    return solve_timely(k, C10, start, span, step, patched=patched)


@pytest.mark.parametrize(
    "start",
    [STARTS[1], *(pytest.param(s, marks=pytest.mark.thorough) for s in STARTS if s != STARTS[1])],
    ids=str,
)
def test_patched_timely_reaches_its_fixed_point(start):
    point = theory.timely_patched_fixed_point(C10, 2, delta=1.25, beta=0.008, t_low=50.0)
    assert point == (pytest.approx(62.5e3 * 1.25), 625.0)
    end = timely(start, True).after(240e3)
    assert end.queue_mean == pytest.approx(point.queue, rel=1e-3)
    np.testing.assert_allclose(end.rates, point.rate, rtol=5e-3)


def test_patched_timely_queue_grows_with_senders():
    """8 flows as one group, off the default constants."""
    k = TimelyConstants(beta=0.016, delta=2.5, t_low=30.0)
    run = solve_timely(k, C10, (C10 / 9,), 100e3, 4.0, (8,), patched=True)
    point = theory.timely_patched_fixed_point(C10, 8, k.delta, k.beta, k.t_low)
    assert run.after(90e3).queue_mean == pytest.approx(point.queue, rel=1e-3)


def test_plain_timely_never_settles():
    """The queue swings as much after 200 ms as after 50."""
    run = timely(APART, False)
    early, late = run.after(50e3).queue[:12500], run.after(200e3).queue
    assert late.std() > 10e3 and late.min() == 0.0
    assert late.std() == pytest.approx(early.std(), rel=0.1)


def share(start: tuple[float, float], patched: bool, since: float, until: float) -> float:
    """Share of the first of two flows in what both send."""
    run = timely(start, patched)
    first, second = run.rates[(run.time >= since) & (run.time < until)].mean(axis=0)
    return float(first / (first + second))


@pytest.mark.thorough
def test_plain_timely_shares_depend_on_the_start():
    """Even only from an even start; else the flow that began faster keeps four fifths.

    The share drifts there over hundreds of ms from either side, so that runs of 100 ms, as in the
    paper, show one share per start.
    """
    assert share((625.0, 625.0), False, 200e3, 250e3) == pytest.approx(0.5, abs=1e-6)
    assert share((875.0, 375.0), False, 200e3, 250e3) == pytest.approx(0.8, abs=0.01)
    assert share((1100.0, 150.0), False, 200e3, 250e3) == pytest.approx(0.8, abs=0.01)
    assert share((375.0, 875.0), False, 200e3, 250e3) == pytest.approx(0.2, abs=0.01)


def test_two_timely_flows_drift_apart_and_patched_ones_together():
    apart = [share(APART, False, t, t + 20e3) - 0.5 for t in (0.0, 80e3, 160e3)]
    assert apart[1] > 2 * apart[0] > 0 and apart[2] > 2 * apart[1]
    together = [share((875.0, 375.0), True, t, t + 20e3) - 0.5 for t in (0.0, 80e3, 160e3)]
    assert 0 < together[1] < together[0] / 2 and 0 < together[2] < together[1] / 2


def test_timely_means_converge():
    coarse, fine = (timely(STARTS[1], False, 50e3, h).after(20e3) for h in (4.0, 2.0))
    np.testing.assert_allclose(coarse.mean(coarse.rates), fine.mean(fine.rates), rtol=2e-3)
    assert coarse.queue_mean == pytest.approx(fine.queue_mean, rel=1e-2)


# Swift, HPCC, ADPG


def test_swift_target():
    """By hand: A = 100 / (1/sqrt(.1) - 1/sqrt(100)) = 100 / 3.0622777 = 32.655432, B = -A / 10."""
    assert swift_target(1.0, 3, 20.0, 2.0, 100.0) == pytest.approx(26 + 0.9 * 32.655432, rel=1e-6)
    assert swift_target(0.01, 0, 20.0, 2.0, 100.0) == 120.0
    assert swift_target(1e4, 5, 20.0, 2.0, 100.0) == 30.0


@pytest.mark.parametrize(("n", "w_ai"), [(2, 80.0), (16, 80.0), (100, 400.0)])
def test_hpcc_windows_settle_at_the_fixed_point(n, w_ai):
    """Windows updated once per round from unequal starts, bytes in flight over the BDP as U."""
    bdp, eta = 12500.0 * 13.0, 0.95
    windows = bdp * np.linspace(0.2, 1.0, n)
    for _ in range(20000):
        windows = windows * eta / (windows.sum() / bdp) + w_ai
    point = theory.hpcc_fixed_point(12500.0, n, 13.0, w_ai, eta)
    np.testing.assert_allclose(windows, point.window, rtol=1e-9)
    assert windows.sum() / bdp == pytest.approx(point.utilisation)
    assert point.queue == pytest.approx(max(windows.sum() - bdp, 0.0), abs=1e-6)
    assert (point.queue > 0) == (n == 100)


@pytest.mark.parametrize("target", [0.3, 1.2, 2.0])
def test_adpg_flows_settle_at_the_fixed_point(target):
    """Rates that follow the sign of the target's error, at one queue (time unit: base RTT)."""
    rates, queue = np.array([0.9, 0.4, 0.1, 0.01]), 0.0
    for _ in range(200000):
        inflation = 1.0 + queue
        rates *= np.exp(0.01 * (target - inflation * np.sqrt(rates)))
        queue = max(queue + 0.05 * (rates.sum() - 1.0), 0.0)
    point = adpg_fixed_point(target, 4)
    np.testing.assert_allclose(rates, point.rate, rtol=1e-6)
    assert 1.0 + queue == pytest.approx(point.inflation, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: theory.dctcp_sawtooth(0.0, 10.0, 1e3, 2, 1e3),
        lambda: theory.dctcp_sawtooth(1e3, 10.0, -1.0, 2, 1e3),
        lambda: theory.dctcp_sawtooth(1e3, 10.0, 1e3, 0, 1e3),
        lambda: theory.timely_patched_fixed_point(1e3, 2, 1.0, -0.1, 50.0),
        lambda: theory.hpcc_fixed_point(1e3, 2, 10.0, -1.0),
    ],
)
def test_closed_forms_refuse_bad_values(call):
    with pytest.raises(ValueError, match="is not allowed"):
        call()
