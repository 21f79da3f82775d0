"""Options and tables that several commands use; progress bars are in `bars`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ecn_marl.experiments.results import Result

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]
Backend = Annotated[
    str,
    typer.Option(
        metavar="fluid|packets",
        help="What simulates the network: fluid, or packets, one by one (extra `packets`).",
    ),
]

LOAD_HELP = "Load of all traffic sources that have one, a share of the line rate; at most 1.5."
MAX_STEPS_HELP = (
    "Length of an episode, in the tuning intervals of the scenario as it is registered. It lasts "
    "as long whatever the interval of a policy is."
)
SCENARIOS, RUNS = "the scenario's", "the first run's, else the scenario's"

Load = Annotated[float | None, typer.Option(help=LOAD_HELP, show_default=SCENARIOS)]
RunLoad = Annotated[float | None, typer.Option(help=LOAD_HELP, show_default=RUNS)]
MaxSteps = Annotated[int | None, typer.Option(help=MAX_STEPS_HELP, min=1, show_default=SCENARIOS)]
RunMaxSteps = Annotated[int | None, typer.Option(help=MAX_STEPS_HELP, min=1, show_default=RUNS)]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Change a field of the scenario, for example transport=dcqcn:paper, dt_us=auto, "
        "jitter_us=2 or pfc=false. A value is a number, a word or JSON. Repeatable.",
        show_default="no changes",
    ),
]
ScenarioName = Annotated[str, typer.Argument(help="Name of a scenario.")]
RunScenario = Annotated[
    str | None,
    typer.Option(help="Name of a scenario.", show_default="the first run's, else restore-serve-v0"),
]
Checkpoint = Annotated[
    str,
    typer.Option(help="Which policy of a run: best (the latest if none was evaluated) or latest."),
]
AllowFlagged = Annotated[
    bool,
    typer.Option(
        "--allow-flagged",
        help="Score results that do not count, too: those in which a structure of fixed size was "
        "too small (flow slots, histories, buffers; docs/limits.md).",
    ),
]
Records = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write tables of all flows, ports and episodes to this folder. Parquet with pyarrow "
        "(extra `records`), CSV without it.",
        show_default="no records",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace records that are in the folder.")
]
Workers = Annotated[
    int,
    typer.Option(
        help="Number of processes, each of which runs an episode at a time with --backend packets"
        "; of bench and tune, also a training at a time.",
        min=1,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on the Ray cluster of this address, or local: on one of this machine, in place "
        "of --workers (extra `ray`). ADDRESS,cpus=2,gpus=0.5 is what a "
        "task takes, one core by default. All machines need the folder --out.",
        show_default="no cluster",
    ),
]
Slurm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=VALUE,…",
        help="Run as jobs of SLURM, in place of --workers (extra `slurm`)"
        ", with parameters of submitit, for example slurm_partition=cpu,timeout_min=240.",
        show_default="no jobs",
    ),
]
SEARCHED = 64
"""Tuning episodes of the end of a search."""

Searches = Annotated[
    int,
    typer.Option(
        help="Number of tuning episodes that the last candidates of a search for a reference "
        "policy (static:best, oracle) run in.",
        min=1,
    ),
]
Episodes = Annotated[int, typer.Option(help="Number of episodes per policy.", min=1)]


def console() -> Console:
    """A console as wide as the terminal, or 110 columns where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def show_tables(tables: list[Table]) -> None:
    """Print tables of rich; on a narrow terminal, columns that do not fit move below."""
    from ecn_marl.render.fitting import fitted

    terminal = console()
    for table in tables:
        for part in fitted(table, terminal.width):
            terminal.print(part)


def show_json_or_tables(result: object, tables: Callable[[], list[Table]], as_json: bool) -> None:
    """Print a result as JSON or as tables, which are made only for that."""
    from ecn_marl._files import json_text

    if as_json:
        typer.echo(json_text(result))
    else:
        show_tables(tables())


def show_results(result: dict[str, Any], as_json: bool) -> None:
    """Print results of a training or an evaluation, as JSON or as a table."""
    from ecn_marl._files import json_text
    from ecn_marl.experiments.policies import resolve
    from ecn_marl.render.tables import evaluation_tables

    if as_json:
        typer.echo(json_text(result))
    elif "evaluation" in result:
        evaluation = result["evaluation"]
        show_tables(
            evaluation_tables(evaluation, lambda name: resolve(name).label, console().width)
        )


def show_rates(result: Result, as_json: bool) -> None:
    """Print the result of an evaluation where flows are the agents, as JSON or as a table."""
    show_json_or_tables(result.summary, result.rich, as_json)
    if result.tables is not None and not as_json:
        typer.echo(f"{result.tables.folder}: {', '.join(result.tables.names)}")


def draw_slowdown(result: Result, quiet: bool) -> None:
    """Draw slowdown against flow size beside the records of an evaluation, and name the files."""
    from ecn_marl.render.record_plots import save

    tables = result.tables
    assert tables is not None
    picture = tables.folder / "slowdown.png"
    save(result.plot.slowdown(), picture)
    if not quiet:
        typer.echo(f"{tables.folder}: {', '.join(sorted(p.name for p in tables.folder.iterdir()))}")


def check_records(records: Path | None, overwrite: bool) -> None:
    """Raise a ValueError unless records can be written, or if there are none to overwrite."""
    from ecn_marl._errors import bad_value
    from ecn_marl._tables import check_folder

    if records is not None:
        check_folder(records, overwrite, "--records")
    elif overwrite:
        raise bad_value("--overwrite", overwrite, "used with --records: it replaces these")


def check_checkpoint(checkpoint: str) -> None:
    """Raise a ValueError unless this is the name of a checkpoint of a run."""
    from ecn_marl._errors import unknown_name
    from ecn_marl.baselines.training.checkpoint import WHICH

    if checkpoint not in WHICH:
        raise unknown_name("checkpoint", checkpoint, WHICH)


def given_options(context: typer.Context) -> dict[str, Any]:
    """Options and arguments that are on the command line, even where they equal the default."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    }


def refuse(options: Mapping[str, object], names: Iterable[str], allowed: str) -> None:
    """Raise a ValueError for the first option of `names` that the user has set."""
    from ecn_marl._errors import bad_value

    for name in names:
        if name in options:
            raise bad_value(f"--{name.replace('_', '-')}", options[name], allowed)


@contextmanager
def stops_in_one_line(advice: str) -> Iterator[None]:
    """Report errors that stop training early in one line.

    Args:
        advice: how to go on after an interruption.
    """
    from ecn_marl.baselines.training.loop import TrainingDiverged, TrainingInterrupted

    try:
        yield
    except TrainingDiverged as error:
        typer.echo(f"ecn-marl: {error}", err=True)
        raise typer.Exit(1) from None
    except TrainingInterrupted as error:
        typer.echo(f"ecn-marl: {error}; {advice}", err=True)
        raise typer.Exit(128 + error.signal) from None  # as shells report a signal


def workers_of(workers: int, ray: str | None, slurm: str | None) -> int | str:
    """Who runs tasks by the three options, as `executors.executor` takes it.

    Raises:
        ValueError: more than one of them.
    """
    from ecn_marl._errors import bad_value

    given = {"--workers": None if workers == 1 else workers, "--ray": ray, "--slurm": slurm}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise bad_value(second, asked[second], f"not used with {first}: each says who runs tasks")
    if ray is not None:
        return f"ray:{ray}"
    return workers if slurm is None else f"slurm:{slurm}"
