"""Plots of a comparison: ratios to the baseline, learning curves, performance profiles; as PNG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, PercentFormatter

from ecn_marl.baselines.evaluation.completion import SLOWDOWNS
from ecn_marl.render.bench_table import policy_title, ranked
from ecn_marl.render.plots import COLOURS, INK, LEVELS, Page

if TYPE_CHECKING:
    from ecn_marl.experiments.records import Curve, Record

RATIOS = {
    "score": "score (J)",
    "short_mean": "short flows, mean",
    "short_p99": "short flows, p99",
    "long_geomean": "long flows, geometric mean",
}
"""Figures that are shown relative to the baseline, and titles of their panels."""

GREYS = ("#8a8a8a", INK, "#000000")
"""Of lines of policies without training."""

TICKS = (
    (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0),
    (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 2.0),
)
"""Ticks of ratios, for wide, usual and narrow axes."""

STYLES = ("-", "--", ":", "-.")
"""Line styles, for more policies than colours."""

BANDED = 5
"""Scores from which on a profile has an interval: that of fewer is nearly all of the axis."""


def ratios(comparison: Mapping[str, Any], title: str) -> bytes:
    """Bars of completion times relative to the baseline, with their 95 % intervals.

    Args:
        comparison: what `compare.compare` returned, with at least one policy beside the baseline.
        title: title, with the scenario.
    """
    rows = [row for row in ranked(comparison["policies"]) if row["name"] != comparison["baseline"]]
    height = 1.5 + 0.3 * len(rows)
    page = Page(1, (10.5, height), columns=len(RATIOS), sharey=True)
    names = [policy_title(row) + (" (invalid)" if row["invalid"] else "") for row in rows]
    for axis, (figure, panel) in zip(page.axes, RATIOS.items(), strict=True):
        lowest, highest = 0.8, 1.25
        for i, row in enumerate(rows):
            ratio = row["score"] if figure == "score" else row["figures"][figure]["ratio"]
            if not np.isfinite(ratio["value"]):
                continue
            colour = COLOURS[0] if ratio["value"] <= 1.0 else COLOURS[1]
            colour = COLOURS[5] if row["invalid"] else colour
            axis.barh(i, ratio["value"] - 1.0, left=1.0, height=0.66, color=colour, alpha=0.75)
            bounds = [ratio["low"], ratio["high"]]
            if np.isfinite(bounds).all():
                axis.plot(bounds, [i, i], color=INK, linewidth=1.4, solid_capstyle="butt")
            finite = [x for x in (ratio["value"], *bounds) if np.isfinite(x)]
            lowest, highest = min(lowest, *finite), max(highest, *finite)
        axis.axvline(1.0, color=INK, linewidth=1.0)
        axis.set_title(panel, loc="left", fontsize=10, color=INK)
        axis.grid(visible=False, axis="y")
        # A policy that is far worse is cut off, so that the others can be told apart. Panels have
        # axes of their own: a wide one would squeeze the others.
        _ratio_axis(axis, max(lowest / 1.06, 0.1), min(1.06 * highest, 10.0))
    page.axes[0].set_yticks(range(len(rows)), names)
    page.axes[0].set_ylim(len(rows) - 0.4, -0.6)
    label = f"relative to {comparison['baseline']} in the same episodes (left is better)"
    page.figure.supxlabel(label, fontsize=9, color=INK)
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()


def _ratio_axis(axis: Axes, lowest: float, highest: float) -> None:
    """A logarithmic axis around 1, where 1/2 and 2 are equally far from 1."""
    axis.set_xscale("log", base=2)
    axis.set_xlim(lowest, highest)
    width = highest / lowest
    ticks = TICKS[0 if width > 6.0 else 1 if width > 2.5 else 2]
    shown = [x for x in ticks if lowest <= x <= highest]
    axis.set_xticks(shown, [f"{x:g}" for x in shown])
    axis.set_xticks([], minor=True)


def learning_curves(records: Sequence[Record], title: str) -> bytes | None:
    """Scores over environment steps, median and interquartile band over seeds.

    Args:
        records: records. All curves are of one quantity. Beside curves of J, records without a
            curve whose `meta` has a `curve_level` (J on the episodes of the curves) are lines.
        title: title, with the scenario.

    Returns:
        PNG; None if no record has a curve.
    """
    shown = [record for record in records if record.curves]
    if not shown:
        return None
    page = Page(1, (9.0, 4.6))
    axis = page.axes[0]
    for (colour, style), record in zip(_line_styles(), shown, strict=False):
        steps, values = common_steps(record.curves)
        low, middle, high = np.percentile(values, [25.0, 50.0, 75.0], axis=0)
        axis.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        name = f"{record.name}, {record.seeds} seeds" if record.seeds > 1 else record.name
        axis.plot(steps, middle, color=colour, linestyle=style, linewidth=1.6, label=name)
    quantity = str(shown[0].meta.get("curve", "reward"))
    levels = [r for r in records if quantity == "J" and not r.curves and "curve_level" in r.meta]
    for i, (look, record) in enumerate(zip(cycle(LEVELS), levels, strict=False)):
        level = record.meta["curve_level"]
        label = f"{policy_title({'name': record.name, 'meta': record.meta})}: {level:.2f}"
        axis.axhline(level, color=GREYS[i % len(GREYS)], label=label, **look)
    axis.set_ylabel(quantity + (" (lower is better)" if quantity in ("J", *SLOWDOWNS) else ""))
    axis.set_xlabel("environment steps; median and interquartile band over seeds")
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
    page.figure.legend(frameon=False, fontsize=9, loc="outside right upper")
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()


def common_steps(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Curves interpolated to common steps, in the range where all of them have values.

    Args:
        curves: curves with one point or more each; NaN values are left out.

    Returns:
        Steps `[n]` and values `[curves, n]`, interpolated linearly.
    """
    finite = [np.isfinite(c.value) & np.isfinite(c.steps) for c in curves]
    parts = [(c.steps[mask], c.value[mask]) for c, mask in zip(curves, finite, strict=True)]
    parts = [part for part in parts if part[0].size]
    first = max(steps[0] for steps, _ in parts)
    last = min(steps[-1] for steps, _ in parts)
    steps = np.unique(np.concatenate([steps for steps, _ in parts]))
    steps = steps[(steps >= first) & (steps <= last)]
    return steps, np.stack([np.interp(steps, *part) for part in parts])


def profiles(policies: Mapping[str, Mapping[str, Any] | None], title: str) -> bytes | None:
    """Performance profiles: share of seeds (and scenarios) with a score below a threshold.

    From `BANDED` scores on they have their 95 % intervals.

    Args:
        policies: by name, what `statistics.over_seeds` returned of the scores; None for results
            that do not count.
        title: title, with the scenario or all scenarios.

    Returns:
        PNG; None if no policy has more than one score.
    """
    shown = {
        name: statistics
        for name, statistics in policies.items()
        if statistics is not None and np.size(statistics["scores"]) > 1
    }
    if not shown:
        return None
    page = Page(1, (9.0, 4.6))
    axis = page.axes[0]
    last = 1.0
    for (colour, style), (name, statistics) in zip(_line_styles(), shown.items(), strict=False):
        profile = statistics["profile"]
        x = np.array(profile["thresholds"])
        if np.size(statistics["scores"]) >= BANDED:
            axis.fill_between(
                x,
                profile["low"],
                profile["high"],
                color=colour,
                alpha=0.15,
                linewidth=0,
                step="post",
            )
        title_of = policy_title({"name": name, "meta": {}})
        line = axis.step(x, profile["below"], where="post", color=colour, label=title_of)
        line[0].set(linestyle=style, linewidth=1.6)
        last = max(last, float(np.max(statistics["scores"])))
    axis.axvline(1.0, color=INK, linewidth=1.0)
    scores = np.concatenate([np.ravel(statistics["scores"]) for statistics in shown.values()])
    # Profiles are evaluated between 0.4 and 1.4, see `compare.THRESHOLDS`.
    axis.set_xlim(max(float(scores.min()) - 0.05, 0.4), min(last + 0.05, 1.4))
    axis.set_ylim(0.0, 1.02)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_xlabel("score, J relative to the best static setting (lower is better)")
    axis.set_ylabel("share of seeds that reach it")
    page.figure.legend(frameon=False, fontsize=9, loc="outside right upper")
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()


def _line_styles() -> Iterator[tuple[str, str]]:
    """Pairs of colour and line style, one for each policy in turn."""
    return cycle([(colour, style) for style in STYLES for colour in COLOURS])
