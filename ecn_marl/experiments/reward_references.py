"""Reference returns for rewards: those of reference policies and the oracle, measured per port.

SECN1, the best static setting and the oracle play the same tuning episodes, of a part of the stream
that nothing else uses. `envs.reward_reference` uses the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ecn_marl import lanes
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.episodes import BATCH, roll_out
from ecn_marl.baselines.evaluation.statistics import mean_interval
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import BEST, ORACLE, Settings, group_names, phase_names
from ecn_marl.baselines.search import Effort
from ecn_marl.baselines.static import PREFIX
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.registry import lookup, make, resolve_scenario
from ecn_marl.envs.reward_reference import fingerprint, reward_facts
from ecn_marl.experiments.compare import ORACLES
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.recipes import LEARNERS, PAPERS
from ecn_marl.experiments.searches import find, shipped
from ecn_marl.experiments.sources import code

PART = "rewards"
SECN1 = PREFIX + "secn1"

Progress = Callable[[int, str], None]
"""`progress(episodes done, current policy)`."""


def usual_rewards(scenario: str) -> list[dict[str, Any]]:
    """Rewards that are measured by default: the scenario's, and those of the benchmark's learners.

    Of these, `slowdown-shaped` is measured without the options of their recipes, too.
    """
    views = [recipe.options for name, recipe in LEARNERS.items() if name not in PAPERS]
    recipes = [{n: view[n] for n in ("reward", "reward_options") if n in view} for view in views]
    candidates = [{"reward": lookup(scenario).reward}, {"reward": "slowdown-shaped"}, *recipes]
    return [reward for i, reward in enumerate(candidates) if reward not in candidates[:i]]


def policies(
    scenario: str,
    options: Mapping[str, Any],
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Settings of SECN1, the best static setting and the oracle, `[phases, groups, 3]`, by name.

    Searches that ship with the package are used, others are made. The oracle has a setting for each
    group of ports where such a search ships, as in comparisons.
    """
    env = make(scenario, **options)
    shape = (len(phase_names(env)), len(group_names(env)), 3)
    oracle = next((name for name in ORACLES if name in shipped(scenario)), ORACLE)
    settings = {SECN1: np.broadcast_to(np.array(STATIC_ECN["secn1"]), shape)}
    for name in (BEST, oracle):
        settings[name] = find(name, scenario, options, effort, progress=progress).settings
    return settings


def returns(
    env: PortEnvironment,
    settings: Mapping[str, np.ndarray],
    episodes: int,
    seed: int,
    show: Progress,
) -> dict[str, np.ndarray]:
    """Every port's return in whole episodes, `[episodes, A]`, by policy.

    Args:
        env: functional environment.
        settings: settings by policy, `[phases, groups, 3]`.
        episodes: number of episodes.
        seed: which episodes of the part `rewards` of the tuning stream.
        show: called with the episodes done.
    """
    params = env.default_params

    def episode(key: jax.Array, chosen: jax.Array) -> jax.Array:
        state, _, _ = roll_out(env, params, Settings(env, params, chosen), key)
        port_returns: jax.Array = state.sums.reward
        return port_returns

    run = jax.jit(jax.vmap(lanes.mapped(episode), (0, None)))
    keys, size = tuning_keys(PART, seed, episodes), min(BATCH, episodes)
    policy_returns: dict[str, np.ndarray] = {}
    for number, (name, chosen) in enumerate(settings.items()):
        parts = []
        for start in range(0, episodes, size):
            # The last batch wraps around: a shorter one would be compiled anew.
            batch = np.arange(start, start + size) % episodes
            parts.append(np.asarray(run(keys[batch], np.asarray(chosen, np.float32)), np.float64))
            show(number * episodes + min(start + size, episodes), name)
        policy_returns[name] = np.concatenate(parts)[:episodes]
    return policy_returns


def measure(
    scenario: str,
    rewards: Sequence[Mapping[str, object]],
    options: Mapping[str, object] | None = None,
    *,
    episodes: int = 128,
    seed: int = 0,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure the reference returns of rewards.

    Args:
        scenario: name of the scenario.
        rewards: options `reward` and `reward_options` of `make`, for each entry.
        options: further options of `make`, of the episodes.
        episodes: tuning episodes that all policies play.
        seed: which episodes of the part `rewards` of the tuning stream.
        effort: how much is searched for settings that do not ship.
        progress: called with the episodes done, and the current policy.

    Returns:
        What a file holds: `scenario`, `options`, `episodes`, `seed`, `code`, `settings` by policy
        and `entries`. An entry is a reward in these episodes: `reward`, `options`, a fingerprint of
        the `episodes`, and by policy `returns` per port and the `headroom` of the oracle above it
        (mean over ports, with a 95 % interval), and `spread`, the standard deviation of an
        episode's return on the scale where the headroom is 1.

    Raises:
        ValueError: an option that is not allowed, or the oracle's return is not certainly above a
            reference's, so that there is no headroom to scale by.
    """
    show = progress or (lambda done, note: None)
    make_options = dict(options or {})
    settings = policies(scenario, make_options, effort, progress)
    entries = []
    for i, reward in enumerate(rewards):
        done_before = i * len(settings) * episodes

        def report(done: int, note: str, done_before: int = done_before) -> None:
            show(done_before + done, note)

        entries.append(_entry(scenario, reward, make_options, settings, episodes, seed, report))
    facts = {
        "scenario": scenario,
        "options": make_options,
        "episodes": f"{episodes} of the part {PART!r} of the tuning stream, seed {seed}",
        "code": code(),
        "settings": {name: np.asarray(x).tolist() for name, x in settings.items()},
        "entries": entries,
    }
    return json_types(facts)


def _entry(
    scenario: str,
    reward: Mapping[str, Any],
    options: Mapping[str, Any],
    settings: Mapping[str, np.ndarray],
    episodes: int,
    seed: int,
    show: Progress,
) -> dict[str, Any]:
    """The entry of one reward."""
    fields = {name: x for name, x in options.items() if name != "telemetry"}
    env = make(scenario, **{**options, **reward})
    # A team's return is the sum of the ports' shares, so one entry per port serves both.
    if env.reward.accrues:
        env = replace(env, reward=replace(env.reward, team=False))
    returns_of = returns(env, settings, episodes, seed, show)
    *others, oracle = returns_of
    headroom = {
        name: _headroom(name, env.reward.name, returns_of[oracle], returns_of[name])
        for name in others
    }
    spec = resolve_scenario(scenario, **{**fields, **_without(reward, "reward", "credit")})
    return {
        **reward_facts(env.reward, dict(env.reward_options), env.interval_us),
        "episodes": fingerprint(spec, env.telemetry),
        "oracle": oracle,
        "returns": {name: _rounded(returns_of[name].mean(0)) for name in others},
        "headroom": headroom,
    }


def _without(options: Mapping[str, object], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{x:.7g}") for x in values]


def _headroom(name: str, reward: str, oracle: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Return of the oracle above a policy's in the same episodes, mean over ports."""
    gain = (oracle - other).mean(1)
    value, half_width = mean_interval(gain)
    if not value - half_width > 0.0:  # also refuses NaN, the half-width of a single episode
        allowed = (
            f"one that the oracle earns more than: under {reward!r} it earns {value:.4g} more "
        )
        raise bad_value("reference", name, f"{allowed}in an episode (± {half_width:.2g})")
    deviation = float(other.mean(1).std(ddof=1)) / value
    row = {
        "value": value,
        "low": value - half_width,
        "high": value + half_width,
        "spread": deviation,
    }
    return {key: float(f"{x:.7g}") for key, x in row.items()}
