"""RLlib's new API stack: its own checks, and episodes equal to those of the vector environment."""

from __future__ import annotations

import numpy as np
import pytest
from tiny import AGENTS, HORIZON, OPTIONS, SCENARIO, tiny

from ecn_marl.wrappers import AgentVectorEnv
from ecn_marl.wrappers.bridges.rllib import greedy, rllib_env, rllib_vector_env

CONFIG = {"scenario": SCENARIO, **OPTIONS}


def test_the_batch_is_the_vector_environment_without_infos():
    env = rllib_vector_env({**CONFIG, "num_envs": 2 * AGENTS})
    plain = AgentVectorEnv(tiny(), 2)
    np.testing.assert_array_equal(env.reset(seed=1)[0], plain.reset(seed=1)[0])
    plain.action_space.seed(0)
    for _ in range(HORIZON + 2):
        actions = plain.action_space.sample()
        *values, infos = env.step(actions)
        for x, y in zip(values, plain.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(x, y)
        assert infos == {}
    assert rllib_vector_env(CONFIG).num_envs == AGENTS
    assert rllib_vector_env({**CONFIG, "max_steps": 9})._steps.tolist() == [9]
    with pytest.raises(ValueError, match="multiple of the 3 agents"):
        rllib_vector_env({**CONFIG, "num_envs": 4})
    with pytest.raises(ValueError, match="scenario option"):
        rllib_vector_env({**CONFIG, "topologie": 1})


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.rllib")
    from ray.tune.registry import register_env

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    register_env("network", rllib_env)
    register_env("agents", rllib_vector_env)
    yield ray
    ray.shutdown()


def config(name):
    from ray.rllib.algorithms.ppo import PPOConfig

    return (
        PPOConfig()
        .framework("torch")
        .environment(name, env_config=CONFIG)
        .debugging(seed=0, log_level="ERROR")
        .training(train_batch_size_per_learner=24, minibatch_size=12, num_epochs=1)
    )


def batched(runners=0):
    return config("agents").env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=2 * AGENTS,
        gym_env_vectorize_mode="vector_entry_point",
    )


def test_rllib_s_own_checks_of_the_multi_agent_environment(ray):
    from ray.rllib.utils.pre_checks.env import check_multiagent_environments

    env = rllib_env(CONFIG)
    check_multiagent_environments(env)
    env.reset(seed=0)
    for i in range(HORIZON):
        actions = {a: env.get_action_space(a).sample() for a in env.possible_agents}
        *_, terminated, truncated, _ = env.step(actions)
        assert truncated["__all__"] == (i == HORIZON - 1) and not terminated["__all__"]
    assert "__all__" not in env.par_env.possible_agents


def test_a_runner_s_episodes_are_those_of_the_networks(ray):
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    runner = SingleAgentEnvRunner(config=batched())
    episodes = runner.sample(num_episodes=2 * AGENTS, random_actions=True)
    assert len(episodes) == 2 * AGENTS
    assert all(len(e) == HORIZON and e.is_truncated and not e.is_terminated for e in episodes)
    # Agents of one network end in order, so episode i is sub-environment i.
    plain = AgentVectorEnv(tiny(), 2)
    obs, _ = plain.reset(seed=runner._seed)
    for t in range(HORIZON):
        np.testing.assert_array_equal(obs, [e.get_observations(t) for e in episodes])
        action = np.stack([e.get_actions(t) for e in episodes])
        obs, reward, *_ = plain.step(action)
        np.testing.assert_allclose(reward, [e.get_rewards(t) for e in episodes])
    np.testing.assert_array_equal(obs, [e.get_observations(HORIZON) for e in episodes])


@pytest.mark.slow
@pytest.mark.parametrize("runners", [0, 1])
def test_ppo_trains_on_the_batch_and_the_policy_can_be_scored(ray, runners):
    algorithm = batched(runners).build_algo()
    before = greedy(algorithm.get_module())
    obs = np.random.default_rng(0).random((5, AGENTS, tiny().obs_dim), np.float32)
    actions = before(obs).reshape(5, AGENTS, 3)
    assert (actions < tiny().action.nvec).all() and (before(obs) == before(obs)).all()
    result = algorithm.train()
    assert result["env_runners"]["num_env_steps_sampled"] >= 24
    assert result["env_runners"]["episode_len_mean"] == HORIZON
    algorithm.stop()


@pytest.mark.slow
def test_ppo_trains_one_policy_for_all_agents_of_the_multi_agent_environment(ray):
    shared = config("network").multi_agent(
        policies={"shared"}, policy_mapping_fn=lambda agent, episode, **kw: "shared"
    )
    algorithm = shared.env_runners(num_env_runners=0).build_algo()
    result = algorithm.train()["env_runners"]
    assert result["episode_len_mean"] == HORIZON
    assert set(result["agent_episode_returns_mean"]) == {f"port_{i}" for i in range(AGENTS)}
    algorithm.stop()
