"""Senders: one file per congestion control, all behind `base.Transport`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ecn_marl._checks import Real, check_value
from ecn_marl._errors import bad_value, unknown_name
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
    "transports",
    "with_window",
]

_KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "dcqcn": (Dcqcn.of, _dcqcn.PRESETS),
    "dctcp": (Dctcp.of, _dctcp.PRESETS),
    "timely": (Timely.of, _timely.PRESETS),
    "hpcc": (Hpcc.of, _hpcc.PRESETS),
    "swift": (Swift.of, _swift.PRESETS),
    "reno": (Reno.of, _reno.PRESETS),
    "rate-agent": (RateAgent.of, _rate_agent.PRESETS),
}


def transports() -> tuple[str, ...]:
    """Short forms `KIND:PRESET` of all senders that ship with the package."""
    return tuple(f"{kind}:{name}" for kind, (_, presets) in _KINDS.items() for name in presets)


def parse_transport(text: str) -> Transport:
    """Build senders from their short form `KIND:PRESET[,OPTION=VALUE...]`.

    Options are the constants of the congestion control, in its units (µs, bytes, bytes/µs), e.g.
    `dcqcn:hpcc-run,ai=2.5`; for `dcqcn` also `windowed=1` (a sender window) and
    `source=mean_field` (the fluid model instead of `source=timers`). Some presets have a second
    name, e.g. `dcqcn:ns3-4us`, see `names`.

    Raises:
        ValueError: unknown transport, preset or option, or a value out of range.
    """
    kind, _, rest = text.partition(":")
    if kind not in _KINDS:
        raise unknown_name("transport", kind, _KINDS)
    build, presets = _KINDS[kind]
    name, *pairs = rest.split(",")
    if not name:
        raise bad_value("transport", text, f"{kind}:PRESET, e.g. {kind}:{next(iter(presets))}")
    options: dict[str, Any] = {}
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
    made: Transport = build(name, **options)
    return made


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


def _source(name: str) -> Callable[..., Any]:
    """Which model of DCQCN sources."""
    sources: dict[str, Callable[..., Any]] = {"timers": Dcqcn.of, "mean_field": DcqcnFluid.of}
    if name not in sources:
        raise unknown_name("DCQCN source", name, sources)
    return sources[name]
