"""The AEC face: actions are checked at their agent's turn, and an error changes nothing."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from playing import script

import ecn_marl
from ecn_marl.errors import InvalidValue

OPTIONS = {"scenario": "incast-v0", "features": "pet", "reward": "pet", "max_cycles": 3}


@pytest.fixture
def aec():
    env = ecn_marl.env(**OPTIONS)
    env.reset(seed=4)
    return env


def played(env, joint):
    """What each agent is told at its turns, from here on; `joint`: actions of the steps to come."""
    steps, records = itertools.chain(joint), []
    actions = {}
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, info = env.last()
        records.append((agent, obs.tolist(), reward, terminated, truncated, info))
        if terminated or truncated:
            env.step(None)
            continue
        if agent == "port_0":
            actions = next(steps)
        env.step(actions[agent])
    return records


WRONG = [
    (np.array([0, 9, 0]), r"action of {agent}, gap = 9 .*\[0, 8\]"),
    (np.zeros(3), r"action dtype of {agent} = 'float64' .* integer"),
    (np.zeros(2, int), r"action shape of {agent} = \(2,\) .* \(3,\)"),
    ([[1], [1, 2]], r"action shape of {agent} = 'ragged'"),
    ("x", r"action shape of {agent} = \(\)"),
    (None, r"action of {agent} = None .* one of MultiDiscrete"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_action_is_reported_at_its_turn_and_changes_nothing(aec, wrong, message):
    joint = script(aec.face, 3)
    expected = played(aec, joint)
    aec.reset(seed=4)
    agents = list(aec.possible_agents)
    for turn, agent in enumerate((*agents, *agents[:2])):  # into the second step
        assert aec.agent_selection == agent
        with pytest.raises(InvalidValue, match=message.format(agent=agent)) as error:
            aec.step(wrong)
        assert "\n" not in str(error.value)
        assert aec.agent_selection == agent
        aec.step(joint[turn // len(agents)][agent])
    aec.reset(seed=4)
    with pytest.raises(InvalidValue):
        aec.step(wrong)
    assert played(aec, joint) == expected


def test_an_action_after_the_end_is_refused_in_a_line(aec):
    joint = script(aec.face, 3)
    for actions, agent in itertools.product(joint, aec.possible_agents):
        aec.step(actions[agent])
    for _ in aec.possible_agents:
        agent = aec.agent_selection
        with pytest.raises(InvalidValue, match=f"action of {agent} = .* None: its episode is over"):
            aec.step(joint[0][agent])
        assert aec.agent_selection == agent and aec.truncations[agent]
        aec.step(None)
    assert aec.agents == []
    with pytest.raises(ResetNeeded, match="no episode is running"):
        aec.last()
    aec.reset()
    aec.step(joint[0]["port_0"])


def test_an_array_may_be_used_for_all_agents(aec):
    """Each agent's action is the array's content at its turn, not at the last one."""
    joint = script(aec.face, 3)
    expected = played(aec, joint)
    aec.reset(seed=4)
    shared, records, turn = np.zeros(3, int), [], 0
    for agent in aec.agent_iter():
        obs, reward, terminated, truncated, info = aec.last()
        records.append((agent, obs.tolist(), reward, terminated, truncated, info))
        if truncated:
            aec.step(None)
            continue
        shared[:] = joint[turn // len(aec.possible_agents)][agent]
        aec.step(shared)
        turn += 1
    assert records == expected


def test_unknown_agents_observe_nothing(aec):
    with pytest.raises(ValueError, match=r"agent = 'port_99' .* port_0 … port_16"):
        aec.observe("port_99")


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy])
def test_copies_take_turns_of_their_own(aec, clone):
    joint = script(aec.face, 3)
    aec.step(joint[0]["port_0"])
    twin = clone(aec)

    def finish(env):
        for agent in env.possible_agents[1:]:
            assert env.agent_selection == agent
            env.step(joint[0][agent])
        records = played(env, joint[1:])
        env.reset()
        return records, played(env, joint)

    assert finish(aec) == finish(twin)
