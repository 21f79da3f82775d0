"""One network as a gymnasium environment: gymnasium's own checks, and the vector environment."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tiny import HORIZON, OPTIONS, SCENARIO, tiny

from ecn_marl.wrappers import EcnVectorEnv, network_env


@pytest.mark.parametrize("actions", ["multidiscrete", "box"])
def test_gymnasium_s_own_checks(actions):
    check_env(network_env(SCENARIO, actions=actions, **OPTIONS), skip_render_check=True)


def test_steps_are_those_of_the_vector_environment():
    single = network_env(SCENARIO, **OPTIONS)
    batch = EcnVectorEnv(tiny(), 2)
    batch.action_space.seed(0)
    first, _ = single.reset(seed=4)
    np.testing.assert_allclose(first, batch.reset(seed=4)[0][0], rtol=1e-5)
    for i in range(HORIZON):
        actions = batch.action_space.sample()
        obs, reward, terminated, truncated, info = single.step(actions[0])
        batched = batch.step(actions)
        np.testing.assert_allclose(obs, batched[0][0], rtol=2e-5, atol=1e-6)
        assert reward == pytest.approx(batched[1][0], rel=1e-5)
        assert not terminated and truncated == (i == HORIZON - 1) == batched[3][0]
        np.testing.assert_allclose(info["queue_mean"], batched[4]["queue_mean"][0], rtol=2e-5)
    assert info["reward"].mean() == pytest.approx(reward, rel=1e-6)


def test_actions_that_are_not_one_for_each_agent_are_named():
    env = network_env(SCENARIO, **OPTIONS)
    for wrong in (np.array(None), np.array(3), np.zeros((2, 3), int)):
        with pytest.raises(ValueError, match=r"action = .* one for each of the 3 agents"):
            env.step(wrong)


def test_it_can_be_drawn():
    env = network_env(SCENARIO, render_mode="ansi", **OPTIONS)
    env.reset(seed=0)
    assert "port" in env.render()
    assert env.render_mode in env.metadata["render_modes"]
    env.close()
