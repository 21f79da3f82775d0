"""The static setting that earns most of a learner's reward, beside which it is judged.

See `own_reward`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl import lanes
from ecn_marl.baselines.evaluation.episodes import roll_out
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.static import Static
from ecn_marl.envs.actions import STATIC_ECN, EcnSetting
from ecn_marl.envs.registry import make
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.own_reward import COLUMN
from ecn_marl.experiments.recipes import DEPTHS, Recipe
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.sources import flow_list
from ecn_marl.sim.core.queues import Ecn

EPISODES = 4
"""Tuning episodes that the best static setting is chosen in."""

PAID = ("actions", "action_options", "reward", "credit", "reward_options", "interval_us")
"""Options of a recipe that decide what can be set, and what an interval earns."""

_STEEP = tuple((kmin, 2.0 * kmin, pmax) for kmin, _, pmax in DEPTHS)

CANDIDATES = tuple(EcnSetting(*setting) for setting in (*STATIC_ECN.values(), *DEPTHS, *_STEEP))
"""Static settings tried, Kmin and Kmax in KB at 25 Gb/s: the named ones, and all depths with two
slopes; of each the nearest that the learner's actions can set."""

BATCH = 32


class BestStatic(NamedTuple):
    """The static setting that earns most of a reward."""

    setting: tuple[float, ...]
    """Kmin and Kmax in KB at 25 Gb/s, Pmax."""
    candidates: int
    """Settings that were tried."""
    reward: np.ndarray
    """Mean reward of a port and interval in every episode, `[episodes]`."""


_FOUND: dict[str, BestStatic] = {}
"""By scenario, options and episodes: learners of one reward share the search."""


def best_static(
    scenario: str, options: Mapping[str, Any], recipe: Recipe, keys: jax.Array
) -> BestStatic:
    """The static setting that earns most of a learner's reward, and what it earns.

    It is the best of what is nearest to `CANDIDATES` in `EPISODES` tuning episodes, which no score
    uses.

    Args:
        scenario: name of a scenario.
        options: options of `ecn_marl.make` that do not belong to the learner.
        recipe: the learner's recipe; `PAID` of its options decide the reward.
        keys: the episodes in which it is then scored, `[episodes]`.
    """
    paid = {name: recipe.options[name] for name in PAID if name in recipe.options}
    merged = {**options, **paid}
    if "reward_options" in options and "reward_options" in paid:
        merged["reward_options"] = {**options["reward_options"], **paid["reward_options"]}
    episodes = np.asarray(jax.random.key_data(keys)).tolist()
    facts = {"scenario": scenario, "options": merged, "episodes": episodes, **flow_list(merged)}
    key = json.dumps(json_types(facts, str), sort_keys=True)
    if key not in _FOUND:
        env = make(scenario, **merged)
        params = env.default_params

        @jax.jit
        @jax.vmap
        @lanes.mapped
        def earned(episode: jax.Array, ecn: Ecn) -> jax.Array:
            return roll_out(env, params, lambda key, obs: ecn, episode)[1]

        names = dict.fromkeys(
            tuple(map(float, env.action.describe(env.action.encode(*x)))) for x in CANDIDATES
        )
        settings = [Static(env, params, ",".join(map(repr, x))).ecn for x in names]
        search = tuning_keys("search", 0, EPISODES)
        rewards = _run(earned, search, settings).mean(1)
        best = int(np.argmax(rewards))
        scored = _run(earned, keys, settings[best : best + 1])[0]
        _FOUND[key] = BestStatic(list(names)[best], len(names), scored)
    return _FOUND[key]


def _run(earned: Any, keys: jax.Array, settings: Sequence[Ecn]) -> np.ndarray:
    """Rewards of settings in episodes, `[settings, episodes]`, `BATCH` at a time."""
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *settings)
    pairs = [(i, j) for i in range(len(settings)) for j in range(len(keys))]
    # The last batch is filled up: another length would be another program to compile.
    padded = np.resize(np.array(pairs), (-(-len(pairs) // BATCH) * BATCH, 2))
    rewards = []
    for start in range(0, len(padded), BATCH):
        which, episode = padded[start : start + BATCH].T
        chosen = jax.tree.map(partial(_at, which), stacked)
        rewards.append(np.asarray(earned(keys[episode], chosen), np.float64))
    return np.concatenate(rewards)[: len(pairs)].reshape(len(settings), len(keys))


def _at(which: np.ndarray, x: jax.Array) -> jax.Array:
    return x[which]


def with_own_reward(record: Record, best: BestStatic, recipe: Recipe) -> Record:
    """A learner's record with `COLUMN`, and in `meta["own"]` what it was compared with.

    Args:
        record: the record.
        best: the best static setting.
        recipe: the learner's recipe.
    """
    column = np.broadcast_to(best.reward, (record.seeds, record.episodes))
    own = {
        "setting": list(best.setting),
        "candidates": best.candidates,
        "episodes": EPISODES,
        "reward": recipe.options.get("reward"),
    }
    columns = {**record.columns, COLUMN: column}
    return Record(record.name, {**record.meta, "own": own}, columns, record.curves)
