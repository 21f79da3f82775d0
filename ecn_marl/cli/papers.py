"""`bench pet|acc|haecn|all`: the suites of the papers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join
from typing import Any

import typer

from ecn_marl.render.bars import Move, clock, progress

ALL = "all"


def are_papers(names: list[str] | None) -> bool:
    """Whether all names are papers; false for a mixture with scenarios."""
    from ecn_marl.experiments.papers import SUITES

    return bool(names) and all(name == ALL or name in SUITES for name in names or [])


@dataclass(frozen=True)
class Options:
    """Options of `bench` that apply to papers; None or empty for the suite's own values.

    Attributes:
        names: papers, or `all`.
        small: whether to run the small suites.
        algorithms: rows or families with commas between them.
        cells: cells with commas between them.
        seeds: seeds of every learner.
        resume: whether to go on in a folder of another plan.
        numbers: further fields of `SuitePlan`.
        options: options of `ecn_marl.make` for everything.
        settings: settings of trainers.
    """

    names: list[str]
    small: bool
    algorithms: str | None
    cells: str | None
    seeds: int
    resume: bool
    numbers: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def bench(
    options: Options, out: Path, results: Path | None, as_json: bool, workers: int | str = 1
) -> None:
    """Run suites, write everything, print the tables of claims.

    Raises:
        ValueError: see `experiments.papers.run`.
    """
    from ecn_marl._files import write_all
    from ecn_marl.experiments.papers import SUITES, suite
    from ecn_marl.experiments.papers.outcome import outcome
    from ecn_marl.experiments.papers.publish import publish
    from ecn_marl.experiments.papers.run import SuitePlan, check_folder, protocol, run_suite
    from ecn_marl.experiments.plan import policy_names
    from ecn_marl.render.papers import choices_markdown, claims_markdown
    from ecn_marl.speed.machine import describe

    only, cells = (
        tuple(x.strip() for x in policy_names(listed or "") if x.strip())
        for listed in (options.algorithms, options.cells)
    )
    names = list(SUITES) if ALL in options.names else list(dict.fromkeys(options.names))
    common = {"options": options.options, "settings": options.settings, **options.numbers}
    plans = [
        SuitePlan(
            suite(name, options.small),
            out.absolute() / name,
            options.small,
            options.seeds,
            only,
            cells,
            **common,  # with `records`: places are `PAPER/CELL`, so papers may share the folder
        )
        for name in names
    ]
    for plan in plans:
        check_folder(plan, options.resume)
    outcomes = []
    for plan in plans:
        with stages(plan.suite.name) as (show, stage):
            records = run_suite(plan, show, stage, options.resume, workers)
        outcomes.append(outcome(plan.suite, records, protocol(plan)))
    text, files = publish(outcomes, out, describe(), join(["ecn-marl", *sys.argv[1:]]))
    if results is not None:
        write_all({results: text})
    if as_json:
        typer.echo(text, nl=False)
        return
    for paper in outcomes:
        table = claims_markdown(paper) if paper["claims"] else choices_markdown(paper)
        typer.echo(f"## {paper['title']}\n\n{table}\n")
    typer.echo(f"{out}: {', '.join(path.name for path in files)}", err=True)


@contextmanager
def stages(name: str) -> Iterator[tuple[Callable[[str], Move], Callable[[int, int], None]]]:
    """A bar for each task, with the number of finished trainings and cells, and the time left.

    Args:
        name: name of the suite.

    Returns:
        `show(task)`, which opens a bar for a task and closes the last one, and
        `stage(done, total)`, to be called when a training or cell is finished.
    """
    with ExitStack() as stack:
        began, done, all_stages = time.monotonic(), 0, 1

        def stage(done_now: int, total: int) -> None:
            nonlocal done, all_stages
            done, all_stages = done_now, total

        def show(task: str) -> Move:
            stack.close()
            left = ""
            if done:
                per_stage = (time.monotonic() - began) / done
                left = f", about {clock(per_stage * (all_stages - done))} left"
            title = f"{name} {done}/{all_stages}{left}: {task}"
            move = stack.enter_context(progress(title, "%", 100.0))
            return lambda share, note="": move(100.0 * min(share, 1.0), note)

        yield show, stage
