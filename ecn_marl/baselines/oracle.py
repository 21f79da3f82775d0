"""What settings can earn: the best static one, the best for each phase, and chance.

A grid of settings is tried on episodes of its own stream of keys. The setting with the highest mean
reward is `static:best`; `oracle` plays the best setting of whatever phase is on. The oracle knows
the phase and when it ends, which no agent does, but it does not look ahead within a phase and
ignores what one phase leaves in the queues for the next: it bounds settings that are constant in a
phase, not every conceivable policy. Without phases, both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.envs.actions import STATIC_ECN, EcnSetting
from ecn_marl.envs.phases import PhaseEcn
from ecn_marl.sim.queues import Ecn

BEST = "static:best"
"""How the best static setting is named where a run could stand."""

ORACLE = "oracle"
"""How the best setting for each phase is named."""

RANDOM = "random"
"""How uniformly random actions are named."""

RULES = {BEST: "best static", ORACLE: "oracle", RANDOM: "random"}
"""Policies of this module by name, and how they are shown."""

SEARCH_STREAM = 0x5EA7
"""Folded into a seed's key to get the keys of the episodes that settings are tried on."""

SEARCH_EPISODES = 8
"""Episodes that every setting is tried on."""


def default_grid() -> tuple[EcnSetting, ...]:
    """The named settings; Kmin 5 to 640 KB by octaves, Kmax 2, 8 or 64 times that, four Pmax."""
    kmin = [5.0 * 2.0**n for n in range(8)]
    grid = product(kmin, (2.0, 8.0, 64.0), (0.01, 0.05, 0.25, 1.0))
    return (*STATIC_ECN.values(), *(EcnSetting(k, k * ratio, p) for k, ratio, p in grid))


def search_keys(seed: int, episodes: int) -> jax.Array:
    """Keys of the episodes that settings are tried on, `[episodes]`; no evaluation uses them."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), SEARCH_STREAM), episodes)


def phase_names(env: Any) -> tuple[str, ...]:
    """Names of an environment's phases; a single one if it has none."""
    return tuple(phase.name for phase in getattr(env, "phases", ())) or ("all",)


def phase_table(
    env: Any, params: Any, settings: tuple[EcnSetting, ...], keys: jax.Array, batch: int = 96
) -> np.ndarray:
    """Mean reward of static settings by phase.

    Args:
        env: functional environment (without auto-reset).
        params: its parameters; `max_steps` is the length of an episode.
        settings: the settings tried.
        keys: episodes that each of them is tried on, `[episodes]`.
        batch: episodes run at once.

    Returns:
        Reward per tuning interval, over ports, intervals and episodes, `[settings, phases]`; NaN
        for phases that no episode reached.
    """
    steps, n_phases = int(params.max_steps), len(phase_names(env))
    scale = env.port_scale(params.sim)

    @lanes.mapped
    def episode(key: jax.Array, setting: Float[Array, " 3"]) -> tuple[Array, Array]:
        reset_key, run_key = jax.random.split(key)
        _, state = env.reset(reset_key, params)
        low, high, top = setting[0] * scale, setting[1] * scale, jnp.full_like(scale, setting[2])

        def step(state: Any, key: jax.Array) -> tuple[Any, tuple[Array, Array]]:
            now = env.phase(state, params)[0] if n_phases > 1 else jnp.zeros((), jnp.int32)
            _, state, reward, *_ = env.step_ecn(key, state, Ecn(low, high, top), params)
            return state, (now, reward.mean())

        _, (phase, reward) = jax.lax.scan(step, state, jax.random.split(run_key, steps))
        on = jax.nn.one_hot(phase, n_phases)
        return reward @ on, on.sum(0)

    pairs = np.array([(s, e) for s in range(len(settings)) for e in range(len(keys))])
    values = np.array([(s.kmin_kb * 1e3, s.kmax_kb * 1e3, s.pmax) for s in settings], np.float32)
    run = jax.jit(jax.vmap(episode))
    batch = min(batch, len(pairs))
    padded = np.concatenate([pairs, pairs[: -len(pairs) % batch]])
    parts = [
        jax.device_get(run(keys[rows[:, 1]], values[rows[:, 0]]))
        for rows in np.split(padded, len(padded) // batch)
    ]
    total, count = (
        np.concatenate(column)[: len(pairs)].reshape(len(settings), len(keys), n_phases).sum(1)
        for column in zip(*parts, strict=True)
    )
    with np.errstate(invalid="ignore"):
        return np.asarray(total / count)


@dataclass(frozen=True)
class Search:
    """The best settings of a grid.

    Attributes:
        static: the best single setting.
        by_phase: the best setting of every phase.
        phases: names of the phases.
    """

    static: EcnSetting
    by_phase: tuple[EcnSetting, ...]
    phases: tuple[str, ...]


def search(
    env: Any,
    params: Any,
    seed: int = 0,
    episodes: int = SEARCH_EPISODES,
    settings: tuple[EcnSetting, ...] | None = None,
) -> Search:
    """Try a grid of settings, and keep the best one overall and for each phase.

    Args:
        env: functional environment.
        params: its parameters.
        seed: which episodes of the search stream.
        episodes: episodes that every setting is tried on.
        settings: the grid; `default_grid()` if None.

    Raises:
        ValueError: no settings, or episodes too short to show every phase.
    """
    grid = default_grid() if settings is None else settings
    if not grid:
        raise bad_value("settings", grid, "at least one setting")
    table = phase_table(env, params, grid, search_keys(seed, episodes))
    if np.isnan(table).any():
        allowed = f"enough intervals for all {len(phase_names(env))} phases"
        raise bad_value("max_steps", int(params.max_steps), allowed)
    best = [grid[int(i)] for i in table.argmax(0)]
    return Search(grid[int(table.mean(1).argmax())], tuple(best), phase_names(env))


@cache
def found_settings(env: Any) -> Search:
    """Result of `search` for an environment with its default parameters, once per process."""
    return search(env, env.default_params)


class Oracle:
    """A controller that plays a phase's setting while it is on."""

    def __init__(self, env: Any, params: Any, settings: tuple[EcnSetting, ...]) -> None:
        """Scale the settings to the ports.

        Args:
            env: functional environment.
            params: its parameters.
            settings: one for each phase.
        """
        scale = env.port_scale(params.sim)
        each = [setting.scaled(scale) for setting in settings]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *each)
        phased = PhaseEcn(kmin=stacked.kmin, kmax=stacked.kmax, pmax=stacked.pmax)
        self.ecn: Ecn = phased if len(each) > 1 else each[0]

    def __call__(self, key: jax.Array, obs: jax.Array) -> Ecn:
        """The thresholds for all phases; the environment takes those of the one that is on."""
        return self.ecn


class Random:
    """A controller that draws every action uniformly: what an untrained learner does."""

    def __init__(self, env: Any) -> None:
        """Remember the actions of the environment."""
        self.codec, self.agents = env.action, env.num_agents

    def __call__(self, key: jax.Array, obs: jax.Array) -> jax.Array:
        """Random actions, `[A, ...]`."""
        return jnp.asarray(self.codec.sample(key, self.agents))
