"""In films: slowdowns of flows as they finish, the return so far, and phases of the traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ecn_marl.render.axes import busiest, returns
from ecn_marl.render.episode import Side
from ecn_marl.render.picture import DPI, INK, SIZE_IN, TRACES, plain_axes
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES

SHORT_COLOUR, LONG_COLOUR, RETURN_COLOUR = TRACES[0], TRACES[1], TRACES[3]

PHASE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#7a4f9e")
"""Tints of phases, in turn; the same as on the player's page."""

STRIP_IN = 2.2
"""Height of the strip below the frames of `render()`, inches."""

Box = tuple[float, float, float, float]
"""Left, bottom, width, height; shares of a figure."""


def length_ms(side: Side) -> float:
    """Length of an episode, ms."""
    return len(side.episode.info["queue"]) * side.env.interval_us / 1e3


def interval_at(side: Side, time_ms: float) -> int:
    """Number of the interval that ends at a time, ms, or contains it."""
    return max(
        min(round(time_ms * 1e3 / side.env.interval_us), len(side.episode.info["queue"])) - 1, 0
    )


def phase_name(side: Side, port: int, time_ms: float) -> str:
    """Phase of the traffic to a port, empty if the scenario has none."""
    names = side.env.phase_names
    return names[side.episode.phase[interval_at(side, time_ms), port]] if len(names) > 1 else ""


def shade_phases(axis: Axes, side: Side, port: int) -> None:
    """Tint the phases of the traffic to a port."""
    if len(side.env.phase_names) < 2:
        return
    phase, interval_ms = side.episode.phase[:, port], side.env.interval_us / 1e3
    starts = np.flatnonzero(np.diff(phase, prepend=-1))
    for start, end in zip(starts, np.append(starts[1:], len(phase)), strict=True):
        colour = PHASE_COLOURS[phase[start] % len(PHASE_COLOURS)]
        axis.axvspan(start * interval_ms, end * interval_ms, color=colour, alpha=0.1, linewidth=0)


class FlowPlot:
    """Slowdowns of the flows that have finished, over the time of their end."""

    def __init__(self, figure: Figure, box: Box, side: Side, port: int, slowest: float) -> None:
        """Draw the axes.

        Args:
            figure: the page.
            box: place of the axes.
            side: the episode.
            port: the port whose phases are tinted.
            slowest: the highest slowdown that is drawn.
        """
        finished = [f for f in side.episode.flows if f.end_us is not None]
        finished.sort(key=lambda flow: flow.end_us or 0.0)
        self.end_ms = np.array([f.end_us for f in finished], np.float64) / 1e3
        self.slowdown = np.array([f.slowdown for f in finished], np.float64)
        self.short = np.array([f.size <= SIZE_CLASSES[0] for f in finished], bool)
        axis = plain_axes(figure, box, "slowdown")
        axis.set_yscale("log")
        axis.set(xlim=(0, length_ms(side)), ylim=(0.9, 1.3 * slowest), xlabel="time, ms")
        marks = (1, 2, 5, 10, 20) if slowest < 20 else (1, 10, 100, 1000)
        ticks = [t for t in marks if t <= 1.3 * slowest]
        axis.set_yticks(ticks, [f"{t:,}" for t in ticks])
        axis.set_yticks([], minor=True)
        shade_phases(axis, side, port)
        dots: dict[str, Any] = {"linestyle": "none", "marker": "o", "markeredgewidth": 0}
        styles: dict[str, dict[str, Any]] = {
            "short": {"color": SHORT_COLOUR, "markersize": 3.2, "alpha": 0.5},
            "long": {"color": LONG_COLOUR, "markersize": 5.0},
        }
        self.dots = {name: axis.plot([], [], **dots, **style)[0] for name, style in styles.items()}
        text_style: dict[str, Any] = {"transform": axis.transAxes, "ha": "right", "size": 9.5}
        self.texts = {
            name: axis.text(x, 1.04, "", color=styles[name]["color"], weight="bold", **text_style)
            for name, x in (("short", 0.71), ("long", 1.0))
        }

    def show(self, time_ms: float) -> None:
        """Show the flows that have finished by a time, ms."""
        # Rounding must not leave out a flow that ends at this very time.
        finished = np.arange(np.searchsorted(self.end_ms, time_ms + 1e-9))
        for name, of_kind in (("short", self.short), ("long", ~self.short)):
            rows = finished[of_kind[finished]]
            self.dots[name].set_data(self.end_ms[rows], self.slowdown[rows])
            self.texts[name].set_text(summary(name, self.slowdown[rows]))


def summary(name: str, slowdown: np.ndarray) -> str:
    """Summary of the finished flows of a kind, `short` or `long`."""
    kind = {"short": "short flows", "long": "larger"}[name]
    if not slowdown.size:
        return f"{kind}: none yet"
    tail = f", p99 {np.quantile(slowdown, 0.99):.1f}" if name == "short" else ""
    return f"{kind}: mean {slowdown.mean():.1f}{tail}"


def slowest_of(side: Side) -> float:
    """Highest slowdown of a finished flow, at least 2."""
    return max([2.0, *(f.slowdown or 0.0 for f in side.episode.flows)])


def strips(side: Side) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """For every interval, a strip as wide as the frames of `render()`: flows, and the return.

    Phases are those of the busiest port.
    """
    port, _ = busiest([side])
    figure = Figure(figsize=(SIZE_IN[0], STRIP_IN), dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    flows = FlowPlot(figure, (0.06, 0.22, 0.38, 0.6), side, port, slowest_of(side))
    axis = plain_axes(figure, (0.51, 0.22, 0.31, 0.6), "return so far, mean of the ports")
    shade_phases(axis, side, port)
    interval_ms, total = side.env.interval_us / 1e3, np.append(0.0, returns(side))
    axis.set(xlim=(0, length_ms(side)), xlabel="time, ms")
    low, high = min(total.min(), 0.0), max(total.max(), 0.0)
    # matplotlib warns of limits that coincide, as they do while the return stays 0.
    axis.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9)
    line = axis.plot([], [], color=RETURN_COLOUR, linewidth=1.5)[0]
    texts = [figure.text(0.855, y, "", size=10, color=INK) for y in (0.72, 0.54)]
    for t in range(1, len(total)):
        flows.show(t * interval_ms)
        line.set_data(np.arange(t + 1) * interval_ms, total[: t + 1])
        phase = phase_name(side, port, t * interval_ms)
        texts[0].set_text(f"return {total[t]:.2f}")
        texts[1].set_text(f"phase {phase}" if phase else "")
        canvas.draw()
        # A copy, since the next strip is drawn into the same memory.
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()
