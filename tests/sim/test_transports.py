"""Senders other than DCQCN: each against its published rules written anew, presets, errors.

The twins are plain Python on one flow, with absolute times and windows where the package counts
down and paces; both run in float64, so that no comparison of theirs falls apart by rounding.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import Timely, Transport, parse_transport, transports

MBPS = 0.125
"""Bytes per µs in one Mb/s."""

FLOWS, STEPS, LEVELS = 4, 500, 3
LINES = np.array([3125.0, 12500.0, 1250.0, 3125.0])
"""NIC rates of the flows, bytes/µs: 25, 100, 10 and 25 Gb/s."""

BASE_RTT = 12.0
"""Longest round trip of the network without queues, µs."""

# --- what the senders hear ------------------------------------------------------------------------


def random_signals(rng, dt, calm):
    """Feedback of a few hundred substeps: stretches of short and long delays, few or many marks.

    Delays are multiples of 1/8 µs, so that sums of them are exact; `calm` is the share of substeps
    without marks and losses.
    """
    shape = (STEPS, FLOWS)
    base = rng.integers(32, 12 * 8, FLOWS) / 8
    level = np.repeat(rng.choice([0.0, 2.0, 30.0, 90.0, 800.0], (STEPS // 50, FLOWS)), 50, axis=0)
    path = base + np.round(level * rng.uniform(0.5, 1.5, shape) * 8) / 8
    returned = np.zeros(shape, bool)
    rtt, last = np.zeros(shape), np.zeros(FLOWS)
    due = rng.integers(1, 10, FLOWS) * dt
    for t in range(STEPS):
        returned[t] = (t + 1) * dt >= due
        last = np.where(returned[t], path[t], last)
        due = np.where(returned[t], due + np.minimum(path[t], 40 * dt), due)
        rtt[t] = last
    acked = rng.poisson(rng.choice([0.2, 1.0, 5.0], FLOWS), shape).astype(float)
    upset = rng.random(shape) > calm
    marked = np.where(upset, np.round(rng.random(shape) * acked * 256) / 256, 0.0)
    lost = np.where(upset & (rng.random(shape) < 0.3), rng.integers(1, 5000, shape), 0.0)
    # Telemetry: stamps move on, sometimes by more than a substep; counters wrap around.
    stamp = np.cumsum(rng.choice([1, 1, 1, 2, 4], shape), axis=0)
    rate = rng.choice([1250.0, 3125.0, 12500.0], (LEVELS, FLOWS))
    rate[-1, :2] = np.inf
    load = rng.uniform(0.0, 1.3, (STEPS, LEVELS, FLOWS))
    bytes_ = (
        np.where(np.isinf(rate), 0.0, rate) * load * dt * np.diff(stamp, axis=0, prepend=0)[:, None]
    )
    start = rng.integers(2**32 - 100_000, 2**32, (LEVELS, FLOWS))
    sent = (start + np.cumsum(bytes_.astype(np.int64), axis=0)).astype(np.uint64) % 2**32
    queue = rng.choice([0.0, 500.0, 3e4, 2e5], (STEPS, LEVELS, FLOWS)) * rng.random(load.shape)
    return {
        "sent": np.zeros(shape),
        "acked": acked,
        "marked": marked,
        "lost": lost,
        "returned": returned,
        "rtt": rtt,
        "base_rtt": np.broadcast_to(base, shape),
        "n_hops": np.broadcast_to(np.isfinite(rate).sum(0) * 1.0, shape),
        "hop_queue": np.where(np.isinf(rate), 0.0, queue),
        "hop_sent": sent.astype(np.uint32),
        "hop_rate": np.broadcast_to(rate, load.shape),
        "hop_step": stamp.astype(np.int32),
    }


# --- the twins ------------------------------------------------------------------------------------


class Twin:
    """One flow. `step` takes the time at the end of a substep and what was heard in it (a dict)."""

    rate = window = math.nan

    def __init__(self, k, line):
        self.k, self.line, self.bdp = k, line, line * BASE_RTT
        self.blocked_until = 0.0
        self.begin()

    def limits(self, window, h):
        """RFC 7661: a window may grow if the NIC could use more than it in a round trip."""
        return window < self.line * max(h["rtt"], h["base_rtt"])

    def seen(self):
        return [self.rate, self.window]


class DctcpTwin(Twin):
    """SIGCOMM'10: alpha per round trip, one cut per round trip; slow start until the first mark."""

    paced = False

    def begin(self):
        self.window = self.k.initial or self.bdp
        if self.paced:
            self.window = min(self.window, self.bdp)
        self.alpha, self.marks, self.acks, self.rounds = self.k.alpha_init, 0.0, 0.0, 0
        self.slow_start = not self.paced
        self.rate = self.line * self.window / self.bdp if self.paced else self.line

    def step(self, now, h):
        self.acks += h["acked"]
        self.marks += h["marked"]
        quiet = now >= self.blocked_until
        if h["returned"]:
            self.rounds += 1
            if self.rounds > 1:
                fraction = self.marks / self.acks if self.acks else 0.0
                self.alpha = (1 - self.k.g) * self.alpha + self.k.g * fraction
            self.marks = self.acks = 0.0
        if h["marked"] > 0 and quiet:
            self.window *= 1 - self.alpha / 2
            self.blocked_until = now + max(h["rtt"], h["base_rtt"])
            self.slow_start = False
        elif self.slow_start:
            if self.limits(self.window / 2, h):
                self.window += 1000 * h["acked"]
        elif h["returned"] and self.rounds > 1 and quiet:
            if self.paced:
                self.window = min(
                    self.window + self.k.ai_rate * BASE_RTT + self.k.ai_bytes, self.bdp
                )
            elif self.limits(self.window, h):
                self.window += self.k.ai_bytes + self.k.ai_rate * BASE_RTT
        self.window = max(self.window, self.k.least, self.k.min_rate * BASE_RTT)
        if self.paced:
            self.rate = self.line * self.window / self.bdp

    def seen(self):
        return [self.rate, self.window, self.alpha, self.slow_start]


class PacedDctcpTwin(DctcpTwin):
    paced = True


class TimelyTwin(Twin):
    """SIGCOMM'15, Algorithm 1, with hyper increase."""

    def begin(self):
        self.rate = self.line * self.k.share
        self.previous, self.difference, self.run, self.last = None, 0.0, 0, 0.0

    def step(self, now, h):
        k = self.k
        wait = max(k.segment / self.rate, k.min_rtt) if k.segment else 0.0
        if not h["returned"] or now - self.last < wait:
            return
        self.last, rtt, previous = now, h["rtt"], self.previous
        self.previous = rtt
        if previous is None:
            return
        self.difference = (1 - k.ewma) * self.difference + k.ewma * (rtt - previous)
        up, rate = self.decide(rtt, self.difference / k.min_rtt)
        self.run = self.run + 1 if up else 0
        self.rate = min(max(rate, k.min_rate), self.line)

    def increase(self):
        return self.k.ai if self.run < self.k.patience else self.k.hai

    def decide(self, rtt, gradient):
        k = self.k
        if rtt < k.t_low:
            return True, self.rate + self.increase()
        if rtt > k.t_high:
            return False, self.rate * (1 - k.beta * (1 - k.t_high / rtt))
        if gradient <= 0:
            return True, self.rate + self.increase()
        return False, self.rate * max(1 - k.beta * gradient, 0)

    def seen(self):
        return [self.rate, math.nan, self.difference, self.run]


class PatchedTimelyTwin(TimelyTwin):
    """CoNEXT'16, Algorithm 2: between the thresholds, a mixture by the gradient."""

    def decide(self, rtt, gradient):
        k = self.k
        if rtt < k.t_low or rtt > k.t_high:
            return super().decide(rtt, gradient)
        weight = 0.0 if gradient <= -0.25 else 1.0 if gradient >= 0.25 else 2 * gradient + 0.5
        error = (rtt - k.t_low) / k.t_low
        rate = self.increase() * (1 - weight) + self.rate * (1 - k.beta * weight * error)
        return rate > self.rate, rate


class HpccTwin(Twin):
    """SIGCOMM'19, Algorithm 1, in windows; the first round trip only listens for telemetry."""

    def begin(self):
        self.window = self.reference = self.bdp
        self.rate = self.line
        self.load, self.stage, self.last, self.rounds = 1.0, 0, None, 0

    def step(self, now, h):
        self.rounds += bool(h["returned"])
        new_round = h["returned"] and self.rounds > 1 and self.last is not None
        k, last = self.k, self.last
        if h["acked"] > 0:
            hops = list(zip(h["hop_queue"], h["hop_sent"], h["hop_rate"], strict=True))
            self.last = h["stamp"], hops
        if h["acked"] > 0 and last is not None:
            span = h["stamp"] - last[0]
            use = 0.0
            for (queue, sent, rate), (queue0, sent0, _) in zip(hops, last[1], strict=True):
                transmitted = (int(sent) - int(sent0)) % 2**32 / span
                use = max(use, min(queue, queue0) / (rate * BASE_RTT) + transmitted / rate)
            part = min(span, BASE_RTT) / BASE_RTT
            self.load = (1 - part) * self.load + part * use
        multiply = self.load >= k.eta or self.stage >= k.max_stage
        if h["acked"] > 0 and last is not None:
            window = self.reference / (self.load / k.eta) if multiply else self.reference
            low = min(k.min_rate, self.line) * BASE_RTT
            self.window = min(max(window + k.ai * BASE_RTT, low), self.bdp)
        if new_round:
            self.reference = self.window
            self.stage = 0 if multiply else self.stage + 1
        self.rate = self.window / BASE_RTT

    def seen(self):
        return [self.rate, self.window, self.load, self.stage]


class SwiftTwin(Twin):
    """SIGCOMM'20, Algorithm 1 (without the fast-recovery and pacing-timer parts)."""

    def begin(self):
        self.cwnd, self.rtt = self.bdp / 1000, BASE_RTT
        self.show()

    def show(self):
        self.window = 1000 * max(self.cwnd, 1.0)
        self.rate = min(1000 * self.cwnd / self.rtt, self.line) if self.cwnd < 1 else self.line

    def target(self, hops):
        k = self.k
        alpha = k.fs_range / (1 / math.sqrt(k.fs_min) - 1 / math.sqrt(k.fs_max))
        scaling = alpha / math.sqrt(self.cwnd) - alpha / math.sqrt(k.fs_max)
        return k.base + hops * k.per_hop + min(max(scaling, 0.0), k.fs_range)

    def step(self, now, h):
        k = self.k
        if h["rtt"] <= 0:
            return
        self.rtt = delay = h["rtt"]
        target = self.target(h["n_hops"])
        if delay < target:
            if self.limits(1000 * self.cwnd, h):
                self.cwnd += k.ai / self.cwnd * h["acked"] if self.cwnd >= 1 else k.ai * h["acked"]
        elif h["acked"] > 0 and now >= self.blocked_until:
            self.cwnd *= max(1 - k.beta * (delay - target) / delay, 1 - k.max_cut)
            self.blocked_until = now + delay
        self.cwnd = max(self.cwnd, k.least)
        self.show()


class RenoTwin(Twin):
    """RFC 5681 without timeouts: losses are noticed once per round trip."""

    def begin(self):
        self.window, self.rate, self.slow_start = self.k.initial, self.line, True

    def step(self, now, h):
        quiet = now >= self.blocked_until
        if h["lost"] > 0 and quiet:
            self.window = max(self.window * self.k.keep, 2000)
            self.blocked_until = now + max(h["rtt"], h["base_rtt"])
            self.slow_start = False
        elif self.slow_start:
            if self.limits(self.window / 2, h):
                self.window += 1000 * h["acked"]
        elif h["returned"] and quiet and self.limits(self.window, h):
            self.window += self.k.ai_bytes

    def seen(self):
        return [self.rate, self.window, self.slow_start]


class AgentTwin(Twin):
    """The rate is multiplied when a round trip ends."""

    factor = 0.9

    def begin(self):
        self.rate, self.inflation, self.rounds = self.line * self.k.share, 1.0, 0

    def step(self, now, h):
        if h["returned"]:
            self.rate = min(max(self.rate * self.factor, self.k.min_rate), self.line)
            self.inflation, self.rounds = h["rtt"] / h["base_rtt"], self.rounds + 1

    def seen(self):
        return [self.rate, math.nan, self.inflation, self.rounds]


TWINS = {
    "dctcp:sigcomm10": (DctcpTwin, ("alpha", "slow_start")),
    "dctcp:hpcc": (PacedDctcpTwin, ("alpha", "slow_start")),
    "timely:hpcc": (TimelyTwin, ("slope", "raises")),
    "timely:conext16": (TimelyTwin, ("slope", "raises")),
    "timely:patched": (PatchedTimelyTwin, ("slope", "raises")),
    "hpcc:hpcc": (HpccTwin, ("load", "stage")),
    "hpcc:sigcomm19": (HpccTwin, ("load", "stage")),
    "swift:htsim": (SwiftTwin, ()),
    "reno:rfc5681": (RenoTwin, ("slow_start",)),
    "rate-agent:line-rate": (AgentTwin, ("inflation", "rounds")),
}
"""Short form: the twin, and what else of the state is compared."""


@partial(jax.jit, static_argnums=(0, 1, 2))
def machine(transport, dt, leaves, params, heard, line):
    """Trajectories of rate, window (NaN for none) and other leaves of the state, `[T, F]` each."""
    state = transport.init(FLOWS, line.dtype, LEVELS)
    state = transport.start(state, params, jnp.ones(FLOWS, bool), line, BASE_RTT)
    if transport.kind == "rate-agent":
        state = transport.set_factor(state, jnp.full_like(line, AgentTwin.factor))

    def step(state, heard):
        state = transport.update(state, params, heard, dt)
        return state, look(transport, state, leaves)

    return jax.lax.scan(step, state, heard)[1]


def look(transport, state, leaves=()):
    window = transport.window(state)
    rate = transport.rate(state)
    window = jnp.full_like(rate, jnp.nan) if window is None else window
    return [rate, window, *(getattr(state, leaf) * 1.0 for leaf in leaves)]


def check(text, dt, seed, calm, **overrides):
    """Compare a machine with its twin, flow by flow; returns what the twins went through."""
    twin, leaves = TWINS[text]
    transport = parse_transport(text)
    options = "".join(f",{k}={v!r}" for k, v in overrides.items())
    params = parse_transport(text + options).default_params()
    signals = random_signals(np.random.default_rng(seed), dt, calm)
    with jax.enable_x64(True):
        heard = Feedback(**{k: jnp.asarray(v) for k, v in signals.items()})
        real = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
        got = [
            np.asarray(x) for x in machine(transport, dt, leaves, real, heard, jnp.asarray(LINES))
        ]
    assert got[0].dtype == np.float64
    want = np.zeros((len(got), STEPS, FLOWS))
    for flow in range(FLOWS):
        sender = twin(params, float(LINES[flow]))
        for t in range(STEPS):
            h = {k: v[t, ..., flow] for k, v in signals.items()}
            h["stamp"] = h["hop_step"] * dt
            sender.step((t + 1) * dt, h)
            want[:, t, flow] = sender.seen()
    for name, ours, theirs in zip(("rate", "window", *leaves), got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9, err_msg=name)
    return want


@pytest.mark.parametrize("text", TWINS)
@given(
    dt=st.sampled_from([0.5, 1.0, 5.0]),
    seed=st.integers(0, 2**32 - 1),
    calm=st.sampled_from([0.3, 0.9, 0.995]),
)
@settings(max_examples=8)
def test_against_a_twin(text, dt, seed, calm):
    check(text, dt, seed, calm)


CONSTANTS = {
    "dctcp": {
        "g": (0.01, 1.0),
        "ai_bytes": (0.0, 5e3),
        "ai_rate": (0.0, 300.0),
        "initial": (0.0, 3e4),
        "least": (1.0, 4e3),
        "alpha_init": (0.0, 1.0),
        "min_rate": (0.0, 100.0),
    },
    "timely": {
        "ewma": (0.05, 1.0),
        "beta": (0.005, 1.0),
        "t_low": (5.0, 50.0),
        "t_high": (60.0, 500.0),
        "min_rtt": (3.0, 40.0),
        "ai": (0.5, 50.0),
        "hai": (1.0, 200.0),
        "patience": (0, 7),
        "segment": (0.0, 6e4),
        "min_rate": (0.1, 500.0),
        "share": (0.05, 1.0),
    },
    "hpcc": {
        "eta": (0.5, 1.0),
        "ai": (0.0, 50.0),
        "max_stage": (0, 7),
        "min_rate": (0.1, 2000.0),
    },
    "swift": {
        "base": (5.0, 100.0),
        "per_hop": (0.0, 10.0),
        "fs_range": (0.0, 300.0),
        "fs_min": (0.05, 1.0),
        "fs_max": (2.0, 200.0),
        "ai": (0.1, 4.0),
        "beta": (0.1, 1.5),
        "max_cut": (0.1, 1.0),
        "least": (0.005, 0.5),
    },
    "reno": {"initial": (1e3, 3e4), "ai_bytes": (100.0, 5e3), "keep": (0.1, 0.95)},
    "rate-agent": {"min_rate": (1.0, 400.0), "share": (0.05, 1.0)},
}
"""Ranges of all constants, in the senders' units."""


@pytest.mark.parametrize(
    "text",
    [text for text in TWINS if text not in ("timely:conext16", "hpcc:hpcc")],
)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6)
def test_against_a_twin_with_any_constants(text, data, seed):
    ranges = CONSTANTS[text.partition(":")[0]]
    values = {}
    for name, (low, high) in ranges.items():
        steps = high - low if isinstance(low, int) else 200
        values[name] = low + (high - low) * data.draw(st.integers(0, steps), label=name) / steps
    check(text, 1.0, seed, 0.9, **values)


def test_every_sender_has_a_twin():
    dcqcn = {text for text in transports() if text.startswith("dcqcn:")}
    assert set(transports()) - dcqcn == set(TWINS)


def test_the_random_signals_try_all_rules():
    """Windows at both ends, all stages, all branches of TIMELY."""
    window, slow = check("dctcp:sigcomm10", 1.0, 0, 0.9)[[1, 3]]
    assert slow[0].all()
    assert not slow[-1].any()
    assert (np.diff(window, axis=0) == 1000).any(), "additive increase"
    assert window.min() < 2000
    assert check("dctcp:sigcomm10", 1.0, 0, 0.99)[1].max() > 500e3, "a long slow start"
    rate, slope, run = check("timely:hpcc", 1.0, 0, 0.9)[[0, 2, 3]]
    assert (rate == 12.5).any()
    assert (rate[100:] == LINES).any()
    assert run.max() > 10
    assert slope.min() < -500 < 500 < slope.max()
    rate, load, stage = check("hpcc:sigcomm19", 1.0, 0, 0.9)[[0, 2, 3]]
    assert load.min() < 0.5 < 3 < load.max()
    assert stage.max() == 5
    assert len(np.unique(rate)) > 500
    rate, window = check("swift:htsim", 5.0, 0, 0.9)
    assert (window == 1000).any()
    assert (rate < LINES).any()
    assert window.max() > 100e3


# --- rules by hand --------------------------------------------------------------------------------


def timely_after(rtts, line=3125.0, **constants):
    """Rate after round trips of these lengths, the first of which only sets the reference."""
    transport = Timely.of("hpcc", **constants)
    params, one = transport.default_params(), jnp.ones(1)
    state = transport.start(transport.init(1), params, one > 0, one * line, BASE_RTT)
    for rtt in rtts:
        heard = Feedback(sent=one, rtt=rtt * one, returned=one > 0, base_rtt=one)
        state = transport.update(state, params, heard, 1.0)
    return float(state.rate[0])


def test_timely_by_hand():
    """SIGCOMM'15, Algorithm 1, on numbers."""
    assert timely_after([100.0]) == 3125, "one RTT has no gradient"
    # The gradient is 0.875 * 8 / 20.
    assert timely_after([100, 108]) == pytest.approx(3125 * (1 - 0.8 * 0.35))
    assert timely_after([600, 1000]) == pytest.approx(3125 * (1 - 0.8 * 0.5)), "above t_high"
    start = {"share": 0.5}
    assert timely_after([60, 60], **start) == pytest.approx(1562.5 + 25 * MBPS)
    assert timely_after([10, 45], **start) == pytest.approx(1562.5 + 25 * MBPS), "below t_low"
    rises = 1562.5 + 5 * 25 * MBPS + 2 * 125 * MBPS
    assert timely_after([60] + [60] * 7, **start) == pytest.approx(rises), "five, then hyper"


# --- slots ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", transports())
def test_slots_start_afresh(text):
    """A new flow in a used slot behaves as in an unused one; its neighbours go on."""
    transport = parse_transport(text)
    params = transport.default_params()
    signals = random_signals(np.random.default_rng(0), 1.0, 0.9)
    signals = {k: v if v.dtype != float else v.astype(np.float32) for k, v in signals.items()}
    cnp = jnp.asarray(signals["marked"] > 0)
    heard = Feedback(**{k: jnp.asarray(v) for k, v in signals.items()}, cnp=cnp)
    lines = jnp.asarray(LINES, jnp.float32)

    @jax.jit
    def run(state, heard):
        def step(state, heard):
            state = transport.update(state, params, heard, 1.0)
            return state, look(transport, state)

        return jax.lax.scan(step, state, heard)

    def start(state, new, line):
        return transport.start(state, params, jnp.asarray(new), line, BASE_RTT)

    first, then = (jax.tree.map(lambda x, s=s: x[s], heard) for s in (np.s_[:250], np.s_[250:]))
    used, before = run(start(transport.init(FLOWS, levels=LEVELS), [True] * 4, lines), first)
    changes = (np.diff(np.asarray(before)[:, :, 0], axis=1) != 0).sum(1).max()
    assert changes >= 3 or text == "rate-agent:line-rate"
    new = [True, False, False, False]
    again = start(used, new, lines / 2)
    for was, now in zip(jax.tree.leaves(used), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.delete(was, 0, -1), np.delete(now, 0, -1))
    unused = start(transport.init(FLOWS, levels=LEVELS), new, lines / 2)
    reused, fresh, on = (np.asarray(run(s, then)[1]) for s in (again, unused, used))
    np.testing.assert_array_equal(reused[..., 0], fresh[..., 0])
    np.testing.assert_array_equal(np.delete(reused, 0, -1), np.delete(on, 0, -1))


# --- presets and options --------------------------------------------------------------------------

PUBLISHED = {
    # Alizadeh et al., SIGCOMM'10, §3.2, with the first window of RFC 6928.
    "dctcp:sigcomm10": {"g": 1 / 16, "ai_bytes": 1000, "ai_rate": 0, "initial": 10_000},
    # The HPCC simulator's senders at 25 Gb/s; rates in Mb/s.
    "dctcp:hpcc": {"g": 1 / 16, "ai_rate": 615 * MBPS, "initial": 0, "min_rate": 100 * MBPS},
    "timely:hpcc": {
        "ewma": 0.875,
        "beta": 0.8,
        "t_low": 50,
        "t_high": 500,
        "min_rtt": 20,
        "ai": 25 * MBPS,
        "hai": 125 * MBPS,
        "patience": 5,
        "segment": 0,
        "min_rate": 100 * MBPS,
        "share": 1,
    },
    "hpcc:hpcc": {"eta": 0.95, "ai": 10 * MBPS, "max_stage": 0, "min_rate": 100 * MBPS},
    # Li et al., SIGCOMM'19, §5.1.
    "hpcc:sigcomm19": {"eta": 0.95, "max_stage": 5},
    # Zhu et al., CoNEXT'16, Table 2 and §4.3.
    "timely:conext16": {"beta": 0.8, "t_low": 50, "t_high": 500, "ai": 10 * MBPS, "segment": 16e3},
    "timely:patched": {"beta": 0.008, "t_low": 50, "t_high": 500, "ai": 10 * MBPS, "segment": 16e3},
    # htsim: base 20 µs, per hop base / 6.55, flow scaling up to 5 base between 0.1 and 100 packets.
    "swift:htsim": {
        "base": 20,
        "per_hop": 20 / 6.55,
        "fs_range": 100,
        "fs_min": 0.1,
        "fs_max": 100,
        "ai": 1,
        "beta": 0.8,
        "max_cut": 0.5,
    },
    "reno:rfc5681": {"initial": 10_000, "ai_bytes": 1000, "keep": 0.5},
    "rate-agent:line-rate": {"share": 1},
}


@pytest.mark.parametrize("text", PUBLISHED)
def test_preset_constants(text):
    params = parse_transport(text).default_params()
    for name, value in PUBLISHED[text].items():
        assert getattr(params, name) == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("text", transports())
def test_short_forms(text):
    made = parse_transport(text)
    kind, _, name = text.partition(":")
    assert isinstance(made, Transport)
    assert (made.kind, made.name) == (kind, name)
    assert made == parse_transport(text)
    assert hash(made) == hash(parse_transport(text))
    assert all(np.isscalar(x) for x in jax.tree.leaves(made.default_params()))


@pytest.mark.parametrize("text", TWINS)
def test_options(text):
    """Every constant can be set in the short form, and nothing else changes."""
    plain = parse_transport(text).default_params()
    names = [f.name for f in fields(plain)]
    assert set(names) == set(CONSTANTS[text.partition(":")[0]])
    for name in names:
        value = 0.9375 * getattr(plain, name) or 0.5
        made = parse_transport(f"{text},{name}={value!r}")
        assert made != parse_transport(text)
        assert getattr(made.default_params(), name) == value
        others = [n for n in names if n != name]
        assert all(getattr(made.default_params(), n) == getattr(plain, n) for n in others)
    both = parse_transport(f"{text},{names[0]}=0.5,{names[-1]}=0.75")
    assert both == parse_transport(f"{text},{names[-1]}=0.75,{names[0]}=0.5"), "in any order"


def test_an_option_reaches_the_sender():
    made = parse_transport("timely:hpcc,beta=0.5")
    assert made == Timely.of("hpcc", beta=0.5)
    assert made.default_params().beta == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dctpc:hpcc", "unknown transport 'dctpc': did you mean .*'dctcp'"),
        ("", "unknown transport ''"),
        ("timely", "transport = 'timely' is not allowed: expected timely:PRESET, e.g. timely:hpcc"),
        ("dctcp:sigcom", "unknown DCTCP preset 'sigcom': did you mean 'sigcomm10'"),
        ("timely:patchd", "unknown TIMELY preset 'patchd': did you mean 'patched'"),
        ("hpcc:x", "unknown HPCC preset 'x': .*known: hpcc, sigcomm19"),
        ("swift:google", "unknown SWIFT preset 'google': .*known: htsim"),
        ("reno:cubic", "unknown reno preset 'cubic'"),
        ("rate-agent:x", "unknown rate-agent preset 'x'"),
        ("timely:hpcc,betta=0.5", "unknown TIMELY constant 'betta': did you mean 'beta'"),
        ("dctcp:hpcc,windowed=1", "unknown DCTCP constant 'windowed'"),
        ("timely:hpcc,beta", "transport option = 'beta' is not allowed: expected NAME=NUMBER"),
        ("timely:hpcc,beta=much", "transport option = 'beta=much' is not allowed"),
        ("hpcc:hpcc,source=mean_field", "transport option = 'source=mean_field' is not allowed"),
        ("timely:hpcc,beta=-0.5", "beta = -0.5 is not allowed: expected a number > 0 and <= 1"),
        ("timely:hpcc,beta=1.5", "beta = 1.5 is not allowed: expected a number > 0 and <= 1"),
        ("timely:hpcc,ewma=nan", "ewma = nan is not allowed"),
        ("timely:hpcc,segment=-1", "segment = -1.0 is not allowed: expected a number >= 0"),
        ("timely:hpcc,t_low=500", "t_low = 500.0 is not allowed: expected less than t_high = 500"),
        ("dctcp:sigcomm10,g=0", "g = 0.0 is not allowed: expected a number > 0 and <= 1"),
        ("dctcp:sigcomm10,alpha_init=2", "alpha_init = 2.0 is not allowed: .* >= 0 and <= 1"),
        ("hpcc:hpcc,eta=1.05", "eta = 1.05 is not allowed"),
        ("swift:htsim,max_cut=1.5", "max_cut = 1.5 is not allowed"),
        ("swift:htsim,fs_min=100", "fs_min = 100.0 is not allowed: .*less than fs_max = 100"),
        ("reno:rfc5681,keep=1.5", "keep = 1.5 is not allowed"),
        ("rate-agent:line-rate,share=0", "share = 0.0 is not allowed"),
    ],
)
def test_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse_transport(text)
