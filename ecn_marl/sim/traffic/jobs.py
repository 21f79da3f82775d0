"""Jobs: traffic that changes with the phases of a timeline.

A `Timeline` is a cycle of phases; their lengths may vary. Two sources follow it, among groups of
hosts:

* `Requests`: Poisson arrivals whose rate depends on the phase, sizes log-uniform or from a table;
* `FlowSets`: at the start of one phase, a set of large flows, sized to fill their links for a share
  of it.

Both draw the phase boundaries from the seed of the episode, so all sources of one timeline agree. A
group that runs `shift` phases behind the others has its own sources with that `shift`. Like every
source, they generate endlessly from a counter, at fixed memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from ecn_marl._checks import INT32, NOT_NEGATIVE, POSITIVE, TEXT, Each, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.random import (
    FlowSetStream,
    RequestStream,
    Stream,
    hash_bits,
    shuffled,
    uniform,
)
from ecn_marl.sim.traffic.base import PAYLOAD_KB, WIDTH, Offer, Source, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.flow_checks import HOST, host_group
from ecn_marl.sim.traffic.sizes import (
    HEADER,
    PAYLOAD,
    SizeTable,
    sample_size,
    size_table,
    wire_size,
)
from ecn_marl.sim.traffic.sizing import Demand, uniform_pairs
from ecn_marl.sim.traffic.tickets import check_hosts

FAR = 1e9
"""Start of a flow that is not due within any tick, µs from now."""

SHORTEST_US = 100.0
"""Shortest phase; at most one boundary falls into a tick."""


HOSTS = Each(HOST, least=1)
SHIFT = Whole(low=-INT32)
"""Phases by which hosts may be behind a timeline."""


@dataclass(frozen=True)
class Timeline:
    """Phases that follow one another in a fixed cycle.

    Attributes:
        lengths_us: mean length of each phase, µs.
        length_jitter: a phase's length is drawn anew each time, uniform within this
            share of its mean, up and down; 0 for fixed lengths.
        names: names of the phases in reports; `phase 0`, `phase 1`, … if empty.
    """

    lengths_us: Annotated[tuple[float, ...], Each(Real(above=0.0, unit="µs"), least=1)]
    length_jitter: Annotated[float, Real(low=0.0, below=1.0)] = 0.0
    names: Annotated[tuple[str, ...], Each(TEXT)] = ()

    def __post_init__(self) -> None:
        """Check lengths, their jitter and names."""
        check(self)
        if self.shortest_us < SHORTEST_US:
            allowed = f"lengths of at least {SHORTEST_US:g} µs, the jitter taken off"
            raise bad_value("lengths_us", self.lengths_us, allowed)
        if self.names and len(self.names) != len(self.lengths_us):
            raise bad_value("names", self.names, f"{len(self.lengths_us)} names, or none")

    @property
    def n_phases(self) -> int:
        """Number of phases of a cycle."""
        return len(self.lengths_us)

    @property
    def shortest_us(self) -> float:
        """Shortest phase that may be drawn, µs."""
        return min(self.lengths_us) * (1.0 - self.length_jitter)

    @property
    def phase_names(self) -> tuple[str, ...]:
        """A name for every phase."""
        return self.names or tuple(f"phase {i}" for i in range(self.n_phases))

    def length(self, params: TimelineParams, seed: Array, index: Int[Array, "*n"]) -> Array:
        """Length of the phases with these numbers, µs, `[*n]`; number k has phase k mod n."""
        mean = jnp.asarray(params.lengths_us)[index % self.n_phases]
        u = uniform(seed, index, Stream.PHASE_LENGTH)
        return mean * (1.0 + params.length_jitter * (2.0 * u - 1.0))

    def default_params(self) -> TimelineParams:
        """Traced parameters for the fields above."""
        return TimelineParams(np.array(self.lengths_us, np.float32), np.float32(self.length_jitter))

    def start(self, params: TimelineParams, episode: Array) -> Clock:
        """The clock at the beginning of an episode, at the start of phase 0."""
        zero = jnp.zeros((), jnp.int32)
        return Clock(episode, zero, jnp.zeros(()), self.length(params, episode, zero))

    def advance(self, params: TimelineParams, clock: Clock, elapsed: float) -> Clock:
        """The clock `elapsed` µs later, at most one phase further."""
        spent = clock.spent + elapsed
        over = spent >= clock.length
        index = clock.index + over
        length = self.length(params, clock.seed, index)
        return Clock(clock.seed, index, jnp.where(over, spent - clock.length, spent), length)


@struct.dataclass
class TimelineParams:
    """Traced parameters of a `Timeline`: mean lengths, µs, `[phases]`, and their jitter."""

    lengths_us: Annotated[Leaf, POSITIVE]
    length_jitter: Annotated[Leaf, Real(low=0.0, below=1.0)]


@struct.dataclass
class Clock:
    """Where an episode is on its timeline.

    Attributes:
        seed: seed of the episode, from which all lengths follow.
        index: number of the phase that is on, counted from the start of the episode.
        spent: µs since it began.
        length: how long it is, µs.
    """

    seed: Leaf
    index: Leaf
    spent: Leaf
    length: Leaf


@struct.dataclass
class RequestsParams:
    """Traced parameters of `Requests`: rates per phase, 1/µs, and the payloads, bytes.

    `table` is None where payloads are log-uniform from `smallest` to `largest`.
    """

    timeline: TimelineParams
    per_us: Annotated[Leaf, NOT_NEGATIVE]
    smallest: Annotated[Leaf, POSITIVE]
    largest: Annotated[Leaf, POSITIVE]
    table: SizeTable | None = None


@struct.dataclass
class RequestsState:
    """State of `Requests`.

    Attributes:
        seed: seeds gaps, hosts and sizes.
        count: number of the next flow.
        due: expected number of arrivals between now and its start; negative if it is overdue.
        clock: the timeline.
    """

    seed: Leaf
    count: Leaf
    due: Leaf
    clock: Clock


@dataclass(frozen=True)
class Requests:
    """Poisson arrivals between two groups of hosts, at a rate that depends on the phase.

    Destinations are uniform over their group, sources over theirs without the destination. Payloads
    are log-uniform, or those of a measured table.

    Attributes:
        timeline: the phases.
        per_us: arrivals per µs in every phase, all hosts together.
        sources: hosts that send.
        destinations: hosts that receive.
        smallest_kb: smallest payload, KB.
        largest_kb: largest payload, KB.
        shift: phases by which these hosts are behind the timeline.
        width: flows offered per tick; `auto` for what the rates need.
        table: name of a flow-size table, see `size_table`, in place of the range; empty for none.
    """

    timeline: Timeline
    per_us: Annotated[tuple[float, ...], Each(Real(low=0.0, unit="flows per µs"))]
    sources: Annotated[tuple[int, ...], HOSTS]
    destinations: Annotated[tuple[int, ...], HOSTS]
    smallest_kb: Annotated[float, PAYLOAD_KB] = 0.5
    largest_kb: Annotated[float, PAYLOAD_KB] = 50.0
    shift: Annotated[int, SHIFT] = 0
    width: Annotated[int | str, WIDTH] = "auto"
    table: Annotated[str, TEXT] = ""

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if self.table:
            size_table(self.table)
        n = self.timeline.n_phases
        if len(self.per_us) != n:
            raise bad_value("per_us", self.per_us, f"{n} finite rates >= 0, one for each phase")
        host_group("sources", self.sources)
        host_group("destinations", self.destinations)
        if len(self.sources) == 1 and self.sources[0] in self.destinations:
            raise bad_value("sources", self.sources, "another host for every destination")
        if not 0.0 < self.smallest_kb <= self.largest_kb < math.inf:
            sizes = (self.smallest_kb, self.largest_kb)
            raise bad_value("smallest_kb, largest_kb", sizes, "0 < smallest_kb <= largest_kb")

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        check_hosts("sources", self.sources, hosts)
        check_hosts("destinations", self.destinations, hosts)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """Load of the busiest phase, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        self.check_network(len(nic_rate))
        low, high = 1000.0 * self.smallest_kb, 1000.0 * self.largest_kb
        # Moments of the payload by the midpoint rule over its quantiles.
        u = (np.arange(10_000) + 0.5) / 10_000
        payload = low * (high / low) ** u
        if self.table:
            sizes = size_table(self.table)
            payload = np.interp(u, sizes.cdf, sizes.size)
        wire = wire_size(payload)
        return Demand(
            per_us=max(self.per_us),
            burst=1.0,
            wire=float(wire.mean()),
            square=float((wire**2).mean()),
            pairs=uniform_pairs(self.sources, self.destinations, len(nic_rate)),
        )

    def default_params(self) -> RequestsParams:
        """Traced parameters for the fields above."""
        return RequestsParams(
            self.timeline.default_params(),
            np.array(self.per_us, np.float32),
            np.float32(self.smallest_kb * 1000.0),
            np.float32(self.largest_kb * 1000.0),
            size_table(self.table) if self.table else None,
        )

    def init(
        self, key: jax.Array, params: RequestsParams, nic_rate: Array, episode: Array
    ) -> RequestsState:
        """A fresh process; `key` seeds it, `episode` its timeline."""
        seed = jax.random.bits(key, (), jnp.uint32)
        zero = jnp.zeros((), jnp.int32)
        return RequestsState(
            seed, zero, self._gap(seed, zero), self.timeline.start(params.timeline, episode)
        )

    def _gap(self, seed: Array, index: Int[Array, "*n"]) -> Float[Array, "*n"]:
        """Expected number of arrivals between flow `index - 1` and flow `index`."""
        # A Poisson process of rate 1; `_when` stretches it by the rate of each phase.
        return -jnp.log(uniform(seed, index, RequestStream.GAP))

    def _rate(self, params: RequestsParams, index: Array) -> Array:
        """Arrivals per µs in the phase with this number."""
        return jnp.asarray(params.per_us)[(index - self.shift) % self.timeline.n_phases]

    def _when(
        self, due: Float[Array, " n"], clock: Clock, params: RequestsParams
    ) -> Float[Array, " n"]:
        """Time from now until `due` arrivals are expected, µs; exact one phase either way."""
        rate_before, rate, rate_after = (self._rate(params, clock.index + i) for i in (-1, 0, 1))
        # The floor avoids 0 / 0 in phases without arrivals; their flows come out far away.
        tiny = 1.0 / FAR
        left = clock.length - clock.spent
        until_end = rate * left
        later = left + (due - until_end) / jnp.maximum(rate_after, tiny)
        since_start = rate * clock.spent
        earlier = (due + since_start) / jnp.maximum(rate_before, tiny) - clock.spent
        inside = due / jnp.maximum(rate, tiny)
        start = jnp.where(due > until_end, later, jnp.where(due < -since_start, earlier, inside))
        return jnp.clip(start, -FAR, FAR)

    def offer(self, state: RequestsState, params: RequestsParams, nic_rate: Array) -> Offer:
        """The next `width` flows."""
        width = fixed_width(self)
        index = state.count + jnp.arange(width, dtype=jnp.int32)
        gaps = self._gap(state.seed, index[1:])
        due = state.due + jnp.concatenate([jnp.zeros((1,), gaps.dtype), jnp.cumsum(gaps)])
        start = self._when(due, state.clock, params)
        destinations, n_sources = np.array(self.destinations, np.int32), len(self.sources)
        rank_of = np.array(
            [self.sources.index(d) if d in self.sources else n_sources for d in destinations],
            np.int32,
        )
        receiver = _below(uniform(state.seed, index, RequestStream.RECEIVER), len(destinations))
        excluded = jnp.asarray(rank_of)[receiver]
        n_senders = n_sources - (excluded < n_sources)
        coin = uniform(state.seed, index, RequestStream.SENDER)
        pick = jnp.minimum((coin * n_senders).astype(jnp.int32), n_senders - 1)
        # A draw that skips the receiver is uniform over the others; none has to be repeated.
        src = jnp.asarray(np.array(self.sources, np.int32))[pick + (pick >= excluded)]
        coin = uniform(state.seed, index, RequestStream.SIZE)
        if params.table is None:
            octaves = jnp.log(params.largest / params.smallest)
            payload = jnp.maximum(jnp.floor(params.smallest * jnp.exp(octaves * coin)), 1.0)
        else:
            payload = sample_size(params.table, coin)
        valid = jnp.ones((width,), bool)
        return anonymous_offer(start, src, jnp.asarray(destinations)[receiver], payload, valid)

    def advance(
        self,
        state: RequestsState,
        params: RequestsParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> RequestsState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        number = jnp.arange(fixed_width(self), dtype=jnp.int32)
        gaps = self._gap(state.seed, state.count + 1 + number)
        passed = jnp.where(number < taken, gaps, 0.0).sum()
        clock = self.timeline.advance(params.timeline, state.clock, elapsed)
        rate = self._rate(params, state.clock.index)
        # At most one boundary falls into a tick, see `SHORTEST_US`.
        inside = jnp.minimum(state.clock.length - state.clock.spent, elapsed)
        expected = rate * inside + self._rate(params, state.clock.index + 1) * (elapsed - inside)
        count = state.count + taken.astype(jnp.int32)
        return RequestsState(state.seed, count, state.due + passed - expected, clock)


def _below(u: Float[Array, " n"], n: int) -> Int[Array, " n"]:
    """Uniform integers below `n` from uniform numbers in (0, 1)."""
    return jnp.minimum((u * n).astype(jnp.int32), n - 1)


@struct.dataclass
class FlowSetsParams:
    """Traced parameters of `FlowSets`, see there for `fill`, `size_jitter` and `start_us`."""

    timeline: TimelineParams
    fill: Annotated[Leaf, POSITIVE]
    size_jitter: Annotated[Leaf, Real(low=0.0, below=1.0)]
    start_us: Annotated[Leaf, NOT_NEGATIVE]


@struct.dataclass
class FlowSetsState:
    """State of `FlowSets`.

    Attributes:
        seed: seeds starts and sizes.
        slot: number of the phase that the next flow belongs to.
        origin: µs from now until that phase begins; negative if it has begun.
        taken: flows of its set that were taken.
        clock: the timeline.
    """

    seed: Leaf
    slot: Leaf
    origin: Leaf
    taken: Leaf
    clock: Clock


@dataclass(frozen=True)
class FlowSets:
    """A set of flows at the start of every phase of one kind.

    The flows start one after the other within `start_us`, in an order drawn each time. The flows to
    one host together fill its link for a share `fill` of the rest of the phase. So in a phase of
    length T, a flow to a host of rate C that receives n flows of the set has a payload of
    `fill (T - start_us) C (1000 / 1048) / n`, times a factor uniform within `size_jitter` of 1.

    Attributes:
        timeline: the phases.
        phase: index of the phase.
        pairs: source and destination host of every flow.
        fill: share of the phase that the set needs at line rate; may be above 1.
        size_jitter: sizes are uniform within this share of their mean, up and down.
        start_us: time within which the flows start, evenly, µs.
        shift: phases by which these hosts are behind the timeline.
        width: flows offered per tick; `auto` for what the starts need.
    """

    timeline: Timeline
    phase: Annotated[int, Whole(low=0)]
    pairs: Annotated[tuple[tuple[int, int], ...], Each(Each(HOST, 2), least=1)]
    fill: Annotated[float, Real(above=0.0, high=1e6)] = 0.9
    size_jitter: Annotated[float, Real(low=0.0, below=1.0)] = 0.15
    start_us: Annotated[float, Real(low=0.0, unit="µs")] = 1000.0
    shift: Annotated[int, SHIFT] = 0
    width: Annotated[int | str, WIDTH] = "auto"

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        n = self.timeline.n_phases
        if self.phase not in range(n):
            raise bad_value("phase", self.phase, f"an index of a phase, 0 to {n - 1}")
        if any(a == b for a, b in self.pairs):
            raise bad_value("pairs", self.pairs, "at least one (source, destination), different")
        shortest = self.timeline.shortest_us
        if not 0.0 <= self.start_us < shortest:
            allowed = f"at least 0 and below the shortest phase, {shortest:g} µs"
            raise bad_value("start_us", self.start_us, allowed)

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        check_hosts("pairs", [host for pair in self.pairs for host in pair], hosts)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """Flows of a set, see `sizing.Demand`: two sets may be in progress at once."""
        self.check_network(len(nic_rate))
        n = len(self.pairs)
        at_once = math.ceil(n * tick_us / self.start_us) + 1 if self.start_us else n
        none = np.zeros((len(nic_rate), len(nic_rate)))
        return Demand(0.0, 1.0, 0.0, 0.0, none, standing=2.0 * n, most=min(at_once, n))

    def default_params(self) -> FlowSetsParams:
        """Traced parameters for the fields above."""
        return FlowSetsParams(
            self.timeline.default_params(),
            np.float32(self.fill),
            np.float32(self.size_jitter),
            np.float32(self.start_us),
        )

    def init(
        self, key: jax.Array, params: FlowSetsParams, nic_rate: Array, episode: Array
    ) -> FlowSetsState:
        """A fresh process; `key` seeds it, `episode` its timeline."""
        first = (self.phase + self.shift) % self.timeline.n_phases
        before = jnp.arange(first, dtype=jnp.int32)
        line = params.timeline
        return FlowSetsState(
            seed=jax.random.bits(key, (), jnp.uint32),
            slot=jnp.int32(first),
            origin=self.timeline.length(line, episode, before).sum() if first else jnp.zeros(()),
            taken=jnp.zeros((), jnp.int32),
            clock=self.timeline.start(line, episode),
        )

    def offer(self, state: FlowSetsState, params: FlowSetsParams, nic_rate: Array) -> Offer:
        """The rest of the present or next set, at most `width` flows."""
        n = len(self.pairs)
        number = state.taken + jnp.arange(fixed_width(self), dtype=jnp.int32)
        index = state.slot * n + number
        coin = uniform(state.seed, index, FlowSetStream.START)
        start = state.origin + params.start_us * (number + coin) / n
        # Two draws of a set: no other draw of this stream has a negative counter.
        draw = hash_bits(state.seed, jnp.stack([state.slot, -1 - state.slot]), FlowSetStream.ORDER)
        order = shuffled(draw, number, n)
        pairs = np.array(self.pairs, np.int32)
        src, dst = (jnp.asarray(side)[order] for side in pairs.T)
        sharing = np.array([(pairs[:, 1] == d).sum() for d in pairs[:, 1]], np.float32)
        span = self.timeline.length(params.timeline, state.clock.seed, state.slot) - params.start_us
        wire = params.fill * span * jnp.asarray(nic_rate)[dst] / jnp.asarray(sharing)[order]
        coin = uniform(state.seed, index, FlowSetStream.SIZE)
        factor = 1.0 + params.size_jitter * (2.0 * coin - 1.0)
        payload = jnp.maximum(jnp.floor(wire * PAYLOAD / (PAYLOAD + HEADER) * factor), 1.0)
        return anonymous_offer(start, src, dst, payload, number < n)

    def advance(
        self,
        state: FlowSetsState,
        params: FlowSetsParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> FlowSetsState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        n, line = self.timeline.n_phases, params.timeline
        total = state.taken + taken.astype(jnp.int32)
        over = total >= len(self.pairs)
        until = state.slot + jnp.arange(n, dtype=jnp.int32)
        cycle = self.timeline.length(line, state.clock.seed, until).sum()
        return FlowSetsState(
            seed=state.seed,
            slot=state.slot + jnp.where(over, n, 0),
            origin=state.origin + jnp.where(over, cycle, 0.0) - elapsed,
            taken=jnp.where(over, 0, total),
            clock=self.timeline.advance(line, state.clock, elapsed),
        )


def clock_of(sources: tuple[Source, ...], states: tuple[PyTree, ...]) -> Clock | None:
    """The clock of the first source with a timeline; None without one."""
    for source, state in zip(sources, states, strict=True):
        if getattr(source, "timeline", None) is not None:
            clock: Clock = state.clock
            return clock
    return None
