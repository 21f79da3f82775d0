"""What claims measure: a change against another row, or a value, from records with intervals.

A column of the table of claims says which rows stand for a family such as `pet`: `pet:published`,
`pet:tuned`, or `static:best` in its place, beside `acc:published`. Rules stand for themselves. All
policies of a cell met the same episodes: ratios are paired, and their intervals are of the two-way
bootstrap of `baselines.evaluation.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.completion import SIZES, invalid_reasons
from ecn_marl.baselines.evaluation.statistics import Draws, mean_estimate
from ecn_marl.baselines.evaluation.windows import series_column
from ecn_marl.experiments.compare import BASELINE, ratio_of_means
from ecn_marl.experiments.papers.suite import BEST, COLUMNS, PUBLISHED, Measured, Results
from ecn_marl.experiments.records import Record

Columns = Mapping[str, np.ndarray]


def _mean(sizes: tuple[str, ...]) -> Callable[[Columns], np.ndarray]:
    """Mean slowdown of the flows of some size classes, an episode's all together."""

    def mean(columns: Columns) -> np.ndarray:
        total = sum(np.nan_to_num(columns[f"{size}_sum"]) for size in sizes)
        flows = sum(columns[f"{size}_measured"] for size in sizes)
        return np.asarray(total / np.where(flows > 0, flows, np.nan))

    return mean


def _column(name: str, factor: float = 1.0) -> Callable[[Columns], np.ndarray]:
    return lambda columns: np.asarray(columns[name]) * factor


FIGURES: dict[str, tuple[str, Callable[[Columns], np.ndarray]]] = {
    "all mean": ("mean FCT of all flows, normalised", _mean(SIZES)),
    "mice mean": ("mean FCT of flows up to 1 MB, normalised", _mean(SIZES[:2])),
    "mice p99": ("99th percentile of flows up to 1 MB, normalised", _column("mice_p99")),
    "short mean": ("mean FCT of flows up to 100 KB, normalised", _mean(SIZES[:1])),
    "long mean": ("mean FCT of flows above 1 MB, normalised", _mean(SIZES[2:])),
    "queue": ("mean queue, KB", _column("queue_mean", 1e-3)),
    "queue spread": ("standard deviation of the queue, KB", _column("queue_std", 1e-3)),
    "utilisation": ("utilisation, %", _column("utilisation", 100.0)),
}
"""Figures of an episode by name: title, and what computes them from columns `[seeds, episodes]`."""


def register_figure(name: str, title: str, rule: Callable[[Columns], np.ndarray]) -> None:
    """Add a figure that a suite needs; a name that is taken is an error."""
    if name in FIGURES:
        raise bad_value("figure", name, "a name that is not taken")
    FIGURES[name] = (title, rule)


def figure(record: Record, name: str) -> np.ndarray:
    """A figure of a record, `[seeds, episodes]`; NaN where an episode has none.

    `SERIES@I-J` is the mean of a series over windows I to J of an episode, see
    `baselines.evaluation.windows`.

    Raises:
        ValueError: unknown figure.
    """
    series, at, span = name.partition("@")
    if at:
        first, _, last = span.partition("-")
        return series_column(record.columns, series, int(first), int(last or first))
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    return FIGURES[name][1](record.columns)


def row_for(family: str, column: str) -> str:
    """The row that stands for a family, or a rule, in a column; the opponent of `best` likewise."""
    if family.startswith(("static:", "oracle", "dynamic:")):
        return family
    return f"{family}:{PUBLISHED if column == BEST else column}"


def subject_for(family: str, column: str) -> str:
    """The row whose figure is measured: in the column `best`, `static:best` in its place."""
    if column not in COLUMNS:
        raise unknown_name("column", column, COLUMNS)
    return BASELINE if column == BEST else row_for(family, column)


def counts(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """How often each seed and each episode was drawn in the bootstrap."""
    draws = Draws(record.episodes)
    return draws.seeds(record.name, record.seeds), draws.episodes


def _why_not(*records: Record) -> str:
    reasons = [
        f"{r.name}: {'; '.join(why)}" for r in records if (why := invalid_reasons(r.columns))
    ]
    return ". ".join(reasons)


def change(ours: Record, theirs: Record, name: str, cell: str = "") -> Measured | None:
    """Change of a figure's mean against another row in the same episodes, %.

    Episodes in which either has no such flow are left out of both.
    """
    a, b = figure(ours, name), figure(theirs, name)
    known = np.isfinite(a).all(0) & np.isfinite(b).all(0)
    if not known.any():
        return None
    sides = [(seeds, episodes[:, known]) for seeds, episodes in (counts(ours), counts(theirs))]
    found = ratio_of_means(a[:, known], b[:, known], *sides)
    value, low, high = (100.0 * (found[end] - 1.0) for end in ("value", "low", "high"))
    return Measured(value, low, high, cell, _why_not(ours, theirs))


@dataclass(frozen=True)
class Change:
    """Change of a figure against another row, %; negative where ours is lower.

    Attributes:
        cells: cells; of several, `pick` says which counts.
        figure: name in `FIGURES`, or of a series.
        of: family of the row that is measured, e.g. `pet`.
        against: family or rule that it is compared with.
        pick: `lowest` where the paper says "up to" a reduction, `highest` for a gain.
        published: a row by its name that stands for `of` in the column `published`.
        fixed_against: a row by its name in place of `against`, in all columns.
        spans: windows `I-J` of a series; of several, `pick` says which counts.
        columns: columns that it is measured for.
    """

    cells: tuple[str, ...]
    figure: str
    of: str
    against: str
    pick: str = "lowest"
    published: str = ""
    fixed_against: str = ""
    spans: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS

    def __post_init__(self) -> None:
        """Check what is picked."""
        if self.pick not in ("lowest", "highest"):
            raise bad_value("pick", self.pick, "lowest or highest")

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The change in the cell where it is the lowest or highest; None without records."""
        if column not in self.columns:
            return None
        ours, theirs = subject_for(self.of, column), row_for(self.against, column)
        ours = self.published if self.published and column == PUBLISHED else ours
        theirs = self.fixed_against or theirs
        names = [f"{self.figure}@{span}" for span in self.spans] or [self.figure]
        found = []
        for cell, name in product(self.cells, names):
            records = results.get(cell, {})
            if ours in records and theirs in records:
                label = f"{cell} @{name.partition('@')[2]}" if self.spans else cell
                found.append(change(records[ours], records[theirs], name, label))
        return _picked(found, self.pick)


@dataclass(frozen=True)
class Value:
    """A figure of a row as it is, in its unit.

    Attributes:
        cell: the cell.
        figure: name in `FIGURES`, or of a series.
        of: family or rule.
        columns: columns that it is measured for.
    """

    cell: str
    figure: str
    of: str
    columns: tuple[str, ...] = COLUMNS

    @property
    def cells(self) -> tuple[str, ...]:
        """The cell, as a tuple."""
        return (self.cell,)

    def __call__(self, results: Results, column: str) -> Measured | None:
        """Mean over seeds and episodes; None without a record."""
        if column not in self.columns:
            return None
        name = subject_for(self.of, column)
        record = results.get(self.cell, {}).get(name)
        if record is None:
            return None
        found = mean_estimate(figure(record, self.figure), counts(record))
        ends = (found["value"], found["low"], found["high"])
        return Measured(*ends, self.cell, _why_not(record))


@dataclass(frozen=True)
class Across:
    """Change of a figure against a row in another cell, %: the same episodes, other senders.

    Attributes:
        pairs: cell of the row that is measured, and cell of the other; of several, `pick` says
            which counts.
        figure: name in `FIGURES`.
        of: family of the row that is measured.
        against: rule that it is compared with.
        pick: `lowest` or `highest`, as of `Change`.
    """

    pairs: tuple[tuple[str, str], ...]
    figure: str
    of: str
    against: str
    pick: str = "lowest"

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells that it reads."""
        return tuple(cell for pair in self.pairs for cell in pair)

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The change in the pair where it is the lowest or highest; None without records."""
        ours, theirs = subject_for(self.of, column), row_for(self.against, column)
        found = []
        for cell, other in self.pairs:
            mine, others = results.get(cell, {}), results.get(other, {})
            if ours in mine and theirs in others:
                found.append(change(mine[ours], others[theirs], self.figure, cell))
        return _picked(found, self.pick)


@dataclass(frozen=True)
class Extreme:
    """The lowest or highest of several measures: "up to" and "at least" over opponents.

    Attributes:
        parts: the measures.
        pick: `lowest` or `highest`.
    """

    parts: tuple[Any, ...]
    pick: str

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells that they read."""
        return tuple(dict.fromkeys(cell for part in self.parts for cell in part.cells))

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The measure that is the lowest or highest; None without any."""
        return _picked([part(results, column) for part in self.parts], self.pick)


def _picked(found: Sequence[Measured | None], pick: str) -> Measured | None:
    """The lowest or highest of some figures: of those that count, if any does."""
    numbers = [one for one in found if one is not None and math.isfinite(one.value)]
    counted = [one for one in numbers if not one.invalid] or numbers
    if not counted:
        return None
    return (min if pick == "lowest" else max)(counted, key=lambda one: one.value)


VERDICTS = ("reproduced", "weaker", "not", "opposite")


def verdict(paper: float, ours: Measured | None, relative: bool) -> str:
    """What a figure of ours says of the paper's.

    A change is `reproduced` if its interval is on the paper's side of 0 and reaches the paper's
    figure or goes beyond it, `weaker` if it is on that side and does not, `opposite` if it is on
    the other side, `not` if it holds 0. A value is `reproduced` if its interval holds the paper's.

    Args:
        paper: the paper's figure.
        ours: what was measured; None for nothing.
        relative: whether it is a change, to be read against 0.

    Returns:
        One of `VERDICTS`; `invalid` if it does not count, empty if there is nothing.
    """
    if ours is None:
        return ""
    if ours.invalid:
        return "invalid"
    low, high = (x if math.isfinite(x) else ours.value for x in (ours.low, ours.high))
    if not relative:
        return "reproduced" if low <= paper <= high else "not"
    sign = math.copysign(1.0, paper)
    near, far = sorted((sign * low, sign * high))
    if far < 0.0:
        return "opposite"
    if near <= 0.0:
        return "not"
    return "reproduced" if far >= abs(paper) else "weaker"
