"""Trains the learners of a comparison, here or in the workers of an executor.

What is trained is on disk, `OUT/SCENARIO/LEARNER/`, and read from there by what scores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.baselines.algorithms import algorithm_config
from ecn_marl.baselines.runs import Session, resume_run, train_run
from ecn_marl.baselines.search import Effort, Progress
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.baselines.training.logs import evaluated_rows
from ecn_marl.envs.registry import in_view
from ecn_marl.experiments import searches
from ecn_marl.experiments.executors import once_free
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.plan import Comparison, Site, own_settings
from ecn_marl.experiments.recipes import GENERALIST, Recipe, steps_of
from ecn_marl.experiments.sources import code
from ecn_marl.experiments.taught import search_length, with_teacher
from ecn_marl.experiments.workflow import Show

Curves = list[tuple[np.ndarray, np.ndarray]]
"""Steps and J of each seed's learning curve."""

Job = tuple[Site, str]
"""Where a learner is trained, and its name."""


def recipe_of(plan: Comparison, site: Site, name: str) -> Recipe:
    """The recipe of a learner, with what a search tells it, if it is taught."""
    recipe = plan.recipe(site.scenario, name)
    assert recipe is not None, name
    return with_teacher(
        recipe, site.scenario, site.options, plan.effort, site.searches, settings=plan.settings
    )


def find_teachers(plan: Comparison, jobs: Sequence[Job], show: Callable[[str], Show]) -> None:
    """Search for what teaches learners, so that it is at hand when their trainings are described.

    Args:
        plan: effort and recipes.
        jobs: what is trained.
        show: see `scored`.
    """
    for site, name in jobs:
        recipe = plan.recipe(site.scenario, name)
        if recipe is not None and recipe.taught:
            progress = search_progress(show(f"{site.scenario}: search for {name}"), plan.effort)
            where = (site.scenario, site.options, plan.effort, site.searches)
            with_teacher(recipe, *where, progress, settings=plan.settings)


def search_progress(show: Show, effort: Effort) -> Progress:
    """Progress of a search, as a share of its length."""
    return lambda done, note: show(done / search_length(effort), note)


def training_of(plan: Comparison, site: Site, name: str) -> dict[str, Any]:
    """How a learner is trained, in the terms of a run's configuration."""
    recipe = recipe_of(plan, site, name)
    steps = site.steps
    if name == GENERALIST and plan.steps is None:
        steps = steps_of(site.scenario, name)
    training = {
        "algorithm": recipe.algorithm,
        "scenario": site.scenario,
        "steps": steps,
        "options": in_view(site.scenario, site.options, recipe.options),
        "settings": recipe.settings_for(steps, own_settings(recipe, plan.settings)),
        "seeds": plan.seeds,
        "eval_episodes": plan.eval_episodes,
        "best_by": "objective",
        "randomise": dict(site.randomise),
    }
    return json_types(training)


def best_seed(learning: Curves | None) -> int:
    """Number of the seed whose best checkpoint has the lowest J; the first without any.

    The untrained state, at step 0, is no checkpoint.
    """
    trained = [j[steps > 0] for steps, j in learning or ()]
    return int(np.argmin([j.min() for j in trained])) if trained and trained[0].size else 0


def curves(rows: Sequence[Mapping[str, Any]], seeds: int) -> Curves | None:
    """Learning curves from a run's metrics: steps and J of the checkpoints that were evaluated.

    Args:
        rows: rows of `metrics.jsonl`; `merit` is minus J, a number or one for each seed.
        seeds: number of seeds.
    """
    evaluated = evaluated_rows(rows)
    if not evaluated:
        return None
    steps = np.array([row["steps"] for row in evaluated], np.float64)
    minus_j = np.array([np.atleast_1d(row["merit"]) for row in evaluated], np.float64)
    return [(steps, -minus_j[:, i]) for i in range(seeds)]


def training_rewards(rows: Sequence[Mapping[str, Any]], most: int = 40) -> dict[str, list[float]]:
    """Mean reward while training, over seeds, in at most `most` equal parts of a run.

    Exploration is part of it, so it lies below that of the greedy policy.

    Returns:
        `steps` at the end of each part, and `reward`; no parts where no reward is logged.
    """
    logged = [row for row in rows if "reward" in row]
    parts = np.array_split(np.arange(len(logged)), min(most, len(logged))) if logged else []
    return {
        "steps": [float(logged[part[-1]]["steps"]) for part in parts],
        "reward": [float(np.mean([np.mean(logged[i]["reward"]) for i in part])) for part in parts],
    }


def run_folder(site: Site, name: str) -> Path:
    """The folder of a learner's run."""
    return site.folder / searches.file_name(name)


def train_all(
    plan: Comparison,
    jobs: Sequence[Job],
    show: Callable[[str], Show],
    pool: Executor | None = None,
    ended: Callable[[int], None] = lambda done: None,
) -> None:
    """Train learners, one after the other or, in a pool, as many at once as it has workers.

    Args:
        plan: seeds and recipes.
        jobs: what to train.
        show: see `scored`.
        pool: trains them; its workers share the folder of the comparison. None for this process.
        ended: called with the number of trainings that have ended.

    Raises:
        ValueError: see `train`.
    """
    if pool is None or not jobs:
        for done, (site, name) in enumerate(jobs, 1):
            train(plan, site, name, show)
            ended(done)
        return
    move = show(f"train {len(jobs)} learners")
    calls = {f"{site.folder.name}: {name}": (plan, site, name) for site, name in jobs}
    for done, name in enumerate(run_all(pool, _train_there, calls), 1):
        move(done / len(jobs), name)
        ended(done)


def run_all(
    pool: Executor, task: Callable[..., None], calls: Mapping[str, tuple[Any, ...]]
) -> Iterator[str]:
    """Run a task with each of several arguments; all are given up if one fails.

    Args:
        pool: runs them.
        task: a function that pickles.
        calls: its arguments, by the name of what it does.

    Yields:
        The names, as they end.
    """
    waiting = {pool.submit(task, *arguments): name for name, arguments in calls.items()}
    try:
        for future in as_completed(waiting):
            future.result()
            yield waiting[future]
    except BaseException:
        for future in waiting:
            future.cancel()
        raise


def _train_there(plan: Comparison, site: Site, name: str) -> None:
    """Train a learner in a worker; what it trains is on disk."""
    once_free(train, plan, site, name, quiet)


def quiet(task: str) -> Show:
    """`show` of a worker: nothing."""
    return lambda done, note: None


def train(plan: Comparison, site: Site, name: str, show: Callable[[str], Show]) -> None:
    """Train all seeds of a learner, or go on with its run.

    Args:
        plan: seeds and recipes.
        site: where it is trained.
        name: the learner.
        show: see `scored`.

    Raises:
        ValueError: its folder holds a run with other settings.
    """
    training, run = training_of(plan, site, name), run_folder(site, name)
    move = show(f"{site.scenario}: train {name}")
    session = Session(
        save_seconds=60.0,
        progress=lambda row: move(
            row["steps"] / training["steps"],
            f"{row['steps_per_second']:,.0f} steps/s"
            + (f", reward {float(np.mean(row['reward'])):.4f}" if "reward" in row else ""),
        ),
    )
    if not (run / "config.json").is_file():
        arguments = {key: training[key] for key in ("steps", "seeds", "eval_episodes", "best_by")}
        recipe = recipe_of(plan, site, name)
        train_run(
            training["algorithm"],
            site.scenario,
            options=in_view(site.scenario, site.options, recipe.options),
            settings=training["settings"],
            out=run,
            session=session,
            randomise=site.randomise,
            about=code(),
            **arguments,
        )
        return
    config = read_config(run)
    stored = {key: config.get(key) for key in training}
    # The file has all settings of the trainer, or those that it had then, a recipe only some.
    asked, stored["settings"] = (
        json_types(asdict(algorithm_config(training["algorithm"], **settings)))
        for settings in (training["settings"], config["settings"])
    )
    if stored != training | {"settings": asked}:
        raise bad_value("out", str(site.folder), f"a folder without another run of {name} ({run})")
    resume_run(run, session=session)
