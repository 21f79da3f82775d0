"""Commands that measure the simulator: validate, speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import Json, given_options, refuse, show_tables
from ecn_marl.render.bars import progress

ALONE = {
    "gpu": ("runs", "envs", "train"),
    "cold": ("runs",),
    "gpu_plan": ("envs",),
    "explain": (),
}
"""Options of `speed` that measure one thing alone, or nothing, and the options that go with each,
besides `--scenario`, `--out` and `--json`."""


@app.command(
    epilog=examples_text("ecn-marl validate --quick", "ecn-marl validate --only 'leaf-spine/*'")
)
def validate(
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all comparisons to this file, as JSON.",
            show_default="no file",
        ),
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Draw recorded and simulated curves side by side into this folder.",
            show_default="no plots",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Run the cases whose name contains this text, or matches it as a pattern with *.",
            show_default="all cases",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a selection of quick cases only.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", help="Run only the cases of 12 to 100 simulated seconds.")
    ] = False,
    dt_us: Annotated[
        float | None,
        typer.Option(
            metavar="MICROSECONDS",
            help="Substep for all senders, µs. It must divide 10 µs. Verdicts are then not "
            "compared with the expected ones.",
            show_default="1, 2 or 5 µs, by the senders",
        ),
    ] = None,
    write_expected: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the verdicts of this run to a file, as the expected ones.",
            show_default="no file",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the simulator with closed forms and with recorded packet-level runs.

    Exits with 1 if a verdict differs from the expected one, for better or worse. With --dt-us or
    --long it exits with 1 if a comparison is out of tolerance.

    Takes a few minutes on two cores, and tens of minutes with --long.
    """
    import time

    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output, check_output_folder, json_text, write_all
    from ecn_marl.render.validation_table import all_lines, report, validation_table, verdict_text
    from ecn_marl.validation import expected as ex
    from ecn_marl.validation.pool import run_cases
    from ecn_marl.validation.registry import select
    from ecn_marl.validation.runs import force_dt_us

    if out is not None:
        check_output("--out", out)
    if plots is not None:
        check_output_folder("--plots", plots)
        plots.mkdir(parents=True, exist_ok=True)
    cases = select(only, quick, long)
    if write_expected is not None:
        check_output("--write-expected", write_expected)
        if only or quick or long or dt_us is not None:
            allowed = "a run of all cases as they are"
            raise bad_value("--write-expected", str(write_expected), allowed)
    if dt_us is not None:
        force_dt_us(dt_us)
    start = time.perf_counter()
    with progress("validate", "cases", len(cases)) as show:
        done = run_cases(cases, show=show)
    seconds = time.perf_counter() - start
    lines = all_lines(done)
    outputs: dict[Path, str | bytes] = {}
    text = json_text(report(done, seconds))
    if out is not None:
        outputs[out] = text + "\n"
    if plots is not None:
        from ecn_marl.render.validation_plots import pages  # imports matplotlib, which is slow

        for name, png in pages(done).items():
            outputs[plots / f"{name}.png"] = png
    if write_expected is not None:
        outputs[write_expected] = ex.as_csv(lines)
    write_all(outputs)
    if as_json:
        typer.echo(text)
    else:
        show_tables([validation_table(lines)])
        typer.echo(verdict_text(lines, seconds))
    if dt_us is not None or long:
        raise typer.Exit(int(any(line.verdict == "FAIL" for line in lines)))
    if write_expected is None:
        changed = ex.changes(lines, ex.expected(), all_cases=not only and not quick)
        if changed:
            typer.echo(ex.changes_text(changed), err=as_json)
            raise typer.Exit(1)
        if not as_json:
            typer.echo("Every verdict is as expected: lines out of tolerance are known misses.")


@app.command(
    epilog=examples_text(
        "ecn-marl speed --scenario websearch-v0 --envs 1,1000",
        "ecn-marl speed --scenario websearch-v0 --envs 64 --train ippo --out speed.json",
    )
)
def speed(
    context: typer.Context,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a scenario. Repeatable.",
            show_default="websearch-v0, incast-v0, pet-websearch-v0",
        ),
    ] = None,
    envs: Annotated[
        str,
        typer.Option(help="Numbers of environments stepped at once, with commas between them."),
    ] = "1,100,1000",
    train: Annotated[
        str | None,
        typer.Option(
            metavar="LEARNER",
            help="Also measure the training of this learner, for example ippo.",
            show_default="none",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of a timed run.", show_default="as many as take about 1 s", min=1),
    ] = None,
    runs: Annotated[
        int, typer.Option(help="Number of timed runs after a warm-up, at least 5.")
    ] = 5,
    devices: Annotated[
        int | None,
        typer.Option(
            help="Number of devices that share the environments. On a CPU, each takes one core.",
            show_default="all devices, or all cores of a CPU",
        ),
    ] = None,
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Also measure how the time of a step grows with environments, ports, flow slots, "
            "substeps and devices.",
        ),
    ] = False,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Also measure JaxMARL's environments, and a replay beside the recorded times of a "
            "packet simulator.",
        ),
    ] = False,
    stages: Annotated[
        bool,
        typer.Option(
            "--stages",
            help="Also measure the stages of a step of the first scenario, beside a lower bound of "
            "its time.",
        ),
    ] = False,
    senders: Annotated[
        bool,
        typer.Option(
            "--senders",
            help="Also measure the CPU time per flow under each kind of sender, in the first "
            "scenario.",
        ),
    ] = False,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="Only measure the first reset and step of parallel_env, in new processes.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Measure nothing. Print the loops that `ecn_marl.lanes` compiles for a step, and "
            "which of them skip free flow slots.",
        ),
    ] = False,
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Only measure the kernel of `ecn_marl.lanes` beside XLA on an NVIDIA GPU: whether "
            "their results agree, and steps per second.",
        ),
    ] = False,
    gpu_plan: Annotated[
        bool,
        typer.Option(
            "--gpu-plan",
            help="Measure nothing. Compile steps for an H100, which need not be there: launches, "
            "bytes and a bound of XLA's program, registers and shared memory of the kernel.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all results to this file, as JSON.", show_default="no file"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure steps per second, compile times and memory: median, range and interquartile range."""
    from ecn_marl._files import check_output, json_text, write_all
    from ecn_marl.speed import report
    from ecn_marl.speed.programs import parse_counts
    from ecn_marl.speed.timing import Plan

    given = {name: x for name, x in given_options(context).items() if x is not False}
    for alone in [name for name in ALONE if name in given][:1]:
        known = ("scenario", "out", "as_json", alone, *ALONE[alone])
        others = [name for name in given if name not in known]
        refuse(given, others, f"no such option with --{alone.replace('_', '-')}")
    if out is not None:
        check_output("--out", out)
    request = report.Request(
        scenarios=tuple(scenario or report.SCENARIOS),
        envs=parse_counts("--envs", envs),
        train=train,
        plan=Plan(runs, steps),
        devices=devices,
        scaling=scaling,
        peers=peers,
        stages=stages,
        senders=senders,
        cold=cold,
        explain=explain,
        gpu=gpu,
        gpu_plan=gpu_plan,
    )
    result = report.run(request, lambda task: typer.echo(f"speed: {task}", err=True))
    text = json_text(result)
    if out is not None:
        write_all({out: text + "\n"})
    if as_json:
        typer.echo(text)
        return
    typer.echo(report.heading(result))
    show_tables(report.tables(result))
