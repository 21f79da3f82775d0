"""Traffic sources by name, so that a command line or a file can choose the traffic.

    Scenario(star(8), traffic=("poisson:load=0.4,table=my.csv", "incast:n_max=8"))
    --env 'traffic=[{"source": "closed-loop", "clients": [0, 1], "servers": [2, 3]}]'

A source is the name of its class and values of its fields: a text `NAME[:FIELD=VALUE,...]`, or a
dict with the name as `source`, for values that are lists.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._registry import Registry, missing_members
from ecn_marl.sim.traffic.base import Source
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.loops import ClosedLoop
from ecn_marl.sim.traffic.poisson import Poisson

MEMBERS = ("default_params", "init", "offer", "advance")


def _as_builder(name: str, build: object) -> Callable[..., Source]:
    """A class of sources, or a function that makes one."""
    lacking = missing_members(build, MEMBERS) if isinstance(build, type) else ()
    if lacking or not callable(build):
        missing = f"; it lacks {', '.join(lacking)}" if lacking else ""
        raise bad_value(f"source {name}", build, f"a class with the members of `Source`{missing}")
    builder: Callable[..., Source] = build
    return builder


SOURCES: Registry[Callable[..., Source]] = Registry(
    "traffic source",
    {"poisson": Poisson, "incast": Incast, "closed-loop": ClosedLoop},
    _as_builder,
)
"""Classes of traffic sources by name; those whose fields are numbers, words and lists of them."""


def register_source(name: str, source: Callable[..., Source], replace: bool = False) -> None:
    """Register a kind of traffic source, to be named in `Scenario.traffic`.

    Args:
        name: e.g. `bursts`.
        source: a frozen dataclass with the members of `Source`, or a function that makes one; its
            arguments are the fields that a text or dict may set.
        replace: whether to replace what is registered under this name.

    Raises:
        ValueError: the name is no name or taken, or a member of `Source` is missing.
    """
    SOURCES.register(name, source, replace)


def as_sources(traffic: object) -> Any:
    """Traffic of a `Scenario`: texts and dicts become sources, a single one a tuple of one.

    Raises:
        ValueError: an unknown source or field, or a value that is not allowed.
    """
    if isinstance(traffic, str | Mapping) or hasattr(traffic, "offer"):
        traffic = (traffic,)
    if not isinstance(traffic, tuple | list):
        return traffic
    return tuple(as_source(x) if isinstance(x, str | Mapping) else x for x in traffic)


def as_source(source: str | Mapping[str, Any]) -> Source:
    """A source from its text or dict.

    Args:
        source: `NAME[:FIELD=VALUE,...]`, or `{"source": NAME, FIELD: VALUE, ...}`.

    Raises:
        ValueError: an unknown source or field, or a value that is not allowed.
    """
    if isinstance(source, str):
        name, _, listed = source.partition(":")
        values = dict(_pair(text) for text in listed.split(",")) if listed else {}
    else:
        values = dict(source)
        name = values.pop("source", None)
        if not isinstance(name, str):
            raise bad_value("traffic", dict(source), 'a dict with a name as "source"')
    build = SOURCES[name]
    names = [x.name for x in inspect.signature(build).parameters.values()]
    for field in values:
        if field not in names:
            raise unknown_name(f"field of {name}", field, names)
    try:
        built = build(**{field: _tuples(value) for field, value in values.items()})
    except TypeError as error:  # a field has no default and no value
        raise bad_value("traffic", source, f"all fields that {name} needs ({error})") from None
    lacking = missing_members(built, MEMBERS)
    if lacking:
        raise bad_value(f"source {name}", built, f"a `Source`; it lacks {', '.join(lacking)}")
    return built


def _pair(text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise bad_value("traffic", text, "NAME[:FIELD=VALUE,...]")
    try:
        return field, json.loads(value)
    except json.JSONDecodeError:
        return field, value


def _tuples(value: object) -> Any:
    """Lists as tuples, which can be hashed."""
    return tuple(_tuples(x) for x in value) if isinstance(value, list | tuple) else value
