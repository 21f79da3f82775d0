"""Rollouts: many environments under a policy that learns, compiled as one program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ecn_marl import lanes
from ecn_marl.envs.interface import Environment


def roll(
    env: Environment,
    step: Callable[..., tuple[PyTree, PyTree]],
    carry: PyTree,
    key: jax.Array,
    steps: int,
    *shared: PyTree,
) -> tuple[PyTree, PyTree]:
    """Repeat a step of one environment in a batch of them.

    Policy and environment are one program of `ecn_marl.lanes`: states stay in vectors from one
    interval to the next.

    Args:
        env: the environment.
        step: `(key, carry, *shared) -> (carry, row)` of one environment.
        carry: what changes from step to step, leading axis of environments; states come first.
        key: PRNG key.
        steps: intervals per environment.
        shared: what all environments share, such as networks.

    Returns:
        The carry after, and rows with the axes `[time, envs, ...]`.
    """

    def run_environment(key: jax.Array, carry: PyTree, *shared: PyTree) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, steps)
        return jax.lax.scan(lambda c, k: step(k, c, *shared), carry, keys)

    n = jax.tree.leaves(carry)[0].shape[0]
    # With its load known, `lanes` puts environments that are equally busy into the same vectors.
    load = getattr(env, "load", None)
    busy = None if load is None else lambda key, carry, *shared: load(carry[0])
    # {1: 0}: the carry after takes the memory of the carry before.
    run = jax.vmap(lanes.mapped(run_environment, {1: 0}, busy), (0, 0, *(None for _ in shared)))
    carry, rows = run(jax.random.split(key, n), carry, *shared)
    return carry, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)
