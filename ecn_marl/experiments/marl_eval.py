"""Results in the JSON format of marl-eval, for its tables and plots.

Gorsane et al., "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL",
NeurIPS'22; https://github.com/instadeepai/marl-eval:

    environment -> task -> algorithm -> run -> step_K -> step_count, metric -> [values]
                                            -> absolute_metrics -> metric -> [values]

All names are in lower case, as its functions look them up. It needs the same metrics at every step
and the same number of runs and steps of every algorithm. So there are two environments:

* `ecn_marl`: the scored policies. One step, the number of environment steps that they were trained
  for, and `absolute_metrics`, both with the values of every episode: `gain`, 1 - J(policy) /
  J(static:best) in that episode (higher is better), `j` and its parts (lower is better), `reward`,
  `queue_mean`, `utilisation`. Episodes without a J are left out of those that need it. A rule has
  one run, which is repeated to match the runs of learners.
* `ecn_marl_curves`: the learners' curves, one metric: the column that the curve is comparable with,
  usually `reward`. `absolute_metrics` has that column of the scored policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ecn_marl.baselines.evaluation.completion import PARTS
from ecn_marl.experiments.compare import BASELINE
from ecn_marl.experiments.records import Record

SCORED, CURVES = "ecn_marl", "ecn_marl_curves"

OTHER = ("reward", "queue_mean", "utilisation")


def marl_eval(
    scenarios: Mapping[str, Mapping[str, Record]], baseline: str = BASELINE
) -> dict[str, Any]:
    """The tree that marl-eval reads.

    Args:
        scenarios: records by the policy's name, by scenario; the baseline is among them.
        baseline: the policy that `gain` is relative to.
    """
    scored: dict[str, Any] = {}
    curves: dict[str, Any] = {}
    for scenario, records in scenarios.items():
        runs = max(record.seeds for record in records.values())
        best = records[baseline].columns["J"]
        task = scenario.lower()
        for name, record in records.items():
            seed_runs = [_scored(record, i, best) for i in range(record.seeds)]
            # A rule has no seeds, but marl-eval wants as many runs of every algorithm.
            seed_runs = seed_runs * runs if record.seeds == 1 else seed_runs
            scored.setdefault(task, {})[name.lower()] = _runs(seed_runs)
            if record.curves:
                curve_runs = [_curve(record, i) for i in range(record.seeds)]
                curves.setdefault(task, {})[name.lower()] = _runs(curve_runs)
    return {SCORED: scored} | ({CURVES: curves} if curves else {})


def _runs(runs: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    return {f"run_{i}": run for i, run in enumerate(runs)}


def _scored(record: Record, seed: int, best: np.ndarray) -> dict[str, Any]:
    """A run of `ecn_marl`."""
    columns = {name: record.columns[name][seed] for name in ("J", *PARTS, *OTHER)}
    metrics = {"gain": np.round(1.0 - columns["J"] / best[0], 6)}
    metrics |= {name.lower(): column for name, column in columns.items()}
    values = {name: _finite(column) for name, column in metrics.items()}
    steps = record.meta.get("steps") or 0
    return {"step_0": {"step_count": int(steps), **values}, "absolute_metrics": values}


def _curve(record: Record, seed: int) -> dict[str, Any]:
    """A run of `ecn_marl_curves`."""
    metric = str(record.meta.get("curve", "reward"))
    curve = record.curves[seed]
    run: dict[str, Any] = {
        f"step_{k}": {"step_count": int(steps), metric.lower(): _finite(value[None])}
        for k, (steps, value) in enumerate(zip(curve.steps, curve.value, strict=True))
    }
    return run | {"absolute_metrics": {metric.lower(): _finite(record.columns[metric][seed])}}


def _finite(values: np.ndarray) -> list[float]:
    """The finite values, as a list."""
    finite: list[float] = values[np.isfinite(values)].tolist()
    return finite
