"""Scores of a training state: how well its greedy policy does on episodes kept for that.

The same episodes every time, so that scores of one run differ by the policy alone. They are a part
of the tuning stream of their own (`streams`): the checkpoint that is best here was chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from ecn_marl._errors import unknown_name
from ecn_marl.baselines.common.evaluation import roll_out
from ecn_marl.baselines.common.objective import NEEDS, episode_objective, geometric_means
from ecn_marl.baselines.common.streams import tuning_keys

SCORES = ("reward", "objective")
"""What a score can be: the mean reward, or minus J in completion times (`completion`)."""

Score = Callable[[Any], np.ndarray]
"""`state -> score per seed`, float `[seeds]`; higher is better."""


class Greedy:
    """The mode of an algorithm's `act` as a controller: one inference for every decision."""

    def __init__(self, algorithm: Any, actor: Any) -> None:
        """Remember the algorithm and the parameters of its policy."""
        self.algorithm, self.actor = algorithm, actor

    def __call__(self, key: jax.Array, obs: jax.Array) -> Any:
        """Actions for observations."""
        return self.algorithm.act(self.actor, key, obs, greedy=True)

    def costs(self) -> dict[str, float]:
        """What a decision costs; nothing is known of algorithms that do not count operations."""
        flops = getattr(self.algorithm, "flops", None)
        if flops is None:
            return {}
        return {"inferences_per_decision": 1.0, "flops_per_decision": float(flops)}


def greedy_controller(algorithm: Any, actor: Any, env: Any) -> Any:
    """The greedy policy of an algorithm: its own `controller(actor, env)`, or the mode of `act`."""
    if hasattr(algorithm, "controller"):
        return algorithm.controller(actor, env)
    return Greedy(algorithm, actor)


def scorer(
    algorithm: Any,
    env: Any,
    params: Any,
    *,
    episodes: int = 16,
    seed: int = 0,
    seeds: int = 1,
    by: str = "reward",
) -> Score:
    """A function that scores training states that have an `actor`; compiled at its first call.

    Args:
        algorithm: the algorithm.
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        episodes: episodes per score.
        seed: which episodes.
        seeds: number of learners in a state.
        by: `reward`, the mean over episodes, intervals and agents; `objective`, minus the geometric
            mean of J over episodes.

    Raises:
        ValueError: `episodes` below 1, or an unknown kind of score.
    """
    if by not in SCORES:
        raise unknown_name("score", by, SCORES)
    keys = tuning_keys("checkpoints", seed, episodes)
    wanted = NEEDS if by == "objective" else ()

    def episode(key: Array, actor: Any) -> tuple[Array, dict[str, Array]]:
        controller = greedy_controller(algorithm, actor, env)
        state, reward, _ = roll_out(env, params, controller, key)
        metrics = env.episode_metrics(state, params) if wanted else {}
        return reward, {name: metrics[name] for name in wanted if name in metrics}

    @jax.jit
    def run(actor: Any) -> tuple[Array, dict[str, Array]]:
        def one(actor: Any) -> tuple[Array, dict[str, Array]]:
            found: tuple[Array, dict[str, Array]] = jax.vmap(episode, (0, None))(keys, actor)
            return found

        return jax.tree.map(lambda x: x[None], one(actor)) if seeds == 1 else jax.vmap(one)(actor)

    def score(state: Any) -> np.ndarray:
        rewards, metrics = jax.device_get(run(state.actor))
        if by == "reward":
            return np.asarray(rewards.mean(1))
        return -geometric_means(episode_objective(metrics)["J"])

    return score
