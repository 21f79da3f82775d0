"""What the commands `train` and `eval` do, between the command line and the trainers.

A policy is named by a string, see `experiments.policies`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._files import Output, json_text, write_all
from ecn_marl.baselines.common.checkpoint import read_config
from ecn_marl.baselines.common.completion import summarise
from ecn_marl.baselines.common.evaluation import Controller, Evaluation, StatefulController
from ecn_marl.baselines.common.evaluation import evaluate as evaluate_one
from ecn_marl.baselines.common.logs import METRICS
from ecn_marl.baselines.common.policy import Policy
from ecn_marl.baselines.common.statistics import over_seeds
from ecn_marl.baselines.dynamic import PREFIX as DYNAMIC
from ecn_marl.baselines.dynamic import Dynamic
from ecn_marl.baselines.exported import (
    Exported,
    episodes_of,
    is_exported,
    read_exported,
    view_of,
)
from ecn_marl.baselines.oracle import BEST, NEEDS, RANDOM, SEARCHED, Random
from ecn_marl.baselines.runs import (
    ALGORITHMS,
    Session,
    algorithm_config,
    resume_run,
    run_controller,
    run_policy,
    train_run,
)
from ecn_marl.baselines.search import Effort
from ecn_marl.baselines.static import PREFIX, Static
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import VIEW, Scenario, in_view, lookup, make, out_of_view
from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.policies import is_rule, label, run_config
from ecn_marl.experiments.policies import learners as learners
from ecn_marl.experiments.recipes import LEARNERS, Recipe, recipe, steps_of
from ecn_marl.experiments.records import Record
from ecn_marl.experiments.searches import find, shipped
from ecn_marl.parallelism import host_devices, join_processes, parse_processes
from ecn_marl.wrappers.randomised import ranges_of

EVALUATION, CURVE, QUEUES = "evaluation.json", "learning_curve.png", "queues.png"

DEFAULT_SCENARIO = "restore-serve-v0"
DEFAULT_STEPS = 1_000_000
"""Environment steps where no recipe says how many."""


Show = Callable[..., None]
"""`show(done, note)`: moves a progress bar."""


def given(**options: Any) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """What to train.

    Attributes:
        algorithm: name of the trainer.
        scenario: name of the scenario.
        steps: environment steps per seed, at least.
        options: options of `ecn_marl.make`.
        settings: settings of the trainer.
        seed: first seed.
        seeds: number of seeds trained at once.
        eval_every: updates between scores, see `train_run`.
        eval_episodes: episodes per score.
        randomise: what is drawn for every training episode, see `wrappers.randomised`.
    """

    algorithm: str
    scenario: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    seeds: int = 1
    eval_every: int | None = None
    eval_episodes: int = 16
    randomise: dict[str, Any] = field(default_factory=dict)

    @property
    def total_steps(self) -> int:
        """Steps per seed, rounded up to whole updates."""
        per_update = algorithm_config(self.algorithm, **self.settings).steps_per_update
        return -(-self.steps // per_update) * per_update

    def env(self) -> EcnEnv:
        """The environment."""
        return make(self.scenario, **self.options)


def parse_settings(algorithm: str, texts: list[str]) -> dict[str, Any]:
    """Settings of a trainer from `name=value`, each converted to the type of its default.

    Raises:
        ValueError: unknown algorithm or setting, or a value of another type.
    """
    if algorithm not in ALGORITHMS:
        raise unknown_name("algorithm", algorithm, ALGORITHMS)
    return convert_settings(algorithm, ALGORITHMS[algorithm][1], texts)


def convert_settings(algorithm: str, kind: Any, texts: Sequence[str]) -> dict[str, Any]:
    """Fields of a trainer's settings, the dataclass `kind`, from `name=value`.

    Raises:
        ValueError: unknown setting, or a value of another type.
    """
    defaults = {f.name: f.default for f in fields(kind)}
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in defaults:
            raise unknown_name(f"setting of {algorithm}", name, defaults)
        values[name] = _convert(name, value, defaults[name])
    return values


def parse_ranges(texts: list[str]) -> dict[str, list[float]]:
    """What to randomise from `NAME=FACTOR` or `NAME=LOWEST:HIGHEST`, as ranges of factors.

    Raises:
        ValueError: it cannot be read, or see `ranges_of`.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers = [float(part) for part in value.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise bad_value("randomise", text, "NAME=FACTOR or NAME=LOWEST:HIGHEST")
        found[name] = numbers[0] if len(numbers) == 1 else numbers
    return {name: [low, high] for name, low, high in ranges_of(found)}


def parse_fields(texts: list[str], kind: Any = Scenario) -> dict[str, Any]:
    """Fields of a scenario, the dataclass `kind`, from `NAME=VALUE`: numbers, JSON, or words.

    Raises:
        ValueError: not of that form, or no field of a scenario (with the nearest names).
    """
    found: dict[str, Any] = {}
    known = [f.name for f in fields(kind)]
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise bad_value("--env", text, "NAME=VALUE")
        if name not in known:
            raise unknown_name("field of a scenario", name, known)
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _convert(name: str, text: str, default: Any) -> Any:
    """`text` as the type of `default`."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split(","))
        return type(default)(text)
    except (ValueError, KeyError):
        allowed = {bool: "true or false", tuple: "integers, comma between", int: "an integer"}
        raise bad_value(name, text, allowed.get(type(default), "a number")) from None


def new_job(
    algorithm: str | None, asked: dict[str, Any], view: dict[str, Any], settings: list[str]
) -> Job:
    """The job that a user asks for; where nothing is said, the scenario's recipe, else defaults.

    Args:
        algorithm: name of the trainer.
        asked: fields of `Job`, and `envs`.
        view: options of `ecn_marl.make`.
        settings: settings of the trainer, `name=value`.

    Raises:
        ValueError: unknown algorithm or setting, or a value of another type.
    """
    if algorithm is None:
        raise bad_value("algorithm", None, f"one of {', '.join(ALGORITHMS)} (or --resume RUN)")
    values = parse_settings(algorithm, settings)
    if "envs" in asked:
        values["envs"] = asked["envs"]
    scenario = asked.get("scenario", DEFAULT_SCENARIO)
    benched = algorithm in LEARNERS and lookup(scenario).benchmark
    known = recipe(scenario, algorithm) if benched else Recipe(algorithm)
    steps = steps_of(scenario) if benched else DEFAULT_STEPS
    paid = ("credit", "reward_options") if "reward" in view else ()
    own = {name: x for name, x in known.options.items() if name not in paid}
    options = in_view(scenario, view, {**own, **view})
    settled = known.settings_for(asked.get("steps", steps), values)
    job = Job(algorithm, scenario, steps, options, settled)
    return replace(job, **{name: x for name, x in asked.items() if name != "envs"})


def resumed_job(folder: Path, asked: dict[str, Any], settings: list[str]) -> Job:
    """The job of a run that is to go on.

    Args:
        folder: the run.
        asked: what the user asks for, by the names in `config.json`. All but `steps` must be what
            is there.
        settings: settings of the trainer, `name=value`; the same.

    Raises:
        ValueError: not a run, or something that differs from what it was started with.
    """
    config = read_config(folder)
    kept = config["options"] | config["settings"] | config | {"out": str(folder)}
    for name, value in (asked | parse_settings(config["algorithm"], settings)).items():
        same = kept.get(name) == (list(value) if isinstance(value, tuple) else value)
        if not same and name != "steps":
            own = repr(kept[name]) if kept.get(name) is not None else "the scenario's"
            allowed = f"{own}, with which {folder} was started (or leave it out)"
            raise bad_value(name, value, allowed)
    job = Job(**{f.name: config[f.name] for f in fields(Job) if f.name in config})
    return replace(job, steps=asked.get("steps", job.steps))


def join(distributed: str | None, devices: int) -> bool:
    """Get the devices ready before JAX runs anything.

    Args:
        distributed: `HOST:PORT,N,I`: this is process I of N; None if there is one only.
        devices: devices of a single process.

    Returns:
        Whether this is the process that writes and prints.

    Raises:
        ValueError: it cannot be read, or there are not as many devices.
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
    """Train and leave a run in `folder`, or go on with the one there; returns rows of metrics."""
    horizon = job.env().horizon

    def progress(row: dict[str, Any]) -> None:
        rate = f"{row['steps_per_second']:,.0f} steps/s"
        show(row["steps"], f"return {float(np.mean(row['reward'])) * horizon:.1f}, {rate}")

    session = replace(session or Session(), progress=progress)
    if resume:
        return resume_run(folder, steps=job.steps, session=session).metrics
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
        score_by="objective" if lookup(job.scenario).benchmark else "reward",
        randomise=job.randomise,
        session=session,
    ).metrics


def references(scenario: str) -> tuple[str, ...]:
    """What a run is evaluated beside: searched policies if they are known, SECN1 and SECN2."""
    return (*shipped(scenario), "static:secn1", "static:secn2")


@dataclass(frozen=True)
class Arena:
    """Where policies meet: one scenario and reward; each keeps its own features and actions.

    Attributes:
        scenario: name of the scenario.
        options: options of `ecn_marl.make`.
        checkpoint: which policy of a run comes: `best` (the latest if none was scored), `latest`.
        effort: how much is searched for the settings of reference policies.
        searches: folder where searches are kept; None for this process only.
    """

    scenario: str
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = "best"
    effort: Effort = field(default_factory=Effort)
    searches: Path | None = None

    def env(self, policy: str) -> EcnEnv:
        """The environment as a policy sees it."""
        if is_rule(policy):
            options = {name: x for name, x in self.options.items() if name != "interval_us"}
            return make(self.scenario, **options, **NEEDS.get(policy, {}))
        if is_exported(policy):
            own = view_of(read_exported(policy))
            return make(self.scenario, **in_view(self.scenario, self.options, own))
        trained = run_config(policy.partition("#")[0])["options"]
        view = {name: trained[name] for name in VIEW if name in trained}
        return make(self.scenario, **in_view(self.scenario, self.options, view))

    def controller(self, policy: str) -> Controller | StatefulController:
        """What sets the thresholds."""
        env = self.env(policy)
        if policy == RANDOM:
            return Random(env)
        if policy in SEARCHED:
            found = find(policy, self.scenario, self.options, self.effort, self.searches)
            return found.controller(env, env.default_params)
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


def arena(policies: list[str], scenario: str | None, **overrides: Any) -> Arena:
    """Scenario, options and reward of the first trained one of the policies, unless given."""
    for policy in policies:
        if is_exported(policy):
            own, options = episodes_of(read_exported(policy))
            return Arena(scenario or own, options | overrides)
        if not is_rule(policy):
            config = run_config(policy.partition("#")[0])
            options = out_of_view(config["scenario"], config["options"])
            return Arena(scenario or config["scenario"], options | overrides)
    return Arena(scenario or DEFAULT_SCENARIO, overrides)


def evaluate(
    place: Arena, policies: list[str], episodes: int, seed: int, show: Show
) -> dict[str, Any]:
    """Evaluate policies on the same episodes.

    Returns:
        `scenario`, `options`, `episodes`, `seed`, and `policies`: the summary of each (see
        `completion.summarise`), and one more for every run with several seeds, over all of them,
        with `statistics` of the seeds' J (see `statistics.over_seeds`). With `static:best` among
        the policies, every summary also has its `score`, `share` of the oracle's gain,
        `improvement` and what got `worse` (see `compare.compare`).
    """
    controllers = {policy: place.controller(policy) for policy in policies}
    found: dict[str, Evaluation] = {}
    for policy, controller in controllers.items():
        env, before = place.env(policy), len(found) * episodes
        progress = partial(_progress, show, before, label(policy))
        found[policy] = evaluate_one(
            env,
            env.default_params,
            controller,
            name=policy,
            episodes=episodes,
            seed=seed,
            progress=progress,
        )
    records = _records(found, {"scenario": place.scenario, "eval_seed": seed})
    rows = [_summary(record) for record in records.values()]
    if BEST in records:
        for row, compared in zip(rows, compare(records)["policies"], strict=True):
            row |= {name: compared[name] for name in ("score", "share", "improvement", "worse")}
    return {
        "scenario": place.scenario,
        "options": place.options,
        "episodes": episodes,
        "seed": seed,
        "policies": rows,
    }


def _progress(show: Show, before: int, note: str, done: int) -> None:
    show(before + done, note)


def _records(found: dict[str, Evaluation], meta: dict[str, Any]) -> dict[str, Record]:
    """A record of every policy, then one over all seeds of every run with several."""
    groups: dict[str, list[Evaluation]] = {policy: [one] for policy, one in found.items()}
    for policy, one in found.items():
        folder, mark, _ = policy.partition("#")
        if mark:
            groups.setdefault(folder, []).append(one)
    return {
        name: Record.of(name, parts, meta)
        for name, parts in groups.items()
        if name in found or len(parts) > 1
    }


def _summary(record: Record) -> dict[str, Any]:
    """Summary of a policy, with statistics of its seeds if there are several."""
    summary = summarise(record.name, record.columns)
    if record.seeds == 1:
        return summary
    known = np.isfinite(record.columns["J"]).all(1)
    if not known.all():
        return summary
    each = np.exp(np.log(record.columns["J"]).mean(1))
    return summary | {"statistics": over_seeds(each[:, None]) | {"of": "J"}}


def write_evaluation(folder: Path, place: Arena, result: dict[str, Any]) -> None:
    """Write `evaluation.json` and `queues.png` to the folder of a run.

    Args:
        folder: the run.
        place: where it was evaluated.
        result: what `evaluate` returned; the plot shows its first three policies.
    """
    from ecn_marl.report.plots import queues
    from ecn_marl.report.queues import queue_series

    names = [row["name"] for row in result["policies"] if row["seeds"] == 1]
    shown = [names[0], *[name for name in names if is_rule(name)]]
    env = place.env(names[0])
    controllers: dict[str, Any] = {label(name): place.controller(name) for name in shown}
    port, series = queue_series(env, env.default_params, controllers, result["seed"])
    title = f"Queue of {port} in {place.scenario}, evaluation seed {result['seed']}, episode 0"
    text = json_text(result) + "\n"
    write_all(
        {
            folder / EVALUATION: Output("w", lambda file: file.write(text)),
            folder / QUEUES: Output("wb", lambda file: file.write(queues(series, title))),
        }
    )


def draw_learning_curve(folder: Path) -> None:
    """Draw `learning_curve.png` of a run, with the static settings if they were evaluated."""
    from ecn_marl.report.plots import learning_curve

    config = read_config(folder)
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    references: dict[str, float] = {}
    if (folder / EVALUATION).is_file():
        for row in json.loads((folder / EVALUATION).read_text())["policies"]:
            if is_rule(row["name"]):
                references[label(row["name"])] = row["reward"]["mean"]
    horizon = make(config["scenario"], **config["options"]).horizon
    rollout = int(config["settings"].get("rollout", horizon))
    window = math.lcm(horizon, rollout) // rollout
    if window > len(rows) // 3:
        window = -(-horizon // rollout)
    several = f", {config['seeds']} seeds" if config["seeds"] > 1 else ""
    title = f"{config['algorithm'].upper()} on {config['scenario']}{several}"
    content = learning_curve(rows, title, references, window)
    write_all({folder / CURVE: Output("wb", lambda file: file.write(content))})
