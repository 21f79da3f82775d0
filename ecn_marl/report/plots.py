"""Plots of a run: learning curve, queues over time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

INK, FAINT = "#333333", "#dddddd"
COLOURS = ("#1b6ca8", "#d1652a", "#3a8f5c", "#7b4fa3", "#b0902b", "#8a8a8a")
"""One colour per policy: the first for what was trained, then the static settings."""


class QueueSeries(NamedTuple):
    """The queue of one port under one policy.

    Attributes:
        label: the policy.
        time_ms: times of the samples, ms, `[T]`.
        queue: queue, bytes, `[T]`.
        interval_ms: starts of the tuning intervals, ms, `[n]`.
        kmin: where marking starts in each, bytes, `[n]`.
        kmax: where every packet is marked in each, bytes, `[n]`.
        utilisation: of the port over the episode, in [0, 1].
    """

    label: str
    time_ms: np.ndarray
    queue: np.ndarray
    interval_ms: np.ndarray
    kmin: np.ndarray
    kmax: np.ndarray
    utilisation: float


class Page:
    """A figure and how it becomes bytes; no global state of pyplot is touched."""

    def __init__(
        self, rows: int, size: tuple[float, float], columns: int = 1, **shared: Any
    ) -> None:
        self.figure = Figure(figsize=size, dpi=140, layout="constrained")
        FigureCanvasAgg(self.figure)
        axes = self.figure.subplots(rows, columns, squeeze=False, **shared)
        self.axes: list[Axes] = list(axes.ravel())
        for axis in self.axes:
            axis.spines[["top", "right"]].set_visible(False)
            axis.spines[["left", "bottom"]].set_color(INK)
            axis.tick_params(colors=INK, labelsize=9)
            axis.grid(True, color=FAINT, linewidth=0.7)
            axis.set_axisbelow(True)

    def png(self) -> bytes:
        """The figure as a PNG file."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png")
        return file.getvalue()


def trailing_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of each value and the `width - 1` before it, where there are as many; last axis."""
    total = np.cumsum(np.insert(values, 0, 0.0, axis=-1), axis=-1)
    return (total[..., width:] - total[..., :-width]) / width


PORT_CURVES = ("queue_mean", "utilisation")
CURVES = ("reward", *PORT_CURVES)
"""Metrics that a learning curve shows."""


def learning_curve(
    rows: Sequence[Mapping[str, Any]],
    title: str,
    references: Mapping[str, float] | None = None,
    window: int = 1,
) -> bytes:
    """Reward, queue and utilisation over training, those that were measured, as PNG.

    Args:
        rows: rows of `metrics.jsonl`; metrics are numbers, or lists with one number per seed.
        title: what was trained on what.
        references: mean rewards to compare with, by name, e.g. of the static settings.
        window: updates to average over, those of whole episodes: environments start together, so
            an update sees one phase of their episodes.
    """
    width = min(max(len(rows) // 50, window), max(len(rows) // 3, 1))
    steps = np.array([row["steps"] for row in rows], float)[width - 1 :]

    def per_seed(name: str) -> np.ndarray:
        values = np.atleast_2d(np.array([row[name] for row in rows], float).T)
        return trailing_mean(values, width)

    known = {name: per_seed(name) for name in CURVES if all(name in row for row in rows)}
    heights = [3] * ("reward" in known) + [2] * bool(set(PORT_CURVES) & set(known)) or [1]
    page = Page(len(heights), (8.0, 6.0), sharex=True, height_ratios=heights)
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    if "reward" in known:
        _draw_reward(page.axes[0], steps, known["reward"], width, references or {})
    _draw_ports(page.axes[-1], steps, known)
    if not known:
        text = f"no metric among {', '.join(CURVES)}"
        page.axes[0].text(0.5, 0.5, text, ha="center", transform=page.axes[0].transAxes)
    bottom = page.axes[-1]
    bottom.set_xlabel("environment steps (tuning intervals, summed over environments)")
    bottom.xaxis.set_major_formatter(EngFormatter(sep=" "))
    bottom.set_xlim(0.0, 1.02 * steps[-1])
    return page.png()


def _draw_reward(
    axis: Axes,
    steps: np.ndarray,
    reward: np.ndarray,
    width: int,
    references: Mapping[str, float],
) -> None:
    """The reward of every seed, with the references as lines."""
    for i, curve in enumerate(reward):
        name = f"training, mean of {width} updates" if i == 0 else None
        axis.plot(steps, curve, color=COLOURS[0], linewidth=1.6, marker=_dot(steps), label=name)
    for colour, (name, value) in zip(COLOURS[1:], references.items(), strict=False):
        axis.axhline(
            value, color=colour, linewidth=1.3, linestyle="--", label=f"{name}: {value:.3f}"
        )
    axis.set_ylabel("mean reward per interval")
    _reward_limits(axis, reward, list(references.values()))
    legend = axis.legend(frameon=False, fontsize=9, loc="lower left", ncols=3)
    legend.set_bbox_to_anchor((0.0, 1.0))


def _draw_ports(axis: Axes, steps: np.ndarray, known: Mapping[str, np.ndarray]) -> None:
    """Queue and utilisation of every seed, as far as they were measured."""
    if "queue_mean" in known:
        for queue in known["queue_mean"] / 1e3:
            axis.plot(steps, queue, color=COLOURS[3], linewidth=1.4, marker=_dot(steps))
        axis.set_ylabel("queue, mean of ports, KB", color=COLOURS[3])
        axis.set_ylim(bottom=0.0)
    if "utilisation" in known:
        right = axis.twinx() if "queue_mean" in known else axis
        for used in known["utilisation"]:
            right.plot(steps, used, color=COLOURS[4], linewidth=1.4, marker=_dot(steps))
        right.spines["top"].set_visible(False)
        right.set_ylabel("utilisation, mean of ports", color=COLOURS[4])
        right.tick_params(labelsize=9, colors=INK)
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _room(right, known["utilisation"])


def _dot(steps: np.ndarray) -> str:
    """A marker where a single point would show nothing."""
    return "o" if steps.size == 1 else ""


def _reward_limits(axis: Axes, curves: np.ndarray, levels: list[float]) -> None:
    """Frame the running means and reference lines; outliers of single updates may leave it."""
    values = np.concatenate([curves.ravel(), np.array(levels, float)])
    low, high = float(values.min()), float(values.max())
    margin = max(0.12 * (high - low), 0.005)
    axis.set_ylim(low - margin, high + margin)


def _room(axis: Axes, values: np.ndarray) -> None:
    """Show at least ten points of a share, so that noise does not fill the axis."""
    middle = 0.5 * (float(values.min()) + float(values.max()))
    half = max(0.6 * float(np.ptp(values)), 0.05)
    axis.set_ylim(middle - half, middle + half)


def queues(series: Sequence[QueueSeries], title: str) -> bytes:
    """Queue over time of one port under several policies, one panel each, as PNG.

    Args:
        series: one per policy, the same traffic under each.
        title: which port, which scenario, which seed.
    """
    page = Page(len(series), (9.0, 1.2 + 1.9 * len(series)), sharex=True, sharey=True)
    top = max(float(np.max(s.queue)) for s in series) / 1e3
    for axis, colour, s in zip(page.axes, _cycle(), series, strict=False):
        queue = s.queue / 1e3
        axis.fill_between(s.time_ms, queue, color=colour, alpha=0.25, linewidth=0)
        axis.plot(s.time_ms, queue, color=colour, linewidth=0.9, label="queue")
        ends = np.append(s.interval_ms[1:], s.time_ms[-1])
        for values, style, name in ((s.kmin, "-", "Kmin"), (s.kmax, ":", "Kmax")):
            shown = values / 1e3 < 1.1 * top
            levels, starts = values[shown] / 1e3, s.interval_ms[shown]
            if shown.any():
                marks = axis.hlines(levels, starts, ends[shown], colors=INK, label=name)
                marks.set(linewidth=1.1, linestyle=style, alpha=0.8)
        p99 = np.percentile(queue, 99)
        facts = f"mean {queue.mean():.1f} KB, p99 {p99:.0f} KB, utilisation {s.utilisation:.1%}"
        axis.set_title(f"{s.label}: {facts}", loc="left", fontsize=10, color=INK)
        axis.set_ylabel("queue, KB")
        legend = axis.legend(frameon=False, fontsize=8, ncols=3, loc="lower right")
        legend.set_bbox_to_anchor((1.0, 0.96))
    page.axes[0].set_ylim(0.0, 1.1 * top if top > 0 else 1.0)
    page.axes[0].set_xlim(0.0, float(series[0].time_ms[-1]))
    page.axes[-1].set_xlabel("time, ms")
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()


def _cycle() -> Iterator[str]:
    while True:
        yield from COLOURS
