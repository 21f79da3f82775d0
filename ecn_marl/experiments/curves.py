"""Learning curves of runs, beside reference policies that are evaluated in the same way.

A reference line is comparable with a curve only if both are the same quantity on the same episodes.
So reference policies are evaluated for each run, on its tuning episodes, and their merits are kept
in its folder. They are SECN1, and the best static setting and the oracle if a search for them on
the same episodes ships with the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._files import write_all
from ecn_marl.baselines.evaluation.episodes import episodes_runner
from ecn_marl.baselines.evaluation.merit import Merits, episode_merits
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import BEST, Settings, group_names, phase_names
from ecn_marl.baselines.static import PREFIX
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.baselines.training.logs import read_rows
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.registry import make, out_of_view
from ecn_marl.experiments.compare import ORACLES
from ecn_marl.experiments.json_files import json_types, save_json
from ecn_marl.experiments.policies import resolve
from ecn_marl.experiments.searches import shipped_search
from ecn_marl.experiments.sources import code, flow_list, own_sources
from ecn_marl.experiments.workflow import Show

CURVE, REFERENCES = "learning_curve.png", "references.json"

SECN1 = "secn1"


def curve_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `make` for policies without a view that are evaluated beside a run's policy.

    J is of whole episodes: they play at the scenario's own intervals, as in evaluations. A reward
    is per interval: they play at the run's intervals.
    """
    options: dict[str, Any] = dict(config["options"])
    if config.get("best_by") == "objective":
        return out_of_view(config["scenario"], options)
    return options


def reference_settings(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Settings of the reference policies of a run, `[phases, groups, 3]`, by name.

    SECN1; `static:best` and the oracle if a search on the run's episodes ships with the package.
    """
    scenario, options = config["scenario"], curve_options(config)
    env = make(scenario, **options)
    shape = (len(phase_names(env)), len(group_names(env)), 3)
    settings = {PREFIX + SECN1: np.broadcast_to(np.array(STATIC_ECN[SECN1]), shape)}
    best = shipped_search(BEST, scenario, options)
    if best is not None:
        settings[BEST] = np.asarray(best.settings)
    for name in ORACLES:
        oracle = shipped_search(name, scenario, options)
        if oracle is not None:
            settings[name] = np.asarray(oracle.settings)
            break
    return settings


def reference_merits(config: Mapping[str, Any], show: Show | None = None) -> dict[str, Merits]:
    """Merits of reference policies on the episodes that a run's checkpoints are evaluated on.

    Args:
        config: configuration of the run.
        show: called with the per cent done, and the policy.

    Returns:
        By name, the merit and its interval, `[1]` each, as of `merit_function`; those that are
        refused are left out.
    """
    env = make(config["scenario"], **curve_options(config))
    params = env.default_params
    run = episodes_runner(env, params, lambda settings: Settings(env, params, settings))
    keys = tuning_keys("checkpoints", config["seed"], config["eval_episodes"])
    merits: dict[str, Merits] = {}
    all_settings = reference_settings(config)
    for done, (name, settings) in enumerate(all_settings.items(), 1):
        metrics = {k: np.asarray(x)[None] for k, x in run(settings, keys).items()}
        best_by = config.get("best_by", "reward")
        merit = episode_merits(
            best_by, metrics["reward"], metrics, config.get("allow_flagged", False)
        )
        if not merit.refused:
            merits[name] = merit
        if show is not None:
            show(100.0 * done / len(all_settings), resolve(name).label)
    return merits


def references(folder: Path, show: Show | None = None) -> dict[str, float]:
    """Merits of a run's reference policies by title; measured once, then read from its folder."""
    config = read_config(folder)
    names = ("scenario", "options", "seed", "eval_episodes", "best_by")
    request: dict[str, Any] = {name: config.get(name) for name in names}
    request |= own_sources(request) | flow_list(config["options"])
    request = json_types(request | {"code": code()})
    file = folder / REFERENCES
    stored = json.loads(file.read_text()) if file.is_file() else {}
    if stored.get("asked") != request:
        merits = reference_merits(config, show)
        rows = {
            name: {
                field: float(x[0])
                for field in ("value", "low", "high")
                if (x := getattr(merit, field)) is not None
            }
            for name, merit in merits.items()
        }
        stored = {"asked": request, "merits": rows}
        save_json(file, stored)
    return {resolve(name).label: row["value"] for name, row in stored["merits"].items()}


def draw_learning_curve(folder: Path, show: Show | None = None) -> None:
    """Draw `learning_curve.png` of a run, with reference policies if its checkpoints have merits.

    Args:
        folder: the run.
        show: called with the per cent of reference policies that have been evaluated.
    """
    # Imported here: matplotlib is slow to load, and most users of this module draw nothing.
    from ecn_marl.render.learning_curve import learning_curve

    config = read_config(folder)
    rows = read_rows(folder)
    evaluated = any(row.get("merit") is not None for row in rows)
    horizon = make(config["scenario"], **config["options"]).horizon
    rollout = int(config["settings"].get("rollout", horizon))
    # Updates that cover whole episodes; if these are too many for the run, as many as one episode.
    window = math.lcm(horizon, rollout) // rollout
    if window > len(rows) // 3:
        window = -(-horizon // rollout)
    also = config["settings"].get("also", ())  # merits are then means over several scenarios
    places = f"{config['scenario']} and {len(also)} more" if also else config["scenario"]
    seeds = f", {config['seeds']} seeds" if config["seeds"] > 1 else ""
    episodes = f", {config['eval_episodes']} tuning episodes" if evaluated else ""
    content = learning_curve(
        rows,
        f"{config['algorithm'].upper()} on {places}{seeds}{episodes}",
        references(folder, show) if evaluated and not also else {},
        window,
        config.get("best_by", "reward"),
    )
    write_all({folder / CURVE: content})
