"""Tables and the figure of `ecn-marl bench adpg`: measured beside printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from ecn_marl.baselines.evaluation.statistics import positive_interval
from ecn_marl.render.plots import COLOURS, Page
from ecn_marl.render.rate_table import COLUMNS
from ecn_marl.render.tables import DASH

TITLES = {
    "many-to-one": "Many to one: utilisation %, fairness %, queue µs",
    "all-to-all": "All to all, by hosts: utilisation %, fairness %, queue µs",
    "long-short": "A long flow and short ones, by flows: recovery µs, drops %, long flow %",
}
"""Titles by kind of scenario."""

STEADY = ("utilisation", "fairness", "queue_us")
SHARES = ("utilisation", "fairness", "long_bandwidth")
"""Metrics of at most 1, where intervals end."""
LONG = ("recovery_us", "drop_rate", "long_bandwidth")

NEVER = "never"
"""A long flow that did not recover within the episode."""

LOSS = 5e-4
"""Share of dropped bytes above which tables without a column for it state it."""


def rate_bench_tables(result: Mapping[str, Any]) -> str:
    """Markdown tables, one per kind of scenario, with a row per scenario and policy.

    Args:
        result: what `experiments.rate_bench.rate_bench` returns.
    """
    seeds = result["protocol"]["seeds"]
    note = f", mean of {seeds} seeds [95 %, in logarithms]" if seeds > 1 else ", one seed"
    parts = []
    for kind, title in TITLES.items():
        scenarios = [
            scenario for scenario in result["scenarios"].values() if scenario["kind"] == kind
        ]
        if not scenarios:
            continue
        lines = [
            f"**{title}**{note}",
            "",
            "| size | policy | measured | paper |",
            "|---|---|---|---|",
        ]
        for scenario in sorted(scenarios, key=lambda scenario: scenario["size"]):
            for name, row in scenario["policies"].items():
                cells = f"{_measured(kind, row['metrics'])} | {_printed(kind, row['paper'])}"
                lines.append(f"| {scenario['size']} | `{name}` | {cells} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _measured(kind: str, metrics: Mapping[str, Any]) -> str:
    """Means of a cell's metrics, with intervals where there are several seeds."""
    names = LONG if kind == "long-short" else STEADY
    text = ", ".join(_value(name, metrics[name]) for name in names)
    dropped = float(np.mean(metrics["drop_rate"]))
    return (
        f"{text} ({100 * dropped:.1f} % dropped)" if names is STEADY and dropped >= LOSS else text
    )


def _value(name: str, values: list[float | None]) -> str:
    """Mean of a metric [95 %]; None (NaN in JSON) is a seed in which the event never occurred."""
    form = COLUMNS[name][2]
    numbers = np.asarray(values, np.float64)
    finite = numbers[~np.isnan(numbers)]
    if not finite.size:
        return NEVER
    text, low, high = (format(x, form) for x in _interval(name, finite))
    if len(finite) > 1 and not low == text == high:
        text += f" [{low}, {high}]"
    missing = len(numbers) - len(finite)
    return f"{text} ({missing} of {len(numbers)} {NEVER})" if missing else text


def _interval(name: str, values: np.ndarray) -> tuple[float, float, float]:
    """Mean of a metric over seeds and the ends of its interval, in the unit of the table."""
    mean, low, high = positive_interval(values)
    if name in SHARES:
        high = min(high, max(mean, 1.0))
    factor = COLUMNS[name][1]
    return factor * mean, factor * low, factor * high


def _printed(kind: str, paper: Mapping[str, float] | None) -> str:
    if paper is None:
        return DASH
    names = LONG if kind == "long-short" else STEADY
    return ", ".join(f"{COLUMNS[name][1] * paper[name]:.6g}" for name in names)


def rate_bench_figure(result: Mapping[str, Any]) -> bytes:
    """Metrics of many-to-one by number of flows, as PNG: lines are ours, crosses the paper's.

    Bars are 95 % intervals over seeds.

    Args:
        result: as in `rate_bench_tables`, with at least one many-to-one scenario.
    """
    scenarios = [
        scenario for scenario in result["scenarios"].values() if scenario["kind"] == "many-to-one"
    ]
    scenarios.sort(key=lambda scenario: scenario["size"])
    page = Page(1, (11.0, 3.8), columns=3)
    headings = ("utilisation, %", "fairness, %", "queue, µs")
    for axis, metric, heading in zip(page.axes, STEADY, headings, strict=True):
        for i, name in enumerate(scenarios[0]["policies"]):
            colour = COLOURS[i % len(COLOURS)]
            rows = [(scenario["size"], scenario["policies"][name]) for scenario in scenarios]
            seeds = [np.asarray(row["metrics"][metric]) for _, row in rows]
            mean, low, high = np.array([_interval(metric, values) for values in seeds]).T
            axis.errorbar(
                *([n for n, _ in rows], mean, np.nan_to_num([mean - low, high - mean])),
                fmt="o-",
                color=colour,
                label=name,
                markersize=4,
                capsize=2,
            )
            printed = [(n, row["paper"][metric]) for n, row in rows if row["paper"] is not None]
            xs, ys = [n for n, _ in printed], [COLUMNS[metric][1] * value for _, value in printed]
            axis.plot(xs, ys, "x", color=colour, markersize=7)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(LogLocator(2.0))
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("flows")
        axis.set_title(heading, loc="left", fontsize=10)
    page.axes[2].set_yscale("symlog", linthresh=1.0)  # a queue may be 0
    page.axes[2].set_ylim(bottom=0.0)
    page.axes[0].legend(frameon=False, fontsize=8)
    page.figure.suptitle("many to one: lines measured, crosses as the paper prints", fontsize=10)
    return page.png()
