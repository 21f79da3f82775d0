"""Stable-Baselines3's face of the batch, against the vector environment under it."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import AGENTS, HORIZON, OPTIONS, SCENARIO, tiny

from ecn_marl.wrappers import AgentVectorEnv, network_env

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from ecn_marl.wrappers.bridges.sb3 import EcnSB3VecEnv, sb3_env

LENGTHS = (2, HORIZON)


def agents():
    return AgentVectorEnv(tiny(), 2, autoreset_mode="SameStep", max_steps=LENGTHS)


def test_steps_are_those_of_the_vector_environment():
    env, plain = EcnSB3VecEnv(agents()), agents()
    env.seed(3)
    np.testing.assert_array_equal(env.reset(), plain.reset(seed=[3, 3 + AGENTS])[0])
    plain.action_space.seed(0)
    for _ in range(2 * HORIZON):
        actions = plain.action_space.sample()
        obs, reward, done, infos = env.step(actions)
        expected = plain.step(actions)
        np.testing.assert_array_equal(obs, expected[0])
        np.testing.assert_allclose(reward, expected[1], rtol=1e-6)
        np.testing.assert_array_equal(done, expected[3])
        assert reward.dtype == np.float32 and done.dtype == bool and len(infos) == 2 * AGENTS
        for i, info in enumerate(infos):
            assert info.keys() == (
                {"terminal_observation", "TimeLimit.truncated"} if done[i] else set()
            )
            if done[i]:
                assert info["TimeLimit.truncated"] is True
                np.testing.assert_array_equal(
                    info["terminal_observation"], expected[4]["final_obs"][i]
                )


def test_a_seed_holds_for_one_reset_and_the_stream_goes_on():
    env = EcnSB3VecEnv(agents())

    def two_episodes():
        env.seed(11)
        return [env.reset()] + [env.step(np.zeros((2 * AGENTS, 3), int))[0] for _ in range(4)]

    np.testing.assert_array_equal(two_episodes(), two_episodes())


def test_what_sb3_asks_of_a_vector_environment():
    env = sb3_env("incast-v0", 2, max_steps=4, actions="discrete")
    n = env.num_envs
    assert n == 2 * 17
    assert env.get_attr("num_networks") == [2] * n and env.get_attr("num_networks", [0, 1]) == [
        2,
        2,
    ]
    env.set_attr("label", "x")
    assert env.get_attr("label", 0) == ["x"]
    assert env.env_is_wrapped(VecMonitor) == [False] * n
    assert env.env_method("_flags", np.array([True, False]), indices=0)[0].sum() == 17
    assert env.render_mode is None
    env.close()


def test_sb3_s_own_checks_of_a_single_network():
    check_env(network_env(SCENARIO, actions="box", **OPTIONS), warn=False)


def test_ppo_runs_and_its_seed_is_taken():
    def weights():
        env = VecNormalize(VecMonitor(EcnSB3VecEnv(agents())))
        model = PPO("MlpPolicy", env, n_steps=4, batch_size=8, n_epochs=1, seed=0, device="cpu")
        model.learn(2 * 4 * env.num_envs)
        assert model.num_timesteps == 2 * 4 * env.num_envs
        mean, _ = evaluate_policy(model, env, n_eval_episodes=2, warn=False)
        assert np.isfinite(mean) and len(model.ep_info_buffer) > 0
        assert {episode["l"] for episode in model.ep_info_buffer} == set(LENGTHS)
        return np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()])

    np.testing.assert_array_equal(weights(), weights())
