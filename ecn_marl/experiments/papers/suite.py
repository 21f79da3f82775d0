"""A paper as data: what is trained, where policies are scored, and which figures it states.

A `Suite` holds, for one paper,

* `Training`s: where learners are trained, each once for all of its cells;
* `Cell`s: settings of the network whose results a figure or table of the paper shows;
* `Row`s: the policies of a cell, learners as published and tuned beside rules;
* `Claim`s: figures that the paper states, each with the function that measures the same here;
* `Plot`s: figures in the paper's form.

Nothing here runs anything; `run.py` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from ecn_marl._checks import OPTIONS, TEXT, Each, Flag, Kind, Real, Whole, check
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.experiments.recipes import Recipe
from ecn_marl.experiments.records import Record

PUBLISHED, READING, TUNED, BEST = "published", "reading", "tuned", "best"
COLUMNS = (PUBLISHED, READING, TUNED, BEST)
"""Columns of the table of claims: the learner as published; in the best reading, where what the
paper leaves open is chosen so that the learner earns its own reward; tuned to the benchmark's
reward; and `static:best` instead."""

FORMS = (PUBLISHED, READING, "alternative", TUNED, "online", "ablated", "rule")
"""Kinds of rows: a learner as published, in its best reading, with another choice, or tuned; one
that goes on learning in the episodes that score it; one with part of its state left out; a rule."""

Results = Mapping[str, Mapping[str, Record]]
"""Records by cell and policy."""


class Measured(NamedTuple):
    """A measured figure with its 95 % interval, in the unit of its claim.

    Attributes:
        value: the figure.
        low: lower end; NaN where there is none.
        high: upper end; NaN where there is none.
        cell: its cell, or the number of cells that it is a mean of.
        invalid: the reason why it does not count; empty if it does.
        seeds: fewest seeds of a learner that it is measured of; None if there are only rules.
        unlearnt: learners in it that earn less of their own reward than a static setting does.
        holding: "2 of 3" cells in which it holds, where it is the largest of several.
    """

    value: float
    low: float
    high: float
    cell: str = ""
    invalid: str = ""
    seeds: int | None = None
    unlearnt: str = ""
    holding: str = ""


class Choice(NamedTuple):
    """Something that a paper leaves open.

    Attributes:
        what: the value.
        paper: what the paper says about it, with its section.
        published: what the row as published takes.
        reading: what the best reading takes.
        rows: rows of the suite of readings that take something else, and what.
    """

    what: str
    paper: str
    published: str
    reading: str
    rows: Mapping[str, str]


@runtime_checkable
class Measure(Protocol):
    """Computes a figure from records."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells that it reads."""

    def __call__(self, results: Results, column: str) -> Measured | None:
        """The figure for a column of `COLUMNS`; None where a record for it is missing."""


@dataclass(frozen=True)
class Row:
    """A policy of a cell.

    Attributes:
        name: name of the policy, e.g. `pet:published`; for a rule its name in `bench`.
        title: its name in tables.
        form: one of `FORMS`.
        recipe: how it is trained; None for a rule.
        unstated: our values where the paper states none, by name.
        choices: for the form `reading`: what it takes where the paper leaves something open.
        trained: the row whose policy it starts from, for the form `online`.
    """

    name: Annotated[str, TEXT]
    title: Annotated[str, TEXT]
    form: Annotated[str, TEXT] = "rule"
    recipe: Annotated[Recipe | None, Kind((Recipe, type(None)), "a Recipe, or None")] = None
    unstated: Annotated[Mapping[str, str], OPTIONS] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()
    trained: Annotated[str, TEXT] = ""

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if self.form not in FORMS:
            raise unknown_name("form of a row", self.form, FORMS)
        is_learner = self.form not in ("rule", "online")
        if is_learner != (self.recipe is not None):
            raise bad_value(f"recipe of {self.name}", self.recipe, "one for learners, and no other")
        if (self.form == "online") != bool(self.trained):
            raise bad_value(f"trained of {self.name}", self.trained, "a row if it is online")


@dataclass(frozen=True)
class Training:
    """Where learners are trained, once for all cells that name it.

    Attributes:
        name: its name, a folder of runs.
        scenario: name of a scenario.
        options: options of `ecn_marl.make` that do not belong to a learner.
        steps: environment steps per seed.
        randomise: what is drawn for every training episode, see `wrappers.randomised.ranges_of`.
    """

    name: Annotated[str, TEXT]
    scenario: Annotated[str, TEXT]
    options: Annotated[Mapping[str, Any], OPTIONS] = field(default_factory=dict)
    steps: Annotated[int, Whole(low=1)] = 80_000
    randomise: Annotated[Mapping[str, Any], OPTIONS] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)


@dataclass(frozen=True)
class Cell:
    """A setting of the network.

    Attributes:
        name: its name, a folder of records.
        where: the paper's figures and tables that show it.
        scenario: name of a scenario.
        training: name of the training whose learners are scored.
        rows: names of rows.
        options: options of `ecn_marl.make` that do not belong to a learner, e.g. a load.
        x: its position on the axis of a plot, e.g. the load in percent.
        windows: equal parts of an episode whose numbers are kept, 0 for none; see
            `baselines.evaluation.windows`.
        measured_delay: whether learners' decisions take as long as they take on this machine, see
            `experiments.measured_delay`.
    """

    name: Annotated[str, TEXT]
    where: Annotated[str, TEXT]
    scenario: Annotated[str, TEXT]
    training: Annotated[str, TEXT]
    rows: Annotated[tuple[str, ...], Each(TEXT, least=1)]
    options: Annotated[Mapping[str, Any], OPTIONS] = field(default_factory=dict)
    x: Annotated[float, Real()] = 0.0
    windows: Annotated[int, Whole(low=0, high=1000)] = 0
    measured_delay: Annotated[bool, Flag()] = False

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)


@dataclass(frozen=True)
class Claim:
    """A figure that a paper states.

    Attributes:
        key: short name, unique in the suite.
        text: the claim in a few words.
        paper: the paper's figure; a reduction is negative.
        unit: `%` for a change relative to something, else the unit of a value, e.g. `KB`.
        where: section, figure or table of the paper.
        measure: computes the measured figure.
        note: how to read the measured figure, where it cannot be exactly the paper's quantity.
    """

    key: Annotated[str, TEXT]
    text: Annotated[str, TEXT]
    paper: Annotated[float, Real()]
    unit: Annotated[str, TEXT]
    where: Annotated[str, TEXT]
    measure: Measure
    note: Annotated[str, TEXT] = ""

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if not callable(self.measure):
            raise bad_value(f"measure of {self.key}", self.measure, "a measure")


@dataclass(frozen=True)
class Plot:
    """A figure of the paper, drawn from our records.

    Attributes:
        title: what it shows.
        where: the paper's figure.
        cells: names of cells, in the order of the axis.
        figures: names of figures (`measures.FIGURES`), a panel each; over time, names of series.
        x: label of the axis.
        over_time: whether a cell's windows are the axis; then `cells` is one cell.
    """

    title: Annotated[str, TEXT]
    where: Annotated[str, TEXT]
    cells: Annotated[tuple[str, ...], Each(TEXT, least=1)]
    figures: Annotated[tuple[str, ...], Each(TEXT, least=1)]
    x: Annotated[str, TEXT] = "load, %"
    over_time: bool = False

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if self.over_time and len(self.cells) != 1:
            raise bad_value(f"cells of {self.title}", self.cells, "one cell, over time")


@dataclass(frozen=True)
class Suite:
    """A paper.

    Attributes:
        name: name of the paper for `bench`.
        title: the paper.
        trainings: where learners are trained.
        cells: where policies are scored.
        rows: the policies, of all cells.
        claims: figures that the paper states.
        plots: figures in the paper's form.
        notes: differences from the paper, such as scaled sizes; a sentence each.
        episodes: episodes that every policy and seed is scored on.
        search_episodes: episodes that searches for reference policies end with.
    """

    name: Annotated[str, TEXT]
    title: Annotated[str, TEXT]
    trainings: tuple[Training, ...]
    cells: tuple[Cell, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    plots: tuple[Plot, ...] = ()
    notes: Annotated[tuple[str, ...], Each(TEXT)] = ()
    episodes: Annotated[int, Whole(low=1)] = 32
    search_episodes: Annotated[int, Whole(low=1)] = 24

    def __post_init__(self) -> None:
        """Check that names are unique and that every name in use exists."""
        check(self)
        names = {
            "training": [part.name for part in self.trainings],
            "cell": [part.name for part in self.cells],
            "row": [part.name for part in self.rows],
            "claim": [part.key for part in self.claims],
        }
        for kind, listed in names.items():
            repeated = sorted({name for name in listed if listed.count(name) > 1})
            if repeated:
                raise bad_value(kind, repeated[0], f"a name of its own for every {kind}")
        for cell in self.cells:
            _check_names("training", [cell.training], names["training"])
            _check_names("row", cell.rows, names["row"])
        _check_names("row", [row.trained for row in self.rows if row.trained], names["row"])
        for claim in self.claims:
            _check_names("cell", claim.measure.cells, names["cell"])
        for plot in self.plots:
            _check_names("cell", plot.cells, names["cell"])

    def row(self, name: str) -> Row:
        """The row of this name."""
        return _by_name(self.rows, name)

    def cell(self, name: str) -> Cell:
        """The cell of this name."""
        return _by_name(self.cells, name)

    def training(self, name: str) -> Training:
        """The training of this name."""
        return _by_name(self.trainings, name)


def _check_names(kind: str, names: Iterable[str], existing: list[str]) -> None:
    for name in names:
        if name not in existing:
            raise unknown_name(kind, name, existing)


_Named = TypeVar("_Named", Row, Cell, Training)


def _by_name(members: tuple[_Named, ...], name: str) -> _Named:
    return next(member for member in members if member.name == name)
