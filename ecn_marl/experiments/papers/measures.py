"""Measures of claims: changes against another row, or values, computed from records with intervals.

The column of the table of claims selects the row of a family such as `pet`: `pet:published`,
`pet:reading`, `pet:tuned`, or `static:best` in its place, against `acc:reading`. A rule's row is
the same in all columns. All policies of a cell met the same episodes, so ratios are paired. Their
intervals are of the two-way bootstrap of `baselines.evaluation.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.completion import SIZES, invalid_reasons
from ecn_marl.baselines.evaluation.statistics import (
    Draws,
    estimate,
    mean_estimate,
    resampled_mean,
)
from ecn_marl.baselines.evaluation.windows import series_column
from ecn_marl.experiments.compare import BASELINE, Ratio, ratio
from ecn_marl.experiments.own_reward import learnt
from ecn_marl.experiments.papers.suite import BEST, COLUMNS, READING, Measured, Results
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
    """The row of a family or rule in a column; in `best`, opponents are those of `reading`."""
    if _is_rule(family):
        return family
    return f"{family}:{READING if column == BEST else column}"


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


@dataclass(frozen=True)
class Candidate:
    """A figure in one cell, before a measure chooses among several.

    Attributes:
        amount: the figure plus `below`, which is not negative; of every resample; its linear part.
        below: how far below 0 the figure can be: 100 for a change in percent.
        cell: the cell.
        records: the records that it is made from.
    """

    amount: Ratio
    below: float
    cell: str
    records: tuple[Record, ...]

    @property
    def value(self) -> float:
        """The figure."""
        return self.amount.value - self.below

    @property
    def invalid(self) -> str:
        """Why it does not count."""
        return _invalid_reasons(*self.records)

    def ends(self) -> tuple[float, float]:
        """The ends of its interval."""
        interval = estimate(*self.amount, positive=True)
        return interval["low"] - self.below, interval["high"] - self.below


def change(record: Record, other: Record, name: str, cell: str = "") -> Candidate | None:
    """Change of a figure's mean against another row in the same episodes, %.

    Episodes in which either has no such flow are left out of both.
    """
    values, other_values = figure(record, name), figure(other, name)
    finite = np.isfinite(values).all(0) & np.isfinite(other_values).all(0)
    if not finite.any():
        return None
    draws = [(seeds, episodes[:, finite]) for seeds, episodes in (counts(record), counts(other))]
    found = ratio(values[:, finite], other_values[:, finite], *draws)
    if found is None:
        return None
    percent = Ratio(100.0 * found.value, 100.0 * found.resamples, 100.0 * found.linear_part)
    return Candidate(percent, 100.0, cell, (record, other))


PICKS = ("lowest", "highest", "mean")
"""How a measure chooses among cells: the largest reduction, the largest gain, or their mean."""


def picked(candidates: Sequence[Candidate | None], pick: str) -> Measured | None:
    """The lowest or highest of some figures or their mean: of the valid ones, if there are any.

    The choice is part of the bootstrap: every resample has its own lowest cell, so an interval of
    an "up to" holds what the choice adds.
    """
    known = [x for x in candidates if x is not None and math.isfinite(x.value)]
    usable = [x for x in known if not x.invalid] or known
    if not usable:
        return None
    resamples = np.stack([x.amount.resamples for x in usable])
    if pick == "mean":
        value = float(np.exp(np.mean([math.log(x.amount.value) for x in usable])))
        with np.errstate(divide="ignore"):
            drawn = np.exp(np.log(resamples).mean(0))
        parts = [x.amount.linear_part / x.amount.value for x in usable]
        # Cells have the same seeds and episodes; where they do not, the first stands for all.
        same = all(part.shape == parts[0].shape for part in parts)
        linear = value * (np.mean(parts, 0) if same else parts[0])
        cell = f"{len(usable)} cells" if len(usable) > 1 else usable[0].cell
        chosen = Candidate(Ratio(value, drawn, linear), usable[0].below, cell, ())
    else:
        best = (min if pick == "lowest" else max)(usable, key=lambda x: x.value)
        drawn = resamples.min(0) if pick == "lowest" else resamples.max(0)
        chosen = replace(best, amount=best.amount._replace(resamples=drawn))
    records = tuple(record for x in usable for record in x.records)
    if pick != "mean":
        records = chosen.records
    low, high = chosen.ends()
    return Measured(
        chosen.value,
        low,
        high,
        chosen.cell,
        _invalid_reasons(*records),
        _fewest_seeds(*records),
        ", ".join(dict.fromkeys(r.name for r in records if not learnt(r))),
        _holding(usable, pick),
    )


def _holding(usable: Sequence[Candidate], pick: str) -> str:
    """In how many of several cells the figure lies on the paper's side of 0, intervals whole."""
    if len(usable) < 2 or pick == "mean":
        return ""
    side = 1 if pick == "lowest" else 0
    sign = -1.0 if pick == "lowest" else 1.0
    holding = sum(sign * x.ends()[side] > 0.0 for x in usable)
    return f"{holding} of {len(usable)}"


@dataclass(frozen=True)
class Change:
    """Change of a figure against another row, %; negative where the measured row is lower.

    Attributes:
        cells: names of cells; `pick` chooses among several.
        figure: name in `FIGURES`, or of a series.
        of: family of the row that is measured, e.g. `pet`.
        against: family or rule that it is compared with.
        pick: `lowest` where the paper says "up to" a reduction, `highest` for a gain, `mean` where
            it says neither.
        online: name of the row that replaces `of` in the column `reading`.
        fixed_against: name of the row that replaces `against` in all columns.
        spans: windows `I-J` of a series; `pick` chooses among several.
        columns: columns that it is measured for.
    """

    cells: tuple[str, ...]
    figure: str
    of: str
    against: str
    pick: str = "lowest"
    online: str = ""
    fixed_against: str = ""
    spans: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS

    def __post_init__(self) -> None:
        """Check `pick`."""
        if self.pick not in PICKS:
            raise bad_value("pick", self.pick, f"one of {', '.join(PICKS)}")

    def candidates(self, results: Results, column: str) -> list[Candidate | None]:
        """The change in every cell and span that has records."""
        if column not in self.columns:
            return []
        row, opponent = subject_for(self.of, column), row_for(self.against, column)
        row = self.online if self.online and column == READING else row
        opponent = self.fixed_against or opponent
        names = [f"{self.figure}@{span}" for span in self.spans] or [self.figure]
        changes = []
        for cell, name in product(self.cells, names):
            records = results.get(cell, {})
            if row in records and opponent in records:
                label = f"{cell} @{name.partition('@')[2]}" if self.spans else cell
                changes.append(change(records[row], records[opponent], name, label))
        return changes

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The change that `pick` names; None without records."""
        return picked(self.candidates(results, column), self.pick)


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

    def candidates(self, results: Results, column: str) -> list[Candidate | None]:
        """The mean over seeds and episodes; none without a record."""
        record = results.get(self.cell, {}).get(subject_for(self.of, column))
        if column not in self.columns or record is None:
            return []
        below = BELOW.get(self.figure, 0.0)
        values = figure(record, self.figure) + below
        if not np.isfinite(values).any():
            return []
        drawn = resampled_mean(values, counts(record))
        amount = Ratio(float(np.nanmean(values)), drawn, values)
        return [Candidate(amount, below, self.cell, (record,))]

    def __call__(self, results: Results, column: str) -> Measured | None:
        """Mean over seeds and episodes; None without a record."""
        return picked(self.candidates(results, column), "lowest")


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

    def candidates(self, results: Results, column: str) -> list[Candidate | None]:
        """The change in every pair that has records."""
        row, opponent = subject_for(self.of, column), row_for(self.against, column)
        changes = []
        for cell, other in self.pairs:
            records, other_records = results.get(cell, {}), results.get(other, {})
            if row in records and opponent in other_records:
                changes.append(change(records[row], other_records[opponent], self.figure, cell))
        return changes

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The change in the pair where it is the lowest or highest; None without records."""
        return picked(self.candidates(results, column), self.pick)


@dataclass(frozen=True)
class Extreme:
    """The lowest or highest of several measures: "up to" and "at least" over opponents.

    Attributes:
        parts: the measures.
        pick: `lowest` or `highest`.
    """

    parts: tuple[Change | Value | Across, ...]
    pick: str

    @property
    def cells(self) -> tuple[str, ...]:
        """All cells that they read."""
        return tuple(dict.fromkeys(cell for part in self.parts for cell in part.cells))

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The measure that is the lowest or highest; None without any."""
        found = [x for part in self.parts for x in part.candidates(results, column)]
        return picked(found, self.pick)


FEW, MIN_SEEDS = "too few seeds", 3
"""The verdict on learners of fewer seeds than that: an interval over one or two says little."""

UNLEARNT = "did not learn"
"""The verdict where a learner earns less of its own reward than a static setting: what it does says
nothing about its paper."""


def verdict(paper: float, measured: Measured | None, relative: bool) -> str:
    """Verdict on a paper's figure by what was measured.

    A change whose interval lies on the paper's side of 0 is `weaker` if it ends before the paper's
    figure, `beyond` if it begins after it, and `reproduced` if it holds it; if it holds it and is
    wider than the figure itself, it is `too wide` to say so. A change is `opposite` if its interval
    is on the other side of 0, and `not` if it holds 0. A value is `reproduced` or `too wide` if its
    interval holds the paper's, else `not`.

    Args:
        paper: the paper's figure.
        measured: what was measured; None for nothing.
        relative: whether it is a change, to be read against 0.

    Returns:
        One of these; `invalid` if the measurement does not count, `FEW` if a learner has too
        few seeds, `UNLEARNT` if one earns less than a static setting, empty if there is no
        measurement.
    """
    if measured is None:
        return ""
    if measured.invalid:
        return "invalid"
    if measured.seeds is not None and measured.seeds < MIN_SEEDS:
        return FEW
    if measured.unlearnt:
        return UNLEARNT
    # Without an interval, which rules of one episode lack, the value alone decides.
    low, high = (x if math.isfinite(x) else measured.value for x in (measured.low, measured.high))
    holds = "reproduced" if high - low <= abs(paper) else "too wide"
    if not relative:
        return holds if low <= paper <= high else "not"
    sign = math.copysign(1.0, paper)
    near, far = sorted((sign * low, sign * high))
    if far < 0.0:
        return "opposite"
    if near <= 0.0:
        return "not"
    if near > abs(paper):
        return "beyond"
    return holds if far >= abs(paper) else "weaker"
