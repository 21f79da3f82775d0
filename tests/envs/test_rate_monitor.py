"""Monitor intervals against the counters of the network."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.envs.rate.env import COLUMNS
from ecn_marl.envs.rate.monitor import MONITORED
from ecn_marl.envs.rate.scenarios import make_rate
from ecn_marl.sim.metrics import counter_bytes

SHOWN = (*MONITORED, "inflation", "rate")


@pytest.fixture(scope="module")
def episode():
    """1500 steps of 4 senders: far too fast at first, then too slow, then too fast again."""
    env = make_rate("many-to-one-4-v0", columns=SHOWN, history=1, buffer_mib=1.0)
    params = env.default_params
    _, state = env.reset(jax.random.key(0), params)

    def step(state, t):
        fall = (t > 200) & (t < 600)
        factor = jnp.where(fall, 0.9, jnp.where(t < 1100, 1.02, 1.0)) * jnp.ones(4)
        after, _ = env.advance(state, factor, params)
        flows = after.sim.flows
        row = (
            after.acts,
            after.history[:, 0],
            flows.transport.rate,
            (flows.rest_high, flows.rest_low),
            flows.backlog.sum(0),
            flows.transport.inflation * flows.rtt,
        )
        return after, row

    _, rows = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(1500)))(state)
    return env, jax.device_get(rows)


def test_columns_are_what_the_counters_say(episode):
    """Recomputed in float64 from the network's exact counters, event by event."""
    env, (acts, observed, rate, counters, backlog, rtt) = episode
    unsent, step = counter_bytes(counters), env.step_us
    line, losses = 12500.0, []
    checked = 0
    for flow in range(4):
        times = np.flatnonzero(acts[:, flow])
        for before, event in pairwise(times):
            columns = dict(zip(SHOWN, observed[event, flow], strict=True))
            sent = float(rate[before + 1 : event + 1, flow].astype(float).sum() * step)
            accepted = unsent[before, flow] - unsent[event, flow]
            delivered = accepted - (float(backlog[event, flow]) - float(backlog[before, flow]))
            length = (event - before) * step
            assert columns["throughput"] == pytest.approx(
                max(delivered, 0) / (line * length), abs=2e-3
            )
            assert columns["loss"] == pytest.approx(max(1 - accepted / sent, 0), abs=2e-3)
            expected = min(sent / max(delivered, sent / 100, 1e-9), 100.0)
            assert columns["send_ratio"] == pytest.approx(expected, rel=0.02)
            slope = (rtt[event, flow] - rtt[before, flow]) / length
            assert columns["latency_gradient"] == pytest.approx(slope, abs=1e-3)
            least = rtt[times[times <= event], flow].min()
            assert columns["latency_ratio"] == pytest.approx(rtt[event, flow] / least, rel=1e-4)
            losses.append(columns["loss"])
            checked += 1
    assert checked > 100
    assert max(losses) > 0.2  # the buffer overflowed
    assert min(losses) < 1e-3


def test_environments_without_these_columns_count_nothing():
    env = make_rate("many-to-one-2-v0", columns=("rate", "error"))
    assert not env.monitored
    assert env.reset(jax.random.key(0), env.default_params)[1].monitor is None
    assert set(MONITORED) < set(COLUMNS)
