"""The table of `ecn-marl eval` where flows are the agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from ecn_marl._flags import FLAGGED, flag
from ecn_marl._flags import names as names_of
from ecn_marl.render.tables import plain_table

COLUMNS = {
    "utilisation": ("utilisation %", 100.0, ".1f"),
    "fairness": ("fairness %", 100.0, ".1f"),
    "queue_us": ("queue us", 1.0, ".1f"),
    "drop_rate": ("drops %", 100.0, ".2f"),
    "recovery_us": ("recovery us", 1.0, ".0f"),
    "long_bandwidth": ("long flow %", 100.0, ".1f"),
}
"""Heading, factor and format of each metric."""


def rate_table(result: Mapping[str, Any]) -> Table:
    """Means over episodes; their standard deviation where there are several.

    Args:
        result: `summary` of `experiments.rate_evaluation.RateResult`.
    """
    episodes = f"{result['episodes']} episode{'s' * (result['episodes'] > 1)}"
    names = [name for name in COLUMNS if name in next(iter(result["policies"].values()))]
    heads = [COLUMNS[name][0] for name in names]
    table = plain_table(f"{result['scenario']}: {episodes}", ["policy"], heads)
    for policy, metrics in result["policies"].items():
        table.add_row(policy, *(_cell(name, metrics[name]) for name in names))
    flagged = [
        f"FLAGGED {policy}: {flag(name).event}; cure: {flag(name).cure}."
        for policy, metrics in result["policies"].items()
        for name in names_of(np.asarray(metrics[FLAGGED]))
    ]
    if flagged:
        table.caption = escape("\n".join(flagged))
    return table


def _cell(name: str, values: list[float]) -> str:
    _, factor, form = COLUMNS[name]
    scaled = factor * np.asarray(values)
    mean = format(float(scaled.mean()), form)
    return mean if len(values) == 1 else f"{mean} ± {format(float(scaled.std(ddof=1)), form)}"
