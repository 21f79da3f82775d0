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
    left = ("name", "topology", "benchmark")
    for name in (*left, "hosts", "agents", "Gb/s", "senders", "Δt, µs", "steps"):
        shown: Any = "left" if name in left else "right"
        table.add_column(name, justify=shown, no_wrap=name == "name")
    for row in rows:
        rates = ", ".join(f"{rate:g}" for rate in row["port_gbps"])
        part = "superseded" if row["superseded"] else "yes" if row["benchmark"] else "no"
        cells = (row["name"], row["topology"], part, str(row["hosts"]), str(row["agents"]), rates)
        table.add_row(*cells, row["transport"], f"{row['interval_us']:g}", str(row["max_steps"]))
    return table


def evaluation_table(
    result: Mapping[str, Any], label: Callable[[str], str], width: int = 100
) -> Table:
    """Table of evaluated policies, best mean reward first, that reward in bold.

    Args:
        result: what `workflow.evaluate` returns.
        label: how to show a policy, given its name.
        width: characters there are; below 100 the columns move together.
    """
    episodes, seed = result["episodes"], result["seed"]
    table = _table(f"{result['scenario']}: {episodes} episodes never trained on, seed {seed}")
    if width < 100:
        table.padding = (0, 0)
    table.add_column("policy", overflow="fold")
    columns = ("reward, 95%CI", "mice", "medium", "eleph.", "queue, KB", "util.", "pauses")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    scaled = any("headroom" in row for row in result["policies"])
    if scaled:
        table.add_column("headroom", justify="right")
    ranked = sorted(result["policies"], key=lambda row: row["reward"]["mean"], reverse=True)
    for i, row in enumerate(ranked):
        reward = f"{row['reward']['mean']:.4f}"
        if (half := row["reward"]["ci95"]) is not None and half == half:
            reward += f"±{half:.4f}"
        classes = (row["slowdown"][name] for name in ("mice", "medium", "elephants"))
        slow = [f"{number(c['mean'])}/{number(c['p99'], 1)}" for c in classes]
        queue = f"{kilobytes(row['queue_mean'])}±{kilobytes(row['queue_std'])}"
        name = label(row["name"]) + (f", {row['seeds']} seeds" if "seeds" in row else "")
        table.add_row(
            escape(name.replace(" (", "\n(")),
            f"[bold]{reward}[/]" if i == 0 else reward,
            *slow,
            queue,
            percent(row["utilisation"]),
            f"{row['pauses']:,}",
            *([percent(row.get("headroom"))] if scaled else []),
        )
    table.caption_justify = "left"
    table.caption = (
        "FCT slowdown mean/p99: mice ≤ 100 KB < medium ≤ 1 MB < elephants.\n"
        "Queue: mean±std over ports and time."
    )
    if scaled:
        table.caption += "\nHeadroom: 0% is the best static setting, 100% the oracle."
    return table
