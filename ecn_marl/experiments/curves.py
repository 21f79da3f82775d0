"""Learning curves of runs, beside policies that were scored as the run's policy was.

A line in a curve means something only if it was measured on the episodes of the curve's scores, and
is the same quantity. So reference policies are scored anew for a run, on its tuning episodes, and
kept in its folder: SECN1, and the best static setting and the oracle where the search for them
ships with the package and is of the same episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._files import Output, json_text, write_all
from ecn_marl.baselines.evaluation.episodes import episodes_runner
from ecn_marl.baselines.evaluation.scoring import Scores, score_episodes
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import BEST, Settings, group_names, phase_names
from ecn_marl.baselines.static import PREFIX
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.baselines.training.logs import METRICS
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.registry import make, out_of_view
from ecn_marl.experiments.compare import ORACLES
from ecn_marl.experiments.policies import label
from ecn_marl.experiments.searches import shipped_search
from ecn_marl.experiments.sources import code, own_sources

CURVE, REFERENCES = "learning_curve.png", "references.json"

SECN1 = "secn1"

Show = Callable[..., None]
"""`show(done, note)`: moves a progress bar."""


def curve_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `make` for policies without a view that are scored beside a run's.

    J is of whole episodes: they play at the scenario's own intervals, as in evaluations. A reward
    is per interval: they play at the run's.
    """
    options: dict[str, Any] = dict(config["options"])
    if config.get("score_by") == "objective":
        return out_of_view(config["scenario"], options)
    return options


def reference_settings(config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Settings of the policies that are known in a run's episodes, `[phases, groups, 3]`, by name.

    SECN1; `static:best` and the oracle if their search ships, for these episodes.
    """
    scenario, options = config["scenario"], curve_options(config)
    env = make(scenario, **options)
    shape = (len(phase_names(env)), len(group_names(env)), 3)
    known = {PREFIX + SECN1: np.broadcast_to(np.array(STATIC_ECN[SECN1]), shape)}
    best = shipped_search(BEST, scenario, options)
    if best is not None:
        known[BEST] = np.asarray(best.settings)
    for name in ORACLES:
        top = shipped_search(name, scenario, options)
        if top is not None:
            known[name] = np.asarray(top.settings)
            break
    return known


def reference_scores(config: Mapping[str, Any], show: Show | None = None) -> dict[str, Scores]:
    """Scores of reference policies on the episodes that a run's checkpoints are scored on.

    Args:
        config: configuration of the run.
        show: called with the per cent that are done, and the policy.

    Returns:
        By name, the score and its interval, `[1]` each: what `scorer` gives a learner's policy.
    """
    env = make(config["scenario"], **curve_options(config))
    params = env.default_params
    run = episodes_runner(env, params, lambda settings: Settings(env, params, settings))
    keys = tuning_keys("checkpoints", config["seed"], config["eval_episodes"])
    found: dict[str, Scores] = {}
    known = reference_settings(config)
    for name, settings in known.items():
        metrics = {k: np.asarray(x)[None] for k, x in run(settings, keys).items()}
        by = config.get("score_by", "reward")
        found[name] = score_episodes(by, metrics["reward"], metrics)
        if show is not None:
            show(100.0 * len(found) / len(known), label(name))
    return found


def references(folder: Path, show: Show | None = None) -> dict[str, float]:
    """Scores of reference policies of a run by their titles; measured once, kept in its folder."""
    config = read_config(folder)
    names = ("scenario", "options", "seed", "eval_episodes", "score_by")
    facts: dict[str, Any] = {name: config.get(name) for name in names}
    facts |= {"code": code()} | own_sources(facts)
    facts = json.loads(json.dumps(facts))
    file = folder / REFERENCES
    held = json.loads(file.read_text()) if file.is_file() else {}
    if held.get("asked") != facts:
        scores = reference_scores(config, show)
        rows = {
            name: {end: float(x[0]) for end, x in one._asdict().items() if x is not None}
            for name, one in scores.items()
        }
        held = {"asked": facts, "scores": rows}
        text = json_text(held) + "\n"
        write_all({file: Output("w", lambda out: out.write(text))})
    return {label(name): row["value"] for name, row in held["scores"].items()}


def draw_learning_curve(folder: Path, show: Show | None = None) -> None:
    """Draw `learning_curve.png` of a run; reference policies are scored if it was scored.

    Args:
        folder: the run.
        show: called with the per cent of reference policies that are scored.
    """
    from ecn_marl.render.learning_curve import learning_curve

    config = read_config(folder)
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    scored = any(row.get("score") is not None for row in rows)
    horizon = make(config["scenario"], **config["options"]).horizon
    rollout = int(config["settings"].get("rollout", horizon))
    window = math.lcm(horizon, rollout) // rollout
    if window > len(rows) // 3:
        window = -(-horizon // rollout)
    several = f", {config['seeds']} seeds" if config["seeds"] > 1 else ""
    episodes = f", {config['eval_episodes']} tuning episodes" if scored else ""
    content = learning_curve(
        rows,
        f"{config['algorithm'].upper()} on {config['scenario']}{several}{episodes}",
        references(folder, show) if scored else {},
        window,
        config.get("score_by", "reward"),
    )
    write_all({folder / CURVE: Output("wb", lambda file: file.write(content))})
