"""Policies of ports by name, the same name everywhere: commands, `evaluate`, `load_policy`.

A name is the folder of a run, `FOLDER#I` for the I-th of its seeds; the file of an exported policy,
`FILE.npz`, or `pretrained:NAME` for one that ships; or a rule: `static:SETTING`, `static:best` and
others whose settings a search finds, `dynamic:TUNER`, or `random`. A user's own policy is a
function, see `OwnPolicy`.

`resolve` says which kind a name is. A kind knows all that depends on it: its label, the environment
it needs, and the controller that acts in it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar

from ecn_marl._errors import bad_value
from ecn_marl._files import with_lists
from ecn_marl.baselines.dynamic import PREFIX as DYNAMIC
from ecn_marl.baselines.dynamic import Dynamic
from ecn_marl.baselines.evaluation.episodes import Controller, StatefulController
from ecn_marl.baselines.evaluation.own_policies import HostPolicy, PurePolicy
from ecn_marl.baselines.exported import (
    digest,
    episodes_of,
    exported_controller,
    is_exported,
    read_exported,
    view_of,
)
from ecn_marl.baselines.exporting.files import PRETRAINED
from ecn_marl.baselines.exporting.policy import Policy
from ecn_marl.baselines.oracle import NEEDS, RANDOM, RULES, SEARCHED, Random, labelled
from ecn_marl.baselines.search import Effort, SearchResult
from ecn_marl.baselines.static import PREFIX, Static
from ecn_marl.baselines.trained import run_controller, run_policy
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.actions import STATIC_ECN, parse_ecn
from ecn_marl.envs.agents import PORT
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.registry import FLUID, VIEW, check_name, in_view, make, out_of_view
from ecn_marl.envs.settings import FROM_FILE, SwitchSetting, file_of
from ecn_marl.experiments import searches
from ecn_marl.experiments.jobs import DEFAULT_SCENARIO
from ecn_marl.sim.tuners import parse_tuner

AnyController = Controller | StatefulController | HostPolicy


@dataclass(frozen=True)
class Arena:
    """One scenario and reward for several policies; each keeps its own features and actions.

    Attributes:
        scenario: name of the scenario.
        options: options of `ecn_marl.make`; `max_steps` counts the scenario's own intervals.
        checkpoint: which policy of a run: `best` (the latest if none was evaluated), `latest`.
        effort: how much is searched for the settings of reference policies.
        searches: folder where searches are kept; None for this process only.
        progress: called with the episodes run so far and the task while a search runs.
        backend: what simulates the network, see `registry.make`. Searches are made in the fluid.
    """

    scenario: str
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = "best"
    effort: Effort = field(default_factory=Effort)
    searches: Path | None = None
    progress: Callable[[int, str], None] | None = None
    backend: str = FLUID

    def env(self, policy: str | Named) -> EcnEnv:
        """The environment as a policy sees it."""
        view = resolve(policy).view(self)
        options = in_view(self.scenario, self.options, view)
        return make(self.scenario, backend=self.backend, **options)

    def controller(self, policy: str | Named) -> Any:
        """The controller that sets the thresholds in `env(policy)`."""
        named = resolve(policy)
        return named.controller(self.env(named), self)

    def search(self, name: str) -> SearchResult:
        """The settings of a reference policy, see `searches.find`."""
        return searches.find(
            name, self.scenario, self.options, self.effort, self.searches, self.progress
        )


@dataclass(frozen=True)
class Named(ABC):
    """A policy by its name; subclasses are the kinds.

    Attributes:
        name: the name.
        trained: whether it has learned, so that it has a view of its own.
    """

    name: str
    trained: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """How it is shown."""
        return self.name

    @property
    def members(self) -> list[str]:
        """Names of the single policies that it stands for: one per seed of a run."""
        return [self.name]

    @property
    def home(self) -> tuple[str, dict[str, Any]] | None:
        """Scenario and options that it was trained in; None for rules."""
        return None

    def view(self, arena: Arena) -> dict[str, Any]:
        """Options of `make` that it needs in an arena, in place of the arena's own."""
        return rule_view(arena)

    @abstractmethod
    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """What acts in an environment made with `view`."""

    def facts(self) -> dict[str, Any]:
        """What its results depend on beside its name."""
        return {}

    def settings(self, arena: Arena) -> list[list[float]] | None:
        """Its thresholds, rows of Kmin KB, Kmax KB, Pmax, if these are all there is to it."""
        return None

    def found(self, arena: Arena) -> dict[str, Any] | None:
        """What a search has found, whole and with names, see `oracle.labelled`."""
        return None


def rule_view(arena: Arena) -> dict[str, Any]:
    """A rule has no view: it acts at the interval that the user asks for, else the scenario's.

    It acts on ports, all queues alike, whatever the agents of the others do.
    """
    every = arena.options.get("interval_us")
    view: dict[str, Any] = {} if every is None else {"interval_us": every}
    plain = {"agents": PORT, "per_queue": False}
    return view | {name: x for name, x in plain.items() if name in arena.options}


class Searched(Named):
    """A rule whose settings a search finds: `static:best`, `rule`, the oracles."""

    @property
    def label(self) -> str:
        """Its title."""
        return RULES[self.name]

    def view(self, arena: Arena) -> dict[str, Any]:
        """The interval, and the counters that it reads."""
        return rule_view(arena) | NEEDS.get(self.name, {})

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """The rule with the settings that the search finds."""
        return arena.search(self.name).controller(env, env.default_params)

    def settings(self, arena: Arena) -> list[list[float]] | None:
        """The settings that the search has found."""
        return searches.listed(arena.search(self.name))

    def found(self, arena: Arena) -> dict[str, Any] | None:
        """The settings with their phases and groups, or the rule's limit."""
        return labelled(self.name, arena.search(self.name).settings, arena.env(self))


class RandomActions(Named):
    """`random`."""

    def view(self, arena: Arena) -> dict[str, Any]:
        """The interval, and the agents: each draws its own actions."""
        kept = ("interval_us", "agents", "per_queue")
        return {name: arena.options[name] for name in kept if name in arena.options}

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """Random actions."""
        return Random(env)


class StaticSetting(Named):
    """`static:SETTING`."""

    @property
    def setting(self) -> str:
        """The setting's name, its numbers, or `@FILE`."""
        return self.name.removeprefix(PREFIX).strip()

    @property
    def label(self) -> str:
        """The setting in numbers, KB."""
        name = self.setting
        setting = parse_ecn(name)
        if isinstance(setting, SwitchSetting):
            numbers = f"{setting.kmin_kb:g}/{setting.kmax_kb:g} KB, {100.0 * setting.pmax:g} %"
            return f"{name}: {numbers} on every port"
        name = name.lower()
        numbers = f"({setting.kmin_kb:g},{setting.kmax_kb:g},{setting.pmax:g})"
        return f"{name.upper()} {numbers}" if name in STATIC_ECN else f"static {numbers}"

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """The setting on all ports."""
        return Static(env, env.default_params, self.setting)

    def facts(self) -> dict[str, Any]:
        """The content of the file that it is read from."""
        if not self.setting.startswith(FROM_FILE):
            return {}
        return {"file": digest(str(file_of(self.setting)[0]))}

    def settings(self, arena: Arena) -> list[list[float]] | None:
        """The setting, KB at 25 Gb/s; None if it does not grow with the rate."""
        setting = parse_ecn(self.setting)
        return None if isinstance(setting, SwitchSetting) else [list(setting)]


class DynamicRule(Named):
    """`dynamic:TUNER`."""

    @property
    def label(self) -> str:
        """The tuner and its constants."""
        name, _, constants = self.name.removeprefix(DYNAMIC).partition(":")
        title = parse_tuner(name).title
        return f"{title} ({constants})" if constants else title

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """The tuner on all ports."""
        return Dynamic(env, env.default_params, self.name.removeprefix(DYNAMIC))


class ExportedFile(Named):
    """`FILE.npz` or `pretrained:NAME`."""

    trained = True

    @property
    def label(self) -> str:
        """Its trainer and the name of its file."""
        stem = Path(self.name.removeprefix(PRETRAINED)).stem
        return f"{read_exported(self.name).header['algorithm'].upper()} {stem}"

    @property
    def home(self) -> tuple[str, dict[str, Any]] | None:
        """Scenario and options in its header."""
        return episodes_of(read_exported(self.name))

    def view(self, arena: Arena) -> dict[str, Any]:
        """The view in its header."""
        return view_of(read_exported(self.name))

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """Its network."""
        return exported_controller(env, read_exported(self.name), self.name)

    def facts(self) -> dict[str, Any]:
        """The content of the file."""
        return {"file": digest(self.name)}


class RunOf(Named):
    """The folder of a run, or `FOLDER#I`."""

    trained = True

    @property
    def folder(self) -> str:
        """Its folder."""
        return self.name.partition("#")[0]

    @property
    def number(self) -> int:
        """Which of the run's seeds."""
        number = self.name.partition("#")[2]
        if number and not number.isdecimal():
            allowed = "FOLDER or FOLDER#I, I the number of a seed from 0"
            raise bad_value("policy", self.name, allowed)
        return int(number or 0)

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the run; the error for other names says what a policy can be."""
        if not Path(self.folder).is_dir():
            rules = f"{PREFIX}secn1 or {DYNAMIC}pi or another such rule"
            allowed = f"the folder of a run, FILE.npz, {PRETRAINED}NAME, or {rules}"
            raise bad_value("policy", self.folder, allowed)
        return read_config(self.folder)

    @property
    def label(self) -> str:
        """Its trainer, folder, and seed if there are several."""
        config, number = self.config, self.name.partition("#")[2]
        name = f"{config['algorithm'].upper()} {Path(self.folder).name}"
        return f"{name}, seed {config['seed'] + int(number)}" if number else name

    @property
    def members(self) -> list[str]:
        """One per seed."""
        seeds = self.config["seeds"]
        if "#" in self.name or seeds == 1:
            return [self.name]
        return [f"{self.name}#{i}" for i in range(seeds)]

    @property
    def home(self) -> tuple[str, dict[str, Any]] | None:
        """Scenario and options of the run."""
        config = self.config
        return config["scenario"], out_of_view(config["scenario"], config["options"])

    def view(self, arena: Arena) -> dict[str, Any]:
        """The view that it was trained with."""
        trained = self.config["options"]
        return {name: trained[name] for name in VIEW if name in trained}

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """Its greedy policy at the arena's checkpoint."""
        return run_controller(self.folder, env, self.number, arena.checkpoint)

    def policy(self, checkpoint: str) -> Policy:
        """The policy to be written to a file."""
        _ = self.config
        return run_policy(self.folder, self.number, checkpoint)


@dataclass(frozen=True)
class OwnPolicy(Named):
    """A user's own policy, a function or an object that can be called.

    Either `policy(observations) -> actions`, dicts by agent as PettingZoo has them, which runs on
    the host, one episode after the other; `policy(observations, infos)` also gets the infos of the
    last step. If it has a method `reset`, that is called when an episode begins. Or
    `act(key, obs, state) -> action, state` for all ports at once, pure, which is compiled: `obs`
    `[A, obs_dim]`, `action` `[A, ...]` or thresholds (`Ecn`, bytes); `state` begins as `init()` of
    the object if it has that method, else None. An object with a method `act` of this form is the
    same as that method.

    Attributes:
        function: the policy. Options of `make` for its environment are its `make_options`, if any.
    """

    function: Any = None
    number_of_arguments: int = 1

    def view(self, arena: Arena) -> dict[str, Any]:
        """The arena's agents, and its `make_options`."""
        given = {n: arena.options[n] for n in ("agents", "per_queue") if n in arena.options}
        return rule_view(arena) | given | dict(getattr(self.function, "make_options", {}))

    def controller(self, env: EcnEnv, arena: Arena) -> AnyController:
        """It, as a controller."""
        if self.number_of_arguments == 3:
            return PurePolicy(self.function)
        return HostPolicy(self.function, env, infos=self.number_of_arguments == 2)


ALLOWED_FUNCTION = (
    "policy(observations), policy(observations, infos), or a pure act(key, obs, state)"
)


def own_policy(function: Any) -> OwnPolicy:
    """A user's function or object as a policy, see `OwnPolicy`.

    Raises:
        ValueError: its arguments are none of the known forms.
    """
    call = getattr(function, "act", function)
    needed = [
        p
        for p in inspect.signature(call).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) not in (1, 2, 3):
        raise bad_value("policy", f"{call} with {len(needed)} arguments", ALLOWED_FUNCTION)
    name = getattr(function, "__name__", type(function).__name__)
    return OwnPolicy(name.strip("<>"), function, len(needed))


def resolve(policy: object) -> Named:
    """The kind of a policy.

    Args:
        policy: a name (see the module's docstring), the path of a run or file, a policy that
            `load_policy` returned, a run that `train` returned, or a user's own function.

    Raises:
        ValueError: not a name of a policy, or a function with other arguments.
    """
    if isinstance(policy, Named):
        return policy
    policy = getattr(policy, "named", policy)  # of `BoundPolicy`
    if isinstance(policy, Named):
        return policy
    if isinstance(policy, str | PathLike):
        return _by_name(fspath(policy))
    if callable(policy) or hasattr(policy, "act"):
        return own_policy(policy)
    raise bad_value("policy", policy, f"a name, the folder of a run, {ALLOWED_FUNCTION}")


def _by_name(name: str) -> Named:
    if name == RANDOM:
        return RandomActions(name)
    if name in SEARCHED:
        return Searched(name)
    if name.startswith(PREFIX):
        parse_ecn(name.removeprefix(PREFIX).strip())
        return StaticSetting(name)
    if name.startswith(DYNAMIC):
        parse_tuner(name.removeprefix(DYNAMIC))
        return DynamicRule(name)
    if is_exported(name):
        read_exported(name)
        return ExportedFile(name)
    return RunOf(name)


def arena(policies: Sequence[str | Named], scenario: str | None, **overrides: object) -> Arena:
    """Scenario, options and reward of the first trained policy, unless the caller sets them.

    Raises:
        ValueError: a scenario that is no name, or an option that belongs to the view of a trained
            policy and differs from it.
    """
    if scenario is not None:
        check_name(scenario)
    resolved = [resolve(policy) for policy in policies]
    homes = [home for policy in resolved if (home := policy.home) is not None]
    if homes:
        trained_in, options = homes[0]
        place = Arena(scenario or trained_in, options | overrides)
    else:
        place = Arena(scenario or DEFAULT_SCENARIO, dict(overrides))
    for policy in resolved:
        if policy.trained:
            _check_view(policy, policy.view(place), overrides)
    return place


def _check_view(named: Named, view: Mapping[str, Any], overrides: Mapping[str, object]) -> None:
    """Refuse options that a policy brings along itself, with other values."""
    for name in VIEW:
        if name in overrides and with_lists(overrides[name]) != with_lists(view.get(name)):
            own = repr(view[name]) if name in view else "the scenario's"
            allowed = f"{own}, what {named.name} was trained with (leave it out)"
            raise bad_value(name, overrides[name], allowed)
