"""The learning curve of a run: merits of its policy, beside reference policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

from ecn_marl.baselines.evaluation.statistics import half_width
from ecn_marl.baselines.training.logs import evaluated_rows
from ecn_marl.render.plots import COLOURS, INK, LEVELS, Page

EXPLORING = "#9a9a9a"
"""Colour of rewards under sampled actions; they do not measure the greedy policy."""

PORT_METRICS = ("queue_mean", "utilisation")
METRICS = ("merit", "reward", *PORT_METRICS)
"""Metrics of a run that a learning curve shows."""

MERIT_AXES = {
    "objective": "J (lower is better)",
    "reward": "mean reward per interval",
}
"""Labels of the axis of merits, by the kind of merit (`best_by`)."""


def learning_curve(
    rows: Sequence[Mapping[str, object]],
    title: str,
    references: Mapping[str, float] | None = None,
    window: int = 1,
    best_by: str = "reward",
) -> bytes:
    """Merits of the greedy policy over training, then metrics while exploring, as PNG.

    Args:
        rows: rows of `metrics.jsonl`; metrics are numbers, or lists with one number per seed.
        title: title, with algorithm and scenario.
        references: merits of other policies on the episodes of the run's merits, by name.
        window: updates over which metrics while exploring are averaged. It should cover whole
            episodes: environments start together, so one update covers one part of episodes.
        best_by: kind of merit, a key of `MERIT_AXES`.
    """
    evaluated = evaluated_rows(rows)
    width = min(max(len(rows) // 50, window), max(len(rows) // 3, 1))
    curves = {
        name: trailing_mean(_per_seed(rows, name), width)
        for name in METRICS[1:]
        if all(row.get(name) is not None for row in rows)
    }
    panels = [3.4] * bool(evaluated) + [1.1] * ("reward" in curves)
    panels += [1.5] * any(name in curves for name in PORT_METRICS)
    page = Page(len(panels) or 1, (8.4, 6.8), sharex=True, height_ratios=panels or [1])
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    steps, axes = np.array([row["steps"] for row in rows], float), iter(page.axes)
    if evaluated:
        draw_merits(next(axes), evaluated, references or {}, best_by)
    if "reward" in curves:
        _draw_exploring(next(axes), steps, curves["reward"], width, bool(evaluated))
    if any(name in curves for name in PORT_METRICS):
        _draw_ports(next(axes), steps, curves)
    if not panels:
        text = f"no metric among {', '.join(METRICS)}"
        page.axes[0].text(0.5, 0.5, text, ha="center", transform=page.axes[0].transAxes)
    bottom = page.axes[-1]
    bottom.set_xlabel("environment steps (tuning intervals, summed over environments)")
    bottom.xaxis.set_major_formatter(EngFormatter(sep=" "))
    bottom.set_xlim(0.0, 1.02 * steps[-1])
    return page.png()


def trailing_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of each value and the `width - 1` before it (fewer at the beginning), last axis."""
    # By running sums: the time does not grow with the width.
    total = np.cumsum(np.insert(values, 0, 0.0, axis=-1), axis=-1)
    ends = np.arange(1, values.shape[-1] + 1)
    starts = np.maximum(ends - width, 0)
    return (total[..., ends] - total[..., starts]) / (ends - starts)


def _per_seed(rows: Sequence[Mapping[str, object]], name: str) -> np.ndarray:
    """A metric, `[seeds, rows]`."""
    return np.atleast_2d(np.array([row[name] for row in rows], float).T)


def merit_band(
    evaluated: Sequence[Mapping[str, object]],
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Mean merit over seeds and its 95 % interval: over seeds, of one seed over episodes.

    Args:
        evaluated: rows with a `merit`.

    Returns:
        The mean, the lower and the upper end, `[rows]` each; no ends if there are none.
    """
    merit = _per_seed(evaluated, "merit")
    mean = merit.mean(0)
    if len(merit) > 1:
        half = half_width(merit, 0)
        return mean, mean - half, mean + half
    if all(row.get("merit_low") is not None for row in evaluated):
        return mean, *(_per_seed(evaluated, f"merit_{bound}")[0] for bound in ("low", "high"))
    return mean, None, None


def draw_merits(
    axis: Axes,
    evaluated: Sequence[Mapping[str, object]],
    references: Mapping[str, float],
    best_by: str,
) -> None:
    """Draw merits with their interval, and references as lines."""
    sign = -1.0 if best_by == "objective" else 1.0
    steps, merit = (
        np.array([row["steps"] for row in evaluated], float),
        _per_seed(evaluated, "merit"),
    )
    mean, low, high = merit_band(evaluated)
    sample = "episodes" if len(merit) == 1 else f"{len(merit)} seeds"
    if low is not None and high is not None:
        name = f"95 % interval over {sample}"
        axis.fill_between(
            steps, sign * low, sign * high, color=COLOURS[0], alpha=0.18, linewidth=0, label=name
        )
    if len(merit) > 1:
        for i, seed_merit in enumerate(merit):
            label = "each seed" if i == 0 else None
            axis.plot(
                steps, sign * seed_merit, color=COLOURS[0], linewidth=0.7, alpha=0.5, label=label
            )
    name = "greedy policy" if len(merit) == 1 else "mean of greedy policies"
    if len(evaluated) == 1:
        name += ", evaluated once: no curve"
    axis.plot(
        steps, sign * mean, color=COLOURS[0], linewidth=1.8, marker="o", markersize=3, label=name
    )
    lines = zip(cycle(COLOURS[1:]), cycle(LEVELS), references.items(), strict=False)
    for colour, style, (name, value) in lines:
        label = f"{name}: {_short(sign * value)}"
        axis.axhline(sign * value, color=colour, label=label, **style)
    axis.set_ylabel(MERIT_AXES[best_by])
    legend = axis.legend(frameon=False, fontsize=9, loc="lower left", ncols=3)
    legend.set_bbox_to_anchor((0.0, 1.0))


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) >= 1.0 else f"{value:.3f}"


def _draw_exploring(
    axis: Axes, steps: np.ndarray, reward: np.ndarray, width: int, evaluated: bool
) -> None:
    """Draw the rewards of training, in a faint colour because actions are sampled."""
    for curve in reward:
        axis.plot(steps, curve, color=EXPLORING, linewidth=1.0, marker=_dot(steps))
    axis.set_ylabel("reward", color=EXPLORING)
    note = f"while it explores, mean of {width} updates" if width > 1 else "while it explores"
    if not evaluated:
        note += "; the greedy policy was never evaluated (--eval-every)"
    axis.set_title(note, loc="left", fontsize=9, color=EXPLORING)
    low, high = float(reward.min()), float(reward.max())
    margin = max(0.12 * (high - low), 0.005)  # constant rewards need an axis of some height, too
    axis.set_ylim(low - margin, high + margin)


def _draw_ports(axis: Axes, steps: np.ndarray, curves: Mapping[str, np.ndarray]) -> None:
    """Queue and utilisation of every seed, where they were measured."""
    if "queue_mean" in curves:
        for queue in curves["queue_mean"] / 1e3:
            axis.plot(steps, queue, color=COLOURS[3], linewidth=1.4, marker=_dot(steps))
        axis.set_ylabel("queue, mean of\nports, KB", color=COLOURS[3])
        axis.set_ylim(bottom=0.0)
    if "utilisation" in curves:
        right = axis.twinx() if "queue_mean" in curves else axis
        for utilisation in curves["utilisation"]:
            right.plot(steps, utilisation, color=COLOURS[4], linewidth=1.4, marker=_dot(steps))
        right.spines["top"].set_visible(False)
        right.set_ylabel("utilisation,\nmean of ports", color=COLOURS[4])
        right.tick_params(labelsize=9, colors=INK)
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        _set_share_limits(right, curves["utilisation"])


def _dot(steps: np.ndarray) -> str:
    """A marker if there is only one point, which would be invisible as a line."""
    return "o" if steps.size == 1 else ""


def _set_share_limits(axis: Axes, values: np.ndarray) -> None:
    """Show at least ten points of a share, so that noise does not fill the axis."""
    middle = 0.5 * (float(values.min()) + float(values.max()))
    half_width = max(0.6 * float(np.ptp(values)), 0.05)
    axis.set_ylim(middle - half_width, middle + half_width)
