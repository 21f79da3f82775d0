"""`ecn-marl tune`: random search over a learner's settings, with its whole budget on record.

Each trial draws settings from the learner's space, trains for a short while and is scored on the
`trials` part of the tuning stream by J (lower is better), the geometric mean over its seeds. The
settings of trial i depend on the scenario, the learner and i alone. Trial 0 is the recipe itself.

    OUT/tune.json          the request: scenario, learner, budget, space
    OUT/trials.jsonl       a line per finished trial: settings, J, steps, seconds
    OUT/trials/NNNN/       the run of the current trial; deleted when it is finished
    OUT/result.json        the spent budget and the winner

A search that was killed goes on with the trial it was at; finished trials are not repeated. Random
search can be resumed, extended and compared at equal numbers of trials, and with so few trials it
is hard to beat (Bergstra and Bengio, JMLR 13, 2012).
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import write_all
from ecn_marl._lock import LOCK, locked
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.merit import greedy_controller
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.runs import Session, resume_run, train_run
from ecn_marl.baselines.trained import run_actors
from ecn_marl.baselines.training.loop import TrainingDiverged
from ecn_marl.baselines.training.spaces import Choice, LogUniform, Space
from ecn_marl.envs.registry import lookup, make
from ecn_marl.errors import InvalidValue
from ecn_marl.experiments.executors import executor, once_free
from ecn_marl.experiments.json_files import json_types, save_json
from ecn_marl.experiments.recipes import LEARNERS, Recipe, Tuning, recipe, with_settings
from ecn_marl.experiments.sources import code, flow_list, own_sources
from ecn_marl.experiments.taught import with_teacher

REQUEST, TRIALS, RUNS, RESULT = "tune.json", "trials.jsonl", "trials", "result.json"

Progress = Callable[[float, str], None]
"""`progress(trials done, note)`."""


_WIDTHS = Choice(((32, 32), (64, 64), (128, 128)))

_PPO: Space = {
    "actor_lr": LogUniform(3e-4, 5e-3),
    "critic_lr": LogUniform(3e-4, 5e-3),
    "gamma": Choice((0.95, 0.98, 0.99, 0.995, 0.9975)),
    "gae_lambda": Choice((0.9, 0.95, 0.98, 0.99)),
    "entropy": LogUniform(1e-4, 1e-2),
    "rollout": Choice((32, 64, 128)),
    "epochs": Choice((2, 4, 8)),
    "minibatches": Choice((4, 8, 16)),
    "hidden": _WIDTHS,
}

_Q: Space = {
    "lr": LogUniform(1e-4, 3e-3),
    "gamma": Choice((0.9, 0.95, 0.98, 0.99, 0.995)),
    "rollout": Choice((8, 32)),
    "n_step": Choice((1, 3, 8, 32)),
    "gradient_steps": Choice((8, 32, 128)),
    "batch": Choice((64, 256)),
    "target_every": Choice((50, 200, 1000)),
    "epsilon_decay": Choice((0.95, 0.98, 0.99)),
    "epsilon_min": Choice((0.02, 0.05, 0.1)),
}

_TAUGHT: Space = {
    "lr": LogUniform(3e-4, 3e-3),
    "rollout": Choice((32, 64, 128)),
    "gradient_steps": Choice((16, 32, 64)),
    "teacher_decay": Choice((0.0, 0.8, 0.95)),
    "hidden": _WIDTHS,
}

SPACES: dict[str, Space] = {
    "ippo": _PPO,
    "mappo": _PPO,
    "gnn": _PPO,
    "dagger": {**_TAUGHT, "batch": Choice((256, 1024))},
    "generalist": _TAUGHT,
    "sac": {
        "lr": LogUniform(1e-4, 3e-3),
        "gamma": Choice((0.95, 0.98, 0.99, 0.995)),
        "n_step": Choice((1, 8, 32)),
        "gradient_steps": Choice((16, 64, 128)),
        "batch": Choice((256, 1024)),
        "entropy": Choice((-2.0, -1.0, -0.5)),
        "hidden": _WIDTHS,
    },
    "pqn": {
        "lr": LogUniform(1e-4, 3e-3),
        "gamma": Choice((0.98, 0.99, 0.995, 0.9975)),
        "gae_lambda": Choice((0.65, 0.8, 0.9, 0.95)),
        "rollout": Choice((32, 64, 128)),
        "epochs": Choice((2, 4)),
        "minibatches": Choice((4, 8, 16)),
        "epsilon_decay": Choice((0.95, 0.98)),
        "epsilon_min": Choice((0.02, 0.05)),
        "hidden": _WIDTHS,
    },
    "ddqn": {
        **_Q,
        "hidden": _WIDTHS,
        "priority": Choice((0.0, 0.6)),
        "local_capacity": Choice((8192, 32768)),
    },
    "c-acc": {**_Q, "hidden": _WIDTHS, "priority": Choice((0.0, 0.6))},
    "haecn": {
        **_Q,
        "trigger_penalty": LogUniform(3e-4, 1e-1),
        "decision_hidden": Choice(((16,), (32, 32), (64, 64))),
        "capacity": Choice((8192, 32768)),
    },
}
"""Spaces of the trainers that ship with the package; a registered one has `Trainer.space`."""


def space_of(algorithm: str) -> Space:
    """The space that settings of a trainer are drawn from.

    Raises:
        ValueError: unknown algorithm, or one without a search space.
    """
    if algorithm in SPACES:
        return SPACES[algorithm]
    space: Space | None = ALGORITHMS[algorithm].space
    if not space:
        allowed = "one with a search space: its Trainer declares none (`space`)"
        raise bad_value("learner", algorithm, allowed)
    return space


@dataclass(frozen=True)
class Search:
    """A search: what is tuned, and its budget.

    Attributes:
        scenario: name of the scenario.
        learner: name of a row of the benchmark, see `recipes.LEARNERS`.
        trials: settings tried, the recipe's own among them.
        steps: environment steps of each trial.
        episodes: tuning episodes that each is scored on.
        seeds: seeds of each; with one seed, the winner is often a lucky one.
        options: options of `ecn_marl.make` over those of the recipe, e.g. `{"max_steps": 50}`.
        settings: settings of the trainer that all trials share, e.g. `{"envs": 16}`.
    """

    scenario: str
    learner: str
    trials: int = 20
    steps: int = 100_000
    episodes: int = 32
    seeds: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check everything before anything is trained."""
        for name in ("trials", "steps", "episodes", "seeds"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        found = self.recipe
        space_of(found.algorithm)
        make(self.scenario, **{**found.options, **self.options})
        algorithm_config(found.algorithm, **dict(self.settings))
        for trial in range(self.trials):
            try:
                own = found.settings_for(self.steps, {**self.drawn(trial), **self.settings})
                algorithm_config(found.algorithm, **own)
            except InvalidValue as error:
                allowed = f"{error.allowed}: give all trials one that fits"
                raise bad_value(f"{error.field} of trial {trial}", error.value, allowed) from None

    @property
    def recipe(self) -> Recipe:
        """The recipe that the trials change."""
        found = recipe(self.scenario, self.learner)
        return with_teacher(found, self.scenario, self.options, settings=self.settings)

    @property
    def space(self) -> Space:
        """The space without settings that all trials share."""
        space = space_of(self.recipe.algorithm)
        return {name: x for name, x in space.items() if name not in self.settings}

    @property
    def make_options(self) -> dict[str, Any]:
        """Options of the environment."""
        return {**self.recipe.options, **self.options}

    def drawn(self, trial: int) -> dict[str, Any]:
        """The settings of a trial, those that all trials share left out; none for trial 0."""
        if trial == 0:
            return {}
        name = f"{self.scenario} {self.learner}".encode()
        # Not `hash`, which Python salts anew in every process.
        rng = np.random.default_rng([crc32(name), trial])
        # Those that all trials share are drawn, too, so that the others are the same without them.
        space = space_of(recipe(self.scenario, self.learner).algorithm)
        drawn = {n: kind.draw(rng) for n, kind in space.items()}
        return {name: x for name, x in drawn.items() if name not in self.settings}

    def request(self) -> dict[str, Any]:
        """Everything that a log of trials depends on; the number of trials may grow."""
        facts = asdict(self) | {"recipe": asdict(self.recipe), "code": code()}
        facts |= own_sources(facts, lookup(self.scenario)) | flow_list(self.options)
        facts["space"] = {n: [type(x).__name__, asdict(x)] for n, x in self.space.items()}
        del facts["trials"]
        return json_types(facts, str)


def tune(
    search: Search, out: Path, progress: Progress | None = None, workers: int | str = 1
) -> dict[str, Any]:
    """Run the trials that are not in the log yet.

    Args:
        search: what is tuned.
        out: folder of the search.
        progress: called as trials advance.
        workers: who runs trials, one at a time each, see `executors.executor`.

    Returns:
        What `result.json` holds: `scenario`, `learner`, the `budget` (trials, steps of each, steps
        in all, episodes, seconds), the `winner` (its trial, settings, J) and all `trials`.

    Raises:
        ValueError: the folder holds another search, or no trial could be scored.
        FolderInUse: another process works in the folder.
    """
    show = progress or (lambda done, note: None)
    _check_folder(search, out)
    with locked(out, "tune"):
        return _tune(search, out.absolute(), show, workers)


def _tune(search: Search, out: Path, show: Progress, workers: int | str) -> dict[str, Any]:
    """Run `tune` in a locked folder."""
    rows = _open(search, out)
    with executor(workers) as pool:
        for row in _trials(search, out, range(len(rows), search.trials), show, pool):
            rows.append(row)
            with (out / TRIALS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            # Only now: a search that is killed before the line is written needs the run to go on.
            shutil.rmtree(out / RUNS / f"{row['trial']:04d}", ignore_errors=True)
    result = _result(search, rows[: search.trials])
    save_json(out / RESULT, result)
    return result


def _check_folder(search: Search, out: Path) -> dict[str, Any]:
    """The search's request; raises a ValueError if the folder holds something else."""
    request, file = search.request(), out / REQUEST
    if file.is_file():
        if json.loads(file.read_text()) != request:
            raise bad_value("out", str(out), "a folder without another search (or other code)")
    elif out.exists() and (not out.is_dir() or any(p.name != LOCK for p in out.iterdir())):
        raise bad_value("out", str(out), "a folder that is new or empty, or that of this search")
    return request


def _open(search: Search, out: Path) -> list[dict[str, Any]]:
    """The finished trials; an incomplete last line is dropped."""
    request, file = _check_folder(search, out), out / REQUEST
    out.mkdir(parents=True, exist_ok=True)
    save_json(file, request)
    log = out / TRIALS
    lines = log.read_text().splitlines(keepends=True) if log.is_file() else []
    complete = [line for line in lines if line.endswith("\n")]
    if len(complete) < len(lines):
        write_all({log: "".join(complete)})
    return [json.loads(line) for line in complete]


def _trials(
    search: Search, out: Path, numbers: range, show: Progress, pool: Executor | None
) -> Iterator[dict[str, Any]]:
    """Rows of trials, in their order."""
    if pool is None:
        yield from (_trial(search, out, trial, show) for trial in numbers)
        return
    for row in pool.map(partial(once_free, _trial, search, out), numbers):
        show(row["trial"] + 1, _said(row))
        yield row


def _said(row: Mapping[str, Any]) -> str:
    scored = "no score" if row["J"] is None else f"J {row['J']:.3f}"
    return f"trial {row['trial']}: {scored}"


def _trial(
    search: Search, out: Path, trial: int, show: Progress = lambda done, note: None
) -> dict[str, Any]:
    """Train and score one trial, or go on with its run."""
    drawn = search.drawn(trial)
    settings = search.recipe.settings_for(search.steps, {**drawn, **search.settings})
    run, began = out / RUNS / f"{trial:04d}", time.perf_counter()
    # Below 1 until the trial is scored: runs are rounded up to whole updates, beyond their steps.
    session = Session(
        save_seconds=60.0,
        progress=lambda row: show(trial + min(row["steps"] / search.steps, 0.99), f"trial {trial}"),
    )
    row: dict[str, Any] = {"trial": trial, "settings": drawn, "J": None}
    show(trial, f"trial {trial}: compiling")
    try:
        if (run / "config.json").is_file():
            resume_run(run, session=session)
        else:
            # What a process left that was killed before it wrote the configuration.
            shutil.rmtree(run, ignore_errors=True)
            train_run(
                search.recipe.algorithm,
                search.scenario,
                steps=search.steps,
                options=search.make_options,
                settings=settings,
                seed=trial * search.seeds,  # no two trials share a seed
                seeds=search.seeds,
                out=run,
                eval_every=0,
                session=session,
            )
        row["J"] = _score(search, run)
    except TrainingDiverged as error:
        row["error"] = str(error)
    show(trial + 1, _said(row))
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _score(search: Search, run: Path) -> float | None:
    """Geometric mean of J over the seeds, each by its last policy; None if one of them has no J."""
    algorithm, actors = run_actors(run, which="latest")
    env = make(search.scenario, **search.make_options)
    params, keys = env.default_params, tuning_keys("trials", 0, search.episodes)
    logs = []
    for actor in actors:
        evaluation = evaluate(
            env,
            params,
            greedy_controller(algorithm, actor, env),
            name="trial",
            episodes=search.episodes,
            keys=keys,
        )
        value = evaluation.summary()["J"]["value"]
        if value is None:
            return None
        logs.append(math.log(value))
    return math.exp(sum(logs) / len(logs))


def _result(search: Search, rows: list[dict[str, Any]]) -> dict[str, Any]:
    scored = [row for row in rows if row["J"] is not None]
    if not scored:
        raise bad_value("trials", len(rows), "at least one that can be scored (see the log)")
    return {
        "scenario": search.scenario,
        "learner": search.learner,
        "budget": {
            **asdict(_budget(search, len(rows))),
            "steps_in_all": len(rows) * search.steps * search.seeds,
            "seconds": round(sum(row["seconds"] for row in rows), 1),
        },
        "winner": min(scored, key=lambda row: row["J"]),
        "trials": rows,
    }


def _budget(search: Search, trials: int) -> Tuning:
    """The budget of some trials of a search."""
    return Tuning(trials, search.steps, search.episodes, search.seeds, search.scenario)


def winner_recipe(search: Search, result: Mapping[str, Any]) -> Recipe:
    """The recipe with the winner's settings, and the budget that found them."""
    tuning = _budget(search, result["budget"]["trials"])
    return with_settings(search.recipe, result["winner"]["settings"], tuning)


def recipe_text(learner: str, winner: Recipe) -> str:
    """A recipe as code for `recipes.RECIPES[scenario]`; of a registered learner as options."""
    if learner not in LEARNERS:
        return "".join(f"--set {name}={json.dumps(x)}\n" for name, x in winner.settings.items())
    settings = {name: tuple(x) if isinstance(x, list) else x for name, x in winner.settings.items()}
    return (
        f'"{learner}": with_settings(\n'
        f'    LEARNERS["{learner}"],\n'
        f"    {settings!r},\n"
        f"    {winner.tuning!r},\n"
        "),\n"
    )
