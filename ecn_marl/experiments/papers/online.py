"""PET and ACC as they are deployed: trained offline, then learning in the episode that scores them.

PET, §4.4; ACC, §4.3: a switch goes on training its own model online. The model that was trained
offline is installed on every port. From then on each port trains its own copy on what it sees: one
stream of intervals, an update at the end of each window of the episode. Actions are sampled (PET),
or now and then drawn at random (ACC), so what exploring costs is in the score. Every episode and
seed starts from the offline model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.baselines.evaluation.windows import counters, in_windows
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.runs import run_state
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.registry import in_view, make
from ecn_marl.experiments.engine import Scored, run_folder
from ecn_marl.experiments.plan import Comparison, Place
from ecn_marl.experiments.workflow import Show

MINIBATCHES = 5
"""Gradient steps per pass over the intervals of a window; PET does not state them."""

EXPLORE = 0.1
"""Chance of a random action of ACC at first, online; it decays as offline. Not stated by ACC."""


class Online(NamedTuple):
    """How a kind of learner goes on from its offline model.

    Attributes:
        kept: what it takes from the state of the offline run.
        config: `(settings of the offline run, intervals, windows) -> config` of a port's learner.
        begin: `(env, config, kept) -> (algorithm, init)`, `init(key, params)` a state that has
            what was kept, a copy for every port.
    """

    kept: Callable[[Any], Any]
    config: Callable[[dict[str, Any], int, int], Any]
    begin: Callable[[Any, Any, Any], tuple[Any, Callable[[jax.Array, Any], Any]]]


def episode_runner(kind: Online, env: Any, config: Any, updates: int) -> Callable[..., Any]:
    """Runs episodes of a learner that goes on learning in them.

    Args:
        kind: what learner it is.
        env: functional environment (without auto-reset).
        config: settings of one port's learner, an environment and a window at a time.
        updates: updates in an episode, as many as windows.

    Returns:
        `(kept, keys) -> metrics` with a leading axis of episodes; `kept` is of the offline model.
        An episode is the one that `roll_out` has for its key.
    """
    params = env.default_params
    # One interval more than there are, so that the last state is not that of the next episode.
    endless = replace(params, max_steps=np.int32(env.horizon + 1))

    @jax.jit
    def run(kept: Any, keys: jax.Array) -> dict[str, jax.Array]:
        algorithm, init = kind.begin(env, config, kept)

        def episode(key: jax.Array) -> dict[str, jax.Array]:
            reset_key, run_key = jax.random.split(key)
            state = init(run_key, endless)
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
    """Scores the learner that goes on from the runs of another row; a `engine.Scorer`.

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
        kind = KINDS[one.algorithm]
        config = kind.config(read_config(run)["settings"], env.horizon, place.windows)
        runner = episode_runner(kind, env, config, place.windows)
        found = []
        for seed in range(plan.seeds):
            metrics = jax.device_get(runner(kind.kept(run_state(run, seed)), keys))
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
    """Settings of a port of PET that learns alone: those of the offline run, its own stream.

    Args:
        settings: settings of the offline run.
        intervals: intervals of an episode.
        windows: updates in it.

    Raises:
        ValueError: windows that are no whole number of `MINIBATCHES` intervals each.
    """
    length = _window(intervals, windows, MINIBATCHES)
    kept = IPPOConfig(**{**settings, "hidden": tuple(settings["hidden"])})
    return replace(kept, envs=1, rollout=length, minibatches=MINIBATCHES, shared=False)


def _window(intervals: int, windows: int, multiple: int) -> int:
    """Intervals of a window."""
    length, rest = divmod(intervals, max(windows, 1))
    if windows < 1 or rest or length % multiple:
        allowed = f"so many that each has a multiple of {multiple} of {intervals} intervals"
        raise bad_value("windows", windows, allowed)
    return length


def _pet(env: Any, config: IPPOConfig, kept: Any) -> tuple[Any, Callable[[jax.Array, Any], Any]]:
    """PET: actor and critic of the offline model on every port."""
    algorithm = IPPO(env, config, start=kept)
    return algorithm, algorithm.init


def acc_config(settings: dict[str, Any], intervals: int, windows: int) -> DDQNConfig:
    """Settings of a port of ACC that learns alone: as `online_config`."""
    length = _window(intervals, windows, 1)
    kept = DDQNConfig(**{**settings, "hidden": tuple(settings["hidden"])})
    chance = min(EXPLORE, kept.epsilon)
    return replace(
        kept,
        envs=1,
        rollout=length,
        n_step=min(kept.n_step, length),
        shared=False,
        epsilon=chance,
        epsilon_min=min(kept.epsilon_min, chance),
    )


def _acc(env: Any, config: DDQNConfig, kept: Any) -> tuple[Any, Callable[[jax.Array, Any], Any]]:
    """ACC: the Q-network of the offline model on every port, memories empty."""
    algorithm = DDQN(env, config)

    def init(key: jax.Array, params: Any) -> Any:
        state = algorithm.init(key, params)
        q = state.q
        here = jax.tree.map(lambda own, one: jnp.broadcast_to(one, own.shape), q.params, kept)
        return replace(state, q=replace(q, params=here, target=here))

    return algorithm, init


KINDS: dict[str, Online] = {
    "ippo": Online(lambda state: (state.actor, state.critic), online_config, _pet),
    "ddqn": Online(lambda state: state.q.params, acc_config, _acc),
}
"""Learners that can go on online, by algorithm."""
