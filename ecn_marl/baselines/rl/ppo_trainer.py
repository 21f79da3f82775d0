"""The PPO trainers of thresholds: settings, rollouts and the update of `ippo` and `mappo`.

A trainer adds a critic to `PPOTrainer`, and nothing else. An update is

    roll out `rollout` intervals in `envs` environments  ->  values, GAE
    ->  `epochs` passes of clipped policy loss and value loss

and is one compiled function.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from ecn_marl.baselines.rl import class_weights
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.networks import (
    Mlp,
    standardise,
)
from ecn_marl.baselines.rl.one_network import OneNetwork
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.ppo import (
    Batch,
    Rule,
    explained_variance,
    improve_both,
    over_agents,
    policy_loss,
)
from ecn_marl.baselines.rl.ppo_config import (
    PPOConfig,
    clip_range,
    entropy_weight,
    kept_share,
)
from ecn_marl.baselines.rl.ppo_rollout import Kept, Rollout, TrainState, collect
from ecn_marl.baselines.rl.value_norm import ValueNorm
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.envs.interface import Environment


class PPOTrainer(OneNetwork):
    """An actor for every port, a critic, and PPO's update of both.

    A trainer of its own has `__init__`, which sets `critic`, and `init_critic` and `value`.

    Attributes:
        config: settings.
        net: network of the policy.
        actor_opt: its optimiser.
        critic: network of the value function.
        critic_opt: its optimiser.
        one_critic: whether there is one critic even where agents do not share parameters.
    """

    per_env = ("env", "obs", "kept", "memory")
    one_critic: ClassVar[bool] = False

    config: PPOConfig
    critic: nn.Module

    def __init__(self, env: Environment, config: PPOConfig) -> None:
        """Set up the policy and the optimisers.

        Args:
            env: functional environment (it is wrapped in `AutoReset`).
            config: settings.

        Raises:
            ValueError: `follow_j` for another reward than one in completion times.
        """
        super().__init__(env, config)
        if config.follow_j:
            class_weights.check(env)
        self.net = self.agent_network(self.head.outputs, 0.01)
        norm, shared = config.max_grad_norm, config.shared
        steps = config.anneal_updates * config.epochs * config.minibatches
        self.actor_opt = adam(config.actor_lr, norm, steps, shared)
        self.critic_opt = adam(config.critic_lr, norm, steps, shared or self.one_critic)

    def agent_network(self, outputs: int, last_scale: float = 1.0) -> nn.Module:
        """A network from an agent's observation to outputs, with a memory if that is set."""
        c, standardised = self.config, self.config.standardise > 0
        if c.memory:
            return rc.Recurrent(c.hidden, c.memory, outputs, last_scale, standardised)
        return Mlp(c.hidden, outputs, last_scale, standardised)

    def init_agents(self, net: nn.Module, key: jax.Array) -> PyTree:
        """Parameters of an `agent_network`, for all agents or of each."""
        shared = self.config.shared
        return rc.init_agents(net, key, self.env.obs_dim, self.env.num_agents, shared)

    @abstractmethod
    def init_critic(self, key: jax.Array) -> PyTree:
        """Parameters of the critic."""

    def critic_units(self) -> int:
        """Units of the critic's memory; 0 for a critic without one."""
        return 0

    @abstractmethod
    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """The critic's output for observations: values, normalised ones with `value_norm`."""

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks, optimisers and environments."""
        c, env = self.config, self.env
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        actor = self.init_agents(self.net, actor_key)
        critic = self.init_critic(critic_key)
        obs, state, measured = start_measured(
            env, env_key, phase_key, params, c.envs, c.standardise
        )
        if measured is not None:
            actor = standardise(actor, *measured.obs)
            critic = standardise(critic, *measured.obs)
        return TrainState(
            actor=actor,
            critic=critic,
            actor_opt=self.actor_opt.init(actor),
            critic_opt=self.critic_opt.init(critic),
            env=state,
            obs=obs,
            key=key,
            updates=jnp.zeros((), jnp.int32),
            norm=ValueNorm.create(),
            kept=self._nothing_kept() if c.persistence else None,
            weights=jnp.asarray(params.reward.slowdown_weights) if c.follow_j else None,
            memory=self._nothing_remembered() if c.memory else None,
        )

    def _nothing_kept(self) -> Kept:
        out = jnp.zeros((self.config.envs, self.env.num_agents, self.head.outputs))
        return Kept(jnp.zeros_like(self.head.mode(out)), jnp.ones(out.shape[:1], bool))

    def _nothing_remembered(self) -> rc.Memories:
        def zeros(units: int) -> Array:
            return jnp.zeros((self.config.envs, self.env.num_agents, units))

        units = self.critic_units()
        return rc.Memories(zeros(self.config.memory), zeros(units) if units else None)

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, estimate advantages, improve policy and value function."""
        c = self.config
        key, roll_key, learn_key = jax.random.split(state.key, 3)
        state = replace(state, key=key)
        if c.follow_j:
            params = class_weights.in_force(params, state.weights)
        state, batch, metrics = self.experience(state, roll_key, params)
        state, losses = self.learn(state, batch, learn_key)
        metrics |= losses
        if c.follow_j:
            weights = class_weights.followed(
                self.env.episode_metrics, state.env.env, params, state.weights
            )
            state = replace(state, weights=weights)
            metrics |= dict(zip(class_weights.NAMES, weights, strict=True))
        return state, metrics

    def experience(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Batch, dict[str, Array]]:
        """Roll out, and estimate advantages and returns.

        Args:
            state: training state; its environments, memories and `norm` move on.
            key: PRNG key.
            params: parameters of the environment.

        Returns:
            State after, what there is to learn from, and means of the rollout.
        """
        before = state.memory
        state, rollout, metrics = self.roll_out(state, key, params)
        output, next_output, memory = self.judge(state.critic, rollout, state.memory)
        state = replace(state, memory=memory)
        value = state.norm.restore(output)
        advantage, target = self.advantages(rollout, value, state.norm.restore(next_output))
        norm = state.norm
        if self.config.value_norm:
            norm = norm.updated(target, self.config.value_norm_decay)
        taken = (rollout.obs, rollout.action, rollout.log_prob)
        batch = Batch(*taken, advantage, norm.normalise(target), output, rollout.drawn)
        if before is not None:
            batch = rc.sequences(batch, before, rollout.ended)
        metrics |= {"explained_variance": explained_variance(target, value)}
        return replace(state, norm=norm), batch, metrics

    def judge(
        self, critic: PyTree, rollout: Rollout, memory: rc.Memories | None
    ) -> tuple[Array, Array, rc.Memories | None]:
        """The critic's output for a rollout's observations and for those after, `[time, envs, A]`.

        Args:
            critic: its parameters.
            rollout: the rollout.
            memory: what agents remember; a critic's own memory is that before the rollout.

        Returns:
            Both, and the memories with the critic's moved on.
        """
        return self.value(critic, rollout.obs), self.value(critic, rollout.final_obs), memory

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations, sampled or the most likely ones.

        Raises:
            ValueError: the policy has a memory, so that observations alone do not tell its actions.
        """
        if self.config.memory:
            raise rc.needs_memory(self.config.memory)
        out, _ = self.respond(actor, obs)
        return self.head.mode(out) if greedy else self.head.sample(key, out)

    def respond(
        self, actor: PyTree, obs: Float[Array, "*b agents obs"], memory: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Outputs of the policy's network, `[*b, A, n]`, and the memory after; see `rc.respond`."""
        return rc.respond(self.net, actor, obs, memory, self.config.shared)

    def roll_out(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Rollout, dict[str, Array]]:
        """Act for `rollout` intervals in all environments, see `collect`."""
        c = self.config
        keep = kept_share(c, state.updates)
        return collect(self.env, self.head, self.respond, state, key, params, c.rollout, keep)

    def advantages(
        self, rollout: Rollout, value: Array, next_value: Array
    ) -> tuple[Float[Array, "time envs agents"], Float[Array, "time envs agents"]]:
        """Advantages and returns of a rollout, see `gae`.

        Args:
            rollout: the rollout.
            value: value of `rollout.obs`.
            next_value: value of `rollout.final_obs`.
        """
        c = self.config
        reward = c.reward_scale * rollout.reward
        steps = (reward, value, next_value, rollout.terminated, rollout.truncated, c.gamma)
        advantage, target = gae(*steps, c.gae_lambda)
        if c.critic_lambda >= 0.0:
            _, target = gae(*steps, c.critic_lambda)
        return advantage, target

    def learn(
        self, state: TrainState, batch: Batch, key: jax.Array
    ) -> tuple[TrainState, dict[str, Array]]:
        """`epochs` passes of gradient steps on both losses; metrics are those of `improve`."""
        c = self.config
        clip, entropy = clip_range(c, state.updates), entropy_weight(c, state.updates)
        rules: tuple[Rule, Rule] = (
            (lambda net, rows: self.policy_loss(net, rows, clip, entropy), self.actor_opt),
            (self.value_loss, self.critic_opt),
        )
        state, losses = improve_both(state, rules, batch, key, c.epochs, c.minibatches)
        return state, losses | {"clip": clip}

    def values(self, critic: PyTree, batch: Batch) -> Float[Array, "rows agents"]:
        """The critic's output for a minibatch; for sequences, their intervals are the rows."""
        if batch.ended is not None:
            batch = rc.steps_of(rc.by_time(batch))
        return self.value(critic, batch.obs)

    def policy_loss(
        self, actor: PyTree, batch: Batch, clip: float | Array, entropy: float | Array
    ) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective (PET, Eq. 11) and entropy bonus; see `policy_loss`."""
        c = self.config
        if isinstance(self.net, rc.Recurrent):
            batch = rc.by_time(batch)
            out, _ = rc.unroll(
                self.net, actor, batch.obs, batch.memory.actor, batch.ended, c.shared
            )
            out, batch = out.reshape(-1, *out.shape[2:]), rc.steps_of(batch)
        else:
            out, _ = self.respond(actor, batch.obs)
        return policy_loss(self.head, out, batch, clip, entropy, c.shared)

    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Loss of the critic (PET, Eq. 12), with `huber` and `value_clip` that of Yu et al.

        That is the larger of the losses of its output and of the output clipped to the old one.
        """
        c = self.config
        value = self.values(critic, batch)
        if batch.ended is not None:
            batch = rc.steps_of(rc.by_time(batch))
        error = _value_error(value - batch.target, c.huber)
        if math.isfinite(c.value_clip):
            old = jnp.asarray(batch.value)
            clipped = old + jnp.clip(value - old, -c.value_clip, c.value_clip)
            error = jnp.maximum(error, _value_error(clipped - batch.target, c.huber))
        loss = over_agents(error, c.shared or self.one_critic)
        return loss, {"value_loss": error.mean()}


def _value_error(error: Array, huber: float) -> Array:
    """Half the square, beyond `huber` linear."""
    return 0.5 * error**2 if math.isinf(huber) else optax.huber_loss(error, delta=huber)
