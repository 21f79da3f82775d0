"""Stochastic policies of rate agents, and batches for their policy gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._types import Leaf
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.networks import Mlp, init_network
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.rl.rate_learning import (
    RateTrainer,
    Transitions,
    draw_valid,
    roll_scenarios,
    rows_of,
    squash,
)
from ecn_marl.baselines.rl.rate_rollout import Events
from ecn_marl.envs.rate.actions import DiscreteFactor, factor_codec
from ecn_marl.envs.rate.env import RateParams, RateState

SPAN = 0.2
"""Largest change of rate by the Gaussian's mean: factors from 0.8 to 1.2."""


@struct.dataclass
class PolicyState:
    """Training state of a policy gradient.

    Attributes:
        actor: policy parameters.
        critic: value parameters; None without a critic.
        actor_opt: optimiser state of the policy.
        critic_opt: that of the critic, or None.
        env: environments of each scenario.
        key: PRNG key.
        updates: updates so far.
    """

    actor: PyTree
    critic: PyTree
    actor_opt: PyTree
    critic_opt: PyTree
    env: tuple[PyTree, ...]
    key: Leaf
    updates: Leaf


@dataclass(frozen=True)
class StochasticRates:
    """A network whose outputs are a distribution over factors of the rate.

    Attributes:
        actions: `continuous` (Gaussian; its mean is squashed, its samples are clipped by the
            environment) or `discrete` (softmax over `envs.rate.actions.FACTORS`).
        hidden: widths of the hidden layers.
    """

    actions: str
    hidden: tuple[int, ...]

    @property
    def head(self) -> Head:
        """The distribution."""
        codec = factor_codec(self.actions)
        if isinstance(codec, DiscreteFactor):
            return Head(sizes=(len(codec.factors),), scalar=True)
        return Head(dim=1)

    @property
    def net(self) -> Mlp:
        """The network; it starts close to uniform, or to mean 0."""
        return Mlp(self.hidden, self.head.outputs, 0.01)

    def init(self, key: jax.Array, features: int) -> PyTree:
        """Fresh parameters."""
        return init_network(self.net, key, features, 1, shared=True)

    def outputs(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Float[Array, "*b n"]:
        """Outputs of the network."""
        return jnp.asarray(self.net.apply(actor, squash(self.features(obs))))

    def features(self, obs: Float[Array, "*b obs"]) -> Float[Array, "*b features"]:
        """The part of an observation that is the network's input."""
        return obs

    def sample(self, actor: PyTree, key: jax.Array, obs: Float[Array, "*b obs"]) -> Array:
        """Draw actions of the environment."""
        return self.action(self.head.sample(key, self.outputs(actor, obs)))

    def mode(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Array:
        """The most likely actions."""
        return self.action(self.head.mode(self.outputs(actor, obs)))

    def action(self, choice: Array) -> Array:
        """The environment's action for one of the distribution."""
        return choice if self.head.scalar else 1.0 + SPAN * choice[..., 0]

    def choice(self, action: Array) -> Array:
        """Inverse of `action`."""
        return action if self.head.scalar else ((action - 1.0) / SPAN)[..., None]


class PolicyGradient(RateTrainer):
    """A learner whose flows sample actions in training and take the most likely one otherwise."""

    policy: StochasticRates

    @property
    def view(self) -> dict[str, Any]:
        """Options of `make_rate` for actions and observations."""
        return {"actions": self.config.actions}

    def act(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Array:
        """The most likely actions."""
        return self.policy.mode(actor, obs)

    def roll_out(
        self, state: PolicyState, key: jax.Array, params: tuple[RateParams, ...]
    ) -> tuple[tuple[RateState, ...], list[Events], Array]:
        """Act in all scenarios for a rollout, see `rate_learning.roll_scenarios`."""
        return roll_scenarios(
            self.envs, self.policy.sample, state.env, key, self.config, params, state.actor
        )


Estimator = Callable[[Transitions], tuple[Array, Array]]
"""Advantages and returns of a scenario's transitions, `[T, E, F]` each."""


def draw_batch(
    key: jax.Array,
    policy: StochasticRates,
    actor: PyTree,
    scenarios: Sequence[Transitions],
    estimate: Estimator,
    rows: int,
) -> Batch:
    """Rows to learn from, equally many per scenario: `[rows, 1, 1, ...]`, see `ppo.improve`.

    Rows of absent events are never drawn, so that means over a batch are means over events.

    Args:
        key: PRNG key.
        policy: the policy.
        actor: its parameters when the rollouts were made.
        scenarios: transitions of each scenario.
        estimate: advantages and returns of transitions.
        rows: rows in all, a multiple of the number of scenarios.
    """
    rows_per_scenario, batches = rows // len(scenarios), []
    for i, steps in enumerate(scenarios):
        advantage, target = estimate(steps)
        at = draw_valid(jax.random.fold_in(key, i), steps.valid, rows_per_scenario)
        obs, choice = rows_of(steps.obs, at), policy.choice(rows_of(steps.action, at))
        log_prob = policy.head.log_prob(policy.outputs(actor, obs), choice)
        batches.append(Batch(obs, choice, log_prob, rows_of(advantage, at), rows_of(target, at)))
    batch: Batch = jax.tree.map(lambda *x: jnp.concatenate(x)[:, None, None], *batches)
    return batch
