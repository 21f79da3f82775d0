"""Runs the suite of a paper: trains, scores, keeps records.

    OUT/PAPER/plan.json                     the plan
    OUT/PAPER/runs/TRAINING/ROW/            a run (see `baselines/runs.py`)
    OUT/PAPER/cells/CELL/searches/NAME.json result of a search
    OUT/PAPER/cells/CELL/scores/ROW.json    the record of a row in a cell

Valid results are not made again. A record is valid for the code, scenario, options, training and
episodes that made it (see `engine.scored`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._lock import LOCK, locked
from ecn_marl.baselines.search import Effort, thin_grid
from ecn_marl.baselines.training.checkpoint import write_json
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.experiments import engine
from ecn_marl.experiments.compare import BASELINE
from ecn_marl.experiments.executors import executor
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.papers.online import score_online
from ecn_marl.experiments.papers.suite import Cell, Row, Suite, Training
from ecn_marl.experiments.plan import TUNING, Place, Site, check_settings
from ecn_marl.experiments.publish import PLAN
from ecn_marl.experiments.recipes import Recipe
from ecn_marl.experiments.recording import close
from ecn_marl.experiments.records import SUFFIXES, Record
from ecn_marl.experiments.sources import code
from ecn_marl.experiments.trainings import train_all
from ecn_marl.experiments.workflow import Show

Stage = Callable[[int, int], None]
"""`stage(done, total)`: number of finished trainings and cells, and of all."""


@dataclass(frozen=True)
class SuitePlan:
    """Plan of a suite: its selected rows, and how they are run; a `plan.Comparison`.

    Attributes:
        suite: the suite.
        out: folder of the paper.
        small: whether it is the small suite; its searches have a thin grid.
        seeds: seeds of every learner.
        only: rows or families (`pet` for all rows `pet:…`); empty for all. `static:best` is
            always there.
        only_cells: names of cells; empty for all.
        steps: environment steps per seed of every learner; those of the trainings if None.
        episodes_asked: episodes that every policy and seed is scored on; the suite's if None.
        search_episodes: episodes that searches end with; the suite's if None.
        eval_seed: which tuning episodes policies are scored on.
        options: options of `ecn_marl.make` for everything, e.g. `{"max_steps": 40}`.
        settings: settings of trainers that have them, over those of the recipes.
        eval_episodes: episodes that a checkpoint is evaluated on while training.
        records: folder for tables of all scored episodes, a folder for each cell; None for none.
            Rows that learn online have none.
        overwrite: whether to replace records of another plan there.
    """

    suite: Suite
    out: Path
    small: bool = False
    seeds: int = 5
    only: tuple[str, ...] = ()
    only_cells: tuple[str, ...] = ()
    steps: int | None = None
    episodes_asked: int | None = None
    search_episodes: int | None = None
    eval_seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    eval_episodes: int = 8
    records: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check numbers and names before anything is trained."""
        for name in ("seeds", "episodes", "eval_episodes"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        check_seed(self.eval_seed, "eval_seed")
        row_names = [row.name for row in self.suite.rows]
        families = dict.fromkeys(name.partition(":")[0] for name in row_names)
        for name in self.only:
            if name not in row_names and name not in families:
                raise unknown_name("algorithm", name, (*families, *row_names))
        cell_names = [cell.name for cell in self.suite.cells]
        for name in self.only_cells:
            if name not in cell_names:
                raise unknown_name("cell", name, cell_names)
        trained = [(row.recipe, self.steps or x.steps) for x, row in self.trainings() if row.recipe]
        check_settings(trained, self.settings)

    @property
    def stream(self) -> str:
        """Which episodes policies are scored on."""
        return TUNING

    @property
    def episodes(self) -> int:
        """Episodes that every policy and seed is scored on."""
        return self.suite.episodes if self.episodes_asked is None else self.episodes_asked

    @property
    def effort(self) -> Effort:
        """How much is searched: named and 30 other settings if small, else the whole grid."""
        grid = (*STATIC_ECN.values(), *thin_grid()) if self.small else ()
        return Effort(episodes=self.search_episodes or self.suite.search_episodes, grid=grid)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells that `only_cells` selects."""
        cells = self.suite.cells
        return tuple(c for c in cells if not self.only_cells or c.name in self.only_cells)

    def rows(self, cell: Cell) -> tuple[str, ...]:
        """Rows of a cell that `only` selects."""

        def selected(name: str) -> bool:
            return not self.only or name in self.only or name.partition(":")[0] in self.only

        return tuple(name for name in cell.rows if name == BASELINE or selected(name))

    def recipe(self, scenario: str, name: str) -> Recipe | None:
        """How a row is trained, or the row that it goes on from; None for a rule."""
        del scenario
        row = self.suite.row(name)
        return self.suite.row(row.trained).recipe if row.trained else row.recipe

    def facts(self, name: str) -> dict[str, Any]:
        """Entries of a record that describe its row."""
        row = self.suite.row(name)
        return {"title": row.title, "form": row.form, "unstated": dict(row.unstated)}

    def scorer(self, name: str) -> engine.Scorer | None:
        """The scorer of a row that learns online; None for other rows."""
        row = self.suite.row(name)
        return score_online(row.trained) if row.trained else None

    def site(self, name: str) -> Site:
        """Where the learners of a training are trained."""
        training = self.suite.training(name)
        options = {**training.options, **self.options}
        folder = self.out / "runs" / name
        return Site(
            training.scenario, options, self.steps or training.steps, folder, training.randomise
        )

    def place(self, cell: Cell) -> Place:
        """Where the rows of a cell are scored."""
        return Place(
            f"{self.suite.name}/{cell.name}",
            cell.scenario,
            {**cell.options, **self.options},
            self.out / "cells" / cell.name,
            self.site(cell.training),
            cell.windows,
            cell.measured_delay,
        )

    def places(self) -> Sequence[Place]:
        """Where policies are scored."""
        return [self.place(cell) for cell in self.cells]

    def trainings(self) -> list[tuple[Training, Row]]:
        """Learners to train: rows of cells, and rows that online rows go on from."""
        needed: dict[tuple[str, str], tuple[Training, Row]] = {}
        for cell in self.cells:
            for name in self.rows(cell):
                row = self.suite.row(self.suite.row(name).trained or name)
                if row.recipe is not None:
                    training = self.suite.training(cell.training)
                    needed.setdefault((training.name, row.name), (training, row))
        return list(needed.values())

    def request(self) -> dict[str, Any]:
        """The plan in JSON's types, for `plan.json` and the report."""
        facts = {
            "paper": self.suite.name,
            "small": self.small,
            "seeds": self.seeds,
            "episodes": self.episodes,
            "search_episodes": self.effort.episodes,
            "eval_seed": self.eval_seed,
            "eval_episodes": self.eval_episodes,
            "algorithms": list(self.only),
            "cells": list(self.only_cells),
            "options": dict(self.options),
            "settings": dict(self.settings),
            "trainings": {
                training.name: {**asdict(training), "steps": self.steps or training.steps}
                for training in self.suite.trainings
            },
        }
        return json_types(facts, str)


def check_folder(plan: SuitePlan, resume: bool) -> None:
    """Refuse a folder that holds something other than this plan.

    Args:
        plan: the plan.
        resume: whether to go on in a folder of another plan of this paper; valid records are kept.

    Raises:
        ValueError: the folder is not empty, and holds another plan or none.
    """
    file = plan.out / PLAN
    if not plan.out.is_dir() or not [p for p in plan.out.iterdir() if p.name != LOCK]:
        return
    if not file.is_file():
        raise bad_value("out", str(plan.out), f"a folder that is empty or has a {PLAN}")
    stored, request = json.loads(file.read_text(encoding="utf-8")), plan.request()
    if stored.get("paper") != request["paper"]:
        raise bad_value(
            "out", str(plan.out), f"a folder of {request['paper']}, not {stored['paper']}"
        )
    if stored != request and not resume:
        changed = ", ".join(key for key in request if stored.get(key) != request[key])
        allowed = f"a folder of the same plan (other {changed}), or --resume to go on in it"
        raise bad_value("out", str(plan.out), allowed)


def run_suite(
    plan: SuitePlan,
    show: Callable[[str], Show],
    stage: Stage,
    resume: bool = False,
    workers: int | str = 1,
) -> dict[str, dict[str, Record]]:
    """Train and score everything that has no valid record yet.

    Args:
        plan: what to run.
        show: see `engine.scored`.
        stage: called after every training and cell.
        resume: see `check_folder`.
        workers: who trains learners and scores cells, see `executors.executor`.

    Returns:
        Records by cell and row.

    Raises:
        ValueError: see `check_folder` and `trainings.train`.
        FolderInUse: another process works in the folder.
    """
    check_folder(plan, resume)
    with locked(plan.out, "bench"):
        # First, so that a suite that is stopped finds its own plan when it goes on.
        write_json(plan.out / PLAN, plan.request())
        tables = [engine.begin_recording(plan, plan.place(c), plan.rows(c)) for c in plan.cells]
        trainings = plan.trainings()
        total = len(trainings) + len(plan.cells)
        stage(0, total)
        jobs = [(plan.site(training.name), row.name) for training, row in trainings]
        with executor(workers) as pool:
            train_all(plan, jobs, show, pool, lambda done: stage(done, total))
            cells = [(plan.place(cell), plan.rows(cell)) for cell in plan.cells]
            scored = engine.score_all(
                plan, cells, show, pool, lambda done: stage(len(jobs) + done, total)
            )
        records = {}
        for i, cell in enumerate(plan.cells):
            place, rows = plan.place(cell), plan.rows(cell)
            records[cell.name] = engine.scored(plan, place, rows, show, recording=tables[i])
            close(tables[i])
            stage(len(trainings) + max(scored, i + 1), total)
        return records


def read_results(folder: Path) -> dict[str, dict[str, Record]]:
    """Records by cell and row from `cells/CELL/scores`, without running anything."""
    records: dict[str, dict[str, Record]] = {}
    for file in sorted(folder.glob("cells/*/scores/*")):
        if not file.name.endswith(SUFFIXES):
            continue  # a draft that a killed process left
        record = Record.load(file)
        records.setdefault(file.parent.parent.name, {})[record.name] = record
    return records


def protocol(plan: SuitePlan) -> dict[str, Any]:
    """How results were made, for `results.json`."""
    return {**plan.request(), "stream": plan.stream, "code": code()}
