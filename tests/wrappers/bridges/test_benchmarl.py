"""BenchMARL's own loop over the batch, where BenchMARL is installed."""

from __future__ import annotations

import pytest
from tiny import HORIZON, OPTIONS, SCENARIO

pytest.importorskip("benchmarl")

from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig

from ecn_marl.wrappers.bridges.benchmarl import benchmarl_task


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "continuous"), [(MappoConfig, False), (IppoConfig, True)])
def test_an_experiment_runs(algorithm, continuous, tmp_path):
    config = ExperimentConfig.get_from_yaml()
    config.prefer_continuous_actions = continuous
    config.on_policy_n_envs_per_worker, config.on_policy_collected_frames_per_batch = 2, 2 * HORIZON
    config.on_policy_minibatch_size, config.on_policy_n_minibatch_iters = HORIZON, 1
    config.max_n_iters, config.max_n_frames = 2, None
    config.evaluation_interval, config.evaluation_episodes = 2 * HORIZON, 2
    config.loggers, config.create_json, config.save_folder = [], True, str(tmp_path)
    experiment = Experiment(
        task=benchmarl_task(SCENARIO, **OPTIONS),
        algorithm_config=algorithm.get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=config,
    )
    before = [x.clone() for x in experiment.policy.parameters()]
    experiment.run()
    assert experiment.total_frames == 4 * HORIZON
    after = experiment.policy.parameters()
    assert any((x != y).any() for x, y in zip(before, after, strict=True)), "it learnt"


def test_what_a_task_offers():
    task = benchmarl_task(SCENARIO, **OPTIONS)
    assert task.supports_continuous_actions() and task.supports_discrete_actions()
    boxed = benchmarl_task(SCENARIO, actions="box", **OPTIONS)
    assert boxed.supports_continuous_actions() and not boxed.supports_discrete_actions()
    env = task.get_env_fun(3, False, 0, "cpu")()
    agents = env.core.num_agents
    assert task.max_steps(env) == HORIZON
    assert list(task.group_map(env)) == ["agents"] and len(task.group_map(env)["agents"]) == agents
    spec = task.observation_spec(env)["agents", "observation"]
    assert spec.shape == (agents, env.core.obs_dim), "of one network"
    with pytest.raises(ValueError, match="unknown scenario 'websaerch-v0'"):
        benchmarl_task("websaerch-v0")
