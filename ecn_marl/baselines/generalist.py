"""One policy for several scenarios: IPPO that learns in all of them at once.

A port sees itself alone, in numbers that do not depend on its rate or on the size of the network.
So one actor serves every port of every network. An update is

    roll out in every scenario  ->  GAE in each
    ->  `epochs` passes; a gradient step takes a minibatch from every scenario

The loss of a step is the mean over scenarios. Advantages are normalised within each, so that none
outweighs the others by the size of its rewards. The critic is one, too.

A run belongs to its first scenario, which `train --scenario` names; `also` has the others. They
take its options: features, actions, interval, reward. Checkpoints are chosen by the mean over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.ippo import IPPO
from ecn_marl.baselines.rl.networks import moments, standardise
from ecn_marl.baselines.rl.ppo import Batch, Rule, improve_both
from ecn_marl.baselines.rl.ppo_config import PPOConfig, clip_range, entropy_weight
from ecn_marl.baselines.rl.ppo_rollout import TrainState
from ecn_marl.envs.interface import PortEnvironment


@dataclass(frozen=True)
class GeneralistConfig(PPOConfig):
    """Settings of the generalist: those of PPO, each scenario has `envs` environments.

    Attributes:
        also: names of the other scenarios.
    """

    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        if len(set(self.also)) < len(self.also) or not all(isinstance(x, str) for x in self.also):
            raise bad_value("also", self.also, "names of scenarios, each once")
        for name, only in (("shared", True), ("follow_j", False)):
            if getattr(self, name) is not only:
                allowed = f"{only}: ports of all scenarios have one policy and one loss"
                raise bad_value(name, getattr(self, name), allowed)

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update, over all scenarios."""
        return self.envs * self.rollout * (1 + len(self.also))


class Generalist(IPPO):
    """IPPO in several scenarios; its actor is that of `PPOTrainer`.

    `env`, `obs`, `kept` and `memory` of its training state are tuples with an entry for each
    scenario.

    Attributes:
        others: environments of the other scenarios.
    """

    config_class = GeneralistConfig

    def __init__(
        self,
        env: PortEnvironment,
        config: GeneralistConfig,
        others: Sequence[PortEnvironment] = (),
    ) -> None:
        """Set up networks and optimisers.

        Args:
            env: functional environment of the first scenario.
            config: settings.
            others: those of the scenarios `config.also`, with the same options.

        Raises:
            ValueError: other environments than those of `also`, or one whose agents see or do
                something else.
        """
        super().__init__(env, config)
        names = tuple(other.name for other in others)
        if names != config.also:
            raise bad_value("others", names, f"environments of {config.also}")
        for other in others:
            if (other.obs_dim, other.action) != (env.obs_dim, env.action):
                raise bad_value(
                    "also", other.name, f"scenarios that look like {env.name} to a port"
                )
        self.others = tuple(others)
        self._learners = (self, *(IPPO(other, config) for other in others))

    def init(self, key: jax.Array, params: PyTree) -> TrainState:
        """Fresh networks, that standardise by the moments of all scenarios together."""
        keys = jax.random.split(key, len(self._learners))
        starts = [
            IPPO.init(learner, own, of)
            for learner, own, of in zip(self._learners, keys, self._params(params), strict=True)
        ]
        first = starts[0]
        actor, critic = first.actor, first.critic
        if self.config.standardise:
            pooled = _pooled([moments(start.actor) for start in starts])
            actor, critic = standardise(actor, *pooled), standardise(critic, *pooled)
        return replace(
            first,
            actor=actor,
            critic=critic,
            env=tuple(start.env for start in starts),
            obs=tuple(start.obs for start in starts),
            kept=tuple(start.kept for start in starts),
            memory=tuple(start.memory for start in starts),
        )

    def update(self, state: TrainState, params: PyTree) -> tuple[TrainState, dict[str, Array]]:
        """Roll out in every scenario, then improve policy and value function on all.

        Args:
            state: training state.
            params: parameters of the first scenario.

        Returns:
            New state, and the update's metrics, means over scenarios.
        """
        key, learn_key, *keys = jax.random.split(state.key, 2 + len(self._learners))
        state = replace(state, key=key)
        parts: list[TrainState] = []
        batches: list[Batch] = []
        rows: list[dict[str, Array]] = []
        fields = (state.env, state.obs, state.kept, state.memory, self._params(params))
        places = zip(*fields, strict=True)
        for learner, own, (*place, of) in zip(self._learners, keys, places, strict=True):
            env, obs, kept, memory = place
            part = replace(state, env=env, obs=obs, kept=kept, memory=memory)
            part, batch, metrics = learner.experience(part, own, of)
            state = replace(state, norm=part.norm)
            parts.append(part)
            batches.append(batch)
            rows.append(metrics)
        state = replace(
            state,
            env=tuple(part.env for part in parts),
            obs=tuple(part.obs for part in parts),
            kept=tuple(part.kept for part in parts),
            memory=tuple(part.memory for part in parts),
        )
        state, losses = self._learn(state, tuple(batches), learn_key)
        return state, _mean(rows) | losses

    def _learn(
        self, state: TrainState, batches: tuple[Batch, ...], key: jax.Array
    ) -> tuple[TrainState, dict[str, Array]]:
        """`PPOTrainer.learn`; a loss is the mean of those in the scenarios."""
        c = self.config
        clip, entropy = clip_range(c, state.updates), entropy_weight(c, state.updates)

        def policy_loss(actor: PyTree, of_all: Sequence[Batch]) -> tuple[Array, dict[str, Array]]:
            return _mean_loss([self.policy_loss(actor, own, clip, entropy) for own in of_all])

        def value_loss(critic: PyTree, of_all: Sequence[Batch]) -> tuple[Array, dict[str, Array]]:
            return _mean_loss([self.value_loss(critic, own) for own in of_all])

        rules: tuple[Rule, Rule] = ((policy_loss, self.actor_opt), (value_loss, self.critic_opt))
        state, losses = improve_both(state, rules, batches, key, c.epochs, c.minibatches)
        return state, losses | {"clip": clip}

    def _params(self, params: PyTree) -> tuple[PyTree, ...]:
        return (params, *(other.default_params for other in self.others))


def _mean(rows: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Metrics of all scenarios, averaged."""
    return {name: jnp.stack([row[name] for row in rows]).mean() for name in rows[0]}


def _mean_loss(
    each: Sequence[tuple[Array, dict[str, Array]]],
) -> tuple[Array, dict[str, Array]]:
    """Losses of all scenarios and their metrics, averaged."""
    return jnp.stack([loss for loss, _ in each]).mean(), _mean([row for _, row in each])


def _pooled(each: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Mean and deviation of all scenarios' observations together, each counting alike."""
    mean = jnp.stack([x for x, _ in each]).mean(0)
    square = jnp.stack([x**2 + deviation**2 for x, deviation in each]).mean(0)
    return mean, jnp.sqrt(jnp.maximum(square - mean**2, 0.0))
