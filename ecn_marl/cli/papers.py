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

from ecn_marl.cli.bars import clock, progress

ALL = "all"


def are_papers(names: list[str] | None) -> bool:
    """Whether what is benched are papers; a mixture with scenarios is none."""
    from ecn_marl.experiments.papers import SUITES

    return bool(names) and all(name == ALL or name in SUITES for name in names or [])


@dataclass(frozen=True)
class Asked:
    """Options of `bench` that papers have; None or empty for the suite's own.

    Attributes:
        names: papers, or `all`.
        small: whether the small suites.
        algorithms: rows or families with commas between them.
        seeds: seeds of every learner.
        resume: whether to go on in a folder of another plan.
        numbers: further fields of `SuitePlan`.
        options: options of `ecn_marl.make` for everything.
        settings: settings of trainers.
    """

    names: list[str]
    small: bool
    algorithms: str | None
    seeds: int
    resume: bool
    numbers: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def bench(asked: Asked, out: Path, results: Path | None, as_json: bool) -> None:
    """Run suites, write everything, print the tables of claims.

    Raises:
        ValueError: see `experiments.papers.run`.
    """
    from ecn_marl._files import Output, write_all
    from ecn_marl.experiments.papers import SUITES, suite
    from ecn_marl.experiments.papers.outcome import outcome
    from ecn_marl.experiments.papers.publish import publish
    from ecn_marl.experiments.papers.run import SuitePlan, check_folder, protocol, run_suite
    from ecn_marl.render.papers import claims_markdown
    from ecn_marl.speed.machine import describe

    only = tuple(x.strip() for x in (asked.algorithms or "").split(",") if x.strip())
    names = list(SUITES) if ALL in asked.names else list(dict.fromkeys(asked.names))
    common = {"options": asked.options, "settings": asked.settings, **asked.numbers}
    plans = [
        SuitePlan(suite(name, asked.small), out / name, asked.small, asked.seeds, only, **common)
        for name in names
    ]
    for plan in plans:
        check_folder(plan, asked.resume)
    outcomes = []
    for plan in plans:
        with stages(plan.suite.name) as (show, stage):
            records = run_suite(plan, show, stage, asked.resume)
        outcomes.append(outcome(plan.suite, records, protocol(plan)))
    text, files = publish(outcomes, out, describe(), join(["ecn-marl", *sys.argv[1:]]))
    if results is not None:
        write_all({results: Output("w", lambda file: file.write(text))})
    if as_json:
        typer.echo(text, nl=False)
        return
    for one in outcomes:
        typer.echo(f"## {one['title']}\n\n{claims_markdown(one)}\n")
    typer.echo(f"{out}: {', '.join(path.name for path in files)}", err=True)


@contextmanager
def stages(name: str) -> Iterator[tuple[Callable[[str], Any], Callable[[int, int], None]]]:
    """A bar for each task, which says how many trainings and cells are done, and the time left."""
    with ExitStack() as stack:
        began, done, whole = time.monotonic(), 0, 1

        def stage(now: int, total: int) -> None:
            nonlocal done, whole
            done, whole = now, total

        def show(task: str) -> Any:
            stack.close()
            left = ""
            if done:
                each = (time.monotonic() - began) / done
                left = f", about {clock(each * (whole - done))} left"
            title = f"{name} {done}/{whole}{left}: {task}"
            move = stack.enter_context(progress(title, "%", 100.0))
            return lambda share, note="": move(100.0 * min(share, 1.0), note)

        yield show, stage
