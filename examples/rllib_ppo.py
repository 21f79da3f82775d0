"""RLlib's PPO (new API stack) on ECN tuning, one policy shared by all ports.

By default one compiled call steps a batch of networks, and every port is one of RLlib's
sub-environments. With `--multi-agent` each network is a `ParallelPettingZooEnv` whose agents are
mapped to one policy. That is several times slower; use it if agents need different policies.

    pip install "ecn-marl[rllib]"
    python examples/rllib_ppo.py                # two minutes on two cores
    python examples/rllib_ppo.py --multi-agent --runners 2
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

import ecn_marl
from ecn_marl.wrappers import compare, show
from ecn_marl.wrappers.bridges.rllib import greedy, rllib_env, rllib_vector_env


def settings(args: argparse.Namespace) -> PPOConfig:
    """RLlib's configuration: the environment, its runners, and PPO's constants."""
    agents = ecn_marl.make(args.scenario).num_agents
    networks = 1 if args.multi_agent else args.networks
    rows = args.steps * args.networks  # steps of networks per update
    # RLlib counts steps of its environments: those of single agents in a batch.
    env_steps = rows if args.multi_agent else rows * agents
    config = PPOConfig().framework("torch").debugging(seed=args.seed, log_level="ERROR")
    register_env("network", rllib_env)
    register_env("agents", rllib_vector_env)
    name = "network" if args.multi_agent else "agents"
    config = config.environment(name, env_config={"scenario": args.scenario})
    if args.multi_agent:
        config = config.multi_agent(
            policies={"shared"}, policy_mapping_fn=lambda agent, episode, **kw: "shared"
        ).env_runners(num_env_runners=args.runners)
    else:
        config = config.env_runners(
            num_env_runners=args.runners,
            num_envs_per_env_runner=networks * agents,
            gym_env_vectorize_mode="vector_entry_point",
        )
    layers = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh")
    return config.rl_module(model_config=layers).training(
        lr=args.lr,
        gamma=args.gamma,
        lambda_=args.gae_lambda,
        train_batch_size_per_learner=env_steps,
        minibatch_size=env_steps if args.multi_agent else env_steps // 8,  # rows of agents
        num_epochs=4,
        clip_param=0.2,
        entropy_coeff=3e-3,
        vf_loss_coeff=0.5,
        vf_clip_param=100.0,
        use_kl_loss=False,
        grad_clip=0.5,
    )


def train(args: argparse.Namespace) -> Any:
    """PPO; the trained module."""
    torch.set_num_threads(1)  # layers are small: threads would wait for each other
    algorithm = settings(args).build_algo()
    start, mean = time.perf_counter(), float("nan")
    for update in range(args.updates):
        # Not every update sees an episode end.
        mean = algorithm.train()["env_runners"].get("episode_return_mean", mean)
        if update % max(args.updates // 10, 1) == 0 or update == args.updates - 1:
            seconds = time.perf_counter() - start
            print(f"update {update + 1:4}  {report(mean)}  {seconds:5.0f} s", flush=True)
    module = algorithm.get_module("shared" if args.multi_agent else "default_policy")
    algorithm.stop()
    return module


def report(mean: float) -> str:
    """The mean return of the episodes that have ended, as text."""
    return "no episode has ended yet" if math.isnan(mean) else f"episode return {mean:8.2f}"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="RLlib's PPO with a shared policy.")
    p.add_argument("--scenario", default="websearch-v0")
    p.add_argument("--multi-agent", action="store_true", help="ParallelPettingZooEnv, no batch")
    p.add_argument("--networks", type=int, default=8, help="networks stepped at once")
    p.add_argument("--runners", type=int, default=0, help="Ray workers that step; 0 for none")
    p.add_argument("--steps", type=int, default=32, help="steps per rollout")
    p.add_argument("--updates", type=int, default=40, help="rollouts")
    p.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    p.add_argument("--gamma", type=float, default=0.95, help="discount per step")
    p.add_argument("--gae-lambda", type=float, default=0.9)
    p.add_argument("--episodes", type=int, default=16, help="episodes of the evaluation")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, print the table; returns what it shows."""
    args = parse(argv)
    policy = greedy(train(args))
    core = ecn_marl.make(args.scenario)
    result = compare(core, policy, name="RLlib PPO", episodes=args.episodes, seed=args.seed)
    show(result)
    return result


if __name__ == "__main__":
    main()
