"""The table of all lines, and the same as JSON."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Column, Table

from ecn_marl.render.tables import DASH, plain_table
from ecn_marl.validation.lines import BASES, Line
from ecn_marl.validation.pool import Finished

SCHEMA = 1
"""Version of the JSON report."""

COLOURS = {"pass": "green", "FAIL": "bold red", "reported": "dim"}


def figure(value: float) -> str:
    """A number with four significant digits, a dash for NaN."""
    if math.isnan(value):
        return DASH
    digits = 3 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, min(digits, 3))}f}"


def error_text(line: Line) -> str:
    """The error: per cent of the reference, or percentage points for shares."""
    if math.isnan(line.error):
        return DASH
    if line.unit == "%":
        return f"{line.error:+.2f} pt"
    relative = line.relative_error
    return f"{line.error:+.3g}" if math.isnan(relative) else f"{100 * relative:+.1f}%"


def tolerance_text(line: Line) -> str:
    """The tolerance: the relative or the absolute part, whichever is larger for this reference."""
    tolerance = line.tolerance
    if tolerance is None:
        return DASH
    if line.unit == "%":
        return f"{line.allowed:g} pt"
    if tolerance.absolute > tolerance.relative * abs(line.reference):
        return f"{tolerance.absolute:g} {line.unit}".rstrip()
    return f"{100 * tolerance.relative:g}%"


def validation_table(lines: list[Line]) -> Table:
    """All lines, one section per group.

    Args:
        lines: lines in the order of the table.
    """
    table = plain_table(
        "Simulator against theory and packet-level runs",
        [Column("quantity", overflow="fold")],
        ["reference", "ours", "error", "tol."],
        padding=(0, 1, 0, 0),
    )
    table.add_column("verdict", no_wrap=True)
    group = case = ""
    for line in lines:
        if line.group != group:
            table.add_section()
            table.add_row(f"[bold]{line.group}[/]")
        if (line.group, line.case) != (group, case):
            aside = "" if line.basis == "tuned" else f" [dim]({line.basis})[/]"
            table.add_row(f"{line.case}{aside}")
        group, case = line.group, line.case
        unit = f", {line.unit}" if line.unit else ""
        note = f" [dim]({line.note})[/]" if line.note else ""
        table.add_row(
            f"  {line.quantity}{unit}{note}",
            figure(line.reference),
            figure(line.simulated),
            error_text(line),
            tolerance_text(line),
            f"[{COLOURS[line.verdict]}]{line.verdict}[/]",
        )
    table.caption = (
        "independent: recorded runs of settings that nothing was fitted to. other seed, repeated: "
        "runs of settings that something was fitted to. pt: percentage points."
    )
    return table


def all_lines(done: list[Finished]) -> list[Line]:
    """Lines of all cases, those of a group together."""
    lines = [line for finished in done for line in finished.outcome.lines]
    groups = list(dict.fromkeys(line.group for line in lines))
    return sorted(lines, key=lambda line: groups.index(line.group))


def counts(lines: list[Line]) -> dict[str, dict[str, int]]:
    """Number of lines per basis (`all` for the sum) and verdict."""
    table: dict[str, dict[str, int]] = {}
    for basis in ("all", *BASES):
        selected = [line for line in lines if basis in ("all", line.basis)]
        if selected:
            verdicts = [line.verdict for line in selected]
            table[basis] = {name: verdicts.count(name) for name in ("pass", "FAIL", "reported")}
    return table


def verdict_text(lines: list[Line], seconds: float) -> str:
    """One sentence with the numbers of lines and the time taken."""
    parts = []
    for basis, row in counts(lines).items():
        if basis != "all" and row["pass"] + row["FAIL"]:
            parts.append(f"{basis} {row['pass']}/{row['pass'] + row['FAIL']}")
    total = counts(lines)["all"]
    checked = total["pass"] + total["FAIL"]
    reported = f", {total['reported']} only reported" if total["reported"] else ""
    return (
        f"{total['pass']} of {checked} lines within tolerance ({', '.join(parts)}){reported}; "
        f"{seconds:.0f} s"
    )


def report(done: list[Finished], seconds: float) -> dict[str, Any]:
    """The JSON report: `schema`, `seconds`, `counts`, `cases` (name, seconds) and `lines`."""
    lines = all_lines(done)
    return {
        "schema": SCHEMA,
        "seconds": seconds,
        "counts": counts(lines),
        "cases": [
            {
                "name": finished.case.name,
                "seconds": finished.seconds,
                "cpu_seconds": finished.cpu_seconds,
            }
            for finished in done
        ],
        "lines": [line.as_dict() for line in lines],
    }
