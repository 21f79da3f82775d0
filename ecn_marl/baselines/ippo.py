"""IPPO: every port is its own PPO learner (de Witt et al. 2020), the algorithm of PET.

PET: "Multi-Agent Reinforcement Learning-Based Automatic ECN Tuning", §4.3, Algorithm 1. Each agent
has an actor and a critic over its own observations; their parameters are shared between agents, as
when one pre-trained model is installed on every switch, or one set each. An update is

    roll out `rollout` intervals in `envs` environments  ->  GAE (Eqs. 9, 10)
    ->  `epochs` passes of clipped policy loss (Eq. 11) and squared value loss (Eq. 12)

and is one compiled function. Episodes only end by their horizon; such a truncated step is
bootstrapped from the value of its final observation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.common.distributions import Head, head_for
from ecn_marl.baselines.common.gae import gae
from ecn_marl.baselines.common.networks import Mlp, apply_network, init_network
from ecn_marl.wrappers import AutoReset


@dataclass(frozen=True)
class IPPOConfig:
    """Settings of IPPO. What PET states (§5.2, Table 2) is the default, but for `gae_lambda`.

    PET prints a "GAE coefficient" of 0.01. Taken as lambda it makes learners myopic: a high
    threshold raises the utilisation of this interval and the queue of the next ones, and on
    `websearch-v0` agents then settle near (60 KB, 3.8 MB, 0.35) and earn 0.7805 where SECN1 earns
    0.7790 and 0.9 leads to 0.8001. `IPPOConfig(gae_lambda=0.01)` is PET to the letter.

    Attributes:
        envs: environments stepped at once.
        rollout: intervals per environment and update.
        epochs: passes over a rollout.
        minibatches: gradient steps per pass.
        actor_lr: learning rate of the policy (PET: 4e-4).
        critic_lr: learning rate of the value function (PET: 1e-3).
        gamma: discount per tuning interval. PET does not state it; the effect of a threshold on the
            queue is over within some ten intervals.
        gae_lambda: decay of the advantage estimate.
        clip: epsilon of the clipped objective (PET: 0.2).
        clip_decay: factor that epsilon shrinks by every `clip_decay_updates` updates (Eq. 13;
            PET: 0.99).
        clip_decay_updates: T of Eq. 13 (PET: 50).
        clip_min: epsilon never shrinks below this.
        entropy: weight of the entropy bonus.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers of actor and critic (PET does not state them).
        shared: one set of parameters for all agents, or one per agent.
    """

    envs: int = 64
    rollout: int = 32
    epochs: int = 4
    minibatches: int = 4
    actor_lr: float = 4e-4
    critic_lr: float = 1e-3
    gamma: float = 0.95
    gae_lambda: float = 0.9
    clip: float = 0.2
    clip_decay: float = 0.99
    clip_decay_updates: int = 50
    clip_min: float = 0.05
    entropy: float = 3e-3
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    shared: bool = True

    def __post_init__(self) -> None:
        """Check all settings."""
        for name in ("envs", "rollout", "epochs", "minibatches", "clip_decay_updates"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise bad_value(name, getattr(self, name), "a number in [0, 1]")
        for name in ("actor_lr", "critic_lr", "clip", "clip_decay", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise bad_value(name, getattr(self, name), "a number > 0")
        if (self.envs * self.rollout) % self.minibatches:
            allowed = f"a divisor of envs * rollout = {self.envs * self.rollout}"
            raise bad_value("minibatches", self.minibatches, allowed)

    @property
    def steps_per_update(self) -> int:
        """Environment steps (tuning intervals) per update."""
        return self.envs * self.rollout


@struct.dataclass
class TrainState:
    """Everything training needs to go on.

    Attributes:
        actor: policy parameters.
        critic: value parameters.
        actor_opt: optimiser state of the policy.
        critic_opt: optimiser state of the value function.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
    """

    actor: Any
    critic: Any
    actor_opt: Any
    critic_opt: Any
    env: Any
    obs: Leaf
    key: Leaf
    updates: Leaf


class Batch(NamedTuple):
    """A rollout, leaves `[time, envs, A, ...]`."""

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array


class IPPO:
    """The algorithm for one environment and configuration; holds no arrays."""

    def __init__(self, env: Any, config: IPPOConfig) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`).
            config: settings.
        """
        self.env = AutoReset(env)
        self.config = config
        self.head: Head = head_for(env.action)
        self.actor = Mlp(config.hidden, self.head.outputs, last_scale=0.01)
        self.critic = Mlp(config.hidden, 1)

        def optimiser(rate: float) -> optax.GradientTransformation:
            return optax.chain(
                optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5)
            )

        self.actor_opt = optimiser(config.actor_lr)
        self.critic_opt = optimiser(config.critic_lr)

    def init(self, key: jax.Array, params: Any) -> TrainState:
        """Fresh networks, optimisers and environments.

        The first episodes start with part of their steps used up, at random: else all environments
        would be in the same phase of an episode at all times, and every update would see one phase.
        """
        c, env = self.config, self.env
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        shape = (env.obs_dim, env.num_agents, c.shared)
        actor = init_network(self.actor, actor_key, *shape)
        critic = init_network(self.critic, critic_key, *shape)
        obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(env_key, c.envs), params)
        phase = jax.random.randint(phase_key, (c.envs,), 0, params.max_steps)
        state = replace(state, env=replace(state.env, steps=phase))
        return TrainState(
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def act(
        self, actor: Any, key: jax.Array, obs: Float[Array, "*b agents obs"], greedy: bool = False
    ) -> Array:
        """Actions for observations, sampled or the most likely ones."""
        out = apply_network(self.actor, actor, obs, self.config.shared)
        return self.head.mode(out) if greedy else self.head.sample(key, out)

    def value(self, critic: Any, obs: Float[Array, "*b agents obs"]) -> Float[Array, "*b agents"]:
        """Value of observations."""
        return apply_network(self.critic, critic, obs, self.config.shared)[..., 0]

    def update(self, state: TrainState, params: Any) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, estimate advantages, improve policy and value function.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            New state, and the update's metrics.
        """
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        state, batch, metrics = self._collect(replace(state, key=key), roll_key, params)
        networks, losses = self._learn(state, learn_key, batch)
        return networks, metrics | losses

    def _collect(
        self, state: TrainState, key: jax.Array, params: Any
    ) -> tuple[TrainState, Batch, dict[str, Array]]:
        """Run the policy for `rollout` intervals in all environments."""
        c = self.config
        step_env = jax.vmap(self.env.step, (0, 0, 0, None))

        def step(carry: tuple[Any, Array], key: jax.Array) -> tuple[Any, Any]:
            env_state, obs = carry
            act_key, env_key = jax.random.split(key)
            out = apply_network(self.actor, state.actor, obs, c.shared)
            action = self.head.sample(act_key, out)
            keys = jax.random.split(env_key, c.envs)
            after, env_state, reward, terminated, truncated, info = step_env(
                keys, env_state, action, params
            )
            seen = {
                "reward": reward.mean(),
                "queue_mean": info["queue_mean"].mean(),
                "utilisation": info["utilisation"].mean(),
            }
            log_prob = self.head.log_prob(out, action)
            row = (obs, action, log_prob, reward, terminated, truncated, info["final_obs"], seen)
            return (env_state, after), row

        (env_state, obs), rows = jax.lax.scan(
            step, (state.env, state.obs), jax.random.split(key, c.rollout)
        )
        before, action, log_prob, reward, terminated, truncated, last, seen = rows
        value, next_value = self.value(state.critic, before), self.value(state.critic, last)
        advantage, target = gae(
            reward, value, next_value, terminated, truncated, c.gamma, c.gae_lambda
        )
        metrics = {name: x.mean() for name, x in seen.items()}
        spread = jnp.var(target)
        metrics["explained_variance"] = 1.0 - jnp.var(target - value) / jnp.maximum(spread, 1e-12)
        after = replace(state, env=env_state, obs=obs)
        return after, Batch(before, action, log_prob, advantage, target), metrics

    def _learn(
        self, state: TrainState, key: jax.Array, batch: Batch
    ) -> tuple[TrainState, dict[str, Array]]:
        """Several passes of minibatch gradient steps over a rollout."""
        c = self.config
        decay = jnp.asarray(c.clip_decay) ** (state.updates / c.clip_decay_updates)
        clip = jnp.maximum(c.clip * decay, c.clip_min)
        total = c.steps_per_update
        flat = jax.tree.map(lambda x: x.reshape(total, *x.shape[2:]), batch)

        def gradient_step(carry: Any, rows: Array) -> tuple[Any, dict[str, Array]]:
            actor, critic, actor_opt, critic_opt = carry
            part = jax.tree.map(lambda x: x[rows], flat)
            (_, aux), grad = jax.value_and_grad(self.policy_loss, has_aux=True)(actor, part, clip)
            step, actor_opt = self.actor_opt.update(grad, actor_opt, actor)
            actor = optax.apply_updates(actor, step)
            loss, grad = jax.value_and_grad(self.value_loss)(critic, part)
            step, critic_opt = self.critic_opt.update(grad, critic_opt, critic)
            critic = optax.apply_updates(critic, step)
            return (actor, critic, actor_opt, critic_opt), aux | {"value_loss": loss}

        def epoch(carry: Any, key: jax.Array) -> tuple[Any, dict[str, Array]]:
            rows = jax.random.permutation(key, total).reshape(c.minibatches, -1)
            return jax.lax.scan(gradient_step, carry, rows)

        carry = (state.actor, state.critic, state.actor_opt, state.critic_opt)
        carry, losses = jax.lax.scan(epoch, carry, jax.random.split(key, c.epochs))
        actor, critic, actor_opt, critic_opt = carry
        losses = {name: x.mean() for name, x in losses.items()} | {"clip": clip}
        return replace(
            state,
            actor=actor,
            critic=critic,
            actor_opt=actor_opt,
            critic_opt=critic_opt,
            updates=state.updates + 1,
        ), losses

    def policy_loss(
        self, actor: Any, batch: Batch, clip: float | Array
    ) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective (Eq. 11) and entropy bonus, and what is logged of them.

        Args:
            actor: policy parameters.
            batch: leaves `[rows, A, ...]`; advantages are normalised here, over the minibatch.
            clip: epsilon.
        """
        out = apply_network(self.actor, actor, batch.obs, self.config.shared)
        change = self.head.log_prob(out, batch.action) - batch.log_prob
        ratio = jnp.exp(change)
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
        entropy = self.head.entropy(out).mean()
        loss = -gain.mean() - self.config.entropy * entropy
        return loss, {
            "policy_loss": -gain.mean(),
            "entropy": entropy,
            "kl": jnp.mean(ratio - 1.0 - change),
            "clipped": jnp.mean(jnp.abs(ratio - 1.0) > clip),
        }

    def value_loss(self, critic: Any, batch: Batch) -> Array:
        """Squared error of the value function (Eq. 12)."""
        return 0.5 * jnp.mean((self.value(critic, batch.obs) - batch.target) ** 2)
