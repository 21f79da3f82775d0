"""The interface of all senders, named presets, overridden constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ecn_marl._checks import Real, check_value, rules_of
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports.names import ALIASES, RATES, LinkRate, canonical

Overrides = tuple[tuple[str, float], ...]
"""Constants that differ from a preset, as sorted pairs (so that senders stay hashable)."""


GBPS_RULE = Real(above=0.0, high=1e5, unit="Gb/s")
"""Allowed rates of NICs that constants are scaled to."""


class Bound(NamedTuple):
    """The longest substep that senders tolerate, µs, and what bounds it."""

    dt_us: float
    why: str


@runtime_checkable
class Transport(Protocol):
    """Senders under one congestion control: a frozen dataclass and a state with a leaf per flow.

    `needs` names the signals of `feedback` that `update` reads.

    Senders may also have `notify(state, params, marked, dt)`, the receivers' side of single marks
    (signal `cnp`): given the flows of which a marked packet arrives in a substep, `[F]`, it returns
    the state and the flows for which a CNP leaves. Without it every mark leaves as a CNP.
    """

    @property
    def kind(self) -> str:
        """Congestion control, as in `KIND:PRESET`."""

    @property
    def name(self) -> str:
        """Preset."""

    @property
    def header(self) -> float:
        """Bytes that every packet carries beyond the usual header, a whole number up to 1000."""

    @property
    def latched(self) -> bool:
        """Whether a new rate waits for the packet under way, see `nic.send`."""

    @property
    def needs(self) -> frozenset[str]:
        """Signals that `update` reads."""

    def default_params(self) -> PyTree:
        """Constants: a pytree of scalars, traced."""

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> PyTree:
        """State of `slots` idle flows.

        Arrays whose last axis has the length F are one column per slot, and those of free slots
        stay as they are until `start`.
        """

    def start(
        self,
        state: PyTree,
        params: PyTree,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> PyTree:
        """Start flows in the slots `new`.

        Args:
            state: senders.
            params: constants.
            new: slots that get a new flow, `[F]`.
            line: rate of their NICs, bytes/µs, `[F]`.
            base_rtt: longest round-trip time of the network without queues, µs.
        """

    def rate(self, state: PyTree) -> Float[Array, " flows"]:
        """Rate that each sender allows, bytes/µs, `[F]`."""

    def window(self, state: PyTree) -> Float[Array, " flows"] | None:
        """Payload bytes each flow may have on the way, `[F]`; None if it has no window."""

    def update(self, state: PyTree, params: PyTree, heard: Feedback, dt: float) -> PyTree:
        """Advance all senders by one substep of `dt` µs, with the feedback that reaches them."""


@runtime_checkable
class Constants(Protocol):
    """A dataclass with the constants of senders."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


C = TypeVar("C", bound=Constants)


def with_overrides(
    kind: str, presets: Mapping[str, C], name: str, overrides: Mapping[str, float]
) -> C:
    """Constants of a named preset, some of them replaced; their class declares their ranges.

    Args:
        kind: congestion control, for messages.
        presets: constants by name.
        name: preset; its second name is accepted, too, see `names`.
        overrides: fields and their values, in the units of the constants; and `gbps`, the rate of
            the NICs that constants are scaled to, see `names`. Fields that are given are not
            scaled.

    Raises:
        ValueError: unknown preset or field, a value out of range, or `gbps` for a preset whose
            constants its source does not scale.
    """
    name = canonical(kind.lower(), name)
    if name not in presets:
        raise unknown_name(f"{kind} preset", name, [*presets, *ALIASES.get(kind.lower(), {})])
    fields, rules = type(presets[name]).__dataclass_fields__, rules_of(type(presets[name]))
    values = dict(overrides)
    scaled = _scaled(kind, presets, name, values.pop("gbps")) if "gbps" in values else {}
    for field, value in values.items():
        if field not in fields:
            raise unknown_name(f"{kind} constant", field, fields)
        check_value(field, value, rules[field])
    return replace(presets[name], **scaled | values)


def _scaled(kind: str, presets: Mapping[str, C], name: str, gbps: float) -> dict[str, float]:
    """The constants of a preset that its source scales, for NICs of `gbps`."""
    rate = RATES.get(f"{kind.lower()}:{name}", LinkRate(None))
    if rate.gbps is None or not rate.scaled:
        known = [x for x in presets if RATES.get(f"{kind.lower()}:{x}", LinkRate(None)).scaled]
        allowed = f"no such option of {name}, whose source does not scale constants with the rate"
        allowed += f"; of {kind}, {' and '.join(known)} have it" if known else ""
        raise bad_value("gbps", gbps, allowed)
    check_value("gbps", gbps, GBPS_RULE)
    return {field: getattr(presets[name], field) * gbps / rate.gbps for field in rate.scaled}


def limiting(
    window: Float[Array, " flows"], line: Float[Array, " flows"], heard: Feedback
) -> Bool[Array, " flows"]:
    """Whether windows (bytes) limit their senders more than their NICs do.

    Only such windows may grow (RFC 7661): else the window of a flow alone on its path would
    grow without bound, and flood the queue when it meets another flow.
    """
    assert heard.rtt is not None and heard.base_rtt is not None
    # `rtt` is 0 until the first probe is back.
    return window < line * jnp.maximum(heard.rtt, heard.base_rtt)


def put_new(new: Bool[Array, " flows"], value: Array | float, old: Array) -> Array:
    """`value` in the slots `new`, `old` elsewhere, in the type of `old`."""
    # Constants may be of another type than the state, which a loop's carry has to keep.
    return jnp.where(new, value, old).astype(old.dtype)


def with_window(transport: Transport) -> Transport:
    """Senders with at most about a bandwidth-delay product on the way (IRN's BDP-FC).

    DCQCN gets its window; senders that have one of their own keep it.

    Raises:
        ValueError: senders without a window.
    """
    senders: Any = transport
    if hasattr(senders, "windowed"):
        windowed: Transport = replace(senders, windowed=True)
        return windowed
    if hasattr(senders, "members"):
        mixed: Transport = replace(senders, members=tuple(map(with_window, senders.members)))
        return mixed
    # Shapes alone: nothing is computed to find out whether there is a window.
    if jax.eval_shape(lambda: transport.window(transport.init(1))) is None:
        allowed = f"selective or go-back-n: {transport.kind}:{transport.name} has no window"
        raise bad_value("loss_recovery", "irn", allowed)
    return transport
