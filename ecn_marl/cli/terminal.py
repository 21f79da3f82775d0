"""Options and tables that several commands use; progress bars are in `bars`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
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


def console() -> Any:
    """A console as wide as the terminal, or 110 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def show_tables(tables: list[Any]) -> None:
    """Print tables of rich; on a narrow terminal, columns that do not fit move below."""
    from ecn_marl.render.fitting import fitted

    terminal = console()
    for table in tables:
        for part in fitted(table, terminal.width):
            terminal.print(part)


def show_results(result: dict[str, Any], as_json: bool) -> None:
    """Print results of a training or an evaluation, as JSON or as a table."""
    from ecn_marl._files import json_text
    from ecn_marl.experiments.workflow import label
    from ecn_marl.render.tables import evaluation_tables

    if as_json:
        typer.echo(json_text(result))
    elif "evaluation" in result:
        show_tables(evaluation_tables(result["evaluation"], label, console().width))


def write_bytes(data: bytes, file: Any) -> None:
    """Write to an open file; the order of arguments suits `functools.partial`."""
    file.write(data)
