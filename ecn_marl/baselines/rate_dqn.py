"""DQN for flows that set their own rates: a rival of ADPG.

Mnih et al., "Human-level control through deep reinforcement learning", Nature 2015, which Tessler
et al. (2021) name among those that fail. One Q-network for all flows, on the factors of
`envs.rate.actions.FACTORS`; transitions lead from an event of a flow to its next one. An update

    rolls out epsilon-greedily  ->  stores equally many events of each scenario
    ->  draws minibatches from memory, uniformly
    ->  descends the squared error to r + gamma max_a Q'(s', a)

Rewards are multiplied by 1 - gamma, so that Q is a discounted mean of them. A transition does not
hold the actions of other flows, and their policy changes while they learn. So the dynamics of old
transitions no longer hold, which is the paper's reason for learning on-policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, PyTree

from ecn_marl._types import Leaf
from ecn_marl.baselines.rl import replay
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.networks import Mlp
from ecn_marl.baselines.rl.q_learning import (
    QLearner,
    QState,
    Transition,
    choose,
    epsilon,
    explore,
    transition_shapes,
)
from ecn_marl.baselines.rl.rate_learning import (
    RateConfig,
    RateTrainer,
    count_tuples,
    draw_valid,
    equal_rows,
    event_metrics,
    limited_reward,
    roll_scenarios,
    rows_of,
    squash,
    start_training,
    training_envs,
    transitions,
)
from ecn_marl.baselines.rl.rate_rollout import Events
from ecn_marl.baselines.training.settings import (
    at_least_one,
    exploration,
    not_negative,
    positive,
)
from ecn_marl.envs.rate.actions import FACTORS
from ecn_marl.envs.rate.env import RateParams


@dataclass(frozen=True)
class RateDQNConfig(RateConfig):
    """Settings of DQN.

    Attributes:
        hidden: widths of the hidden layers.
        lr: learning rate of Adam.
        max_grad_norm: gradients are scaled down to this norm.
        rows: events stored per update, equally many of each scenario.
        memory: capacity of the memory, events.
        batch: rows of a minibatch.
        gradient_steps: minibatches per update.
        target_every: gradient steps between copies to the target network.
        double: double-Q targets.
        epsilon: chance of a random action at first.
        epsilon_decay: factor of that chance from update to update.
        epsilon_min: smallest chance.
        error_limit: largest error that counts in the reward, in targets; 0 for no limit.
    """

    hidden: tuple[int, ...] = (32, 32)
    lr: float = 1e-3
    max_grad_norm: float = 10.0
    rows: int = 6144
    memory: int = 61_440
    batch: int = 1024
    gradient_steps: int = 8
    target_every: int = 100
    double: bool = False
    epsilon: float = 1.0
    epsilon_decay: float = 0.98
    epsilon_min: float = 0.02
    error_limit: float = 0.0

    def __post_init__(self) -> None:
        """Check all settings."""
        super().__post_init__()
        at_least_one(self, "rows", "memory", "batch", "gradient_steps", "target_every")
        positive(self, "lr", "max_grad_norm")
        exploration(self)
        not_negative(self, "error_limit")
        count_tuples(self, "hidden")
        equal_rows(self)


@struct.dataclass
class RateDQNState:
    """Training state.

    Attributes:
        q: the network that learns.
        memory: transitions, leaves `[1, memory, ...]`.
        env: environments of each scenario.
        key: PRNG key.
        updates: updates so far.
    """

    q: QState
    memory: replay.Ring
    env: tuple[PyTree, ...]
    key: Leaf
    updates: Leaf

    @property
    def actor(self) -> PyTree:
        """Parameters of the policy."""
        return self.q.params


class RateDQN(RateTrainer):
    """The algorithm for one configuration."""

    config_class = RateDQNConfig

    def __init__(self, config: RateDQNConfig) -> None:
        """Make the environments and the network."""
        super().__init__(config)
        self.envs = training_envs(config, **self.view)
        self.head = Head(sizes=(len(FACTORS),), scalar=True)
        self.learner = QLearner(
            Mlp(config.hidden, self.head.outputs),
            self.head,
            rate=config.lr,
            max_grad_norm=config.max_grad_norm,
            target_every=config.target_every,
            shared=True,
            double=config.double,
        )

    @property
    def view(self) -> dict[str, Any]:
        """Options of `make_rate` for actions and observations."""
        return {"actions": "discrete"}

    def act(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Array:
        """The best actions."""
        return self.head.mode(self.learner.values(actor, squash(obs)))

    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> RateDQNState:
        """A fresh network, an empty memory, and environments spread over their episodes."""
        key, net_key, env_key, phase_key = jax.random.split(key, 4)
        features = self.envs[0].obs_dim
        ring = replay.empty(transition_shapes(features, ()), self.config.memory)
        return RateDQNState(
            q=self.learner.init(net_key, features, 1),
            memory=replay.copies(ring, 1),
            env=start_training(self.envs, params, self.config.envs, env_key, phase_key),
            key=key,
            updates=jnp.zeros((), jnp.int32),
        )

    def update(
        self, state: RateDQNState, params: tuple[RateParams, ...]
    ) -> tuple[RateDQNState, dict[str, Array]]:
        """Roll out in all scenarios, store, and learn from memory."""
        c = self.config
        keys = jax.random.split(jax.random.fold_in(state.key, state.updates), 3)
        chance = epsilon(c.epsilon, c.epsilon_decay, c.epsilon_min, state.updates)
        envs, batches, left_out = roll_scenarios(
            self.envs, self._explore, state.env, keys[0], c, params, (state.actor, chance)
        )
        rows = self._rows(keys[1], batches)
        # All flows are one agent with one memory: the axis of agents has length 1.
        memory, _ = jax.vmap(replay.append)(state.memory, jax.tree.map(lambda x: x[None], rows))
        q, losses = self.learner.learn_from(
            state.q, keys[2], memory, batch=c.batch, gradient_steps=c.gradient_steps
        )
        metrics = event_metrics(batches, c.target) | losses
        new = replace(state, q=q, memory=memory, env=envs, updates=state.updates + 1)
        return new, metrics | {"events_left_out": left_out, "epsilon": chance}

    def _explore(self, actor: PyTree, key: jax.Array, obs: Float[Array, "flows obs"]) -> Array:
        """Actions of a rollout; `actor` is parameters, chance of a random action."""
        params, chance = actor
        q = self.learner.values(params, squash(obs))
        exploring, random_action = explore(key, self.head, q, chance)
        return choose(exploring, random_action, self.head.mode(q))

    def _rows(self, key: jax.Array, batches: list[Events]) -> Transition:
        """Rows of rollouts to store, `[rows, ...]`."""
        c, scenario_rows = self.config, []
        for i, events in enumerate(batches):
            steps = transitions(events, limited_reward(events.error, c.error_limit))
            at = draw_valid(jax.random.fold_in(key, i), steps.valid, c.rows // len(batches))
            leaves = (steps.obs, steps.action, steps.next_obs, steps.reward)
            obs, action, next_obs, reward = (rows_of(x, at) for x in leaves)
            reward = (1.0 - c.gamma) * (reward + steps.mean_reward)
            scenario_rows.append(
                Transition(
                    obs=squash(obs),
                    action=action,
                    reward=reward,
                    discount=jnp.full_like(reward, c.gamma),
                    next_obs=squash(next_obs),
                    last_action=action,
                    # Flows choose anew at every event.
                    kept=jnp.zeros(reward.shape, bool),
                    score=reward,
                    origin=jnp.zeros(reward.shape, jnp.int32),
                )
            )
        rows: Transition = jax.tree.map(lambda *x: jnp.concatenate(x), *scenario_rows)
        return rows
