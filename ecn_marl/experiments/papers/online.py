"""PET as it is deployed: trained offline, then learning in the very episode that scores it (§4.4).

The model that was trained offline is installed on every port. From then on each port trains its own
copy on what it sees: one stream of intervals, an update at the end of each window of the episode.
Actions are sampled, so what exploring costs is in the score. Every episode and seed starts from the
offline model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.common.checkpoint import read_config
from ecn_marl.baselines.common.evaluation import Evaluation
from ecn_marl.baselines.common.windows import counters, in_windows
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.runs import run_state
from ecn_marl.envs.registry import in_view, make
from ecn_marl.experiments.bench import Scored, run_folder
from ecn_marl.experiments.plan import Comparison, Place
from ecn_marl.experiments.workflow import Show

MINIBATCHES = 5
"""Gradient steps per pass over the intervals of a window; PET does not state them."""


def episode_runner(env: Any, config: IPPOConfig, updates: int) -> Callable[..., Any]:
    """Runs episodes of a learner that goes on learning in them.

    Args:
        env: functional environment (without auto-reset).
        config: settings of one port's learner, an environment and a window at a time.
        updates: updates in an episode, as many as windows.

    Returns:
        `(networks, keys) -> metrics` with a leading axis of episodes; `networks` are actor and
        critic of the offline model. An episode is the one that `roll_out` has for its key.
    """
    params = env.default_params
    # One interval more than there are, so that the last state is not that of the next episode.
    endless = replace(params, max_steps=np.int32(env.horizon + 1))

    @jax.jit
    def run(networks: tuple[Any, Any], keys: jax.Array) -> dict[str, jax.Array]:
        algorithm = IPPO(env, config, start=networks)

        def episode(key: jax.Array) -> dict[str, jax.Array]:
            reset_key, run_key = jax.random.split(key)
            state = algorithm.init(run_key, endless)
            obs, fresh = algorithm.env.reset(reset_key, endless)
            alone = jax.tree.map(lambda x: jnp.asarray(x)[None], fresh)
            state = replace(state, env=alone, obs=obs[None])

            def update(state: Any, _: None) -> tuple[Any, dict[str, jax.Array]]:
                state = algorithm.update(state, endless)[0]
                return state, counters(_only(state.env).env)

            state, seen = jax.lax.scan(update, state, None, length=updates)
            return env.episode_metrics(_only(state.env).env, params) | in_windows(seen)

        found: dict[str, jax.Array] = jax.lax.map(episode, keys)
        return found

    return run


def _only(states: Any) -> Any:
    """The state of the only environment."""
    return jax.tree.map(lambda x: x[0], states)


def score_online(trained: str) -> Callable[..., Scored]:
    """Scores the learner that goes on from the runs of another row; a `bench.Scorer`.

    Args:
        trained: the row whose policies it starts from.
    """

    def score(
        plan: Comparison, place: Place, name: str, keys: jax.Array, show: Callable[[str], Show]
    ) -> Scored:
        move = show(f"{place.name}: {name}")
        began = time.perf_counter()
        run = run_folder(place.site, trained)
        one = plan.recipe(place.site.scenario, trained)
        assert one is not None, trained
        env = make(place.scenario, **in_view(place.scenario, place.options, one.options))
        config = online_config(read_config(run)["settings"], env.horizon, place.windows)
        runner = episode_runner(env, config, place.windows)
        found = []
        for seed in range(plan.seeds):
            state = run_state(run, seed)
            metrics = jax.device_get(runner((state.actor, state.critic), keys))
            found.append(Evaluation(name, metrics))
            move((seed + 1) / plan.seeds, "seeds")
        meta = {
            "options": {**one.options, **place.options},
            "settings": asdict(config),
            "learns_online": True,
            "evaluation_seconds": time.perf_counter() - began,
        }
        return found, meta, None

    return score


def online_config(settings: dict[str, Any], intervals: int, windows: int) -> IPPOConfig:
    """Settings of a port that learns alone: those of the offline run, its own stream.

    Args:
        settings: settings of the offline run.
        intervals: intervals of an episode.
        windows: updates in it.

    Raises:
        ValueError: windows that are no whole number of `MINIBATCHES` intervals each.
    """
    length, rest = divmod(intervals, max(windows, 1))
    if windows < 1 or rest or length % MINIBATCHES:
        allowed = f"so many that each has a multiple of {MINIBATCHES} of {intervals} intervals"
        raise bad_value("windows", windows, allowed)
    kept = IPPOConfig(**{**settings, "hidden": tuple(settings["hidden"])})
    return replace(kept, envs=1, rollout=length, minibatches=MINIBATCHES, shared=False)
