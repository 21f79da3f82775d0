"""Scenarios whose `auto` fields have become numbers: the clock, widths of sources, flow slots."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim import sizing
from ecn_marl.sim.clocks import choose_clock, longest_dt_us
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.transports import Mixed, Transport, as_transport

if TYPE_CHECKING:
    from ecn_marl.envs.registry import Scenario

TRAFFIC = ("traffic", "topology", "load", "flows", "phases")
"""What decides how many flows there are."""


def with_classes(spec: Scenario) -> Scenario:
    """A scenario whose traffic classes are `TrafficClass`es; dicts of their fields become such.

    Raises:
        ValueError: an unknown field, or senders that do not exist.
    """
    known = [f.name for f in fields(TrafficClass)]
    made: list[TrafficClass] = []
    for kind in spec.classes:
        if isinstance(kind, Mapping):
            for name in kind:
                if name not in known:
                    raise unknown_name("field of a traffic class", str(name), known)
            senders = {"transport": as_transport(kind.get("transport", spec.transport))}
            kind = TrafficClass(**{"name": str(len(made)), **kind, **senders})
        made.append(kind)
    return replace(spec, classes=tuple(made), class_of=tuple(spec.class_of))


def with_clock(spec: Scenario, given: Collection[str]) -> Scenario:
    """A scenario whose substep is a number.

    Args:
        spec: scenario.
        given: fields that the caller has set. A substep that he has set stays, even if the senders
            cannot bear it: an error later.

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
    if isinstance(dt_us, str) or (dt_us > longest and "dt_us" not in given):
        chosen, steps = choose_clock(senders, spec.topology, spec.interval_us)
        return replace(spec, dt_us=chosen, tick_steps=steps)
    return spec


def with_room(spec: Scenario, given: Collection[str]) -> Scenario:
    """A scenario whose widths and slots are numbers, see `sim.sizing`.

    Slots that belong to a scenario become more where the caller has set other traffic. Numbers that
    cannot hold what is offered are refused, but in superseded scenarios as they are.

    Args:
        spec: scenario with a clock.
        given: fields that the caller has set, `load` and `flows` among them.

    Raises:
        ValueError: too few slots or too small a width (with the number needed), slots that are
            neither a number nor `auto`, or no number can be found.
    """
    tick_us = float(spec.dt_us) * spec.tick_steps
    own = [phase.traffic for phase in spec.phases if phase.traffic]
    for phase in spec.phases:
        if phase.traffic and len(phase.traffic) != len(spec.traffic):
            allowed = f"{len(spec.traffic)} sources, as many as the scenario has"
            raise bad_value(f"traffic of phase {phase.name}", phase.traffic, allowed)
    if not (spec.superseded and not set(given) & {*TRAFFIC, "slots"}):
        for sources in (spec.traffic, *own):
            for source in sources:
                _check_width(source, spec, tick_us)
    traffic, others = sizing.with_widths(spec.traffic, spec.topology, tick_us, own)
    replaced = iter(others)
    phases = tuple(replace(p, traffic=next(replaced)) if p.traffic else p for p in spec.phases)
    spec = replace(spec, traffic=traffic, phases=phases)
    return replace(spec, slots=_slots(spec, [traffic, *others], given, tick_us))


def _check_width(source: Any, spec: Scenario, tick_us: float) -> None:
    """Refuse a width that is less than what arrives in a tick on average."""
    width, demand = getattr(source, "width", "auto"), _demand(source, spec, tick_us)
    if not isinstance(width, int) or demand is None:
        return
    arrivals = demand.per_us * demand.burst * tick_us
    if width < arrivals:
        needed = sizing.width_for(demand, tick_us)
        kind = type(source).__name__
        what = f"auto, or at least {needed}: {arrivals:.3g} flows of this {kind} arrive per tick"
        raise bad_value("width", width, f"{what} of {tick_us:g} us")


def _slots(
    spec: Scenario, alternatives: Sequence[Sequence[Any]], given: Collection[str], tick_us: float
) -> int:
    """Flow slots of a scenario, for the most demanding of its sets of sources."""
    if isinstance(spec.slots, str) and spec.slots != "auto":
        raise bad_value("slots", spec.slots, "an integer >= 1, or auto")
    demands = [[_demand(source, spec, tick_us) for source in row] for row in alternatives]
    known = [[d for d in row if d is not None] for row in demands]
    unknown = [
        type(source).__name__
        for row, found in zip(alternatives, demands, strict=True)
        for source, demand in zip(row, found, strict=True)
        if demand is None
    ]
    if spec.slots == "auto":
        if unknown:
            raise bad_value("slots", "auto", f"a number: {unknown[0]} has no demand()")
        return max(sizing.slots_for(row, spec.topology, tick_us) for row in known)
    slots, changed = int(spec.slots), bool(set(given) & set(TRAFFIC))
    if changed and "slots" not in given:
        if unknown or _overloaded(known, spec):
            return slots
        return max(slots, *(sizing.slots_for(row, spec.topology, tick_us) for row in known))
    if "slots" in given or not spec.superseded:
        least = max(sizing.least_slots(row, spec.topology, tick_us) for row in known)
        if slots < least:
            what = f"auto, or at least {least}: so many flows are in progress on average even if "
            raise bad_value("slots", slots, what + "none ever meets another")
    return slots


def _overloaded(known: Sequence[Sequence[sizing.Demand]], spec: Scenario) -> bool:
    """Whether no number of slots is enough."""
    loads = [sizing.link_loads(row, spec.topology).max(initial=0.0) for row in known]
    return bool(max(loads, default=math.inf) >= sizing.FULL)


def _demand(source: Any, spec: Scenario, tick_us: float) -> sizing.Demand | None:
    return sizing.demand_of(source, spec.topology, tick_us)
