"""The PPO trainers of thresholds: settings, rollouts and the update of `ippo` and `mappo`.

A trainer adds a critic to `PPOTrainer`, and nothing else. An update is

    roll out `rollout` intervals in `envs` environments  ->  values, GAE
    ->  `epochs` passes of clipped policy loss and value loss

and is one compiled function. Three options are neither PPO's nor the papers'. They are candidates
for rewards in completion times, off by default; `docs/benchmark.md` says what two of them did:

* `persistence`: thresholds act on completion times over many intervals. While data are collected,
  a port keeps its last action with a probability that falls to 0 over the run, so that exploration
  is made of stretches long enough to show in the reward. Kept actions stay out of the policy's
  loss; the critic learns from every step.
* `follow_j`: the weights of size classes in the reward follow the benchmark's objective, see
  `class_weights`.
* `value_norm`: the critic predicts normalised returns, see `value_norm` (Yu et al.).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import class_weights
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.networks import (
    Mlp,
    apply_network,
    init_network,
    network_flops,
    one_agent,
    standardise,
)
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.ppo import (
    Batch,
    Rule,
    explained_variance,
    improve_both,
    over_agents,
    policy_loss,
)
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.rl.value_norm import ValueNorm
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.environments import start_measured
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import Environment


@dataclass(frozen=True)
class PPOConfig:
    """Settings that all PPO trainers have.

    Attributes:
        envs: environments stepped at once.
        rollout: intervals per environment and update.
        epochs: passes over a rollout.
        minibatches: gradient steps per pass.
        actor_lr: learning rate of the policy.
        critic_lr: learning rate of the value function.
        anneal_updates: updates over which both rates fall to `optimisers.FINAL_RATE` of what they
            were; 0 for rates that do not fall.
        gamma: discount per tuning interval.
        gae_lambda: decay of the advantage estimate.
        critic_lambda: the same for the returns that the critic is fitted to; 1 for the sum of all
            later rewards of the rollout, -1 for `gae_lambda`.
        clip: epsilon of the clipped objective.
        clip_decay: factor that epsilon shrinks by every `clip_decay_updates` updates.
        clip_decay_updates: see `clip_decay`; epsilon does not shrink before.
        clip_min: epsilon never shrinks below this.
        entropy: weight of the entropy bonus.
        entropy_start: what is added to it at the start; falls linearly to 0 over the first half of
            `anneal_updates`, and stays if these are 0.
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers of actor and critic.
        shared: one set of parameters for all agents, or one per agent.
        reward_scale: factor of the rewards that are learnt from. It should bring returns to about
            1: a critic starts near 0 and takes long to reach returns of a hundred.
        standardise: intervals of random actions at the start, by which networks standardise their
            features, see `networks.standardise`; 0 for unscaled features.
        persistence: probability, at the start, that a port keeps its last action while data are
            collected. It falls to 0 over `anneal_updates`, and stays if these are 0.
        follow_j: whether the weights of size classes in the reward follow J, see `class_weights`;
            for rewards in completion times only.
        value_norm: whether returns are normalised for the critic, see `value_norm`.
        value_norm_decay: factor of earlier returns' weight at every update.
        value_clip: change of the critic's output since the rollout beyond which its gradient is
            cut, in the critic's units; inf for no cut.
        huber: error at which the value loss goes from squared to linear, in the critic's units;
            inf for a loss that is squared everywhere.
    """

    envs: int = 64
    rollout: int = 32
    epochs: int = 2
    minibatches: int = 8
    actor_lr: float = 4e-4
    critic_lr: float = 1e-3
    anneal_updates: int = 0
    gamma: float = 0.95
    gae_lambda: float = 0.9
    critic_lambda: float = -1.0
    clip: float = 0.2
    clip_decay: float = 0.99
    clip_decay_updates: int = 50
    clip_min: float = 0.05
    entropy: float = 3e-3
    entropy_start: float = 0.0
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    shared: bool = True
    reward_scale: float = 1.0
    standardise: int = 0
    persistence: float = 0.0
    follow_j: bool = False
    value_norm: bool = False
    value_norm_decay: float = 0.99
    value_clip: float = math.inf
    huber: float = math.inf

    def __post_init__(self) -> None:
        """Check all settings."""
        check.not_negative(self, "standardise", "anneal_updates")
        check.at_least_one(self, "envs", "rollout", "epochs", "minibatches", "clip_decay_updates")
        check.shares(self, "gamma", "gae_lambda")
        if self.critic_lambda != -1.0:
            check.shares(self, "critic_lambda")
        check.positive(self, "actor_lr", "critic_lr", "clip", "clip_decay", "reward_scale")
        check.positive(self, "max_grad_norm", infinite=True)
        check.not_negative(self, "clip_min", "entropy", "entropy_start")
        check.widths(self, "hidden")
        check.positive(self, "value_clip", "huber", infinite=True)
        for name in ("persistence", "value_norm_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise bad_value(name, getattr(self, name), "a number in [0, 1)")
        if (self.envs * self.rollout) % self.minibatches:
            allowed = f"a divisor of envs * rollout = {self.envs * self.rollout}"
            raise bad_value("minibatches", self.minibatches, allowed)

    @property
    def steps_per_update(self) -> int:
        """Environment steps (tuning intervals) per update."""
        return self.envs * self.rollout


@struct.dataclass
class Kept:
    """What a port may keep from the interval before.

    Attributes:
        action: the last actions, `[envs, A, ...]`.
        first: whether an episode has just begun, `[envs]`: there is nothing to keep.
    """

    action: Leaf
    first: Leaf


@struct.dataclass
class TrainState:
    """Everything that is needed to continue training.

    Attributes:
        actor: policy parameters.
        critic: value parameters.
        actor_opt: optimiser state of the policy.
        critic_opt: optimiser state of the value function.
        env: environment states, leading axis `envs`.
        obs: observations, `[envs, A, obs_dim]`.
        key: PRNG key.
        updates: updates so far.
        norm: running averages of the returns.
        kept: what ports may keep; None without `persistence`.
        weights: weights of the size classes in the reward, `[3]`; None without `follow_j`.
    """

    actor: PyTree
    critic: PyTree
    actor_opt: PyTree
    critic_opt: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf
    norm: ValueNorm
    kept: PyTree
    weights: Leaf


class Rollout(NamedTuple):
    """Steps of all environments, leaves `[time, envs, A, ...]`.

    `final_obs` precedes a reset. `drawn` is None if the policy chose every action.
    """

    obs: Float[Array, "time envs agents obs"]
    action: Array
    log_prob: Float[Array, "time envs agents"]
    reward: Float[Array, "time envs agents"]
    terminated: Bool[Array, "time envs agents"]
    truncated: Bool[Array, "time envs agents"]
    final_obs: Float[Array, "time envs agents obs"]
    drawn: Bool[Array, "time envs agents"] | None = None


def collect(
    env: Environment,
    head: Head,
    policy: Callable[[PyTree, Array], Array],
    state: TrainState,
    key: jax.Array,
    params: PyTree,
    steps: int,
    keep: float | Array = 0.0,
) -> tuple[TrainState, Rollout, dict[str, Array]]:
    """Run the policy of a training state in all its environments.

    Args:
        env: auto-resetting environment.
        head: distribution of the actions, from outputs of the policy.
        policy: actor's parameters and observations `[A, obs_dim]` to outputs `[A, n]`.
        state: training state; its `env`, `obs` and `kept` move on.
        key: PRNG key.
        params: parameters of the environment.
        steps: intervals per environment.
        keep: probability that a port keeps its action, where the state has `kept`.

    Returns:
        State after, the rollout, and means of reward, queue (bytes) and utilisation.
    """

    def step(
        key: jax.Array,
        carry: tuple[PyTree, Array, Kept | None],
        actor: PyTree,
        params: PyTree,
        keep: Array,
    ) -> tuple[PyTree, PyTree]:
        env_state, obs, kept = carry
        act_key, env_key = jax.random.split(key)
        out = policy(actor, obs)
        action, drawn = head.sample(act_key, out), None
        if kept is not None:
            # Not one of the keys that `sample` splits off.
            chance = jax.random.uniform(jax.random.fold_in(act_key, 1), (env.num_agents,))
            drawn = kept.first | (chance >= keep)
            among = drawn.reshape(-1, *(1,) * (action.ndim - 1))
            action = jnp.where(among, action, kept.action)
        next_obs, env_state, reward, terminated, truncated, info = env.step(
            env_key, env_state, action, params
        )
        if kept is not None:
            kept = Kept(action, info["episode_done"])
        log_prob = head.log_prob(out, action)
        row = Rollout(
            obs, action, log_prob, reward, terminated, truncated, info["final_obs"], drawn
        )
        # Means here, in the loop: kept for all ports, they would make the rollout larger.
        means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
        return (env_state, next_obs, kept), (row, means | {"reward": reward.mean()})

    carry = (state.env, state.obs, state.kept)
    keep = jnp.asarray(keep, jnp.float32)
    (env_state, obs, kept), (rows, means) = roll(
        env, step, carry, key, steps, state.actor, params, keep
    )
    metrics = {name: x.mean() for name, x in means.items()}
    return replace(state, env=env_state, obs=obs, kept=kept), rows, metrics


def kept_share(config: PPOConfig, updates: Array) -> Float[Array, ""]:
    """Probability of keeping an action after some updates: linear to 0 over `anneal_updates`."""
    left = 1.0 - updates / max(config.anneal_updates, 1) if config.anneal_updates else 1.0
    return jnp.asarray(config.persistence * jnp.maximum(left, 0.0), jnp.float32)


def clip_range(config: PPOConfig, updates: Array) -> Array:
    """Epsilon after some updates: `clip * clip_decay ** (t / T)` once `t > T` (PET, Eq. 13)."""
    t = updates / config.clip_decay_updates
    decay = jnp.where(t > 1.0, jnp.asarray(config.clip_decay) ** t, 1.0)
    return jnp.maximum(config.clip * decay, config.clip_min)


def entropy_weight(config: PPOConfig, updates: Array) -> Array:
    """Weight of the entropy bonus after some updates."""
    half = config.anneal_updates / 2.0
    left = jnp.maximum(1.0 - updates / half, 0.0) if config.anneal_updates else 1.0
    return jnp.asarray(config.entropy + config.entropy_start * left, jnp.float32)


def optimiser(config: PPOConfig, lr: float, shared: bool = True) -> optax.GradientTransformation:
    """Adam; for parameters with a leading axis of agents, one for each.

    Args:
        config: settings.
        lr: learning rate at the start.
        shared: whether all agents have the same parameters.
    """
    steps = config.anneal_updates * config.epochs * config.minibatches
    transform = adam(lr, config.max_grad_norm, steps)
    if shared:
        return transform
    # Mapped over agents, so that each one's gradient is clipped by its own norm.
    return optax.GradientTransformation(jax.vmap(transform.init), jax.vmap(transform.update))


class PPOTrainer(Trainer):
    """An actor for every port, a critic, and PPO's update of both.

    A trainer of its own has `__init__`, which sets `critic`, and `init_critic` and `value`.

    Attributes:
        config: settings.
        actor: network of the policy.
        actor_opt: its optimiser.
        critic: network of the value function.
        critic_opt: its optimiser.
        one_critic: whether there is one critic even where agents do not share parameters.
    """

    per_env = ("env", "obs", "kept")
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
        self.actor = Mlp(config.hidden, self.head.outputs, 0.01, config.standardise > 0)
        self.actor_opt = optimiser(config, config.actor_lr, config.shared)
        shared = config.shared or self.one_critic
        self.critic_opt = optimiser(config, config.critic_lr, shared)

    @abstractmethod
    def init_critic(self, key: jax.Array) -> PyTree:
        """Parameters of the critic."""

    @abstractmethod
    def value(
        self, critic: PyTree, obs: Float[Array, "*b agents obs"]
    ) -> Float[Array, "*b agents"]:
        """The critic's output for observations: values, normalised ones with `value_norm`."""

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks, optimisers and environments."""
        c, env = self.config, self.env
        key, actor_key, critic_key, env_key, phase_key = jax.random.split(key, 5)
        actor = init_network(self.actor, actor_key, env.obs_dim, env.num_agents, c.shared)
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
            kept=self._nothing_kept(actor, obs) if c.persistence else None,
            weights=jnp.asarray(params.reward.slowdown_weights) if c.follow_j else None,
        )

    def _nothing_kept(self, actor: PyTree, obs: Array) -> Kept:
        action = self.act(actor, jax.random.key(0), obs, greedy=True)
        return Kept(jnp.zeros_like(action), jnp.ones(obs.shape[:1], bool))

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out, estimate advantages, improve policy and value function.

        Args:
            state: training state.
            params: parameters of the environment.

        Returns:
            New state, and the update's metrics.
        """
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
            state: training state; its environments and `norm` move on.
            key: PRNG key.
            params: parameters of the environment.

        Returns:
            State after, what there is to learn from, and means of the rollout.
        """
        state, rollout, metrics = self.roll_out(state, key, params)
        output = self.value(state.critic, rollout.obs)
        value = state.norm.restore(output)
        next_value = state.norm.restore(self.value(state.critic, rollout.final_obs))
        advantage, target = self.advantages(rollout, value, next_value)
        norm = state.norm
        if self.config.value_norm:
            norm = norm.updated(target, self.config.value_norm_decay)
        taken = (rollout.obs, rollout.action, rollout.log_prob)
        batch = Batch(*taken, advantage, norm.normalise(target), output, rollout.drawn)
        metrics |= {"explained_variance": explained_variance(target, value)}
        return replace(state, norm=norm), batch, metrics

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations, sampled or the most likely ones."""
        out = self.outputs(actor, obs)
        return self.head.mode(out) if greedy else self.head.sample(key, out)

    def outputs(self, actor: PyTree, obs: Float[Array, "*b agents obs"]) -> Array:
        """Outputs of the policy's network, `[*b, A, n]`."""
        return apply_network(self.actor, actor, obs, self.config.shared)

    @property
    def flops(self) -> int:
        """Floating-point operations of one inference."""
        return network_flops(self.config.hidden, self.env.obs_dim, self.head.outputs)

    def modules(self, actor: PyTree) -> dict[str, tuple[nn.Module, PyTree]]:
        """The network and the parameters that one port needs, to measure their cost."""
        return {"policy": (self.actor, one_agent(actor, self.config.shared))}

    def network(self, actor: PyTree) -> Network:
        """The policy, to be exported."""
        return Network(self.head, actor)

    def roll_out(
        self, state: TrainState, key: jax.Array, params: PyTree
    ) -> tuple[TrainState, Rollout, dict[str, Array]]:
        """Act for `rollout` intervals in all environments, see `collect`."""
        c = self.config
        keep = kept_share(c, state.updates)
        return collect(self.env, self.head, self.outputs, state, key, params, c.rollout, keep)

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

    def policy_loss(
        self, actor: PyTree, batch: Batch, clip: float | Array, entropy: float | Array
    ) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective (PET, Eq. 11) and entropy bonus; see `policy_loss`."""
        c = self.config
        out = self.outputs(actor, batch.obs)
        return policy_loss(self.head, out, batch, clip, entropy, c.shared)

    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Loss of the critic (PET, Eq. 12), with `huber` and `value_clip` that of Yu et al.

        That is the larger of the losses of its output and of the output clipped to the old one.
        """
        c = self.config
        value = self.value(critic, batch.obs)
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
