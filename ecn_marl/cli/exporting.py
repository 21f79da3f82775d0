"""Commands that write a policy for elsewhere: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    Env,
    Seed,
    check_checkpoint,
    given_options,
    refuse,
)

TO_SWITCH = ("scenario", "switch", "cell", "queue", "interfaces", "seed", "env")
"""Options that go with sonic and nvue only."""


@app.command(
    epilog=examples_text(
        "ecn-marl export runs/ippo --out policy.npz",
        "ecn-marl export pretrained:generalist --out policy.onnx",
        "ecn-marl export runs/adpg --int8 --out policy.npz",
        "ecn-marl export sonic static:secn2 --switch leaf0 --out patch.json",
        "ecn-marl export nvue runs/ippo --switch leaf0 --cell 192 --out commands.txt",
    )
)
def export(
    context: typer.Context,
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[sonic|nvue] POLICY",
            help="Folder of a run; FOLDER#I is its learner I, counted from 0. Also FILE.npz or "
            "pretrained:NAME, to be written in another form. After sonic or nvue any other policy "
            "that eval takes, or a CSV file with the columns port, kmin_bytes, kmax_bytes, pmax, "
            "and start_us if they change.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write, for example policy.npz, policy.onnx or patch.json.")
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Which policy of the run: best (the latest if none was evaluated) or latest."
        ),
    ] = "best",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Quantise the network: products of int8, sums of int32. For runs of adpg.",
        ),
    ] = False,
    tree: Annotated[
        int | None,
        typer.Option(
            metavar="DEPTH",
            help="Write a decision tree of this depth, which imitates the network. For runs whose "
            "agents are flows.",
            show_default="the network itself",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="With sonic or nvue: scenario of the episode.", show_default="the policy's"
        ),
    ] = None,
    switch: Annotated[
        str | None,
        typer.Option(help="With sonic or nvue: which switch.", show_default="the only one"),
    ] = None,
    cell: Annotated[
        int, typer.Option(help="With sonic or nvue: buffer cell, bytes; thresholds are multiples.")
    ] = 1,
    queue: Annotated[
        int, typer.Option(help="With sonic or nvue: queue (traffic class) that marks.")
    ] = 3,
    interfaces: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…",
            help="With sonic or nvue: what the switch calls its ports, in the order of eval's "
            "table of ports.",
            show_default="profiles only",
        ),
    ] = None,
    seed: Seed = 0,
    env: Env = None,
) -> None:
    """Write a trained policy to one file, or thresholds as the configuration of a switch.

    `ecn_marl.load_policy` reads a policy's file and needs numpy only. A file NAME.onnx is an ONNX
    model of a policy of ports (extra `onnx`), with its thresholds as an output. For runs whose
    agents are flows, the time of a decision is measured on this machine, too.

    `sonic` writes a JSON patch of WRED profiles, `nvue` commands for Cumulus Linux, of what the
    policy sets on one switch in one episode. Kmin never exceeds Kmax while they change.
    """
    from ecn_marl._files import check_output

    check_output("--out", out)
    check_checkpoint(checkpoint)
    given = given_options(context)
    if len(target) == 2:
        refuse(given, ("int8", "tree"), f"no such option with {target[0]}")
        if target[1].lower().endswith(".csv"):
            refuse(given, ("checkpoint", "seed"), f"none: {target[1]} has the thresholds")
        _export_to_switch(
            target[0],
            target[1],
            out,
            checkpoint,
            scenario,
            seed,
            env,
            {"switch": switch, "cell": cell, "queue": queue, "interfaces": interfaces},
        )
        return
    _export_run(target, out, checkpoint, int8, tree, given)


def _export_run(
    target: list[str],
    out: Path,
    checkpoint: str,
    int8: bool,
    tree: int | None,
    given: dict[str, Any],
) -> None:
    """Write the policy of a run; `given` are the options on the command line."""
    from ecn_marl._errors import bad_value
    from ecn_marl.baselines.exported import is_exported, read_exported
    from ecn_marl.baselines.exporting.files import save_policy
    from ecn_marl.baselines.exporting.onnx import SUFFIX, save_onnx
    from ecn_marl.cli import rate
    from ecn_marl.experiments.policies import RunOf
    from ecn_marl.experiments.rate import is_rate_run

    if len(target) != 1:
        raise bad_value("POLICY", " ".join(target), "RUN, or sonic POLICY, or nvue POLICY")
    refuse(given, TO_SWITCH, "none without sonic or nvue")
    run = target[0]
    if is_rate_run(run):
        rate.export(run, out, checkpoint, int8, tree)
        return
    refuse(given, ("int8", "tree"), f"no such option with {run}, whose agents are ports")
    if is_exported(run):
        refuse(given, ("checkpoint",), f"none: {run} is one policy")
        policy = read_exported(run)
    else:
        policy = RunOf(run).policy(checkpoint)
    save = save_onnx if out.suffix == SUFFIX else save_policy
    save(policy, out)
    summary = f"{policy.header['algorithm']} of update {policy.header['update']}"
    typer.echo(f"{out}: {summary}, {out.stat().st_size / 1000:.0f} KB")


def _export_to_switch(
    system: str,
    policy: str,
    out: Path,
    checkpoint: str,
    scenario: str | None,
    seed: int,
    env: list[str] | None,
    given: dict[str, Any],
) -> None:
    """Write thresholds for a switch, and print which ports have which profile."""
    from ecn_marl._files import write_all
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import switch_export as se

    names = given["interfaces"]
    interfaces = tuple(names.split(",")) if names else ()
    options = se.SwitchOptions(system, given["cell"], given["queue"], interfaces)
    fields = jb.parse_fields(env or [])
    frame, ports = se.thresholds(policy, given["switch"], scenario, seed, checkpoint, fields)
    groups = se.groups_of(frame, ports, options.cell)
    text = se.configuration(groups, ports, options)
    write_all({out: text})
    changes = sum(len(group.profiles) - 1 for group in groups)
    typer.echo(f"{out}: {len(groups)} profiles, {changes} changes")
    for group in groups:
        kmin, kmax, percent = group.profiles[0]
        first = f"Kmin {kmin} B, Kmax {kmax} B, {percent} %"
        typer.echo(
            f"{group.name}: {first}{' at first' if changes else ''}; {', '.join(group.ports)}"
        )
