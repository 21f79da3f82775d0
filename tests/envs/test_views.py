"""Options of a learner: its own intervals, and the scenario's features and reward by default."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from commands import tiny

from ecn_marl.envs.registry import benchmark, in_view, lookup, make, out_of_view, scenarios


def test_longer_intervals_leave_the_episode_as_long():
    short, long = (make("restore-serve-v0", interval_us=us) for us in (100.0, 500.0))
    assert (short.horizon, long.horizon) == (320, 64)
    assert short.horizon * short.interval_us == long.horizon * long.interval_us
    windows = [tuple(map(int, env.default_params.sim.window)) for env in (short, long)]
    assert windows[0] == windows[1] == (500, 15_500), "1 ms to 31 ms, in substeps of 2 µs"
    assert make("restore-serve-v0", interval_us=500.0, max_steps=7).horizon == 7
    for wrong in (0.0, 300.0):
        with pytest.raises(ValueError, match=f"interval_us = {wrong}"):
            make("restore-serve-v0", interval_us=wrong)


@pytest.mark.thorough
def test_a_learner_meets_the_same_traffic_in_longer_intervals():
    """Under the same thresholds the network is the same, bit by bit.

    `test_telemetry_options` compares intervals of 50 and 100 µs in every run.
    """
    counts = []
    for us in (40.0, 120.0):
        env = make(tiny(), interval_us=us, max_steps=round(480.0 / us))
        params = env.default_params
        ecn = env.static_ecn("secn1", params)

        def episode(key, env=env, params=params, ecn=ecn):
            def step(state, _):
                return env.step_ecn(key, state, ecn, params)[1], None

            return jax.lax.scan(step, env.reset(key, params)[1], length=env.horizon)[0]

        counts.append(jax.device_get(jax.jit(episode)(jax.random.key(3)).sim.totals))
    for a, b in zip(*map(jax.tree.leaves, counts), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(counts[0].started) > 3


def test_max_steps_counts_the_scenarios_intervals():
    view = {"features": "flows", "interval_us": 500.0}
    options = in_view("restore-serve-v0", {"max_steps": 50, "load": 0.3}, view)
    assert options == {"max_steps": 10, "load": 0.3, **view}
    assert in_view("restore-serve-v0", {}, view) == view
    assert in_view("restore-serve-v0", {"max_steps": 50}, {}) == {"max_steps": 50}
    assert out_of_view("restore-serve-v0", options) == {"max_steps": 50, "load": 0.3}
    run_options = {"max_steps": 50, "reward": "slowdown", "history": 2}
    assert out_of_view("restore-serve-v0", run_options) == {"max_steps": 50, "reward": "slowdown"}


def test_scenarios_say_what_is_seen_and_earned():
    assert {"restore-serve-v0", "mixed-rtt-v0", "fabric-v0"} <= set(benchmark()) <= set(scenarios())
    for name in benchmark():
        env = make(name)
        assert (env.feature.name, env.reward.name) == ("flows", "slowdown")
        assert env.margins_us == (1000.0, 1000.0)
        assert not lookup(name).superseded
    assert make("restore-serve-v0", features="acc", reward="pet").reward.name == "pet"
    assert make("websearch-v0").feature.name == "acc"
