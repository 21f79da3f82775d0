"""The commands `train` and `eval`, between the command line and the trainers.

Policies are named as in `experiments.policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._files import write_all
from ecn_marl._imports import needed_imports
from ecn_marl._registry import SCRIPT
from ecn_marl.baselines.algorithms import algorithm_config
from ecn_marl.baselines.runs import Session, resume_run, train_run
from ecn_marl.baselines.training.logs import read_rows
from ecn_marl.envs.registry import lookup
from ecn_marl.experiments.job_files import FILE, toml_of
from ecn_marl.experiments.jobs import Job
from ecn_marl.experiments.policies import resolve
from ecn_marl.experiments.results import Result
from ecn_marl.experiments.searches import shipped
from ecn_marl.parallelism import host_devices, join_processes, parse_processes

EVALUATION, QUEUES, SLOWDOWN, RECORDS = (
    "evaluation.json",
    "queues.png",
    "slowdown.png",
    "records",
)
"""What an evaluation adds to the folder of a run."""

Show = Callable[[float, str], None]
"""`show(done, note)`: moves a progress bar."""


def join(distributed: str | None, devices: int) -> bool:
    """Set the devices up before JAX runs anything.

    Args:
        distributed: `HOST:PORT,N,I`: this is process I of N; None if there is one only.
        devices: devices of a single process.

    Returns:
        Whether this is the process that writes and prints.

    Raises:
        ValueError: `distributed` cannot be read, or there are fewer devices.
    """
    if distributed is not None:
        return join_processes(*parse_processes(distributed)) == 0
    if devices != 1:
        host_devices(devices)
    return True


def train(
    job: Job,
    folder: Path,
    overwrite: bool,
    show: Show,
    session: Session | None = None,
    resume: bool = False,
) -> list[dict[str, Any]]:
    """Train a run in `folder`, or go on with the one there; returns rows of metrics."""
    horizon = job.env().horizon

    by_objective = lookup(job.scenario).benchmark
    merit = ""  # only some rows have one, and the note shows the last

    def progress(row: dict[str, Any]) -> None:
        nonlocal merit
        note = f"{row['steps_per_second']:,.0f} steps/s"
        if "reward" in row:
            note = f"return {float(np.mean(row['reward'])) * horizon:.1f}, {note}"
        if "merit_refused" in row:
            merit = f"not evaluated: {row['merit_refused']}, "
        if "merit" in row:
            value = float(np.mean(row["merit"]))
            merit = f"J {-value:.2f}, " if by_objective else f"greedy reward {value:.4g}, "
        show(row["steps"], merit + note)

    session = replace(session or Session(), progress=progress)
    if resume:
        metrics = resume_run(folder, steps=job.steps, session=session).metrics
        write_all({folder / FILE: job_text(job)})
        return metrics
    return train_run(
        job.algorithm,
        job.scenario,
        steps=job.steps,
        options=job.options,
        settings=job.settings,
        seed=job.seed,
        seeds=job.seeds,
        out=folder,
        overwrite=overwrite,
        eval_every=job.eval_every,
        eval_episodes=job.eval_episodes,
        best_by="objective" if by_objective else "reward",
        randomise=job.randomise,
        allow_flagged=job.allow_flagged,
        session=session,
        notes={FILE: job_text(job)},
    ).metrics


def steps_of_run(folder: Path) -> int:
    """Steps per seed that a run has behind it; 0 before its first update."""
    rows = read_rows(folder)
    return int(rows[-1].get("steps", 0)) if rows else 0


def job_text(job: Job) -> str:
    """A job as a file for `train --config`, all defaults filled in."""
    config = algorithm_config(job.algorithm, **job.settings)
    modules = needed_imports(
        job.algorithm, job.scenario, job.options, job.settings, lookup(job.scenario)
    )
    imports = [name for name in modules if not name.startswith(SCRIPT)]
    return toml_of(replace(job, settings=asdict(config)), imports)


def references(scenario: str) -> tuple[str, ...]:
    """Reference policies of an evaluation: those whose search ships, SECN1 and SECN2."""
    return (*shipped(scenario), "static:secn1", "static:secn2")


def draw_evaluation(folder: Path, result: Result) -> None:
    """Draw `queues.png` and, from its records, `slowdown.png` of a run.

    Args:
        folder: the run.
        result: its evaluation; the queues are those of its first policy and of all rules.
    """
    # Imported here: matplotlib is slow to load, and most users of this module draw nothing.
    from ecn_marl.render.plots import queues
    from ecn_marl.render.queues import queue_series
    from ecn_marl.render.record_plots import save

    summary, arena = result.summary, result.arena
    names = [row["name"] for row in summary["policies"] if row["seeds"] == 1]
    shown = [names[0], *[name for name in names if not resolve(name).trained]]
    env = arena.env(names[0])
    controllers: dict[str, Any] = {resolve(name).label: arena.controller(name) for name in shown}
    port, series = queue_series(env, env.default_params, controllers, summary["seed"])
    title = f"Queue of {port} in {arena.scenario}, evaluation seed {summary['seed']}, episode 0"
    content = queues(series, title)
    write_all({folder / QUEUES: content})
    # Episodes so short that no flow is measured have no J either.
    if result.tables is not None and result.flows["measured"].any():
        save(result.plot.slowdown(), folder / SLOWDOWN)
