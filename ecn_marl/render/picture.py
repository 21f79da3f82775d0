"""A picture of the network that is drawn many times a second.

Fixed parts (axes, labels) are drawn once and kept as pixels. A frame restores these pixels and
draws only the moving parts on top (matplotlib's blitting, without a window).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.render.layout import (
    STOPS,
    TOP_LEVEL,
    axis_top,
    level,
    node_places,
    port_lines,
    side_by_side,
)
from ecn_marl.render.plots import style_axis
from ecn_marl.sim.network.topology import KB

SHOWN = 32
"""Maximum number of ports with a row of their own: those with the longest queues."""

WINDOW = 200
"""Intervals on the time axes at most; an episode that is shorter fills them."""

TRACED = 4
"""Number of ports whose past is drawn."""

MAX_BACKGROUNDS = 24
"""Backgrounds kept, one for each pair of axis limits; about 3 MB each."""

SIZE_IN, DPI = (12.0, 7.0), 90

HOST_POINTS = {False: 6.3, True: 3.5}
"""Diameter of a host, points, by whether the network is large."""

TRUNK_GAP = {False: 6.0, True: 1.6}
"""Gap between the two directions of a link between switches, pixels, likewise."""

SQUARE = 7.0
"""Side of a switch in large networks, points."""

INK, FAINT, BAND = "#2b2b2b", "#d9d9d9", "#dcdcdc"
KMIN_COLOUR, KMAX_COLOUR = "#1f5f99", "#b03a00"
TRACES = ("#0072b2", "#d55e00", "#009e73", "#7a4f9e")


class Scene(NamedTuple):
    """The contents of a frame; bytes, `[P]` each unless noted.

    Attributes:
        queue: backlogs now.
        kmin: queue at which marking starts.
        kmax: queue at which every packet is marked.
        marked: share of the bytes sent in the last interval that left marked, in [0, 1].
        queues: mean backlogs of the last intervals, oldest first, `[T, P]`.
        utilisation: utilisation in the last intervals, in [0, 1], `[T, P]`.
        steps: intervals since the episode began.
    """

    queue: np.ndarray
    kmin: np.ndarray
    kmax: np.ndarray
    marked: np.ndarray
    queues: np.ndarray
    utilisation: np.ndarray
    steps: int


def scene(
    queue: np.ndarray,
    kmin: np.ndarray,
    kmax: np.ndarray,
    past: Sequence[Mapping[str, Any]],
    steps: int,
) -> Scene:
    """A scene from backlogs, thresholds and infos of the last intervals.

    Args:
        queue: backlogs now, bytes, `[P]`, or `[P C]` with several traffic classes.
        kmin: thresholds in force, bytes, `[P]`.
        kmax: the same.
        past: infos of `EcnEnv.step` of the last intervals, oldest first.
        steps: intervals since the episode began.
    """
    n = len(kmin)
    recent = past[-WINDOW:]

    def rows(name: str) -> np.ndarray:
        return np.stack([row[name] for row in recent]) if recent else np.zeros((0, n))

    marked = np.zeros(n)
    if recent:
        last = recent[-1]
        marked = np.asarray(last["marked_bytes"]) / np.maximum(last["tx_bytes"], 1.0)
    return Scene(
        queue=np.asarray(queue, np.float64).reshape(n, -1).sum(1),
        kmin=np.asarray(kmin, np.float64),
        kmax=np.asarray(kmax, np.float64),
        marked=np.clip(marked, 0.0, 1.0),
        queues=rows("queue_mean"),
        utilisation=rows("utilisation"),
        steps=steps,
    )


def plain_axes(figure: Figure, box: tuple[float, float, float, float], title: str) -> Axes:
    """Axes at a place of a page (left, bottom, width, height; shares), in the common style."""
    axis = figure.add_axes(box)
    style_axis(axis, ink=INK, grid=FAINT)
    axis.set_title(title, fontsize=10, color=INK, loc="left")
    return axis


def queue_colours() -> LinearSegmentedColormap:
    """Colours of queues by `level`, from 0 to `TOP_LEVEL`."""
    stops = [(at / TOP_LEVEL, colour) for at, colour in STOPS]
    return LinearSegmentedColormap.from_list("queue", stops, N=500)


class Painter:
    """Draws the scenes of one environment; a frame depends on its scene alone."""

    def __init__(self, core: EcnEnv) -> None:
        """Lay out the page."""
        net = core.sim.topology
        self.names = np.array(net.port_names)
        self.interval_ms = core.interval_us / 1e3
        self.figure = Figure(figsize=SIZE_IN, dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self.moving: list[tuple[Axes | Figure, Artist]] = []
        self.backgrounds: dict[tuple[float, float], Any] = {}
        self.lock = Lock()
        self.order = np.zeros(0, int)
        self.rows = min(SHOWN, net.n_ports)
        self.cmap = queue_colours()
        self.figure.text(
            0.015, 0.955, f"{core.name}: queues, ECN thresholds, marks", size=14, color=INK
        )
        self.clock = self._text(self.figure, 0.985, 0.955, ha="right", size=12)
        self._network(core)
        self._queues()
        self._traces(min(WINDOW, core.horizon))

    def _add(self, axis: Axes, artist: Any) -> Any:
        """Register an artist that changes from frame to frame."""
        # Any, as matplotlib's types lack some methods of collections.
        artist.set_animated(True)  # so that `canvas.draw` leaves it out of the background
        if isinstance(artist, LineCollection):
            axis.add_collection(artist, autolim=False)
        elif isinstance(artist, Line2D):
            axis.add_line(artist)
        self.moving.append((axis, artist))
        return artist

    def _text(self, parent: Axes | Figure, x: float, y: float, **style: Any) -> Text:
        text = parent.text(x, y, "", color=style.pop("color", INK), animated=True, **style)
        self.moving.append((parent, text))
        return text

    def _network(self, core: EcnEnv) -> None:
        """Upper left: hosts, switches, and the ports between them."""
        net = core.sim.topology
        axis = self.figure.add_axes((0.01, 0.43, 0.37, 0.50))
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.04, 1.04))
        axis.set_axis_off()
        small = net.n_ports > 64
        lines = self._lines(axis, core, self._nodes(axis, core, small), small)
        self.width = 1.2 if small else 3.0
        self.lines = self._add(axis, LineCollection(list(lines), cmap=self.cmap, capstyle="butt"))
        self.lines.set_clim(0.0, TOP_LEVEL)
        spots = lines[:, 0] + 0.72 * (lines[:, 1] - lines[:, 0])
        self.marks = axis.scatter(
            spots[:, 0], spots[:, 1], s=0, marker="D", color=INK, edgecolors="white", linewidths=0.6
        )
        self._add(axis, self.marks)
        self._key()

    def _nodes(self, axis: Axes, core: EcnEnv, small: bool) -> dict[str, np.ndarray]:
        """Draw hosts and switches; half the width and height of a switch's box, pixels."""
        net = core.sim.topology
        places = node_places(net)
        nodes = np.array(list(places.values()))
        host = np.array([name in net.hosts for name in places])
        size = HOST_POINTS[small] ** 2
        axis.scatter(nodes[host, 0], nodes[host, 1], s=size, color="#5a6672")
        if small:
            axis.scatter(nodes[~host, 0], nodes[~host, 1], s=SQUARE**2, marker="s", color=INK)
            return dict.fromkeys(net.switches, np.full(2, SQUARE / 2 * DPI / 72))
        around = net.n_switches == 1
        pad = 0.35  # relative to the font size
        box = {"boxstyle": f"round,pad={pad}", "facecolor": INK, "edgecolor": "none"}
        boxes = {}
        for name, (x, y) in places.items():
            style: dict[str, Any] = {"ha": "center", "va": "center", "size": 8}
            if name in net.hosts:
                offset = 0.055 if around and y >= 0.5 else -0.055
                axis.text(x, y + offset, name.removeprefix("host"), color=INK, **style)
            else:
                text = axis.text(x, y, name, color="white", bbox=box, **style)
                extent = text.get_window_extent(self.canvas.get_renderer())
                boxes[name] = np.array(extent.size) / 2 + pad * style["size"] * DPI / 72
        return boxes

    @staticmethod
    def _lines(
        axis: Axes, core: EcnEnv, boxes: Mapping[str, np.ndarray], small: bool
    ) -> np.ndarray:
        """Line of every port, between the symbols of its switch and its peer, `[P, 2, 2]`."""
        net = core.sim.topology
        page = axis.transData.transform(port_lines(net).reshape(-1, 2)).reshape(-1, 2, 2)
        direction = page[:, 1] - page[:, 0]
        radius = HOST_POINTS[small] / 2 * DPI / 72
        ends = []
        for port, along in zip(net.ports, np.abs(direction), strict=True):
            host_share = radius / float(np.hypot(*along))
            shares = [
                # To the side of the box that the line meets first; `along` is 0 on one axis if it
                # is vertical or level.
                float((boxes[node] / np.maximum(along, 1e-9)).min())
                if node in boxes
                else host_share
                for node in (port.switch, port.peer)
            ]
            ends.append([min(share, 0.45) for share in shares])  # a part of every line stays
        end_shares = np.array(ends)
        page = np.stack(
            [
                page[:, 0] + end_shares[:, :1] * direction,
                page[:, 1] - end_shares[:, 1:] * direction,
            ],
            1,
        )
        page = side_by_side(net, page, TRUNK_GAP[small])
        return axis.transData.inverted().transform(page.reshape(-1, 2)).reshape(-1, 2, 2)

    def _key(self) -> None:
        """Below the network: the key of its colours and diamonds."""
        axis = self.figure.add_axes((0.04, 0.385, 0.22, 0.02))
        axis.imshow(
            np.linspace(0, TOP_LEVEL, 500)[None],
            aspect="auto",
            cmap=self.cmap,
            extent=(0, TOP_LEVEL, 0, 1),
        )
        axis.set_xticks([0, 1, 2], ["empty", "Kmin", "Kmax"], fontsize=9, color=INK)
        axis.set_yticks([])
        axis.tick_params(length=2)
        axis.spines[:].set_visible(False)
        self.figure.text(0.04, 0.412, "queue of a port", size=9, color=INK)
        note = self.figure.add_axes((0.275, 0.36, 0.11, 0.06))
        note.set_axis_off()
        note.set(xlim=(0, 1), ylim=(0, 1))
        note.scatter([0.08], [0.5], marker="D", s=50, color=INK)
        note.text(0.18, 0.5, "share marked", va="center", size=9, color=INK)

    def _queues(self) -> None:
        """Upper right: a row per port, with its queue, thresholds and marks."""
        axis = plain_axes(self.figure, (0.51, 0.43, 0.31, 0.46), "queue now, KB")
        axis.set_ylim(self.rows - 0.4, -0.6)
        axis.set_yticks([])
        axis.set_xscale("symlog", linthresh=10.0, linscale=0.6)
        axis.grid(False, axis="y")
        thick = min(11.0, 250.0 / self.rows)
        self.band = self._add(axis, LineCollection([], linewidths=thick, colors=BAND))
        self.bars = self._add(axis, LineCollection([], linewidths=0.62 * thick, cmap=self.cmap))
        self.bars.set_clim(0.0, TOP_LEVEL)
        for collection in (self.band, self.bars):
            collection.set_capstyle("butt")
        tick: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": thick + 1}
        self.low = self._add(axis, Line2D([], [], color=KMIN_COLOUR, mew=1.6, **tick))
        self.high = self._add(axis, Line2D([], [], color=KMAX_COLOUR, mew=2.6, **tick))
        handles = [
            Line2D([], [], color=KMIN_COLOUR, mew=1.6, label="Kmin", **tick | {"markersize": 10}),
            Patch(color=BAND, label="marking rises"),
            Line2D([], [], color=KMAX_COLOUR, mew=2.6, label="Kmax", **tick | {"markersize": 10}),
        ]
        axis.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1.03, 0.985),
            ncols=3,
            fontsize=9,
            frameon=False,
            columnspacing=1.2,
            handlelength=1.2,
            handletextpad=0.4,
            labelcolor=INK,
        )
        self.row_axis = axis
        size = 8.5 if self.rows <= 18 else 6.5
        style: dict[str, Any] = {
            "ha": "right",
            "va": "center",
            "transform": axis.get_yaxis_transform(),
        }
        self.name_images = None
        if self.rows == len(self.names):  # every port has a fixed row
            for i, name in enumerate(self.names):
                axis.text(-0.02, i, name, color=INK, size=size, **style)
        else:
            self.name_images = _NameImages(size)
            spots = [axis.get_yaxis_transform().transform((-0.02, i)) for i in range(self.rows)]
            self.spots = [(round(x), round(self.figure.bbox.height - y)) for x, y in spots]
        share = plain_axes(self.figure, (0.855, 0.43, 0.125, 0.46), "bytes marked, %")
        share.set(ylim=(self.rows - 0.4, -0.6), xlim=(0, 100), yticks=[], xticks=[0, 50, 100])
        share.grid(False, axis="y")
        self.shares = self._add(share, LineCollection([], linewidths=0.62 * thick, colors=INK))
        self.shares.set_capstyle("butt")

    def _traces(self, intervals: int) -> None:
        """Below: the past of the ports that had the longest queues, so many intervals of it."""
        queue = plain_axes(self.figure, (0.06, 0.075, 0.38, 0.2), "mean queue per interval, KB")
        use = plain_axes(self.figure, (0.51, 0.075, 0.31, 0.2), "utilisation, %")
        for axis in (queue, use):
            axis.set_xlim(-intervals * self.interval_ms, 0)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set_xlabel("ms before now", fontsize=9, color=INK, labelpad=1)
        use.set_ylim(0, 105)
        self.trace_axis = queue
        width: dict[str, Any] = {"linewidth": 1.5, "solid_joinstyle": "round"}
        self.past = [self._add(queue, Line2D([], [], color=c, **width)) for c in TRACES]
        self.used = [self._add(use, Line2D([], [], color=c, **width)) for c in TRACES]
        self.figure.text(0.855, 0.255, "ports drawn", size=10, color=INK)
        self.captions = [
            self._text(self.figure, 0.855, 0.215 - 0.037 * i, size=9.5, color=c, weight="bold")
            for i, c in enumerate(TRACES)
        ]

    def draw(self, scene: Scene) -> UInt8[np.ndarray, "height width 3"]:
        """A frame; a lock lets threads draw one at a time, since they share the canvas."""
        with self.lock:
            return self._draw(scene)

    def _draw(self, scene: Scene) -> np.ndarray:
        kb = scene.queue / KB, scene.kmin / KB, scene.kmax / KB
        trace = scene.queues / KB
        # Stable sorts keep ports with equal queues in place from frame to frame.
        traced = np.sort(np.argsort(-trace.sum(0), kind="stable")[:TRACED])
        # Round ends of axes, since each pair of them needs a background of its own.
        widest = axis_top(1.1 * max(float(x.max(initial=0.0)) for x in kb), (1,))
        tallest = axis_top(1.05 * float(trace[:, traced].max(initial=0.0)))
        self._restore(widest, tallest)
        levels = level(scene.queue, scene.kmin, scene.kmax)
        self.clock.set_text(f"{scene.steps * self.interval_ms:.1f} ms, interval {scene.steps}")
        self.lines.set_array(levels)
        self.lines.set_linewidths(self.width * (0.6 + levels))
        self.marks.set_sizes(np.where(scene.marked > 1e-3, 8.0 + 90.0 * scene.marked, 0.0))
        order = self.order = np.sort(np.argsort(-scene.queue, kind="stable")[: self.rows])
        self._fill_rows(order, kb, scene.marked, levels)
        ms = (np.arange(len(trace)) - len(trace) + 1) * self.interval_ms
        shown = traced[: len(traced) if len(trace) else 0]
        for i, (queue_line, use_line, text) in enumerate(
            zip(self.past, self.used, self.captions, strict=True)
        ):
            if i < len(shown):
                queue_line.set_data(ms, trace[:, shown[i]])
                use_line.set_data(ms, 100.0 * scene.utilisation[:, shown[i]])
            else:
                queue_line.set_data([], [])
                use_line.set_data([], [])
            text.set_text(str(self.names[shown[i]]) if i < len(shown) else "")
        for parent, artist in self.moving:
            parent.draw_artist(artist)
        # A copy, since the next frame is drawn into the same memory.
        frame = np.asarray(self.canvas.buffer_rgba())[..., :3].copy()
        if self.name_images is not None:
            for (right, middle), name in zip(self.spots, self.names[order], strict=True):
                self.name_images.put(frame, right, middle, str(name))
        return frame

    def _fill_rows(
        self, order: np.ndarray, kb: Iterable[np.ndarray], marked: np.ndarray, levels: np.ndarray
    ) -> None:
        """Fill the rows with the chosen ports."""
        queue, kmin, kmax = (values[order] for values in kb)
        y = np.arange(len(order), dtype=float)
        zero = np.zeros(len(order))
        self.band.set_segments(_across(kmin, kmax, y))
        self.bars.set_segments(_across(zero, queue, y))
        self.bars.set_array(levels[order])
        self.low.set_data(kmin, y)
        self.high.set_data(kmax, y)
        self.shares.set_segments(_across(zero, 100.0 * marked[order], y))

    def _restore(self, widest: float, tallest: float) -> None:
        """Restore the background of axes that end at these values, KB."""
        self.row_axis.set_xlim(0, widest)
        self.trace_axis.set_ylim(0, tallest)
        if (widest, tallest) not in self.backgrounds:
            ticks = [0.0, 10.0, *10.0 ** np.arange(2, 9)]
            shown = [t for t in ticks if t <= widest]
            self.row_axis.set_xticks(shown, [f"{t:,.0f}" for t in shown])
            self.row_axis.set_xticks([], minor=True)
            self.canvas.draw()
            if len(self.backgrounds) >= MAX_BACKGROUNDS:
                self.backgrounds.clear()
            self.backgrounds[widest, tallest] = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.backgrounds[widest, tallest])


class _NameImages:
    """Names as pixels. Each is drawn once, because drawing text takes a millisecond."""

    WIDTH, HEIGHT = 180, 18
    """Maximum size of a name, pixels."""

    def __init__(self, size: float) -> None:
        inches = self.WIDTH / DPI, self.HEIGHT / DPI
        figure = Figure(figsize=inches, dpi=DPI, facecolor="white")
        self.canvas = FigureCanvasAgg(figure)
        # Rows may lie between pixels. At this offset letters are sharp and, on average, centred.
        middle = 0.5 + 0.4 / self.HEIGHT
        self.text = figure.text(1.0, middle, "", color=INK, size=size, ha="right", va="center")
        self.images: dict[str, np.ndarray] = {}

    def put(self, frame: np.ndarray, right: int, middle: int, name: str) -> None:
        """Write a name that ends at a column and is centred on a row of a frame."""
        if name not in self.images:
            self.text.set_text(name)
            self.canvas.draw()
            pixels = np.asarray(self.canvas.buffer_rgba())[..., :3]
            first = int(np.argmax((pixels < 255).any((0, 2))))
            self.images[name] = pixels[:, first:].copy()
        image = self.images[name]
        top = middle - self.HEIGHT // 2
        area = frame[top : top + self.HEIGHT, right - image.shape[1] : right]
        # Images are higher than rows and overlap: the darker pixel stays.
        np.minimum(area, image, out=area)


def _across(start: np.ndarray, end: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Horizontal lines, `[n, 2, (x, y)]`."""
    return np.stack([np.stack([start, y], 1), np.stack([end, y], 1)], 1)
