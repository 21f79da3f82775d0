"""Streams: senders that always have something to send; their number changes with the phase.

Load generators that keep queue pairs busy (Perftest, Iperf) are of this kind: a stream sends one
flow after the other, the next one as soon as the last ACK of the former is back. Its throughput
depends on the network, so it shows when thresholds cost throughput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, Each, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.random import StreamsStream, hash_bits, uniform
from ecn_marl.sim.traffic.base import PAYLOAD_KB, WIDTH, Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.flow_checks import HOST, host_group
from ecn_marl.sim.traffic.jobs import HOSTS, Clock, Timeline, TimelineParams
from ecn_marl.sim.traffic.sizes import HEADER, PAYLOAD
from ecn_marl.sim.traffic.sizing import Demand, uniform_pairs
from ecn_marl.sim.traffic.tickets import Finished, Pending, check_hosts

RANGES = Each(Each(Whole(low=0, high=2**16), 2), least=1)
"""A smallest and a largest number for each phase."""


@struct.dataclass
class StreamsParams:
    """Traced parameters of `Streams`.

    Attributes:
        timeline: those of the phases.
        senders: fewest and most senders in each phase, `[phases, 2]`.
        flows: fewest and most streams of a sender in each phase, `[phases, 2]`.
        flow_bytes: payload of a flow, bytes; 0 for a share of the rest of the phase.
        fill: that share, see `Streams`.
        least_bytes: smallest payload of such a flow, bytes.
        start_us: streams of a phase start within this time, µs.
    """

    timeline: TimelineParams
    senders: Annotated[Leaf, NOT_NEGATIVE]
    flows: Annotated[Leaf, NOT_NEGATIVE]
    flow_bytes: Annotated[Leaf, NOT_NEGATIVE]
    fill: Annotated[Leaf, POSITIVE]
    least_bytes: Annotated[Leaf, POSITIVE]
    start_us: Annotated[Leaf, NOT_NEGATIVE]


@struct.dataclass
class StreamsState:
    """State of `Streams`, for N streams.

    Attributes:
        seed: seeds who sends, how many streams each, and when they start.
        pending: flows that are to begin, `[N]`.
        free: streams that have no flow in progress and none to begin, `[N]`.
        number: flows begun so far, `[N]`.
        clock: the timeline.
    """

    seed: Leaf
    pending: Pending
    free: Leaf
    number: Leaf
    clock: Clock


@dataclass(frozen=True)
class Streams:
    """Streams from some of several hosts to one; who sends, and how many, depends on the phase.

    In every phase the number of senders is drawn evenly between its limits, the senders are chosen
    at random, and each draws its number of streams. A stream that is not of the present phase
    finishes its flow and pauses.

    Flows have a fixed size; or, so that a stream is one long flow with the state of one sender, a
    share of the rest of the phase: with T µs left of it and n streams at a link of rate C, the
    payload is `fill T C (1000 / 1048) / n`. Later flows of a phase are shorter, and at its end all
    of them are about to finish.

    Attributes:
        timeline: the phases.
        sources: hosts that may send.
        receiver: host that receives.
        senders: fewest and most senders in each phase.
        flows: fewest and most streams of a sender in each phase.
        flow_kb: payload of a flow, KB; None for a share of the rest of the phase.
        fill: that share.
        least_kb: smallest payload of such a flow, KB.
        start_us: streams of a phase start within this time, µs.
        width: flows that may begin in a tick; `auto` for all at once.
    """

    timeline: Timeline
    sources: Annotated[tuple[int, ...], HOSTS]
    receiver: Annotated[int, HOST]
    senders: Annotated[tuple[tuple[int, int], ...], RANGES]
    flows: Annotated[tuple[tuple[int, int], ...], RANGES] = ((1, 1),)
    flow_kb: Annotated[float | None, Real(above=0.0, high=1e9, unit="KB", none=True)] = None
    fill: Annotated[float, Real(above=0.0, high=1.0)] = 0.7
    least_kb: Annotated[float, PAYLOAD_KB] = 100.0
    start_us: Annotated[float, Real(low=0.0, high=1e6, unit="µs")] = 100.0
    width: Annotated[int | str, WIDTH] = "auto"

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        n = self.timeline.n_phases
        for name in ("senders", "flows"):
            ranges = getattr(self, name)
            if len(ranges) != n or any(low > high for low, high in ranges):
                raise bad_value(name, ranges, f"(fewest, most) for each of {n} phases")
        if self.start_us > self.timeline.shortest_us:
            allowed = f"at most the shortest phase, {self.timeline.shortest_us:g} µs"
            raise bad_value("start_us", self.start_us, allowed)
        most = max(high for _, high in self.senders)
        if most > len(self.sources):
            raise bad_value("senders", self.senders, f"at most the {len(self.sources)} sources")
        if self.receiver in host_group("sources", self.sources):
            raise bad_value("sources", self.sources, "different hosts, the receiver not among them")

    @property
    def n_tickets(self) -> int:
        """Streams N: as many of each source as it may have."""
        return len(self.sources) * max(max(high for _, high in self.flows), 1)

    def check_network(self, n_hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        check_hosts("sources", self.sources, n_hosts)
        check_hosts("receiver", (self.receiver,), n_hosts)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """At most one flow per stream, see `sizing.Demand`."""
        self.check_network(len(nic_rate))
        n = self.n_tickets
        pairs = uniform_pairs(self.sources, (self.receiver,), len(nic_rate))
        return Demand(0.0, 1.0, 0.0, 0.0, pairs, most=n, bound=n)

    def default_params(self) -> StreamsParams:
        """Traced parameters for the fields above."""
        return StreamsParams(
            timeline=self.timeline.default_params(),
            senders=np.array(self.senders, np.float32),
            flows=np.array(self.flows, np.float32),
            flow_bytes=np.float32(1000.0 * (self.flow_kb or 0.0)),
            fill=np.float32(self.fill),
            least_bytes=np.float32(1000.0 * self.least_kb),
            start_us=np.float32(self.start_us),
        )

    def init(
        self, key: jax.Array, params: StreamsParams, nic_rate: Array, episode: Array
    ) -> StreamsState:
        """No stream has begun; `key` seeds them, `episode` the timeline."""
        self.check_network(nic_rate.shape[0])
        n = self.n_tickets
        return StreamsState(
            seed=jax.random.bits(key, (), jnp.uint32),
            pending=Pending.of(jnp.full((n,), jnp.inf, nic_rate.dtype)),
            free=jnp.ones((n,), bool),
            number=jnp.zeros((n,), jnp.int32),
            clock=self.timeline.start(params.timeline, episode),
        )

    def active(
        self, params: StreamsParams, seed: Array, phase: Int[Array, ""]
    ) -> Bool[Array, " n"]:
        """Which streams there are in the phase of this number, counted from the start."""
        s, row = len(self.sources), phase % self.timeline.n_phases
        senders = _drawn(params.senders, row, uniform(seed, phase, StreamsStream.SENDERS))
        number = jnp.arange(s, dtype=jnp.int32)
        coins = uniform(seed, phase * s + number, StreamsStream.FLOWS)
        flows = _drawn(params.flows, row, coins)
        # Two words of bits: `-1 - phase` is the counter of no other phase.
        draw = hash_bits(seed, jnp.stack([phase, -1 - phase]), StreamsStream.ORDER)
        sends = _rank(draw, number, s) < senders
        per_source = self.n_tickets // s
        streams = sends[:, None] & (jnp.arange(per_source) < flows[:, None])
        return streams.reshape(-1)

    def offer(self, state: StreamsState, params: StreamsParams, nic_rate: Array) -> Offer:
        """The first `width` flows that begin in the coming tick."""
        index, valid = state.pending.front(fixed_width(self))
        start = jnp.where(valid, state.pending.start[index], 0.0)
        src = jnp.asarray(np.array(self.sources, np.int32))[
            index * len(self.sources) // self.n_tickets
        ]
        clock = state.clock
        n_active = self.active(params, state.seed, clock.index).sum()
        remaining = jnp.maximum(clock.length - clock.spent, 0.0)
        rate = jnp.asarray(nic_rate)[self.receiver]
        wire = params.fill * remaining * rate / jnp.maximum(n_active, 1)
        share = jnp.maximum(jnp.floor(wire * PAYLOAD / (PAYLOAD + HEADER)), params.least_bytes)
        fixed = jnp.asarray(params.flow_bytes)
        payload = jnp.broadcast_to(jnp.where(fixed > 0, fixed, share), src.shape)
        offer = anonymous_offer(start, src, jnp.full_like(src, self.receiver), payload, valid)
        return replace(offer, ticket=index)

    def advance(
        self,
        state: StreamsState,
        params: StreamsParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> StreamsState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        return replace(
            state,
            pending=state.pending.advanced(taken.astype(jnp.int32), elapsed),
            clock=self.timeline.advance(params.timeline, state.clock, elapsed),
        )

    def finished(
        self,
        state: StreamsState,
        params: StreamsParams,
        nic_rate: Array,
        ends: Finished,
        elapsed: float,
    ) -> StreamsState:
        """Begin the next flow of streams that have none and are of the present phase."""
        free = state.free | ends.done
        begins = free & self.active(params, state.seed, state.clock.index)
        n = self.n_tickets
        counter = state.number * n + jnp.arange(n, dtype=jnp.int32)
        delay = uniform(state.seed, counter, StreamsStream.START) * params.start_us
        start = jnp.where(begins, jnp.where(ends.done, 0.0, delay), state.pending.start)
        return replace(
            state,
            pending=replace(state.pending, start=start).lined_up(elapsed),
            free=free & ~begins,
            number=state.number + begins,
        )


def _drawn(ranges: ArrayLike, row: Array, u: Array) -> Int[Array, "*n"]:
    """Whole numbers drawn evenly between the limits of a phase."""
    low, high = jnp.asarray(ranges)[row]
    # For u just below 1 the sum rounds up to `high + 1`.
    return jnp.minimum(jnp.floor(low + u * (high - low + 1.0)), high).astype(jnp.int32)


def _rank(bits: Array, number: Int[Array, " n"], n: int) -> Int[Array, " n"]:
    """Place of each number in the random cyclic order of `random.shuffled`."""
    strides = [k for k in range(1, n + 1) if math.gcd(k, n) == 1]
    inverses = jnp.asarray(np.array([pow(k, -1, n) if n > 1 else 0 for k in strides], np.int32))
    inverse = inverses[bits[0] % jnp.uint32(len(strides))]
    first = (bits[1] % jnp.uint32(n)).astype(jnp.int32)
    return ((number - first) % n) * inverse % n
