"""Flows that begin when others have finished: sources learn when their own flows end.

Most sources are open loop. One whose flows follow from earlier ones has `n_tickets`, the number of
flows whose end it may wait for at once, and a method `finished`:

* its offers carry a `ticket` per flow, 0 to `n_tickets - 1`; no two flows in progress share one;
* at the end of every tick `finished` says which tickets' flows have finished in it, and how long
  ago their last ACK arrived at the sender. It is called once before the first tick, too, with none.

Flows are admitted once per tick. So the next flow begins exactly when it should if that is at or
after the end of the tick in which the earlier one finished, and at that end otherwise: a dependency
costs up to one tick. A flow whose start is not known yet is not "waiting", and one that
only waited for the tick is not `deferred`.

Such sources keep the flows that are to begin in a `Pending`, a table of fixed size. Flows leave it
in the order of the ticks in which they were due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from types import ModuleType
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree

from ecn_marl._checks import Real, check_value
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.core.lifecycle import DONE
from ecn_marl.sim.core.slots import segment_sum
from ecn_marl.sim.state import Flows
from ecn_marl.sim.traffic.base import Offer, Source

LONGEST_US = 1e6
"""Longest delay between flows, µs: float32 counts it down without loss."""

TIME_UNIT = 1024.0
"""µs per unit of the high part of a sum of times."""


@struct.dataclass
class Finished:
    """The flows of a source that have finished in a tick, every leaf `[n_tickets]`.

    Attributes:
        done: whether the flow of this ticket has.
        ago: how long before the end of the tick its last ACK arrived, µs; 0 for others.
    """

    done: Leaf
    ago: Leaf


@runtime_checkable
class TicketedSource(Source, Protocol):
    """A source that is told which of its flows have finished."""

    @property
    def n_tickets(self) -> int:
        """Number of its tickets."""

    def finished(
        self, state: PyTree, params: PyTree, nic_rate: Array, ends: Finished, elapsed: float
    ) -> PyTree:
        """State after the flows with the tickets in `ends` finished, within `elapsed` µs."""


def tickets_of(source: Source) -> int:
    """Number of tickets of a source, 0 of an open-loop one."""
    return int(getattr(source, "n_tickets", 0))


def ticket_bounds(traffic: Sequence[Source]) -> tuple[int, ...]:
    """First ticket of each source among those of the simulator, and one past the last."""
    return tuple(accumulate((tickets_of(s) for s in traffic), initial=0))


def with_tickets(offers: Sequence[Offer], bounds: Sequence[int]) -> list[Offer]:
    """Offers whose tickets are those of the simulator, -1 for flows without one.

    Args:
        offers: one of each source.
        bounds: see `ticket_bounds`.
    """
    if not bounds[-1]:
        return list(offers)
    unset = [jnp.full_like(o.flow_id, -1) for o in offers]
    numbers = [n if o.ticket is None else o.ticket for o, n in zip(offers, unset, strict=True)]
    return [
        replace(o, ticket=jnp.where(t >= 0, t + first, t))
        for o, t, first in zip(offers, numbers, bounds[:-1], strict=True)
    ]


def finished(flows: Flows, before: Flows, n: int) -> Finished:
    """Tickets of the simulator whose flows have finished in a tick.

    Args:
        flows: slots after `lifecycle.finish`, those of finished flows not yet released.
        before: slots before it.
        n: number of tickets.
    """
    ended = (flows.stage == DONE) & (before.stage != DONE)
    number = jnp.where(ended & (flows.ticket >= 0), flows.ticket, n)
    ago = jnp.where(ended, -flows.tail, 0.0)
    # Flags are summed as reals, so that one scatter of pairs does for both.
    sums = segment_sum(jnp.stack([ended.astype(ago.dtype), ago], -1), number, n)
    return Finished(sums[:, 0] > 0.5, jnp.maximum(sums[:, 1], 0.0))


def report_finished(
    traffic: Sequence[Source],
    states: Sequence[PyTree],
    params: Sequence[PyTree],
    nic_rate: Array,
    ends: Finished | None,
    tick_us: float,
) -> tuple[PyTree, ...]:
    """States of all sources, after those with tickets learnt which flows have finished.

    Args:
        traffic: sources.
        states: their states.
        params: their parameters.
        nic_rate: bytes/µs, `[H]`.
        ends: finished flows by the tickets of the simulator; None for none of them.
        tick_us: length of a tick, µs.
    """
    bounds, updated = ticket_bounds(traffic), []
    for i, (source, state, p) in enumerate(zip(traffic, states, params, strict=True)):
        n, span = tickets_of(source), slice(bounds[i], bounds[i + 1])
        if n:
            assert isinstance(source, TicketedSource)
            none = Finished(jnp.zeros((n,), bool), jnp.zeros((n,), nic_rate.dtype))
            own = none if ends is None else Finished(ends.done[span], ends.ago[span])
            state = source.finished(state, p, nic_rate, own, tick_us)
        updated.append(state)
    return tuple(updated)


@struct.dataclass
class Pending:
    """Flows that are to begin, by ticket; every leaf `[n]`.

    Attributes:
        start: µs from now until the flow begins, negative if it is overdue; `inf` for tickets whose
            next start is not known, or whose flow is in progress.
        place: place in the line of those that begin within the tick or are overdue, from 0 on; -1
            for all others.
    """

    start: Leaf
    place: Leaf

    @staticmethod
    def of(start: Float[Array, " n"]) -> Pending:
        """Flows that begin at these times, none of them in the line yet."""
        return Pending(start, jnp.full(start.shape, -1, jnp.int32))

    def lined_up(self, tick_us: float) -> Pending:
        """With those that begin within the coming tick at the end of the line."""
        new = (self.place < 0) & (self.start < tick_us)
        behind = (self.place >= 0).sum() + jnp.cumsum(new) - 1
        return replace(self, place=jnp.where(new, behind, self.place).astype(jnp.int32))

    def front(self, width: int) -> tuple[Int[Array, " width"], Bool[Array, " width"]]:
        """Tickets of the first `width` flows in the line, and which of them exist."""
        n = self.place.shape[0]
        row = jnp.where((self.place >= 0) & (self.place < width), self.place, width)
        numbers = jnp.arange(n, dtype=jnp.int32)
        index = jnp.zeros((width,), jnp.int32).at[row].set(numbers, mode="drop")
        return index, jnp.arange(width) < (self.place >= 0).sum()

    def advanced(self, taken: Int[Array, ""], elapsed: float) -> Pending:
        """Without the first `taken` flows of the line, `elapsed` µs later."""
        leaving = (self.place >= 0) & (self.place < taken)
        place = jnp.where(self.place >= 0, self.place - taken, -1)
        return Pending(
            start=jnp.where(leaving, jnp.inf, self.start - elapsed),
            place=jnp.where(leaving, -1, place).astype(jnp.int32),
        )


def as_reals(xp: ModuleType, *values: PyTree) -> tuple[PyTree, ...]:
    """Arrays of reals: float64 of `numpy`, the default float of `jax.numpy`."""
    real = np.float64 if xp is np else jnp.result_type(float)
    return tuple(xp.asarray(value, real) for value in values)


def check_delay(field: str, value: float, longest: float = LONGEST_US) -> None:
    """Refuse a value that is no time from 0 to `longest` µs.

    Raises:
        ValueError: a time outside of that, or no number.
    """
    check_value(field, value, Real(low=0.0, high=longest, unit="µs"))


def check_hosts(field: str, hosts: Sequence[int], n_hosts: int) -> None:
    """Refuse hosts that a network does not have.

    Raises:
        ValueError: there is one.
    """
    beyond = [h for h in hosts if h >= n_hosts]
    if beyond:
        raise bad_value(field, beyond[0], f"hosts of the network, 0 to {n_hosts - 1}")
