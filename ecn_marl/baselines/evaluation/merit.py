"""Merit of a training state: what its greedy policy reaches on episodes kept for that.

Checkpoints are chosen by it. It is the mean reward, or minus J, so higher is better. The *score* of
a policy is another number: its J relative to that of `static:best`, see `completion`.

The episodes are always the same, so that merits of one run differ by the policy alone. They have
their own part of the tuning stream (`streams`), as the best checkpoint is chosen by its merit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import unknown_name
from ecn_marl.baselines.evaluation.completion import CHECKED, invalid_reasons
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController, roll_out
from ecn_marl.baselines.evaluation.objective import episode_objective, geometric_means, is_needed
from ecn_marl.baselines.evaluation.statistics import half_width
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.envs.interface import Environment, MeasuredEnvironment

MERITS = ("reward", "objective")
"""Kinds of merit: the mean reward, or minus J in completion times (`completion`)."""


class Merits(NamedTuple):
    """Merits of policies, with intervals; higher is better.

    Attributes:
        value: the merit, `[policies]`.
        low: lower end of its 95 % interval over episodes, `[policies]`; None if there is none.
        high: upper end, likewise.
        refused: why they do not count, see `completion.invalid_reasons`; empty if they do.
    """

    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    refused: str = ""


POINTS, SHARE, COST = 20, 0.2, 0.5
"""Evaluations of a training at most, the first one apart; the share of its time that they may take;
time of an evaluated step in that of a training step (measured: 0.3 to 0.5), which also has to learn
from it."""


def evaluations_every(updates: int, config: Any, episodes: int, intervals: int) -> float:
    """Updates between two evaluations, if the user does not say: a share of an update, too.

    As many evaluations as cost `SHARE` of the training, up to `POINTS`, evenly spaced; those of the
    first and the last state are always made. It follows from sizes alone, so a resumed run has the
    same.

    Args:
        updates: updates of the training.
        config: settings of the trainer; `steps_per_update` are those of a seed.
        episodes: episodes of an evaluation.
        intervals: steps of an episode.
    """
    budget = SHARE * updates * config.steps_per_update / (COST * episodes * intervals)
    points = min(max(int(budget) - 1, 1), POINTS)
    return max(1.0, updates / points)


Merit = Callable[[PyTree], Merits]
"""Merits of a training state, one policy per seed."""


def episode_merits(
    by: str, reward: np.ndarray, metrics: Mapping[str, np.ndarray], allow_flagged: bool = False
) -> Merits:
    """Merits from episodes that are the same for all policies.

    The interval is Student's t over episodes (of log J for `objective`). Differences between
    policies in the same episodes are more certain than that.

    Args:
        by: `reward` or `objective`, see `merit_function`.
        reward: mean reward per interval and agent, `[policies, episodes]`.
        metrics: those of `objective.NEEDS`, leading axes policies and episodes, for `objective`;
            and those of `completion.CHECKED` that the environment has.
        allow_flagged: whether merits count although structures of fixed size were too small.

    Raises:
        ValueError: for `objective`, no episode has short and long flows under every policy.
    """
    reasons = [] if allow_flagged else _reasons(metrics, len(reward))
    return _merits(by, reward, metrics)._replace(refused="; ".join(reasons))


def _reasons(metrics: Mapping[str, np.ndarray], policies: int) -> list[str]:
    """Why the episodes of any policy do not count."""
    columns = {name: np.asarray(metrics[name]) for name in CHECKED if name in metrics}
    by_policy = ({name: x[i] for name, x in columns.items()} for i in range(policies))
    return list(dict.fromkeys(reason for row in by_policy for reason in invalid_reasons(row)))


def _merits(by: str, reward: np.ndarray, metrics: Mapping[str, np.ndarray]) -> Merits:
    """Merits, whether they count or not."""
    if by == "reward":
        value, half = np.asarray(reward, np.float64).mean(-1), _half_width(reward)
        return Merits(value) if half is None else Merits(value, value - half, value + half)
    episode_j = episode_objective(metrics)["J"]
    value = geometric_means(episode_j)
    half = _half_width(np.log(episode_j[..., np.isfinite(episode_j).all(0)]))
    if half is None:
        return Merits(-value)
    return Merits(-value, -value * np.exp(half), -value * np.exp(-half))


def _half_width(values: np.ndarray) -> np.ndarray | None:
    """Half-width of the 95 % interval of means over the last axis; None of a single value."""
    return None if values.shape[-1] < 2 else half_width(values)


@runtime_checkable
class Acting(Protocol):
    """A learner whose policy takes observations alone; see `Trainer.act`."""

    def act(
        self,
        actor: PyTree,
        key: jax.Array,
        obs: Float[Array, "*b agents obs"],
        greedy: bool = False,
    ) -> Array:
        """Actions for observations; the most likely ones if `greedy`."""


@runtime_checkable
class Controlling(Protocol):
    """A learner that makes the controller of its policy itself; see `Trainer.controller`."""

    def controller(self, actor: PyTree, env: Environment) -> Controller | StatefulController:
        """The greedy policy in an environment."""


@dataclass(frozen=True)
class Greedy:
    """The mode of an algorithm's `act` as a controller: one inference for every decision.

    Attributes:
        algorithm: the algorithm.
        actor: parameters of its policy.
    """

    algorithm: Acting
    actor: PyTree

    def __call__(self, key: jax.Array, obs: jax.Array) -> Array:
        """Actions for observations."""
        return self.algorithm.act(self.actor, key, obs, greedy=True)

    def costs(self) -> dict[str, float]:
        """Costs of a decision; empty for algorithms that do not count operations."""
        flops = getattr(self.algorithm, "flops", None)
        if flops is None:
            return {}
        return {"inferences_per_decision": 1.0, "flops_per_decision": float(flops)}


def greedy_controller(
    algorithm: Acting | Controlling, actor: PyTree, env: Environment
) -> Controller | StatefulController:
    """The greedy policy of an algorithm: its own `controller(actor, env)`, or the mode of `act`."""
    if isinstance(algorithm, Controlling):
        return algorithm.controller(actor, env)
    return Greedy(algorithm, actor)


def merit_function(
    algorithm: Acting | Controlling,
    env: MeasuredEnvironment,
    params: PyTree,
    *,
    episodes: int = 16,
    seed: int = 0,
    seeds: int = 1,
    by: str = "reward",
    allow_flagged: bool = False,
) -> Merit:
    """A function that measures the merit of states with an `actor`; compiled at its first call.

    Args:
        algorithm: the algorithm.
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        episodes: episodes per evaluation.
        seed: seed of the episodes.
        seeds: number of learners in a state.
        by: `reward`, the mean over episodes, intervals and agents; `objective`, minus the geometric
            mean of J over episodes.
        allow_flagged: see `episode_merits`.

    Raises:
        ValueError: `episodes` below 1, or an unknown kind of merit.
    """
    if by not in MERITS:
        raise unknown_name("kind of merit", by, MERITS)
    keys = tuning_keys("checkpoints", seed, episodes)

    def needed(name: str) -> bool:
        return name in CHECKED or (by == "objective" and is_needed(name))

    def episode(key: Array, actor: PyTree) -> tuple[Array, dict[str, Array]]:
        controller = greedy_controller(algorithm, actor, env)
        state, reward, _ = roll_out(env, params, controller, key)
        metrics = env.episode_metrics(state, params)
        return reward, {name: x for name, x in metrics.items() if needed(name)}

    @jax.jit
    def run(actor: PyTree) -> tuple[Array, dict[str, Array]]:
        def policy_episodes(actor: PyTree) -> tuple[Array, dict[str, Array]]:
            results: tuple[Array, dict[str, Array]] = jax.vmap(episode, (0, None))(keys, actor)
            return results

        return (
            jax.tree.map(lambda x: x[None], policy_episodes(actor))
            if seeds == 1
            else jax.vmap(policy_episodes)(actor)
        )

    def merit(state: PyTree) -> Merits:
        reward, metrics = jax.device_get(run(state.actor))
        return episode_merits(by, reward, metrics, allow_flagged)

    return merit


def mean_merits(each: Sequence[Merit], by: str, state: PyTree) -> Merits:
    """Merits of states in several scenarios together: each counts alike.

    Args:
        each: measures the merit in one scenario.
        by: `reward` for means, `objective` for geometric means of J.
        state: training state.
    """
    found = [merit(state) for merit in each]
    value = np.stack([x.value for x in found])
    mean = value.mean(0) if by == "reward" else -np.exp(np.log(-value).mean(0))
    return Merits(mean, refused="; ".join(dict.fromkeys(x.refused for x in found if x.refused)))
