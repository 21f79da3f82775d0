"""Slots are used again: what a flow leaves behind is nothing to the next one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from senders import BASE_RTT, FLOWS, LEVELS, LINES, look, random_signals

from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import parse_transport, transports


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
