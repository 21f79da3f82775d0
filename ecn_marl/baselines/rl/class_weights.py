"""Weights of size classes in the slowdown reward that follow the benchmark's objective J.

J is `(mean short * p99 short)^(1/4) * (geometric mean long)^(1/2)` of slowdowns, see
`evaluation.completion`. If the 99th percentile moves with the mean, the slowdown of one flow
changes ln J by

    short:  1 / (2 N mean)        long:  1 / (2 N geometric mean)        (N flows of the class)

and these are the weights that a reward must have for its sum to follow J. A scenario's weights are
right near SECN1. Under a better policy short flows have a third of that slowdown, and would count
for a third. Medium flows have no part in J: they get the mean of the other two, as they compete
with both.

The weights are taken from the trainer's own episodes, never from those that policies are scored on,
and are part of the training state, so that a resumed run goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value

NAMES = ("weight_short", "weight_medium", "weight_long")
"""Metrics of an update: the weights in force after it."""

SMOOTHING = 0.9
"""Weight of the logarithms before at every update: some ten updates are averaged."""


def check(env: object) -> None:
    """Checks that an environment's reward has weights of size classes.

    Raises:
        ValueError: it has none.
    """
    reward = getattr(env, "reward", None)
    if not getattr(reward, "accrues", False):
        name = getattr(reward, "name", type(reward).__name__)
        allowed = f"False with the reward {name}: only rewards in completion times have weights"
        raise bad_value("follow_j", True, allowed)


def in_force(params: PyTree, weights: Float[Array, "3"]) -> PyTree:
    """Parameters of an environment whose reward has these weights."""
    return replace(params, reward=replace(params.reward, slowdown_weights=weights))


def weights_of_j(
    flows: Float[Array, "3"], total: Float[Array, "3"], log_total: Float[Array, "3"]
) -> Float[Array, "3"]:
    """Change of ln J by the slowdown of one flow of each class; NaN or inf where a class has none.

    Args:
        flows: flows that count.
        total: their slowdowns added up.
        log_total: the logarithms of these added up.
    """
    short = 0.5 / total[0]
    long = 0.5 / (flows[2] * jnp.exp(log_total[2] / flows[2]))
    return jnp.stack((short, 0.5 * (short + long), long))


def followed(
    episode_metrics: Callable[[PyTree, PyTree], Mapping[str, Array]],
    states: PyTree,
    params: PyTree,
    weights: Float[Array, "3"],
) -> Float[Array, "3"]:
    """Weights after an update.

    Args:
        episode_metrics: that of the environment, see `EcnEnv.episode_metrics`.
        states: the environment's states in the middle of episodes, leading axis of environments.
        params: its parameters, with the weights in force.
        weights: these weights.

    Returns:
        Weights nearer to those of J, scaled so that what the flows of these episodes have cost adds
        up to the same: the balance of classes follows J, the size of rewards does not change. As
        they are where one of the two classes of J has no flow yet.
    """
    metrics = jax.vmap(episode_metrics, (0, None))(states, params)
    flows, total, logs = (
        metrics[name].astype(jnp.float32).sum(0)
        for name in ("flows_measured", "slowdown_sum", "slowdown_log_sum")
    )
    wanted = weights_of_j(flows, total, logs)
    moved = jnp.exp(SMOOTHING * jnp.log(weights) + (1.0 - SMOOTHING) * jnp.log(wanted))
    moved = moved * (weights * total).sum() / (moved * total).sum()
    return jnp.where(jnp.isfinite(moved).all() & (moved > 0.0).all(), moved, weights)
