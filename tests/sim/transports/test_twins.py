"""Senders other than DCQCN: each against its published rules written anew.

Both run in float64, so that no comparison of theirs falls apart by rounding.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundoff import U64
from senders import BASE_RTT, CONSTANTS, FLOWS, LEVELS, LINES, MBPS, STEPS, look, random_signals
from twins import TWINS, AgentTwin

from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import Timely, parse_transport, transports


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
        near = 10 * STEPS * U64  # ten roundings a step; of 1 where the numbers are smaller
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near, err_msg=name)
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
