"""Fields of scenarios that follow from others or from options of `make`.

`auto` becomes a number: the clock, widths of sources, flow slots. A load goes into the sources, a
flow list replaces them, a priority goes into the options of the reward.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np

from ecn_marl._checks import check_value, rules_of
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.envs.recorded import recorded
from ecn_marl.envs.scenario import PRIORITIES, Scenario
from ecn_marl.sim.clocks import choose_clock, longest_dt_us
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.traffic import sizing
from ecn_marl.sim.traffic.base import LOAD, Source
from ecn_marl.sim.transports import Mixed, Transport, as_transport

TRAFFIC = ("traffic", "topology", "load", "flows")
"""Fields that decide how many flows there are."""


def with_classes(spec: Scenario) -> Scenario:
    """A scenario whose traffic classes are `TrafficClass`es; dicts of their fields become such.

    Raises:
        ValueError: an unknown field, or senders that do not exist.
    """
    field_names = [f.name for f in fields(TrafficClass)]
    classes: list[TrafficClass] = []
    for kind in spec.classes:
        if isinstance(kind, Mapping):
            for name in kind:
                if name not in field_names:
                    raise unknown_name("field of a traffic class", str(name), field_names)
            senders = {"transport": as_transport(kind.get("transport", spec.transport))}
            kind = TrafficClass(**{"name": str(len(classes)), **kind, **senders})
        classes.append(kind)
    return replace(spec, classes=tuple(classes), class_of=tuple(spec.class_of))


def same_time(spec: Scenario, interval_us: float) -> int:
    """Tuning intervals of another length in an episode that lasts as long as the scenario's.

    Raises:
        ValueError: the interval is no length, or does not divide the episode.
    """
    check_value("interval_us", interval_us, rules_of(Scenario)["interval_us"])
    time_us = spec.max_steps * spec.interval_us
    steps = round(time_us / interval_us)
    if abs(steps * interval_us - time_us) > 1e-6 * time_us:
        allowed = f"a divisor of the {time_us:g} us of an episode, or max_steps as well"
        raise bad_value("interval_us", interval_us, allowed)
    return steps


def with_load(spec: Scenario, load: float) -> Scenario:
    """A scenario with this load in all of its sources that have a load.

    Raises:
        ValueError: the load is out of range, or no source has one.
    """
    if not LOAD.fits(load):
        number = isinstance(load, int | float) and not isinstance(load, bool)
        percent = number and load >= 5.0 and LOAD.fits(load / 100.0)
        hint = f" ({load:g} % is {load / 100.0:g})" if percent else ""
        raise bad_value("load", load, f"{LOAD.allowed}, a share of the line rate{hint}")
    if not any(map(_has_load, spec.traffic)):
        kinds = ", ".join(dict.fromkeys(type(source).__name__ for source in spec.traffic))
        raise bad_value("load", load, f"none: this traffic has no load to set ({kinds})")
    traffic = tuple(replace(s, load=load) if _has_load(s) else s for s in spec.traffic)
    return replace(spec, traffic=traffic)


def with_flows(spec: Scenario, path: str) -> Scenario:
    """A scenario with a clock whose traffic is a recorded flow list, see `recorded`.

    Raises:
        ValueError: the scenario counts steps of jobs; the list cannot be read, does not fit the
            network, or is so short that it repeats faster than its flows are admitted.
    """
    if spec.phased_by is not None or any(part.sources for part in spec.objective):
        allowed = "none in a scenario that counts steps of jobs: a flow list has flows only"
        raise bad_value("flows", path, allowed)
    dt_us = float(spec.dt_us)
    tick_us = dt_us * spec.tick_steps
    source = recorded(path, spec.topology, dt_us, tick_us)
    count, span_us = len(source.flows), float(np.ptp(source.flows.start_ns)) / 1e3
    period_us = max(span_us * count / (count - 1), dt_us)
    if source.width * period_us < count * tick_us:
        repeats = f"these {count} flows repeat every {period_us:.3g} us"
        allowed = f"a longer list: {repeats}, and at most {source.width} begin per {tick_us:g} us"
        raise bad_value("flows", path, allowed)
    return replace(spec, traffic=(source,))


def _has_load(source: Source) -> bool:
    return is_dataclass(source) and any(f.name == "load" for f in fields(source))


def with_priority(spec: Scenario, priority: str | float) -> Scenario:
    """A scenario whose reward weighs utilisation as a priority says, see `PRIORITIES`.

    Raises:
        ValueError: neither the name of a priority nor a number in [0, 1].
    """
    try:
        weight = PRIORITIES[str(priority)] if priority in PRIORITIES else float(priority)
    except (ValueError, TypeError):
        raise unknown_name("priority", str(priority), PRIORITIES) from None
    if isinstance(priority, bool) or not 0.0 <= weight <= 1.0:
        allowed = f"{', '.join(PRIORITIES)}, or the weight of utilisation, a number in [0, 1]"
        raise bad_value("priority", priority, allowed)
    return replace(spec, reward_options=spec.reward_options | {"utilisation_weight": weight})


def with_clock(spec: Scenario, overridden: Collection[str]) -> Scenario:
    """A scenario whose substep is a number.

    Args:
        spec: scenario.
        overridden: fields that the caller has set. A substep that the caller has set stays, even if
            it is too long for the senders; that is an error later.

    Raises:
        ValueError: the substep is neither a number nor `auto`.
    """
    dt_us = spec.dt_us
    senders: Transport = as_transport(spec.transport)
    if spec.classes:
        senders = Mixed(tuple(kind.transport for kind in spec.classes))
    if isinstance(dt_us, str) and dt_us != "auto":
        raise bad_value("dt_us", dt_us, "a substep in us, or auto")
    longest = longest_dt_us(senders, spec.topology).dt_us
    if isinstance(dt_us, str) or (dt_us > longest and "dt_us" not in overridden):
        chosen_us, steps = choose_clock(senders, spec.topology, spec.interval_us)
        return replace(spec, dt_us=chosen_us, tick_steps=steps)
    return spec


def with_room(spec: Scenario, overridden: Collection[str]) -> Scenario:
    """A scenario whose widths and slots are numbers, see `sim.traffic.sizing`.

    If the caller has set other traffic, the scenario's number of slots grows where needed. Numbers
    too small for the offered traffic are an error.

    Args:
        spec: scenario with a clock.
        overridden: fields that the caller has set, `load` and `flows` among them.

    Raises:
        ValueError: too few slots or too small a width (with the number needed), slots that are
            neither a number nor `auto`, or no number can be found.
    """
    tick_us = float(spec.dt_us) * spec.tick_steps
    for source in spec.traffic:
        _check_width(source, spec, tick_us)
    spec = replace(spec, traffic=sizing.with_widths(spec.traffic, spec.topology, tick_us))
    return replace(spec, slots=_slots(spec, overridden, tick_us))


def _check_width(source: Source, spec: Scenario, tick_us: float) -> None:
    """Refuse a width that is less than what arrives in a tick on average."""
    width, demand = getattr(source, "width", "auto"), _demand(source, spec, tick_us)
    if not isinstance(width, int) or demand is None:
        return
    arrivals, needed = demand.per_us * demand.burst * tick_us, sizing.width_for(demand, tick_us)
    if width < min(arrivals, needed):
        kind = type(source).__name__
        allowed = f"auto, or at least {needed}: {arrivals:.3g} flows of this {kind} arrive per tick"
        raise bad_value("width", width, f"{allowed} of {tick_us:g} us")


def _slots(spec: Scenario, overridden: Collection[str], tick_us: float) -> int:
    """Flow slots of a scenario."""
    if isinstance(spec.slots, str) and spec.slots != "auto":
        raise bad_value("slots", spec.slots, "an integer >= 1, or auto")
    found = [(type(x).__name__, _demand(x, spec, tick_us)) for x in spec.traffic]
    demands = [demand for _, demand in found if demand is not None]
    unknown = [kind for kind, demand in found if demand is None]
    if spec.slots == "auto":
        if unknown:
            raise bad_value("slots", "auto", f"a number: {unknown[0]} has no demand()")
        return sizing.slots_for(demands, spec.topology, tick_us)
    slots, changed = int(spec.slots), bool(set(overridden) & set(TRAFFIC))
    if changed and "slots" not in overridden:
        loads = sizing.link_loads(demands, spec.topology)
        if unknown or loads.max(initial=0.0) >= sizing.FULL:  # then no number is enough
            return slots
        return max(slots, sizing.slots_for(demands, spec.topology, tick_us))
    least = sizing.least_slots(demands, spec.topology, tick_us)
    if slots < least:
        reason = "so many flows are in progress on average even if none ever meets another"
        raise bad_value("slots", slots, f"auto, or at least {least}: {reason}")
    return slots


def _demand(source: Source, spec: Scenario, tick_us: float) -> sizing.Demand | None:
    return sizing.demand_of(source, spec.topology, tick_us)
