"""Scores of a training state: how well its greedy policy does on episodes kept for that.

The same episodes every time, so that scores of one run differ by the policy alone. Their keys are
neither training's nor those of `evaluation`: the checkpoint that is best here was chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.baselines.common.evaluation import roll_out

SCORING_STREAM = 0x5C02
"""Folded into a seed's key to get the keys of its scoring episodes."""

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


def episode_score(
    algorithm: Any, env: Any, params: Any, actor: Any, keys: Array
) -> Float[Array, ""]:
    """Mean reward of the greedy policy over whole episodes, agents and intervals.

    Args:
        algorithm: the algorithm.
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        actor: parameters of the policy.
        keys: one key per episode.
    """
    controller = greedy_controller(algorithm, actor, env)
    return jax.vmap(lambda key: roll_out(env, params, controller, key)[1])(keys).mean()


def scorer(
    algorithm: Any, env: Any, params: Any, *, episodes: int = 16, seed: int = 0, seeds: int = 1
) -> Score:
    """A function that scores training states that have an `actor`; compiled at its first call.

    Args:
        algorithm: the algorithm.
        env: functional environment (without auto-reset).
        params: its parameters.
        episodes: episodes per score.
        seed: which episodes.
        seeds: number of learners in a state.

    Raises:
        ValueError: `episodes` below 1.
    """
    if episodes < 1:
        raise bad_value("episodes", episodes, "an integer >= 1")

    @jax.jit
    def scores(actor: Any) -> Array:
        stream = jax.random.fold_in(jax.random.key(seed), SCORING_STREAM)
        keys = jax.random.split(stream, episodes)

        def one(actor: Any) -> Array:
            return episode_score(algorithm, env, params, actor, keys)

        return one(actor)[None] if seeds == 1 else jax.vmap(one)(actor)

    return lambda state: np.asarray(jax.device_get(scores(state.actor)))
