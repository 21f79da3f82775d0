"""Scores policies, for all comparisons; `trainings` trains the learners among them.

A record is valid only for the code, options, recipes and episodes that made it, which it holds as
`meta["asked"]`. Valid records are not made again. The caller chooses the episodes: tuning
episodes by default; only `bench` passes keys of sealed ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ecn_marl._files import without_nan
from ecn_marl.baselines.evaluation.cost import decision_us
from ecn_marl.baselines.evaluation.episodes import BATCH, Evaluation, runner
from ecn_marl.baselines.evaluation.merit import greedy_controller
from ecn_marl.baselines.evaluation.objective import episode_objective, geometric_means
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import SEARCHED, labelled
from ecn_marl.baselines.search import SearchResult
from ecn_marl.baselines.static import PREFIX
from ecn_marl.baselines.trained import run_actors
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.baselines.training.logs import read_rows
from ecn_marl.envs.interface import PortEnvironment
from ecn_marl.envs.registry import FLUID, in_view, is_packets, lookup, make
from ecn_marl.experiments import searches
from ecn_marl.experiments.best_static import best_static, with_own_reward
from ecn_marl.experiments.compare import BASELINE, ORACLES
from ecn_marl.experiments.executors import (
    Build,
    Built,
    Task,
    of_arena,
    run_episodes,
)
from ecn_marl.experiments.json_files import json_types
from ecn_marl.experiments.measured_delay import measured_delay_us
from ecn_marl.experiments.plan import SEALED, Comparison, Place
from ecn_marl.experiments.policies import Arena, resolve
from ecn_marl.experiments.recording import Keep, Recording
from ecn_marl.experiments.recording import facts as recording_facts
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.sources import code, flow_list, own_sources, settings_hash
from ecn_marl.experiments.trainings import (
    Curves,
    best_seed,
    curves,
    quiet,
    recipe_of,
    run_all,
    run_folder,
    search_progress,
    training_of,
    training_rewards,
)
from ecn_marl.experiments.workflow import Show

Keys = Callable[[Comparison, Place, Sequence[str], Mapping[str, Any]], jax.Array]
"""Gives the keys of the episodes: `keys(plan, place, policies without a record, all requests)`."""


def report_keys(
    plan: Comparison, place: Place, missing: Sequence[str], requests: Mapping[str, object]
) -> jax.Array:
    """Keys of the tuning episodes that nothing was chosen on."""
    del place, missing, requests
    return tuning_keys("report", plan.eval_seed, plan.episodes)


def scored(
    plan: Comparison,
    place: Place,
    policies: Sequence[str],
    show: Callable[[str], Show],
    keys: Keys | None = None,
    recording: Recording | None = None,
    pool: Executor | None = None,
    facts: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Record]:
    """Records of policies in a place, read from their files where these are of this plan.

    With a recording, policies whose tables are not whole are scored anew.

    Args:
        plan: seeds, episodes and recipes.
        place: where they are scored.
        policies: names of policies; learners are trained already, see `trainings`.
        show: `show(task)(done, note)` reports progress, `done` a share of the task.
        keys: gives the keys of the episodes; only called if a record is missing. None for tuning
            episodes.
        recording: writes tables of the episodes, see `begin_recording`; None for none.
        pool: runs episodes on packets, one at a time in each worker; None for this process.
        facts: further entries for the `meta` of new records.
    """
    folder = place.folder / (SEALED if plan.stream == SEALED else "") / "scores"
    files = {name: folder / f"{searches.file_name(name)}.json" for name in policies}
    requests = {name: _request(plan, place, name) for name in policies}
    records = {name: _stored(files[name], requests[name]) for name in policies}
    missing = [
        name
        for name in policies
        if records[name] is None or (recording is not None and not recording.has(name))
    ]
    if not missing:
        return {name: record for name, record in records.items() if record is not None}
    # Searches come before the keys: `bench --sealed` notes a use of the episodes when it gives
    # the keys, and a search that fails must not leave such a note.
    for name in missing:
        if name in SEARCHED:
            _search(plan, place, name, show)
    episode_keys = (keys or report_keys)(plan, place, missing, requests)[: place.episodes]
    folder.mkdir(parents=True, exist_ok=True)
    pool = pool if is_packets(place.backend) else None
    for name in missing:
        recipe = plan.recipe(place.site.scenario, name)
        score = plan.scorer(name) or (_score_rule if recipe is None else _score_learner)
        kept = None if recording is None else partial(recording.keep, name)
        scoring = Scoring(plan, place, name, episode_keys, show, kept, pool)
        evaluations, meta, curves = score(scoring)
        meta = {**meta, **_facts(plan, place, name), **facts, "asked": requests[name]}
        record = Record.of(name, evaluations, json_types(without_nan(meta), str), curves)
        if recipe is not None and place.backend == FLUID:
            best = best_static(place.scenario, place.options, recipe, episode_keys)
            record = with_own_reward(record, best, recipe)
        record.save(files[name])
        records[name] = record
    return {name: record for name, record in records.items() if record is not None}


def score_all(
    plan: Comparison,
    jobs: Sequence[tuple[Place, Sequence[str]]],
    show: Callable[[str], Show],
    pool: Executor | None,
    ended: Callable[[int], None] = lambda done: None,
) -> int:
    """Score policies in several places, each a task of a pool; `scored` then finds their records.

    Nothing is done without a pool, on sealed episodes, whose use this process has to note, with
    tables of all flows, which it writes, or beside packets, whose episodes are the tasks. Nor in
    places where times of decisions count, which other tasks would change.

    Args:
        plan: seeds, episodes and recipes.
        jobs: places, and the policies that are scored there.
        show: see `scored`.
        pool: scores; its workers share the folder of the comparison. None for this process.
        ended: called with the number of places that are done.

    Returns:
        Number of places that were tasks.
    """
    beside_packets = any(is_packets(place.backend) for place, _ in jobs)
    if pool is None or plan.stream == SEALED or plan.records is not None or beside_packets:
        return 0
    calls = {
        place.name: (plan, place, tuple(names)) for place, names in jobs if not place.measured_delay
    }
    move = show(f"score in {len(calls)} places")
    for done, name in enumerate(run_all(pool, _score_there, calls), 1):
        move(done / len(calls), name)
        ended(done)
    return len(calls)


def _score_there(plan: Comparison, place: Place, policies: Sequence[str]) -> None:
    """Score policies in a worker; their records are on disk."""
    scored(plan, place, policies, quiet)


def begin_recording(plan: Comparison, place: Place, policies: Sequence[str]) -> Recording | None:
    """Begin the tables of a place in a folder of `plan.records`, or go on with them.

    Rows that learn in the episodes that score them (`plan.scorer`) have none: their intervals are
    those of a training.

    Args:
        plan: seeds, episodes and recipes.
        place: where policies are scored.
        policies: names of the policies.

    Returns:
        What `scored` takes; None if the plan keeps no records.

    Raises:
        ValueError: the folder holds something else, or records of another plan.
    """
    if plan.records is None:
        return None
    kept = [name for name in policies if plan.scorer(name) is None]
    shown: dict[tuple[str, int], str] = {}
    for name in kept:
        learns = plan.recipe(place.site.scenario, name) is not None
        label = name if learns else resolve(name).label
        seeds = plan.seeds if learns and not is_packets(place.backend) else 1
        shown |= {(name, seed): label for seed in range(seeds)}
    about = recording_facts(
        scenario=place.name,
        options=json_types(place.options, str),
        seed=None if plan.stream == SEALED else plan.eval_seed,
        stream=plan.stream,
        asked=settings_hash([_request(plan, place, name) for name in kept]),
    )
    folder = plan.records / searches.file_name(place.name)
    return Recording(folder, shown, episodes_in(plan, place), about, plan.overwrite, resume=True)


def episodes_in(plan: Comparison, place: Place) -> int:
    """Episodes that every policy is scored on in a place."""
    return plan.episodes if place.episodes is None else place.episodes


def _stored(file: Path, request: Mapping[str, object]) -> Record | None:
    """The record in a file if it answers a request."""
    if not file.is_file():
        return None
    record = Record.load(file)
    return record if record.meta.get("asked") == request else None


def _request(plan: Comparison, place: Place, name: str) -> dict[str, Any]:
    """Everything that a record depends on, in JSON's types."""
    request: dict[str, Any] = {
        "name": name,
        "scenario": place.name,
        "played": place.scenario,
        "stream": plan.stream,
        "episodes": episodes_in(plan, place),
        "eval_seed": None if plan.stream == SEALED else plan.eval_seed,
        "options": place.options,
        "windows": place.windows,
        "measured_delay": place.measured_delay,
        "backend": place.backend,
        "code": code(),
    }
    if plan.recipe(place.site.scenario, name) is not None:
        request["training"] = training_of(plan, place.site, name)
    else:
        request |= resolve(name).facts()
    if name in SEARCHED:
        request["effort"] = asdict(plan.effort)
    if _beside_curves(place, name):
        request["eval_episodes"] = plan.eval_episodes
    request |= own_sources(request, lookup(place.scenario)) | flow_list(place.options)
    return json_types(request, str)


def _facts(plan: Comparison, place: Place, name: str) -> dict[str, Any]:
    """Entries of a record's `meta` that do not depend on how a policy is scored."""
    facts: dict[str, Any] = {
        "scenario": place.name,
        "stream": plan.stream,
        "eval_seed": None if plan.stream == SEALED else plan.eval_seed,
        "backend": place.backend,
        "versions": code(),
    }
    recipe = plan.recipe(place.site.scenario, name)
    if recipe is not None:
        facts |= {"algorithm": recipe.algorithm, "seeds": plan.seeds}
        facts["tuning"] = None if recipe.tuning is None else asdict(recipe.tuning)
    return facts | plan.facts(name)


def _search(plan: Comparison, place: Place, name: str, show: Callable[[str], Show]) -> SearchResult:
    """The settings of a reference policy; searched once, then read from the folder."""
    return searches.find(
        name,
        place.scenario,
        place.options,
        plan.effort,
        place.searches,
        search_progress(show(f"{place.name}: search {name}"), plan.effort),
    )


Scored = tuple[list[Evaluation], dict[str, Any], Curves | None]
"""Evaluations (one per seed), entries of `meta` beside `_facts`, learning curves."""

KeepOf = Callable[[int], Keep]
"""What writes the records of a policy's seed."""


class Scoring(NamedTuple):
    """What is scored: a policy in a place.

    Attributes:
        plan: seeds, episodes and recipes.
        place: the place.
        name: name of the policy.
        keys: keys of the episodes.
        show: `show(task)(done, note)` reports progress.
        kept: writes records of the episodes; None for none.
        pool: runs an episode at a time in each worker; None for this process alone.
    """

    plan: Comparison
    place: Place
    name: str
    keys: jax.Array
    show: Callable[[str], Show]
    kept: KeepOf | None
    pool: Executor | None

    def evaluate(
        self, env: Any, controller: Any, build: Build, seed: int = 0, **options: Any
    ) -> Evaluation:
        """Run the episodes, here or in the processes.

        Args:
            env: the environment.
            controller: the controller.
            build: makes both, in a process; pickles.
            seed: number of the learner's seed among those that are scored.
            **options: further arguments of `run_episodes`.
        """
        # A worker keeps what it made last by this name, and scores in several places.
        task = Task(f"{self.place.name}: {self.name}#{seed}", build, self.keys)
        keep = None if self.kept is None else self.kept(seed)
        found = run_episodes(self.pool, task, (env, controller), keep=keep, **options)
        return replace(found, name=self.name)


Scorer = Callable[[Scoring], Scored]
"""Scores a policy."""


def _score_rule(scoring: Scoring) -> Scored:
    """Score a policy that is not trained here: a rule, or an exported policy."""
    plan, place, name, _, show, *_ = scoring
    move = show(f"{place.name}: {name}")
    arena = Arena(
        place.scenario,
        place.options,
        effort=plan.effort,
        searches=place.searches,
        backend=place.backend,
    )
    env, controller = arena.env(name), arena.controller(name)
    began = time.perf_counter()
    found = controller if name in SEARCHED else None  # none searches again
    evaluation = scoring.evaluate(
        env,
        controller,
        partial(of_arena, arena, name, found),
        windows=place.windows,
        progress=lambda done: move(done / len(scoring.keys), "episodes"),
    )
    meta: dict[str, Any] = {"options": place.options}
    if _beside_curves(place, name):
        meta["curve_level"] = _curve_level(plan, place, env, controller)
    meta["evaluation_seconds"] = time.perf_counter() - began
    settings = resolve(name).settings(arena)
    if settings is not None:
        meta["settings"] = settings
    if name in SEARCHED:
        search = _search(plan, place, name, show)
        meta["search"] = {
            "objective": search.objective,
            "episodes": search.episodes,
            "runs": search.runs,
            "candidates": len(search.table),
            "settings": labelled(name, search.settings, env),
        }
    return [evaluation], meta, None


def _beside_curves(place: Place, name: str) -> bool:
    """Whether a policy is drawn as a line beside the learning curves of this place."""
    return name in CURVE_LINES and place.as_trained


CURVE_LINES = (PREFIX + "secn1", BASELINE, *ORACLES)
"""Policies that are drawn as lines beside learning curves."""


def _curve_level(plan: Comparison, place: Place, env: PortEnvironment, controller: Any) -> float:
    """J of a policy on the episodes that checkpoints are evaluated on."""
    count = plan.eval_episodes
    size = max(count, min(plan.episodes, BATCH))  # the batch of the scores: compiled already
    keys = tuning_keys("checkpoints", 0, count)[np.arange(size) % count]
    metrics = jax.device_get(runner(env, env.default_params, controller, place.windows)(keys))
    return float(geometric_means(episode_objective(metrics)["J"][:count]))


def _score_learner(scoring: Scoring) -> Scored:
    """Score the policies of all seeds of a run; on packets, that of the best checkpoint."""
    plan, place, name, keys, show, *_ = scoring
    move = show(f"{place.name}: score {name}")
    run = run_folder(place.site, name)
    began = time.perf_counter()
    algorithm, actors = run_actors(run)
    rows = read_rows(run)
    learning = curves(rows, plan.seeds)
    chosen = list(range(len(actors)))
    if is_packets(place.backend):
        chosen = [best_seed(learning)]
    view = recipe_of(plan, place.site, name).options
    options = in_view(place.scenario, place.options, view)
    delay_option: dict[str, Any] = {}
    if place.measured_delay:
        delay_us = measured_delay_us(place.scenario, options, algorithm, actors[0], keys)
        delay_option = {"decision_delay_us": delay_us}
    env = make(place.scenario, backend=place.backend, **options, **delay_option)
    evaluations: list[Evaluation] = []
    for number, i in enumerate(chosen):
        evaluation = scoring.evaluate(
            env,
            greedy_controller(algorithm, actors[i], env),
            partial(_trained, run, i, place.scenario, place.backend, {**options, **delay_option}),
            seed=number,
            windows=place.windows,
        )
        evaluations.append(evaluation)
        move((number + 1) / len(chosen), "seeds")
    config = read_config(run)
    meta = {
        "options": {**config["options"], **place.options},
        "settings": config["settings"],
        "steps": rows[-1]["steps"],
        "seconds": rows[-1]["seconds"],
        "evaluation_seconds": time.perf_counter() - began,
        "exchanged_bytes_per_second": algorithm.exchanged_bytes(env, rows),
        "curve": "J",
        "rewards": training_rewards(rows),
        "trained_with": config["about"],
        **_decision_costs(algorithm, actors[0], evaluations[0], env),
        **delay_option,
    }
    if is_packets(place.backend):
        meta["seed"] = chosen[0]
        learning = learning and [learning[chosen[0]]]
    return evaluations, meta, learning


def _trained(
    run: Path, seed: int, scenario: str, backend: str, options: Mapping[str, Any]
) -> Built:
    """Environment and controller of a seed of a run."""
    algorithm, actors = run_actors(run)
    env = make(scenario, backend=backend, **options)
    return env, greedy_controller(algorithm, actors[seed], env)


def _decision_costs(
    algorithm: Any, actor: PyTree, evaluation: Evaluation, env: PortEnvironment
) -> dict[str, float]:
    """Inferences per second and time per decision of a policy, where they are known."""
    costs = evaluation.summary().get("costs")
    if costs is None:
        return {}
    per_second = env.num_agents * 1e6 / env.interval_us
    facts = {"inferences_per_second": costs["inferences_per_decision"] * per_second}
    if algorithm.modules(actor):
        facts["us_per_decision"] = decision_us(algorithm, actor, costs)
    return facts
