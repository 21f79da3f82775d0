r"""ADPG: the analytic deterministic policy gradient, for flows that set their own rates.

Tessler et al., "Reinforcement Learning for Datacenter Congestion Control", 2021, §6. Every flow has
the same deterministic policy pi over its observations of the last round trips. The gain to maximise
is the mean reward G = lim 1/T sum_t r_t with r = -(target - x)^2, see `envs.rate.env`. The
derivative of r by an action is known but for one factor:

    dr/da = 2 (target - x) dx/da,    x = inflation * sqrt(rate share).

A larger rate makes sqrt(rate) larger and no queue shorter, so dx/da > 0. ADPG assumes that this
factor is constant (Claim 2) and follows

    grad G  ~  mean_t [ grad_theta pi_theta(o_t) * mean_{s >= t} gamma^(s - t) (target - x_s) ]

along the events of each flow: no value function, no noise, no other flow's data. The constant is
the only approximation. With it, the sign is exact only where a flow alone decides. The discount
bounds for how long an action is credited. The formulas here are a reconstruction: the discounted
mean, and the penalty on actions that differ from later ones, are those of the published code. A
rate is multiplied by 1 + 0.2 u, from 0.8 to 1.2; the code divides it by 1 - 0.2 u for u < 0. The
penalty covers all later actions, not the next one only. Among many flows the queue answers slowly,
and a policy that is steady from event to event may still oscillate over twenty of them.

    roll out (`rate_learning.roll_scenarios`)  ->  sort by flow (`keyed`)  ->  one step of Adam

The policy is a network without biases: an error of 0 twice in a row with no change of rate gives
no change of rate, so the point where x = target is a fixed point whatever the weights are, for any
number of flows. It is trained on 4, 8 and 32 senders to one receiver and evaluated on up to 8192.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._types import Leaf
from ecn_marl.baselines.rl.rate_learning import (
    RateConfig,
    RateTrainer,
    count_tuples,
    roll_scenarios,
    start_training,
    training_envs,
)
from ecn_marl.baselines.rl.rate_rollout import Events
from ecn_marl.baselines.training.settings import not_negative, positive
from ecn_marl.envs.rate.env import RateParams, RateState


@dataclass(frozen=True)
class ADPGConfig(RateConfig):
    """Settings of ADPG. Widths, learning rate, clip, discount and scenarios are the paper's code's.

    Attributes:
        hidden: widths of the hidden layers.
        lr: learning rate of Adam.
        clip: largest entry of a gradient.
        steadiness: weight of `unsteadiness`, the penalty on differences between a flow's actions.
    """

    hidden: tuple[int, ...] = (12, 12)
    lr: float = 0.01
    clip: float = 0.5
    steadiness: float = 1.0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        positive(self, "clip", infinite=True)
        positive(self, "lr")
        not_negative(self, "steadiness")
        count_tuples(self, "hidden")


@struct.dataclass
class ADPGState:
    """Training state: policy, optimiser, environments of each scenario, key, updates so far."""

    actor: PyTree
    opt: PyTree
    env: tuple[PyTree, ...]
    key: Leaf
    updates: Leaf


class Policy(nn.Module):
    """ReLU layers without biases, and tanh: the change of rate in [-1, 1].

    Attributes:
        hidden: widths of the hidden layers.
    """

    hidden: Sequence[int]

    @nn.compact
    def __call__(self, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Evaluate the network."""
        x = obs
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, use_bias=False)(x))
        return jnp.tanh(nn.Dense(1, use_bias=False)(x))[..., 0]


class Deterministic(RateTrainer):
    """A deterministic policy that follows a gradient: what ADPG shares with `apg`."""

    policy: Policy
    optimiser: optax.GradientTransformation

    def act(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Float[Array, "*b"]:
        """Factors of the rates, from 0.8 to 1.2."""
        return 1.0 + 0.2 * jnp.asarray(self.policy.apply(actor, obs))

    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> ADPGState:
        """A fresh policy and fresh environments, spread over their episodes."""
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        actor = self.policy.init(net_key, jnp.zeros((self.envs[0].obs_dim,)))
        return ADPGState(
            actor=actor,
            opt=self.optimiser.init(actor),
            env=start_training(self.envs, params, self.config.envs, env_key, phase_key),
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def descend(self, state: ADPGState, grad: PyTree, env: tuple[RateState, ...]) -> ADPGState:
        """The state after a step along minus a gradient; `env`: environments after the rollout."""
        change, opt = self.optimiser.update(grad, state.opt, state.actor)
        return replace(
            state,
            actor=optax.apply_updates(state.actor, change),
            opt=opt,
            env=env,
            updates=state.updates + 1,
        )


class ADPG(Deterministic):
    """The algorithm for one configuration."""

    config_class = ADPGConfig

    def __init__(self, config: ADPGConfig) -> None:
        """Make the environments and the policy."""
        super().__init__(config)
        self.envs = training_envs(config)
        self.policy = Policy(config.hidden)
        self.optimiser = optax.chain(optax.clip(config.clip), optax.adam(config.lr))

    def update(
        self, state: ADPGState, params: tuple[RateParams, ...]
    ) -> tuple[ADPGState, dict[str, Array]]:
        """Roll out in all scenarios, and follow the gradient once."""
        key = jax.random.fold_in(state.key, state.updates)
        envs, batches, left_out = roll_scenarios(
            self.envs,
            lambda actor, _, obs: self.act(actor, obs),
            state.env,
            key,
            self.config,
            params,
            state.actor,
        )
        grads, metrics = jax.grad(self.loss, has_aux=True)(state.actor, batches)
        new = self.descend(state, grads, envs)
        return new, metrics | {"events_left_out": left_out}

    def loss(self, actor: PyTree, batches: list[Events]) -> tuple[Array, dict[str, Array]]:
        """Mean of the scenarios' losses; its gradient is minus the estimate of the module."""
        results = [self._loss(actor, events) for events in batches]
        metrics = jax.tree.map(lambda *x: jnp.stack(x).mean(), *(m for _, m in results))
        return jnp.stack([loss for loss, _ in results]).mean(), metrics

    def _loss(self, actor: PyTree, events: Events) -> tuple[Array, dict[str, Array]]:
        """Loss and metrics of one scenario. Errors are in units of the target."""
        present = events.valid.astype(jnp.float32)
        n = jnp.maximum(present.sum(), 1.0)  # a rollout without events: 0 / 0
        change = jnp.asarray(self.policy.apply(actor, events.obs))
        ahead = later_mean(events.error, present, self.config.gamma)
        follow = (present * change * ahead).sum() / n
        swing = unsteadiness(change, present)
        metrics = {
            "error": (present * events.error).sum() / n,
            "reward": -(present * (self.config.target * events.error) ** 2).sum() / n,
            "swing": swing,
            "events": present.sum(),
        }
        return follow + self.config.steadiness * swing, metrics


def later_mean(
    values: Float[Array, "t *b"], present: Float[Array, "t *b"], gamma: float
) -> Float[Array, "t *b"]:
    """Discounted mean of each flow's values from an event on, 0 where there is none.

    Args:
        values: values by event, the time first.
        present: 1 where there is an event, 0 elsewhere.
        gamma: discount from event to event.
    """
    t = values.shape[0]
    ahead = jnp.arange(t)[None] - jnp.arange(t)[:, None]
    # Negative powers, which `where` drops anyway, would be infinite for gamma = 0.
    weight = jnp.where(ahead >= 0, gamma ** jnp.maximum(ahead, 0), 0.0)
    total = jnp.tensordot(weight, present * values, 1)
    # 0 / 0 where no event follows; the total is 0 there, too.
    return total / jnp.maximum(jnp.tensordot(weight, present, 1), 1e-6)


def unsteadiness(values: Float[Array, "t *b"], present: Float[Array, "t *b"]) -> Float[Array, ""]:
    """Half of the mean squared difference between a flow's value and each of its later ones.

    Every event that has a later one has the same weight, however many follow.

    Args:
        values: values by event, the time first.
        present: 1 where there is an event, 0 elsewhere.
    """

    def later_sum(x: Float[Array, "t *b"]) -> Float[Array, "t *b"]:
        return jnp.cumsum(x[::-1], 0)[::-1] - x

    n = later_sum(present)
    mean, square = (later_sum(present * x) / jnp.maximum(n, 1.0) for x in (values, values**2))
    counted = present * (n > 0)
    difference = values**2 - 2.0 * values * mean + square
    return 0.5 * (counted * difference).sum() / jnp.maximum(counted.sum(), 1.0)
