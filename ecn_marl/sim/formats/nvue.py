"""Commands of NVUE, which set congestion control on switches with Cumulus Linux.

`nv set qos congestion-control PROFILE traffic-class N …`: thresholds in bytes, the probability in
percent. Changes are in force after `nv config apply`, all at once.
"""

from __future__ import annotations

from ecn_marl.sim.formats.wred import MAX, MIN, PERCENT, WredProfile, changes

FIELDS = {MIN: "min-threshold", MAX: "max-threshold", PERCENT: "probability"}

APPLY = "nv config apply -y"


def added(name: str, queue: int, profile: WredProfile) -> list[str]:
    """The commands that make a profile of a traffic class, or replace it."""
    start = _class(name, queue)
    numbers = [f"{start} {FIELDS[key]} {getattr(profile, key)}" for key in (MAX, MIN, PERCENT)]
    return [f"{start} ecn enable", *numbers]


def changed(name: str, queue: int, before: WredProfile, after: WredProfile) -> list[str]:
    """The commands that change a profile; in this order Kmin never exceeds Kmax."""
    return [f"{_class(name, queue)} {FIELDS[key]} {value}" for key, value in changes(before, after)]


def bound(port: str, name: str) -> str:
    """The command that gives a port a profile."""
    return f"nv set interface {port} qos congestion-control profile {name}"


def _class(name: str, queue: int) -> str:
    return f"nv set qos congestion-control {name} traffic-class {queue}"
