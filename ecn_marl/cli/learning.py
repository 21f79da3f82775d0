"""Commands about learning: train, export, eval, play, scenarios."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ecn_marl.cli.app import app
from ecn_marl.cli.bars import progress
from ecn_marl.cli.terminal import (
    Env,
    Episodes,
    Json,
    Load,
    MaxSteps,
    Seed,
    show_results,
    show_tables,
    write_bytes,
)


@app.command()
def train(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            help="ippo, mappo, ddqn, c-acc, haecn; rates: adpg, ppo, reinforce, aurora, dqn, apg."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Name, see `ecn-marl scenarios`.", show_default="restore-serve-v0"),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps (tuning intervals) per seed.",
            min=1,
            show_default="the recipe's, else 1,000,000",
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
        typer.Option(metavar="RUN", help="Go on with a run; --steps is its new total."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="What agents see: acc, pet, pet-no-incast, pet-no-mice, haecn, ports, flows, or "
            "features such as acc,flows_begun.",
            show_default="the recipe's, else the scenario's",
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="What they set: multidiscrete, discrete, box.",
            show_default="the recipe's, else multidiscrete",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="What they are paid: slowdown, slowdown-shaped, acc, pet, haecn.",
            show_default="the recipe's, else the scenario's",
        ),
    ] = None,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    priority: Annotated[
        str | None,
        typer.Option(
            help="What the reward puts first: latency (0.3 for utilisation), throughput (0.7), or "
            "the weight.",
            show_default="the scenario's",
        ),
    ] = None,
    flows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train on windows of a recorded flow list (CSV, as `replay` takes it).",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the trainer. Repeatable."),
    ] = None,
    randomise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FACTOR",
            help="Draw rate, delay, load or a constant of the senders (ai, hai, g, increase_us, "
            "decrease_us, alpha_us) for every training episode: load=1.5 is 1/1.5 to 1.5 times "
            "the scenario's, delay=0.2:1 a fifth to all of it. Repeatable.",
        ),
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
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="All this from a file, such as run.toml of a run."),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print what is asked for as such a file; no more.")
    ] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Evaluate beside SECN1 and SECN2 afterwards.")
    ] = False,
    episodes: Episodes = 64,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a policy: configuration, metrics, checkpoints and learning curve go to a folder.

    adpg, ppo, reinforce, aurora, dqn and apg train senders: flows set their own rates, in scenarios
    that the setting `senders` says.
    """
    from ecn_marl._files import check_output_folder
    from ecn_marl.baselines.runs import Session
    from ecn_marl.cli import rate
    from ecn_marl.experiments import curves as cv
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import workflow as wf

    if out is not None:
        check_output_folder("--out", out)
    main_process = wf.join(distributed, devices)
    base = _file(config, resume)
    algorithm = algorithm or base.get("algorithm")
    job_fields = jb.not_none(
        scenario=scenario,
        steps=steps,
        envs=envs,
        seed=seed,
        seeds=seeds,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        randomise=jb.parse_ranges(randomise) if randomise else None,
    )
    view = jb.not_none(
        features=features,
        actions=actions,
        reward=reward,
        load=load,
        max_steps=max_steps,
        priority=priority,
        flows=None if flows is None else str(flows.absolute()),
    )
    view |= jb.parse_fields(env or [])
    if rate.is_about_rates(algorithm, resume):
        file = None if config is None else str(config)
        unfit = view | job_fields | jb.not_none(distributed=distributed, wandb=wandb, config=file)
        rate.train(
            algorithm,
            resume,
            out,
            unfit,
            setting or [],
            (save_updates, save_seconds),
            overwrite,
            as_json,
        )
        return
    if resume is not None:
        job_fields |= view | jb.not_none(algorithm=algorithm, out=None if out is None else str(out))
        job, folder = jb.resumed_job(resume, job_fields, setting or []), resume
    else:
        job = jb.new_job(algorithm, job_fields, view, setting or [], base)
        folder = out or Path("runs") / f"{algorithm}-{job.scenario}-seed{job.seed}"
    if show_config:
        typer.echo(wf.job_text(job), nl=False)
        return
    session = Session(
        save_updates,
        save_seconds,
        None if distributed else devices,
        wandb if main_process else None,
    )
    rows = _train(job, folder, overwrite, session, resume is not None, quiet=not main_process)
    if not main_process:
        return
    result: dict[str, Any] = {"run": str(folder), "training": rows[-1]}
    arena = None
    if evaluate:
        policies = [*wf.learners(folder), *wf.references(job.scenario)]
        arena = wf.arena(policies, None)
        with progress("evaluate", "episodes", episodes * len(policies)) as show:
            result["evaluation"] = wf.evaluate(arena, policies, episodes, job.seed, show)
        wf.write_evaluation(folder, result["evaluation"])
    show_results(
        result, as_json
    )  # before the plots, so that the results appear even if a plot fails
    with progress("score references", "%", 100.0, quiet=as_json) as show:
        cv.draw_learning_curve(folder, show)
    if arena is not None:
        wf.draw_queues(folder, arena, result["evaluation"])
    if not as_json:
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        typer.echo(f"{folder}: {names}")


def _file(config: Path | None, resume: Path | None) -> dict[str, Any]:
    """The fields of a job file; empty without one."""
    from ecn_marl._errors import bad_value
    from ecn_marl.experiments.job_files import read_job

    if config is None:
        return {}
    if resume is not None:
        raise bad_value("--config", str(config), f"nothing: {resume} goes on as it was started")
    return read_job(config)


def _train(
    job: Any, folder: Path, overwrite: bool, session: Any, resume: bool, quiet: bool
) -> list[Any]:
    """Train with a progress bar; report errors that stop it early in one line."""
    from ecn_marl.baselines.training.loop import TrainingDiverged, TrainingInterrupted
    from ecn_marl.experiments import workflow as wf

    rows: list[Any] = []
    with progress(f"train {job.algorithm}", "steps", job.total_steps, quiet=quiet) as show:
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
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantise it: int8 products, int32 sums (adpg).")
    ] = False,
    tree: Annotated[
        int | None,
        typer.Option(
            metavar="DEPTH", help="A decision tree of this depth in its place (learners of rates)."
        ),
    ] = None,
) -> None:
    """Write a trained policy to one file for `ecn_marl.load_policy`, which needs numpy only.

    Of learners of rates, it also measures what a decision costs on this machine.
    """
    from ecn_marl._files import check_output
    from ecn_marl.baselines.exporting.policy import save_policy
    from ecn_marl.cli import rate
    from ecn_marl.experiments import workflow as wf

    check_output("--out", out)
    if rate.is_run(run):
        rate.export(run, out, checkpoint, int8, tree)
        return
    rate.check_form(run, int8, tree)
    policy = wf.policy_of(run, checkpoint)
    save_policy(policy, out)
    summary = f"{policy.header['algorithm']} of update {policy.header['update']}"
    typer.echo(f"{out}: {summary}, {out.stat().st_size / 1000:.0f} KB")


@app.command(name="eval")
def evaluate(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY...",
            help="Folders of runs, FILE.npz, pretrained:NAME, static:secn1, "
            "static:5,200,0.01, static:best, static:ports, oracle, oracle:ports, rule, random, "
            "dynamic:pi (or ecn-sharp, buffer, utilisation, queue), dynamic:pi:qref_kb=100. In "
            "scenarios of rates: runs of adpg and its rivals, files, senders such as swift:htsim.",
        ),
    ],
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario.", show_default="the run's, else restore-serve-v0"),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(help="Episodes per policy.", min=1, show_default="64, of rates 1"),
    ] = None,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    checkpoint: Annotated[
        str, typer.Option(help="Which policy of a run: best (if it was scored) or latest.")
    ] = "best",
    as_json: Json = False,
) -> None:
    """Evaluate trained, static or rule-based policies on tuning episodes, not trained on."""
    from ecn_marl.cli import rate
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import workflow as wf

    if rate.is_evaluation(policies, scenario):
        unfit = jb.not_none(load=load, max_steps=max_steps)
        rate.evaluate(policies, scenario, episodes or 1, seed, unfit, env or [], as_json)
        return
    episodes = episodes or 64
    names = [name for policy in policies for name in wf.learners(policy)]
    changed = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    arena = wf.arena(names, scenario, **changed)
    arena = replace(arena, checkpoint=checkpoint)
    with progress("evaluate", "episodes", episodes * len(names)) as show:
        result = wf.evaluate(arena, names, episodes, seed, show)
    show_results({"evaluation": result}, as_json)


@app.command()
def play(
    policy: Annotated[
        str,
        typer.Argument(
            help="Folder of a run (FOLDER#I: its I-th seed), FILE.npz, pretrained:NAME, "
            "static:…, dynamic:…, oracle, rule, random."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .html, .gif or .mp4.")],
    beside: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="A second policy, in the same episode, beside it."),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenario.", show_default="the run's, else restore-serve-v0"),
    ] = None,
    seed: Seed = 0,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    fps: Annotated[int, typer.Option(help="Intervals per second (gif, mp4).", min=1, max=50)] = 10,
) -> None:
    """Watch an episode: a page with a time slider, a GIF or a film."""
    from ecn_marl._files import Output, check_output, write_all
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import workflow as wf
    from ecn_marl.render import player
    from ecn_marl.render.episode import Side, record

    check_output("--out", out)
    suffix = player.check_format("--out", out)
    changed = jb.not_none(load=load, max_steps=max_steps) | jb.parse_fields(env or [])
    names = [policy] if beside is None else [policy, beside]
    arena = wf.arena(names, scenario, **changed)
    sides: list[Side] = []
    with progress("play", "episodes", len(names)) as show:
        for name in names:
            show(len(sides), f"{wf.label(name)}: compiling")
            played_env, controller = arena.env(name), arena.controller(name)
            episode = record(played_env, played_env.default_params, controller, seed)
            sides.append(Side(wf.label(name), played_env, episode))
    data = player.content(sides, seed, suffix, fps)
    write_all({out: Output("wb", partial(write_bytes, data))})
    first, size = sides[0], len(data) / 1e6
    flows = len(first.episode.flows)
    typer.echo(f"{out}: {first.env.horizon} intervals, {flows} flows, {size:.1f} MB")
    for side in sides:
        counts = player.accounts(side.episode).items()
        typer.echo(f"{side.label}: " + ", ".join(f"{name} {count:,.0f}" for name, count in counts))


@app.command()
def scenarios(
    name: Annotated[
        str | None,
        typer.Argument(help="A scenario to draw: its network and a sample of its traffic."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to draw.", show_default="NAME.png")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """List the registered scenarios, and which of them policies are compared on; or draw one."""
    from ecn_marl._errors import bad_value

    if name is not None:
        if as_json:
            raise bad_value("--json", True, "nothing with a scenario, which is drawn")
        _draw_scenario(name, out or Path(f"{name}.png"), seed)
        return
    if out is not None:
        raise bad_value("--out", str(out), "nothing without the name of a scenario")
    _list_scenarios(as_json)


def _draw_scenario(name: str, out: Path, seed: int) -> None:
    """A scenario as a picture."""
    from inspect import getdoc

    from ecn_marl._files import Output, check_output, write_all
    from ecn_marl.envs.registry import SCENARIOS, make
    from ecn_marl.render.scenario_page import sample_traffic, scenario_png

    check_output("--out", out)
    env = make(name)
    about = (getdoc(SCENARIOS[name]) or "").partition("\n")[0]
    data = scenario_png(env, sample_traffic(env, seed), about)
    write_all({out: Output("wb", partial(write_bytes, data))})
    typer.echo(f"{out}: {env!r}")


def _list_scenarios(as_json: bool) -> None:
    """The registered scenarios as a table."""
    from ecn_marl._files import json_text
    from ecn_marl.baselines.exporting.policy import PRETRAINED, load_policy, pretrained_policies
    from ecn_marl.envs.rate.scenarios import rate_scenarios
    from ecn_marl.envs.registry import lookup, make
    from ecn_marl.envs.registry import scenarios as names
    from ecn_marl.render.tables import scenario_table

    pretrained = {
        PRETRAINED + name: load_policy(PRETRAINED + name) for name in pretrained_policies()
    }
    rows: list[dict[str, Any]] = []
    for name in names():
        spec, env = lookup(name), make(name)
        net = env.sim.topology
        rows.append(
            {
                "name": name,
                "topology": net.name,
                "hosts": net.n_hosts,
                "agents": env.num_agents,
                "port_gbps": sorted({p.gbps for p in net.ports}),
                "transport": f"{env.sim.transport.kind}:{env.sim.transport.name}",
                "interval_us": env.interval_us,
                "max_steps": env.horizon,
                "benchmark": spec.benchmark,
                "superseded": spec.superseded,
                "pretrained": [
                    p
                    for p, trained_policy in pretrained.items()
                    if trained_policy.header["scenario"] == name
                ],
            }
        )
    if as_json:
        typer.echo(json_text(rows))
    else:
        show_tables([scenario_table(rows)])
        for row in rows:
            if row["superseded"]:
                typer.echo(f"{row['name']} is superseded: {row['superseded']}.")
        typer.echo(f"Flows as agents (train adpg, eval): {', '.join(rate_scenarios())}.")
        for row in rows:
            if row["pretrained"]:
                typer.echo(f"Trained in {row['name']}: {', '.join(row['pretrained'])}.")
        typer.echo("In another scenario: ecn-marl play pretrained:NAME --scenario SCENARIO …")
