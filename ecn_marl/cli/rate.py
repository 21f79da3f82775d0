"""`train`, `export`, `eval` and `bench adpg` where flows are the agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ecn_marl.render.bars import Move, progress

_EVAL = "evaluate the run with `ecn-marl eval RUN`"
INSTEAD = {
    "evaluate": _EVAL,
    "episodes": _EVAL,
    "show_config": "config.json of the run has all settings",
    "config": "give them as options, e.g. --set senders=4,8",
    "devices": "it trains on one device",
    "distributed": "it trains in one process",
    "wandb": "TensorBoard's files are in the run's folder",
    "eval_every": "the latest checkpoint is its policy",
    "eval_episodes": "the latest checkpoint is its policy",
    "seeds": "train one seed after the other, with --seed",
}
"""By option of `train` that learners of rates do not have, what to do instead."""


def is_about_rates(algorithm: str | None, resume: Path | None) -> bool:
    """Whether a training is of a learner of rates."""
    from ecn_marl.baselines.algorithms import RATE_ALGORITHMS
    from ecn_marl.experiments import rate

    return algorithm in RATE_ALGORITHMS or (resume is not None and rate.is_rate_run(str(resume)))


def train(
    algorithm: str | None,
    resume: Path | None,
    out: Path | None,
    user_options: dict[str, Any],
    settings: list[str],
    saving: tuple[int | None, float],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train, or go on with a run.

    Args:
        algorithm: name of the learner; None for that of `resume`.
        resume: folder of a run to go on with.
        out: folder of a new run.
        user_options: options of `train` that the user has set, besides the other arguments.
        settings: settings of the learner, `name=value`.
        saving: updates (None to go by time) and seconds between checkpoints.
        overwrite: whether to replace an earlier run in the folder.
        as_json: whether to print JSON.

    Raises:
        ValueError: an option that does not apply, or see `experiments.rate`.
    """
    from ecn_marl._errors import bad_value
    from ecn_marl._files import json_text
    from ecn_marl.baselines.training.loop import Saving
    from ecn_marl.experiments import rate
    from ecn_marl.experiments import workflow as wf

    if "envs" in user_options:  # here it is a setting of the learner
        settings = [*settings, f"envs={user_options.pop('envs')}"]
    steps, seed = user_options.pop("steps", None), user_options.pop("seed", None)
    for name, value in user_options.items():
        instead = INSTEAD.get(name, "use settings, e.g. --set senders=4,8")
        allowed = f"no such option with {algorithm or resume}; {instead}"
        raise bad_value(f"--{name.replace('_', '-')}", value, allowed)
    if resume is not None:
        _check_resumed(resume, algorithm, seed, out, settings)
    seed = seed or 0
    saving_times, done = Saving(*saving), 0 if resume is None else wf.steps_of_run(resume)
    folder = resume or out or Path("runs") / f"{algorithm}-seed{seed}"
    with progress(f"train {algorithm or folder}", "%", 100.0, lines=False) as show:

        def report(row: dict[str, Any], total: int) -> None:
            note = f"update {row['update']}, reward {row['reward']:.4f}"
            show(100.0 * row["update"] / total, note)

        if resume is not None:
            rows = rate.resume_rate(resume, steps=steps, saving=saving_times, progress=report)
        else:
            assert algorithm is not None
            rows = rate.train_rate(
                algorithm,
                folder,
                settings=settings,
                steps=steps,
                seed=seed,
                overwrite=overwrite,
                saving=saving_times,
                progress=report,
            )
    if resume is not None and done >= rows[-1]["steps"]:
        typer.echo(
            f"{folder}: has its {done:,} steps already; --steps continues it to more", err=True
        )
    if as_json:
        typer.echo(json_text({"run": str(folder), "training": rows[-1]}))
    else:
        names = ", ".join(sorted(path.name for path in folder.iterdir()))
        typer.echo(f"{folder}: {names}")


def _check_resumed(
    run: Path, algorithm: str | None, seed: int | None, out: Path | None, settings: list[str]
) -> None:
    """Raise a ValueError for arguments that a run was not started with."""
    from ecn_marl._errors import bad_value
    from ecn_marl.baselines.training.checkpoint import RUN, read_config

    if settings:
        raise bad_value("--set", settings[0], f"nothing: {run} goes on as it was started")
    started_with = read_config(run, RUN) | {"out": str(run)}
    given = {"algorithm": algorithm, "seed": seed, "out": None if out is None else str(out)}
    for name, value in given.items():
        if value is not None and value != started_with[name]:
            allowed = f"{started_with[name]!r}, with which {run} was started (or leave it out)"
            raise bad_value(name, value, allowed)


def export(run: str, out: Path, checkpoint: str, int8: bool, tree: int | None) -> None:
    """Write a policy to a file, and print what its decisions cost.

    Raises:
        ValueError: see `experiments.rate.rate_policy_of`.
    """
    from ecn_marl.baselines.exporting.files import save_policy
    from ecn_marl.baselines.rate_cost import FLOWS, decision_costs
    from ecn_marl.experiments import rate
    from ecn_marl.speed.machine import processor

    policy = rate.rate_policy_of(run, checkpoint, int8=int8, depth=tree)
    save_policy(policy, out)
    header, model = policy.header, policy.header["model"]
    summary = f"{header['algorithm']} of update {header['update']}, {policy.model}"
    typer.echo(f"{out}: {summary}, {out.stat().st_size / 1000:.0f} KB")
    if "mean_difference" in model:
        typer.echo(
            f"factors differ from the network's by {model['mean_difference']:.4f} in the mean, "
            f"{model['largest_difference']:.3f} at most ({model['observations']} observations)"
        )
    for runner, cost in decision_costs(policy).items():
        typer.echo(
            f"{runner}: {cost['alone']:.3f} us per decision of one flow, {cost['together']:.4f} us "
            f"of {FLOWS} together ({processor()}, median)"
        )


def bench(
    out: Path,
    results: Path | None,
    algorithms: str | None,
    seeds: int,
    scenarios: tuple[bool, int | None, int | None],
    as_json: bool,
    show: Callable[[str], Move],
    records: tuple[Path | None, bool],
) -> None:
    """Make the paper's tables anew: `results.json`, `table.md` and `many_to_one.png` in `out`.

    Args:
        out: folder of the comparison.
        results: another file for `results.json`; None for none.
        algorithms: rows with commas between them; None for all.
        seeds: seeds of every learner.
        scenarios: whether to use the small scenarios, and the smallest and the largest number of
            flows, or None.
        as_json: whether to print JSON instead of the table.
        show: opens a progress bar for a task.
        records: folder for records or None, and whether to replace those that are there.

    Raises:
        ValueError: see `experiments.rate_bench`.
    """
    from ecn_marl._files import json_text, write_all
    from ecn_marl.experiments import rate_bench as rb
    from ecn_marl.render.rate_bench_table import rate_bench_figure, rate_bench_tables
    from ecn_marl.speed.machine import describe

    policies = rb.POLICIES if algorithms is None else rb.row_names(algorithms)
    small, *sizes = scenarios
    all_scenarios, updates = (rb.SMALL, rb.SMALL_UPDATES) if small else (rb.FULL, rb.UPDATES)
    selected = rb.of_sizes(all_scenarios, *sizes)
    result = rb.rate_bench(rb.RatePlan(out, policies, seeds, selected, updates, *records), show)
    result["machine"] = describe()
    table, text = rate_bench_tables(result), json_text(result) + "\n"
    figure = rate_bench_figure(result)
    out.mkdir(parents=True, exist_ok=True)
    outputs: dict[Path, str | bytes] = {
        out / "results.json": text,
        out / "table.md": table,
        out / "many_to_one.png": figure,
    }
    if results is not None:
        outputs[results] = text
    write_all(outputs)
    typer.echo(text if as_json else table, nl=False)
