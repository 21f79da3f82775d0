"""The table of `ecn-marl bench`, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ecn_marl.report.tables import DASH

COLUMNS = (
    "scenario",
    "policy",
    "reward",
    "over static:best (paired)",
    "of the headroom, IQM",
    "mice mean / p99",
    "medium",
    "elephants",
    "inferences/s",
    "FLOPs, µs per decision",
    "kB/s exchanged",
    "training",
)

NOTE = """\
Reward: mean ± half of the 95 % interval, over {episodes} episodes (learners: and {seeds} seeds). \
Over static:best: the paired difference in the same episodes, ± likewise. Of the headroom: 0 is \
static:best, 1 the oracle; interquartile mean over seeds [95 % stratified bootstrap]. Slowdown of \
flow completion times by size, mean / p99. Inferences per second of network time, all ports \
together; FLOPs and time per port and interval. Training: wall time of all seeds together.
"""


def bench_table(result: Mapping[str, Any], title: Callable[[str], str]) -> str:
    """The results as a Markdown table with a note below.

    Args:
        result: what `bench.bench` returns.
        title: how a policy is shown, by its name.
    """
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    for scenario, found in result["scenarios"].items():
        for row in found["policies"]:
            lines.append("| " + " | ".join((f"`{scenario}`", *row_cells(row, title))) + " |")
    for name, found in result.get("overall", {}).items():
        cells = ["all", title(name), *[DASH] * 2, _share(found), *[DASH] * 7]
        lines.append("| " + " | ".join(cells) + " |")
    protocol = result["protocol"]
    note = NOTE.format(episodes=protocol["episodes"], seeds=protocol["seeds"])
    return "\n".join([*lines, "", note])


def row_cells(row: Mapping[str, Any], title: Callable[[str], str]) -> list[str]:
    """A policy's cells, in the order of `COLUMNS` without the scenario."""
    reward, gain = row["reward"], row["over_best"]
    name = title(row["name"])
    if len(row.get("settings", ())) == 1 and isinstance(row["settings"], list):
        name += " ({:g},{:g},{:g})".format(*row["settings"][0])
    itself = row["name"] == "static:best"
    return [
        name,
        f"{reward['mean']:.4f} ± {_digits(reward['ci95'])}",
        DASH if itself else f"{gain['mean']:+.4f} ± {_digits(gain['ci95'])}",
        _share(row["headroom"]) if "headroom" in row else DASH,
        *[_slowdown(row["slowdown"][size]) for size in ("mice", "medium", "elephants")],
        *_costs(row),
    ]


def _digits(half: float | None) -> str:
    return DASH if half is None else f"{half:.4f}"


def _share(found: Mapping[str, Any]) -> str:
    middle = found["iqm"]
    if len(found["scores"]) == 1:
        return f"{middle['value']:.2f}"
    return f"{middle['value']:.2f} [{middle['low']:.2f}, {middle['high']:.2f}]"


def _slowdown(found: Mapping[str, Any]) -> str:
    if found["mean"] is None:
        return DASH
    tail = DASH if found["p99"] is None else f"{found['p99']:.1f}"
    return f"{found['mean']:.2f} / {tail}"


def _costs(row: Mapping[str, Any]) -> list[str]:
    """Inferences, operations and time, bytes exchanged, training."""
    costs = row.get("costs")
    if costs is None:
        return ["0", DASH, "0", DASH]
    each = f"{costs['flops_per_decision']:,.0f}, {costs['us_per_decision']:.1f}"
    steps = f"{row['training_seconds']:,.0f} s, {row['seeds']} x {row['steps'] / 1e3:,.0f} k steps"
    moved = row["exchanged_bytes_per_second"] / 1e3
    return [f"{costs['inferences_per_second']:,.0f}", each, f"{moved:,.0f}", steps]
