"""What the actions of a policy depend on, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ecn_marl.render.plots import INK, Page
from ecn_marl.render.tables import Table, plain_table

MEANING = {
    "OAR": "the newest\nobservation",
    "HAR": "earlier ones,\ngiven that",
    "PIF": "what another\nport saw",
    "AA": "its action\nnow",
    "DAI": "its past",
}
"""What each probe relates a port's actions to."""


def audit_table(result: Mapping[str, Any]) -> Table:
    """Every probe of every seed, with that of shuffled actions.

    Args:
        result: what `audit.audit` returned.
    """
    title = f"{result['policy']} in {result['scenario']}, {result['episodes']} episodes"
    table = plain_table(title, ["seed"], [f"{name} (shuffled)" for name in MEANING])
    for row in result["seeds"]:
        cells = (
            f"{row[x]['value']:.2f} ({row[x]['null']:.2f}){'*' if row[x]['above'] else ' '}"
            for x in MEANING
        )
        table.add_row(str(row["seed"]), *cells)
    lines = [
        f"Label: {result['label']}. Ports: {', '.join(result['ports'])}.",
        "Share of the entropy of a port's actions that is known from OAR: the newest observation,",
        "HAR: earlier ones, given that; PIF: what another port saw, AA: its action now, DAI: its",
        "past. *: above that of shuffled actions.",
    ]
    if result["gap"] is not None:
        gap = result["gap"]
        lines.append(
            f"Memory changes J by {100.0 * np.expm1(0.0 - gap['delta_mean']):+.1f} % over "
            f"{gap['n_pairs']} pairs of seeds (p = {gap['p_value']:.3f}, one-sided Wilcoxon)."
        )
    table.caption = "\n".join(lines)
    return table


def audit_plot(result: Mapping[str, Any]) -> bytes:
    """A point for every probe and seed, and a bar for shuffled actions, as PNG.

    Args:
        result: what `audit.audit` returned.
    """
    page = Page(1, (7.0, 4.2))
    axis, rows = page.axes[0], result["seeds"]
    for x, name in enumerate(MEANING):
        values = [row[name]["value"] for row in rows]
        null = float(np.mean([row[name]["null"] for row in rows]))
        at = x + 0.3 * (np.arange(len(rows)) - (len(rows) - 1) / 2) / max(len(rows), 2)
        axis.scatter(at, values, s=30, color="#0072B2", zorder=3, label="" if x else "seeds")
        axis.hlines(null, x - 0.3, x + 0.3, color=INK, label="" if x else "shuffled")
    axis.set_xticks(range(len(MEANING)), [f"{n}\n{text}" for n, text in MEANING.items()])
    axis.set_ylabel("share of the entropy of actions")
    axis.set_ylim(bottom=0.0)
    axis.set_title(f"{result['scenario']}: {result['label']}", loc="left", color=INK)
    axis.legend(frameon=False)
    return page.png()
