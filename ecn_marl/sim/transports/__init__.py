"""Senders: one file per congestion control, all behind `base.Transport`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

from ecn_marl._checks import Real, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry, missing_members
from ecn_marl.sim.transports import dcqcn as _dcqcn
from ecn_marl.sim.transports import dctcp as _dctcp
from ecn_marl.sim.transports import hpcc as _hpcc
from ecn_marl.sim.transports import rate_agent as _rate_agent
from ecn_marl.sim.transports import reno as _reno
from ecn_marl.sim.transports import swift as _swift
from ecn_marl.sim.transports import timely as _timely
from ecn_marl.sim.transports.base import Transport, with_window
from ecn_marl.sim.transports.dcqcn import Dcqcn, DcqcnParams, DcqcnState, preset
from ecn_marl.sim.transports.dcqcn_fluid import DcqcnFluid
from ecn_marl.sim.transports.dctcp import Dctcp
from ecn_marl.sim.transports.hpcc import Hpcc
from ecn_marl.sim.transports.mixed import Mixed
from ecn_marl.sim.transports.rate_agent import RateAgent
from ecn_marl.sim.transports.reno import Reno
from ecn_marl.sim.transports.swift import Swift
from ecn_marl.sim.transports.timely import Timely

TRANSPORT = (
    *("kind", "name", "header", "latched", "needs"),
    *("default_params", "init", "start", "rate", "window", "update"),
)
"""Members of `Transport`."""

__all__ = [
    "Dcqcn",
    "DcqcnFluid",
    "DcqcnParams",
    "DcqcnState",
    "Dctcp",
    "Hpcc",
    "Mixed",
    "RateAgent",
    "Reno",
    "Swift",
    "Timely",
    "Transport",
    "as_transport",
    "parse_transport",
    "preset",
    "register_transport",
    "transports",
    "with_window",
]


class Senders(NamedTuple):
    """Senders of one congestion control.

    Attributes:
        build: `(preset, **options) -> Transport`.
        presets: presets by name.
    """

    build: Callable[..., Transport]
    presets: Mapping[str, object]


def _as_senders(kind: str, senders: object) -> Senders:
    """Senders that are objects: a preset each."""
    presets: Mapping[str, Any] = (
        senders if isinstance(senders, Mapping) else {getattr(senders, "name", ""): senders}
    )
    for name, member in presets.items():
        lacking = missing_members(member, TRANSPORT)
        if isinstance(member, type) or lacking or not isinstance(name, str) or not name:
            missing = f"; it lacks {', '.join(lacking)}" if lacking else ""
            allowed = (
                f"an object with the members of `Transport`, or a dict of such by preset{missing}"
            )
            raise bad_value(f"transport {kind}", member, allowed)
        if member.header not in range(1001):
            allowed = "a whole number of bytes from 0 to 1000"
            raise bad_value(f"header of transport {kind}:{name}", member.header, allowed)
        try:
            # Simulators are keys of compiled programs, and hold their senders.
            hash(member)
        except TypeError as error:
            allowed = f"a frozen dataclass, for senders are static ({error})"
            raise bad_value(f"transport {kind}:{name}", member, allowed) from None
    return Senders(_Registered(kind, dict(presets)), dict(presets))


@dataclass(frozen=True, eq=True)
class _Registered:
    """Builds registered senders; options are fields of their dataclass."""

    kind: str
    presets: dict[str, Transport]

    def __call__(self, name: str, **options: float) -> Transport:
        if name not in self.presets:
            raise unknown_name(f"{self.kind} preset", name, self.presets)
        template: Any = self.presets[name]
        names = [f.name for f in fields(template) if f.init] if is_dataclass(template) else []
        for option in options:
            if option not in names:
                raise unknown_name(f"{self.kind} constant", option, names)
        senders: Transport = replace(template, **options) if options else template
        return senders


TRANSPORTS = Registry(
    "transport",
    {
        "dcqcn": Senders(Dcqcn.of, _dcqcn.PRESETS),
        "dctcp": Senders(Dctcp.of, _dctcp.PRESETS),
        "timely": Senders(Timely.of, _timely.PRESETS),
        "hpcc": Senders(Hpcc.of, _hpcc.PRESETS),
        "swift": Senders(Swift.of, _swift.PRESETS),
        "reno": Senders(Reno.of, _reno.PRESETS),
        "rate-agent": Senders(RateAgent.of, _rate_agent.PRESETS),
    },
    _as_senders,
)
"""Congestion controls by name."""


def register_transport(
    kind: str, senders: Transport | Mapping[str, Transport], replace: bool = False
) -> None:
    """Register senders, to be named `KIND:PRESET[,OPTION=VALUE...]` wherever senders are.

    Args:
        kind: e.g. `aimd`.
        senders: an object with the members of `Transport`, a frozen dataclass, whose `name` is its
            preset; or several such by preset. Options are fields of the dataclass.
        replace: whether to replace what is registered under this name.

    Raises:
        ValueError: the name is no name or taken, or a member of `Transport` is missing.
    """
    TRANSPORTS.register(kind, senders, replace)


def transports() -> tuple[str, ...]:
    """Short forms `KIND:PRESET` of all senders."""
    return tuple(f"{kind}:{name}" for kind in TRANSPORTS for name in TRANSPORTS[kind].presets)


def parse_transport(text: str) -> Transport:
    """Build senders from their short form `KIND:PRESET[,OPTION=VALUE...]`.

    Options are the constants of the congestion control, in its units (µs, bytes, bytes/µs), e.g.
    `dcqcn:hpcc-run,ai=2.5`; `gbps`, the rate of the NICs, for presets whose source scales constants
    with it, e.g. `dcqcn:hpcc-run,gbps=100` (`names.RATES` says which, and for which rate the
    constants are otherwise); for `dcqcn` also `windowed=1` (a sender window) and
    `source=mean_field` (the fluid model instead of `source=timers`). Some presets have a second
    name, e.g. `dcqcn:ns3-4us`, see `names`.

    Raises:
        ValueError: unknown transport, preset or option, or a value out of range.
    """
    kind, _, settings = text.partition(":")
    build, presets = TRANSPORTS[kind]
    name, *pairs = settings.split(",")
    if not name:
        raise bad_value("transport", text, f"{kind}:PRESET, e.g. {kind}:{next(iter(presets))}")
    options: dict[str, float] = {}
    for pair in pairs:
        field, _, value = pair.partition("=")
        if kind == "dcqcn" and field == "source":
            build = _source(value)
            continue
        try:
            options[field] = float(value)
        except ValueError:
            raise bad_value("transport option", pair, "NAME=NUMBER") from None
    if build == Dcqcn.of and "windowed" in options:
        check_value("windowed", options["windowed"], Real(low=0, high=1))
        options["windowed"] = bool(options["windowed"])
    return build(name, **options)


def as_transport(senders: str | Transport) -> Transport:
    """Senders as they are, or built from their short form.

    Raises:
        ValueError: see `parse_transport`, or an object that is no `Transport`.
    """
    if isinstance(senders, str):
        return parse_transport(senders)
    if not isinstance(senders, Transport):
        raise bad_value("transport", senders, "KIND:PRESET, or an object with its methods")
    return senders


def _source(name: str) -> Callable[..., Transport]:
    """Which model of DCQCN sources."""
    sources: dict[str, Callable[..., Transport]] = {"timers": Dcqcn.of, "mean_field": DcqcnFluid.of}
    if name not in sources:
        raise unknown_name("DCQCN source", name, sources)
    return sources[name]
