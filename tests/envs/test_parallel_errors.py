"""Errors of the PettingZoo faces; after an error the state is unchanged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from playing import Options, play, sampled, script

import ecn_marl
from ecn_marl.envs.parallel import EcnParallelEnv


def test_steps_outside_an_episode(small: EcnParallelEnv):
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        small.step({})
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        small.state()
    small.reset(seed=0)
    actions = script(small, 7)
    play(small, actions[:6])
    with pytest.raises(ResetNeeded, match="no episode is running"):
        small.step(actions[6])
    assert small.state().shape == small.state_space.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("port_4"), r"none for port_4.*one action for every agent"),
        (lambda a: a.update(port_99=a["port_0"]), r"one for 'port_99'"),
        (lambda a: a.update(port_4=np.zeros(2, int)), r"shape of port_4 = \(2,\).*expected \(3,\)"),
        (lambda a: a.update(port_4=[[1], [1, 2]]), r"shape of port_4 = 'ragged'"),
        (lambda a: a.update(port_4=None), r"action of port_4 = None .* one of MultiDis"),
        (lambda a: a.update(port_4=np.zeros(3)), r"dtype of port_4 = 'float64'.*integer"),
        (lambda a: a.update(port_4=np.asarray([0, 9, 0])), r"port_4, gap = 9 .*\[0, 8\]"),
        (lambda a: a.update(port_4=np.asarray([-1, 0, 0])), r"port_4, kmin = -1 .*\[0, 8\]"),
    ],
)
def test_wrong_actions_change_nothing(
    small: EcnParallelEnv, change: Callable[[dict[str, Any]], Any], message: str
):
    actions = script(small, 3)
    small.reset(seed=0)
    expected = play(small, actions)
    small.reset(seed=0)
    first = play(small, actions[:1])
    wrong = copy.deepcopy(actions[1])
    change(wrong)
    with pytest.raises(ValueError, match=message):
        small.step(wrong)
    remaining = play(small, actions[1:])
    assert first + remaining == expected


def test_wrong_reals():
    env = ecn_marl.parallel_env(actions="box")
    env.reset(seed=0)
    for bad, message in ((np.nan, "nan"), (1.5, "1.5")):
        actions = sampled(env)
        actions["port_2"] = np.asarray([0.0, bad, 0.0], np.float32)
        with pytest.raises(ValueError, match=rf"port_2, ratio = {message} .*\[-1.0, 1.0\]"):
            env.step(actions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "websaerch-v0"}, "did you mean 'websearch-v0'"),
        ({"render_mode": "video"}, "render_mode = 'video' .* human, rgb_array, ansi or None"),
        ({"max_cycles": 0}, r"max_cycles = 0 .* \[1, "),
        ({"max_cycles": 2**31}, "max_cycles = 2147483648"),
        ({"laod": 0.5}, "did you mean 'load'"),
        ({"max_cycles": 2, "telemetry": {"period_us": 300.0}}, "within the episode of 2 intervals"),
    ],
)
def test_wrong_options(options: Options, message: str):
    with pytest.raises(ValueError, match=message):
        ecn_marl.parallel_env(**options)


def test_unknown_agents_are_told_in_a_line(small: EcnParallelEnv):
    flows = ecn_marl.rate_parallel_env("many-to-one-2-v0")
    for env, wrong, agents in ((small, "ap_0", r"port_0 … port_\d+"), (flows, "port_0", "flow_1")):
        for space in (env.action_space, env.observation_space):
            with pytest.raises(ValueError, match=rf"agent = '{wrong}' .*{agents}"):
                space(wrong)


@pytest.mark.parametrize("scenario", ecn_marl.scenarios())
def test_load_acts_on_every_source_that_has_one_or_is_refused(scenario: str):
    sources = ecn_marl.make(scenario).sim.traffic
    loads = [source.load for source in sources if hasattr(source, "load")]
    try:
        changed = ecn_marl.make(scenario, load=0.37).sim.traffic
    except ValueError as error:
        assert "this traffic has no load to set" in str(error)
        assert not loads
        return
    assert loads and [s.load for s in changed if hasattr(s, "load")] == [0.37] * len(loads)


def test_a_refused_reset_leaves_the_stream(small: EcnParallelEnv):
    small.reset(seed=7)
    untouched = copy.deepcopy(small)
    with pytest.raises(ValueError, match="key"):
        small.reset(seed=1, options={"key": [1, 2, 3]})
    keys = []
    for env in (small, untouched):
        env.reset()
        keys.append(np.asarray(jax.random.key_data(env._key)))
    np.testing.assert_array_equal(*keys)


def test_wrong_attributes(small: EcnParallelEnv):
    with pytest.raises(ValueError, match=r"seed = -1 .* >= 0"):
        small.reset(seed=-1)
    small.max_cycles = 5
    with pytest.raises(ValueError, match="max_cycles = 0"):
        small.max_cycles = 0
    with pytest.raises(ValueError, match=r"max_cycles = '5'"):
        small.max_cycles = "5"
    assert small.max_cycles == 5
