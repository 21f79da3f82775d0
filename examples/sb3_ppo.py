"""Stable-Baselines3's PPO on ECN tuning, one policy shared by all ports.

By default SB3 steps the batch directly (`sb3_env`). With `--supersuit`, SuperSuit turns the agents
of a `ParallelEnv` into a vector environment and joins several of those, as is usual with
PettingZoo. That works with any wrapper of SuperSuit, but it is slower, because it steps one network
at a time. SB3 does not see there that an episode was truncated, so it does not bootstrap.

    pip install "ecn-marl[sb3]"
    python examples/sb3_ppo.py                  # a minute on two cores
    python examples/sb3_ppo.py --supersuit
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import supersuit
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean, set_random_seed
from stable_baselines3.common.vec_env import VecMonitor

import ecn_marl
from ecn_marl.wrappers import compare, sb3_env, show


def environment(args: argparse.Namespace) -> Any:
    """The agents of all networks as one `VecEnv`."""
    if not args.supersuit:
        return VecMonitor(sb3_env(args.scenario, args.networks))
    env = supersuit.pettingzoo_env_to_vec_env_v1(ecn_marl.parallel_env(args.scenario))
    # More processes would fork JAX, which hangs.
    options = {"num_cpus": 0, "base_class": "stable_baselines3"}
    env = supersuit.concat_vec_envs_v1(env, args.networks, **options)
    env.venv.reset(seed=args.seed)  # SB3's own seeding does not reach this environment
    return VecMonitor(env)


class Log(BaseCallback):
    """A line per tenth of the training."""

    def __init__(self, updates: int) -> None:
        """Take the number of updates."""
        super().__init__()
        self.updates, self.start, self.update = updates, time.perf_counter(), 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.update += 1
        if (self.update - 1) % max(self.updates // 10, 1) == 0 or self.update == self.updates:
            rate = self.num_timesteps / (time.perf_counter() - self.start)
            # Not the buffer's rewards: SB3 has added values where episodes were truncated.
            mean = safe_mean([episode["r"] / episode["l"] for episode in self.model.ep_info_buffer])
            line = f"update {self.update:4}  {report(mean)}  {rate:,.0f} agent-steps/s"
            print(line, flush=True)


def report(mean: float) -> str:
    """The mean reward of the episodes that have ended, as text."""
    return "no episode has ended yet" if math.isnan(mean) else f"reward {mean:.4f}"


def train(args: argparse.Namespace) -> PPO:
    """PPO; the trained model."""
    torch.set_num_threads(1)  # layers are small: threads would wait for each other
    env = environment(args)
    set_random_seed(args.seed)  # SuperSuit's environments do not take PPO's seed
    rows = args.steps * env.num_envs
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=args.lr,
        n_steps=args.steps,
        batch_size=rows // 8,
        n_epochs=4,
        gamma=args.gamma,
        gae_lambda=args.gae_lambda,
        ent_coef=3e-3,
        seed=None if args.supersuit else args.seed,
        device="cpu",
    )
    return model.learn(rows * args.updates, callback=Log(args.updates))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="Stable-Baselines3's PPO with a shared policy.")
    p.add_argument("--scenario", default="websearch-v0")
    p.add_argument("--supersuit", action="store_true", help="SuperSuit instead of the batch")
    p.add_argument("--networks", type=int, default=16, help="networks stepped at once")
    p.add_argument("--steps", type=int, default=32, help="steps per rollout")
    p.add_argument("--updates", type=int, default=60, help="rollouts")
    p.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    p.add_argument("--gamma", type=float, default=0.95, help="discount per step")
    p.add_argument("--gae-lambda", type=float, default=0.9)
    p.add_argument("--episodes", type=int, default=16, help="episodes of the evaluation")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train, evaluate, print the table; returns what it shows."""
    args = parse(argv)
    model = train(args)

    def policy(obs: np.ndarray) -> np.ndarray:
        return model.predict(obs.reshape(-1, obs.shape[-1]), deterministic=True)[0]

    core = ecn_marl.make(args.scenario)
    result = compare(core, policy, name="SB3 PPO", episodes=args.episodes, seed=args.seed)
    show(result)
    return result


if __name__ == "__main__":
    main()
