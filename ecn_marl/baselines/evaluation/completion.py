"""The objective J from completion times of an episode, and when a result is invalid.

Slowdown is a flow's completion time over the time it would take alone. Flows are measured if they
begin after the warm-up and before the last millisecond. One that is unfinished at the end enters
with its age, which is a lower bound.

    J = (mean short · p99 short)^(1/4) · (geometric mean long)^(1/2)     of an episode
    score = geometric mean over episodes of J(policy) / J(static:best)   lower is better, both

Over episodes and seeds slowdowns are averaged geometrically, so that the ratios of the three parts
multiply to the score. Nothing here needs JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ecn_marl.baselines.evaluation.statistics import crossed_interval

SIZES = ("short", "medium", "long")
"""Size classes by payload, in the order of every `[3]`: up to 100 KB, up to 1 MB, above."""

PARTS = ("short_mean", "short_p99", "long_geomean")
"""The parts of J."""

SLOWDOWNS = (
    *("short_mean", "short_p99", "short_geomean"),
    *("medium_mean", "medium_p99", "medium_geomean"),
    *("long_mean", "long_p99", "long_geomean"),
)
"""Slowdowns per size class; all lower is better, averaged geometrically."""

COUNTS = ("offered", "started", "finished", "unfinished", "deferred", "waiting")
"""Flows of the whole episode. Offered: started or still waiting. Deferred: waited for a slot."""

COUNTERS = {
    "deferred_us": "deferred_us",
    "dropped": "bytes_dropped",
    "late_feedback": "feedback_cut",
    **{name: name for name in ("flowlets", "flowlets_kept")},
}
"""Further counters of flows, and their columns: total waiting time of the deferred flows, µs; bytes
dropped; ticks of flows whose feedback was cut; with flowlets, new paths and ticks of flows that
kept one."""

COSTS = ("inferences_per_decision", "flops_per_decision", "activation_frequency")
"""Costs that a controller with a method `costs` reports, per port and interval."""

TOLERANCE = 1e-3
"""Share of flows, bytes or flow-ticks above which a result is invalid."""


def objective(
    short_mean: Float[np.ndarray, "*b"],
    short_p99: Float[np.ndarray, "*b"],
    long_geomean: Float[np.ndarray, "*b"],
) -> Float[np.ndarray, "*b"]:
    """J from its parts, NaN where a part is."""
    return np.asarray((short_mean * short_p99) ** 0.25 * long_geomean**0.5)


def invalid_reasons(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Why a result is invalid; empty if it is valid.

    Args:
        columns: per-episode numbers of any shape: `offered`, `deferred`, `waiting` (flows),
            `bytes_offered`, `bytes_dropped`, `flow_ticks`, `feedback_cut` (flow-ticks). Where
            `lossy_classes` is above 0, drops are a congestion signal, and no reason.
    """
    total = {name: float(np.sum(columns[name])) for name in _CHECKED}
    shares: tuple[tuple[str, float, float], ...] = (
        ("of flows deferred or waiting", total["deferred"] + total["waiting"], total["offered"]),
        ("of bytes dropped", total["bytes_dropped"], total["bytes_offered"]),
        ("of flow-ticks with feedback cut", total["feedback_cut"], total["flow_ticks"]),
    )
    if np.any(columns.get("lossy_classes", 0)):
        shares = tuple(share for share in shares if "dropped" not in share[0])
    reasons = []
    for label, amount, base in shares:
        share = amount / base if base > 0 else float(amount > 0)
        if share > TOLERANCE:
            reasons.append(f"{100 * share:.2g} % {label} (allowed: {100 * TOLERANCE:g} %)")
    return reasons


_CHECKED = (
    *("offered", "deferred", "waiting", "bytes_offered", "bytes_dropped"),
    *("flow_ticks", "feedback_cut"),
)


def accounts(columns: Mapping[str, object]) -> dict[str, Any]:
    """Counters of flows among `columns`, by the names of `EcnEnv.accounts`.

    Columns may hold episodes or totals. Records of old versions lack `deferred_us`.
    """
    names = {name: name for name in COUNTS} | COUNTERS
    return {name: columns[key] for name, key in names.items() if key in columns}


def summarise(
    name: str, columns: Mapping[str, Float[np.ndarray, "seeds episodes"]]
) -> dict[str, Any]:
    """JSON-able summary of a policy; intervals are of 95 % (`statistics.crossed_interval`).

    Args:
        name: the policy.
        columns: per-episode numbers, see `Evaluation.columns`.

    Returns:
        `name`, `episodes` (of each seed), `seeds`; `J` and its `parts`, each with `value`, `low`,
        `high` and `missing`, the number of episodes that have no such flow and are left out;
        `slowdown` of each size class: `mean`, `p99`, `geomean`, flows `measured`, `unfinished`,
        `finished` and `lower_bound`, whether unfinished flows entered with their age; `flows`
        (totals, see `accounts`), shares `dropped` and `cut`, `invalid` (see `invalid_reasons`);
        `reward`, queue (bytes), utilisation, pauses, `costs`, and `sources`: means of the counters
        of each traffic source, by number and name (None if no episode has it).
    """
    total = {key: float(column.sum()) for key, column in columns.items()}
    classes = {
        size: {
            **{x: slowdown(columns[f"{size}_{x}"])["value"] for x in ("mean", "p99", "geomean")},
            **{x: int(total[f"{size}_{x}"]) for x in ("measured", "unfinished", "finished")},
            "lower_bound": total[f"{size}_unfinished"] > 0,
        }
        for size in SIZES
    }
    reward, half = crossed_interval(columns["reward"])
    queue = float(columns["queue_mean"].mean())
    square = float((columns["queue_std"] ** 2 + columns["queue_mean"] ** 2).mean())
    costs = {key: float(columns[key].mean()) for key in COSTS if key in columns}
    seeds, episodes = columns["J"].shape
    return {
        "name": name,
        "episodes": episodes,
        "seeds": seeds,
        "J": slowdown(columns["J"]),
        "parts": {part: slowdown(columns[part]) for part in PARTS},
        "slowdown": classes,
        "flows": {key: int(value) for key, value in accounts(total).items()},
        "dropped": _share(total["bytes_dropped"], total["bytes_offered"]),
        "cut": _share(total["feedback_cut"], total["flow_ticks"]),
        "invalid": invalid_reasons(columns),
        "reward": {"mean": reward, "ci95": half},
        "queue_mean": queue,
        # Rounding can make the difference negative where queues are constant.
        "queue_std": max(square - queue**2, 0.0) ** 0.5,
        "utilisation": float(columns["utilisation"].mean()),
        "pauses": int(total["pauses"]),
        "paused": float(columns["paused"].mean()),
        **({"costs": costs} if costs else {}),
        **({"sources": sources} if (sources := _of_sources(columns)) else {}),
    }


def _of_sources(columns: Mapping[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """Means of the columns `source:i:name`, by number and name."""
    means: dict[str, dict[str, float | None]] = {}
    for key, values in columns.items():
        if key.startswith("source:"):
            _, number, name = key.split(":")
            finite = values[np.isfinite(values)]
            means.setdefault(number, {})[name] = float(finite.mean()) if finite.size else None
    return means


def slowdown(values: Float[np.ndarray, "seeds episodes"]) -> dict[str, Any]:
    """Geometric mean with its 95 % interval, JSON-able.

    Returns:
        `value`, `low`, `high` (None where there is none) and `missing`, how many are NaN, which are
        left out.
    """
    missing = int(np.isnan(values).sum())
    estimate: dict[str, Any] = {"value": None, "low": None, "high": None, "missing": missing}
    if missing < values.size:
        mean, half = crossed_interval(np.log(values))
        estimate["value"] = float(np.exp(mean))
        # NaN, which a single value has, is no JSON; it stays None.
        if half == half:
            estimate |= {"low": float(np.exp(mean - half)), "high": float(np.exp(mean + half))}
    return estimate


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
