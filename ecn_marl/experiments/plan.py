"""The plan of `ecn-marl bench`: what it compares, and how. Checked before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config, check_agents
from ecn_marl.baselines.oracle import RULES
from ecn_marl.baselines.search import Effort
from ecn_marl.baselines.static import PREFIX
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.registry import FLUID, PACKETS, benchmark, is_packets, lookup, make
from ecn_marl.envs.splits import SPLITS
from ecn_marl.experiments import recipes as rc
from ecn_marl.experiments.backends import ON_PACKETS
from ecn_marl.experiments.executors import parse_workers
from ecn_marl.experiments.policies import Arena, ExportedFile, RunOf, resolve

if TYPE_CHECKING:  # the engine imports plans
    from ecn_marl.experiments.engine import Scorer

DEFAULT = (
    *("ippo", "mappo", "pet", "ddqn", "c-acc", "haecn"),
    *("rule", "static:secn1", "static:secn2", "random"),
)
"""Policies that are compared by default; `static:best` and `oracle` are always added."""

DEFAULT_SCENARIO = "restore-serve-v0"

TUNING, SEALED = "tuning", "sealed"
"""Streams that policies are scored on."""

SEARCHES = "searches"
"""Folder of the searches for reference policies."""

_EXAMPLES = ("static:secn1", "static:secn2", "static:5,200,0.01", "dynamic:pi")


@dataclass(frozen=True)
class Plan:
    """What to compare, and how.

    Attributes:
        scenarios: names of scenarios; with a split, its own or none.
        policies: names of learners (`recipes.learners`), rules (`static:…`, `rule`, …) and
            exported policies (`FILE.npz`, `pretrained:NAME`).
        out: folder of the bench.
        seeds: seeds of every learner.
        steps: environment steps per seed of every learner; those of the scenario if None.
        episodes: episodes that every policy and seed is scored on.
        sealed: whether these are the sealed ones.
        eval_seed: which tuning episodes they are otherwise.
        split: name of a split; None for the scenarios as they are.
        options: options of `ecn_marl.make` for everything, e.g. `{"max_steps": 50}`.
        settings: settings of trainers that have them, over those of the recipes.
        effort: how much is searched for the reference policies.
        eval_episodes: episodes that a checkpoint is evaluated on while training.
        records: folder for tables of all scored episodes, a folder for each place; None for none.
        overwrite: whether to replace records of another plan there.
        backend: `packets` to score the same episodes on packets, too, see `registry.make`.
        workers: who trains learners, and runs episodes on packets; see `executors.executor`.
        packet_episodes: the first so many of the episodes are scored on packets, and of every
            learner the seed with the best checkpoint (`seed` in the record's `meta`; in tables of
            flows and ports its number is 0).
    """

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    out: Path
    seeds: int = 5
    steps: int | None = None
    episodes: int = 128
    sealed: bool = False
    eval_seed: int = 0
    split: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)
    eval_episodes: int = 16
    records: Path | None = None
    overwrite: bool = False
    backend: str = FLUID
    workers: int | str = 1
    packet_episodes: int = 32

    def __post_init__(self) -> None:
        """Check everything before anything is trained."""
        for name in ("seeds", "episodes", "eval_episodes", "packet_episodes"):
            if getattr(self, name) < 1:
                raise bad_value(name, getattr(self, name), "an integer >= 1")
        if self.steps is not None and self.steps < 1:
            raise bad_value("steps", self.steps, "an integer >= 1")
        check_seed(self.eval_seed, "eval_seed")
        parse_workers(self.workers)
        if self.split is not None:
            if self.split not in SPLITS:
                raise unknown_name("split", self.split, SPLITS)
            own = SPLITS[self.split].scenario
            if self.scenarios not in ((), (own,)):
                raise bad_value("scenarios", self.scenarios, f"{own}, that of split {self.split}")
        for name in self.policies:
            # Raises if the numbers of a setting are wrong.
            if name not in rc.learners() and isinstance(resolve(name), RunOf):
                check_agents("algorithms", name)
                raise unknown_name("policy", name, (*rc.learners(), *RULES, *_EXAMPLES))
        for place in self.places():
            reason = lookup(place.scenario).superseded
            if reason:
                allowed = f"a scenario that is not superseded ({reason}): {', '.join(benchmark())}"
                raise bad_value("scenario", place.scenario, allowed)
            # Raises if an option is wrong, a buffer is too small, or packets do not have an option.
            _ = make(place.scenario, backend=place.backend, **place.options).default_params
            for name in self.policies:
                if isinstance(resolve(name), ExportedFile):
                    Arena(place.scenario, place.options).controller(name)
        sites = dict.fromkeys(place.site.scenario for place in self.places())
        recipes = [(self.recipe(x, n), self.steps_in(x)) for x in sites for n in self.policies]
        check_settings([(r, steps) for r, steps in recipes if r], self.settings)

    @property
    def stream(self) -> str:
        """Which episodes policies are scored on."""
        return SEALED if self.sealed else TUNING

    def steps_in(self, scenario: str) -> int:
        """Environment steps per seed of every learner of a scenario."""
        return self.steps or rc.steps_of(scenario)

    def places(self) -> list[Place]:
        """Where policies are scored; every place in the fluid comes before its one on packets."""
        places = self._in_fluid()
        if not is_packets(self.backend):
            return places
        few = min(self.packet_episodes, self.episodes)
        return [x for place in places for x in (place, place.on_packets(few))]

    def _in_fluid(self) -> list[Place]:
        if self.split is None:
            return [
                Place(name, name, dict(self.options), self.out / name, self._site(name))
                for name in self.scenarios
            ]
        split = SPLITS[self.split]
        base = self.out / split.scenario / "splits" / self.split
        return [
            Place(
                f"{split.scenario}:{self.split}/{name}",
                split.scenario,
                {**self.options, **variant()},
                base / name,
                self._site(split.scenario),
            )
            for name, variant in split.test.items()
        ]

    def _site(self, scenario: str) -> Site:
        """Where learners of a scenario are trained: in the scenario as it is."""
        steps = self.steps_in(scenario)
        return Site(scenario, dict(self.options), steps, self.out / scenario)

    def recipe(self, scenario: str, name: str) -> rc.Recipe | None:
        """How a learner is trained; None if the policy is not a learner."""
        return rc.recipe(scenario, name) if name in rc.learners() else None

    def facts(self, name: str) -> dict[str, Any]:
        """Further entries of a policy's record: none."""
        return {}

    def scorer(self, name: str) -> Scorer | None:
        """A policy's own scorer: none."""
        return None


@runtime_checkable
class Comparison(Protocol):
    """What training and scoring read of a plan: `Plan` or `papers.run.SuitePlan`."""

    @property
    def stream(self) -> str:
        """Which episodes policies are scored on, `TUNING` or `SEALED`."""

    @property
    def steps(self) -> int | None:
        """Environment steps per seed of every learner; None for those of its place."""

    @property
    def seeds(self) -> int:
        """Seeds of every learner."""

    @property
    def episodes(self) -> int:
        """Episodes that every policy and seed is scored on."""

    @property
    def eval_seed(self) -> int:
        """Which tuning episodes they are."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of trainers that have them, over those of the recipes."""

    @property
    def effort(self) -> Effort:
        """How much is searched for the reference policies."""

    @property
    def eval_episodes(self) -> int:
        """Episodes that a checkpoint is evaluated on while training."""

    @property
    def records(self) -> Path | None:
        """Folder for tables of all scored episodes; None for none."""

    @property
    def overwrite(self) -> bool:
        """Whether to replace records of another plan there."""

    def places(self) -> Sequence[Place]:
        """Where policies are scored."""

    def recipe(self, scenario: str, name: str) -> rc.Recipe | None:
        """How a learner is trained; None if the policy is not a learner."""

    def facts(self, name: str) -> dict[str, Any]:
        """Further entries of a policy's records."""

    def scorer(self, name: str) -> Scorer | None:
        """A policy's own `engine.Scorer`; None for the usual one."""


@dataclass(frozen=True)
class Site:
    """Where learners are trained.

    Attributes:
        scenario: the scenario.
        options: options of `ecn_marl.make`, but for what a learner sees.
        steps: environment steps per seed.
        folder: where runs are kept.
        randomise: what is drawn for every training episode, see `train_run`.
    """

    scenario: str
    options: dict[str, Any]
    steps: int
    folder: Path
    randomise: Mapping[str, Any] = field(default_factory=dict)

    @property
    def searches(self) -> Path:
        """Where searches are kept, for learners that reference policies teach."""
        return self.folder / SEARCHES


@dataclass(frozen=True)
class Place:
    """Where policies are scored.

    Attributes:
        name: the scenario as tables name it.
        scenario: the scenario.
        options: options of `ecn_marl.make` of the scored episodes, but for what a learner sees.
        folder: where searches and scores are kept.
        site: where learners are trained.
        windows: equal parts of an episode whose numbers are kept, 0 for none.
        measured_delay: whether learners' decisions take as long as they take on this machine.
        backend: what simulates the network, see `registry.make`.
        episodes: the first so many of the plan's episodes are scored; None for all.
    """

    name: str
    scenario: str
    options: dict[str, Any]
    folder: Path
    site: Site
    windows: int = 0
    measured_delay: bool = False
    backend: str = FLUID
    episodes: int | None = None

    def on_packets(self, episodes: int) -> Place:
        """The same place, simulated packet by packet, in the first of its episodes."""
        name, folder = self.name + ON_PACKETS, self.folder / PACKETS
        return replace(self, name=name, folder=folder, backend=PACKETS, episodes=episodes)

    @property
    def searches(self) -> Path:
        """Where searches are kept; they are made in the fluid."""
        folder = self.folder if self.backend == FLUID else self.folder.parent
        return folder / SEARCHES

    @property
    def as_trained(self) -> bool:
        """Whether episodes are those that learners are trained in."""
        return self.backend == FLUID and (self.scenario, self.options) == (
            self.site.scenario,
            self.site.options,
        )


def own_settings(recipe: rc.Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a plan's settings that a learner's trainer has."""
    kind = ALGORITHMS[recipe.algorithm].config_class
    return {f.name: settings[f.name] for f in fields(kind) if f.name in settings}


def check_settings(learners: Sequence[tuple[rc.Recipe, int]], settings: Mapping[str, Any]) -> None:
    """Check the settings of a plan before anything is trained.

    Args:
        learners: recipes, and environment steps per seed of each.
        settings: settings of trainers that have them, over those of the recipes.

    Raises:
        ValueError: no trainer has such a setting, or a learner does not allow the value.
    """
    trainers = {rc.trainer_of(name) for name in rc.learners()}
    known = {f.name for name in trainers for f in fields(ALGORITHMS[name].config_class)}
    for name in settings:
        if name not in known:
            raise unknown_name("setting", name, known)
    for recipe, steps in learners:
        own = recipe.settings_for(steps, own_settings(recipe, settings))
        algorithm_config(recipe.algorithm, **own)


def policy_names(text: str) -> tuple[str, ...]:
    """Names with commas between them; a comma before a number belongs to a static setting."""
    return tuple(re.split(r",(?!\s*[\d.])", text))


def policy_name(text: str) -> str:
    """The name of a policy as users write it: `SECN1` is `static:secn1`."""
    short = text.strip()
    return PREFIX + short.lower() if short.lower() in STATIC_ECN else short
