"""Traffic: the types that all sources of flows share.

A source offers, once per tick, its next `width` flows in order of their start. The simulator takes
as many as it has room for; those not taken are offered again, so nothing is lost and a flow's start
time (from which its FCT counts) never moves. Sources of an open loop:

* `poisson.Poisson`: arrivals at a load with sizes from a measured table;
* `incast.Incast`: bursts of N senders to one receiver, N changing from burst to burst;
* `schedules.Schedule`: a fixed list of flows, e.g. from a CSV file.

The first two draw flows without end from a counter, in fixed memory. For sources whose flows follow
from earlier ones see `tickets`. `init` gets a key of the source's own, and the `episode`'s
seed, which all sources share.
"""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from ecn_marl._checks import Real, Whole
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.traffic.sizes import wire_chunks

LOAD = Real(above=0.0, high=1.5)
"""Allowed loads, as a share of a line rate: above 1 flows pile up."""

PAYLOAD_KB = Real(above=0.0, high=1e9, unit="KB")
"""Allowed payloads of a flow: up to a terabyte."""

WIDTH = Whole(low=1, high=2**20, words=("auto",))
"""Allowed numbers of flows offered per tick."""


@struct.dataclass
class Offer:
    """The next flows of a source, in order of their start; every leaf `[M]`.

    Attributes:
        start: time from now until the flow starts, µs; negative if it is overdue.
        src: source host.
        dst: destination host.
        payload: bytes to deliver.
        wire_high: wire bytes, whole units of `CHUNK`.
        wire_low: wire bytes beyond those.
        path: which equal-cost path to take, -1 to choose by hash.
        path_back: the same for ACKs.
        flow_id: number of the flow within its source, -1 where flows are anonymous.
        valid: whether there is such a flow.
        ticket: number by which the source learns that it has finished, see `tickets`; None
            without such.
    """

    start: Leaf
    src: Leaf
    dst: Leaf
    payload: Leaf
    wire_high: Leaf
    wire_low: Leaf
    path: Leaf
    path_back: Leaf
    flow_id: Leaf
    valid: Leaf
    ticket: Leaf = None


@runtime_checkable
class Source(Protocol):
    """Where flows come from: a frozen dataclass, its parameters and its state.

    A source may also have `demand(nic_rate, tick_us)`, a `sizing.Demand` from which the number of
    flow slots follows (without it a scenario has to set `slots`); a field `load`, which
    `make(load=...)` sets; `n_tickets` and `finished`, see `sim.traffic.tickets`; and
    `check_network(hosts)` and `check_params(params, topology)`, which raise a ValueError for hosts
    or paths that a network does not have.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def default_params(self) -> PyTree:
        """Parameters: a pytree of arrays, traced."""

    def init(self, key: Array, params: PyTree, nic_rate: Array, episode: Array) -> PyTree:
        """State at the start of an episode; `nic_rate`: bytes/µs, `[H]`; `episode`: its seed."""

    def offer(self, state: PyTree, params: PyTree, nic_rate: Array) -> Offer:
        """The next flows in order of their start, always as many; see `Offer`."""

    def advance(
        self, state: PyTree, params: PyTree, nic_rate: Array, taken: Array, elapsed: float
    ) -> PyTree:
        """State after the first `taken` flows of the offer have begun and `elapsed` µs passed."""


@runtime_checkable
class SizedSource(Source, Protocol):
    """A source that offers `width` flows per tick; `auto` until a simulator makes it a number."""

    @property
    def width(self) -> int | str:
        """Flows offered per tick."""


def anonymous_offer(start: Array, src: Array, dst: Array, payload: Array, valid: Array) -> Offer:
    """An offer of hashed, unnumbered flows."""
    high, low = wire_chunks(payload)
    minus = jnp.full(src.shape, -1, jnp.int32)
    return Offer(
        start=start,
        src=src.astype(jnp.int32),
        dst=dst.astype(jnp.int32),
        payload=payload,
        wire_high=high,
        wire_low=low,
        path=minus,
        path_back=minus,
        flow_id=minus,
        valid=valid,
    )


def program_of(source: Source) -> Source:
    """The part of a source that is compiled: it has no numbers that are traced parameters.

    Sources with a method `program()` return themselves with these numbers set to fixed ones. Two
    that differ only in such numbers, e.g. the load, then share compiled code.
    """
    program = getattr(source, "program", None)
    return source if program is None else program()


def fixed_width(source: SizedSource) -> int:
    """The width of a source as a number.

    Raises:
        ValueError: it is `auto`, which a simulator turns into a number.
    """
    if not isinstance(source.width, int):
        raise bad_value("width", source.width, "a number outside of a simulator")
    return source.width
