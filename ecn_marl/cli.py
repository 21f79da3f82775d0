"""The command line, `ecn-marl`.

Commands import what they need when they run, so that `ecn-marl --help` answers at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
def _progress(unit: str, total: float) -> Iterator[Any]:
    """A progress bar on a terminal, and a function `advance_to(done)` to move it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("replay", total=total)
        yield lambda done: bar.update(task, completed=done)


def _print(tables: list[Any]) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110)
    for table in tables:
        console.print(table)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1)]


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
    from ecn_marl._files import Output, check_output, write_all
    from ecn_marl.envs.actions import parse_ecn
    from ecn_marl.report import replay_tables
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
    with _progress("µs", duration_ms * 1e3) as advance_to:
        result = rp.replay(listed, network, settings, advance_to)
    outputs = {}
    if out is not None:
        outputs[out] = Output("w", lambda file: rp.write_fct(result, file))
    if queues is not None:
        outputs[queues] = Output("wb", lambda file: rp.write_queues(result, file))
    write_all(outputs)
    summary = result.summary()
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        _print(replay_tables(summary))


@app.command()
def scenarios(as_json: Json = False) -> None:
    """List the registered scenarios."""
    from ecn_marl.envs.registry import make
    from ecn_marl.envs.registry import scenarios as names
    from ecn_marl.report import scenario_table

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
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print([scenario_table(rows)])


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
