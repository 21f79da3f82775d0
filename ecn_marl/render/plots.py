"""Common style of plots, and the plot of queues over time."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, FAINT = "#333333", "#dddddd"
COLOURS = ("#1b6ca8", "#d1652a", "#3a8f5c", "#7b4fa3", "#b0902b", "#8a8a8a")
"""One colour per policy: the first for the trained policy, then for static settings."""


LEVELS: tuple[dict[str, Any], ...] = (
    {"linewidth": 3.4, "linestyle": "-", "alpha": 0.45},
    {"linewidth": 2.2, "linestyle": (0, (6, 3))},
    {"linewidth": 1.3, "linestyle": (0, (1.5, 2.5))},
    {"linewidth": 1.3, "linestyle": (2, (8, 2, 1, 2))},
)
"""Styles of horizontal lines that may lie on one another: a later one is thinner and broken, so the
one below shows at its sides and in its gaps."""


class QueueSeries(NamedTuple):
    """The queue of one port under one policy.

    Attributes:
        label: the policy.
        time_ms: times of the samples, ms, `[T]`.
        queue: queue, bytes, `[T]`.
        interval_ms: starts of the tuning intervals, ms, `[n]`.
        kmin: queue at which marking starts, in each interval, bytes, `[n]`.
        kmax: queue at which every packet is marked, in each interval, bytes, `[n]`.
        utilisation: of the port over the episode, in [0, 1].
    """

    label: str
    time_ms: np.ndarray
    queue: np.ndarray
    interval_ms: np.ndarray
    kmin: np.ndarray
    kmax: np.ndarray
    utilisation: float


def style_axis(axis: Axes, label_size: float = 9, ink: str = INK, grid: str = FAINT) -> None:
    """Give an axis the common style: no frame at the top and right, a faint grid below the data."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(ink)
    axis.tick_params(colors=ink, labelsize=label_size)
    axis.grid(True, color=grid, linewidth=0.7)
    axis.set_axisbelow(True)


def png(figure: Figure) -> bytes:
    """A figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


class Page:
    """A figure with styled axes, saved as PNG."""

    def __init__(
        self, rows: int, size: tuple[float, float], columns: int = 1, **shared: Any
    ) -> None:
        # Not by pyplot, which would keep the figure and change the user's current one.
        self.figure = Figure(figsize=size, dpi=140, layout="constrained")
        FigureCanvasAgg(self.figure)
        axes = self.figure.subplots(rows, columns, squeeze=False, **shared)
        self.axes: list[Axes] = list(axes.ravel())
        for axis in self.axes:
            style_axis(axis)

    def png(self) -> bytes:
        """The figure as a PNG file."""
        return png(self.figure)


def queues(series: Sequence[QueueSeries], title: str) -> bytes:
    """Queue over time of one port under several policies, one panel each, as PNG.

    Args:
        series: one per policy, the same traffic under each.
        title: title, with port, scenario and seed.
    """
    page = Page(len(series), (9.0, 1.2 + 1.9 * len(series)), sharex=True, sharey=True)
    top = max(float(np.max(s.queue)) for s in series) / 1e3
    for axis, colour, s in zip(page.axes, itertools.cycle(COLOURS), series, strict=False):
        queue = s.queue / 1e3
        axis.fill_between(s.time_ms, queue, color=colour, alpha=0.25, linewidth=0)
        axis.plot(s.time_ms, queue, color=colour, linewidth=0.9, label="queue")
        ends = np.append(s.interval_ms[1:], s.time_ms[-1])
        for values, style, name in ((s.kmin, "-", "Kmin"), (s.kmax, ":", "Kmax")):
            shown = values / 1e3 < 1.1 * top  # a high Kmax must not flatten the queue
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
    page.axes[0].set_ylim(0.0, 1.1 * top if top > 0 else 1.0)  # matplotlib warns of 0 to 0
    page.axes[0].set_xlim(0.0, float(series[0].time_ms[-1]))
    page.axes[-1].set_xlabel("time, ms")
    page.figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return page.png()
