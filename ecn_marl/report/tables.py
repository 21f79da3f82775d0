"""Tables for people: the summary of a replay, the evaluation of policies, the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

DASH = "–"


def _table(title: str, **options: Any) -> Table:
    return Table(
        title=title,
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        **options,
    )


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands separated, a dash where there is none (`None` or NaN)."""
    if value is None or value != value:
        return DASH
    return f"{value:,.{digits}f}"


def kilobytes(value: float | None, digits: int = 1) -> str:
    """Bytes as KB (1000 B)."""
    return DASH if value is None else number(value / 1e3, digits)


def percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as per cent."""
    return DASH if value is None or value != value else f"{100 * value:.{digits}f}%"


def replay_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Tables of a replay: slowdown per size class, ports per class, bytes.

    Args:
        summary: what `sim.replay.Replay.summary` returns.
    """
    flows = summary["flows"]
    title = f"FCT slowdown: {flows['finished']:,} of {flows['total']:,} flows finished"
    if flows["deferred"]:
        wait = number(flows["deferred_mean_us"], 1)
        title += f"; {flows['deferred']:,} waited for a slot, {wait} µs each"
    slowdown = _table(title)
    slowdown.add_column("payload")
    for name in ("flows", "mean", "p50", "p95", "p99"):
        slowdown.add_column(name, justify="right")
    for label, row in summary["slowdown"].items():
        cells = [number(row[name]) for name in ("mean", "p50", "p95", "p99")]
        slowdown.add_row(label, f"{row['flows']:,}", *cells)

    ports = _table("Ports: queue in KB (mean, std, max of every substep; p99 of 10-µs samples)")
    ports.add_column("class")
    for name in ("ports", "mean", "std", "p99", "max", "utilisation", "marked packets", "paused"):
        ports.add_column(name, justify="right")
    for kind, row in summary["ports"].items():
        queue = [kilobytes(row["queue_bytes"][name]) for name in ("mean", "std", "p99", "max")]
        marks = number(row["marks"], 0)
        share = [percent(row["utilisation"]), marks, percent(row["paused"])]
        ports.add_row(kind, str(row["ports"]), *queue, *share)

    title = (
        f"Wire bytes ({summary['pauses']:,} pauses, {number(summary['drops'], 0)} packets dropped)"
    )
    balance = _table(title)
    for name in summary["bytes"]:
        balance.add_column(name, justify="right")
    balance.add_row(*[number(value, 0) for value in summary["bytes"].values()])
    return [slowdown, ports, balance]


def scenario_table(rows: list[dict[str, Any]]) -> Table:
    """Table of the registered scenarios; `rows` as `ecn-marl scenarios --json` prints them."""
    table = _table("Scenarios")
    for name in ("name", "topology", "hosts", "agents", "Gb/s", "senders", "Δt, µs", "steps"):
        table.add_column(name, justify="left" if name in ("name", "topology") else "right")
    for row in rows:
        rates = ", ".join(f"{rate:g}" for rate in row["port_gbps"])
        cells = (row["name"], row["topology"], str(row["hosts"]), str(row["agents"]), rates)
        table.add_row(*cells, row["transport"], f"{row['interval_us']:g}", str(row["max_steps"]))
    return table


def evaluation_table(
    result: Mapping[str, Any], label: Callable[[str], str], width: int = 100
) -> Table:
    """Table of evaluated policies, lowest J first and in bold, invalid ones last.

    Args:
        result: what `workflow.evaluate` returns.
        label: how to show a policy, given its name.
        width: characters there are; below 100 the columns move together.
    """
    table = _table(f"{_where(result)}: completion times")
    if width < 100:
        table.padding = (0, 0)
    rows = sorted(result["policies"], key=_by_objective)
    scored = any("score" in row for row in rows)
    table.add_column("policy", overflow="fold")
    columns = ["J, 95%CI", "short", "medium", "long", "reward", "queue, KB", "util."]
    for column in (["score", "gain"] if scored else []) + columns:
        table.add_column(column, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        objective = _between(row["J"])
        slowdown = row["slowdown"]
        table.add_row(
            _name(row, label),
            *([_value(row.get("score")), _percent_of(row.get("share"))] if scored else []),
            f"[bold]{objective}[/]" if i == 0 else objective,
            _pair(slowdown["short"], "mean"),
            _pair(slowdown["medium"], "mean"),
            _pair(slowdown["long"], "geomean"),
            number(row["reward"]["mean"], 4),
            kilobytes(row["queue_mean"]),
            percent(row["utilisation"]),
        )
    table.caption_justify = "left"
    table.caption = "\n".join(
        [_LEGEND, *([_SCORE_LEGEND] if scored else []), *_invalid(rows, label)]
    )
    return table


_LEGEND = """\
FCT slowdown mean/p99 (long: geometric mean/p99), lower is better; short ≤ 100 KB < medium ≤ 1 MB
< long. J = (short mean · p99)^¼ · (long)^½. ≥: unfinished flows count with their age."""

_SCORE_LEGEND = """\
Score: J over that of the best static setting in the same episodes. Gain: share of the oracle's
gain in log J that was taken."""


def flows_table(result: Mapping[str, Any], label: Callable[[str], str]) -> Table:
    """Table of what became of the flows of evaluated policies, totals over all episodes.

    Args:
        result: what `workflow.evaluate` returns.
        label: how to show a policy, given its name.
    """
    table = _table(f"{_where(result)}: flows")
    table.padding = (0, 0)
    table.add_column("policy", overflow="fold")
    names = ("offered", "started", "finished", "unfinished", "deferred", "waiting")
    for column in (*names, "dropped", "pauses"):
        table.add_column(f" {column}", justify="right", no_wrap=True)
    for row in sorted(result["policies"], key=_by_objective):
        counts = [f"{row['flows'][name]:,}" for name in names]
        table.add_row(_name(row, label), *counts, percent(row["dropped"]), f"{row['pauses']:,}")
    return table


def _where(result: Mapping[str, Any]) -> str:
    episodes, seed = result["episodes"], result["seed"]
    return f"{result['scenario']}, {episodes} episodes never trained on, seed {seed}"


def _by_objective(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    value = row["J"]["value"]
    return bool(row["invalid"]), value is None, value or 0.0


def _name(row: Mapping[str, Any], label: Callable[[str], str]) -> str:
    name = label(row["name"]) + (f", {row['seeds']} seeds" if row["seeds"] > 1 else "")
    mark = "INVALID " if row["invalid"] else ""
    return mark + escape(name.replace(" (", "\n("))


def _invalid(rows: list[dict[str, Any]], label: Callable[[str], str]) -> list[str]:
    return [
        escape(f"INVALID {label(row['name'])}: {'; '.join(row['invalid'])}.")
        for row in rows
        if row["invalid"]
    ]


def _between(found: Mapping[str, Any]) -> str:
    """A value with half the width of its interval."""
    text = number(found["value"])
    if found["low"] is None:
        return text
    return f"{text}±{number((found['high'] - found['low']) / 2)}"


def _pair(row: Mapping[str, Any], centre: str) -> str:
    mark = "≥" if row["lower_bound"] and row[centre] is not None else ""
    return f"{mark}{number(row[centre])}/{number(row['p99'], 1)}"


def _value(found: Mapping[str, Any] | None) -> str:
    return number(None if found is None else found["value"])


def _percent_of(found: Mapping[str, Any] | None) -> str:
    return percent(None if found is None else found["value"], 0)
