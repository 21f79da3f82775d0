"""Closed loops: clients that send the next request after the response to an earlier one.

RPC clients, and storage: a read is a small request with a large response, a write the other way
round. Their load depends on the network, so long queues cost operations per second.

Times are those of the sender: a request counts as served when its last ACK is back at the client,
and a response as received when its last ACK is back at the server, half a round trip later than the
receiver knows it. Dependencies cost up to a tick, see `sim.traffic.tickets`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE, TEXT, Each, Flag, Real, Whole, check
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._types import Leaf
from ecn_marl.sim.random import LoopStream, uniform
from ecn_marl.sim.traffic.base import WIDTH, Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.flow_checks import host_group
from ecn_marl.sim.traffic.sizes import SizeTable, exact_add, sample_size, size_table
from ecn_marl.sim.traffic.sizing import Demand
from ecn_marl.sim.traffic.tickets import (
    LONGEST_US,
    TIME_UNIT,
    Finished,
    Pending,
    as_reals,
    check_delay,
    check_hosts,
)

Size = float | tuple[float, float] | str
"""Sizes of messages: KB, or log-uniform between two sizes in KB, or the name of a size table."""

MESSAGE_KB = Real(low=1e-3, high=1e9, unit="KB")
"""Allowed sizes of messages: from a byte to a terabyte."""

THINK = ("fixed", "exponential")
"""Kinds of think times."""

TAIL = 16.0
"""An exponential draw is at most this many times its mean (23 random bits)."""


@struct.dataclass
class SizeParams:
    """Traced sizes of messages: payload between `low` and `high` bytes, or from a `table`."""

    low: Annotated[Leaf, POSITIVE]
    high: Annotated[Leaf, POSITIVE]
    table: SizeTable | None = None


@struct.dataclass
class ClosedLoopParams:
    """Traced parameters of `ClosedLoop`; see there. Times in µs."""

    request: SizeParams
    response: SizeParams
    read_share: Annotated[Leaf, FRACTION]
    service_us: Annotated[Leaf, NOT_NEGATIVE]
    think_us: Annotated[Leaf, NOT_NEGATIVE]


@struct.dataclass
class ClosedLoopState:
    """State of `ClosedLoop`; N operations are outstanding or about to begin, `clients * depth`.

    Attributes:
        seed: seeds servers, kinds, sizes and think times.
        tick: ticks since the start.
        pending: flows that are to begin, `[N]`.
        answer: whether the present flow is the response, `[N]`.
        number: operations completed before the present one, `[N]`.
        begun: time within the tick `begun_tick` at which the request was to begin, µs, `[N]`.
        begun_tick: see there, `[N]`.
        operations: reads and writes completed since the start, `[2]`.
        latency: sum of their latencies, µs, as whole `tickets.TIME_UNIT`s and a rest, `[2]` each.
    """

    seed: Leaf
    tick: Leaf
    pending: Pending
    answer: Leaf
    number: Leaf
    begun: Leaf
    begun_tick: Leaf
    operations: Leaf
    latency: tuple[Leaf, Leaf]


@dataclass(frozen=True)
class ClosedLoop:
    """Clients that keep `depth` operations outstanding each.

    An operation: a request to a server, service there, a response back, then the client thinks. Its
    latency is from when the request was to begin (waiting for a free slot included) to the last ACK
    of the response. Each client's first `depth` requests begin at random moments of a think time.

    Attributes:
        clients: hosts that send requests.
        servers: hosts that respond; a host that is both sends itself no requests.
        depth: operations that each client has outstanding.
        request: size of a read's request: KB, `(low, high)` in KB for log-uniform, or the name of a
            size table.
        response: size of its response, likewise.
        read_share: share of the operations that are reads. In a write the two sizes change places:
            its request has the size of a read's response.
        service_us: time from the last ACK of a request to the start of the response, µs.
        think_us: time from the last ACK of a response to the next request, µs; the mean if it is
            exponential.
        think: `fixed` or `exponential`.
        random_server: whether a server is drawn for each operation; otherwise client i always
            uses server i, modulo their number.
        width: flows that may begin in a tick; `auto` for all at once.
    """

    clients: tuple[int, ...]
    servers: tuple[int, ...]
    depth: Annotated[int, Whole(low=1)] = 1
    request: Size = 0.1
    response: Size = 64.0
    read_share: Annotated[float, Real(low=0.0, high=1.0)] = 1.0
    service_us: float = 0.0
    think_us: float = 0.0
    think: Annotated[str, TEXT] = "fixed"
    random_server: Annotated[bool, Flag()] = True
    width: Annotated[int | str, WIDTH] = "auto"

    def __post_init__(self) -> None:
        """Check all fields."""
        for name in ("clients", "servers"):
            object.__setattr__(self, name, host_group(name, getattr(self, name)))
        check(self)
        for name in ("request", "response"):
            _check_size(name, getattr(self, name))
        check_delay("service_us", self.service_us)
        if self.think not in THINK:
            raise unknown_name("kind of think time", self.think, THINK)
        longest = LONGEST_US / TAIL if self.think == "exponential" else LONGEST_US
        check_delay("think_us", self.think_us, longest)
        for client, choice in zip(self.clients, self._choices(), strict=True):
            if not choice or client in choice:
                allowed = f"a server other than itself for client {client}"
                raise bad_value("servers", self.servers, allowed)

    def _choices(self) -> list[tuple[int, ...]]:
        """Servers of each client."""
        if not self.random_server:
            n = len(self.servers)
            return [(self.servers[i % n],) for i in range(len(self.clients))]
        return [tuple(s for s in self.servers if s != c) for c in self.clients]

    @property
    def n_tickets(self) -> int:
        """Operations outstanding or about to begin, N."""
        return len(self.clients) * self.depth

    def default_params(self) -> ClosedLoopParams:
        """Traced parameters for the fields above."""
        return ClosedLoopParams(
            request=_size_params(self.request),
            response=_size_params(self.response),
            read_share=np.float32(self.read_share),
            service_us=np.float32(self.service_us),
            think_us=np.float32(self.think_us),
        )

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """At most one flow per outstanding operation, see `sizing.Demand`."""
        hosts, n = len(nic_rate), self.n_tickets
        self.check_network(hosts)
        requests = np.zeros((hosts, hosts))
        for client, choice in zip(self.clients, self._choices(), strict=True):
            requests[client, list(choice)] += 0.5 / (len(choice) * len(self.clients))
        return Demand(0.0, 1.0, 0.0, 0.0, requests + requests.T, most=n, bound=n)

    def check_network(self, n_hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        check_hosts("clients", self.clients, n_hosts)
        check_hosts("servers", self.servers, n_hosts)

    def init(
        self,
        key: jax.Array,
        params: ClosedLoopParams,
        nic_rate: Array,
        episode: Array | None = None,
    ) -> ClosedLoopState:
        """All clients about to send their first requests; `key` seeds them."""
        self.check_network(nic_rate.shape[0])
        seed, n = jax.random.bits(key, (), jnp.uint32), self.n_tickets
        zero, zeros = jnp.zeros((), jnp.int32), jnp.zeros((n,), jnp.int32)
        # Negative, so that these draws differ from those of the operations.
        counter = jnp.arange(n, dtype=jnp.int32) - n
        first = self._think(params, seed, counter)
        if self.think == "fixed":
            # A random part of it; what is left of an exponential time is exponential again.
            first = first * uniform(seed, counter, LoopStream.THINK)
        first = first.astype(nic_rate.dtype)
        return ClosedLoopState(
            seed=seed,
            tick=zero,
            pending=Pending.of(first),
            answer=jnp.zeros((n,), bool),
            number=zeros,
            begun=first,
            begun_tick=zeros,
            operations=jnp.zeros((2,), jnp.int32),
            latency=(jnp.zeros((2,), jnp.int32), jnp.zeros((2,), nic_rate.dtype)),
        )

    def _think(
        self, params: ClosedLoopParams, seed: Array, counter: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """Think times, µs."""
        if self.think == "fixed":
            return jnp.broadcast_to(jnp.asarray(params.think_us, jnp.float32), counter.shape)
        return -jnp.log(uniform(seed, counter, LoopStream.THINK)) * params.think_us

    def _reads(
        self, params: ClosedLoopParams, seed: Array, counter: Int[Array, " n"]
    ) -> Bool[Array, " n"]:
        """Which operations are reads."""
        return uniform(seed, counter, LoopStream.KIND) < params.read_share

    def offer(self, state: ClosedLoopState, params: ClosedLoopParams, nic_rate: Array) -> Offer:
        """The first `width` flows that begin in the coming tick."""
        index, valid = state.pending.front(fixed_width(self))
        start = jnp.where(valid, state.pending.start[index], 0.0)
        counter = state.number[index] * self.n_tickets + index
        hosts = np.repeat(np.array(self.clients, np.int32), self.depth)
        choices = self._choices()
        n_choices = np.array([len(c) for c in choices], np.int32)
        # Rows are filled up to one length; no draw reaches the filling.
        table = np.array([c + c[:1] * (max(n_choices) - len(c)) for c in choices], np.int32)
        client, row = jnp.asarray(hosts)[index], index // self.depth
        coin = uniform(state.seed, counter, LoopStream.SERVER)
        number = (coin * jnp.asarray(n_choices)[row]).astype(jnp.int32)
        server = jnp.asarray(table)[row, jnp.minimum(number, jnp.asarray(n_choices)[row] - 1)]
        answer = state.answer[index]
        request = _sizes(params.request, uniform(state.seed, counter, LoopStream.REQUEST))
        response = _sizes(params.response, uniform(state.seed, counter, LoopStream.RESPONSE))
        # The large message is the response of a read and the request of a write.
        large = answer == self._reads(params, state.seed, counter)
        src, dst = jnp.where(answer, server, client), jnp.where(answer, client, server)
        offer = anonymous_offer(start, src, dst, jnp.where(large, response, request), valid)
        return replace(offer, ticket=index)

    def advance(
        self,
        state: ClosedLoopState,
        params: ClosedLoopParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> ClosedLoopState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        pending = state.pending.advanced(taken.astype(jnp.int32), elapsed)
        return replace(state, tick=state.tick + 1, pending=pending)

    def finished(
        self,
        state: ClosedLoopState,
        params: ClosedLoopParams,
        nic_rate: Array,
        ends: Finished,
        elapsed: float,
    ) -> ClosedLoopState:
        """Send responses to requests that have arrived, and requests after responses."""
        served, over = ends.done & ~state.answer, ends.done & state.answer
        counter = state.number * self.n_tickets + jnp.arange(self.n_tickets, dtype=jnp.int32)
        think = self._think(params, state.seed, counter)
        delay = jnp.where(over, think, params.service_us)
        start = jnp.where(ends.done, jnp.maximum(delay - ends.ago, 0.0), state.pending.start)
        # Whole ticks are integers: float32 clocks would lose microseconds in long episodes.
        latency = (state.tick - state.begun_tick) * elapsed - state.begun - ends.ago
        kind = jnp.where(self._reads(params, state.seed, counter), 0, 1)
        by_kind = over & (kind == jnp.arange(2)[:, None])
        added = jnp.where(by_kind, latency, 0.0).sum(1)
        return replace(
            state,
            pending=replace(state.pending, start=start).lined_up(elapsed),
            answer=(state.answer | served) & ~over,
            number=state.number + over,
            begun=jnp.where(over, start, state.begun),
            begun_tick=jnp.where(over, state.tick, state.begun_tick),
            operations=state.operations + by_kind.sum(1).astype(jnp.int32),
            latency=exact_add(*state.latency, added, TIME_UNIT),
        )

    def metrics(
        self, state: ClosedLoopState, elapsed_us: ArrayLike, xp: ModuleType = np
    ) -> dict[str, np.ndarray | Array]:
        """Operations since the start; every entry a number, or a batch of them.

        Args:
            state: state of this source, perhaps of a batch.
            elapsed_us: time since the start, µs.
            xp: `numpy` for float64, or `jax.numpy` where the state is traced.

        Returns:
            `operations`, `reads`, `writes`; `iops`, operations per second; `latency_us`,
            `read_latency_us`, `write_latency_us`, means, NaN without operations.
        """
        high, low, count, elapsed = as_reals(xp, *state.latency, state.operations, elapsed_us)
        total = high * TIME_UNIT + low
        # Without operations the means are 0 / 0: NaN, as documented.
        with np.errstate(invalid="ignore", divide="ignore"):
            by_kind, mean = total / count, total.sum(-1) / count.sum(-1)
            iops = 1e6 * count.sum(-1) / elapsed
        values = {
            "operations": count.sum(-1),
            "reads": count[..., 0],
            "writes": count[..., 1],
            "iops": iops,
            "latency_us": mean,
            "read_latency_us": by_kind[..., 0],
            "write_latency_us": by_kind[..., 1],
        }
        return {name: xp.asarray(value) for name, value in values.items()}


def _check_size(field: str, size: Size) -> None:
    if isinstance(size, str):
        size_table(size)
        return
    low, high = size if isinstance(size, tuple) and len(size) == 2 else (size, size)
    if not Each(MESSAGE_KB, 2).fits((low, high)) or low > high:
        allowed = "KB >= 0.001 (a byte), (low, high) in KB, or a size table's name or CSV file"
        raise bad_value(field, size, allowed)


def _size_params(size: Size) -> SizeParams:
    if isinstance(size, str):
        table = size_table(size)
        return SizeParams(table.size[0], table.size[-1], table)
    low, high = size if isinstance(size, tuple) else (size, size)
    return SizeParams(np.float32(1000.0 * low), np.float32(1000.0 * high))


def _sizes(params: SizeParams, u: Float[Array, " n"]) -> Float[Array, " n"]:
    """Payloads at quantiles `u`, whole bytes."""
    if params.table is not None:
        return sample_size(params.table, u)
    drawn = params.low * jnp.exp(u * jnp.log(params.high / params.low))
    return jnp.maximum(jnp.floor(drawn + 0.5), 1.0)
