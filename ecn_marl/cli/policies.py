"""Commands that use a policy: export, eval, record, play, demo."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    AllowFlagged,
    Backend,
    Env,
    Json,
    Overwrite,
    Records,
    RunLoad,
    RunMaxSteps,
    Seed,
    check_records,
    draw_slowdown,
    show_rates,
    show_results,
    write_bytes,
)
from ecn_marl.render.bars import Move, progress

if TYPE_CHECKING:
    from ecn_marl.experiments.policies import Arena
    from ecn_marl.render.episode import Side


@app.command(
    epilog=examples_text(
        "ecn-marl export runs/ippo --out policy.npz",
        "ecn-marl export runs/adpg --int8 --out policy.npz",
        "ecn-marl export sonic static:secn2 --switch leaf0 --out patch.json",
        "ecn-marl export nvue runs/ippo --switch leaf0 --cell 192 --out commands.txt",
    )
)
def export(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[sonic|nvue] POLICY",
            help="Folder of a run; FOLDER#I is its learner I, counted from 0. After sonic or nvue "
            "also any other policy that eval takes, or a CSV file with the columns port, "
            "kmin_bytes, kmax_bytes, pmax, and start_us if they change.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write, for example policy.npz or patch.json.")],
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

    `ecn_marl.load_policy` reads a policy's file and needs numpy only. For runs whose agents are
    flows, the time of a decision is measured on this machine, too.

    `sonic` writes a JSON patch of WRED profiles, `nvue` commands for Cumulus Linux, of what the
    policy sets on one switch in one episode. Kmin never exceeds Kmax while they change.
    """
    from ecn_marl._files import check_output

    check_output("--out", out)
    if len(target) == 2:
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
    only = {"scenario": scenario, "switch": switch, "interfaces": interfaces, "env": env}
    _export_run(target, out, checkpoint, int8, tree, only)


def _export_run(
    target: list[str],
    out: Path,
    checkpoint: str,
    int8: bool,
    tree: int | None,
    only: dict[str, Any],
) -> None:
    """Write the policy of a run; `only` are options of the other form."""
    from ecn_marl._errors import bad_value
    from ecn_marl.baselines.exporting.policy import save_policy
    from ecn_marl.cli import rate
    from ecn_marl.experiments.policies import RunOf

    if len(target) != 1:
        raise bad_value("POLICY", " ".join(target), "RUN, or sonic POLICY, or nvue POLICY")
    for name, value in only.items():
        if value is not None:
            raise bad_value(f"--{name}", value, "none without sonic or nvue")
    run = target[0]
    if rate.is_run(run):
        rate.export(run, out, checkpoint, int8, tree)
        return
    rate.check_form(run, int8, tree)
    policy = RunOf(run).policy(checkpoint)
    save_policy(policy, out)
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
    from ecn_marl._files import Output, write_all
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import switch_export as se

    names = given["interfaces"]
    interfaces = tuple(names.split(",")) if names else ()
    options = se.SwitchOptions(system, given["cell"], given["queue"], interfaces)
    fields = jb.parse_fields(env or [])
    frame, ports = se.thresholds(policy, given["switch"], scenario, seed, checkpoint, fields)
    groups = se.groups_of(frame, ports, options.cell)
    text = se.configuration(groups, ports, options)
    write_all({out: Output("w", lambda file: file.write(text))})
    changes = sum(len(group.profiles) - 1 for group in groups)
    typer.echo(f"{out}: {len(groups)} profiles, {changes} changes")
    for group in groups:
        kmin, kmax, percent = group.profiles[0]
        first = f"Kmin {kmin} B, Kmax {kmax} B, {percent} %"
        typer.echo(
            f"{group.name}: {first}{' at first' if changes else ''}; {', '.join(group.ports)}"
        )


@app.command(
    name="eval",
    epilog=examples_text(
        "ecn-marl eval runs/ippo static:best oracle rule --episodes 32",
        "ecn-marl eval pretrained:restore-serve-mappo static:secn1 --scenario moving-tenants-v0",
    ),
)
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Trained policies: folders of runs, FILE.npz, pretrained:NAME. Static thresholds: "
            "static:secn1, static:KMIN,KMAX,PMAX such as static:5,200,0.01, static:best, "
            "static:ports. Rules: oracle, oracle:ports, rule, random, dynamic:NAME with pi, "
            "ecn-sharp, buffer, relative, utilisation or queue, and their settings as in "
            "dynamic:pi:qref_kb=100. Where flows are the agents: runs and files of such learners, "
            "and senders such as swift:htsim.",
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Name of a scenario.", show_default="the first run's, else restore-serve-v0"
        ),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(
            help="Number of episodes per policy.",
            min=1,
            show_default="64, or 1 where flows are the agents",
        ),
    ] = None,
    seed: Seed = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Which policy of a run: best (the latest if none was evaluated) or latest."
        ),
    ] = "best",
    allow_flagged: AllowFlagged = False,
    backend: Backend = "fluid",
    workers: Annotated[
        int,
        typer.Option(
            help="With --backend packets: number of processes, each of which runs an episode at a "
            "time.",
            min=1,
        ),
    ] = 1,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside/--alone",
            help="With --backend packets: run the same episodes in the fluid, too, and compare.",
            show_default="beside",
        ),
    ] = True,
    records: Records = None,
    overwrite: Overwrite = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Hold all completion times against what every link can have carried."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare policies on the same tuning episodes, which no policy was trained on."""
    from ecn_marl.cli import rate
    from ecn_marl.envs.rate.scenarios import RateScenario
    from ecn_marl.envs.registry import is_packets
    from ecn_marl.experiments import evaluation as ev
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments.evaluation import EPISODES, RATE_EPISODES
    from ecn_marl.experiments.policies import resolve

    if of_flows := rate.is_evaluation(policies, scenario):
        rate.check_options(jb.not_none(load=load, max_steps=max_steps))
        options = jb.parse_fields(env or [], RateScenario)
        count, total = episodes or RATE_EPISODES, (episodes or RATE_EPISODES) * len(policies)
    else:
        options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
        count = episodes or EPISODES
        total = count * sum(len(resolve(name).members) for name in policies)
    beside = beside and not of_flows and is_packets(backend)
    total *= 2 if beside else 1
    with progress("evaluate", "episodes", total) as show:
        result = ev.evaluate(
            policies,
            scenario,
            episodes=count,
            seed=seed,
            records=records or False,
            overwrite=overwrite,
            checkpoint=checkpoint,
            allow_flagged=allow_flagged,
            backend=backend,
            workers=workers,
            beside=beside,
            check=check,
            show=show,
            **options,
        )
    if of_flows:
        show_rates(result, as_json)
        return
    show_results({"evaluation": result.summary}, as_json)
    if result.tables is not None:
        draw_slowdown(result, as_json)


@app.command(
    name="record",
    epilog=examples_text(
        "ecn-marl record random runs/ippo --episodes 64 --out data/mixed",
        "ecn-marl record rule --scenario mixed-rtt-v0 --epsilon 0.1 --out data/rule",
    ),
)
def record_dataset(
    policies: Annotated[
        list[str],
        typer.Argument(metavar="POLICY...", help="Policies of ports, as eval takes them."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="A new folder. Parquet with pyarrow (extra `records`), else CSV."
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Name of a scenario.", show_default="the first run's, else restore-serve-v0"
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(help="Number of episodes per policy.", min=1)] = 64,
    epsilon: Annotated[
        float,
        typer.Option(
            help="How likely an agent acts at random in an interval, not by its policy.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Which training episodes.", min=0)] = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Which policy of a run: best (the latest if none was evaluated) or latest."
        ),
    ] = "best",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a dataset that is in the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an offline dataset: observations, actions and rewards of training episodes.

    They are no episodes that eval and bench score policies on. `ecn_marl.read_dataset(DIR)` reads
    the dataset as arrays, for a flashbax vault (OG-MARL) or for Minari.
    """
    from ecn_marl._files import json_text
    from ecn_marl.experiments import datasets
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments.policies import resolve

    options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    total = episodes * sum(len(resolve(name).members) for name in policies)
    with progress("record", "episodes", total) as show:
        dataset = datasets.record(
            policies,
            scenario,
            out=out,
            episodes=episodes,
            seed=seed,
            epsilon=epsilon,
            checkpoint=checkpoint,
            overwrite=overwrite,
            show=show,
            **options,
        )
    if as_json:
        typer.echo(json_text(dataset.facts))
        return
    typer.echo(dataset.summary())


@app.command(
    epilog=examples_text(
        "ecn-marl play runs/ippo --out episode.html",
        "ecn-marl play static:best --beside runs/ippo --out both.gif",
    )
)
def play(
    policy: Annotated[
        str,
        typer.Argument(
            help="A policy: folder of a run (FOLDER#I: its learner I, counted from 0), FILE.npz, "
            "pretrained:NAME, static:…, dynamic:…, oracle, rule, random."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .html, .gif or .mp4.")],
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Show a second policy beside the first, in the same episode.",
            show_default="none",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Name of a scenario.", show_default="the run's, else restore-serve-v0"),
    ] = None,
    seed: Seed = 0,
    load: RunLoad = None,
    max_steps: RunMaxSteps = None,
    env: Env = None,
    fps: Annotated[
        int,
        typer.Option(
            help="Speed of a film: tuning intervals per second (gif, mp4).", min=1, max=50
        ),
    ] = 10,
    backend: Backend = "fluid",
    records: Records = None,
    overwrite: Overwrite = False,
) -> None:
    """Record one episode to watch: as a web page with a time slider, a GIF or a film.

    With --records, its tables are those of `ecn-marl eval --episodes 1`, which runs it once more.
    """
    from dataclasses import replace

    from ecn_marl._files import check_output
    from ecn_marl.experiments import evaluation as ev
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import policies as po
    from ecn_marl.render import player

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    check_records(records, overwrite)
    options = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    names = [policy] if beside is None else [policy, beside]
    arena = replace(po.arena(names, scenario, **options), backend=backend)
    with progress("play", "episodes", len(names)) as show:
        sides = _played(arena, names, seed, show)
        if records is not None:
            show(len(names), "records")
            kept: dict[str, Any] = {
                "records": records,
                "overwrite": overwrite,
                "allow_flagged": True,
                "backend": backend,
            }
            ev.evaluate(names, scenario, episodes=1, seed=seed, show=_silent, **kept, **options)
    _write_film(sides, out, seed, suffix, fps)


@app.command(
    epilog=examples_text(
        "ecn-marl demo",
        "ecn-marl demo --scenario moving-tenants-v0 --no-open",
    )
)
def demo(
    scenario: Annotated[
        str, typer.Option(help="Name of a scenario that a policy ships for.")
    ] = "restore-serve-v0",
    out: Annotated[Path, typer.Option(help="File to write, a web page.")] = Path("demo.html"),
    seed: Seed = 0,
    show_it: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Watch the policy that ships beside the best static setting, in the browser.

    Both play the same episode. It is `ecn-marl play static:best --beside pretrained:…`.
    """
    import webbrowser

    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output
    from ecn_marl.baselines.exporting.policy import PRETRAINED, pretrained_policies
    from ecn_marl.experiments import policies as po
    from ecn_marl.render import player

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    home = scenario.removesuffix("-v0")
    shipped = [name for name in pretrained_policies() if name.rpartition("-")[0] == home]
    if not shipped:
        known = sorted({name.rpartition("-")[0] + "-v0" for name in pretrained_policies()})
        raise bad_value("--scenario", scenario, f"one that a policy ships for: {', '.join(known)}")
    names = ["static:best", PRETRAINED + shipped[-1]]
    with progress("demo", "episodes", len(names)) as show:
        sides = _played(po.arena(names, scenario), names, seed, show)
    _write_film(sides, out, seed, suffix, fps=10)
    if show_it:
        webbrowser.open(out.resolve().as_uri())


def _played(arena: Arena, names: list[str], seed: int, show: Move) -> list[Side]:
    """The first evaluation episode of a seed under each policy."""
    from ecn_marl.experiments import policies as po
    from ecn_marl.render.episode import Side, record

    sides: list[Side] = []
    for name in names:
        label = po.resolve(name).label
        show(len(sides), f"{label}: compiling")
        env, controller = arena.env(name), arena.controller(name)
        sides.append(Side(label, env, record(env, env.default_params, controller, seed)))
    return sides


def _write_film(sides: list[Side], out: Path, seed: int, suffix: str, fps: int) -> None:
    """Write the film, and print what is in it."""
    from ecn_marl._files import Output, write_all
    from ecn_marl.render import player

    data = player.content(sides, seed, suffix, fps)
    write_all({out: Output("wb", partial(write_bytes, data))})
    first, size = sides[0], len(data) / 1e6
    flows = len(first.episode.flows)
    typer.echo(f"{out}: {first.env.horizon} intervals, {flows} flows, {size:.1f} MB")
    for side in sides:
        counts = player.accounts(side.episode).items()
        typer.echo(f"{side.label}: " + ", ".join(f"{name} {count:,.0f}" for name, count in counts))


def _silent(done: float, note: str = "") -> None:
    """Shows nothing."""
