"""The verdicts that are expected of every line, committed: any change, better or worse, is news.

A line whose error is near its tolerance is expected to be at the `edge`: rounding differs between
processors, turns single coins, and takes such a line to either side.
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
    """What identifies a line."""
    return line.group, line.case, line.quantity


def expected() -> dict[Key, str]:
    """The committed verdict of every line: `pass`, `FAIL`, `reported` or `edge`."""
    text = resources.files("ecn_marl.validation").joinpath("data", FILE).read_text()
    return {
        (row["group"], row["case"], row["quantity"]): row["verdict"]
        for row in csv.DictReader(io.StringIO(text))
    }


def changes(lines: Iterable[Line], known: dict[Key, str], whole: bool) -> list[Change]:
    """Lines whose verdict is another than expected.

    Args:
        lines: lines of a run.
        known: expected verdicts.
        whole: whether all cases were run, so that a line that is missing is a change.
    """
    found = {key(line): line.verdict for line in lines}
    changed = [
        Change(", ".join(name), known.get(name), verdict)
        for name, verdict in found.items()
        if not _fits(verdict, known.get(name))
    ]
    if whole:
        gone = [name for name in known if name not in found]
        changed += [Change(", ".join(name), known[name], None) for name in gone]
    return changed


def _fits(verdict: str, wanted: str | None) -> bool:
    return verdict == wanted or (wanted == EDGE and verdict in ("pass", "FAIL"))


def as_csv(lines: Iterable[Line]) -> str:
    """The verdicts of a run as a file of expected ones, lines near their tolerance at the edge."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for line in lines:
        near = abs(abs(line.error) - line.allowed) <= MARGIN * line.allowed
        table.writerow([*key(line), EDGE if near else line.verdict])
    return out.getvalue()


def changes_text(changed: list[Change]) -> str:
    """One line for each change, and what to do about them."""
    none = "no line"
    rows = [f"  {c.name}: {c.now or none}, expected {c.was or none}" for c in changed]
    what = "Not as expected (ecn_marl/validation/data/expected.csv):"
    return "\n".join([what, *rows, "If that is right, run it whole with --write-expected."])
