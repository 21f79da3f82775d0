"""What the PPO trainers share: settings, rollouts, the clipped objective, gradient steps.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017: the clipped objective is its
Eq. 7, an update its Algorithm 1. Arrays of a rollout have the axes `[time, envs, A, ...]`, those of
a minibatch `[rows, A, ...]`.

`PPOTrainer` is the part of `ippo` and `mappo` that does not depend on the critic. `improve` and
`policy_loss` also serve the learners of rates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.baselines.rl.distributions import Head, evaluate_actions
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.networks import Mlp, apply_network, network_flops, one_agent
from ecn_marl.baselines.rl.optimisers import adam
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.baselines.training import settings as check
from ecn_marl.baselines.training.trainer import Network, Trainer
from ecn_marl.envs.interface import Environment

LOG_RATIO_MAX = 20.0
"""Log-ratios of probabilities are clipped to this; it is far outside of any `clip`."""


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
        max_grad_norm: gradients are scaled down to this norm.
        hidden: widths of the hidden layers of actor and critic.
        shared: one set of parameters for all agents, or one per agent.
        reward_scale: factor of the rewards that are learnt from. It should bring returns to about
            1: a critic starts near 0 and takes long to reach returns of a hundred.
        standardise: intervals of random actions at the start, by which networks standardise their
            features, see `networks.standardise`; 0 for unscaled features.
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
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    shared: bool = True
    reward_scale: float = 1.0
    standardise: int = 0

    def __post_init__(self) -> None:
        """Check all settings."""
        check.not_negative(self, "standardise", "anneal_updates")
        check.at_least_one(self, "envs", "rollout", "epochs", "minibatches", "clip_decay_updates")
        check.shares(self, "gamma", "gae_lambda")
        if self.critic_lambda != -1.0:
            check.shares(self, "critic_lambda")
        check.positive(self, "actor_lr", "critic_lr", "clip", "clip_decay", "reward_scale")
        check.positive(self, "max_grad_norm", infinite=True)
        check.not_negative(self, "clip_min", "entropy")
        check.widths(self, "hidden")
        if (self.envs * self.rollout) % self.minibatches:
            allowed = f"a divisor of envs * rollout = {self.envs * self.rollout}"
            raise bad_value("minibatches", self.minibatches, allowed)

    @property
    def steps_per_update(self) -> int:
        """Environment steps (tuning intervals) per update."""
        return self.envs * self.rollout


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
    """

    actor: PyTree
    critic: PyTree
    actor_opt: PyTree
    critic_opt: PyTree
    env: PyTree
    obs: Leaf
    key: Leaf
    updates: Leaf


class Rollout(NamedTuple):
    """Steps of all environments, leaves `[time, envs, A, ...]`; `final_obs` precedes a reset."""

    obs: Float[Array, "time envs agents obs"]
    action: Array
    log_prob: Float[Array, "time envs agents"]
    reward: Float[Array, "time envs agents"]
    terminated: Bool[Array, "time envs agents"]
    truncated: Bool[Array, "time envs agents"]
    final_obs: Float[Array, "time envs agents obs"]


class Batch(NamedTuple):
    """Training data, leaves `[time, envs, A, ...]` or `[rows, A, ...]`.

    `value` is the critic's output at the time of the rollout, for losses that need it.
    """

    obs: Array
    action: Array
    log_prob: Array
    advantage: Array
    target: Array
    value: Array | None = None


def collect(
    env: Environment,
    head: Head,
    policy: Callable[[PyTree, Array], Array],
    state: PyTree,
    key: jax.Array,
    params: PyTree,
    steps: int,
) -> tuple[PyTree, Rollout, dict[str, Array]]:
    """Run the policy of a training state in all its environments.

    Args:
        env: auto-resetting environment.
        head: distribution of the actions, from outputs of the policy.
        policy: actor's parameters and observations `[A, obs_dim]` to outputs `[A, n]`.
        state: training state; its `env` and `obs` move on.
        key: PRNG key.
        params: parameters of the environment.
        steps: intervals per environment.

    Returns:
        State after, the rollout, and means of reward, queue (bytes) and utilisation.
    """

    def step(
        key: jax.Array, carry: tuple[PyTree, Array], actor: PyTree, params: PyTree
    ) -> tuple[PyTree, PyTree]:
        env_state, obs = carry
        act_key, env_key = jax.random.split(key)
        out = policy(actor, obs)
        action = head.sample(act_key, out)
        next_obs, env_state, reward, terminated, truncated, info = env.step(
            env_key, env_state, action, params
        )
        log_prob = head.log_prob(out, action)
        row = Rollout(obs, action, log_prob, reward, terminated, truncated, info["final_obs"])
        # Means here, in the loop: kept for all ports, they would make the rollout larger.
        means = {name: info[name].mean() for name in ("queue_mean", "utilisation")}
        return (env_state, next_obs), (row, means | {"reward": reward.mean()})

    carry = (state.env, state.obs)
    (env_state, obs), (rows, means) = roll(env, step, carry, key, steps, state.actor, params)
    metrics = {name: x.mean() for name, x in means.items()}
    return replace(state, env=env_state, obs=obs), rows, metrics


def explained_variance(target: Array, value: Array) -> Array:
    """Share of the variance of returns that values explain: 1 is perfect, 0 a constant."""
    # Returns that are all equal have no variance: 0 / 0.
    return 1.0 - jnp.var(target - value) / jnp.maximum(jnp.var(target), 1e-12)


def clip_range(config: PPOConfig, updates: Array) -> Array:
    """Epsilon after some updates: `clip * clip_decay ** (t / T)` once `t > T` (PET, Eq. 13)."""
    t = updates / config.clip_decay_updates
    decay = jnp.where(t > 1.0, jnp.asarray(config.clip_decay) ** t, 1.0)
    return jnp.maximum(config.clip * decay, config.clip_min)


def policy_loss(
    head: Head, out: Array, batch: Batch, clip: float | Array, entropy: float, shared: bool = True
) -> tuple[Array, dict[str, Array]]:
    """Clipped surrogate objective and entropy bonus, and their metrics.

    Args:
        head: distribution of the actions.
        out: outputs of the policy, `[rows, A, n]`.
        batch: leaves `[rows, A, ...]`; advantages are normalised here, over the minibatch.
        clip: epsilon.
        entropy: weight of the entropy bonus.
        shared: whether agents share a policy. Else advantages are normalised for each agent, and
            losses are summed over agents, so that no agent's gradient depends on another.
    """
    log_prob, action_entropy = evaluate_actions(head, out, batch.action)
    # A narrow policy can make an action e^100 times as likely: its ratio would be inf, and the
    # gradient of the branch that `minimum` does not take 0 * inf.
    change = jnp.clip(log_prob - batch.log_prob, -LOG_RATIO_MAX, LOG_RATIO_MAX)
    ratio = jnp.exp(change)
    axis = None if shared else 0
    centred = batch.advantage - batch.advantage.mean(axis)
    # Where all advantages are equal their deviation is 0.
    advantage = centred / (batch.advantage.std(axis) + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
    loss = -over_agents(gain + entropy * action_entropy, shared)
    return loss, {
        "policy_loss": -gain.mean(),
        "entropy": action_entropy.mean(),
        # Never negative, unlike the mean of `-change` (Schulman, "Approximating KL divergence").
        "kl": jnp.mean(ratio - 1.0 - change),
        "clipped": jnp.mean(jnp.abs(ratio - 1.0) > clip),
    }


def over_agents(x: Float[Array, "rows agents"], shared: bool) -> Float[Array, ""]:
    """Mean over rows and agents, or, for agents with parameters of their own, the sum of means."""
    return x.mean() if shared else x.mean(0).sum()


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


LossFunction = Callable[[PyTree, Batch], tuple[Array, dict[str, Array]]]
"""`(parameters, minibatch) -> loss, metrics`."""

Rule = tuple[LossFunction, optax.GradientTransformation]
"""Loss and optimiser of a network."""


def improve(
    networks: tuple[PyTree, ...],
    optimisers: tuple[PyTree, ...],
    rules: tuple[Rule, ...],
    batch: Batch,
    key: jax.Array,
    epochs: int,
    minibatches: int,
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], dict[str, Array]]:
    """Several passes of minibatch gradient steps over a rollout.

    Args:
        networks: parameters of each network.
        optimisers: their optimisers' states.
        rules: loss and optimiser of each network.
        batch: leaves `[time, envs, A, ...]`.
        key: PRNG key of the shuffles.
        epochs: passes.
        minibatches: gradient steps per pass, for each network.

    Returns:
        Networks and optimiser states after, and means of the metrics.
    """
    total = batch.target.shape[0] * batch.target.shape[1]
    flat = jax.tree.map(lambda x: x.reshape(total, *x.shape[2:]), batch)

    def gradient_step(carry: PyTree, rows: Array) -> tuple[PyTree, dict[str, Array]]:
        minibatch = jax.tree.map(lambda x: x[rows], flat)
        updated = []
        logged: dict[str, Array] = {}
        for net, opt, (loss, transform) in zip(*carry, rules, strict=True):
            (_, aux), grad = jax.value_and_grad(loss, has_aux=True)(net, minibatch)
            step, opt = transform.update(grad, opt, net)
            updated.append((optax.apply_updates(net, step), opt))
            logged |= aux
        nets, opts = zip(*updated, strict=True)
        return (tuple(nets), tuple(opts)), logged

    def epoch(carry: PyTree, key: jax.Array) -> tuple[PyTree, dict[str, Array]]:
        rows = jax.random.permutation(key, total).reshape(minibatches, -1)
        return jax.lax.scan(gradient_step, carry, rows)

    keys = jax.random.split(key, epochs)
    (networks, optimisers), logged = jax.lax.scan(epoch, (networks, optimisers), keys)
    return networks, optimisers, {name: x.mean() for name, x in logged.items()}


def improve_both(
    state: PyTree,
    rules: tuple[Rule, Rule],
    batch: Batch,
    key: jax.Array,
    epochs: int,
    minibatches: int,
) -> tuple[PyTree, dict[str, Array]]:
    """`improve` for a training state with an actor and a critic, whose `updates` goes up by one.

    Args:
        state: has `actor`, `critic`, `actor_opt`, `critic_opt` and `updates`.
        rules: those of the actor and of the critic.
        batch: leaves `[time, envs, A, ...]`.
        key: PRNG key of the shuffles.
        epochs: passes.
        minibatches: gradient steps per pass.

    Returns:
        State after, and means of the metrics.
    """
    networks, optimisers = (state.actor, state.critic), (state.actor_opt, state.critic_opt)
    networks, optimisers, losses = improve(
        networks, optimisers, rules, batch, key, epochs, minibatches
    )
    (actor, critic), (actor_opt, critic_opt) = networks, optimisers
    return replace(
        state,
        actor=actor,
        critic=critic,
        actor_opt=actor_opt,
        critic_opt=critic_opt,
        updates=state.updates + 1,
    ), losses


State = TypeVar("State", bound=TrainState)


class PPOTrainer(Trainer):
    """An actor for every port, and PPO's update of it; a trainer adds the critic.

    Attributes:
        config: settings.
        actor: network of the policy.
        actor_opt: its optimiser.
        critic_opt: optimiser of the critic; the trainer sets it.
    """

    config: PPOConfig
    critic_opt: optax.GradientTransformation

    def __init__(self, env: Environment, config: PPOConfig) -> None:
        """Set up the policy and its optimiser.

        Args:
            env: functional environment (it is wrapped in `AutoReset`).
            config: settings.
        """
        super().__init__(env, config)
        self.actor = Mlp(config.hidden, self.head.outputs, 0.01, config.standardise > 0)
        self.actor_opt = optimiser(config, config.actor_lr, config.shared)

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
        self, state: State, key: jax.Array, params: PyTree
    ) -> tuple[State, Rollout, dict[str, Array]]:
        """Act for `rollout` intervals in all environments, see `collect`."""
        steps = self.config.rollout
        return collect(self.env, self.head, self.outputs, state, key, params, steps)

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

    def learn(self, state: State, batch: Batch, key: jax.Array) -> tuple[State, dict[str, Array]]:
        """`epochs` passes of gradient steps on both losses; metrics are those of `improve`."""
        c = self.config
        clip = clip_range(c, state.updates)
        rules: tuple[Rule, Rule] = (
            (lambda net, minibatch: self.policy_loss(net, minibatch, clip), self.actor_opt),
            (self.value_loss, self.critic_opt),
        )
        state, losses = improve_both(state, rules, batch, key, c.epochs, c.minibatches)
        return state, losses | {"clip": clip}

    def policy_loss(
        self, actor: PyTree, batch: Batch, clip: float | Array
    ) -> tuple[Array, dict[str, Array]]:
        """Clipped surrogate objective (PET, Eq. 11) and entropy bonus; see `policy_loss`."""
        c = self.config
        out = self.outputs(actor, batch.obs)
        return policy_loss(self.head, out, batch, clip, c.entropy, c.shared)

    @abstractmethod
    def value_loss(self, critic: PyTree, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """Loss of the critic on a minibatch, and its metrics."""
