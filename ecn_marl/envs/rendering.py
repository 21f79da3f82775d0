"""Pictures of an episode: queues against their thresholds now, and over the last intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.topology import KB

SHOWN = 32
"""Ports drawn at most: the ones with the longest queues."""

_WINDOWS: dict[str, Any] = {}


def table(core: EcnEnv, queue: np.ndarray, ecn: Ecn) -> str:
    """A text table, one line per port: queue, Kmin, Kmax (KB) and Pmax."""
    lines = [f"{'agent':>9}  {'port':<18} {'queue':>9} {'kmin':>9} {'kmax':>9} {'pmax':>6}"]
    for i, name in enumerate(core.sim.topology.port_names):
        low, high = float(ecn.kmin[i]) / KB, float(ecn.kmax[i]) / KB
        lines.append(
            f"{core.agents[i]:>9}  {name:<18} {queue[i] / KB:9.1f} {low:9.1f} {high:9.1f} "
            f"{float(ecn.pmax[i]):6.2f}"
        )
    return "\n".join(lines)


def draw(core: EcnEnv, queue: np.ndarray, ecn: Ecn, past: list[np.ndarray]) -> np.ndarray:
    """A frame: queues of the ports with their thresholds, and their past.

    Args:
        core: the environment.
        queue: backlog now, bytes, `[A]`.
        ecn: thresholds in force.
        past: time-mean backlogs of the last intervals, bytes, each `[A]`.

    Returns:
        uint8 `[height, width, 3]`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kmin, kmax = np.asarray(ecn.kmin) / KB, np.asarray(ecn.kmax) / KB
    order = np.sort(np.argsort(-queue, kind="stable")[:SHOWN])
    names = [core.sim.topology.port_names[i] for i in order]
    y = np.arange(len(order))
    figure = Figure(figsize=(10, 5.2), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    now, then = figure.subplots(1, 2, width_ratios=(3, 2))
    level = np.clip(queue[order] / KB / np.maximum(kmax[order], 1e-3), 0, 1)
    shades = np.stack([0.15 + 0.75 * level, 0.65 - 0.45 * level, 0.45 - 0.25 * level], axis=1)
    now.barh(y, queue[order] / KB, color=shades, height=0.7)
    now.scatter(kmin[order], y, marker="|", s=90, color="black", label="Kmin", zorder=3)
    now.scatter(kmax[order], y, marker="|", s=90, color="tab:red", label="Kmax", zorder=3)
    now.set_xscale("symlog", linthresh=10.0)
    now.set_xlim(0, max(float(kmax.max()), float(queue.max()) / KB, 100.0) * 1.3)
    now.set_yticks(y, names, fontsize=7)
    now.invert_yaxis()
    now.set_xlabel("queue now, KB")
    now.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, frameon=False)
    if past:
        trace = np.stack(past) / KB
        ms = (np.arange(len(trace)) - len(trace) + 1) * core.interval_us / 1e3
        busiest = np.argsort(-trace.mean(0), kind="stable")[:4]
        for i in busiest:
            then.plot(ms, trace[:, i], label=core.sim.topology.port_names[i], linewidth=1.2)
        then.legend(loc="upper left", fontsize=8)
    then.set_xlabel("time, ms")
    then.set_ylabel("mean queue per interval, KB")
    then.set_ylim(bottom=0)
    then.grid(alpha=0.3)
    figure.suptitle(f"{core.name}: queues and thresholds of the ports")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def show(frame: np.ndarray, title: str) -> None:
    """Show a frame in a window; without a display matplotlib's own backend decides what happens."""
    import matplotlib.pyplot as plt

    if title not in _WINDOWS or not plt.fignum_exists(_WINDOWS[title][0].number):
        figure, axes = plt.subplots(num=title, figsize=(10, 5.2))
        axes.axis("off")
        _WINDOWS[title] = (figure, axes.imshow(frame))
        plt.show(block=False)
    figure, image = _WINDOWS[title]
    image.set_data(frame)
    figure.canvas.draw_idle()
    figure.canvas.flush_events()


def hide(title: str) -> None:
    """Close the window of `show`."""
    if title in _WINDOWS:
        import matplotlib.pyplot as plt

        plt.close(_WINDOWS.pop(title)[0])
