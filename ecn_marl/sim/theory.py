"""Closed forms of congestion controls at one bottleneck, to check simulations by (float64).

Every function treats `n` identical, long-lived flows that share one link. Units are µs, bytes and
bytes/µs, unless a docstring says packets.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.transports.dcqcn import DcqcnParams

TOP = 1.0 - 2.0**-50
"""Largest marking probability that is distinguished from 1."""


class FixedPoint(NamedTuple):
    """Fixed point of mean-field DCQCN.

    Attributes:
        mark: marking probability per packet.
        queue: backlog, bytes.
        alpha: of every flow.
        rate: of every flow, bytes/µs.
        target: target rate of every flow, bytes/µs.
    """

    mark: float
    queue: float
    alpha: float
    rate: float
    target: float


class Sawtooth(NamedTuple):
    """One period of synchronised DCTCP flows.

    Attributes:
        q_max: largest queue, bytes.
        q_min: smallest queue, bytes; 0 if the link runs idle.
        amplitude: sum of the cuts of all windows, bytes (`q_max - q_min` unless idle).
        period: time between cuts, µs.
        alpha: fraction of marked packets, the same for all flows.
        rounds: round-trip times between cuts.
    """

    q_max: float
    q_min: float
    amplitude: float
    period: float
    alpha: float
    rounds: float


class QueueAndRate(NamedTuple):
    """A steady state: queue in bytes, rate of every flow in bytes/µs."""

    queue: float
    rate: float


class HpccFixedPoint(NamedTuple):
    """Steady state of HPCC.

    Attributes:
        utilisation: normalised bytes in flight `U`, above 1 with a queue.
        window: of every flow, bytes.
        queue: bytes.
    """

    utilisation: float
    window: float
    queue: float


def _positive(**values: float) -> None:
    for field, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise bad_value(field, value, "a finite number > 0")


def _count(n: int) -> None:
    if n < 1:
        raise bad_value("n", n, "at least 1 flow")


def _log_expm1(x: float) -> float:
    """`log(e^x - 1)` for x > 0 without overflow or cancellation."""
    return x + math.log(-math.expm1(-x))


class _Dcqcn(NamedTuple):
    """Constants of the mean-field model as Python floats: µs, packets, packets/µs."""

    tau: float
    tau_alpha: float
    timer: float
    counter: float
    recovery: float
    ai: float

    @classmethod
    def of(cls, params: DcqcnParams, packet: float) -> _Dcqcn:
        """Check the constants and convert them."""
        floats = {f: float(getattr(params, f)) for f in params.__dataclass_fields__}
        _positive(**{f: floats[f] for f in ("decrease_us", "alpha_us", "increase_us", "ai")})
        if not floats["byte_counter"] > 0:
            raise bad_value("byte_counter", floats["byte_counter"], "bytes > 0, or inf for none")
        if not 0 <= floats["recovery_steps"] < math.inf:
            raise bad_value("recovery_steps", floats["recovery_steps"], "a finite number >= 0")
        return cls(
            floats["decrease_us"],
            floats["alpha_us"],
            floats["increase_us"],
            floats["byte_counter"] / packet,
            floats["recovery_steps"],
            floats["ai"] / packet,
        )

    def terms(self, log_p: float, rate: float) -> tuple[float, float, float, float]:
        """Logarithms of `a`, `alpha`, `b + d` and `c + e`; rate in packets/µs."""
        # Of two equal forms of -log(1 - p), the one in which nothing cancels at this p.
        small = log_p < -math.log(2.0)
        loss = -math.log1p(-math.exp(log_p)) if small else -math.log(-math.expm1(log_p))
        log_a = math.log(-math.expm1(-self.tau * rate * loss))
        log_alpha = math.log(-math.expm1(-self.tau_alpha * rate * loss))
        timer, counter = self.timer * rate * loss, self.counter * loss
        log_d = log_p - _log_expm1(timer)
        log_e = log_d - self.recovery * timer
        if math.isinf(counter):
            return log_a, log_alpha, log_d, log_e
        log_b = log_p - _log_expm1(counter)
        log_c = log_b - self.recovery * counter
        up, beyond = np.logaddexp(log_b, log_d), np.logaddexp(log_c, log_e)
        return log_a, log_alpha, float(up), float(beyond)

    def log_mark(self, rate: float) -> float:
        """Logarithm of the marking probability that holds the rate; 0 above `TOP`.

        With `R` the rate in packets/µs, `L = -log(1 - p)` and the model's

            a = 1 - e^(-tau R L)        alpha = 1 - e^(-tau' R L)
            b = p / (e^(B L) - 1)       c = b e^(-F B L)
            d = p / (e^(T R L) - 1)     e = d e^(-F T R L)

        it solves `a² alpha = tau² R_AI R (b + d) (c + e)`. From p = 0 to 1 the left side rises
        from 0 and the right side falls to 0: there is one root. In logarithms nothing cancels or
        overflows.
        """
        right = math.log(self.tau * self.tau * self.ai * rate)

        def excess(log_p: float) -> float:
            log_a, log_alpha, up, beyond = self.terms(log_p, rate)
            return 2.0 * log_a + log_alpha - up - beyond - right

        high = math.log(TOP)
        if excess(high) <= 0.0:
            return 0.0
        return float(brentq(excess, math.log(1e-100), high, xtol=1e-14, rtol=1e-14))


def dcqcn_fixed_point(
    capacity: float,
    n: int,
    kmin: float,
    kmax: float,
    pmax: float,
    params: DcqcnParams,
    packet: float = 1000.0,
) -> FixedPoint:
    """Fixed point of mean-field DCQCN (Zhu et al., CoNEXT'16, §3.1, exact equations).

    The marking probability is the one that holds each flow at `capacity / n`; the queue is where
    the marking ramp has that probability. Whether the fixed point is stable is another matter: it
    depends on the feedback delay.

    Args:
        capacity: of the link, and line rate of the flows, bytes/µs.
        n: flows; at least 2, as one flow at line rate never builds a queue.
        kmin: queue where marking starts, bytes.
        kmax: end of the ramp, bytes.
        pmax: marking probability at `kmax`.
        params: constants; `hai`, `min_rate` and the rate machine's options are not in the model.
        packet: bytes per packet; marking probabilities are per packet, the paper's of 1000 B.

    Raises:
        ValueError: a value out of range, or no fixed point: the marking probability would exceed
            `pmax`, or the target rate the line rate.
    """
    _positive(capacity=capacity, packet=packet, kmax=kmax)
    if n < 2:
        raise bad_value("n", n, "at least 2 flows: one flow at line rate builds no queue")
    if not 0 <= kmin < kmax:
        raise bad_value("kmin", kmin, f"0 <= kmin < kmax = {kmax:g}: a step has no fixed point")
    if not 0 < pmax <= 1:
        raise bad_value("pmax", pmax, "a probability in (0, 1]")
    model, rate = _Dcqcn.of(params, packet), capacity / packet / n
    log_p = model.log_mark(rate)
    mark = math.exp(log_p)
    if mark > pmax or log_p == 0.0:
        raise InvalidInput(
            f"no fixed point on the marking ramp: {n} flows need a marking probability of "
            f"{mark:.6g}, pmax = {pmax:g}"
        )
    log_a, log_alpha, up, _ = model.terms(log_p, rate)
    target = capacity / n + packet * math.exp(log_alpha + log_a - up) / model.tau
    if target > capacity:
        raise InvalidInput(
            f"no fixed point: {n} flows need a target rate of {target:.6g} bytes/µs, above the "
            f"line rate {capacity:g}"
        )
    queue = kmin + mark / pmax * (kmax - kmin)
    return FixedPoint(mark, queue, math.exp(log_alpha), capacity / n, target)


def dctcp_sawtooth(
    capacity: float, rtt: float, k: float, n: int, mss: float, at_dequeue: bool = False
) -> Sawtooth:
    """Queue of synchronised DCTCP flows with step marking (Alizadeh et al., SIGCOMM'10, §3.3).

    In packets of `mss` bytes, with `BDP = C rtt`: the queue is `n W - BDP`, so it reaches `k` at
    the window `W* = (BDP + k) / n`. The marks come back one round later, when every window has
    grown by one packet; hence

        q_max = k + n.

    A flow sends `S(w1, w2) = (w2² - w1²) / 2` packets while its window grows by one per round from
    `w1` to `w2`. Those of the last round, `S(W*, W* + 1)`, are marked, out of a period's
    `S((W* + 1)(1 - alpha/2), W* + 1)`. With `alpha` the fraction of marked packets,

        alpha² (1 - alpha/4) = (2 W* + 1) / (W* + 1)²     (about 2 / W*),
        rounds = (W* + 1) alpha / 2                       (about sqrt((BDP + k) / (2 n))),
        amplitude = n rounds                              (about sqrt(n (BDP + k) / 2)),
        q_min = q_max - amplitude.

    The paper states the approximations and counts the period in RTTs; here a round takes the base
    RTT plus the mean wait in the queue. The flows' gain is taken as small: with g = 1/16 alpha has
    decayed by up to a fifth when the cut comes, and the cut is smaller by as much. For `W* < 2` or
    so windows are cut by less than a packet, and the formulas are poor.

    Marks of switches that mark packets as they leave the queue return sooner: after the base RTT,
    a share `s = rtt / (rtt + wait)` of a round. Hence `q_max = k + n s`, and with one
    round without growth after a cut, that of the cut itself, a flow gets marks for `s` rounds of
    the `alpha W / 2 + 1` of a period:

        alpha (alpha W / 2 + 1) = s,    W = (BDP + q_max) / n,    amplitude = n alpha W / 2.

    Args:
        capacity: bytes/µs.
        rtt: base round-trip time, without queueing, µs.
        k: packets are marked above this queue, bytes.
        n: flows.
        mss: bytes per packet.
        at_dequeue: whether packets are marked as they leave the queue, not as they enter it.

    Returns:
        The sawtooth.
    """
    _positive(capacity=capacity, rtt=rtt, mss=mss)
    _count(n)
    if not k >= 0:
        raise bad_value("k", k, "a number of bytes >= 0")
    if at_dequeue:
        return _dctcp_at_dequeue(capacity, rtt, k, n, mss)
    bdp, threshold = capacity * rtt / mss, k / mss
    knee = (bdp + threshold) / n
    marked = (2.0 * knee + 1.0) / (knee + 1.0) ** 2
    # At alpha = 1 a whole period is marked; below W* = 1 or so there is no other solution.
    alpha = 1.0
    if marked < 0.75:
        alpha = brentq(lambda x: x * x * (1.0 - x / 4.0) - marked, 0.0, 1.0, xtol=1e-14)
    rounds = (knee + 1.0) * alpha / 2.0
    amplitude, q_max = n * rounds, threshold + n
    q_min = max(q_max - amplitude, 0.0)
    wait = 0.5 * (q_max + q_min) * mss / capacity
    return Sawtooth(
        q_max=q_max * mss,
        q_min=q_min * mss,
        amplitude=amplitude * mss,
        period=rounds * (rtt + wait),
        alpha=alpha,
        rounds=rounds,
    )


def _dctcp_at_dequeue(capacity: float, rtt: float, k: float, n: int, mss: float) -> Sawtooth:
    """The second half of `dctcp_sawtooth`; the mean wait is found by iteration."""
    q_max = q_min = k / mss
    for _ in range(50):
        wait = 0.5 * (q_max + q_min) * mss / capacity
        share = rtt / (rtt + wait)
        q_max = k / mss + n * share
        window = (capacity * rtt / mss + q_max) / n
        alpha = min((math.sqrt(1.0 + 2.0 * window * share) - 1.0) / window, 1.0)
        amplitude = n * alpha * window / 2.0
        q_min = max(q_max - amplitude, 0.0)
    rounds = alpha * window / 2.0 + 1.0
    period = rounds * (rtt + wait)
    return Sawtooth(q_max * mss, q_min * mss, amplitude * mss, period, alpha, rounds)


def timely_patched_fixed_point(
    capacity: float, n: int, delta: float, beta: float, t_low: float
) -> QueueAndRate:
    """Fixed point of patched TIMELY (Zhu et al., CoNEXT'16, §4.3).

    At rest the gradient is 0, the weight 1/2, and `delta = beta R (q - q') / q'` with `R = C / n`
    and `q' = C t_low`: `q = q' + n delta q' / (beta C)`. It must lie below `C t_high`, above which
    the protocol cuts rates whatever the gradient. Plain TIMELY has no fixed point.

    Args:
        capacity: bytes/µs.
        n: flows.
        delta: additive increase per update, bytes/µs.
        beta: multiplicative decrease per update.
        t_low: queueing delay below which no rate is cut, µs.
    """
    _positive(capacity=capacity, delta=delta, beta=beta, t_low=t_low)
    _count(n)
    floor = capacity * t_low
    return QueueAndRate(floor + n * delta * floor / (beta * capacity), capacity / n)


def hpcc_fixed_point(
    capacity: float, n: int, rtt: float, w_ai: float, eta: float = 0.95
) -> HpccFixedPoint:
    """Steady state of HPCC (Li et al., SIGCOMM'19, §3.3) at one bottleneck.

    `W = W eta / U + w_ai` is at rest where `w_ai / W = 1 - eta / U`. At one link `U` is bytes in
    flight over `BDP = C rtt`, that is `n W / BDP`, with a queue (in flight less BDP) or without. So
    `U = eta + n w_ai / BDP`. As that is at least eta, the stages of additive increase play no part.

    Args:
        capacity: bytes/µs.
        n: flows.
        rtt: base round-trip time, µs.
        w_ai: additive increase of a window per round, bytes.
        eta: target utilisation.
    """
    _positive(capacity=capacity, rtt=rtt, eta=eta)
    _count(n)
    if not w_ai >= 0:
        raise bad_value("w_ai", w_ai, "a number of bytes >= 0")
    bdp = capacity * rtt
    used = eta + n * w_ai / bdp
    return HpccFixedPoint(used, used * bdp / n, max(used - 1.0, 0.0) * bdp)
