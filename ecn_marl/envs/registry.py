"""Scenarios by name: `make`, `register`, `scenarios`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from inspect import getdoc, getmodule
from os import PathLike, fspath
from typing import Any

from ecn_marl._checks import Flag, Kind, Real, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry
from ecn_marl.envs.actions import ACTIONS, ActionCodec, action_codec, parse_ecn
from ecn_marl.envs.agents import PORT
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.episode import PHASE
from ecn_marl.envs.features import Columns, FeatureSet, check_features, feature_set
from ecn_marl.envs.objectives import check_parts, check_phased_by
from ecn_marl.envs.queues import PerQueue
from ecn_marl.envs.resolve import (
    same_time,
    with_classes,
    with_clock,
    with_flows,
    with_load,
    with_priority,
    with_room,
)
from ecn_marl.envs.reward_reference import RewardReference, find_reference
from ecn_marl.envs.rewards import REWARDS, Reward, check_options, check_reward, reward_function
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.telemetry import Telemetry, with_delay
from ecn_marl.sim.config import counters
from ecn_marl.sim.core.failures import FAILING
from ecn_marl.sim.network.link_options import with_links
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.transports import as_transport

FLUID, PACKETS = "fluid", "packets"
"""Backends: what simulates a network."""

FILE = Kind((str, PathLike), "the name of a file")  # a number would be an open file's


def _as_factory(name: str, factory: object) -> Callable[[], Scenario]:
    """A factory that can be called."""
    if not callable(factory):
        raise bad_value(f"factory of {name}", factory, "a function that returns the scenario")
    made: Callable[[], Scenario] = factory
    return made


_BUILTIN: dict[str, Callable[[], Scenario]] = {}

SCENARIOS = Registry("scenario", _BUILTIN, _as_factory)
"""Scenarios by name: what makes them."""


def register(name: str, factory: Callable[[], Scenario], replace: bool = False) -> None:
    """Register a scenario.

    Args:
        name: e.g. `my-traffic-v0`.
        factory: called without arguments, returns the scenario.
        replace: whether to replace another factory registered under this name.

    Raises:
        ValueError: the name is no name or taken, by a built-in scenario perhaps; or the factory,
            which is called once, cannot be called or returns something else.
    """
    _load_builtin()  # they take their names first
    SCENARIOS.check_name(name)
    made = _as_factory(name, factory)()
    if not isinstance(made, Scenario):
        raise bad_value(f"scenario of {name}", made, "a Scenario, returned by its factory")
    SCENARIOS.register(name, factory, replace)


PAPERS: dict[str, str] = {}
"""Scenarios that are settings of a paper's figures: the paper, by the scenario's name."""


def add(name: str, factory: Callable[[], Scenario], paper: str = "") -> None:
    """`register` for the scenarios that ship with the package, which it imports.

    Args:
        name: its name.
        factory: returns the scenario.
        paper: the paper whose suite it belongs to, see `ecn_marl.experiments.papers`.
    """
    _BUILTIN[name] = factory
    if paper:
        PAPERS[name] = paper


def scenarios() -> tuple[str, ...]:
    """Names of all registered scenarios."""
    _load_builtin()
    return tuple(sorted(SCENARIOS))


SUCCESSORS = {"rpc-shuffle-v0": "shuffle-serve-v0", "demand-phases-v0": "restore-serve-v0"}
"""Scenarios that were taken out, and what to take in their place."""


def lookup(name: str) -> Scenario:
    """The scenario of a name, as registered, or a variant of it.

    Args:
        name: a registered name, or one with a variant of `envs.splits`, as
            `restore-serve-v0:senders/mellanox`.

    Raises:
        ValueError: no name, or an unknown one, with the nearest ones or its successor.
    """
    check_name(name)
    _load_builtin()
    if name in SUCCESSORS and name not in SCENARIOS:
        allowed = f"{SUCCESSORS[name]}: this one was taken out, it gained by its reward's weights"
        raise bad_value("scenario", name, allowed)
    base, colon, variant = name.partition(":")
    if not colon:
        return SCENARIOS[name]()
    return replace(SCENARIOS[base](), **_variant(base, variant))


def _variant(scenario: str, name: str) -> dict[str, Any]:
    """Fields of a scenario's variant."""
    # Imported here and not above, because splits are made of scenarios, which import this module.
    known = import_module("ecn_marl.envs.splits").variants(scenario)
    if name not in known:
        raise unknown_name(f"variant of {scenario}", name, known)
    changes: dict[str, Any] = known[name]()
    return changes


def check_name(scenario: object) -> None:
    """Refuse a scenario that is no name: runs and results are kept under names.

    Raises:
        InvalidValue: it is something else.
    """
    if not isinstance(scenario, str):
        allowed = "the name of a scenario; `ecn_marl.register(NAME, FUNCTION)` gives your own one"
        raise bad_value("scenario", f"a {type(scenario).__name__}", allowed)


def benchmark() -> tuple[str, ...]:
    """Names of the scenarios that policies are compared on; none of them is superseded."""
    return tuple(name for name in scenarios() if lookup(name).benchmark)


def about(name: str) -> str:
    """What a scenario is, in a line: its file's if that names it, or else its function's."""
    name, colon, variant = name.partition(":")
    if colon:
        return f"The variant {variant} of {name}."
    factory = SCENARIOS[name]
    made_by = factory.func if isinstance(factory, partial) else factory
    head = (getdoc(getmodule(made_by)) or "").partition("\n")[0]
    if name in _BUILTIN and head.startswith("`"):
        names, _, text = head.partition(": ")
        named = f"`{name.replace('-small', '')}`" in names or "-N-" in names
        if text and named:
            return f"{names.partition(', ')[2]}: {text}" if "control" in names else text
    return (getdoc(made_by) or "").partition("\n")[0]


def make(
    scenario: str | Scenario,
    *,
    features: FeatureSet | Columns | None = None,
    actions: str | ActionCodec = "multidiscrete",
    agents: str = PORT,
    per_queue: bool = False,
    reward: str | Reward | None = None,
    history: int | None = None,
    load: float | None = None,
    flows: str | None = None,
    priority: str | float | None = None,
    credit: str | None = None,
    telemetry: Telemetry | Mapping[str, Any] | None = None,
    decision_delay_us: float | None = None,
    counts: tuple[str, ...] = (),
    backend: str = FLUID,
    delay_us: float | None = None,
    link_gbps: float | None = None,
    uplink_gbps: float | None = None,
    checked: bool = False,
    **overrides: object,
) -> Any:
    """Make a functional environment.

    Args:
        scenario: name of a registered scenario, or a `Scenario`.
        features: what an agent sees: `acc`, `pet`, `pet-no-incast`, `pet-no-mice`, `haecn`,
            `ports`, `flows`; features with commas between them, such as `queue,flows_begun`; a
            tuple of these; or a feature set. See `features.feature_set`. None for the scenario's.
        actions: `multidiscrete`, `discrete`, `box`, `thresholds` (bytes, for rules), or a codec.
        agents: who acts: `port`, every egress port, or `switch`, every switch for all its ports
            (PET, §4.1.2): it observes and earns means over them, see `envs.agents`.
        per_queue: whether an agent sees and sets each queue of a port (PET, §4.5.2), see
            `envs.queues`. Scenarios with traffic classes have several queues at a port.
        reward: a name of `rewards.REWARDS`, or a reward. None for the scenario's.
        history: intervals per observation (else that of the feature set).
        load: load of all traffic sources that have one (else that of the scenario), a share of the
            line rate up to 1.5; refused where none has.
        flows: file with a recorded flow list, whose windows are the traffic; see `envs.recorded`.
        priority: preference of the reward: `latency`, `throughput`, or the weight of utilisation in
            [0, 1]; see `scenario.PRIORITIES`. Refused where the reward and the scenario's own are
            in completion times: these do not weigh utilisation.
        credit: who earns the reward `slowdown`: `team` (every port the whole, the default),
            `path` (each port its share) or `flows` (each port all of the flows that cross it); see
            `envs.rewards`.
        telemetry: limits of observations and actions, a `Telemetry` or a dict of its fields.
        decision_delay_us: the field of this name of `telemetry`, µs: the time that a decision
            takes. `baselines.evaluation.cost.decision_delay_us` measures it on this machine.
        counts: counters in `info` beyond those that the features need, e.g. `("flows_begun",)`; see
            `sim.state.COUNTS`. `phase` is the traffic phase of the next interval, which no switch
            knows: for oracles.
        backend: what simulates the network: `fluid`, or `packets`, one by one, see
            `ecn_marl.packets`; such an environment runs on the host and cannot be traced.
        delay_us: one-way delay of every link, µs. The base RTT follows, and what is sized by it:
            senders' windows, ideal completion times, the substep if it is `auto`. Intervals and
            thresholds stay.
        link_gbps: rate of the links of hosts, Gb/s. Thresholds of actions and named settings grow
            with a port's rate; constants of the senders stay, unless `transport` has `gbps`.
        uplink_gbps: rate of the links between switches, Gb/s.
        checked: whether the environment is wrapped in `wrappers.Checked`, which refuses actions
            and parameters out of their ranges. Without it `step` clips actions: a check reads
            them, which costs a transfer.
        **overrides: fields of `Scenario`, e.g. `max_steps=50, transport="dcqcn:paper"`. With
            another `transport` and no `dt_us`, a substep that is too long for the senders becomes
            `auto`. With other traffic and no `slots`, the number of slots grows where needed. With
            another `interval_us` and no `max_steps`, the duration of episodes stays: the interval
            has to divide it.

    Raises:
        ValueError: unknown scenario, feature, action, reward or field (with the nearest names), or
            a value that is not allowed.
    """
    spec = resolve_scenario(
        scenario,
        load=load,
        flows=flows,
        priority=priority,
        delay_us=delay_us,
        link_gbps=link_gbps,
        uplink_gbps=uplink_gbps,
        **overrides,
    )
    columns = feature_set(spec.features if features is None else features, history)
    telemetry_options = with_delay(Telemetry.of(telemetry), decision_delay_us)
    telemetry_options.check(spec.interval_us, spec.max_steps)
    is_list = isinstance(counts, list | tuple)
    if is_list and PHASE in counts and agents != PORT:
        raise bad_value("counts", PHASE, f"none with agents={agents!r}: a phase is a port's")
    asked = tuple(name for name in counts if name != PHASE) if is_list else counts
    counted = (*counters("counts", asked), *columns.needs, *telemetry_options.needs)
    check_parts(spec.objective, spec.traffic)
    check_phased_by(spec.phased_by, spec.traffic)
    options = _weights(spec) | spec.reward_options
    check_options(**options)
    reward_rule = reward_function(spec.reward if reward is None else reward, credit)
    if priority is not None:
        _check_priority(priority, reward_rule, spec)
    reference = _reference(scenario, spec, telemetry_options, reward_rule, options)
    check_value("per_queue", per_queue, Flag())
    own = "action_options" in overrides
    codec = action_codec(actions, **_options_for(actions, spec.action_options, own))
    if per_queue:
        if len(spec.classes) < 2:
            allowed = "False in a scenario whose ports have one queue (no traffic classes)"
            raise bad_value("per_queue", per_queue, allowed)
        codec = PerQueue(codec, len(spec.classes))
    env = EcnEnv(
        name=scenario if isinstance(scenario, str) else "custom",
        sim=_on(backend, _simulator(spec, counted, reward_rule)),
        feature=columns,
        action=codec,
        reward=reward_rule,
        initial=parse_ecn(spec.initial),
        horizon=spec.max_steps,
        reward_options=tuple(sorted(options.items())),
        margins_us=spec.margins_us,
        objective=spec.objective,
        phased_by=spec.phased_by,
        host_groups=spec.host_groups,
        failing=tuple(sorted(spec.failing.items())),
        telemetry=telemetry_options,
        reward_reference=reference,
        phase_info=is_list and PHASE in counts,
        agent_kind=agents,
        per_queue=per_queue,
    )
    _ = env.grouping  # an unknown kind is an error here
    if spec.failing:
        _ = env.default_params  # a share or time out of range is an error here, not at reset
    check_features(columns, env.sim)
    check_reward(reward_rule, env.sim)
    if checked:
        # Imported here: wrappers lie above environments.
        from ecn_marl.wrappers.checked import Checked

        return Checked(env)
    return env


def resolve_scenario(
    scenario: str | Scenario,
    *,
    load: float | None = None,
    flows: str | None = None,
    priority: str | float | None = None,
    delay_us: float | None = None,
    link_gbps: float | None = None,
    uplink_gbps: float | None = None,
    **overrides: Any,
) -> Scenario:
    """A scenario with options of `make` applied, and its `auto` fields computed.

    Args:
        scenario: name of a registered scenario, or a `Scenario`.
        load: as in `make`.
        flows: as in `make`.
        priority: as in `make`.
        delay_us: as in `make`.
        link_gbps: as in `make`.
        uplink_gbps: as in `make`.
        **overrides: fields of `Scenario`.

    Raises:
        ValueError: unknown scenario or field, or a value that is not allowed.
    """
    spec = lookup(scenario) if isinstance(scenario, str) else scenario
    if isinstance(scenario, str) and ":" in scenario:
        overrides = {**_variant(*scenario.split(":", 1)), **overrides}
    field_names = tuple(f.name for f in fields(Scenario))
    for name in overrides:
        if name == "max_cycles":
            raise bad_value(name, overrides[name], "no such option here: it is called max_steps")
        if name not in field_names:
            raise unknown_name("scenario option", name, (*field_names, *OPTIONS))
    if not isinstance(spec, Scenario):
        raise bad_value("scenario", spec, "the name of one, or a Scenario")
    if "interval_us" in overrides and "max_steps" not in overrides:
        overrides["max_steps"] = same_time(spec, overrides["interval_us"])
    spec = replace(spec, **overrides)
    links = {"delay_us": delay_us, "gbps": link_gbps, "uplink_gbps": uplink_gbps}
    for name, value in links.items():
        check_value(name, value, Real(above=0.0, high=1e6, none=True))
    if any(value is not None for value in links.values()):
        spec = replace(spec, topology=with_links(spec.topology, **links))
        overrides["topology"] = spec.topology
    overridden = {*overrides, *(["load"] * (load is not None)), *(["flows"] * (flows is not None))}
    spec = with_clock(with_classes(spec), overridden)
    if load is not None:
        spec = with_load(spec, load)
    if flows is not None:
        check_value("flows", flows, FILE)
        flows = fspath(flows)
        if load is not None:
            allowed = "none beside a load: a recorded list is all the traffic there is"
            raise bad_value("flows", flows, allowed)
        spec = with_flows(spec, flows)
    spec = with_room(spec, overridden)
    if priority is not None:
        spec = with_priority(spec, priority)
    for name in spec.failing:
        if name not in FAILING:
            raise unknown_name("option of failing", name, FAILING)
    if spec.failing and not {"share", "at_us"} <= spec.failing.keys():
        raise bad_value("failing", spec.failing, "share and at_us at least")
    return spec


def _reference(
    scenario: str | Scenario,
    spec: Scenario,
    telemetry: Telemetry,
    reward: Reward,
    options: Mapping[str, float],
) -> RewardReference | None:
    """The reference of a scenario's rewards; None without one."""
    reference = spec.reward_reference
    if not reference:
        return None
    if not isinstance(scenario, str):
        raise bad_value("reward_reference", reference, "none: a scenario without a name has none")
    return find_reference(reference, scenario, spec, telemetry, reward, options)


OPTIONS = (
    *("history", "load", "delay_us", "link_gbps", "uplink_gbps"),
    *("agents", "per_queue", "credit"),
)
"""Options of `make` that are no fields of a scenario and can be given as numbers or words."""

VIEW = ("features", "actions", "history", "action_options", "interval_us", "agents", "per_queue")
"""Options of `make` that belong to a learner: what it sees and sets, how often, and for whom."""


def out_of_view(scenario: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the episodes of a run, without those of its view; the inverse of `in_view`.

    Args:
        scenario: name of the scenario.
        options: options of `make` that the run was trained with.

    Returns:
        The others, with `max_steps` in intervals of the scenario.
    """
    episode_options = {name: value for name, value in options.items() if name not in VIEW}
    if "max_steps" in options and "interval_us" in options:
        every = lookup(scenario).interval_us
        episode_options["max_steps"] = round(options["max_steps"] * options["interval_us"] / every)
    return episode_options


def in_view(scenario: str, options: Mapping[str, Any], view: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `make` for the episodes of a learner with its own view.

    Args:
        scenario: name of the scenario.
        options: options of the episodes; `max_steps` counts the scenario's intervals.
        view: options that belong to the learner, `interval_us` perhaps among them.

    Returns:
        Both, with `max_steps` in intervals of the view, so that episodes last as long. Options of
        other actions than the view's are left out, unless `options` has them: a recipe's do not
        belong to the actions that a user names.
    """
    episode_options = {**options, **view}
    if {"actions", "action_options"} <= view.keys() and "action_options" not in options:
        fitting = _options_for(view["actions"], view["action_options"])
        episode_options["action_options"] = fitting
    if "interval_us" in view and "max_steps" in options:
        spec = replace(lookup(scenario), max_steps=options["max_steps"])
        episode_options["max_steps"] = same_time(spec, view["interval_us"])
    return episode_options


def _weights(spec: Scenario) -> dict[str, float]:
    """The scenario's weights of slowdowns as options of the reward."""
    names = ("mice_weight", "medium_weight", "elephant_weight")
    return dict(zip(names, spec.slowdown_weights, strict=True))


def _check_priority(priority: str | float, reward: Reward, spec: Scenario) -> None:
    """Refuse a priority that nothing reads.

    A suite's priority may stand beside a recipe with a reward of its own, where the scenario's
    reward reads it.
    """
    if reward.accrues and reward_function(spec.reward).accrues:
        names = [name for name in REWARDS if not REWARDS[name].accrues]
        allowed = f"none with the reward {reward.name}: only {', '.join(names)} weigh utilisation"
        raise bad_value("priority", priority, allowed)


def _options_for(
    actions: str | ActionCodec, options: Mapping[str, object], asked: bool = False
) -> dict[str, Any]:
    """Options for a codec: the caller's as they are, if `asked` for.

    Of the scenario's own, those that this codec has (a template list has no scale).
    """
    known = isinstance(actions, str) and actions in ACTIONS
    if not known and not asked:
        return {}
    everywhere = {name for kind in ACTIONS.values() for name in kind.options()}
    for name in options:
        if name not in everywhere:
            raise unknown_name("action option", name, everywhere)
    if asked:
        return dict(options)
    codec_options = ACTIONS[str(actions)].options()
    return {k: v for k, v in options.items() if k in codec_options}


def _simulator(spec: Scenario, counts: tuple[str, ...], reward: Reward) -> Simulator:
    dt_us = float(spec.dt_us)
    steps = spec.interval_us / dt_us
    if abs(steps - round(steps)) > 1e-6 or round(steps) < 1:
        raise bad_value("interval_us", spec.interval_us, f"a multiple of dt_us = {dt_us}")
    return Simulator(
        topology=spec.topology,
        traffic=spec.traffic,
        transport=as_transport(spec.transport),
        dt_us=dt_us,
        tick_steps=spec.tick_steps,
        interval_steps=round(steps),
        slots=int(spec.slots),
        bins=spec.bins,
        pfc=spec.pfc,
        pfc_alpha=spec.pfc_alpha,
        loss_recovery=spec.loss_recovery,
        load_balancing=spec.load_balancing,
        flowlet_gap_us=spec.flowlet_gap_us,
        ack_priority=spec.ack_priority,
        accrue=reward.accrues,
        accrue_whole=reward.whole,
        accrue_powers=reward.powers,
        counts=counts,
        buffer_mib=spec.buffer_mib,
        memory_us=spec.memory_us,
        failures=bool(spec.failing),
        classes=spec.classes,
        class_of=spec.class_of,
        placement=spec.placement,
        jitter_us=spec.jitter_us,
        softness=spec.softness,
        mark_quantum=spec.mark_quantum,
    )


def is_packets(backend: str) -> bool:
    """Whether a backend is `packets`; if it is neither that nor `fluid`, a ValueError."""
    if backend not in (FLUID, PACKETS):
        raise unknown_name("backend", backend, (FLUID, PACKETS))
    return backend == PACKETS


def _on(backend: str, sim: Simulator) -> Simulator:
    """The simulator of a backend."""
    if not is_packets(backend):
        return sim
    from ecn_marl.packets import packet_simulator  # Numba, which is an extra

    return packet_simulator(sim)


def _load_builtin() -> None:
    """Import the scenarios that ship with the package; they register themselves."""
    # Imported here and not above, because the scenarios import this module.
    import_module("ecn_marl.envs.scenarios")
