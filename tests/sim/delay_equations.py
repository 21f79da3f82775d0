"""Fluid models of DCQCN and TIMELY as delay differential equations, solved in float64.

Independent of the package: the equations are those of Zhu et al., "ECN or Delay: Lessons Learnt
from Analysis of DCQCN and TIMELY" (CoNEXT'16); constants come from the caller. Units are µs, bytes
and bytes/µs outside; marking probabilities are per packet of `packet` bytes.

The solver is the classical Runge-Kutta method of order 4 with cubic Hermite interpolation of the
past. Its mesh is a uniform grid plus the instants at which the right-hand side jumps because the
*delayed* queue crosses a threshold; those are known one delay ahead, so jumps cost no accuracy.
Clipped values (queue at 0, rates at line rate) are projected after each step: an error of O(step^2)
per event. Delays that depend on the state (TIMELY) have no such mesh: O(step) at small jumps.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

INSIDE = 1e-7
"""How far inside a step (in steps) its ends are evaluated, to see the jump there from one side."""


class Past:
    """The solution so far: mesh, states, slopes at both ends of each step.

    Before the first mesh point the state is that of the first.
    """

    def __init__(self, state: list[float]):
        self.time = [0.0]
        self.state = [state]
        self.slopes: list[tuple[list[float], list[float]]] = []

    def add(self, time: float, state: list[float], first: list[float], last: list[float]) -> None:
        self.time.append(time)
        self.state.append(state)
        self.slopes.append((first, last))

    def at(self, time: float, member: int) -> float:
        """One component at a time that has been computed."""
        if time <= 0.0 or not self.slopes:
            return self.state[0][member]
        k = min(bisect_right(self.time, time), len(self.slopes)) - 1
        left = self.time[k]
        h = self.time[k + 1] - left
        x = (time - left) / h
        a, b = self.state[k][member], self.state[k + 1][member]
        first, last = self.slopes[k]
        rise = b - a
        bend = (1.0 - x) * (first[member] * h - rise) + x * (rise - last[member] * h)
        return a + x * rise + x * (1.0 - x) * bend

    def crossings(self, member: int, levels: Iterable[float]) -> list[float]:
        """Instants of the last step at which a component crosses one of the levels."""
        a, b = self.state[-2][member], self.state[-1][member]
        instants = []
        for level in levels:
            if (a > level) != (b > level):
                low, high = self.time[-2], self.time[-1]
                for _ in range(60):
                    middle = 0.5 * (low + high)
                    if (self.at(middle, member) > level) == (a > level):
                        low = middle
                    else:
                        high = middle
                instants.append(high)
        return instants


Slopes = Callable[[float, list[float], Past], list[float]]
Project = Callable[[list[float]], None]


def integrate(
    slopes: Slopes,
    state: list[float],
    span: float,
    step: float,
    project: Project,
    jumps: Callable[[Past], list[float]] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Solve a delay equation whose delays are all at least one step.

    Args:
        slopes: time derivative of the state, given the time, the state and the past.
        state: initial state; also the state at all earlier times.
        span: time to solve for.
        step: grid spacing.
        project: moves a state back inside its bounds, in place.
        jumps: later instants at which the slopes will jump because of the last step.

    Returns:
        Grid `[K + 1]` and states `[K + 1, members]`.
    """
    count = round(span / step)
    past, waiting = Past(list(state)), []
    rows = [list(state)]
    now, y = 0.0, list(state)
    for k in range(1, count + 1):
        goal = k * step
        while now < goal:
            until = goal
            while waiting and waiting[0] < goal - 1e-6 * step:
                instant = heapq.heappop(waiting)
                if instant > now + 1e-6 * step:
                    until = instant
                    break
            h = until - now
            inside = INSIDE * h
            k1 = slopes(now + inside, y, past)
            half = [v + 0.5 * h * d for v, d in zip(y, k1, strict=True)]
            k2 = slopes(now + 0.5 * h, half, past)
            half = [v + 0.5 * h * d for v, d in zip(y, k2, strict=True)]
            k3 = slopes(now + 0.5 * h, half, past)
            full = [v + h * d for v, d in zip(y, k3, strict=True)]
            k4 = slopes(until - inside, full, past)
            y = [
                v + h / 6.0 * (d1 + 2.0 * (d2 + d3) + d4)
                for v, d1, d2, d3, d4 in zip(y, k1, k2, k3, k4, strict=True)
            ]
            project(y)
            past.add(until, y, k1, k4)
            now = until
            for instant in jumps(past) if jumps else ():
                heapq.heappush(waiting, instant)
        rows.append(y)
    return step * np.arange(count + 1), np.array(rows)


@dataclass(frozen=True)
class Solution:
    """Solution on a uniform grid.

    Attributes:
        time: µs, `[K]`.
        queue: bytes, `[K]`.
        rates: rate of one flow of each group, bytes/µs, `[K, G]`.
        extra: DCQCN's alphas or TIMELY's normalised gradients, `[K, G]`.
        targets: DCQCN's target rates, bytes/µs, `[K, G]`; empty for TIMELY.
        counts: flows in each group, `[G]`.
        capacity: bytes/µs.
    """

    time: np.ndarray
    queue: np.ndarray
    rates: np.ndarray
    extra: np.ndarray
    targets: np.ndarray
    counts: np.ndarray
    capacity: float

    @property
    def alphas(self) -> np.ndarray:
        """DCQCN's alphas, `[K, G]`."""
        return self.extra

    def after(self, start: float) -> Solution:
        """The part from `start` on."""
        k = int(np.searchsorted(self.time, start - 1e-9))
        return Solution(
            self.time[k:],
            self.queue[k:],
            self.rates[k:],
            self.extra[k:],
            self.targets[k:],
            self.counts,
            self.capacity,
        )

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Mean over time (trapezoidal rule)."""
        return np.trapezoid(values, self.time, axis=0) / (self.time[-1] - self.time[0])

    @property
    def queue_mean(self) -> float:
        """Mean queue, bytes."""
        return float(self.mean(self.queue))

    @property
    def queue_sd(self) -> float:
        """Standard deviation of the queue over time, bytes."""
        return float(math.sqrt(self.mean((self.queue - self.queue_mean) ** 2)))

    @property
    def utilisation(self) -> float:
        """Bytes served (arrivals less growth of the queue) over what the link could serve."""
        arrived = float(self.mean(self.rates @ self.counts))
        grown = float(self.queue[-1] - self.queue[0]) / float(self.time[-1] - self.time[0])
        return (arrived - grown) / self.capacity


def marking(queue: float, kmin: float, kmax: float, pmax: float) -> float:
    """Marking probability per packet: a ramp up to `pmax`, then a jump to 1."""
    if queue > kmax:
        return 1.0
    return pmax * (queue - kmin) / (kmax - kmin) if queue > kmin else 0.0


def expected(p: float, packets: float, limit: float, steps: float) -> tuple[float, float]:
    """`p / ((1-p)^-packets - 1)` (`1/packets` at p = 0) and that times `(1-p)^(steps*packets)`.

    Args:
        p: marking probability below 1.
        packets: packets between two increase events.
        limit: value at p = 0.
        steps: increase events of fast recovery.
    """
    if p <= 0.0:
        return limit, limit
    x = -math.log1p(-p) * packets
    if x > 700.0:
        return 0.0, 0.0
    rate = p / math.expm1(x)
    return rate, rate * math.exp(-steps * x)


def dcqcn_forcing(p: float, rate: float, k: Any, packet: float) -> tuple[float, float, float]:
    """Effect of delayed marks and rate on one flow.

    Args:
        p: delayed marking probability.
        rate: delayed rate, packets/µs.
        k: constants.
        packet: bytes per packet.

    Returns:
        Probability of a cut in a decrease interval (`a`), rate of increase events (1/µs, `(b+d)
        R`) and of those beyond fast recovery (`(c+e) R`).
    """
    if p >= 1.0:
        return 1.0, 0.0, 0.0
    cut = -math.expm1(k.decrease_us * rate * math.log1p(-p))
    counter = k.byte_counter / packet
    b, c = (0.0, 0.0)
    if math.isfinite(counter):
        b, c = expected(p, counter, 1.0 / counter, k.recovery_steps)
    d, e = (0.0, 0.0)
    if rate > 0.0:
        d, e = expected(p, k.increase_us * rate, 1.0 / (k.increase_us * rate), k.recovery_steps)
    return cut, (b + d) * rate, (c + e) * rate


@dataclass
class DcqcnFlows:
    """Right-hand side for groups of identical flows; the state is queue, rates, targets, alphas."""

    k: Any
    capacity: float
    ecn: tuple[float, float, float]
    delay: float
    counts: Sequence[int]
    packet: float
    cached: tuple[float, list[tuple[float, float, float, float]]] = (math.nan, [])

    def forcing(self, time: float, past: Past) -> list[tuple[float, float, float, float]]:
        """Effect of feedback on each group: the limit of alpha, and `dcqcn_forcing`."""
        if self.cached[0] != time:
            delayed = time - self.delay
            p = marking(max(past.at(delayed, 0), 0.0), *self.ecn)
            forcings = []
            for i in range(len(self.counts)):
                rate = past.at(delayed, 1 + i) / self.packet
                limit = 1.0 if p >= 1 else -math.expm1(self.k.alpha_us * rate * math.log1p(-p))
                forcings.append((limit, *dcqcn_forcing(p, rate, self.k, self.packet)))
            self.cached = (time, forcings)
        return self.cached[1]

    def slopes(self, time: float, y: list[float], past: Past) -> list[float]:
        k, n = self.k, len(self.counts)
        arriving = sum(m * r for m, r in zip(self.counts, y[1 : 1 + n], strict=True))
        rates, targets, alphas = [], [], []
        for i, (goal, cut, events, beyond) in enumerate(self.forcing(time, past)):
            rate, target, alpha = y[1 + i], y[1 + n + i], y[1 + 2 * n + i]
            up = 0.5 * (target - rate) * events - rate * alpha * cut / (2 * k.decrease_us)
            rise = k.ai * beyond - (target - rate) * cut / k.decrease_us
            rates.append(0.0 if rate >= self.capacity and up > 0 else up)
            targets.append(0.0 if target >= self.capacity and rise > 0 else rise)
            alphas.append(k.g / k.alpha_us * (goal - alpha))
        idle = y[0] <= 0 and arriving < self.capacity
        return [0.0 if idle else arriving - self.capacity, *rates, *targets, *alphas]

    def project(self, y: list[float]) -> None:
        y[0] = max(y[0], 0.0)
        for i in range(1, 1 + 2 * len(self.counts)):
            y[i] = min(y[i], self.capacity)

    def jumps(self, past: Past) -> list[float]:
        return [instant + self.delay for instant in past.crossings(0, set(self.ecn[:2]))]


def solve_dcqcn(
    k: Any,
    capacity: float,
    ecn: tuple[float, float, float],
    delay: float,
    span: float,
    step: float,
    counts: Sequence[int] = (1,),
    start_rates: Sequence[float] | None = None,
    start_queue: float = 0.0,
    start_alpha: float = 1.0,
    packet: float = 1000.0,
) -> Solution:
    """Mean-field DCQCN at one queue with a constant feedback delay (CoNEXT'16, Fig. 3).

    Args:
        k: constants, with the attributes `decrease_us`, `alpha_us`, `g`, `increase_us`,
            `byte_counter` (bytes, `inf` for none), `recovery_steps` and `ai` (bytes/µs).
        capacity: of the link, and the largest rate of a flow, bytes/µs.
        ecn: `kmin` and `kmax` (bytes) and `pmax`.
        delay: of marks, and of the rate they met, µs; at least `step`.
        span: time to solve for, µs.
        step: grid spacing, µs.
        counts: flows in each group of identical flows, `[G]`.
        start_rates: initial current and target rate of each group, bytes/µs; line rate by default.
        start_queue: bytes.
        start_alpha: of all flows.
        packet: bytes per packet, what marking probabilities are per.

    Returns:
        The solution on the grid.
    """
    if not 0 < step <= delay:
        raise ValueError("step must be positive and at most the delay")
    n = len(counts)
    flows = DcqcnFlows(k, capacity, ecn, delay, counts, packet)
    first = [float(r) for r in start_rates] if start_rates is not None else [capacity] * n
    state = [float(start_queue), *first, *first, *([start_alpha] * n)]
    time, y = integrate(flows.slopes, state, span, step, flows.project, flows.jumps)
    queue, rates, targets, alphas = np.split(y, [1, 1 + n, 1 + 2 * n], axis=1)
    return Solution(time, queue[:, 0], rates, alphas, targets, np.asarray(counts, float), capacity)


@dataclass(frozen=True)
class TimelyConstants:
    """TIMELY and its patch; defaults as in CoNEXT'16, Table 2, at 10 Gb/s.

    Attributes:
        ewma: weight of a new delay difference.
        beta: multiplicative decrease (0.008 in the patch).
        t_low: no decrease below this queueing delay, µs.
        t_high: decrease whatever the gradient above it, µs.
        min_rtt: normalises the gradient, µs.
        delta: additive increase, bytes/µs.
        segment: bytes between two rate updates.
        propagation: µs.
        packet: bytes.
    """

    ewma: float = 0.875
    beta: float = 0.8
    t_low: float = 50.0
    t_high: float = 500.0
    min_rtt: float = 20.0
    delta: float = 1.25
    segment: float = 16000.0
    propagation: float = 4.0
    packet: float = 1000.0


def timely_change(gradient: float, queue: float, rate: float, capacity: float, k: Any) -> float:
    """Rate change per update of plain TIMELY, bytes/µs; `queue` is the delayed one."""
    if queue < capacity * k.t_low:
        return k.delta
    if queue > capacity * k.t_high:
        return -k.beta * (1.0 - capacity * k.t_high / queue) * rate
    return k.delta if gradient <= 0.0 else -k.beta * gradient * rate


def patched_change(gradient: float, queue: float, rate: float, capacity: float, k: Any) -> float:
    """Rate change per update of patched TIMELY, bytes/µs; `queue` is the delayed one."""
    low = capacity * k.t_low
    if low <= queue <= capacity * k.t_high:
        weight = min(max(2.0 * gradient + 0.5, 0.0), 1.0)
        return (1.0 - weight) * k.delta - weight * k.beta * rate * (queue - low) / low
    return timely_change(gradient, queue, rate, capacity, k)


def solve_timely(
    k: TimelyConstants,
    capacity: float,
    start_rates: Sequence[float],
    span: float,
    step: float,
    counts: Sequence[int] | None = None,
    start_queue: float = 0.0,
    patched: bool = False,
) -> Solution:
    """TIMELY at one queue; feedback is late by the queue it measures (CoNEXT'16, §4).

    Args:
        k: constants.
        capacity: bytes/µs.
        start_rates: initial rate of each group, bytes/µs, `[G]`.
        span: time to solve for, µs.
        step: grid spacing, µs; at most `packet / capacity + propagation`.
        counts: flows in each group, one by default.
        start_queue: bytes.
        patched: whether the patch of §4.3 is on.

    Returns:
        The solution on the grid.
    """
    if not 0 < step <= k.packet / capacity + k.propagation:
        raise ValueError("step must be positive and at most the smallest delay")
    change = patched_change if patched else timely_change
    n = len(start_rates)
    sizes = [1] * n if counts is None else list(counts)

    def slopes(time: float, y: list[float], past: Past) -> list[float]:
        delayed = time - (y[0] + k.packet) / capacity - k.propagation
        queue_seen = max(past.at(delayed, 0), 0.0)
        rates, gradients = [], []
        for i in range(n):
            rate, gradient = y[1 + i], y[1 + n + i]
            every = max(k.segment / rate, k.min_rtt)
            queue_before = max(past.at(delayed - every, 0), 0.0)
            rates.append(change(gradient, queue_seen, rate, capacity, k) / every)
            drift = (queue_seen - queue_before) / (capacity * k.min_rtt)
            gradients.append(k.ewma / every * (drift - gradient))
        arriving = sum(m * r for m, r in zip(sizes, y[1 : 1 + n], strict=True)) - capacity
        growth = 0.0 if y[0] <= 0 and arriving < 0 else arriving
        return [growth, *rates, *gradients]

    def project(y: list[float]) -> None:
        y[0] = max(y[0], 0.0)
        for i in range(1, 1 + n):
            y[i] = min(max(y[i], 1e-3 * capacity), capacity)

    state = [float(start_queue), *map(float, start_rates), *([0.0] * n)]
    time, y = integrate(slopes, state, span, step, project)
    queue, rates, gradients = np.split(y, [1, 1 + n], axis=1)
    no_targets = np.empty((len(time), 0))
    return Solution(
        time, queue[:, 0], rates, gradients, no_targets, np.asarray(sizes, float), capacity
    )
