"""Plots of a validation: recorded and simulated queues and FCTs, all lines at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from ecn_marl.render.plots import COLOURS, INK, png, style_axis
from ecn_marl.validation.leaf_spine import class_members
from ecn_marl.validation.lines import Line, Slowdowns, Trace
from ecn_marl.validation.pool import Finished

RECORDED, OURS, BAD = INK, COLOURS[0], "#c0392b"

SETTLED_MS = 3.0
"""Time by which small incasts have passed their first burst; its height would hide the rest."""

FRAME = 0.4
"""Largest relative deviation that the overview shows to scale."""

BIG = 10.0
"""A first burst this many times higher than the queue after it is cut off at the panel's edge."""


def pages(done: Sequence[Finished]) -> dict[str, bytes]:
    """All plots that the outcomes allow, as PNG, by file name without suffix."""
    traces: dict[str, list[Trace]] = {}
    slowdowns: dict[str, list[Slowdowns]] = {}
    lines: list[Line] = []
    for finished in done:
        lines += finished.outcome.lines
        for trace in finished.outcome.traces:
            traces.setdefault(trace.page, []).append(trace)
        for curve in finished.outcome.slowdowns:
            slowdowns.setdefault(curve.page, []).append(curve)
    plots = {f"queues-{page}": queue_page(group) for page, group in traces.items()}
    plots |= {f"fct-{page.replace(' ', '-')}": fct_page(group) for page, group in slowdowns.items()}
    if any(_has_ratio(line) for line in lines):
        plots["overview"] = overview(lines)
    return plots


def _figure(
    rows: int, columns: int, size: tuple[float, float], **shared: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of styled axes, `[rows, columns]`, without pyplot."""
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        style_axis(axis, label_size=8)
    return figure, axes


def queue_page(traces: Sequence[Trace]) -> bytes:
    """Queues over time: recorded on the left, simulated on the right, one row per run."""
    size = (10.0, 0.9 + 1.9 * len(traces))
    figure, axes = _figure(len(traces), 2, size, sharex=True, sharey="row")
    for (left, right), trace in zip(axes, traces, strict=True):
        late = trace.time_ms > SETTLED_MS
        settled = max(trace.recorded[late].max(), trace.simulated[late].max()) / 1e3
        highest = max(trace.recorded.max(), trace.simulated.max()) / 1e3
        top = settled if highest > BIG * settled else highest
        sides = (
            (left, "packets", trace.recorded, RECORDED),
            (right, "ecn_marl", trace.simulated, OURS),
        )
        for axis, name, queue, colour in sides:
            axis.fill_between(trace.time_ms, queue / 1e3, color=colour, alpha=0.2, linewidth=0)
            axis.plot(trace.time_ms, queue / 1e3, color=colour, linewidth=0.7)
            steady = queue[late] / 1e3
            text = f"{name}: {steady.mean():,.0f} ± {steady.std():,.0f} KB after {SETTLED_MS:g} ms"
            if queue.max() / 1e3 > 1.1 * top:
                text += f" (before: up to {queue.max() / 1e3:,.0f})"
            axis.set_title(text, loc="left", fontsize=8.5, color=INK)
        left.set_ylim(0.0, 1.1 * top)
        left.set_xlim(0.0, float(trace.time_ms[-1]))
        left.set_ylabel(f"{trace.label}\nqueue, KB", fontsize=8.5)
    for axis in axes[-1]:
        axis.set_xlabel("time, ms", fontsize=9)
    return png(figure)


def fct_page(curves: Sequence[Slowdowns]) -> bytes:
    """Distributions of the FCT slowdown: a row per ECN setting, a column per size class."""
    classes = list(class_members(curves[0].size))
    size = (10.0, 0.9 + 2.0 * len(curves))
    figure, axes = _figure(len(curves), len(classes), size, sharex="col", sharey=True)
    for row, curve in zip(axes, curves, strict=True):
        for axis, (label, members) in zip(row, class_members(curve.size).items(), strict=True):
            _distribution(axis, curve.recorded[members], RECORDED, "packets", "-")
            for i, seed in enumerate(curve.simulated[:, members]):
                _distribution(axis, seed, OURS, "ecn_marl, each seed" if i == 0 else "", "-")
            means = (curve.recorded[members].mean(), curve.simulated[:, members].mean())
            mean = f"mean {means[0]:.2f} → {means[1]:.2f}"
            axis.set_title(f"{curve.ecn}, {label}: {mean}", loc="left", fontsize=8.5, color=INK)
            axis.set_xscale("log")
            axis.set_ylim(0.0, 1.0)
        row[0].set_ylabel("share of flows", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("FCT slowdown", fontsize=9)
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0, -1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(
        f"{curves[0].page}: packets → ecn_marl", x=0.01, ha="left", fontsize=10, color=INK
    )
    return png(figure)


def _distribution(axis: Axes, values: np.ndarray, colour: str, label: str, style: str) -> None:
    """A cumulative distribution over all flows; with unfinished flows it ends below one."""
    finite = np.sort(values[np.isfinite(values)])
    share = (np.arange(finite.size) + 1) / values.size
    width = 1.8 if colour == RECORDED else 0.9
    axis.step(
        finite, share, where="post", color=colour, linewidth=width, linestyle=style, label=label
    )


def _has_ratio(line: Line) -> bool:
    """Whether the line has a tolerance and a ratio to its reference."""
    finite = np.isfinite(line.simulated) and line.reference > 0 and line.simulated > 0
    return line.tolerance is not None and bool(finite)


def overview(lines: Sequence[Line]) -> bytes:
    """Every line with a tolerance, as simulated over reference, with the band of its tolerance."""
    checked = [line for line in lines if _has_ratio(line)]
    groups = list(dict.fromkeys(line.group for line in checked))
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure, axes = _figure(rows, columns, (6.5 * columns, 0.7 + 2.3 * rows), sharey=True)
    for axis in axes.flat[len(groups) :]:
        axis.axis("off")
    for axis, group in zip(axes.flat, groups, strict=False):
        _strip(axis, [line for line in checked if line.group == group], group)
    axes[0, 0].set_ylim(1 - FRAME, 1 + FRAME)
    for axis in axes[:, 0]:
        axis.set_ylabel("ecn_marl / reference", fontsize=9)
    figure.suptitle(
        "All lines with a tolerance (band). Red: out of it; triangle: independent; "
        "arrow: beyond the frame",
        x=0.01,
        ha="left",
        fontsize=10,
        color=INK,
    )
    return png(figure)


def _strip(axis: Axes, lines: Sequence[Line], group: str) -> None:
    """The lines of one group side by side; arrows mark those outside the frame."""
    position = np.arange(len(lines))
    ratio = np.array([line.simulated / line.reference for line in lines])
    band = np.array([line.allowed / line.reference for line in lines])
    failed = np.array([line.verdict == "FAIL" for line in lines])
    independent = np.array([line.basis == "independent" for line in lines])
    outside = np.abs(ratio - 1) > FRAME
    axis.vlines(position, 1 - band, 1 + band, color="#d7e3ec", linewidth=2.0)
    for of_verdict, colour in ((~failed, OURS), (failed, BAD)):
        for of_basis, marker in ((~independent, "o"), (independent, "^")):
            shown = of_verdict & of_basis & ~outside
            axis.plot(position[shown], ratio[shown], marker, color=colour, markersize=3.0)
        for above, marker, shift in (
            (ratio > 1, r"$\uparrow$", 0.95),
            (ratio < 1, r"$\downarrow$", -0.95),
        ):
            shown = of_verdict & outside & above
            level = np.full(shown.sum(), 1 + shift * FRAME)
            axis.plot(
                position[shown], level, linestyle="", marker=marker, color=colour, markersize=6
            )
    axis.axhline(1.0, color=INK, linewidth=0.8)
    axis.set_xticks([])
    axis.set_xlim(-1, len(lines))
    title = f"{group}: {len(lines) - failed.sum()} of {len(lines)} within tolerance"
    axis.set_title(title, loc="left", fontsize=9, color=INK)
