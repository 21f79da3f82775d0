"""The command that trains: train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecn_marl.cli.app import app, examples_text
from ecn_marl.cli.terminal import (
    AllowFlagged,
    Env,
    Json,
    Load,
    MaxSteps,
    show_results,
    stops_in_one_line,
)
from ecn_marl.render.bars import progress

if TYPE_CHECKING:
    from ecn_marl.baselines.runs import Session
    from ecn_marl.experiments.jobs import Job


@app.command(
    epilog=examples_text(
        "ecn-marl train ippo --out runs/ippo",
        "ecn-marl train --resume runs/ippo --steps 1200000",
        "ecn-marl train mappo --scenario websearch-v0 --set gamma=0.98 --seeds 5",
    )
)
def train(
    algorithm: Annotated[
        str | None,
        typer.Argument(
            help="The learner. Ports as agents: ippo, mappo, gnn, generalist, dagger, ddqn-fct, "
            "haecn-fct, pqn, vdn, sac; as papers have them: pet, ddqn, c-acc, haecn. "
            "Flows as agents: adpg, ppo, reinforce, aurora, dqn, apg.",
            show_default="that of --config or --resume",
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(
            help="Name of a scenario; `ecn-marl scenarios` lists them.",
            show_default="restore-serve-v0",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Environment steps (tuning intervals) per seed, summed over all environments.",
            min=1,
            show_default="the recipe's, else 1,000,000",
        ),
    ] = None,
    envs: Annotated[
        int | None,
        typer.Option(
            help="Number of environments stepped at once.", show_default="the recipe's, else 64"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of everything random.", min=0, max=2**32 - 1, show_default="0"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Number of learners trained at once, with the seeds SEED, SEED+1, …",
            show_default="1",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run.", show_default="runs/ALGORITHM-SCENARIO-seedSEED"),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Continue the run in this folder. --steps is then the new total.",
            show_default="a new run",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="What agents observe: a set (acc, pet, pet-no-incast, pet-no-mice, haecn, ports, "
            "flows), or a list of sets and features such as acc,flows_begun.",
            show_default="the recipe's, else the scenario's",
        ),
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="Kind of actions: multidiscrete, discrete, box.",
            show_default="the recipe's, else multidiscrete",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="The reward: slowdown, slowdown-shaped, objective, objective-shaped, acc, pet, "
            "haecn.",
            show_default="the recipe's, else the scenario's",
        ),
    ] = None,
    load: Load = None,
    max_steps: MaxSteps = None,
    env: Env = None,
    priority: Annotated[
        str | None,
        typer.Option(
            help="Weight of utilisation in the rewards acc, pet and haecn, 0 to 1, or a name: "
            "latency (0.3), throughput (0.7).",
            show_default="the scenario's",
        ),
    ] = None,
    flows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Train on windows of a recorded flow list, a CSV file as `ecn-marl replay` reads.",
            show_default="the scenario's traffic",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the learner, such as gamma=0.98. Repeatable.",
            show_default="the recipe's, else the learner's",
        ),
    ] = None,
    randomise: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FACTOR",
            help="Draw a value anew for every training episode: rate, delay, load or a constant of "
            "the senders (ai, hai, g, increase_us, decrease_us, alpha_us). load=1.5 draws 1/1.5 to "
            "1.5 times the scenario's load, delay=0.2:1 draws 0.2 to 1 times its delay. "
            "Repeatable.",
            show_default="none",
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            help="Updates between two evaluations, which decide on the best checkpoint; the "
            "first and the last policy are evaluated, too. 0: none.",
            show_default="as often as a fifth of the time allows, at most 20 times",
        ),
    ] = None,
    eval_episodes: Annotated[
        int | None, typer.Option(help="Number of episodes per evaluation.", show_default="16")
    ] = None,
    allow_flagged: AllowFlagged = False,
    save_updates: Annotated[
        int | None,
        typer.Option(
            help="Updates between two checkpoints.", show_default="none, --save-seconds decides"
        ),
    ] = None,
    save_seconds: Annotated[
        float, typer.Option(help="Time between two checkpoints, seconds.")
    ] = 300.0,
    devices: Annotated[
        int,
        typer.Option(
            help="Number of devices that share the environments. On a CPU, each takes one core."
        ),
    ] = 1,
    distributed: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,N,I",
            help="Share the environments between N processes. This is process I, counted from 0; "
            "process 0 listens at HOST:PORT.",
            show_default="one process",
        ),
    ] = None,
    wandb: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT",
            help="Also log to this project of Weights & Biases.",
            show_default="no log there",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read the options of this command from a file, such as run.toml of a run. "
            "Options on the command line take precedence.",
            show_default="none",
        ),
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print all options as a file for --config, and do not train."
        ),
    ] = False,
    evaluate: Annotated[
        bool,
        typer.Option("--evaluate", help="Afterwards, evaluate the policy beside SECN1 and SECN2."),
    ] = False,
    episodes: Annotated[
        int | None,
        typer.Option(
            help="With --evaluate: number of episodes per policy.", min=1, show_default="64"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run in the folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a policy. Configuration, metrics, checkpoints and learning curve go to a folder.

    With adpg, ppo, reinforce, aurora, dqn and apg, flows are the agents and set their own rates.
    Their scenarios follow from the setting `senders`, for example --set senders=4,8.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import check_output_folder
    from ecn_marl.baselines.runs import Session
    from ecn_marl.cli import rate
    from ecn_marl.experiments import jobs as jb
    from ecn_marl.experiments import workflow as wf
    from ecn_marl.experiments.taught import is_taught, search_length
    from ecn_marl.parallelism import ends_with_others

    if out is not None:
        check_output_folder("--out", out)
    if resume is not None and overwrite:
        raise bad_value("--overwrite", True, f"nothing: {resume} goes on as it was started")
    main_process = wf.join(distributed, devices)  # first: devices are fixed once JAX has run
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
        allow_flagged=allow_flagged or None,
        randomise=jb.parse_ranges(randomise) if randomise else None,
    )
    view = jb.not_none(
        features=features,
        actions=actions,
        reward=reward,
        load=load,
        max_steps=max_steps,
        priority=priority,
        # Absolute, because the run is resumed from any working folder.
        flows=None if flows is None else str(flows.absolute()),
    )
    view |= jb.parse_fields(env or [])
    if rate.is_about_rates(algorithm, resume):
        file = None if config is None else str(config)
        options = view | job_fields
        options |= jb.not_none(distributed=distributed, wandb=wandb, config=file, episodes=episodes)
        options |= jb.not_none(
            devices=None if devices == 1 else devices,
            show_config=show_config or None,
            evaluate=evaluate or None,
        )
        saving = (save_updates, save_seconds)
        rate.train(algorithm, resume, out, options, setting or [], saving, overwrite, as_json)
        return
    if episodes is not None and not evaluate:
        raise bad_value("--episodes", episodes, "--evaluate beside it")
    if resume is not None:
        job_fields |= view | jb.not_none(algorithm=algorithm, out=None if out is None else str(out))
        job, folder = jb.resumed_job(resume, job_fields, setting or []), resume
    else:
        silent = not is_taught(algorithm) or not main_process
        with progress("search teacher", "episodes", search_length(), quiet=silent) as show:
            job = jb.new_job(algorithm, job_fields, view, setting or [], base, show)
        folder = out or Path("runs") / f"{algorithm}-{job.scenario}-seed{job.seed}"
    if show_config:
        job.env()  # options that do not go together are an error here, too
        typer.echo(wf.job_text(job), nl=False)
        return
    session = Session(
        save_updates,
        save_seconds,
        None if distributed else devices,
        wandb if main_process else None,
    )
    done = 0 if resume is None else wf.steps_of_run(folder)
    with ends_with_others(f"start all of them again, with --resume {folder}"):
        rows = _train(job, folder, overwrite, session, resume is not None, quiet=not main_process)
    if main_process and done >= job.steps:
        typer.echo(
            f"{folder}: has its {done:,} steps already; --steps continues it to more", err=True
        )
    if main_process:
        _report(job, folder, rows[-1], (episodes or 64) if evaluate else None, as_json)


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
    job: Job, folder: Path, overwrite: bool, session: Session, resume: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Train with a progress bar; report errors that stop it early in one line."""
    from ecn_marl.experiments import workflow as wf

    rows: list[dict[str, Any]] = []
    with (
        stops_in_one_line(f"go on with: ecn-marl train --resume {folder}"),
        progress(f"train {job.algorithm}", "steps", job.total_steps, quiet=quiet) as show,
    ):
        rows = wf.train(job, folder, overwrite, show, session, resume)
    return rows


def _report(
    job: Job, folder: Path, last_row: dict[str, Any], episodes: int | None, as_json: bool
) -> None:
    """Print the results of a training, and draw its plots.

    Args:
        job: what was trained.
        folder: folder of the run.
        last_row: metrics of the last update.
        episodes: episodes of the evaluation; None for no evaluation.
        as_json: whether to print JSON.
    """
    from ecn_marl.experiments import curves as cv
    from ecn_marl.experiments import evaluation as ev
    from ecn_marl.experiments import workflow as wf
    from ecn_marl.experiments.json_files import save_json

    result: dict[str, Any] = {"run": str(folder), "training": last_row}
    evaluated = None
    if episodes is not None:
        policies = [str(folder), *wf.references(job.scenario)]
        with progress("evaluate", "episodes", episodes * (job.seeds + len(policies) - 1)) as show:
            evaluated = ev.evaluate(
                policies,
                episodes=episodes,
                seed=job.seed,
                records=folder / wf.RECORDS,
                overwrite=True,
                allow_flagged=job.allow_flagged,
                show=show,
            )
        result["evaluation"] = evaluated.summary
        save_json(folder / wf.EVALUATION, evaluated.summary)
    show_results(result, as_json)  # before the plots: results appear even if a plot fails
    with progress("evaluate references", "%", 100.0, quiet=as_json) as show:
        cv.draw_learning_curve(folder, show)
    if evaluated is not None:
        wf.draw_evaluation(folder, evaluated)
    if not as_json:
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        typer.echo(f"{folder}: {names}")
