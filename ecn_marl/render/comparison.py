"""Two policies in the same episode, side by side: a film, or two players on one page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ecn_marl._errors import bad_value
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.axes import busiest_host, returns
from ecn_marl.render.episode import Side
from ecn_marl.render.flow_plot import (
    FlowPlot,
    interval_at,
    length_ms,
    phase_name,
    shade_phases,
    slowest_of,
)
from ecn_marl.render.layout import TOP_LEVEL, level, node_places, port_lines, side_by_side
from ecn_marl.render.picture import (
    INK,
    KMAX_COLOUR,
    KMIN_COLOUR,
    TRUNK_GAP,
    plain_axes,
    queue_colours,
)
from ecn_marl.render.queues import series
from ecn_marl.sim.network.topology import KB

SIZE_IN, DPI = (11.0, 7.0), 80

_NAMES = ("FIRST", "SECOND")


def check_same(first: Side, second: Side) -> None:
    """Refuse episodes that differ in network or length.

    Raises:
        ValueError: they differ in scenario, ports or length.
    """
    a, b = (f"{s.env.name}, {s.env.num_agents} ports, {length_ms(s):g} ms" for s in (first, second))
    if a != b:
        raise bad_value("--beside", second.label, f"a policy for the same episode ({a}), not {b}")


def frames(first: Side, second: Side) -> Iterator[UInt8[np.ndarray, "height width 3"]]:
    """A picture of both at the end of every interval; of the longer intervals if they differ.

    Raises:
        ValueError: see `check_same`.
    """
    check_same(first, second)
    animation = _Animation((first, second), busiest_host(first))
    step_ms = max(side.env.interval_us for side in (first, second)) / 1e3
    for time_ms in step_ms * np.arange(1, round(length_ms(first) / step_ms) + 1):
        yield animation.draw(float(time_ms))


def page(pages: Sequence[str], labels: Sequence[str]) -> str:
    """A page with two players that move together.

    Args:
        pages: page of each episode, from `player.page`.
        labels: names of the policies, for tabs where the page is narrow.
    """
    template = (files("ecn_marl.render") / "templates" / "beside.html").read_text("utf-8")
    parts = {f"__{name}__": page for name, page in zip(_NAMES, pages, strict=True)}
    parts |= {f"__{name}_LABEL__": label for name, label in zip(_NAMES, labels, strict=True)}
    # In one pass, so that a page that is put in is not searched for further marks.
    return re.sub("|".join(parts), lambda mark: escape(parts[mark[0]]), template)


class _Animation:
    """Draws both halves. Every picture is drawn anew, which takes about a tenth of a second."""

    def __init__(self, sides: tuple[Side, Side], port: int) -> None:
        self.sides, self.port = sides, port
        self.traces = [series(side, port) for side in sides]
        self.returns = [returns(side) for side in sides]
        self.figure = Figure(figsize=SIZE_IN, dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self.cmap = queue_colours()
        name, title = sides[0].env.name, sides[0].env.sim.topology.port_names[port]
        self.figure.text(0.02, 0.955, f"{name}: the same episode twice", size=14, color=INK)
        self.clock = self.figure.text(0.98, 0.955, "", size=12, color=INK, ha="right")
        length = length_ms(sides[0])
        highest = max(float(max(t.kmax.max(), t.queue.max()) / KB) for t in self.traces)
        slowest = max(slowest_of(side) for side in sides)
        self.halves = []
        for i, side in enumerate(sides):
            left = 0.065 + 0.495 * i
            self.figure.text(
                left, 0.905, side.label, size=13, color=INK, weight="bold", va="center"
            )
            network = self._network(side.env, (left - 0.01, 0.62, 0.43, 0.26))
            queue = plain_axes(
                self.figure, (left, 0.355, 0.42, 0.2), f"queue of {title}, Kmin and Kmax, KB"
            )
            queue.set(xlim=(0, length), ylim=(0, 1.5 * highest))
            queue.set_yscale("symlog", linthresh=10.0, linscale=0.5)
            ticks = [t for t in (0, 10, 100, 1000, 10_000) if t <= highest]
            queue.set_yticks(ticks, [f"{t:,}" for t in ticks])
            queue.set_yticks([], minor=True)
            shade_phases(queue, side, port)
            flows = FlowPlot(self.figure, (left, 0.075, 0.42, 0.2), side, port, slowest)
            state = self.figure.text(
                left + 0.42, 0.905, "", size=11, color=INK, ha="right", va="center"
            )
            moving = self._moving(network, queue)
            self.halves.append(moving | {"flows": flows, "state": state})

    def _network(self, env: EcnEnv, box: tuple[float, float, float, float]) -> LineCollection:
        """Hosts, switches, and the ports between them, coloured by their queues."""
        net = env.sim.topology
        axis = self.figure.add_axes(box)
        places = node_places(net)
        height = [y for _, y in places.values()]
        axis.set(xlim=(-0.02, 1.02), ylim=(min(height) - 0.08, max(height) + 0.08))
        axis.set_axis_off()
        page = axis.transData.transform(port_lines(net).reshape(-1, 2)).reshape(-1, 2, 2)
        page = side_by_side(net, page, TRUNK_GAP[net.n_ports > 64])
        places_of = axis.transData.inverted().transform(page.reshape(-1, 2)).reshape(-1, 2, 2)
        lines = LineCollection(list(places_of), cmap=self.cmap, capstyle="butt")
        lines.set_clim(0.0, TOP_LEVEL)
        axis.add_collection(lines, autolim=False)
        host = np.array([name in net.hosts for name in places])
        nodes = np.array(list(places.values()))
        axis.scatter(nodes[host, 0], nodes[host, 1], s=24, color="#5a6672", zorder=3)
        axis.scatter(nodes[~host, 0], nodes[~host, 1], s=70, marker="s", color=INK, zorder=3)
        return lines

    def _moving(self, network: LineCollection, queue: Axes) -> dict[str, Any]:
        style: dict[str, Any] = {"linewidth": 1.4, "drawstyle": "steps-post"}
        return {
            "network": network,
            "queue": queue.plot([], [], color=INK, linewidth=1.0)[0],
            "kmin": queue.plot([], [], color=KMIN_COLOUR, **style)[0],
            "kmax": queue.plot([], [], color=KMAX_COLOUR, linestyle="--", **style)[0],
        }

    def draw(self, time_ms: float) -> np.ndarray:
        """The picture at a time, ms."""
        self.clock.set_text(f"{time_ms:.1f} ms")
        both = zip(self.sides, self.traces, self.returns, self.halves, strict=True)
        for side, trace, so_far, half in both:
            info = side.episode.info
            t = interval_at(side, time_ms)
            levels = level(*(np.asarray(info[name][t], np.float64) for name in _LEVEL))
            half["network"].set_array(levels)
            half["network"].set_linewidths(2.0 * (0.6 + levels))
            # Rounding must not leave out a tick that ends at this very time.
            ticks = np.searchsorted(trace.time_ms, time_ms + 1e-9)
            half["queue"].set_data(trace.time_ms[:ticks], trace.queue[:ticks] / KB)
            times = np.append(trace.interval_ms[: t + 1], time_ms)
            for name, values in (("kmin", trace.kmin), ("kmax", trace.kmax)):
                half[name].set_data(times, np.append(values[: t + 1], values[t]) / KB)
            half["flows"].show(time_ms)
            phase = phase_name(side, self.port, time_ms)
            total = f"return {so_far[t]:.2f}"
            half["state"].set_text(f"{phase}, {total}" if phase else total)
        self.canvas.draw()
        # A copy, since the next picture is drawn into the same memory.
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()


_LEVEL = ("queue", "kmin", "kmax")
