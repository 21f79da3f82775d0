"""Environments to train in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array


def start_environments(
    env: Any, key: jax.Array, phase_key: jax.Array, params: Any, n: int
) -> tuple[Array, Any]:
    """Reset `n` auto-resetting environments.

    The first episodes start with part of their steps used up, at random: else all environments
    would be in the same phase of an episode at all times, and every update would see one phase.

    Args:
        env: environment in `AutoReset`.
        key: PRNG key of the first episodes.
        phase_key: PRNG key of how far they are.
        params: parameters of the environment.
        n: how many.

    Returns:
        Observations `[n, A, obs_dim]`, states.
    """
    obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, n), params)
    phase = jax.random.randint(phase_key, (n,), 0, params.max_steps)
    return obs, replace(state, env=replace(state.env, steps=phase))
