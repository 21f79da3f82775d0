"""The fluid beside packets: a table for the terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ecn_marl.render.tables import DASH, plain_table

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("policy", "J: packets", "fluid", "difference", "short mean", "short p99", "long")

NOTE = """\
The same episodes on both backends. Differences are the fluid's against packets, geometric means \
over episodes, of J with its 95 % interval."""


def rows(compared: Mapping[str, Any], label: Callable[[str], str]) -> list[list[str]]:
    """Cells of the table; `compared` is what `experiments.backends.agreement` returns."""
    return [
        [
            label(row["name"]),
            *(DASH if row[x] is None else f"{row[x]:.2f}" for x in ("packets", "fluid")),
            _difference(row["ratios"]["J"], interval=True),
            *(_difference(row["ratios"][x]) for x in ("short_mean", "short_p99", "long_geomean")),
        ]
        for row in compared["policies"]
    ]


def notes(compared: Mapping[str, Any]) -> list[str]:
    """What the table shows, and how alike the orders of three policies or more are."""
    if compared["tau"] is None:
        return [NOTE]
    count = len(compared["policies"])
    tau, r = f"{compared['tau']:.2f}", f"{compared['r']:.3f}"
    return [NOTE, f"Kendall's τ of J over {count} policies {tau}, r of log J {r}."]


def backend_table(compared: Mapping[str, Any], label: Callable[[str], str]) -> Table:
    """The table for a terminal."""
    table = plain_table("The fluid beside packets", COLUMNS[:1])
    table.caption = "\n".join(notes(compared))
    for name in COLUMNS[1:]:
        table.add_column(name, justify="right")
    for cells in rows(compared, label):
        table.add_row(*cells)
    return table


def _difference(ratio: list[float | None] | None, interval: bool = False) -> str:
    """A ratio as a difference in per cent."""
    if ratio is None or ratio[0] is None:
        return DASH
    value, (low, high) = ratio[0], ratio[1:]
    text = f"{100.0 * (value - 1.0):+.1f} %"
    if not interval or low is None or high is None:
        return text
    return f"{text} [{100.0 * (low - 1.0):+.1f}, {100.0 * (high - 1.0):+.1f}]"
