"""The commands `train` and `eval`, between the command line and the trainers.

A policy is named by a string, see `experiments.policies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import write_all
from ecn_marl._imports import needed_imports
from ecn_marl._registry import SCRIPT
from ecn_marl.baselines.algorithms import algorithm_config
from ecn_marl.baselines.dynamic import PREFIX as DYNAMIC
from ecn_marl.baselines.dynamic import Dynamic
from ecn_marl.baselines.evaluation.completion import summarise
from ecn_marl.baselines.evaluation.episodes import Controller, Evaluation, StatefulController
from ecn_marl.baselines.evaluation.episodes import evaluate as evaluate_one
from ecn_marl.baselines.evaluation.statistics import over_seeds
from ecn_marl.baselines.exported import (
    Exported,
    episodes_of,
    is_exported,
    read_exported,
    view_of,
)
from ecn_marl.baselines.exporting.policy import Policy
from ecn_marl.baselines.oracle import BEST, NEEDS, RANDOM, SEARCHED, Random
from ecn_marl.baselines.runs import Session, resume_run, run_controller, run_policy, train_run
from ecn_marl.baselines.search import Effort
from ecn_marl.baselines.static import PREFIX, Static
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import FLUID, VIEW, in_view, is_packets, lookup, make, out_of_view
from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.job_files import FILE, toml_of
from ecn_marl.experiments.jobs import DEFAULT_SCENARIO, Job
from ecn_marl.experiments.json_files import output, save_json
from ecn_marl.experiments.policies import is_rule, label, run_config
from ecn_marl.experiments.policies import learners as learners
from ecn_marl.experiments.processes import Task, in_processes, processes
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.searches import find, shipped
from ecn_marl.parallelism import host_devices, join_processes, parse_processes

EVALUATION, QUEUES = "evaluation.json", "queues.png"

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
        write_all({folder / FILE: output(job_text(job))})
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


@dataclass(frozen=True)
class Arena:
    """One scenario and reward for several policies; each keeps its own features and actions.

    Attributes:
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        checkpoint: which policy of a run: `best` (the latest if none was evaluated), `latest`.
        effort: how much is searched for the settings of reference policies.
        searches: folder where searches are kept; None for this process only.
        backend: what simulates the network, see `registry.make`. Searches are made in the fluid.
    """

    scenario: str
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = "best"
    effort: Effort = field(default_factory=Effort)
    searches: Path | None = None
    backend: str = FLUID

    def env(self, policy: str) -> EcnEnv:
        """The environment as a policy sees it."""
        if is_rule(policy):
            # A rule has no view: it acts at the scenario's own interval.
            options = {name: x for name, x in self.options.items() if name != "interval_us"}
            return self._make(options | NEEDS.get(policy, {}))
        if is_exported(policy):
            view = view_of(read_exported(policy))
            return self._make(in_view(self.scenario, self.options, view))
        trained = run_config(policy.partition("#")[0])["options"]
        view = {name: trained[name] for name in VIEW if name in trained}
        return self._make(in_view(self.scenario, self.options, view))

    def _make(self, options: Mapping[str, Any]) -> EcnEnv:
        return make(self.scenario, backend=self.backend, **options)

    def controller(self, policy: str) -> Controller | StatefulController:
        """The controller that sets the thresholds."""
        env = self.env(policy)
        if policy == RANDOM:
            return Random(env)
        if policy in SEARCHED:
            search = find(policy, self.scenario, self.options, self.effort, self.searches)
            return search.controller(env, env.default_params)
        if policy.startswith(PREFIX):
            return Static(env, env.default_params, policy.removeprefix(PREFIX))
        if policy.startswith(DYNAMIC):
            return Dynamic(env, env.default_params, policy.removeprefix(DYNAMIC))
        if is_exported(policy):
            return Exported(env, read_exported(policy), policy)
        folder, _, number = policy.partition("#")
        return run_controller(folder, env, _learner(policy, number), self.checkpoint)


def policy_of(name: str, checkpoint: str) -> Policy:
    """The policy of a run, `FOLDER` or `FOLDER#I`, to be written to a file."""
    folder, _, number = name.partition("#")
    run_config(folder)
    return run_policy(folder, _learner(name, number), checkpoint)


def _learner(policy: str, number: str) -> int:
    if number and not number.isdecimal():
        raise bad_value("policy", policy, "FOLDER or FOLDER#I, I the number of a seed from 0")
    return int(number or 0)


def arena(policies: list[str], scenario: str | None, **overrides: object) -> Arena:
    """Scenario, options and reward of the first trained policy, unless the caller sets them."""
    for policy in policies:
        if is_exported(policy):
            trained_in, options = episodes_of(read_exported(policy))
            return Arena(scenario or trained_in, options | overrides)
        if not is_rule(policy):
            config = run_config(policy.partition("#")[0])
            options = out_of_view(config["scenario"], config["options"])
            return Arena(scenario or config["scenario"], options | overrides)
    return Arena(scenario or DEFAULT_SCENARIO, overrides)


def evaluate(
    arena: Arena,
    policies: list[str],
    episodes: int,
    seed: int,
    show: Show,
    allow_flagged: bool = False,
    workers: int = 1,
) -> dict[str, Any]:
    """Evaluate policies on the same episodes.

    Args:
        arena: scenario and options.
        policies: names, see `experiments.policies`.
        episodes: episodes of each.
        seed: which tuning episodes.
        show: moves a progress bar.
        allow_flagged: whether results that do not count are scored all the same, see
            `completion.invalid_reasons`.
        workers: processes, each of which runs one episode at a time; for packets.

    Returns:
        `scenario`, `backend`, `options`, `episodes`, `seed`, and `policies`: the summary of each
        (see `completion.summarise`), and one more for every run with several seeds, over all,
        with `statistics` of the seeds' J (see `statistics.over_seeds`). With `static:best` among
        the policies, every summary also has its `score`, `share` of the oracle's gain,
        `improvement` and what got `worse` (see `compare.compare`).
    """
    if workers > 1 and not is_packets(arena.backend):
        allowed = "1 without packets: the fluid runs episodes in batches"
        raise bad_value("workers", workers, allowed)
    controllers = {policy: arena.controller(policy) for policy in policies}
    evaluations: dict[str, Evaluation] = {}
    with processes(workers) as pool:
        for policy, controller in controllers.items():
            before = len(evaluations) * episodes
            progress = partial(_progress, show, before, label(policy))
            show(before, f"{label(policy)}: compiling")
            if pool is not None:
                found = controller if policy in SEARCHED else None  # no process searches again
                task = Task(arena, policy, episodes, seed, found)
                evaluations[policy] = in_processes(pool, task, progress)
                continue
            env = arena.env(policy)
            evaluations[policy] = evaluate_one(
                env,
                env.default_params,
                controller,
                name=policy,
                episodes=episodes,
                seed=seed,
                progress=progress,
            )
    records = _records(evaluations, {"scenario": arena.scenario, "eval_seed": seed})
    rows = [_summary(record, allow_flagged) for record in records.values()]
    if BEST in records:
        compared = compare(records, allow_flagged=allow_flagged)
        for row, comparison_row in zip(rows, compared["policies"], strict=True):
            row |= {
                name: comparison_row[name] for name in ("score", "share", "improvement", "worse")
            }
    return {
        "scenario": arena.scenario,
        "backend": arena.backend,
        "options": arena.options,
        "episodes": episodes,
        "seed": seed,
        "policies": rows,
    }


def _progress(show: Show, before: int, note: str, done: int) -> None:
    show(before + done, note)


def _records(evaluations: dict[str, Evaluation], meta: Mapping[str, object]) -> dict[str, Record]:
    """A record of every policy, then one over all seeds of every run with several seeds."""
    groups: dict[str, list[Evaluation]] = {
        policy: [evaluation] for policy, evaluation in evaluations.items()
    }
    for policy, evaluation in evaluations.items():
        folder, separator, _ = policy.partition("#")
        if separator:  # one of several seeds of a run
            groups.setdefault(folder, []).append(evaluation)
    return {
        name: Record.of(name, parts, meta)
        for name, parts in groups.items()
        if name in evaluations or len(parts) > 1
    }


def _summary(record: Record, allow_flagged: bool) -> dict[str, Any]:
    """Summary of a policy, with statistics of its seeds if there are several."""
    summary = summarise(record.name, record.columns, allow_flagged)
    if record.seeds == 1 or summary["refused"]:
        return summary
    finite = np.isfinite(record.columns["J"]).all(1)
    if not finite.all():
        return summary
    seed_means = np.exp(np.log(record.columns["J"]).mean(1))
    return summary | {"statistics": over_seeds(seed_means[:, None]) | {"of": "J"}}


def write_evaluation(folder: Path, result: Mapping[str, object]) -> None:
    """Write `evaluation.json` to the folder of a run; `result` is what `evaluate` returned."""
    save_json(folder / EVALUATION, dict(result))


def draw_queues(folder: Path, arena: Arena, result: dict[str, Any]) -> None:
    """Draw `queues.png` of a run.

    Args:
        folder: the run.
        arena: scenario and options of the evaluation.
        result: what `evaluate` returned; the plot shows its first three policies.
    """
    # Imported here: matplotlib is slow to load, and most users of this module draw nothing.
    from ecn_marl.render.plots import queues
    from ecn_marl.render.queues import queue_series

    names = [row["name"] for row in result["policies"] if row["seeds"] == 1]
    shown = [names[0], *[name for name in names if is_rule(name)]]
    env = arena.env(names[0])
    controllers: dict[str, Any] = {label(name): arena.controller(name) for name in shown}
    port, series = queue_series(env, env.default_params, controllers, result["seed"])
    title = f"Queue of {port} in {arena.scenario}, evaluation seed {result['seed']}, episode 0"
    content = queues(series, title)
    write_all({folder / QUEUES: output(content)})
