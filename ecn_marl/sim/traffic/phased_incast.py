"""Bursts whose senders, sizes and load change with the phases of a timeline; a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, PyTree

from ecn_marl._checks import Each, Kind, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.base import WIDTH, Offer
from ecn_marl.sim.traffic.incast import Incast, IncastParams, IncastState
from ecn_marl.sim.traffic.jobs import Clock, Timeline, TimelineParams
from ecn_marl.sim.traffic.sizing import Demand

SHARED = ("receiver", "jitter_us", "min_gap_us", "width", "server")
"""Fields of `Incast` that are the same in all phases."""


@struct.dataclass
class PhasedIncastParams:
    """Traced parameters of `PhasedIncast`: the timeline's, and those of bursts, `[phases]` each."""

    timeline: TimelineParams
    bursts: IncastParams


@struct.dataclass
class PhasedIncastState:
    """State of `PhasedIncast`.

    Attributes:
        burst: state of the bursts.
        number: number of the phase that the next flows belong to, counted from the start.
        left: µs until that phase ends; negative if flows of it still wait for slots.
        clock: the timeline.
    """

    burst: IncastState
    number: Leaf
    left: Leaf
    clock: Clock


@dataclass(frozen=True)
class PhasedIncast:
    """Bursts as of `Incast`, of another kind in every phase.

    A phase begins with a burst, at its first tick; else one that a phase of low load has drawn
    would delay the traffic of a busy one. Bursts that were due before it began come first, whole.

    Attributes:
        timeline: the phases.
        phases: the bursts of every phase; they differ in `load`, `n_min`, `n_max` and `flow_kb`.
        width: flows offered per tick; `auto` for the largest `n_max`.
    """

    timeline: Timeline
    phases: Annotated[tuple[Incast, ...], Each(Kind((Incast,), "an Incast"), least=1)]
    width: Annotated[int | str, WIDTH] = "auto"

    def __post_init__(self) -> None:
        """Check that there is a kind of bursts for each phase, and what they share."""
        check(self)
        n = self.timeline.n_phases
        if len(self.phases) != n:
            raise bad_value("phases", self.phases, f"bursts for each of {n} phases")
        for name in SHARED:
            values = [getattr(phase, name) for phase in self.phases]
            if len(set(values)) > 1:
                raise bad_value(f"{name} of phases", values, "the same in all phases")

    @property
    def _kind(self) -> Incast:
        """What all phases share; the rest are parameters."""
        return replace(self.phases[0], width=self.width)

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError if the receiver is none of the hosts."""
        self._kind.check_network(hosts)

    def check_params(self, params: PhasedIncastParams, topology: Topology) -> None:
        """Refuse a `min_gap_us` with which the bursts of a phase could not make its load."""
        self._kind.check_params(params.bursts, topology)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """That of the phase with most flows, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        demands = [phase.demand(nic_rate, tick_us) for phase in self.phases]
        busiest = max(demands, key=lambda d: d.per_us * d.burst)
        return busiest._replace(most=max(phase.n_max for phase in self.phases))

    def default_params(self) -> PhasedIncastParams:
        """Traced parameters for the fields above."""
        rows = [phase.default_params() for phase in self.phases]
        return PhasedIncastParams(
            self.timeline.default_params(), jax.tree.map(lambda *x: np.stack(x), *rows)
        )

    def _during(self, params: PhasedIncastParams, number: Int[Array, ""]) -> IncastParams:
        """Parameters of the bursts in the phase of this number."""
        row = number % self.timeline.n_phases
        found: IncastParams = jax.tree.map(lambda x: jnp.asarray(x)[row], params.bursts)
        return found

    def init(
        self, key: jax.Array, params: PhasedIncastParams, nic_rate: Array, episode: Array
    ) -> PhasedIncastState:
        """A fresh process; `key` seeds it, `episode` its timeline. A burst starts at once."""
        first = jnp.zeros((), jnp.int32)
        burst = self._kind.init(key, self._during(params, first), nic_rate)
        clock = self.timeline.start(params.timeline, episode)
        return PhasedIncastState(burst, first, clock.length, clock)

    def offer(self, state: PhasedIncastState, params: PyTree, nic_rate: Array) -> Offer:
        """The rest of the current burst, at most `width` flows."""
        return self._kind.offer(state.burst, self._during(params, state.number), nic_rate)

    def advance(
        self,
        state: PhasedIncastState,
        params: PhasedIncastParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> PhasedIncastState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        during = self._during(params, state.number)
        burst = self._kind.advance(state.burst, during, nic_rate, taken, elapsed)
        clock = self.timeline.advance(params.timeline, state.clock, elapsed)
        left = state.left - elapsed
        changes = (left <= 0.0) & (burst.taken == 0) & (burst.start >= left)
        # A start before now is that of a flow which waited; a phase begins between two ticks.
        begins = jnp.where(left > -elapsed, 0.0, left)
        number = state.number + changes
        length = self.timeline.length(params.timeline, clock.seed, number)
        return PhasedIncastState(
            replace(burst, start=jnp.where(changes, begins, burst.start)),
            number,
            left + jnp.where(changes, length, 0.0),
            clock,
        )
