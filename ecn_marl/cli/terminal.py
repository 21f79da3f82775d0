"""What commands share: options, progress bars, tables."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]


Load = Annotated[
    float | None,
    typer.Option(help="Load of all traffic sources that have one, 1 = line rate; up to 1.5."),
]
MaxSteps = Annotated[int | None, typer.Option(help="Tuning intervals per episode.", min=1)]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A field of the scenario, e.g. transport=dcqcn:paper, dt_us=auto, jitter_us=2, "
        "pfc=false; JSON where it is not a number or a word. Repeatable.",
    ),
]
Episodes = Annotated[int, typer.Option(help="Episodes per policy.", min=1)]


@contextmanager
def progress(
    task: str, unit: str, total: float, lines: bool = True, quiet: bool = False
) -> Iterator[Any]:
    """A progress bar on a terminal, and a function `show(done, note="")` to move it.

    Where there is no terminal, `lines` writes a line at every tenth of the way instead. With
    `quiet` nothing is shown.
    """
    from rich import progress as rp
    from rich.console import Console

    terminal = sys.stderr.isatty() and not quiet
    bar = rp.Progress(
        rp.TextColumn("{task.description}"),
        rp.BarColumn(bar_width=30),
        rp.TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
        rp.TextColumn("{task.fields[note]}"),
        rp.TextColumn("left"),
        rp.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not terminal,
    )
    tenth = 0

    def show(done: float, note: str = "") -> None:
        nonlocal tenth
        bar.update(row, completed=done, note=note)
        if lines and not (terminal or quiet) and int(10 * done / total) > tenth:
            tenth = int(10 * done / total)
            typer.echo(f"{task}: {done:,.0f}/{total:,.0f} {unit} {note}".rstrip(), err=True)

    with bar:
        row = bar.add_task(task, total=total, note="")
        yield show


def console() -> Any:
    """A console as wide as the terminal, or 110 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def show_tables(tables: list[Any]) -> None:
    """Print tables of rich."""
    wide = console()
    for table in tables:
        wide.print(table)


def show_results(result: dict[str, Any], as_json: bool) -> None:
    """Print what a training or an evaluation found, as JSON or as a table."""
    from ecn_marl._files import json_text
    from ecn_marl.experiments.workflow import label
    from ecn_marl.report.tables import evaluation_tables

    if as_json:
        typer.echo(json_text(result))
    elif "evaluation" in result:
        show_tables(evaluation_tables(result["evaluation"], label, console().width))


def write_bytes(data: bytes, file: Any) -> None:
    """Write to an open file, with the arguments as `functools.partial` wants them."""
    file.write(data)
