"""The command line, `ecn-marl`.

Commands import what they need when they run, so that `ecn-marl --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class OneLineErrors(TyperGroup):
    """Commands whose errors about what the user gave are one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; show a ValueError or OSError as one line unless `--traceback` is given."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            if ctx.params.get("traceback"):
                raise
            reason = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                reason = f"{error.filename}: {error.strerror}"
            typer.echo("ecn-marl: " + " ".join(reason.split()), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=OneLineErrors,
    name="ecn-marl",
    help="Multi-agent reinforcement learning for automatic ECN tuning in data-centre networks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> bool:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ecn-marl {version('ecn-marl')}")
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error was raised.")
    ] = False,
) -> None:
    """Options of all commands."""


@contextmanager
def _progress(
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


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 110)


def _print(tables: list[Any]) -> None:
    console = _console()
    for table in tables:
        console.print(table)


def _show_results(result: dict[str, Any], as_json: bool) -> None:
    from ecn_marl._files import json_text
    from ecn_marl.report.tables import evaluation_table
    from ecn_marl.workflow import label

    if as_json:
        typer.echo(json_text(result))
    elif "evaluation" in result:
        _print([evaluation_table(result["evaluation"], label, _console().width)])


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]


Load = Annotated[float | None, typer.Option(help="Load of Poisson traffic, 1 = line rate.")]
MaxSteps = Annotated[int | None, typer.Option(help="Tuning intervals per episode.", min=1)]
Episodes = Annotated[int, typer.Option(help="Episodes per policy.", min=1)]


@app.command()
def train(
    algorithm: Annotated[str | None, typer.Argument(help="ippo.")] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Name, see `ecn-marl scenarios`.", show_default="websearch-v0"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps (tuning intervals) per seed.",
            min=1,
            show_default="1,000,000",
        ),
    ] = None,
    envs: Annotated[
        int | None, typer.Option(help="Environments stepped at once.", show_default="64")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1, show_default="0"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Learners trained at once: SEED, SEED+1, …", show_default="1"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/NAME")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run that was stopped; --steps adds to it."),
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="What agents see: acc, pet, haecn.", show_default="acc")
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="What they set: multidiscrete, discrete, box.", show_default="multidiscrete"
        ),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help="What they are paid: acc, pet, haecn.", show_default="acc")
    ] = None,
    load: Load = None,
    max_steps: MaxSteps = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the trainer. Repeatable."),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            help="Updates between scores that tell the best checkpoint, 0 for none.",
            show_default="20 times a run",
        ),
    ] = None,
    eval_episodes: Annotated[
        int | None, typer.Option(help="Episodes per score.", show_default="16")
    ] = None,
    save_updates: Annotated[
        int | None,
        typer.Option(help="Updates between checkpoints.", show_default="by --save-seconds"),
    ] = None,
    save_seconds: Annotated[float, typer.Option(help="Age at which one is due, s.")] = 300.0,
    devices: Annotated[
        int, typer.Option(help="Devices that share the environments; on a CPU, cores.")
    ] = 1,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,N,I",
            help="This is process I of N that share the environments; 0 listens at HOST:PORT.",
        ),
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Log to Weights & Biases, too.")
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Evaluate beside SECN1 and SECN2 afterwards.")
    ] = False,
    episodes: Episodes = 64,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a policy: configuration, metrics, checkpoints and learning curve go to a folder."""
    from ecn_marl import workflow as wf
    from ecn_marl.baselines.runs import Session

    first = wf.join(distributed, devices)
    asked = wf.given(
        scenario=scenario,
        steps=steps,
        envs=envs,
        seed=seed,
        seeds=seeds,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
    )
    view = wf.given(
        features=features, actions=actions, reward=reward, load=load, max_steps=max_steps
    )
    if resume is not None:
        asked |= view | wf.given(algorithm=algorithm, out=None if out is None else str(out))
        job, folder = wf.resumed_job(resume, asked, setting or []), resume
    else:
        job = wf.new_job(algorithm, asked, view, setting or [])
        folder = out or Path("runs") / f"{algorithm}-{job.scenario}-seed{job.seed}"
    session = Session(
        save_updates, save_seconds, None if distributed else devices, wandb if first else None
    )
    rows = _train(job, folder, overwrite, session, resume is not None, quiet=not first)
    if not first:
        return
    result: dict[str, Any] = {"run": str(folder), "training": rows[-1]}
    if evaluate:
        policies = [*wf.learners(folder), "static:secn1", "static:secn2"]
        place = wf.Arena(job.scenario, job.options)
        with _progress("evaluate", "episodes", episodes * len(policies)) as show:
            result["evaluation"] = wf.evaluate(place, policies, episodes, job.seed, show)
        wf.write_evaluation(folder, place, result["evaluation"])
    wf.draw_learning_curve(folder)
    _show_results(result, as_json)
    if not as_json:
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        typer.echo(f"{folder}: {names}")


def _train(
    job: Any, folder: Path, overwrite: bool, session: Any, resume: bool, quiet: bool
) -> list[Any]:
    """Train behind a progress bar; what stops it early is told in one line."""
    from ecn_marl import workflow as wf
    from ecn_marl.baselines.common.training import TrainingDiverged, TrainingInterrupted

    rows: list[Any] = []
    with _progress(f"train {job.algorithm}", "steps", job.total_steps, quiet=quiet) as show:
        try:
            rows = wf.train(job, folder, overwrite, show, session, resume)
        except TrainingDiverged as error:
            typer.echo(f"ecn-marl: {error}", err=True)
            raise typer.Exit(1) from None
        except TrainingInterrupted as error:
            typer.echo(f"ecn-marl: {error}; go on with: ecn-marl train --resume {folder}", err=True)
            raise typer.Exit(128 + error.signal) from None
    return rows


@app.command()
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or FOLDER#I.")],
    out: Annotated[Path, typer.Option(help="The file, e.g. policy.npz.")],
    checkpoint: Annotated[
        str, typer.Option(help="Which policy: best (if it was scored) or latest.")
    ] = "best",
) -> None:
    """Write a trained policy to one file for `ecn_marl.load_policy`, which needs numpy only."""
    from ecn_marl import workflow as wf
    from ecn_marl._files import check_output
    from ecn_marl.baselines.common.policy import save_policy

    check_output("--out", out)
    policy = wf.policy_of(run, checkpoint)
    save_policy(policy, out)
    what = f"{policy.header['algorithm']} of update {policy.header['update']}"
    typer.echo(f"{out}: {what}, {out.stat().st_size / 1000:.0f} KB")


@app.command(name="eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Folders of runs, static:secn1, static:5,200,0.01, static:best, oracle, random, "
            "dynamic:pi (or ecn-sharp, "
            "buffer, utilisation, queue), dynamic:pi:qref_kb=100.",
        ),
    ],
    scenario: Annotated[
        str | None, typer.Option(help="Scenario.", show_default="the run's, else websearch-v0")
    ] = None,
    episodes: Episodes = 64,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    checkpoint: Annotated[
        str, typer.Option(help="Which policy of a run: best (if it was scored) or latest.")
    ] = "best",
    as_json: Json = False,
) -> None:
    """Evaluate trained, static or rule-based policies on episodes that no training has seen."""
    from ecn_marl import workflow as wf

    names = [name for policy in policies for name in wf.learners(policy)]
    place = wf.arena(names, scenario, **wf.given(load=load, max_steps=max_steps))
    place = replace(place, checkpoint=checkpoint)
    with _progress("evaluate", "episodes", episodes * len(names)) as show:
        result = wf.evaluate(place, names, episodes, seed, show)
    _show_results({"evaluation": result}, as_json)


@app.command()
def play(
    policy: Annotated[
        str,
        typer.Argument(help="Folder of a run (FOLDER#I: its I-th seed), static:…, dynamic:…."),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .html, .gif or .mp4.")],
    scenario: Annotated[
        str | None, typer.Option(help="Scenario.", show_default="the run's, else websearch-v0")
    ] = None,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    fps: Annotated[int, typer.Option(help="Intervals per second (gif, mp4).", min=1, max=50)] = 10,
) -> None:
    """Watch an episode: a page with a time slider, a GIF or a film."""
    from ecn_marl import workflow as wf
    from ecn_marl._files import Output, check_output, write_all
    from ecn_marl.report import player
    from ecn_marl.report.episode import record

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    place = wf.arena([policy], scenario, **wf.given(load=load, max_steps=max_steps))
    env, controller = place.env(policy), place.controller(policy)
    episode = record(env, env.default_params, controller, seed)
    data = player.content(env, episode, wf.label(policy), seed, suffix, fps)
    write_all({out: Output("wb", partial(_write_bytes, data))})
    size = len(data) / 1e6
    typer.echo(f"{out}: {env.horizon} intervals, {len(episode.flows)} flows, {size:.1f} MB")


@app.command()
def replay(
    flows: Annotated[
        Path, typer.Argument(help="CSV (or .gz) of flow_id,src,dst,size_B,start_ns[,spine_data].")
    ],
    topology: Annotated[
        str, typer.Option(help="star:HOSTS, dumbbell:LEFT,RIGHT or leaf-spine:LEAVES,HOSTS,SPINES.")
    ],
    link_gbps: Annotated[float, typer.Option(help="Rate of host links, Gb/s.")] = 25.0,
    uplink_gbps: Annotated[float, typer.Option(help="Rate between switches, Gb/s.")] = 100.0,
    delay_us: Annotated[float, typer.Option(help="One-way delay of every link, µs.")] = 1.0,
    buffer_mib: Annotated[float, typer.Option(help="Shared buffer per switch, MiB.")] = 32.0,
    transport: Annotated[str, typer.Option(help="Senders, dcqcn:PRESET.")] = "dcqcn:hpcc-paper",
    ecn: Annotated[
        str, typer.Option(help="secn1, secn2 or KMIN,KMAX,PMAX; KB for a port at --link-gbps.")
    ] = "secn1",
    dt_us: Annotated[float, typer.Option(help="Substep, µs; divides 10 µs.")] = 1.0,
    duration_ms: Annotated[float, typer.Option(help="Simulated time, ms.")] = 60.0,
    slots: Annotated[
        int | None,
        typer.Option(help="Flows in progress at most.", show_default="all, up to 512"),
    ] = None,
    pfc: Annotated[bool, typer.Option(help="Pause upstream links when buffers fill.")] = True,
    ack_priority: Annotated[
        bool, typer.Option("--ack-priority", help="ACKs and CNPs in a class of their own.")
    ] = False,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="CSV of flow_id,size_B,start_ns,fct_ns,slowdown.")
    ] = None,
    queues: Annotated[
        Path | None, typer.Option(help="npz of time_us, queue_bytes, tx_bytes, port; every 10 µs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a list of flows through a network under fixed ECN thresholds."""
    from ecn_marl._errors import bad_value
    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.envs.actions import parse_ecn
    from ecn_marl.report.tables import replay_tables
    from ecn_marl.sim import replay as rp
    from ecn_marl.sim.topology import parse_topology

    for option, path in (("--out", out), ("--queues", queues)):
        if path is not None:
            check_output(option, path)
            if path.resolve() == flows.resolve():
                raise bad_value(option, str(path), "a file other than the flow list")
    if out is not None and queues is not None and out.resolve() == queues.resolve():
        raise bad_value("--queues", str(queues), "a file other than --out")
    network = parse_topology(topology, gbps=link_gbps, uplink_gbps=uplink_gbps, delay_us=delay_us)
    settings = rp.Settings(
        transport=transport,
        ecn=parse_ecn(ecn),
        ecn_gbps=link_gbps,
        dt_us=dt_us,
        duration_ms=duration_ms,
        seed=seed,
        buffer_mib=buffer_mib,
        slots=slots,
        pfc=pfc,
        ack_priority=ack_priority,
    )
    listed = rp.read_flows(flows, network)
    with _progress("replay", "µs", duration_ms * 1e3, lines=False) as show:
        result = rp.replay(listed, network, settings, show)
    outputs = {}
    if out is not None:
        outputs[out] = Output("w", lambda file: rp.write_fct(result, file))
    if queues is not None:
        outputs[queues] = Output("wb", lambda file: rp.write_queues(result, file))
    write_all(outputs)
    summary = result.summary()
    if as_json:
        typer.echo(json_text(summary))
    else:
        _print(replay_tables(summary))


@app.command()
def validate(
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all lines as JSON.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw recorded and simulated side by side.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Cases whose name has this in it, or *.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A selection of the cases.")] = False,
    dt_us: Annotated[
        float | None, typer.Option(metavar="MICROSECONDS", help="Substep instead of the default.")
    ] = None,
) -> None:
    """Compare the simulator with theory and with recorded packet-level runs.

    Exits with 1 if a line is out of tolerance.

    Takes a few minutes on two cores.
    """
    import time

    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.validation.pool import run_cases
    from ecn_marl.validation.registry import select
    from ecn_marl.validation.runs import force_dt_us
    from ecn_marl.validation.table import all_lines, report, validation_table, verdict_text

    if json_file is not None:
        check_output("--json", json_file)
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
    chosen = select(only, quick)
    if dt_us is not None:
        force_dt_us(dt_us)
    start = time.perf_counter()
    with _progress("validate", "cases", len(chosen)) as show:
        done = run_cases(chosen, show=show)
    seconds = time.perf_counter() - start
    lines = all_lines(done)
    outputs = {}
    if json_file is not None:
        text = json_text(report(done, seconds))
        outputs[json_file] = Output("w", lambda file: file.write(text + "\n"))
    if plots is not None:
        from ecn_marl.report.validation_plots import pages

        for name, png in pages(done).items():
            outputs[plots / f"{name}.png"] = Output("wb", partial(_write_bytes, png))
    write_all(outputs)
    _print([validation_table(lines)])
    typer.echo(verdict_text(lines, seconds))
    if any(line.verdict == "FAIL" for line in lines):
        raise typer.Exit(1)


def _write_bytes(data: bytes, file: Any) -> None:
    file.write(data)


@app.command()
def speed(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Scenario. Repeatable.", show_default="all built-in")
    ] = None,
    envs: Annotated[str, typer.Option(help="Environments stepped at once.")] = "1,100,1000",
    train: Annotated[str | None, typer.Option(help="Measure a trainer, too: ippo.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps of a timed run.", show_default="about 1 s", min=1)
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed runs after a warm-up, at least 5.")] = 5,
    devices: Annotated[
        int | None,
        typer.Option(help="Devices that share the environments.", show_default="all; CPU: cores"),
    ] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Time against environments, ports, slots, substeps.")
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="JaxMARL, a packet simulator's recorded times, replay.")
    ] = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="Where the time goes, and the least it could be.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")
    ] = None,
) -> None:
    """Measure steps per second, compile times and memory, with their spread."""
    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.benchmark import report
    from ecn_marl.benchmark.programs import parse_counts
    from ecn_marl.benchmark.timing import Plan

    if json_file is not None:
        check_output("--json", json_file)
    request = report.Request(
        scenarios=tuple(scenario or report.SCENARIOS),
        envs=parse_counts("--envs", envs),
        train=train,
        plan=Plan(runs, steps),
        devices=devices,
        scaling=scaling,
        peers=peers,
        stages=stages,
    )
    result = report.run(request, lambda task: typer.echo(f"speed: {task}", err=True))
    if json_file is not None:
        text = json_text(result)
        write_all({json_file: Output("w", lambda file: file.write(text + "\n"))})
    typer.echo(report.heading(result))
    _print(report.tables(result))


@app.command()
def headroom(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario.")],
    episodes: Episodes = 64,
    tries: Annotated[
        int, typer.Option(help="Episodes that every setting of the grid is tried on.", min=1)
    ] = 8,
    seed: Seed = 0,
    reward: Annotated[str, typer.Option(help="What is earned: acc, pet, haecn.")] = "acc",
    load: Load = None,
    max_steps: MaxSteps = None,
    as_json: Json = False,
) -> None:
    """Measure what adaptivity can gain: the oracle per traffic phase against the best static."""
    from ecn_marl import headroom as hr
    from ecn_marl._files import json_text
    from ecn_marl.envs.registry import make
    from ecn_marl.report.headroom_table import headroom_table
    from ecn_marl.workflow import given

    env = make(scenario, reward=reward, **given(load=load, max_steps=max_steps))
    with _progress("headroom", "policies", hr.POLICIES) as show:
        result = hr.headroom(env, seed=seed, episodes=episodes, tries=tries, progress=show)
    if as_json:
        typer.echo(json_text(result))
    else:
        _print([headroom_table(result)])


@app.command()
def scenarios(as_json: Json = False) -> None:
    """List the registered scenarios."""
    from ecn_marl._files import json_text
    from ecn_marl.envs.registry import make
    from ecn_marl.envs.registry import scenarios as names
    from ecn_marl.report.tables import scenario_table

    rows = []
    for name in names():
        env = make(name)
        net = env.sim.topology
        rows.append(
            {
                "name": name,
                "topology": net.name,
                "hosts": net.n_hosts,
                "agents": env.num_agents,
                "port_gbps": sorted({p.gbps for p in net.ports}),
                "transport": f"dcqcn:{env.sim.transport.name}",
                "interval_us": env.interval_us,
                "max_steps": env.horizon,
            }
        )
    if as_json:
        typer.echo(json_text(rows))
    else:
        _print([scenario_table(rows)])


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
