"""Training jobs: made of options of the command line, a file, and recipes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from ecn_marl._checks import SEED, Flag, Real, Whole, check
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.algorithms import (
    ALGORITHMS,
    RATE_ALGORITHMS,
    algorithm_config,
    as_tuples,
    check_agents,
)
from ecn_marl.baselines.search import Progress
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import OPTIONS, in_view, lookup, make
from ecn_marl.envs.rewards import reward_function
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.recipes import Recipe, learners, recipe, steps_of, trainer_of
from ecn_marl.experiments.taught import with_teacher
from ecn_marl.wrappers.randomised import ranges_of

DEFAULT_SCENARIO = "restore-serve-v0"
DEFAULT_STEPS = 1_000_000
"""Environment steps where no recipe sets them."""


def not_none(**options: object) -> dict[str, Any]:
    """The options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """A training job.

    Attributes:
        algorithm: name of the trainer.
        scenario: name of the scenario.
        steps: environment steps per seed, at least.
        options: options of `ecn_marl.make`.
        settings: settings of the trainer.
        seed: first seed.
        seeds: number of seeds trained at once.
        eval_every: updates between evaluations, see `train_run`.
        eval_episodes: episodes per evaluation.
        randomise: what is drawn for every training episode, see `wrappers.randomised`.
        allow_flagged: see `train_run`.
    """

    algorithm: str
    scenario: str
    steps: Annotated[int, Whole(low=1, high=2**53)]
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: Annotated[int, SEED] = 0
    seeds: Annotated[int, Whole(low=1)] = 1
    eval_every: Annotated[float | None, Real(low=0.0, none=True)] = None
    eval_episodes: Annotated[int, Whole(low=1)] = 16
    randomise: dict[str, Any] = field(default_factory=dict)
    allow_flagged: Annotated[bool, Flag()] = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        check(self)

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
    return convert_settings(algorithm, ALGORITHMS[algorithm].config_class, texts)


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
    """Ranges of factors to randomise, from `NAME=FACTOR` or `NAME=LOWEST:HIGHEST`.

    Raises:
        ValueError: it cannot be read, or see `ranges_of`.
    """
    factors: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            numbers = [float(part) for part in value.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise bad_value("randomise", text, "NAME=FACTOR or NAME=LOWEST:HIGHEST")
        factors[name] = numbers[0] if len(numbers) == 1 else numbers
    return {name: [low, high] for name, low, high in ranges_of(factors)}


def parse_fields(texts: list[str], kind: Any = Scenario) -> dict[str, Any]:
    """Fields of a scenario, the dataclass `kind`, from `NAME=VALUE`: numbers, JSON, or words.

    Raises:
        ValueError: not of that form, or no field of a scenario (with the nearest names).
    """
    values: dict[str, Any] = {}
    names = [f.name for f in fields(kind)] + [*(OPTIONS if kind is Scenario else ())]
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise bad_value("--env", text, "NAME=VALUE")
        if name not in names:
            raise unknown_name("field of a scenario", name, names)
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return values


def _convert(name: str, text: str, default: object) -> Any:
    """`text` as the type of `default`; lists as `[64,64]` or `64,64`."""
    allowed = {bool: "true or false", tuple: "a list, e.g. [64,64]", int: "an integer"}
    try:
        if isinstance(default, bool):  # before int, which a bool is, too
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            listed = text if text.lstrip().startswith("[") else f"[{text}]"
            return as_tuples(json.loads(listed))
        if isinstance(default, int | float | str):
            return type(default)(text)
        return json.loads(text)  # a default of another type, such as None
    except (ValueError, KeyError):
        expected = allowed.get(type(default), "a number" if isinstance(default, float) else "JSON")
        raise bad_value(name, text, expected) from None


def new_job(
    algorithm: str | None,
    job_fields: dict[str, Any],
    view: dict[str, Any],
    settings: list[str],
    base: Mapping[str, Any] = MappingProxyType({}),
    progress: Progress | None = None,
) -> Job:
    """A job from a user's options, a job file, the scenario's recipe and defaults, in this order.

    Args:
        algorithm: name of a trainer, or of another learner of the benchmark, e.g. `ddqn-fct`.
        job_fields: fields of `Job`, and `envs`.
        view: options of `ecn_marl.make`.
        settings: settings of the trainer, `name=value`.
        base: the contents of a job file, see `job_files.read_job`; the other arguments
            override it.
        progress: of the search for the oracle that teaches the learner, if one does, and none
            ships: `progress(episodes run, task)`.

    Raises:
        ValueError: unknown algorithm or setting, or a value of another type.
    """
    algorithm = algorithm or base.get("algorithm")
    if algorithm is None:
        names = ", ".join((*ALGORITHMS, *RATE_ALGORITHMS))
        raise bad_value("algorithm", None, f"one of {names} (or --resume RUN)")
    check_agents("algorithm", algorithm)
    learner, algorithm = algorithm, trainer_of(algorithm)
    if algorithm not in ALGORITHMS:
        known = dict.fromkeys((*ALGORITHMS, *learners(), *RATE_ALGORITHMS))
        raise unknown_name("algorithm", algorithm, tuple(known))
    values = {**base.get("settings", {}), **parse_settings(algorithm, settings)}
    listed = {name for name in base if name not in ("algorithm", "options", "settings")}
    job_fields = {**{name: base[name] for name in listed}, **job_fields}
    view = {**base.get("options", {}), **view}
    if "envs" in job_fields:
        values["envs"] = job_fields["envs"]
    scenario = job_fields.get("scenario", DEFAULT_SCENARIO)
    # Recipes are for rewards in completion times: flows of the benchmark, steps of jobs. Elsewhere
    # the name of a trainer stands for its defaults, that of another learner for its recipe.
    by_recipe = learner in learners() and reward_function(lookup(scenario).reward).accrues
    by_recipe |= learner not in ALGORITHMS
    base_recipe = recipe(scenario, learner) if by_recipe else Recipe(algorithm)
    base_recipe = with_teacher(base_recipe, scenario, view, progress=progress, settings=values)
    steps = steps_of(scenario, learner) if by_recipe else DEFAULT_STEPS
    # What belongs to the recipe's reward or features does not belong to those that the user names.
    replaced = ("credit", "reward_options") if "reward" in view else ()
    replaced = (*replaced, "history") if "features" in view else replaced
    recipe_options = {name: x for name, x in base_recipe.options.items() if name not in replaced}
    options = in_view(scenario, view, {**recipe_options, **view})
    trainer_settings = base_recipe.settings_for(job_fields.get("steps", steps), values)
    job = Job(algorithm, scenario, steps, options, trainer_settings)
    return replace(job, **{name: x for name, x in job_fields.items() if name != "envs"})


def resumed_job(folder: Path, job_fields: dict[str, Any], settings: list[str]) -> Job:
    """The job of a run that is to go on.

    Args:
        folder: the run.
        job_fields: what the user asks for, by the names in `config.json`. All but `steps` must
            equal what is there.
        settings: settings of the trainer, `name=value`; they must equal what is there, too.

    Raises:
        ValueError: not a run, or something that differs from what it was started with.
    """
    config = read_config(folder)
    started_with = config["options"] | config["settings"] | config | {"out": str(folder)}
    for name, value in (job_fields | parse_settings(config["algorithm"], settings)).items():
        # The file has lists where settings have tuples.
        same = started_with.get(name) == (list(value) if isinstance(value, tuple) else value)
        if not same and name != "steps":
            original = (
                repr(started_with[name]) if started_with.get(name) is not None else "the scenario's"
            )
            allowed = f"{original}, with which {folder} was started (or leave it out)"
            raise bad_value(name, value, allowed)
    job = Job(**{f.name: config[f.name] for f in fields(Job) if f.name in config})
    return replace(job, steps=job_fields.get("steps", job.steps))
