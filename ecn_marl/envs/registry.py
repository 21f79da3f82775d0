"""Scenarios by name: `make`, `register`, `scenarios`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import import_module
from os import PathLike, fspath
from typing import Annotated, Any

from ecn_marl._checks import (
    OPTIONS,
    TEXT,
    Each,
    Flag,
    Kind,
    Real,
    Whole,
    check,
    check_value,
    rules_of,
)
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry
from ecn_marl.envs.actions import ActionCodec, action_codec, parse_ecn
from ecn_marl.envs.ecn import EcnEnv, HostGroup
from ecn_marl.envs.features import Columns, FeatureSet, check_features, feature_set
from ecn_marl.envs.phases import Phase, PhasedEnv
from ecn_marl.envs.recorded import recorded
from ecn_marl.envs.resolve import with_classes, with_clock, with_room
from ecn_marl.envs.reward_reference import RewardReference, find_reference
from ecn_marl.envs.rewards import Reward, check_options, check_reward, reward_function
from ecn_marl.envs.telemetry import Telemetry, with_delay
from ecn_marl.sim.clocks import MAX_TICK
from ecn_marl.sim.config import NETWORK, SOURCE, TrafficClass, counters
from ecn_marl.sim.failures import FAILING
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.sources import as_sources
from ecn_marl.sim.topology import Topology
from ecn_marl.sim.traffic import LOAD
from ecn_marl.sim.transports import Transport, as_transport

FILE = Kind((str, PathLike), "the name of a file")  # a number would be an open file's

CLASS = Kind((TrafficClass, Mapping), "a TrafficClass, or a dict of its fields")


@dataclass(frozen=True)
class Scenario:
    """Everything that defines an experiment, except what agents see and set.

    Every field can be overridden in `make`. The simulator checks the fields that it shares.

    Attributes:
        topology: the network.
        traffic: traffic sources, or texts or dicts that name them, see `sim.sources`.
        transport: senders, e.g. `dcqcn:hpcc-paper`, or a `Transport` of your own.
        dt_us: substep, µs; `auto` for the longest that is certified for the senders and the
            network, and a `tick_steps` to go with it, see `sim.clocks.choose_clock`.
        tick_steps: substeps per tick.
        interval_us: tuning interval, µs.
        slots: flows in progress at most; `auto` for what the traffic needs, see `sim.sizing`.
        max_steps: intervals per episode.
        buffer_mib: shared buffer per switch, MiB.
        pfc: whether PFC pauses upstream links.
        pfc_alpha: share of the free buffer at which PFC pauses; None for 1/8, more on faster links.
        loss_recovery: `selective`, `go-back-n` or `irn`, see `sim.recovery`.
        load_balancing: who chooses among equal-cost paths: `ecmp` (each flow once), `flowlet` (each
            flowlet, see `sim.flowlets`) or `spray` (each packet, see `sim.ways`).
        flowlet_gap_us: pause between two packets of a flow that begins a flowlet, µs.
        ack_priority: whether ACKs ride in a class of their own.
        bins: number of bins of the slowdown histogram, for each size class.
        initial: thresholds at the start of an episode.
        action_options: options of the action codec, e.g. `{"alpha_kb": 20}`.
        reward_options: options of the reward, e.g. `{"utilisation_weight": 0.7}`.
        phases: traffic phases of an episode, see `ecn_marl.envs.phases`; empty for none.
        phase_steps: tuning intervals per phase.
        memory_us: how far back feedback can reach, µs, see `SimConfig`.
        slowdown_weights: weights of the slowdowns of mice, medium flows and elephants in the reward
            `slowdown`. In built-in scenarios they make all size classes count alike under SECN1,
            and an interval under SECN1 earns -1 on average.
        margins_us: warm-up and cool-down, µs. Flows that begin within them are not measured. Each
            is at most a quarter of the episode.
        host_groups: groups of hosts that differ in role or place on the timeline.
        classes: traffic classes (or dicts of their fields, `transport` in its short form), each
            with senders, a queue at every port and a weight; empty for one class. All queues of a
            port have the thresholds that its agent sets.
        class_of: traffic class of each source; empty for the first.
        jitter_us: NIC processing adds up to this to every feedback delay, µs.
        softness: width over which the marking curve is rounded, bytes; 0 for plain RED.
        failing: arguments of `sim.failures.fail_links`, e.g. `{"share": 0.1, "at_us": 5000.0}`;
            empty if no link fails.
        features: default features.
        reward: default reward.
        benchmark: whether policies are compared on it. Plain traffic is for tests and timings.
        superseded: why the scenario was taken out of the benchmark; empty if it was not.
        reward_reference: what rewards are relative to, e.g. `static:best`: it earns 0 in an
            episode, the oracle 1. `POLICY@FILE.json` for your own file, empty for none; see
            `envs.reward_reference`.
    """

    topology: Annotated[Topology, NETWORK]
    traffic: Annotated[Any, Each(SOURCE, least=1)]
    transport: str | Transport = "dcqcn:hpcc-paper"
    dt_us: Annotated[float | str, Real(above=0.0, high=1e4, unit="µs", words=("auto",))] = "auto"
    tick_steps: Annotated[int, Whole(low=1, high=MAX_TICK)] = 4
    interval_us: Annotated[float, Real(above=0.0, high=1e9, unit="µs")] = 100.0
    slots: Annotated[int | str, Whole(low=1, words=("auto",))] = "auto"
    max_steps: Annotated[int, Whole(low=1)] = 200
    buffer_mib: float = 32.0
    pfc: bool = True
    pfc_alpha: float | None = None
    loss_recovery: str = "selective"
    load_balancing: str = "ecmp"
    flowlet_gap_us: float = 50.0
    ack_priority: bool = False
    bins: int = 160
    initial: Annotated[str, TEXT] = "secn1"
    action_options: Annotated[dict[str, Any], OPTIONS] = field(default_factory=dict)
    reward_options: Annotated[dict[str, float], OPTIONS] = field(default_factory=dict)
    phases: Annotated[tuple[Phase, ...], Each(Kind((Phase,), "a Phase"))] = ()
    phase_steps: Annotated[int, Whole(low=1)] = 50
    memory_us: float = 256.0
    slowdown_weights: Annotated[tuple[float, float, float], Each(Real(low=0.0), 3)] = (1.0,) * 3
    margins_us: Annotated[tuple[float, float], Each(Real(low=0.0, unit="µs"), 2)] = (0.0, 0.0)
    host_groups: Annotated[tuple[HostGroup, ...], Each(Kind((HostGroup,), "a HostGroup"))] = ()
    classes: Annotated[tuple[Any, ...], Each(CLASS)] = ()
    class_of: Annotated[tuple[int, ...], Each(Whole(low=0))] = ()
    jitter_us: float = 0.0
    softness: float = 0.0
    failing: Annotated[dict[str, Any], OPTIONS] = field(default_factory=dict)
    features: str = "acc"
    reward: str = "acc"
    benchmark: Annotated[bool, Flag()] = False
    superseded: Annotated[str, TEXT] = ""
    reward_reference: Annotated[str, TEXT] = ""

    def __post_init__(self) -> None:
        """Check what the simulator does not check, and that nothing superseded is benchmarked."""
        object.__setattr__(self, "traffic", as_sources(self.traffic))
        check(self)
        if self.benchmark and self.superseded:
            raise bad_value("benchmark", self.benchmark, "False in a superseded scenario")


PRIORITIES = {"latency": 0.3, "throughput": 0.7}
"""Weights of utilisation by what an operator puts first: PET's beta_1 for Web Search and for Data
Mining (§5.2), which are ACC's omega_1; the queue term gets the rest. The units of PET's queue term
are those of `ecn_marl.envs.rewards`: 1 up to a mean queue of 1 KB, 1 KB / queue above."""


def _as_factory(name: str, factory: Any) -> Callable[[], Scenario]:
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
        ValueError: the name is no name or taken, by a built-in scenario perhaps, or the factory
            cannot be called.
    """
    _load_builtin()  # they take their names first
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


def lookup(name: str) -> Scenario:
    """The scenario of a name, as registered.

    Raises:
        ValueError: unknown name, with the nearest ones.
    """
    _load_builtin()
    return SCENARIOS[name]()


def benchmark() -> tuple[str, ...]:
    """Names of the scenarios that policies are compared on; none of them is superseded."""
    return tuple(name for name in scenarios() if lookup(name).benchmark)


def make(
    scenario: str | Scenario,
    *,
    features: FeatureSet | Columns | None = None,
    actions: str | ActionCodec = "multidiscrete",
    reward: str | Reward | None = None,
    history: int | None = None,
    load: float | None = None,
    flows: str | None = None,
    priority: str | float | None = None,
    credit: str | None = None,
    telemetry: Telemetry | Mapping[str, Any] | None = None,
    decision_delay_us: float | None = None,
    counts: tuple[str, ...] = (),
    **overrides: Any,
) -> EcnEnv:
    """Make a functional environment.

    Args:
        scenario: name of a registered scenario, or a `Scenario`.
        features: what an agent sees: `acc`, `pet`, `pet-no-incast`, `pet-no-mice`, `haecn`,
            `ports`, `flows`; features with commas between them, such as `queue,flows_begun`; a
            tuple of these; or a feature set. See `features.feature_set`. None for the scenario's.
        actions: `multidiscrete`, `discrete`, `box`, or a codec.
        reward: `slowdown`, `slowdown-shaped`, `acc`, `pet`, `haecn`, or a reward. None for the
            scenario's.
        history: intervals per observation (else that of the feature set).
        load: load of all traffic sources that have one (else that of the scenario), a share of the
            line rate up to 1.5; refused where none has.
        flows: file with a recorded flow list, whose windows are the traffic; see `envs.recorded`.
        priority: preference of the reward: `latency`, `throughput`, or the weight of utilisation in
            [0, 1]; see `PRIORITIES`.
        credit: who earns the reward `slowdown`: `team` (every port the whole, the default) or
            `path` (each port its share); see `envs.rewards`.
        telemetry: limits of observations and actions, a `Telemetry` or a dict of its fields.
        decision_delay_us: the field of this name of `telemetry`, µs: the time that a decision
            takes. `baselines.evaluation.cost.decision_delay_us` measures it on this machine.
        counts: counters in `info` beyond those that the features need, e.g. `("flows_begun",)`; see
            `sim.state.COUNTS`.
        **overrides: fields of `Scenario`, e.g. `max_steps=50, transport="dcqcn:paper"`. With
            another `transport` and no `dt_us`, a substep that is too long for the senders becomes
            `auto`. With other traffic and no `slots`, the number of slots grows where needed. With
            another `interval_us` and no `max_steps`, the duration of episodes stays: the interval
            has to divide it.

    Raises:
        ValueError: unknown scenario, feature, action, reward or field (with the nearest names), or
            a value that is not allowed.
    """
    spec = resolve_scenario(scenario, load=load, flows=flows, priority=priority, **overrides)
    columns = feature_set(spec.features if features is None else features, history)
    telemetry_options = with_delay(Telemetry.of(telemetry), decision_delay_us)
    telemetry_options.check(spec.interval_us, spec.max_steps)
    counted = (*counters("counts", counts), *columns.needs, *telemetry_options.needs)
    options = _weights(spec) | spec.reward_options
    check_options(**options)
    reward_rule = reward_function(spec.reward if reward is None else reward, credit)
    reference = _reference(scenario, spec, telemetry_options, reward_rule, options)
    env_class = partial(PhasedEnv, phases=spec.phases, phase_steps=spec.phase_steps)
    env: EcnEnv = (env_class if spec.phases else EcnEnv)(
        name=scenario if isinstance(scenario, str) else "custom",
        sim=_simulator(spec, counted, reward_rule.accrues),
        feature=columns,
        action=action_codec(actions, **_options_for(actions, spec.action_options)),
        reward=reward_rule,
        initial=parse_ecn(spec.initial),
        horizon=spec.max_steps,
        reward_options=tuple(sorted(options.items())),
        margins_us=spec.margins_us,
        host_groups=spec.host_groups,
        failing=tuple(sorted(spec.failing.items())),
        telemetry=telemetry_options,
        reward_reference=reference,
    )
    if spec.failing:
        _ = env.default_params  # a share or time out of range is an error here, not at reset
    check_features(columns, env.sim)
    check_reward(reward_rule, env.sim)
    return env


def resolve_scenario(
    scenario: str | Scenario,
    *,
    load: float | None = None,
    flows: str | None = None,
    priority: str | float | None = None,
    **overrides: Any,
) -> Scenario:
    """A scenario with options of `make` applied, and its `auto` fields computed.

    Args:
        scenario: name of a registered scenario, or a `Scenario`.
        load: as in `make`.
        flows: as in `make`.
        priority: as in `make`.
        **overrides: fields of `Scenario`.

    Raises:
        ValueError: unknown scenario or field, or a value that is not allowed.
    """
    spec = lookup(scenario) if isinstance(scenario, str) else scenario
    field_names = tuple(f.name for f in fields(Scenario))
    for name in overrides:
        if name not in field_names:
            raise unknown_name("scenario option", name, (*field_names, "history", "load"))
    if not isinstance(spec, Scenario):
        raise bad_value("scenario", spec, "the name of one, or a Scenario")
    if "interval_us" in overrides and "max_steps" not in overrides:
        overrides["max_steps"] = _same_time(spec, overrides["interval_us"])
        if spec.phases and "phase_steps" not in overrides:
            per_phase = replace(spec, max_steps=spec.phase_steps)
            overrides["phase_steps"] = _same_time(per_phase, overrides["interval_us"])
    spec = replace(spec, **overrides)
    overridden = {*overrides, *(["load"] * (load is not None)), *(["flows"] * (flows is not None))}
    spec = with_clock(with_classes(spec), overridden)
    if load is not None:
        if any(phase.traffic for phase in spec.phases):
            raise bad_value("load", load, "none: the phases of this scenario have their own")
        spec = replace(spec, traffic=_with_load(spec.traffic, load))
    if flows is not None:
        check_value("flows", flows, FILE)
        flows = fspath(flows)
        if load is not None or spec.phases:
            allowed = "none" if spec.phases else "none beside a load"
            reason = "a recorded list is all the traffic there is"
            raise bad_value("flows", flows, f"{allowed}: {reason}")
        dt_us = float(spec.dt_us)
        source = recorded(flows, spec.topology, dt_us, dt_us * spec.tick_steps)
        spec = replace(spec, traffic=(source,))
    spec = with_room(spec, overridden)
    if priority is not None:
        spec = replace(spec, reward_options=_weighted(spec, priority))
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
    if spec.phases:
        raise bad_value("reward_reference", reference, "none in a scenario whose reward has phases")
    return find_reference(reference, scenario, spec, telemetry, reward, options)


def _same_time(spec: Scenario, interval_us: float) -> int:
    """Intervals of another length in an episode of the same time."""
    check_value("interval_us", interval_us, rules_of(Scenario)["interval_us"])
    time_us = spec.max_steps * spec.interval_us
    steps = round(time_us / interval_us)
    if abs(steps * interval_us - time_us) > 1e-6 * time_us:
        allowed = f"a divisor of the {time_us:g} us of an episode or phase, or max_steps as well"
        raise bad_value("interval_us", interval_us, allowed)
    return steps


VIEW = ("features", "actions", "history", "action_options", "interval_us")
"""Options of `make` that belong to a learner: what it sees and sets, and how often."""


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
        Both, with `max_steps` in intervals of the view, so that episodes last as long.
    """
    episode_options = {**options, **view}
    if "interval_us" in view and "max_steps" in options:
        spec = replace(lookup(scenario), max_steps=options["max_steps"])
        episode_options["max_steps"] = _same_time(spec, view["interval_us"])
    return episode_options


def _weights(spec: Scenario) -> dict[str, float]:
    """The scenario's weights of slowdowns as options of the reward."""
    names = ("mice_weight", "medium_weight", "elephant_weight")
    return dict(zip(names, spec.slowdown_weights, strict=True))


def _weighted(spec: Scenario, priority: str | float) -> dict[str, float]:
    """Reward options with the weight of a priority."""
    if any(phase.utilisation_weight is not None for phase in spec.phases):
        raise bad_value("priority", priority, "none: the phases of this scenario have their own")
    if priority in PRIORITIES:
        return spec.reward_options | {"utilisation_weight": PRIORITIES[str(priority)]}
    try:
        weight = float(priority)
    except (ValueError, TypeError):
        raise unknown_name("priority", str(priority), PRIORITIES) from None
    return spec.reward_options | {"utilisation_weight": weight}


def _options_for(actions: str | ActionCodec, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the scenario that this codec has (a template list has no scale)."""
    from ecn_marl.envs.actions import ACTIONS

    if isinstance(actions, ActionCodec) or actions not in ACTIONS:
        return {}
    codec_options = ACTIONS[actions].options()
    everywhere = {name for kind in ACTIONS.values() for name in kind.options()}
    for name in options:
        if name not in everywhere:
            raise unknown_name("action option", name, everywhere)
    return {k: v for k, v in options.items() if k in codec_options}


def _with_load(traffic: tuple[Any, ...], load: float) -> tuple[Any, ...]:
    """Traffic with this load in all sources that have a load."""
    if not LOAD.fits(load):
        number = isinstance(load, int | float) and not isinstance(load, bool)
        percent = number and load >= 5.0 and LOAD.fits(load / 100.0)
        hint = f" ({load:g} % is {load / 100.0:g})" if percent else ""
        raise bad_value("load", load, f"{LOAD.allowed}, a share of the line rate{hint}")
    if not any(map(_has_load, traffic)):
        kinds = ", ".join(dict.fromkeys(type(source).__name__ for source in traffic))
        raise bad_value("load", load, f"none: this traffic has no load to set ({kinds})")
    return tuple(replace(s, load=load) if _has_load(s) else s for s in traffic)


def _has_load(source: Any) -> bool:
    return is_dataclass(source) and any(f.name == "load" for f in fields(source))


def _simulator(spec: Scenario, counts: tuple[str, ...], accrue: bool) -> Simulator:
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
        accrue=accrue,
        counts=counts,
        buffer_mib=spec.buffer_mib,
        memory_us=spec.memory_us,
        failures=bool(spec.failing),
        classes=spec.classes,
        class_of=spec.class_of,
        jitter_us=spec.jitter_us,
        softness=spec.softness,
    )


def _load_builtin() -> None:
    """Import the scenarios that ship with the package; they register themselves."""
    import_module("ecn_marl.envs.scenarios")
