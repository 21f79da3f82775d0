"""The command that trains and scores everything: bench."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli.app import app
from ecn_marl.cli.terminal import Json, MaxSteps, progress


@app.command()
def bench(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCENARIO]...", help="Scenarios.", show_default="demand-phases-v0"),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…",
            help="Trainers (ippo, mappo, ddqn, haecn, c-acc) and rules (SECN1, static:best, "
            "dynamic:pi, oracle, random, …); static:best and oracle come in any case.",
            show_default="all trainers, SECN1, SECN2, random",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of every learner.", min=1)] = 5,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps per seed.", min=1, show_default="each trainer's recipe"
        ),
    ] = None,
    episodes: Annotated[
        int, typer.Option(help="Evaluation episodes per policy and seed.", min=1)
    ] = 128,
    eval_seed: Annotated[
        int, typer.Option(help="Seed of the evaluation episodes; no training has it.")
    ] = 2000,
    max_steps: MaxSteps = None,
    envs: Annotated[
        int | None, typer.Option(help="Environments stepped at once.", show_default="the recipe's")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of the bench; what it has of it is not done again.")
    ] = Path("runs/bench"),
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write results.json here, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train and score everything on scenarios, side by side; prints the table as Markdown."""
    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.baselines.common.training import TrainingDiverged, TrainingInterrupted
    from ecn_marl.benchmark.machine import describe
    from ecn_marl.experiments import bench as bn
    from ecn_marl.experiments.workflow import given
    from ecn_marl.report.bench_table import bench_table

    if results is not None:
        check_output("--results", results)
    names = bn.DEFAULT if algorithms is None else tuple(algorithms.split(","))
    plan = bn.Plan(
        tuple(scenarios or ["demand-phases-v0"]),
        tuple(bn.policy_name(name) for name in names),
        out,
        seeds,
        steps,
        episodes,
        eval_seed,
        given(max_steps=max_steps),
        given(envs=envs),
    )
    try:
        with _bars() as show:
            result = {**bn.bench(plan, show), "machine": describe()}
    except TrainingDiverged as error:
        typer.echo(f"ecn-marl: {error}", err=True)
        raise typer.Exit(1) from None
    except TrainingInterrupted as error:
        typer.echo(f"ecn-marl: {error}; the same command goes on from there", err=True)
        raise typer.Exit(128 + error.signal) from None
    table = bench_table(result, bn.title)
    bn.write_results(out, result, table)
    text = json_text(result) + "\n"
    if results is not None:
        write_all({results: Output("w", lambda file: file.write(text))})
    typer.echo(text if as_json else table, nl=False)


@contextmanager
def _bars() -> Iterator[Any]:
    """A function that opens a progress bar for a task in place of the last one."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def show(task: str) -> Any:
            stack.close()
            move = stack.enter_context(progress(task, "%", 100.0))
            return lambda share, note="": move(100.0 * min(share, 1.0), note)

        yield show
