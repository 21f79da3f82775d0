"""PPO from TorchRL's parts on ECN tuning, one policy shared by all ports.

By default `torchrl_env` steps a batch of networks and shares tensors without a copy. With
`--pettingzoo` each network is TorchRL's own `PettingZooWrapper` in a `SerialEnv`: slower, but it
works with other wrappers of PettingZoo. Both group the agents, so the rest of the script is equal.

    pip install "ecn-marl[torchrl]"
    python examples/torchrl_ppo.py              # a minute on two cores
    python examples/torchrl_ppo.py --pettingzoo
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import PettingZooWrapper, SerialEnv
from torchrl.modules import ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, ValueEstimators

import ecn_marl
from ecn_marl.wrappers import compare, show, torchrl_env

EPOCHS, MINIBATCHES = 4, 8


def environment(args: argparse.Namespace) -> tuple[Any, str]:
    """The networks as one batched environment, and the key of its agents."""
    if not args.pettingzoo:
        env = torchrl_env(args.scenario, args.networks, actions="discrete")
        env.set_seed(args.seed)
        return env, "agents"

    def single() -> PettingZooWrapper:
        face = ecn_marl.parallel_env(args.scenario, actions="discrete")
        return PettingZooWrapper(face, categorical_actions=True)

    env = SerialEnv(args.networks, single)
    env.set_seed(args.seed)
    return env, "port"  # agents are `port_0`, `port_1` and so on


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two tanh layers; the last layer starts close to zero."""
    net = nn.Sequential(
        nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )
    nn.init.orthogonal_(net[-1].weight, 0.01)
    return net


def networks(core: Any, group: str) -> tuple[ProbabilisticActor, TensorDictModule]:
    """Actor and critic; the input of each is one agent's observation."""
    obs_keys = [(group, "observation")]
    logits = TensorDictModule(mlp(core.obs_dim, core.action.n), obs_keys, [(group, "logits")])
    actor = ProbabilisticActor(
        logits,
        in_keys={"logits": (group, "logits")},
        out_keys=[(group, "action")],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
        log_prob_key=(group, "log_prob"),
    )
    return actor, TensorDictModule(mlp(core.obs_dim, 1), obs_keys, [(group, "value")])


def objective(args: argparse.Namespace, group: str, actor: Any, critic: Any) -> ClipPPOLoss:
    """Clipped surrogate with generalised advantages, per agent."""
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=3e-3,
        critic_coeff=0.5,
        loss_critic_type="l2",
    )
    names = {"sample_log_prob": "log_prob", "value": "value"}
    names |= {name: name for name in ("action", "reward", "done", "terminated")}
    names |= {name: name for name in ("advantage", "value_target")}
    loss.set_keys(**{key: (group, name) for key, name in names.items()})
    loss.make_value_estimator(ValueEstimators.GAE, gamma=args.gamma, lmbda=args.gae_lambda)
    return loss


def with_ends(data: TensorDictBase, group: str) -> TensorDictBase:
    """A rollout in which every agent has its network's `done` and `terminated`."""
    after = data["next"]
    for name in ("done", "terminated"):
        if (group, name) not in after.keys(True):
            flag = after[name].unsqueeze(-2)
            after[group, name] = flag.expand(after[group, "reward"].shape).clone()
    return data


def train(args: argparse.Namespace) -> ProbabilisticActor:
    """PPO; the trained actor."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # layers are small: threads would wait for each other
    env, group = environment(args)
    actor, critic = networks(ecn_marl.make(args.scenario, actions="discrete"), group)
    loss = objective(args, group, actor, critic)
    optimiser = torch.optim.Adam(loss.parameters(), args.lr, eps=1e-5)
    frames = args.steps * args.networks
    collector = Collector(
        env,
        actor,
        frames_per_batch=frames,
        total_frames=frames * args.updates,
        device="cpu",
        auto_register_policy_transforms=False,
    )
    start = time.perf_counter()
    for update, data in enumerate(collector):
        with torch.no_grad():
            loss.value_estimator(
                with_ends(data, group),
                params=loss.critic_network_params,
                target_params=loss.target_critic_network_params,
            )
        gain = data[group, "advantage"]
        # Over the whole rollout; the deviation may be zero.
        data[group, "advantage"] = (gain - gain.mean()) / (gain.std() + 1e-8)
        reward = data["next", group, "reward"]
        rows = data.reshape(-1)
        for _ in range(EPOCHS):
            for part in torch.randperm(frames).chunk(MINIBATCHES):
                losses = loss(rows[part])
                optimiser.zero_grad()
                sum(losses[k] for k in ("loss_objective", "loss_critic", "loss_entropy")).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()
        if update % max(args.updates // 10, 1) == 0 or update == args.updates - 1:
            rate = (update + 1) * reward.numel() / (time.perf_counter() - start)
            line = f"update {update + 1:4}  reward {reward.mean():.4f}  {rate:,.0f} agent-steps/s"
            print(line, flush=True)
    collector.shutdown()
    return actor


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="PPO from TorchRL's parts with a shared policy.")
    p.add_argument("--scenario", default="websearch-v0")
    p.add_argument("--pettingzoo", action="store_true", help="PettingZooWrapper, no batch")
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
    logits = train(args).module[0].module

    def policy(obs: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            return logits(torch.from_numpy(obs)).argmax(-1)

    core = ecn_marl.make(args.scenario, actions="discrete")
    result = compare(core, policy, name="TorchRL PPO", episodes=args.episodes, seed=args.seed)
    show(result)
    return result


if __name__ == "__main__":
    main()
