"""The committed verdict of every line: any change is reported, better or worse.

A line whose error is near its tolerance is expected at the `edge`. Rounding differs between
processors and changes single random draws, so such a line may pass or fail. So may a rank of
settings of which two are too close to tell apart: it moves by whole exchanges.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from importlib import resources
from typing import NamedTuple

from ecn_marl.validation.lines import Line

FILE = "expected.csv"
EDGE = "edge"
MARGIN = 0.2
"""Errors that differ from the allowed one by up to this share of it are at the edge."""

COLUMNS = ("group", "case", "quantity", "verdict")


class Change(NamedTuple):
    """A line whose verdict is not the expected one; None for a line that one side lacks."""

    name: str
    was: str | None
    now: str | None


Key = tuple[str, str, str]


def key(line: Line) -> Key:
    """The key of a line: its group, case and quantity."""
    return line.group, line.case, line.quantity


def expected() -> dict[Key, str]:
    """The committed verdict of every line: `pass`, `FAIL`, `reported` or `edge`."""
    text = resources.files("ecn_marl.validation").joinpath("data", FILE).read_text()
    return {
        (row["group"], row["case"], row["quantity"]): row["verdict"]
        for row in csv.DictReader(io.StringIO(text))
    }


def changes(
    lines: Iterable[Line], expected_verdicts: dict[Key, str], all_cases: bool
) -> list[Change]:
    """Lines whose verdict is another than expected.

    Args:
        lines: lines of a run.
        expected_verdicts: committed verdicts.
        all_cases: whether all cases were run, so that a missing line is a change.
    """
    verdicts = {key(line): line.verdict for line in lines}
    changed = [
        Change(", ".join(name), expected_verdicts.get(name), verdict)
        for name, verdict in verdicts.items()
        if not _fits(verdict, expected_verdicts.get(name))
    ]
    if all_cases:
        missing = [name for name in expected_verdicts if name not in verdicts]
        changed += [Change(", ".join(name), expected_verdicts[name], None) for name in missing]
    return changed


def _fits(verdict: str, expected_verdict: str | None) -> bool:
    return verdict == expected_verdict or (expected_verdict == EDGE and verdict in ("pass", "FAIL"))


def as_csv(lines: Iterable[Line]) -> str:
    """The verdicts of a run as a file of expected ones; `edge` where chance may decide."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(COLUMNS)
    for line in lines:
        table.writerow([*key(line), EDGE if _at_the_edge(line) else line.verdict])
    return buffer.getvalue()


def _at_the_edge(line: Line) -> bool:
    return abs(abs(line.error) - line.allowed) <= max(MARGIN * line.allowed, line.noise)


def changes_text(changed: list[Change]) -> str:
    """One line for each change, and how to accept them."""
    none = "no line"
    rows = [f"  {c.name}: {c.now or none}, expected {c.was or none}" for c in changed]
    title = "Not as expected (ecn_marl/validation/data/expected.csv):"
    return "\n".join([title, *rows, "If that is right, run it whole with --write-expected."])
