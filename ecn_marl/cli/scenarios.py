"""The commands that list scenarios and senders, and draw scenarios."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import Json, Seed, refuse, show_json_or_tables, show_tables

if TYPE_CHECKING:
    from ecn_marl.envs.scenario import Scenario


@app.command(
    epilog=examples_text(
        "ecn-marl scenarios", "ecn-marl scenarios restore-serve-v0 --out network.png"
    )
)
def scenarios(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a scenario to draw: its network and a sample of its traffic.",
            show_default="none, all are listed",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PNG file for the picture.", show_default="NAME.png"),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also list those of papers and superseded ones.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """List scenarios, those of the benchmark first, or draw one of them."""
    from ecn_marl._errors import bad_value

    if name is not None:
        others = {"json": as_json, "all": every}
        given = {option: value for option, value in others.items() if value}
        refuse(given, given, "no such option with a scenario, which is drawn")
        _draw_scenario(name, out or Path(f"{name}.png"), seed)
        return
    if out is not None:
        raise bad_value("--out", str(out), "no such option without the name of a scenario")
    _list_scenarios(as_json, every or as_json)


def _draw_scenario(name: str, out: Path, seed: int) -> None:
    """A scenario as a picture."""
    from ecn_marl._files import check_output, write_all
    from ecn_marl.envs.registry import about, make
    from ecn_marl.render.scenario_page import sample_traffic, scenario_png

    check_output("--out", out)
    env = make(name)
    data = scenario_png(env, sample_traffic(env, seed), about(name))
    write_all({out: data})
    typer.echo(f"{out}: {env!r}")


def _list_scenarios(as_json: bool, every: bool) -> None:
    """The registered scenarios as a table."""
    from ecn_marl._files import json_text
    from ecn_marl.baselines.exporting.files import PRETRAINED, pretrained_policies, read_policy
    from ecn_marl.envs.rate.scenarios import rate_scenarios
    from ecn_marl.envs.registry import PAPERS, lookup
    from ecn_marl.envs.registry import scenarios as names
    from ecn_marl.render.tables import scenario_tables

    trained: dict[str, list[str]] = {}
    for policy in pretrained_policies():
        scenario = read_policy(PRETRAINED + policy).header["scenario"]
        trained.setdefault(scenario, []).append(PRETRAINED + policy)
    specs = {n: lookup(n) for n in names() if every or n not in PAPERS}
    rows = [
        _scenario_row(name, spec) | {"pretrained": trained.get(name, [])}
        for name, spec in specs.items()
        if every or not spec.superseded
    ]
    if as_json:
        typer.echo(json_text(rows))
        return
    show_tables(scenario_tables(rows))
    flows = {re.sub(r"\d+", "N", name, count=1): name for name in rate_scenarios()}
    largest = ", ".join(f"{kind} (to {name})" for kind, name in flows.items())
    typer.echo(f"Flows as agents (train adpg, eval): {largest}.")
    for name, policies in trained.items():
        typer.echo(f"Trained in {name}: {', '.join(policies)}.")
    typer.echo("In another scenario: ecn-marl play pretrained:NAME --scenario SCENARIO …")
    if not every:
        typer.echo(f"With --all: {len(names()) - len(rows)} more, of papers or superseded.")


def _scenario_row(name: str, spec: Scenario) -> dict[str, Any]:
    """A scenario's network, agents and times. Mixed senders alone need its environment."""
    from ecn_marl.envs.registry import PAPERS, about, make
    from ecn_marl.sim.transports import as_transport

    net = spec.topology
    senders = make(name).sim.transport if spec.classes else as_transport(spec.transport)
    return {
        "name": name,
        "about": about(name),
        "topology": net.name,
        "hosts": net.n_hosts,
        "agents": net.n_ports,
        "port_gbps": sorted({p.gbps for p in net.ports}),
        "transport": f"{senders.kind}:{senders.name}",
        "interval_us": spec.interval_us,
        "max_steps": spec.max_steps,
        "benchmark": spec.benchmark,
        "paper": PAPERS.get(name, ""),
        "superseded": spec.superseded,
    }


@app.command(epilog=examples_text("ecn-marl senders"))
def senders(as_json: Json = False) -> None:
    """List the senders by preset: the link rate that constants are for, and where they are from."""
    from ecn_marl.render.tables import sender_table
    from ecn_marl.sim.transports import transports
    from ecn_marl.sim.transports.names import describe

    names = ("preset", "second_name", "link_rate", "from")
    rows = [
        dict(zip(names, (text, *describe(*text.split(":", 1))), strict=True))
        for text in transports()
    ]
    show_json_or_tables(rows, lambda: [sender_table(rows)], as_json)
