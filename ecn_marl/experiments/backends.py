"""The same policies in the same episodes on both backends: how far the fluid is from packets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from ecn_marl.baselines.evaluation.statistics import crossed_interval
from ecn_marl.experiments.records import Record

ON_PACKETS = " on packets"
"""End of the name of a place whose episodes are simulated packet by packet."""

FIGURES = ("J", "short_mean", "short_p99", "long_geomean")
"""What is compared: the objective, and its parts."""

RANKED = 3
"""Fewest policies whose order is compared."""


def agreement(fluid: Mapping[str, Record], packets: Mapping[str, Record]) -> dict[str, Any]:
    """Compare the figures of both backends, paired by episode.

    Args:
        fluid: records of policies in the fluid, by name.
        packets: records on packets; of the same episodes or the first of them, and of all seeds or
            of one (`meta["seed"]`).

    Returns:
        `policies`, lowest J on packets first, of all that are in both: `name`; J as `fluid` and
        `packets` (geometric means over seeds and episodes); `ratios`, of every figure in `FIGURES`
        `[ratio, low, high]`: the fluid's over the packets', with its 95 % interval over seeds and
        episodes (None without a figure). `tau` and `r`: Kendall's rank correlation of J, and
        Pearson's of log J, over policies; None for fewer than three. `worst`: name of the policy
        whose J differs most.
    """
    rows: list[dict[str, Any]] = []
    for name, record in packets.items():
        if name not in fluid:
            continue
        ours, theirs = matching(fluid[name], record), record.columns
        if ours["J"].shape != theirs["J"].shape:
            continue
        ratios = {figure: _ratio(ours[figure], theirs[figure]) for figure in FIGURES}
        means = {"fluid": _geometric(ours["J"]), "packets": _geometric(theirs["J"])}
        rows.append({"name": name, **means, "ratios": ratios})
    rows.sort(key=lambda row: (row["packets"] is None, row["packets"] or 0.0, row["name"]))
    known = [row for row in rows if row["ratios"]["J"] is not None]
    result: dict[str, Any] = {"policies": rows, "tau": None, "r": None, "worst": None}
    if known:
        result["worst"] = max(known, key=lambda row: abs(np.log(row["ratios"]["J"][0])))["name"]
    if len(known) >= RANKED:
        pairs = np.log([[row["fluid"], row["packets"]] for row in known])
        result["tau"] = float(stats.kendalltau(*pairs.T).statistic)
        result["r"] = float(np.corrcoef(*pairs.T)[0, 1])
    return result


def matching(fluid: Record, packets: Record) -> dict[str, np.ndarray]:
    """Columns of a record in the fluid, of the episodes and seeds that ran on packets."""
    seed = packets.meta.get("seed")
    seeds = slice(None) if seed is None else slice(seed, seed + 1)
    return {name: x[seeds, : packets.episodes] for name, x in fluid.columns.items()}


def _geometric(values: np.ndarray) -> float | None:
    """Geometric mean of what is known; None if nothing is."""
    known = values[np.isfinite(values)]
    return float(np.exp(np.log(known).mean())) if known.size else None


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> list[float | None] | None:
    """Ratio of geometric means and its interval, `[ratio, low, high]`; one episode has none."""
    logs = np.log(ours) - np.log(theirs)
    if not np.isfinite(logs).any():
        return None
    mean, half = crossed_interval(logs)
    if not np.isfinite(half):
        return [float(np.exp(mean)), None, None]
    return [float(np.exp(x)) for x in (mean, mean - half, mean + half)]


def agreements(scenarios: Mapping[str, Mapping[str, Record]]) -> dict[str, dict[str, Any]]:
    """`agreement` of every place that is on both backends, by the name of the fluid's."""
    return {
        name: agreement(records, scenarios[name + ON_PACKETS])
        for name, records in scenarios.items()
        if name + ON_PACKETS in scenarios
    }
