"""PET and ACC as they are deployed: trained offline, then learning in the episode that scores them.

PET, §4.4; ACC, §4.3: a switch goes on training its own model online. The model that was trained
offline is installed on every port. Then each port trains its own copy on its own observations: one
stream of intervals, an update at the end of each window of the episode. Actions are sampled (PET)
or random with a small probability (ACC), so the score includes the cost of exploring. Every episode
and seed starts from the offline model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.baselines.evaluation.windows import counters, in_windows
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.trained import run_state
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.episode import EnvParams
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.registry import in_view, make
from ecn_marl.experiments.engine import Scored, Scorer, Scoring
from ecn_marl.experiments.trainings import run_folder

MINIBATCHES = 5
"""Gradient steps per pass over the intervals of a window; PET does not state them."""

EXPLORE = 0.1
"""ACC's initial probability of a random action online; it decays as offline. Not stated by ACC."""


Start = Callable[[jax.Array, EnvParams], PyTree]
"""`(key, params) -> state` of a learner before its first update."""


class Online(NamedTuple):
    """How a kind of learner goes on from its offline model.

    Attributes:
        start: returns the part of the offline run's state that it starts from.
        config: `(settings of the offline run, intervals, windows) -> config` of a port's learner.
        begin: `(env, config, start) -> (algorithm, init)`, `init(key, params)` a state with a
            copy of that part for every port.
    """

    start: Callable[[PyTree], PyTree]
    config: Callable[[dict[str, Any], int, int], Any]
    begin: Callable[[PortEnvironment, Any, PyTree], tuple[Any, Start]]


def episode_runner(
    kind: Online, env: PortEnvironment, config: object, updates: int
) -> Callable[..., Any]:
    """Runs episodes of a learner that goes on learning in them.

    Args:
        kind: the kind of learner.
        env: functional environment (without auto-reset).
        config: settings of one port's learner, an environment and a window at a time.
        updates: updates in an episode, one per window.

    Returns:
        `(start, keys) -> metrics`, the metrics with a leading axis of episodes; `start` is from the
        offline model. A key gives the same episode as in `roll_out`.
    """
    params = env.default_params
    # One interval more than the episode has, so that auto-reset does not replace the last state.
    endless = replace(params, max_steps=np.int32(env.horizon + 1))

    @jax.jit
    def run(start: object, keys: jax.Array) -> dict[str, jax.Array]:
        algorithm, init = kind.begin(env, config, start)

        def episode(key: jax.Array) -> dict[str, jax.Array]:
            reset_key, run_key = jax.random.split(key)
            state = init(run_key, endless)
            obs, fresh = algorithm.env.reset(reset_key, endless)
            batch_of_one = jax.tree.map(lambda x: jnp.asarray(x)[None], fresh)
            state = replace(state, env=batch_of_one, obs=obs[None])

            def update(state: PyTree, _: None) -> tuple[PyTree, dict[str, jax.Array]]:
                state = algorithm.update(state, endless)[0]
                return state, counters(_first(state.env).env)

            state, window_counters = jax.lax.scan(update, state, None, length=updates)
            return env.episode_metrics(_first(state.env).env, params) | in_windows(window_counters)

        metrics: dict[str, jax.Array] = jax.lax.map(episode, keys)
        return metrics

    return run


def _first(states: PyTree) -> PyTree:
    """The state of the first environment, here the only one."""
    return jax.tree.map(lambda x: x[0], states)


def score_online(trained: str) -> Scorer:
    """Scores the learner that goes on from the runs of another row; an `engine.Scorer`.

    Args:
        trained: the row whose policies it starts from.
    """

    def score(scoring: Scoring) -> Scored:
        # No records are kept: `begin_recording` leaves such rows out.
        plan, place, name, keys, show, *_ = scoring
        move = show(f"{place.name}: {name}")
        began = time.perf_counter()
        run = run_folder(place.site, trained)
        recipe = plan.recipe(place.site.scenario, trained)
        assert recipe is not None, trained
        env = make(place.scenario, **in_view(place.scenario, place.options, recipe.options))
        kind = KINDS[recipe.algorithm]
        config = kind.config(read_config(run)["settings"], env.horizon, place.windows)
        runner = episode_runner(kind, env, config, place.windows)
        evaluations = []
        for seed in range(plan.seeds):
            metrics = jax.device_get(runner(kind.start(run_state(run, seed)), keys))
            evaluations.append(Evaluation(name, metrics))
            move((seed + 1) / plan.seeds, "seeds")
        meta = {
            "options": {**recipe.options, **place.options},
            "settings": asdict(config),
            "learns_online": True,
            "evaluation_seconds": time.perf_counter() - began,
        }
        return evaluations, meta, None

    return score


def online_config(settings: dict[str, Any], intervals: int, windows: int) -> IPPOConfig:
    """Settings of the learner of one PET port: those of the offline run, for a single stream.

    Args:
        settings: settings of the offline run.
        intervals: intervals of an episode.
        windows: windows of an episode, each followed by an update.

    Raises:
        ValueError: the intervals of a window are no multiple of `MINIBATCHES`.
    """
    length = _window(intervals, windows, MINIBATCHES)
    offline = IPPOConfig(**{**settings, "hidden": tuple(settings["hidden"])})
    return replace(offline, envs=1, rollout=length, minibatches=MINIBATCHES, shared=False)


def _window(intervals: int, windows: int, multiple: int) -> int:
    """Intervals of a window."""
    length, remainder = divmod(intervals, max(windows, 1))
    if windows < 1 or remainder or length % multiple:
        allowed = f"so many that each has a multiple of {multiple} of {intervals} intervals"
        raise bad_value("windows", windows, allowed)
    return length


def _pet(env: PortEnvironment, config: IPPOConfig, offline: PyTree) -> tuple[IPPO, Start]:
    """PET: actor and critic of the offline model on every port."""
    algorithm = IPPO(env, config, start=offline)
    return algorithm, algorithm.init


def acc_config(settings: dict[str, Any], intervals: int, windows: int) -> DDQNConfig:
    """Settings of the learner of one ACC port; arguments as of `online_config`."""
    length = _window(intervals, windows, 1)
    offline = DDQNConfig(**{**settings, "hidden": tuple(settings["hidden"])})
    epsilon = min(EXPLORE, offline.epsilon)
    return replace(
        offline,
        envs=1,
        rollout=length,
        n_step=min(offline.n_step, length),
        shared=False,
        epsilon=epsilon,
        epsilon_min=min(offline.epsilon_min, epsilon),
        centre=0,  # the offset is the offline model's: its values are relative to that
    )


def _acc(
    env: PortEnvironment, config: DDQNConfig, offline: tuple[PyTree, Array]
) -> tuple[DDQN, Start]:
    """ACC: Q-network and offset of the offline model on every port, empty replay memories."""
    trained, offset = offline
    algorithm = DDQN(env, config)

    def init(key: jax.Array, params: EnvParams) -> PyTree:
        state = algorithm.init(key, params)
        q = state.q
        copies = jax.tree.map(
            lambda own, shared: jnp.broadcast_to(shared, own.shape), q.params, trained
        )
        q = replace(q, params=copies, target=copies)
        return replace(state, q=q, offset=jnp.asarray(offset))

    return algorithm, init


KINDS: dict[str, Online] = {
    "ippo": Online(lambda state: (state.actor, state.critic), online_config, _pet),
    "ddqn": Online(lambda state: (state.q.params, state.offset), acc_config, _acc),
}
"""Learners that can go on online, by algorithm."""
