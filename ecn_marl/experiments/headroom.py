"""Headroom: what adaptive thresholds can gain in a scenario, in completion times.

The best static setting, the oracle that switches settings with the traffic phase, and the simple
rule are searched on one part of the tuning stream and scored on another, beside SECN1 and SECN2.
If the oracle gains little over the best static setting, a learner can gain little more than a good
static setting does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ecn_marl._checks import Whole, check_value
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.oracle import (
    BEST,
    ORACLE,
    PORTS,
    RULE,
    group_names,
    phase_names,
)
from ecn_marl.baselines.search import Effort
from ecn_marl.baselines.static import PREFIX
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.experiments import hindsight as hs
from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.interaction import between_groups
from ecn_marl.experiments.policies import Arena, resolve
from ecn_marl.experiments.recipes import DEPTHS
from ecn_marl.experiments.records import Record

STATICS = ("secn1", "secn2")

TRIED = (0, 4, 8)
"""Rungs of `DEPTHS` that groups of ports try against each other: shallow, middle, deep."""

MIN_GAIN = 0.1
"""Gain of the oracle above which adaptive thresholds are worth learning in a scenario."""


def headroom(
    scenario: str,
    options: Mapping[str, object] | None = None,
    *,
    episodes: int = 64,
    seed: int = 0,
    effort: Effort | None = None,
    folder: Path | None = None,
    progress: Callable[[int, str], None] | None = None,
    allow_flagged: bool = False,
    hindsight: int = 0,
    interaction: int = 0,
) -> dict[str, Any]:
    """Measure the headroom of a scenario.

    Args:
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        episodes: episodes that the policies are scored on.
        seed: which tuning episodes.
        effort: how much is searched.
        folder: where searches are kept; in memory only if None.
        progress: called with the number of episodes run and the current task.
        allow_flagged: see `compare.compare`.
        hindsight: in how many of the episodes the best sequence of settings is searched for, see
            `experiments.hindsight`; 0 for none.
        interaction: in how many of the episodes best responses of groups of ports to each other are
            looked for, see `experiments.interaction`; 0 for none.

    Returns:
        `scenario`, `episodes`, `seed`, `phases`, `groups`; `policies`, the rows of
        `compare.compare`, each with `settings`; `gain`, that of the oracle over the best static
        setting (1 - score) with its interval, and whether it is `enough`; `hindsight`, see
        `Hindsight.as_dict`, with the gain of the `oracle` in the same episodes, and that of the
        sequences `over_oracle`; `interaction`, what `between_groups` returns, and its `settings`;
        None where they are not asked for.

    Raises:
        ValueError: `hindsight` is neither 0 nor from 2 to `episodes`, `interaction` neither 0 nor
            from 4 to `episodes`, or the scenario has one group of ports only.
    """
    for name, asked, least in (("hindsight", hindsight, 2), ("interaction", interaction, 4)):
        if asked:
            check_value("episodes", episodes, Whole(low=least))
            check_value(name, asked, Whole(low=least, high=episodes))
    show = progress or (lambda done, note: None)
    effort, make_options = effort or Effort(), dict(options or {})
    arena = Arena(scenario, make_options, effort=effort, searches=folder, progress=show)
    groups, phases = (of(arena.env(BEST)) for of in (group_names, phase_names))
    if interaction and len(groups) < 2:
        raise bad_value("interaction", interaction, f"0: {scenario} has one group of ports")
    searched = (BEST, ORACLE, *([PORTS] if len(groups) > 1 else []), RULE)
    names = (*(PREFIX + name for name in STATICS), *searched)
    settings = {name: resolve(name).settings(arena) for name in names}
    records: dict[str, Record] = {}
    for name, thresholds in settings.items():
        show(0, f"score {name}")
        env = arena.env(name)
        evaluation = evaluate(
            env,
            env.default_params,
            arena.controller(name),
            name=name,
            episodes=episodes,
            seed=seed,
        )
        facts = {"scenario": scenario, "settings": thresholds, "eval_seed": seed}
        records[name] = Record.of(name, [evaluation], facts)
    rows = compare(records, allow_flagged=allow_flagged)["policies"]
    for row in rows:
        row["settings"] = settings[row["name"]]
    known = None
    if hindsight:
        best = arena.search(BEST).settings.reshape(-1, 3)[0]
        tried = list(dict.fromkeys(EcnSetting(*map(float, x)) for x in (best, *DEPTHS)))
        found = hs.hindsight(arena.env(BEST), tried, episodes=hindsight, seed=seed, progress=show)
        # The oracle in the same episodes: episodes differ more than these two do.
        oracle = records[ORACLE].columns["J"][0, :hindsight]
        known = found.as_dict() | {
            "oracle": found.gain(oracle),
            "over_oracle": found.gain(found.best, oracle),
        }
    between = None
    if interaction:
        between = {
            "settings": [list(DEPTHS[rung]) for rung in TRIED],
            "episodes": interaction,
            "pairs": best_responses(arena, interaction, seed, show),
        }
    gain = next(row["gain"] for row in rows if row["name"] == ORACLE)
    return {
        "scenario": scenario,
        "episodes": episodes,
        "seed": seed,
        "search_episodes": effort.episodes,
        "phases": list(phases),
        "groups": list(groups),
        "policies": rows,
        "gain": gain,
        "enough": bool(gain["low"] > MIN_GAIN),
        "hindsight": known,
        "interaction": between,
    }


def best_responses(
    arena: Arena, episodes: int, seed: int, show: Callable[[int, str], None]
) -> list[dict[str, Any]]:
    """Best responses of groups of ports to each other; other ports have the oracle's settings."""
    settings = [DEPTHS[rung] for rung in TRIED]
    base = arena.search(ORACLE).settings

    def progress(done: int) -> None:
        show(done, "best responses")

    env = arena.env(BEST)
    return between_groups(env, settings, episodes, base=base, seed=seed, progress=progress)
