"""Static settings of a scenario, and policies beside them, drawn as one part of J over another."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import ScalarFormatter

from ecn_marl.render.plots import COLOURS, INK, Page
from ecn_marl.render.tables import Table, number, percent, plain_table

SHOWN = 12
"""Settings in the table."""


def spread_plot(result: Mapping[str, Any]) -> bytes:
    """A point for each static setting, as PNG: the second part of J over the first.

    Of an objective with one part, it is drawn over Kmax, without the policies.

    Args:
        result: what `spread.spread` returned.
    """
    rows, parts = result["settings"], result["parts"]
    depth = np.array([row["setting"][1] for row in rows])
    y = np.array([row[parts[min(1, len(parts) - 1)]] for row in rows])
    x = np.array([row[parts[0]] for row in rows]) if len(parts) > 1 else depth
    page = Page(1, (7.0, 4.8))
    axis = page.axes[0]
    points = axis.scatter(x, y, c=depth, norm=LogNorm(), cmap="viridis", s=26, zorder=3)
    bar = page.figure.colorbar(points, ax=axis, label="Kmax, KB at 25 Gb/s")
    bar.ax.yaxis.set_major_formatter(ScalarFormatter())
    label = f"best static setting, J {rows[0]['J']:.2f}"
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "label": label}
    axis.scatter(x[0], y[0], s=120, zorder=4, **ring)
    if len(parts) > 1:
        marks = zip(result["policies"], cycle(COLOURS[1:]), cycle("s^DvP*Xp<>"), strict=False)
        for row, colour, mark in marks:
            place = {
                "x": row[parts[0]],
                "y": row[parts[1]],
                "label": f"{row['label']}, J {row['J']:.2f}",
            }
            axis.scatter(s=80, color=colour, marker=mark, edgecolors="white", zorder=5, **place)
        axis.set_xlabel(f"{parts[0]}, relative to alone")
    else:
        axis.set_xscale("log")
        axis.set_xlabel("Kmax, KB at 25 Gb/s")
    axis.set_ylabel(f"{parts[min(1, len(parts) - 1)]}, relative to alone")
    axis.set_title(f"{result['scenario']}: {len(rows)} static settings", loc="left", color=INK)
    axis.legend(frameon=False, fontsize=9, loc="upper right", labelcolor=INK)
    return page.png()


def spread_table(result: Mapping[str, Any]) -> Table:
    """The policies, the best settings, and how far the others are.

    Args:
        result: what `spread.spread` returned.
    """
    rows = result["settings"]
    title = f"{result['scenario']}: {len(rows)} static settings, {result['episodes']} episodes"
    figures = ("J", *result["parts"])
    table = plain_table(title, ["Kmin, Kmax in KB at 25 Gb/s, Pmax"], figures)
    shown = [(row["label"], row) for row in result["policies"]]
    for row in (*rows[:SHOWN], rows[-1]):
        shown.append((f"({', '.join(f'{x:g}' for x in row['setting'])})", row))
    for label, row in shown:
        table.add_row(label, *(number(row[name]) for name in figures))
    table.caption = (
        f"The {SHOWN} best settings and the worst one, whose J is {result['worst']:.2f} times the "
        f"lowest.\n{percent(result['near'], 0)} of the settings are within 3 % of the lowest J.\n"
        f"With every part as under its own best setting J would be {result['apart']:.2f} times the "
        "lowest."
    )
    return table
