"""PPO in one file, for single agents, on the gymnasium vector environment.

Every port of every network is a sub-environment, and all share one policy. Only the last lines
depend on networks: they compare the policy with static thresholds.

    python examples/cleanrl_ppo.py                      # a minute on two cores
    python examples/cleanrl_ppo.py --updates 200 --networks 32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ecn_marl.wrappers import compare, show, vector_env

CLIP, ENTROPY, VALUE_WEIGHT, MAX_GRAD_NORM = 0.2, 3e-3, 0.5, 0.5
EPOCHS, MINIBATCHES = 4, 8


def mlp(key: jax.Array, sizes: Sequence[int]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights of a network of tanh layers; the last one starts close to zero."""
    keys = jax.random.split(key, len(sizes) - 1)
    gains = [2**0.5] * (len(keys) - 1) + [0.01]  # so that the first policy is close to uniform
    shapes = pairwise(sizes)
    return [
        (jax.nn.initializers.orthogonal(g)(k, shape), jnp.zeros(shape[1]))
        for k, g, shape in zip(keys, gains, shapes, strict=True)
    ]


def forward(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Outputs of the network."""
    for w, b in layers[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


class Agent:
    """An actor with one categorical per action component, and a critic; all functions are pure."""

    def __init__(self, obs_dim: int, nvec: Sequence[int], lr: float) -> None:
        """Take the sizes of the spaces and the learning rate."""
        self.obs_dim, self.nvec = obs_dim, [int(n) for n in nvec]
        clip = optax.clip_by_global_norm(MAX_GRAD_NORM)
        self.optimiser = optax.chain(clip, optax.adam(lr, eps=1e-5))

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Parameters and state of the optimiser."""
        actor, critic = jax.random.split(key)
        params = {
            "actor": mlp(actor, (self.obs_dim, 64, 64, sum(self.nvec))),
            "critic": mlp(critic, (self.obs_dim, 64, 64, 1)),
        }
        return params, self.optimiser.init(params)

    def log_policy(self, params: Any, obs: jax.Array) -> list[jax.Array]:
        """Log-probabilities of the choices of each component."""
        parts = jnp.split(forward(params["actor"], obs), np.cumsum(self.nvec)[:-1], -1)
        return [jax.nn.log_softmax(part) for part in parts]

    def log_prob(self, policy: list[jax.Array], action: jax.Array) -> jax.Array:
        """Log-probability of actions."""
        picked = (
            jnp.take_along_axis(part, action[..., i : i + 1], -1)[..., 0]
            for i, part in enumerate(policy)
        )
        return sum(picked, jnp.zeros(action.shape[:-1]))

    def greedy(self, params: Any, obs: jax.Array) -> jax.Array:
        """The most likely actions."""
        return jnp.stack([part.argmax(-1) for part in self.log_policy(params, obs)], -1)

    @partial(jax.jit, static_argnums=0)
    def act(self, params: Any, key: jax.Array, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sampled actions and their log-probabilities."""
        policy = self.log_policy(params, obs)
        keys = jax.random.split(key, len(policy))
        choices = [jax.random.categorical(k, part) for k, part in zip(keys, policy, strict=True)]
        action = jnp.stack(choices, -1)
        return action, self.log_prob(policy, action)

    @partial(jax.jit, static_argnums=0)
    def value(self, params: Any, obs: jax.Array) -> jax.Array:
        """Values of observations."""
        return forward(params["critic"], obs)[..., 0]

    def loss(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """Clipped surrogate, squared value error and entropy bonus."""
        policy = self.log_policy(params, batch["obs"])
        ratio = jnp.exp(self.log_prob(policy, batch["action"]) - batch["log_prob"])
        gain = batch["advantage"]
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)  # the deviation may be zero
        surrogate = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain).mean()
        entropy = sum(-(jnp.exp(part) * part).sum(-1).mean() for part in policy)
        error = ((self.value(params, batch["obs"]) - batch["target"]) ** 2).mean()
        return VALUE_WEIGHT * error - surrogate - ENTROPY * entropy

    @partial(jax.jit, static_argnums=0)
    def learn(self, params: Any, moments: Any, key: jax.Array, batch: dict[str, jax.Array]) -> Any:
        """Some passes of minibatch steps over a rollout, rows shuffled."""
        n = len(batch["target"])

        def minibatch(carry: Any, rows: jax.Array) -> Any:
            params, moments = carry
            slope = jax.grad(self.loss)(params, {k: x[rows] for k, x in batch.items()})
            update, moments = self.optimiser.update(slope, moments, params)
            return (optax.apply_updates(params, update), moments), None

        keys = jax.random.split(key, EPOCHS)
        orders = jax.vmap(lambda k: jax.random.permutation(k, n))(keys)
        rows = orders[:, : n - n % MINIBATCHES].reshape(EPOCHS * MINIBATCHES, -1)
        return jax.lax.scan(minibatch, (params, moments), rows)[0]


def advantages(delta: np.ndarray, ended: np.ndarray, decay: float) -> np.ndarray:
    """Generalised advantage estimates: decayed sums of later errors of the same episode."""
    advantage, carry = np.zeros_like(delta), np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        advantage[t] = carry = delta[t] + decay * ~ended[t] * carry
    return advantage


def train(args: argparse.Namespace, envs: Any) -> tuple[Agent, Any]:
    """PPO; the agent and its parameters."""
    nvec = np.atleast_1d(envs.single_action_space.nvec)
    agent = Agent(envs.single_observation_space.shape[0], nvec, args.lr)
    key = jax.random.key(args.seed)
    params, moments = agent.init(key)
    obs, _ = envs.reset(seed=args.seed)
    start = time.perf_counter()
    for update in range(args.updates):
        rollout: dict[str, list[Any]] = {}
        for _ in range(args.steps):
            key, act_key = jax.random.split(key)
            # To the host in one transfer, because the environment takes numpy.
            action, log_prob = jax.device_get(agent.act(params, act_key, obs))
            following, reward, terminated, truncated, infos = envs.step(action)
            # A truncated episode would have continued from its own last observation.
            next_obs = following.copy()
            if truncated.any():
                next_obs[truncated] = np.stack(infos["final_obs"][truncated])
            for name, x in {
                "obs": obs,
                "action": action,
                "log_prob": log_prob,
                "reward": reward.astype(np.float32),
                "next_obs": next_obs,
                "terminated": terminated,
                "ended": terminated | truncated,
            }.items():
                rollout.setdefault(name, []).append(x)
            obs = following
        data = {name: np.stack(rows) for name, rows in rollout.items()}
        value, ahead = (np.asarray(agent.value(params, data[x])) for x in ("obs", "next_obs"))
        delta = data["reward"] + args.gamma * ahead * ~data["terminated"] - value
        data["advantage"] = advantages(delta, data["ended"], args.gamma * args.gae_lambda)
        data["target"] = data["advantage"] + value
        used = ("obs", "action", "log_prob", "advantage", "target")
        batch = {name: data[name].reshape(-1, *data[name].shape[2:]) for name in used}
        key, learn_key = jax.random.split(key)
        params, moments = agent.learn(params, moments, learn_key, batch)
        if update % max(args.updates // 10, 1) == 0 or update == args.updates - 1:
            samples = (update + 1) * args.steps * envs.num_envs
            rate = samples / (time.perf_counter() - start)
            mean = data["reward"].mean()
            print(
                f"update {update + 1:4}  reward {mean:.4f}  {rate:,.0f} agent-steps/s", flush=True
            )
    return agent, params


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="PPO on the gymnasium vector environment.")
    p.add_argument("--scenario", default="websearch-v0")
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
    envs = vector_env(args.scenario, args.networks, per_agent=True, autoreset_mode="SameStep")
    agent, params = train(args, envs)

    def policy(obs: np.ndarray) -> Any:
        return agent.greedy(params, obs)

    result = compare(envs.core, policy, name="PPO", episodes=args.episodes, seed=args.seed)
    show(result)
    return result


if __name__ == "__main__":
    main()
