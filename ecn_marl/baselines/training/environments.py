"""Environments to train in."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PyTree

from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.envs.interface import Environment

Moments = tuple[Float[Array, " obs"], Float[Array, " obs"]]
"""Mean and standard deviation of every entry of an observation."""


class Measured(NamedTuple):
    """What random actions show before training starts."""

    obs: Moments
    """Moments of observations over time, environments and agents."""
    reward: Float[Array, ""]
    """Mean reward of an agent in an interval."""


def start_environments(
    env: Environment, key: jax.Array, phase_key: jax.Array, params: PyTree, n: int
) -> tuple[Array, PyTree]:
    """Reset `n` auto-resetting environments.

    The first episodes start at a random step. Else all environments would always be at the same
    step of their episodes, and every update would hold a single part of an episode.

    Args:
        env: environment in `AutoReset`.
        key: PRNG key of the first episodes.
        phase_key: PRNG key of the steps that they start at.
        params: parameters of the environment.
        n: number of environments.

    Returns:
        Observations `[n, A, obs_dim]`, states.
    """
    obs, state = jax.vmap(env.reset, (0, None))(jax.random.split(key, n), params)
    phase = jax.random.randint(phase_key, (n,), 0, params.max_steps)
    return obs, replace(state, env=replace(state.env, steps=phase))


def start_measured(
    env: Environment,
    key: jax.Array,
    phase_key: jax.Array,
    params: PyTree,
    n: int,
    random_steps: int,
) -> tuple[Array, PyTree, Measured | None]:
    """`start_environments`, then random actions for some intervals to measure with.

    Args:
        env: environment in `AutoReset`.
        key: PRNG key of the first episodes and of the random actions.
        phase_key: PRNG key of the steps that the first episodes start at.
        params: parameters of the environment.
        n: number of environments.
        random_steps: intervals of random actions; 0 for none.

    Returns:
        Observations `[n, A, obs_dim]`, states, and what the random intervals showed; None without
        any.
    """
    obs, state = start_environments(env, key, phase_key, params, n)
    if not random_steps:
        return obs, state, None
    # Numbers below n would give the keys that the first episodes have.
    random_key = jax.random.fold_in(key, n)
    (state, obs), measured = run_randomly(env, random_key, params, (state, obs), random_steps)
    return obs, state, measured


def run_randomly(
    env: Environment, key: jax.Array, params: PyTree, carry: tuple[PyTree, Array], steps: int
) -> tuple[tuple[PyTree, Array], Measured]:
    """Take random actions for some intervals, to measure observations and rewards.

    Args:
        env: environment in `AutoReset`.
        key: PRNG key.
        params: parameters of the environment.
        carry: states and observations, leading axis of environments.
        steps: intervals.

    Returns:
        States and observations after, and what was measured.
    """

    def step(key: jax.Array, carry: tuple[PyTree, Array], params: PyTree) -> tuple[PyTree, PyTree]:
        act_key, env_key = jax.random.split(key)
        action = env.action.sample(act_key, env.num_agents)
        obs, state, reward, *_ = env.step(env_key, carry[0], action, params)
        return (state, obs), (obs, reward)

    carry, (observations, rewards) = roll(env, step, carry, key, steps, params)
    flat = observations.reshape(-1, observations.shape[-1])
    return carry, Measured((flat.mean(0), flat.std(0)), rewards.mean())
