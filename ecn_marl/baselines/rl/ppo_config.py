"""Settings of the PPO trainers of thresholds, and those that change over a run.

Four options are neither PPO's nor the papers'. They are candidates, off by default;
`docs/learners-log.md` says what they did:

* `persistence`: thresholds act on completion times over many intervals. While data are collected,
  a port keeps its last action with a probability that falls to 0 over the run, so that exploration
  is made of stretches long enough to show in the reward. Kept actions stay out of the policy's
  loss; the critic learns from every step.
* `follow_j`: the weights of size classes in the reward follow the benchmark's objective, see
  `class_weights`.
* `value_norm`: the critic predicts normalised returns, see `value_norm` (Yu et al.).
* `memory`: the policy has a GRU, see `recurrent`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.training import settings as check


@dataclass(frozen=True)
class PPOConfig(check.LearnerSettings):
    """Settings that all PPO trainers have, beside those of `LearnerSettings`.

    Attributes:
        epochs: passes over a rollout.
        minibatches: gradient steps per pass.
        actor_lr: learning rate of the policy.
        critic_lr: learning rate of the value function.
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
        shared: one set of parameters for all agents, or one per agent.
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
        memory: units of a GRU between the hidden layers and the output, see `recurrent`; 0 for
            none. Gradients run through a whole rollout, and minibatches are made of whole rollouts,
            so `envs` is a multiple of `minibatches`.
    """

    epochs: int = 2
    minibatches: int = 8
    actor_lr: float = 4e-4
    critic_lr: float = 1e-3
    gae_lambda: float = 0.9
    critic_lambda: float = -1.0
    clip: float = 0.2
    clip_decay: float = 0.99
    clip_decay_updates: int = 50
    clip_min: float = 0.05
    entropy: float = 3e-3
    entropy_start: float = 0.0
    max_grad_norm: float = 0.5
    shared: bool = True
    persistence: float = 0.0
    follow_j: bool = False
    value_norm: bool = False
    value_norm_decay: float = 0.99
    value_clip: float = math.inf
    huber: float = math.inf
    memory: int = 0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        check.not_negative(self, "memory")
        check.at_least_one(self, "epochs", "minibatches", "clip_decay_updates")
        check.shares(self, "gae_lambda")
        if self.critic_lambda != -1.0:
            check.shares(self, "critic_lambda")
        check.positive(self, "actor_lr", "critic_lr", "clip", "clip_decay")
        check.not_negative(self, "clip_min", "entropy", "entropy_start")
        check.positive(self, "value_clip", "huber", infinite=True)
        for name in ("persistence", "value_norm_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise bad_value(name, getattr(self, name), "a number in [0, 1)")
        if (self.envs * self.rollout) % self.minibatches:
            allowed = f"a divisor of envs * rollout = {self.envs * self.rollout}"
            raise bad_value("minibatches", self.minibatches, allowed)
        rc.check_memory(self)


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
