"""DCQCN: the rate machine against one written from its description, presets, errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundoff import U64

from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import Dcqcn, parse_transport, preset
from ecn_marl.sim.transports.dcqcn import PRESETS

MBPS = 0.125
"""Bytes per µs in one Mb/s."""

FLOWS, STEPS = 4, 1500
LINES = np.array([3125.0, 3125.0, 12500.0, 1250.0], np.float32)
"""NIC rates of the flows: 25, 25, 100 and 10 Gb/s."""


@dataclass
class Sender:
    """One flow's rate machine, driven by events at absolute times (µs).

    As the HPCC simulator does it: the first CNP only starts the clocks (or cuts at once, by
    option). Every decrease interval after it the rate is cut if a CNP came in that interval; the
    target moves to the rate before the cut if an increase happened since the last cut (or always,
    if clamped). Every alpha interval alpha moves towards whether a CNP came in it; the CNP that
    started the clocks counts for the first decrease interval only. Each cut restarts the increase
    timer and the byte counter; before the first there is no timer.
    """

    k: object
    line: float

    def __post_init__(self):
        self.rate = self.target = self.line
        self.alpha = float(self.k.alpha_init)
        self.first = self.last_cut = None
        self.cnps: list[float] = []
        self.cuts = self.alphas = self.raises = self.counts = 0
        self.timer_stage = self.count_stage = 0
        self.bytes = 0.0

    def cut(self, now):
        raised = self.timer_stage + self.count_stage > 0
        if raised or self.k.clamp_target:
            self.target = self.rate
        self.rate = max(self.rate * (1 - self.alpha / 2), self.k.min_rate)
        self.last_cut, self.raises, self.counts, self.bytes = now, 0, 0, 0.0
        self.timer_stage = self.count_stage = 0
        self.cnps = []

    def increase(self, timer, counter):
        low, high = self.timer_stage, self.timer_stage
        if math.isfinite(self.k.byte_counter):
            low, high = min(low, self.count_stage), max(high, self.count_stage)
        if low > self.k.recovery_steps:
            self.target += self.k.hai
        elif high >= self.k.recovery_steps:
            self.target += self.k.ai
        self.target = min(self.target, self.line)
        self.rate = (self.rate + self.target) / 2
        self.timer_stage += timer
        self.count_stage += counter

    def step(self, now, cnp, sent):
        started = self.first is not None
        if started:
            self.bytes += sent
        if cnp and not started:
            self.first, self.alpha_had = now, False
            self.cnps.append(now)
            if self.k.cut_at_first_cnp:
                self.cut(now)
            return
        if cnp:
            self.cnps.append(now)
            self.alpha_had = True
        if not started:
            return
        while self.first + (self.alphas + 1) * self.k.alpha_us <= now:
            self.alphas += 1
            self.alpha += self.k.g * (self.alpha_had - self.alpha)
            self.alpha_had = False
        if self.first + (self.cuts + 1) * self.k.decrease_us <= now:
            self.cuts += 1
            if self.cnps:
                self.cut(now)
                return
        timer = counter = False
        if self.last_cut is not None:
            timer = self.last_cut + (self.raises + 1) * self.k.increase_us <= now
        counter = self.bytes >= (self.counts + 1) * self.k.byte_counter
        if timer or counter:
            self.raises += timer
            self.counts += counter
            self.increase(timer, counter)


@partial(jax.jit, static_argnums=(0, 1))
def machine(transport, dt, params, cnps, sent):
    """Trajectories of rate, target and alpha, `[T, F]`."""
    lines = jnp.asarray(LINES, float)
    state = transport.init(FLOWS, lines.dtype)
    state = transport.start(state, params, jnp.ones(FLOWS, bool), lines)

    def step(state, now):
        cnp, sent = now
        state = transport.update(state, params, Feedback(sent=sent, cnp=cnp), dt)
        return state, (transport.rate(state), state.target, state.alpha)

    return jax.lax.scan(step, state, (cnps, sent))[1]


STRETCHES = st.lists(
    st.tuples(st.sampled_from([1, 5, 30, 120, 500]), st.sampled_from([0.0, 0.02, 0.3, 1.0])),
    min_size=1,
    max_size=12,
)


@st.composite
def signals(draw):
    """CNPs and bytes sent: quiet, sparse and dense stretches of random lengths, repeated."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    chance = np.zeros((STEPS, FLOWS))
    for flow in range(FLOWS):
        pattern = [np.full(length, p) for length, p in draw(STRETCHES)]
        chance[:, flow] = np.resize(np.concatenate(pattern), STEPS)
    cnps = rng.random(chance.shape) < chance
    # Whole bytes, never more than one byte-counter event per substep.
    return cnps, rng.integers(0, 8000, chance.shape).astype(np.float32)


def check(transport, params, dt, cnps, sent):
    with jax.enable_x64(True):
        real = jax.tree.map(np.float64, params)
        got = [np.asarray(x) for x in machine(transport, dt, real, cnps, sent.astype(float))]
    assert {x.dtype for x in got} == {np.dtype(np.float64)}
    rate, target, alpha = got
    for flow in range(FLOWS):
        sender = Sender(params, float(LINES[flow]))
        want = []
        for t in range(STEPS):
            sender.step((t + 1) * dt, cnps[t, flow], float(sent[t, flow]))
            want.append((sender.rate, sender.target, sender.alpha))
        want = np.array(want)
        for ours, theirs in zip((rate, target, alpha), want.T, strict=True):
            # 1500 steps of ten roundings.
            np.testing.assert_allclose(ours[:, flow], theirs, rtol=15_000 * U64, atol=1e-300)


CASES = [(name, 1.0) for name in PRESETS] + [("paper", 5.0), ("hpcc-paper", 5.0)]


@pytest.mark.parametrize(("name", "dt"), CASES)
@given(signal=signals())
@settings(max_examples=6)
def test_rate_machine(name, dt, signal):
    check(Dcqcn.of(name), preset(name), dt, *signal)


@given(
    signal=signals(),
    times=st.tuples(*[st.integers(2, 60)] * 3),
    counter=st.sampled_from([1e4, 1e5, 1e6]),
    recovery=st.integers(0, 5),
    flags=st.tuples(st.booleans(), st.booleans()),
    g=st.sampled_from([1 / 16, 1 / 256]),
)
@settings(max_examples=15)
def test_rate_machine_with_any_constants(signal, times, counter, recovery, flags, g):
    decrease, alpha, increase = map(float, times)
    params = preset(
        "paper",
        decrease_us=decrease,
        alpha_us=alpha,
        increase_us=increase,
        byte_counter=counter,
        recovery_steps=float(recovery),
        clamp_target=float(flags[0]),
        cut_at_first_cnp=float(flags[1]),
        g=g,
    )
    check(Dcqcn.of("paper", params), params, 1.0, *signal)


def trajectory(name, cnp_steps, dt=1.0, steps=STEPS):
    cnps = np.zeros((STEPS, FLOWS), bool)
    cnps[list(cnp_steps)] = True
    sent = jnp.zeros((STEPS, FLOWS))
    out = machine(Dcqcn.of(name), dt, preset(name), jnp.asarray(cnps), sent)
    return [np.asarray(x)[:steps, 0] for x in out]


def test_no_cnp_no_change():
    rate, target, alpha = trajectory("hpcc-paper", [])
    assert (rate == LINES[0]).all()
    assert (target == LINES[0]).all()
    assert (alpha == 1).all()


def test_first_cnp_cuts_one_interval_later():
    """`hpcc-paper`: a single CNP at 10 µs halves the rate at 60 µs, alpha having decayed once."""
    rate, target, alpha = trajectory("hpcc-paper", [9])
    np.testing.assert_array_equal(rate[:59], 3125)
    a = 1 - 1 / 256
    assert alpha[59] == pytest.approx(a)
    assert rate[59] == pytest.approx(3125 * (1 - a / 2))
    assert target[59] == 3125
    # The increase timer runs from the cut: at 115 µs half-way back to the line rate.
    assert rate[113] == rate[59]
    assert rate[114] == pytest.approx((rate[59] + 3125) / 2)


def test_first_cnp_cuts_at_once_in_the_paper():
    rate, target, _ = trajectory("paper", [9])
    assert rate[8] == 3125
    assert rate[9] == pytest.approx(3125 / 2)
    assert target[9] == 3125


def test_back_to_back_cuts_leave_the_target():
    """CNPs without end: the target stays at line rate, unless it is clamped."""
    steps = range(9, STEPS)
    rate, target, _ = trajectory("hpcc-run", steps)
    assert (target == 3125).all()
    assert rate[-1] == pytest.approx(100 * MBPS), "down to the minimum rate"
    rate, target, _ = trajectory("paper", steps)
    assert target[300] == pytest.approx(2 * rate[300], rel=0.01)


def test_alpha_decays_without_cnps():
    """`hpcc-run` updates alpha every µs."""
    alpha = trajectory("hpcc-run", [9])[2]
    np.testing.assert_allclose(alpha[10:1000], (1 - 1 / 256) ** np.arange(1, 991), rtol=1e-4)


def test_many_alpha_intervals_in_one_substep():
    """1 µs alpha updates at dt = 5: five decays per substep."""
    alpha = trajectory("hpcc-run", [0], dt=5.0)[2]
    np.testing.assert_allclose(alpha[100], (1 - 1 / 256) ** 500, rtol=1e-3)


def test_slots_start_afresh():
    """A new flow in a used slot remembers nothing; its neighbours go on."""
    transport, params = Dcqcn.of("mellanox"), preset("mellanox")
    state = transport.start(transport.init(3), params, jnp.ones(3, bool), jnp.full(3, 3125.0))
    update = jax.jit(transport.update, static_argnums=3)
    for _ in range(30):
        heard = Feedback(sent=jnp.full(3, 2000.0), cnp=jnp.ones(3, bool))
        state = update(state, params, heard, 1.0)
    assert (np.asarray(state.rate) < 3000).all()
    new = jnp.array([False, True, False])
    again = transport.start(state, params, new, jnp.full(3, 12500.0))
    fresh = transport.start(transport.init(3), params, new, jnp.full(3, 12500.0))
    for before, after, first in zip(*map(jax.tree.leaves, (state, again, fresh)), strict=True):
        assert after[1] == first[1]
        assert (after[0], after[2]) == (before[0], before[2])


# --- presets --------------------------------------------------------------------------------------

# decrease µs, alpha µs, g, increase µs, byte counter B, fast recovery, AI, HAI, minimum Mb/s.
CONSTANTS = {
    # The packet simulator's profiles `run`, `paper`, `cfg_nowin`.
    "hpcc-run": (4, 1, 0.00390625, 300, math.inf, 1, 5, 50, 100),
    "hpcc-paper": (50, 50, 0.00390625, 55, math.inf, 1, 5, 50, 100),
    "hpcc-config": (4, 1, 0.00390625, 900, math.inf, 1, 50, 100, 100),
    # SIGCOMM'15; ConnectX-4 defaults.
    "paper": (50, 55, 1 / 256, 55, 10e6, 5, 40, 200, 100),
    "mellanox": (4, 1, 1 - 1019 / 1024, 300, 32767, 1, 5, 50, 1),
    "sigcomm15-np50us": (4, 55, 1 / 256, 55, 10e6, 5, 40, 200, 100),
}
OPTIONS = {  # alpha at the first CNP, target clamped, cut at the first CNP, CNP interval in µs
    "hpcc-run": (1, 0, 0, 0),
    "hpcc-paper": (1, 0, 0, 0),
    "hpcc-config": (1, 0, 0, 0),
    "paper": (1, 1, 1, 0),
    "mellanox": (1023 / 1024, 0, 0, 0),
    "sigcomm15-np50us": (1, 1, 1, 50),
}


def test_no_preset_is_left_out():
    assert set(PRESETS) == set(CONSTANTS)


@pytest.mark.parametrize("name", CONSTANTS)
def test_preset_constants(name):
    p = preset(name)
    got = (p.decrease_us, p.alpha_us, p.g, p.increase_us, p.byte_counter, p.recovery_steps)
    got += tuple(x * 8 for x in (p.ai, p.hai, p.min_rate))  # bytes/µs to Mb/s
    assert got == pytest.approx(CONSTANTS[name], rel=1e-12)
    assert (p.alpha_init, p.clamp_target, p.cut_at_first_cnp, p.cnp_interval_us) == OPTIONS[name]
    assert Dcqcn.of(name).byte_counter == math.isfinite(CONSTANTS[name][4])
    assert Dcqcn.of(name).default_params() == p


@pytest.mark.parametrize("name", [f.name for f in fields(preset("paper"))])
def test_every_constant_can_be_overridden(name):
    p = preset("hpcc-run", **{name: 0.75})
    assert getattr(p, name) == 0.75
    others = [f.name for f in fields(p) if f.name != name]
    assert all(getattr(p, n) == getattr(preset("hpcc-run"), n) for n in others)


def test_the_byte_counter_follows_the_constants():
    assert not Dcqcn.of("paper", preset("paper", byte_counter=math.inf)).byte_counter
    assert Dcqcn.of("hpcc-run", preset("hpcc-run", byte_counter=1e6)).byte_counter


def test_pacing_follows_the_constants():
    assert not Dcqcn.of("paper").cnp_paced
    assert not Dcqcn.of("sigcomm15-np50us", cnp_interval_us=0.0).cnp_paced
    assert parse_transport("dcqcn:hpcc-run,cnp_interval_us=50").cnp_paced


def test_short_form():
    assert parse_transport("dcqcn:mellanox") == Dcqcn.of("mellanox")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: preset("hpcc"),
            "unknown DCQCN preset 'hpcc': did you mean 'hpcc-run' or .* known",
        ),
        (lambda: preset("paper", aii=1.0), "unknown DCQCN constant 'aii': did you mean 'ai'"),
        (lambda: preset("paper", g=0.0), "g = 0.0 is not allowed: expected a number > 0"),
        (lambda: preset("paper", decrease_us=-4.0), "decrease_us = -4.0 is not allowed"),
        (lambda: preset("paper", alpha_us=float("nan")), "alpha_us = nan is not allowed"),
        (lambda: preset("paper", cnp_interval_us=-1.0), "cnp_interval_us = -1.0 is not allowed"),
        (
            lambda: parse_transport("dcqcn:sigcomm15-np50us,source=mean_field"),
            "cnp_interval_us = 50.0 is not allowed: expected 0 with source=mean_field",
        ),
        (lambda: preset("paper", ai=-1.0), "ai = -1.0 is not allowed: expected a number >= 0"),
        (lambda: Dcqcn.of("papper"), "unknown DCQCN preset 'papper': did you mean .*'paper'"),
        (lambda: Dcqcn("none").default_params(), "unknown DCQCN preset 'none'"),
        (lambda: parse_transport("dctpc:x"), "unknown transport 'dctpc': did you mean .*'dctcp'"),
        (lambda: parse_transport("dcqcn"), "transport = 'dcqcn' is not allowed: .* dcqcn:PRESET"),
        (lambda: parse_transport("dcqcn:"), "transport = 'dcqcn:' is not allowed"),
        (lambda: parse_transport("dcqcn:cx4"), "unknown DCQCN preset 'cx4'"),
    ],
)
def test_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build()
