"""The command that replays recorded flows: replay."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    Backend,
    Json,
    Overwrite,
    Records,
    Seed,
    check_records,
    refuse,
    show_json_or_tables,
)
from ecn_marl.render.bars import progress

if TYPE_CHECKING:
    from ecn_marl.sim.network.topology import Topology


@app.command(
    epilog=examples_text(
        "ecn-marl replay flows.csv --topology leaf-spine:4,8,2 --ecn 5,200,0.01 --out fct.csv",
        "ecn-marl replay flow.txt --topology topology.txt --config config.txt",
    )
)
def replay(
    flows: Annotated[
        Path,
        typer.Argument(
            help="The flows: a CSV file, or .csv.gz, with the columns flow_id, src, dst, size_B "
            "(bytes) and start_ns, and optionally spine_data (the spine of each flow); or a "
            "flow.txt of the HPCC simulator."
        ),
    ],
    topology: Annotated[
        str,
        typer.Option(
            help="The network: star:HOSTS, dumbbell:LEFT,RIGHT, parking-lot:HOPS, "
            "leaf-spine:LEAVES,HOSTS_PER_LEAF,SPINES or fat-tree:K; or a topology.txt of the HPCC "
            "simulator."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A config.txt of the HPCC simulator: senders, ECN thresholds, buffer, PFC and "
            "duration. Options that are given here go before it.",
            show_default="no file",
        ),
    ] = None,
    link_gbps: Annotated[
        float | None, typer.Option(help="Rate of the links of hosts, Gb/s.", show_default="25")
    ] = None,
    uplink_gbps: Annotated[
        float | None,
        typer.Option(help="Rate of the links between switches, Gb/s.", show_default="100"),
    ] = None,
    delay_us: Annotated[
        float | None, typer.Option(help="One-way delay of every link, µs.", show_default="1")
    ] = None,
    buffer_mib: Annotated[
        float | None,
        typer.Option(
            help="Shared buffer of every switch, MiB.", show_default="the configuration's, else 32"
        ),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            help="The senders: dcqcn:PRESET, dctcp, timely, hpcc, swift, reno, or another preset "
            "of these (KIND:PRESET).",
            show_default="the configuration's, else dcqcn:hpcc-paper",
        ),
    ] = None,
    ecn: Annotated[
        str | None,
        typer.Option(
            help="ECN thresholds of all ports: secn1, secn2 or KMIN,KMAX,PMAX, in KB, KB and as a "
            "probability, for a port at the rate of the hosts' links (the slowest of a file). Kmin "
            "and Kmax scale with a port's rate. Settings of vendors such as arista are what they "
            "are in eval, for ports of 25 Gb/s. @FILE or @FILE#PROFILE, a WRED profile of a switch "
            "with SONiC, is the same bytes on every port.",
            show_default="the configuration's, else secn1",
        ),
    ] = None,
    dt_us: Annotated[
        float, typer.Option(help="Substep of the simulation, µs. It must divide 10 µs.")
    ] = 1.0,
    duration_ms: Annotated[
        float | None,
        typer.Option(help="Simulated time, ms.", show_default="the configuration's, else 60"),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            help="Largest number of flows in progress. Further flows wait at their hosts.",
            show_default="the number of flows, at most 512",
        ),
    ] = None,
    pfc: Annotated[
        bool | None,
        typer.Option(
            "--pfc/--no-pfc",
            help="Pause the links into a switch whose buffer fills. With --no-pfc, full buffers "
            "drop packets.",
            show_default="the configuration's, else on",
        ),
    ] = None,
    ack_priority: Annotated[
        bool,
        typer.Option(
            "--ack-priority", help="Send ACKs and CNPs past the queues of data, in their own class."
        ),
    ] = False,
    mark_quantum: Annotated[
        float,
        typer.Option(
            help="Step of marking probabilities, which are rounded down; 0.01 for a switch with "
            "whole percents."
        ),
    ] = 0.0,
    ideal: Annotated[
        str | None,
        typer.Option(
            help="Slowdowns are relative to this completion time: alone, of the flow in an empty "
            "network, or standalone, by the formula of the HPCC simulator.",
            show_default="alone; standalone with --format hpcc",
        ),
    ] = None,
    memory_us: Annotated[
        float, typer.Option(help="How far back feedback to the senders can reach, µs.")
    ] = 256.0,
    seed: Seed = 0,
    backend: Backend = "fluid",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write completion times to this CSV file: flow_id, size_B, start_ns, fct_ns, "
            "slowdown.",
            show_default="no file",
        ),
    ] = None,
    out_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="csv|hpcc",
            help="Columns of --out: csv as above, or hpcc, those of that simulator's fct.txt.",
        ),
    ] = "csv",
    queues: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the queues to this npz file: time_us, queue_bytes, tx_bytes (every 10 µs) "
            "and port (names).",
            show_default="no file",
        ),
    ] = None,
    records: Records = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Simulate a list of flows in a network under fixed ECN thresholds.

    --records writes what --out and --queues hold, and more, as the tables of `ecn-marl eval`.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import Output, check_output, write_all
    from ecn_marl.envs.registry import is_packets
    from ecn_marl.experiments.jobs import not_none
    from ecn_marl.experiments.replay_records import write_replay
    from ecn_marl.render.tables import replay_tables
    from ecn_marl.sim import replay as rp
    from ecn_marl.sim.formats.case import is_file, read_case
    from ecn_marl.sim.formats.hpcc_fct import write_fct as write_hpcc_fct

    check_records(records, overwrite)
    inputs = _inputs(flows, topology, config, ecn)
    for option, path in (("--out", out), ("--queues", queues)):
        if path is not None:
            check_output(option, path)
            for name, file in inputs.items():
                if path.resolve() == file.resolve():
                    raise bad_value(option, str(path), f"a file other than {name}")
    if out is not None and queues is not None and out.resolve() == queues.resolve():
        raise bad_value("--queues", str(queues), "a file other than --out")
    if out_format not in ("csv", "hpcc") or (out_format == "hpcc" and out is None):
        raise bad_value("--format", out_format, "csv, or hpcc with --out FILE")
    links = not_none(link_gbps=link_gbps, uplink_gbps=uplink_gbps, delay_us=delay_us)
    if is_file(topology):
        refuse(links, links, f"no such option beside {topology}, which gives rates and delays")
    if "link_gbps" in links:
        links["gbps"] = links.pop("link_gbps")
    case = read_case(flows, topology, config, **links)
    given = not_none(
        transport=transport,
        duration_ms=duration_ms,
        buffer_mib=buffer_mib,
        pfc=pfc,
        ideal=ideal or ("standalone" if out_format == "hpcc" else None),
    )
    if ecn is not None:
        given |= _thresholds(ecn, case.topology)
    fields: dict[str, Any] = case.settings | given
    fields |= {
        "dt_us": dt_us,
        "seed": seed,
        "slots": slots,
        "ack_priority": ack_priority,
        "mark_quantum": mark_quantum,
        "memory_us": memory_us,
    }
    settings = rp.Settings(**fields)
    for note in case.notes:
        typer.echo(f"replay: {note}", err=True)
    replay_on = rp.replay
    if is_packets(backend):
        from ecn_marl.packets import replay as replay_on
    with progress("replay", "µs", settings.duration_ms * 1e3, lines=False) as show:
        result = replay_on(case.flows, case.topology, settings, show, keep=records is not None)
    outputs = {}
    if out is not None:
        as_hpcc = partial(write_hpcc_fct, result, case.hpcc)
        write = as_hpcc if out_format == "hpcc" else partial(rp.write_fct, result)
        outputs[out] = Output("w", write)
    if queues is not None:
        outputs[queues] = Output("wb", lambda file: rp.write_queues(result, file))
    write_all(outputs)
    if records is not None:
        about = {"flows": flows.name, "topology": topology, "backend": backend}
        write_replay(result, settings, records, overwrite, **about)
    summary = result.summary()
    show_json_or_tables(summary, lambda: replay_tables(summary), as_json)


def _inputs(flows: Path, topology: str, config: Path | None, ecn: str | None) -> dict[str, Path]:
    """Files that a replay reads, by what they are."""
    from ecn_marl.envs.settings import FROM_FILE, file_of
    from ecn_marl.sim.formats.case import is_file

    found = {"the flow list": flows}
    if is_file(topology):
        found["--topology"] = Path(topology)
    if config is not None:
        found["--config"] = config
    if ecn is not None and ecn.startswith(FROM_FILE):
        found["the file of --ecn"] = file_of(ecn)[0]
    return found


def _thresholds(ecn: str, topology: Topology) -> dict[str, Any]:
    """Fields of `replay.Settings` for a text of `--ecn`.

    Numbers and the published names are for the rate of the hosts. Settings of vendors and profiles
    of switches have the bytes that they have in environments.
    """
    from ecn_marl.envs.settings import BASE_GBPS, PUBLISHED, STATIC_ECN, SwitchSetting, parse_ecn

    setting, name = parse_ecn(ecn), ecn.strip().lower()
    if isinstance(setting, SwitchSetting):
        return {"ecn": dict.fromkeys((port.gbps for port in topology.ports), tuple(setting))}
    if name in STATIC_ECN and name not in PUBLISHED:
        return {"ecn": setting, "ecn_gbps": BASE_GBPS}
    return {"ecn": setting}
