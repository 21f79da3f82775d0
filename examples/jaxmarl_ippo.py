"""Independent PPO in JaxMARL's style: all of it, environments included, is one compiled program.

`ecn_marl.jaxmarl_env` replaces `jaxmarl.make`, in JaxMARL's own `LogWrapper`. There is an actor for
each agent of each network, and all share their weights. Several seeds would be one more `vmap`.

    pip install "ecn-marl[jaxmarl]"
    python examples/jaxmarl_ippo.py             # a minute on two cores
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from jaxmarl.wrappers.baselines import LogWrapper

import ecn_marl
from ecn_marl.wrappers import compare, show

CLIP, ENTROPY, VALUE_WEIGHT, MAX_GRAD_NORM = 0.2, 3e-3, 0.5, 0.5
EPOCHS, MINIBATCHES = 4, 8


class ActorCritic(nn.Module):
    """Log-probabilities of the choices, and the value, from one agent's observation."""

    choices: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Two towers of tanh layers."""

        def tower(outputs: int, gain: float) -> jax.Array:
            x = obs
            for _ in range(2):
                x = nn.tanh(nn.Dense(64, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
            return nn.Dense(outputs, kernel_init=nn.initializers.orthogonal(gain))(x)

        # A small last layer makes the first policy close to uniform.
        return nn.log_softmax(tower(self.choices, 0.01)), tower(1, 1.0)[..., 0]


class Transition(NamedTuple):
    """A step of all actors, every field `[actors, ...]`."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def picked(log_policy: jax.Array, action: jax.Array) -> jax.Array:
    """Log-probabilities of actions."""
    return jnp.take_along_axis(log_policy, action[..., None], -1)[..., 0]


def loss(params: Any, apply: Callable[..., Any], batch: Any) -> jax.Array:
    """Clipped surrogate, squared value error and entropy bonus of a minibatch."""
    steps, gain = batch
    log_policy, value = apply(params, steps.obs)
    target = gain + steps.value
    ratio = jnp.exp(picked(log_policy, steps.action) - steps.log_prob)
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)  # the deviation may be zero
    surrogate = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain).mean()
    entropy = -(jnp.exp(log_policy) * log_policy).sum(-1).mean()
    return VALUE_WEIGHT * ((value - target) ** 2).mean() - surrogate - ENTROPY * entropy


def advantages(steps: Transition, bootstrap: jax.Array, gamma: float, lam: float) -> jax.Array:
    """Generalised advantage estimates, `[time, actors]`; nothing follows an episode's end."""

    def accumulate(carry: tuple[jax.Array, jax.Array], step: Transition) -> Any:
        gain, ahead = carry
        going = 1.0 - step.done
        delta = step.reward + gamma * ahead * going - step.value
        gain = delta + gamma * lam * going * gain
        return (gain, step.value), gain

    return jax.lax.scan(accumulate, (jnp.zeros_like(bootstrap), bootstrap), steps, reverse=True)[1]


def program(args: argparse.Namespace, env: Any) -> tuple[ActorCritic, Callable[..., Any]]:
    """The network, and the whole training as a function of a key."""
    agents, n = env.agents, args.networks
    model = ActorCritic(int(env.action_space(agents[0]).n))
    optimiser = optax.chain(optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adam(args.lr, eps=1e-5))

    def flat(rows: dict[str, jax.Array]) -> jax.Array:
        x = jnp.stack([rows[a] for a in agents])
        return x.reshape(-1, *x.shape[2:])

    def step(carry: Any, key: jax.Array) -> Any:
        train, state, obs = carry
        act_key, env_key = jax.random.split(key)
        flat_obs = flat(obs)
        log_policy, value = train.apply_fn(train.params, flat_obs)
        action = jax.random.categorical(act_key, log_policy)
        joint = dict(zip(agents, action.reshape(len(agents), n), strict=True))
        obs, state, reward, done, info = jax.vmap(env.step)(
            jax.random.split(env_key, n), state, joint
        )
        log_prob = picked(log_policy, action)
        transition = Transition(flat_obs, action, log_prob, value, flat(reward), flat(done))
        return (train, state, obs), (transition, info["returned_episode_returns"])

    def minibatch(train: TrainState, batch: Any) -> Any:
        slope = jax.grad(loss)(train.params, train.apply_fn, batch)
        return train.apply_gradients(grads=slope), None

    def update(carry: Any, key: jax.Array) -> Any:
        roll_key, key = jax.random.split(key)
        carry, (steps, returns) = jax.lax.scan(step, carry, jax.random.split(roll_key, args.steps))
        train, state, obs = carry
        last = train.apply_fn(train.params, flat(obs))[1]
        gain = advantages(steps, last, args.gamma, args.gae_lambda)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (steps, gain))
        for epoch in jax.random.split(key, EPOCHS):  # a Python loop: unrolled, as there are few
            order = jax.random.permutation(epoch, gain.size)
            parts = jax.tree.map(
                lambda x, o=order: x[o].reshape(MINIBATCHES, -1, *x.shape[1:]), batch
            )
            train, _ = jax.lax.scan(minibatch, train, parts)
        return (train, state, obs), {"reward": steps.reward.mean(), "return": returns[-1].mean()}

    def train(key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        net_key, reset_key, key = jax.random.split(key, 3)
        width = env.observation_space(agents[0]).shape
        params = model.init(net_key, jnp.zeros(width))
        start = TrainState.create(apply_fn=model.apply, params=params, tx=optimiser)
        obs, state = jax.vmap(env.reset)(jax.random.split(reset_key, n))
        keys = jax.random.split(key, args.updates)
        (trained, *_), log = jax.lax.scan(update, (start, state, obs), keys)
        return trained.params, log

    return model, train


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    p = argparse.ArgumentParser(description="IPPO in JaxMARL's style.")
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
    env = LogWrapper(ecn_marl.jaxmarl_env(args.scenario, actions="discrete"))
    model, train = program(args, env)
    start = time.perf_counter()
    params, log = jax.block_until_ready(jax.jit(train)(jax.random.key(args.seed)))
    seconds = time.perf_counter() - start
    for update in range(0, args.updates, max(args.updates // 10, 1)):
        reward, total = float(log["reward"][update]), float(log["return"][update])
        print(f"update {update + 1:4}  reward {reward:.4f}  last episodes' return {total:.1f}")
    rate = args.updates * args.steps * args.networks * env.num_agents / seconds
    print(f"{seconds:.0f} s with compilation, {rate:,.0f} agent-steps/s")

    greedy = jax.jit(lambda obs: model.apply(params, obs)[0].argmax(-1))
    result = compare(
        env.core,
        lambda obs: np.asarray(greedy(obs)),
        name="JaxMARL IPPO",
        episodes=args.episodes,
        seed=args.seed,
    )
    show(result)
    return result


if __name__ == "__main__":
    main()
