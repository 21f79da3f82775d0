"""Commands about the simulator: replay, validate, speed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ecn_marl.cli.app import app
from ecn_marl.cli.bars import progress
from ecn_marl.cli.terminal import (
    Json,
    Seed,
    show_tables,
    write_bytes,
)


@app.command()
def replay(
    flows: Annotated[
        Path, typer.Argument(help="CSV (or .gz) of flow_id,src,dst,size_B,start_ns[,spine_data].")
    ],
    topology: Annotated[
        str,
        typer.Option(
            help="star:HOSTS, dumbbell:LEFT,RIGHT, parking-lot:HOPS, "
            "leaf-spine:LEAVES,HOSTS,SPINES or fat-tree:K."
        ),
    ],
    link_gbps: Annotated[float, typer.Option(help="Rate of host links, Gb/s.")] = 25.0,
    uplink_gbps: Annotated[float, typer.Option(help="Rate between switches, Gb/s.")] = 100.0,
    delay_us: Annotated[float, typer.Option(help="One-way delay of every link, µs.")] = 1.0,
    buffer_mib: Annotated[float, typer.Option(help="Shared buffer per switch, MiB.")] = 32.0,
    transport: Annotated[
        str, typer.Option(help="Senders: dcqcn:PRESET, dctcp, timely, hpcc, swift, reno.")
    ] = "dcqcn:hpcc-paper",
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
    from ecn_marl.render.tables import replay_tables
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
    flow_list = rp.read_flows(flows, network)
    with progress("replay", "µs", duration_ms * 1e3, lines=False) as show:
        result = rp.replay(flow_list, network, settings, show)
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
        show_tables(replay_tables(summary))


@app.command()
def validate(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all lines here, as JSON.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw recorded and simulated side by side.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Cases whose name has this in it, or *.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A selection of the cases.")] = False,
    long: Annotated[
        bool, typer.Option("--long", help="Only the runs of 12 to 100 simulated seconds.")
    ] = False,
    dt_us: Annotated[
        float | None,
        typer.Option(
            metavar="MICROSECONDS",
            help="Substep instead of the default; nothing is expected of it.",
        ),
    ] = None,
    write_expected: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the verdicts of this run as the expected ones."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the simulator with theory and with recorded packet-level runs.

    Exits with 1 if a verdict is another than the expected one, better or worse; with --dt-us or
    --long, if a line is out of tolerance.

    Takes a few minutes on two cores; with --long tens of minutes.
    """
    import time

    from ecn_marl._errors import bad_value
    from ecn_marl._files import Output, check_output, check_output_folder, json_text, write_all
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
    outputs, text = {}, json_text(report(done, seconds))
    if out is not None:
        outputs[out] = Output("w", lambda file: file.write(text + "\n"))
    if plots is not None:
        from ecn_marl.render.validation_plots import pages

        for name, png in pages(done).items():
            outputs[plots / f"{name}.png"] = Output("wb", partial(write_bytes, png))
    if write_expected is not None:
        verdicts = ex.as_csv(lines)
        outputs[write_expected] = Output("w", lambda file: file.write(verdicts))
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
    senders: Annotated[
        bool, typer.Option("--senders", help="What a flow costs under each kind of sender.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Only the first step of parallel_env, in new processes.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Only what lanes make of a step: loops, what skips idle."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write everything here, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure steps per second, compile times and memory, with their spread."""
    from ecn_marl._files import Output, check_output, json_text, write_all
    from ecn_marl.speed import report
    from ecn_marl.speed.programs import parse_counts
    from ecn_marl.speed.timing import Plan

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
    )
    result = report.run(request, lambda task: typer.echo(f"speed: {task}", err=True))
    text = json_text(result)
    if out is not None:
        write_all({out: Output("w", lambda file: file.write(text + "\n"))})
    if as_json:
        typer.echo(text)
        return
    typer.echo(report.heading(result))
    show_tables(report.tables(result))
