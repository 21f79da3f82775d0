"""The PettingZoo face of rate control."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from pettingzoo.test import parallel_api_test, parallel_seed_test

from ecn_marl.envs.rate.parallel import rate_parallel_env

make = partial(rate_parallel_env, "many-to-one-4-v0", max_cycles=200, buffer_mib=1.0)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("actions", ["continuous", "discrete"])
def test_pettingzoo(actions):
    # PettingZoo takes a box without an axis for a mistake; a factor is one number.
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Aa]ction space.*")
        parallel_api_test(make(actions=actions), num_cycles=60)
        parallel_seed_test(partial(make, actions=actions), num_cycles=10)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy])
def test_copies_continue_alike(clone):
    """Also through the next episode: they do not share the stream of episodes."""
    env = make()

    def play(face):
        records = []
        for _ in range(2):
            while face.agents:
                obs, reward, *_ = face.step(dict.fromkeys(face.agents, 0.8))
                records.append((sorted(reward.items()), obs["flow_0"].tolist()))
            face.reset()
        return records

    env.reset(seed=2)
    env.step(dict.fromkeys(env.agents, 0.8))
    twin = clone(env)
    first = play(env)
    assert first == play(twin)
    assert len(first) > 20


def test_steps_run_to_the_next_turn_and_only_turns_count():
    env = make()
    _, infos = env.reset(seed=5)
    assert not any(info["acts"] for info in infos.values())
    rate = dict.fromkeys(env.agents, None)
    steps = 0
    while env.agents:
        acts = {a: infos[a]["acts"] for a in env.agents}
        _, rewards, ended, truncated, infos = env.step(dict.fromkeys(env.agents, 0.8))
        assert not any(ended.values())
        for a, reward in rewards.items():
            assert (reward < 0) == infos[a]["acts"]
            if rate[a]:
                assert infos[a]["rate"] == pytest.approx(rate[a] * (0.8 if acts[a] else 1.0))
            rate[a] = infos[a]["rate"]
        assert any(info["acts"] for info in infos.values()) or all(truncated.values())
        steps += 1
    assert 10 < steps < 200
    assert int(env._state.steps) == 200
    with pytest.raises(ResetNeeded):
        env.step({})


@pytest.mark.parametrize(
    ("options", "actions", "message"),
    [
        ({}, {"flow_0": 1.0}, "actions = 'none for flow_1'"),
        ({}, {f"flow_{i}": 1.3 for i in range(4)}, r"action of flow_0 = 1\.3 .*\[0\.8, 1\.2\]"),
        ({}, {f"flow_{i}": np.ones(2) for i in range(4)}, "action of flow_0"),
        ({}, {f"flow_{i}": 1.0 for i in range(5)}, "one for 'flow_4'"),
        ({"actions": "discrete"}, {f"flow_{i}": 6 for i in range(4)}, r"integer in \[0, 5\]"),
        ({"actions": "discrete"}, {f"flow_{i}": 1.0 for i in range(4)}, "integer"),
    ],
)
def test_bad_actions_are_refused(options, actions, message):
    env = make(**options)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)


def test_a_key_fixes_an_episode():
    """In place of the stream."""
    env = make()

    def play(words):
        env.reset(options={"key": np.array(words, np.uint32)})
        return [sorted(env.step(dict.fromkeys(env.agents, 0.9))[1].items()) for _ in range(12)]

    first = play([3, 4])
    assert play([3, 4]) == first != play([3, 5])


@pytest.mark.parametrize("cycles", [0, 2**31])
def test_bad_episodes_are_refused(cycles):
    with pytest.raises(ValueError, match="max_cycles"):
        rate_parallel_env("many-to-one-4-v0", max_cycles=cycles)
