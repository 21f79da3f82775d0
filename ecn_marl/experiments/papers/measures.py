"""Measures of claims: changes against another row, or values, computed from records with intervals.

The column of the table of claims selects the row of a family such as `pet`: `pet:published`,
`pet:tuned`, or `static:best` in its place, against `acc:published`. A rule's row is the same in all
columns. All policies of a cell met the same episodes, so ratios are paired. Their intervals are of
the two-way bootstrap of `baselines.evaluation.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.completion import SIZES, invalid_reasons
from ecn_marl.baselines.evaluation.statistics import Draws, mean_estimate
from ecn_marl.baselines.evaluation.windows import series_column
from ecn_marl.experiments.compare import BASELINE, ratio_of_means
from ecn_marl.experiments.papers.suite import BEST, COLUMNS, PUBLISHED, Measure, Measured, Results
from ecn_marl.experiments.records import Record

Columns = Mapping[str, np.ndarray]


def _mean(sizes: tuple[str, ...]) -> Callable[[Columns], np.ndarray]:
    """Mean slowdown over all flows of some size classes in an episode."""

    def mean(columns: Columns) -> np.ndarray:
        total = sum(np.nan_to_num(columns[f"{size}_sum"]) for size in sizes)
        flows = sum(columns[f"{size}_measured"] for size in sizes)
        # An episode without such flows has no mean; 0 / 0 would warn, too.
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
"""Figures of an episode by name: title, and the function of columns `[seeds, episodes]`."""


BELOW: dict[str, float] = {}
"""By name of a figure, how far below 0 it can be; 0 for all others."""


def register_figure(
    name: str, title: str, rule: Callable[[Columns], np.ndarray], below: float = 0.0
) -> None:
    """Add a figure that a suite needs.

    Args:
        name: its name.
        title: its title.
        rule: the function of columns.
        below: how far below 0 it can be: 100 for a ratio less one, in percent.

    Raises:
        ValueError: the name is taken.
    """
    if name in FIGURES:
        raise bad_value("figure", name, "a name that is not taken")
    FIGURES[name], BELOW[name] = (title, rule), below


def estimated(record: Record, name: str) -> dict[str, float]:
    """Mean of a figure over seeds and episodes with its interval, see `statistics.estimate`."""
    below = BELOW.get(name, 0.0)
    ratio = mean_estimate(figure(record, name) + below, counts(record), positive=True)
    return {field: x - below for field, x in ratio.items()}


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


def _is_rule(name: str) -> bool:
    return name.startswith(("static:", "oracle", "dynamic:"))


def row_for(family: str, column: str) -> str:
    """The row of a family or rule in a column; the column `best` has the published opponents."""
    if _is_rule(family):
        return family
    return f"{family}:{PUBLISHED if column == BEST else column}"


def subject_for(family: str, column: str) -> str:
    """The row whose figure is measured; it is `static:best` in the column `best`."""
    if column not in COLUMNS:
        raise unknown_name("column", column, COLUMNS)
    return BASELINE if column == BEST else row_for(family, column)


def counts(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """How often each seed and each episode was drawn in the bootstrap."""
    draws = Draws(record.episodes)
    return draws.seeds(record.name, record.seeds), draws.episodes


def _invalid_reasons(*records: Record) -> str:
    reasons = [
        f"{r.name}: {'; '.join(invalid)}"
        for r in records
        if (invalid := invalid_reasons(r.columns))
    ]
    return ". ".join(reasons)


def _fewest_seeds(*records: Record) -> int | None:
    """Seeds of the learner that has the fewest; None without learners."""
    return min((r.seeds for r in records if not _is_rule(r.name)), default=None)


def change(record: Record, other: Record, name: str, cell: str = "") -> Measured | None:
    """Change of a figure's mean against another row in the same episodes, %.

    Episodes in which either has no such flow are left out of both.
    """
    values, other_values = figure(record, name), figure(other, name)
    finite = np.isfinite(values).all(0) & np.isfinite(other_values).all(0)
    if not finite.any():
        return None
    draws = [(seeds, episodes[:, finite]) for seeds, episodes in (counts(record), counts(other))]
    ratio = ratio_of_means(values[:, finite], other_values[:, finite], *draws)
    value, low, high = (100.0 * (ratio[field] - 1.0) for field in ("value", "low", "high"))
    reasons, seeds = _invalid_reasons(record, other), _fewest_seeds(record, other)
    return Measured(value, low, high, cell, reasons, seeds)


@dataclass(frozen=True)
class Change:
    """Change of a figure against another row, %; negative where the measured row is lower.

    Attributes:
        cells: names of cells; `pick` chooses among several.
        figure: name in `FIGURES`, or of a series.
        of: family of the row that is measured, e.g. `pet`.
        against: family or rule that it is compared with.
        pick: `lowest` where the paper says "up to" a reduction, `highest` for a gain.
        published: name of the row that replaces `of` in the column `published`.
        fixed_against: name of the row that replaces `against` in all columns.
        spans: windows `I-J` of a series; `pick` chooses among several.
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
        """Check `pick`."""
        if self.pick not in ("lowest", "highest"):
            raise bad_value("pick", self.pick, "lowest or highest")

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The change in the cell where it is the lowest or highest; None without records."""
        if column not in self.columns:
            return None
        row, opponent = subject_for(self.of, column), row_for(self.against, column)
        row = self.published if self.published and column == PUBLISHED else row
        opponent = self.fixed_against or opponent
        names = [f"{self.figure}@{span}" for span in self.spans] or [self.figure]
        changes = []
        for cell, name in product(self.cells, names):
            records = results.get(cell, {})
            if row in records and opponent in records:
                label = f"{cell} @{name.partition('@')[2]}" if self.spans else cell
                changes.append(change(records[row], records[opponent], name, label))
        return _extreme(changes, self.pick)


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
        estimate = estimated(record, self.figure)
        numbers = (estimate["value"], estimate["low"], estimate["high"])
        return Measured(*numbers, self.cell, _invalid_reasons(record), _fewest_seeds(record))


@dataclass(frozen=True)
class Across:
    """Change of a figure against a row in another cell, %: the same episodes, other senders.

    Attributes:
        pairs: cell of the row that is measured, and cell of the other row; `pick` chooses among
            several.
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
        row, opponent = subject_for(self.of, column), row_for(self.against, column)
        changes = []
        for cell, other in self.pairs:
            records, other_records = results.get(cell, {}), results.get(other, {})
            if row in records and opponent in other_records:
                measured = change(records[row], other_records[opponent], self.figure, cell)
                changes.append(measured)
        return _extreme(changes, self.pick)


@dataclass(frozen=True)
class Extreme:
    """The lowest or highest of several measures: "up to" and "at least" over opponents.

    Attributes:
        parts: the measures.
        pick: `lowest` or `highest`.
    """

    parts: tuple[Measure, ...]
    pick: str

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells that they read."""
        return tuple(dict.fromkeys(cell for part in self.parts for cell in part.cells))

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The measure that is the lowest or highest; None without any."""
        return _extreme([part(results, column) for part in self.parts], self.pick)


def _extreme(measured: Sequence[Measured | None], pick: str) -> Measured | None:
    """The lowest or highest of some figures: of the valid ones, if there are any."""
    finite = [x for x in measured if x is not None and math.isfinite(x.value)]
    valid = [x for x in finite if not x.invalid] or finite
    if not valid:
        return None
    return (min if pick == "lowest" else max)(valid, key=lambda x: x.value)


VERDICTS = ("reproduced", "weaker", "not", "opposite")

FEW, MIN_SEEDS = "too few seeds", 3
"""The verdict on learners of fewer seeds than that: an interval over one or two says little."""


def verdict(paper: float, measured: Measured | None, relative: bool) -> str:
    """Verdict on a paper's figure by what was measured.

    A change is `reproduced` if its interval is on the paper's side of 0 and reaches the paper's
    figure or goes beyond it, `weaker` if it is on that side and does not, `opposite` if it is on
    the other side, `not` if it holds 0. A value is `reproduced` if its interval holds the paper's.

    Args:
        paper: the paper's figure.
        measured: what was measured; None for nothing.
        relative: whether it is a change, to be read against 0.

    Returns:
        One of `VERDICTS`; `invalid` if the measurement does not count, `FEW` if a learner has too
        few seeds, empty if there is no measurement.
    """
    if measured is None:
        return ""
    if measured.invalid:
        return "invalid"
    if measured.seeds is not None and measured.seeds < MIN_SEEDS:
        return FEW
    # Without an interval, which rules of one episode lack, the value alone decides.
    low, high = (x if math.isfinite(x) else measured.value for x in (measured.low, measured.high))
    if not relative:
        return "reproduced" if low <= paper <= high else "not"
    sign = math.copysign(1.0, paper)
    near, far = sorted((sign * low, sign * high))
    if far < 0.0:
        return "opposite"
    if near <= 0.0:
        return "not"
    return "reproduced" if far >= abs(paper) else "weaker"
