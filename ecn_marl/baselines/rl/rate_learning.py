"""What all learners of rates share: scenarios, budget, rollouts and batches.

One set of environments per number of senders, all trained on at once. A rollout of each is sorted
by flow (`rate_rollout.keyed`); learners with the same `RateConfig` see equally many steps.

The reward of a flow's action at one event is that of its next event (`Transitions`). Flows never
end, and the objective is the mean reward, so rewards are taken relative to the mean of their
scenario's rollout. The discount only bounds for how long an action is credited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Shaped

from ecn_marl._checks import Each, Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl.baselines.rl.gae import gae
from ecn_marl.baselines.rl.rate_rollout import Act, Events, keyed, restarted, roll_rates
from ecn_marl.baselines.training.settings import at_least_one, not_negative, positive, shares
from ecn_marl.envs.rate.env import RateEnv, RateParams, RateState
from ecn_marl.envs.rate.scenarios import make_rate


@dataclass(frozen=True)
class RateConfig:
    """Scenarios, budget and reward of a learner of rates.

    Attributes:
        senders: many-to-one scenarios that are trained on at once, by number of flows.
        envs: environments of each.
        rollout: steps of every environment per update.
        events: events of each flow that an update uses; later ones of a rollout are left out.
        gamma: discount from event to event.
        target: target of the reward.
        offset: inflation that costs nothing.
        episode_us: time after which an environment starts anew, at line rate, µs.
        buffer_mib: buffer in training, MiB. It is small because a full buffer makes events rare.
    """

    senders: tuple[int, ...] = (4, 8, 32)
    envs: int = 8
    rollout: int = 256
    events: int = 64
    gamma: float = 0.99
    target: float = 0.064
    offset: float = 1.5
    episode_us: float = 20_000.0
    buffer_mib: float = 1.0

    def __post_init__(self) -> None:
        """Check all settings."""
        at_least_one(self, "envs", "rollout", "events")
        positive(self, "target", "episode_us", "buffer_mib")
        not_negative(self, "offset")
        shares(self, "gamma")
        count_tuples(self, "senders")

    @property
    def steps_per_update(self) -> int:
        """Environment steps per update."""
        return len(self.senders) * self.envs * self.rollout


def count_tuples(config: object, *names: str) -> None:
    """Check tuples of counts.

    Raises:
        ValueError: it is no tuple, is empty, or has an entry that is no integer of at least 1.
    """
    for name in names:
        check_value(name, getattr(config, name), Each(Whole(low=1), least=1))


def equal_rows(config: Any) -> None:
    """Check that an update has transitions, whose `rows` can be shared equally by the scenarios.

    Raises:
        ValueError: they cannot, or a single event of a flow leads to no next one.
    """
    if config.events < 2:
        raise bad_value("events", config.events, "an integer >= 2: rewards come with the next one")
    if config.rows % len(config.senders):
        allowed = f"a multiple of {len(config.senders)}, the number of scenarios"
        raise bad_value("rows", config.rows, allowed)


class RateTrainer(ABC):
    """A learner of rates, as `training.loop` and the commands need it.

    Attributes:
        config_class: its settings.
        config: their values.
        envs: environments that it trains in, one for each number of senders.
    """

    config_class: ClassVar[type[RateConfig]]

    config: Any
    envs: tuple[RateEnv, ...]

    def __init__(self, config: RateConfig) -> None:
        """Set up environments, networks and optimisers for settings of `config_class`."""
        self.config = config

    @abstractmethod
    def init(self, key: jax.Array, params: tuple[RateParams, ...]) -> PyTree:
        """A fresh policy and fresh environments, these spread over their episodes."""

    @abstractmethod
    def update(
        self, state: PyTree, params: tuple[RateParams, ...]
    ) -> tuple[PyTree, dict[str, Array]]:
        """Roll out in all scenarios, and learn from it.

        Args:
            state: training state.
            params: parameters of each scenario's environment.

        Returns:
            New state, and the update's metrics.
        """

    @abstractmethod
    def act(self, actor: PyTree, obs: Float[Array, "*b obs"]) -> Array:
        """Deterministic actions of flows."""

    @property
    def view(self) -> dict[str, Any]:
        """Options of `make_rate` for actions and observations: its defaults."""
        return {}

    @property
    def default_params(self) -> tuple[RateParams, ...]:
        """Parameters of all environments."""
        return tuple(env.default_params for env in self.envs)


def training_envs(config: RateConfig, **view: Any) -> tuple[RateEnv, ...]:
    """An environment for each number of senders.

    Args:
        config: settings.
        **view: `actions`, `columns`, `history` or fields of the scenario for `make_rate`, where
            they are not its defaults.
    """
    return tuple(
        make_rate(
            f"many-to-one-{n}-v0",
            target=config.target,
            offset=config.offset,
            duration_us=config.episode_us,
            warm_up_us=0.0,
            buffer_mib=config.buffer_mib,
            **view,
        )
        for n in config.senders
    )


def start_training(
    envs: Sequence[RateEnv],
    params: Sequence[RateParams],
    n: int,
    key: jax.Array,
    phase_key: jax.Array,
) -> tuple[RateState, ...]:
    """Fresh environments, `n` of each, spread over their episodes."""
    states = []
    for i, (env, p) in enumerate(zip(envs, params, strict=True)):
        keys = jax.random.split(jax.random.fold_in(key, i), n)
        _, state = jax.vmap(env.reset, (0, None))(keys, p)
        phase = jax.random.randint(jax.random.fold_in(phase_key, i), (n,), 0, p.max_steps)
        states.append(replace(state, steps=phase))
    return tuple(states)


def roll_scenarios(
    envs: Sequence[RateEnv],
    act: Act,
    states: Sequence[RateState],
    key: jax.Array,
    config: RateConfig,
    params: Sequence[RateParams],
    actor: PyTree,
) -> tuple[tuple[RateState, ...], list[Events], Int[Array, ""]]:
    """Roll out in every scenario; environments at their horizon start anew afterwards.

    Args:
        envs: environment of each scenario.
        act: the policy.
        states: states of each, leading axis of environments.
        key: PRNG key.
        config: settings.
        params: parameters of each.
        actor: parameters of the policy.

    Returns:
        States after, events of each scenario `[events, E, F]`, and the number of those left out.
    """
    # A loop in Python: scenarios differ in their number of flows, so they cannot be one batch.
    after, batches, left_out = [], [], jnp.zeros((), jnp.int32)
    for i, (env, p) in enumerate(zip(envs, params, strict=True)):
        roll_key, reset_key = jax.random.split(jax.random.fold_in(key, i))
        final, rows = roll_rates(env, act, states[i], roll_key, config.rollout, p, actor)
        events, dropped = keyed(rows, config.events)
        batches.append(events)
        left_out = left_out + dropped
        after.append(restarted(env, final, reset_key, p))
    return tuple(after), batches, left_out


class Transitions(NamedTuple):
    """From each event of a flow to its next, leaves `[T - 1, E, F, ...]`.

    Attributes:
        valid: whether there are both events.
        cut: whether the next event is the last one of the rollout.
        obs: observation of the flow.
        action: its action.
        next_obs: observation at its next event.
        reward: reward at the next event, less the mean reward.
        mean_reward: mean over all transitions, a scalar.
    """

    valid: Bool[Array, "t envs flows"]
    cut: Bool[Array, "t envs flows"]
    obs: Float[Array, "t envs flows obs"]
    action: Array
    next_obs: Float[Array, "t envs flows obs"]
    reward: Float[Array, "t envs flows"]
    mean_reward: Float[Array, ""]


def transitions(events: Events, reward: Float[Array, "t envs flows"]) -> Transitions:
    """Transitions of a scenario's rollout.

    Args:
        events: events by flow, see `rate_rollout.keyed`.
        reward: reward at each event.
    """
    valid = events.valid[1:]  # `keyed` leaves no holes
    has_next = jnp.concatenate([valid[1:], jnp.zeros_like(valid[:1])])
    mean_reward = jnp.sum(jnp.where(valid, reward[1:], 0.0)) / jnp.maximum(valid.sum(), 1)
    return Transitions(
        valid=valid,
        cut=~has_next,
        obs=events.obs[:-1],
        action=events.action[:-1],
        next_obs=events.obs[1:],
        reward=jnp.where(valid, reward[1:] - mean_reward, 0.0),
        mean_reward=mean_reward,
    )


def advantages(
    steps: Transitions,
    value: Float[Array, "t envs flows"],
    next_value: Float[Array, "t envs flows"],
    gamma: float,
    lam: float,
) -> tuple[Float[Array, "t envs flows"], Float[Array, "t envs flows"]]:
    """Advantages and returns of events, see `gae`; the end of a rollout is a truncation."""
    ended = jnp.zeros_like(steps.valid)
    return gae(steps.reward, value, next_value, ended, steps.cut, gamma, lam)


def draw_valid(key: jax.Array, valid: Bool[Array, "..."], n: int) -> Int[Array, " n"]:
    """`n` of the valid rows at random, all of them equally often (but for one).

    Args:
        key: PRNG key.
        valid: which rows count, any shape; rows are numbered in its flattened order.
        n: number of rows to draw.

    Returns:
        Numbers of rows. If none is valid, any.
    """
    flat = valid.reshape(-1)
    # A shuffle with the invalid rows at its end: random numbers are below 1.
    order = jnp.argsort(jnp.where(flat, jax.random.uniform(key, flat.shape), 2.0))
    # Round and round over the valid rows: `n` is fixed when compiled, their number is not.
    return order[jnp.arange(n) % jnp.maximum(flat.sum(), 1)]


def rows_of(x: Shaped[Array, "t envs flows *row"], at: Int[Array, " n"]) -> Array:
    """Rows of a leaf of `Transitions` by the numbers that `draw_valid` gives, `[n, ...]`."""
    return x.reshape(-1, *x.shape[3:])[at]


def limited_reward(error: Float[Array, "*b"], limit: float) -> Float[Array, "*b"]:
    """Minus the squared error, in units of the target; errors count up to a limit.

    A full buffer is an error of 150, an idle link one of -1. Without a limit, the first events of
    an episode would outweigh all others by four orders of magnitude.

    Args:
        error: x / target - 1.
        limit: largest error that counts; 0 for no limit.
    """
    return -((jnp.minimum(error, limit) if limit else error) ** 2)


def squash(obs: Float[Array, "*b"]) -> Float[Array, "*b"]:
    """Features in a range that a network can use: sign(x) log(1 + |x|)."""
    # `log1p` keeps what `log(1 + x)` would round away near 0, where flows are on target.
    return jnp.sign(obs) * jnp.log1p(jnp.abs(obs))


def event_metrics(batches: Sequence[Events], target: float) -> dict[str, Array]:
    """Metrics of rollouts: means over scenarios, in the terms of `envs.rate.env`.

    Args:
        batches: events of each scenario.
        target: target of the reward.
    """

    def of(events: Events) -> dict[str, Array]:
        weight = events.valid.astype(jnp.float32)
        n = jnp.maximum(weight.sum(), 1.0)
        return {
            "error": (weight * events.error).sum() / n,
            "reward": -(weight * (target * events.error) ** 2).sum() / n,
            "events": weight.sum(),
        }

    return jax.tree.map(lambda *x: jnp.stack(x).mean(), *map(of, batches))
