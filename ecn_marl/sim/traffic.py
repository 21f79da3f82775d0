"""Traffic: where flows come from.

A source offers, once per tick, its next `width` flows in order of their start. The simulator takes
as many as it has room for; those not taken are offered again, so nothing is lost and a flow's start
time (from which its FCT counts) never moves. Three sources, all of them open loop (for those whose
flows follow from earlier ones see `sim.tickets`):

* `Poisson`: open-loop arrivals at a load with sizes from a measured table;
* `Incast`: bursts of N senders to one receiver, N changing from burst to burst;
* `Schedule`: a fixed list of flows, e.g. from a CSV file.

The first two generate endlessly from a counter, at fixed memory. `init` gets a key of the source's
own, and the `episode`'s seed, which all sources share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, TEXT, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.matrices import Matrix, as_matrix, between_servers
from ecn_marl.sim.random import IncastStream, PoissonStream, hash_bits, shuffled, uniform
from ecn_marl.sim.servers import Server, apart, burst, burst_links, burst_pairs, nics
from ecn_marl.sim.sizes import (
    CHUNK,
    HEADER,
    PAYLOAD,
    SizeTable,
    sample_size,
    size_table,
    wire_bytes,
)
from ecn_marl.sim.sizing import Demand, uniform_pairs

LOAD = Real(above=0.0, high=1.5)
"""What a load may be, as a share of a line rate: above 1 flows pile up."""

PAYLOAD_KB = Real(above=0.0, high=1e9, unit="KB")
"""What the payload of a flow may be: up to a terabyte."""

WIDTH = Whole(low=1, high=2**20, words=("auto",))
"""What the number of flows offered per tick may be."""

MOST_SENDERS = 2**16
"""Senders in a burst."""


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
        ticket: by which the source hears that it has finished, see `sim.tickets`; None if it does
            not ask.
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


def anonymous_offer(start: Array, src: Array, dst: Array, payload: Array, valid: Array) -> Offer:
    """An offer of hashed, unnumbered flows."""
    wire = wire_bytes(payload)
    high = jnp.maximum(jnp.floor(wire / CHUNK) - 1.0, 0.0)
    minus = jnp.full(src.shape, -1, jnp.int32)
    return Offer(
        start=start,
        src=src.astype(jnp.int32),
        dst=dst.astype(jnp.int32),
        payload=payload,
        wire_high=high.astype(jnp.int32),
        wire_low=wire - high * CHUNK,
        path=minus,
        path_back=minus,
        flow_id=minus,
        valid=valid,
    )


def program_of(source: Any) -> Any:
    """What of a source is compiled: it without the numbers that are traced parameters anyway.

    Sources with a method `program()` return themselves with these numbers set to some fixed ones.
    Two that differ in nothing else, in their load say, then share what is compiled.
    """
    tell = getattr(source, "program", None)
    return source if tell is None else tell()


def fixed_width(source: Any) -> int:
    """The width of a source as a number.

    Raises:
        ValueError: it is `auto`, which a simulator turns into a number.
    """
    if not isinstance(source.width, int):
        raise bad_value("width", source.width, "a number outside of a simulator")
    return source.width


@struct.dataclass
class PoissonParams:
    """Parameters of `Poisson`, all traced.

    Attributes:
        load: offered payload as a share of the NICs' total rate.
        table: flow sizes.
        sources: cumulative share of the flows by source host, `[H]`; None without a matrix.
        destinations: cumulative shares of each source's flows by destination, `[H, H]`; None
            without a matrix.
    """

    load: Annotated[Leaf, LOAD]
    table: SizeTable
    sources: Leaf = None
    destinations: Leaf = None


@struct.dataclass
class PoissonState:
    """State of `Poisson`: a seed, the number of the next flow, µs until it starts."""

    seed: Leaf
    count: Leaf
    start: Leaf


@dataclass(frozen=True)
class Poisson:
    """Poisson arrivals at every host, to uniform destinations or by a traffic matrix.

    Independent Poisson processes per host, at rates proportional to the NICs or to the rows of the
    matrix, are one process whose flows pick their source with these proportions; that is how it is
    generated.

    Attributes:
        load: default load, share of NIC rate.
        table: name of the default flow-size table, or the path of a CSV file, see `size_table`.
        width: flows offered per tick; `auto` for what the defaults above need.
        matrix: weights of (source, destination), see `sim.matrices`; empty for sources in
            proportion to their NICs and uniform destinations. Weights between NICs of one server
            count as 0, see `matrices.between_servers`.
        server: server of each host; a simulator fills it in where servers have several NICs.
    """

    load: Annotated[float, LOAD] = 0.6
    table: Annotated[str, TEXT] = "WebSearch"
    width: Annotated[int | str, WIDTH] = "auto"
    matrix: Matrix = ()
    server: Server = ()

    def __post_init__(self) -> None:
        """Check the load, the table's name and the matrix."""
        check(self)
        size_table(self.table)
        if self.matrix:
            object.__setattr__(self, "matrix", as_matrix(self.matrix))
        if self.matrix and self.server:
            self.check_network(len(self.server))
            object.__setattr__(self, "matrix", between_servers(self.matrix, self.server))

    def default_params(self) -> PoissonParams:
        """Traced parameters for the defaults above."""
        load, table = np.float32(self.load), size_table(self.table)
        if not self.matrix:
            return PoissonParams(load, table)
        weights = np.array(self.matrix)
        rows = weights.sum(1)
        to = np.cumsum(weights, axis=1) / np.maximum(rows, 1e-300)[:, None]
        # Rounded, a cumulative share may end below a draw: the last host that receives ends it.
        last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
        to = np.where(np.arange(weights.shape[1]) >= last[:, None], 2.0, to)
        share = np.cumsum(rows) / rows.sum()
        share = np.where(np.arange(len(rows)) >= np.flatnonzero(rows)[-1], 2.0, share)
        return PoissonParams(load, table, share.astype(np.float32), to.astype(np.float32))

    def program(self) -> Poisson:
        """The same source with numbers of its own, for those that are traced; see `program_of`."""
        return replace(self, load=1.0, table="WebSearch")

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """What the defaults bring, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        table, n = size_table(self.table), len(nic_rate)
        payload = np.interp((np.arange(20_000) + 0.5) / 20_000, table.cdf, table.size)
        wire = payload + HEADER * np.maximum(np.ceil(payload / PAYLOAD), 1.0)
        self.check_network(n)
        pairs = np.repeat(nic_rate[:, None] / nic_rate.sum() / (n - 1), n, axis=1)
        np.fill_diagonal(pairs, 0.0)
        if self.server:
            pairs = pairs * apart(self.server) * ((n - 1) / nics(self.server).n_others)[:, None]
        if self.matrix:
            pairs = np.array(self.matrix) / np.sum(self.matrix)
        return Demand(
            per_us=self.load * float(nic_rate.sum()) / float(table.mean),
            burst=1.0,
            wire=float(wire.mean()),
            square=float((wire**2).mean()),
            pairs=pairs,
        )

    def init(
        self, key: jax.Array, params: PoissonParams, nic_rate: Array, episode: Array | None = None
    ) -> PoissonState:
        """A fresh process; `key` seeds it."""
        self.check_network(nic_rate.shape[0])
        seed = jax.random.bits(key, (), jnp.uint32)
        first = self._gap(params, nic_rate, seed, jnp.zeros((), jnp.int32))
        return PoissonState(seed, jnp.zeros((), jnp.int32), first)

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError if the matrix is of another number of hosts."""
        if self.matrix and len(self.matrix) != hosts:
            raise bad_value("matrix", f"{len(self.matrix)} rows", f"one for each of {hosts} hosts")

    def _gap(self, params: PoissonParams, nic_rate: Array, seed: Array, index: Array) -> Array:
        """Time between flow `index - 1` and flow `index`, µs."""
        per_us = params.load * nic_rate.sum() / params.table.mean
        return -jnp.log(uniform(seed, index, PoissonStream.GAP)) / per_us

    def offer(self, state: PoissonState, params: PoissonParams, nic_rate: Array) -> Offer:
        """The next `width` flows."""
        width = fixed_width(self)
        index = state.count + jnp.arange(width, dtype=jnp.int32)
        gaps = self._gap(params, nic_rate, state.seed, index[1:])
        start = state.start + jnp.concatenate([jnp.zeros((1,), gaps.dtype), jnp.cumsum(gaps)])
        n = nic_rate.shape[0]
        ends = (PoissonStream.SENDER, PoissonStream.RECEIVER)
        coins = tuple(uniform(state.seed, index, end) for end in ends)
        if params.sources is not None:
            src = (coins[0][:, None] >= jnp.asarray(params.sources)).sum(1)
            dst = (coins[1][:, None] >= jnp.asarray(params.destinations)[src]).sum(1)
        else:
            share = jnp.cumsum(nic_rate) / nic_rate.sum()
            src = jnp.minimum(jnp.searchsorted(share, coins[0], method="compare_all"), n - 1)
            hop = jnp.floor(coins[1] * (n - 1)).astype(jnp.int32)
            dst = (src + 1 + jnp.minimum(hop, n - 2)) % n
            if self.server:
                to = nics(self.server)
                most = jnp.asarray(to.n_others)[src]
                hop = jnp.minimum((coins[1] * most).astype(jnp.int32), most - 1)
                dst = jnp.asarray(to.others)[src, hop]
        payload = sample_size(params.table, uniform(state.seed, index, PoissonStream.SIZE))
        return anonymous_offer(start, src, dst, payload, jnp.ones((width,), bool))

    def advance(
        self,
        state: PoissonState,
        params: PoissonParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> PoissonState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        first = jnp.arange(fixed_width(self), dtype=jnp.int32)
        gaps = self._gap(params, nic_rate, state.seed, state.count + 1 + first)
        passed = jnp.sum(jnp.where(first < taken, gaps, 0.0))
        return PoissonState(
            state.seed, state.count + taken.astype(jnp.int32), state.start + passed - elapsed
        )


@struct.dataclass
class IncastParams:
    """Parameters of `Incast`, all traced.

    Attributes:
        load: mean load of a receiver's link; sets the time between bursts.
        n_min: fewest senders in a burst.
        n_max: most senders in a burst.
        flow_bytes: payload of each sender, bytes.
        jitter_us: the starts of a burst are spread over this time, µs.
        receiver: index of the receiving host, -1 for a random one each burst.
    """

    load: Annotated[Leaf, LOAD]
    n_min: Annotated[Leaf, Real(low=1.0, high=MOST_SENDERS)]
    n_max: Annotated[Leaf, Real(low=1.0, high=MOST_SENDERS)]
    flow_bytes: Annotated[Leaf, POSITIVE]
    jitter_us: Annotated[Leaf, NOT_NEGATIVE]
    receiver: Annotated[Leaf, Real(low=-1.0)]


@struct.dataclass
class IncastState:
    """State of `Incast`: seed, number of the burst, flows of it taken, µs until it starts."""

    seed: Leaf
    burst: Leaf
    taken: Leaf
    start: Leaf


@dataclass(frozen=True)
class Incast:
    """Bursts of N senders to one receiver, N log-uniform in `[n_min, n_max]`.

    The senders of a burst are hosts in an order drawn for it, each again only after all others.

    The time to the next burst is exponential with mean `N * flow_bytes / (load * rate)`: large
    bursts are followed by longer pauses, so the load does not depend on N.

    Attributes:
        load: mean load of the receiver's link (of each, if the receiver is random), as a share of
            the mean rate of the NICs; where NICs differ, that is not the receiver's own.
        n_min: fewest senders.
        n_max: most senders.
        flow_kb: payload per sender, KB.
        receiver: receiving host, -1 for a random one each burst.
        jitter_us: the starts of a burst are spread over this time, µs.
        width: flows offered per tick; a burst larger than that starts over several ticks. `auto`
            for `n_max`.
        server: server of each host; a simulator fills it in where servers have several NICs. Then
            senders and receiver are servers (that of the host `receiver`), every flow takes a NIC
            of each by hash, and `load` is that of each of the receiver's links.
    """

    load: Annotated[float, LOAD] = 0.8
    n_min: Annotated[int, Whole(low=1, high=MOST_SENDERS)] = 2
    n_max: Annotated[int, Whole(low=1, high=MOST_SENDERS)] = 16
    flow_kb: Annotated[float, PAYLOAD_KB] = 500.0
    receiver: Annotated[int, Whole(low=-1)] = 0
    jitter_us: Annotated[float, Real(low=0.0, high=1e6, unit="µs")] = 0.0
    width: Annotated[int | str, WIDTH] = "auto"
    server: Server = ()

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if self.n_min > self.n_max:
            raise bad_value("n_min, n_max", (self.n_min, self.n_max), "1 <= n_min <= n_max")

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError if the receiver is none of the hosts."""
        if self.receiver >= hosts:
            allowed = f"one of {hosts} hosts, 0 to {hosts - 1}, or -1 for a random one each burst"
            raise bad_value("receiver", self.receiver, allowed)

    def default_params(self) -> IncastParams:
        """Traced parameters for the defaults above."""
        return IncastParams(
            load=np.float32(self.load),
            n_min=np.float32(self.n_min),
            n_max=np.float32(self.n_max),
            flow_bytes=np.float32(self.flow_kb * 1000.0),
            jitter_us=np.float32(self.jitter_us),
            receiver=np.int32(self.receiver),
        )

    def program(self) -> Incast:
        """The same source with numbers of its own, for those that are traced; see `program_of`."""
        return replace(self, load=1.0, n_min=1, n_max=1, flow_kb=1.0, jitter_us=0.0, receiver=0)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """What the defaults bring, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        n, hosts = np.arange(self.n_min, self.n_max + 1), len(nic_rate)
        self.check_network(hosts)
        share = np.diff(np.log(np.append(n, self.n_max + 1.0)))
        size = 1000.0 * self.flow_kb
        wire = n * float(size + HEADER * math.ceil(size / PAYLOAD))
        mean = float(np.average(wire, weights=share))
        anyone = self.receiver < 0
        pairs = uniform_pairs(range(hosts), range(hosts) if anyone else (self.receiver,), hosts)
        links = hosts if anyone else 1
        if self.server:
            pairs = burst_pairs(self.server, self.receiver)
            links = int((pairs.sum(0) > 0).sum())
        return Demand(
            per_us=self.load * float(nic_rate.mean()) * links / mean,
            burst=float(self.n_max),
            wire=mean,
            square=float(wire[-1]) ** 2,
            pairs=pairs,
            most=self.n_max,
        )

    def init(
        self, key: jax.Array, params: IncastParams, nic_rate: Array, episode: Array | None = None
    ) -> IncastState:
        """A fresh process; `key` seeds it. The first burst starts at once."""
        self.check_network(nic_rate.shape[0])
        zero = jnp.zeros((), jnp.int32)
        seed = jax.random.bits(key, (), jnp.uint32)
        return IncastState(seed, zero, zero, jnp.zeros((), nic_rate.dtype))

    def _size(self, state: IncastState, params: IncastParams) -> Array:
        """Senders of the current burst."""
        u = uniform(state.seed, state.burst, IncastStream.SENDERS)
        low, high = jnp.log(params.n_min), jnp.log(params.n_max + 1.0)
        n = jnp.floor(jnp.exp(low + u * (high - low))).astype(jnp.int32)
        return jnp.clip(n, jnp.int32(params.n_min), jnp.int32(params.n_max))

    def offer(self, state: IncastState, params: IncastParams, nic_rate: Array) -> Offer:
        """What is left of the current burst, at most `width` flows."""
        n_hosts = nic_rate.shape[0]
        number = state.taken + jnp.arange(fixed_width(self), dtype=jnp.int32)
        any_bits = hash_bits(state.seed, state.burst, IncastStream.RECEIVER)
        anyone = (any_bits % jnp.uint32(n_hosts)).astype(jnp.int32)
        receiver = jnp.where(jnp.asarray(params.receiver) < 0, anyone, params.receiver)
        draw = hash_bits(state.seed, jnp.stack([state.burst, -1 - state.burst]), IncastStream.ORDER)
        src = (receiver + 1 + shuffled(draw, number, n_hosts - 1)) % n_hosts
        if self.server:
            src, receiver = burst(self.server, params.receiver, state.seed, state.burst, number)
        size = self._size(state, params)
        coin = uniform(state.seed, state.burst * 4096 + number, IncastStream.START)
        late = params.jitter_us * (number + coin) / size
        return anonymous_offer(
            state.start + late,
            src,
            jnp.broadcast_to(receiver, src.shape),
            jnp.broadcast_to(jnp.asarray(params.flow_bytes, jnp.float32), src.shape),
            number < size,
        )

    def advance(
        self,
        state: IncastState,
        params: IncastParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> IncastState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        size = self._size(state, params)
        total = state.taken + taken.astype(jnp.int32)
        over = total >= size
        receivers = jnp.where(jnp.asarray(params.receiver) < 0, nic_rate.shape[0], 1)
        if self.server:
            receivers = burst_links(self.server, params.receiver)
        rate = params.load * nic_rate.mean() * receivers
        mean_gap = size * wire_bytes(jnp.asarray(params.flow_bytes, jnp.float32)) / rate
        gap = -jnp.log(uniform(state.seed, state.burst, IncastStream.GAP)) * mean_gap
        return IncastState(
            seed=state.seed,
            burst=state.burst + over,
            taken=jnp.where(over, 0, total),
            start=state.start + jnp.where(over, gap, 0.0) - elapsed,
        )


@struct.dataclass
class ScheduleParams:
    """A fixed list of flows sorted by start, every leaf `[N]`; see `schedule`."""

    start_step: Leaf
    start_rest: Leaf
    src: Leaf
    dst: Leaf
    payload: Leaf
    wire_high: Leaf
    wire_low: Leaf
    path: Leaf
    path_back: Leaf


@struct.dataclass
class ScheduleState:
    """State of `Schedule`: the next flow and the current substep (an integer clock)."""

    next: Leaf
    step: Leaf


@dataclass(frozen=True)
class Schedule:
    """A fixed list of flows.

    Attributes:
        dt_us: substep that the start times are split by; must be that of the simulator.
        width: flows offered per tick.
    """

    dt_us: float
    width: int

    def default_params(self) -> ScheduleParams:
        """A schedule has no default list."""
        raise bad_value("schedule", None, "a list of flows: see ecn_marl.sim.traffic.schedule")

    def init(
        self, key: jax.Array, params: ScheduleParams, nic_rate: Array, episode: Array | None = None
    ) -> ScheduleState:
        """Start at the first flow."""
        zero = jnp.zeros((), jnp.int32)
        return ScheduleState(zero, zero)

    def offer(self, state: ScheduleState, params: ScheduleParams, nic_rate: Array) -> Offer:
        """The next `width` flows of the list."""
        index = state.next + jnp.arange(self.width, dtype=jnp.int32)
        n = params.src.shape[0]
        rows: Any = jax.tree.map(lambda x: jnp.asarray(x)[jnp.minimum(index, n - 1)], params)
        start = (rows.start_step - state.step).astype(jnp.float32) * self.dt_us + rows.start_rest
        return Offer(
            start=start,
            src=rows.src,
            dst=rows.dst,
            payload=rows.payload,
            wire_high=rows.wire_high,
            wire_low=rows.wire_low,
            path=rows.path,
            path_back=rows.path_back,
            flow_id=index,
            valid=index < n,
        )

    def advance(
        self,
        state: ScheduleState,
        params: ScheduleParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> ScheduleState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        steps = jnp.int32(round(elapsed / self.dt_us))
        return ScheduleState(state.next + taken.astype(jnp.int32), state.step + steps)


def schedule(flows: Mapping[str, np.ndarray], dt_us: float) -> ScheduleParams:
    """Turn columns of flows into the arrays of a `Schedule`.

    Args:
        flows: columns `src`, `dst`, `size_B` (payload bytes), `start_ns`, sorted by start, and
            optionally `spine_data`, `spine_ack` (path index, -1 for none given), each `[N]`.
        dt_us: substep of the simulator, µs.

    Returns:
        The schedule's traced parameters.

    Raises:
        ValueError: the flows are not in order of their start, or one starts too late.
    """
    early = np.flatnonzero(np.diff(np.asarray(flows["start_ns"], np.float64)) < 0)
    if early.size:
        row = int(early[0]) + 1
        raise bad_value(f"start_ns[{row}]", flows["start_ns"][row], "flows in order of their start")
    size = np.asarray(flows["size_B"], np.int64)
    high, low = wire_parts(size)
    start = np.asarray(flows["start_ns"], np.float64) / 1e3
    step = np.floor(start / dt_us)
    wrong = np.flatnonzero(~((step >= 0.0) & (step < 2.0**31)))
    if wrong.size:
        allowed = f"a time from 0 to {2.0**31 * dt_us * 1e3:g} ns, 2^31 substeps of {dt_us:g} µs"
        raise bad_value("start_ns", float(1e3 * start[wrong[0]]), allowed)
    none = np.full(size.shape, -1, np.int32)
    return ScheduleParams(
        start_step=step.astype(np.int32),
        start_rest=(start - step * dt_us).astype(np.float32),
        src=np.asarray(flows["src"], np.int32),
        dst=np.asarray(flows["dst"], np.int32),
        payload=size.astype(np.float32),
        wire_high=high,
        wire_low=low,
        path=np.asarray(flows.get("spine_data", none), np.int32),
        path_back=np.asarray(flows.get("spine_ack", none), np.int32),
    )


def wire_parts(size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wire bytes of payloads, exactly: whole units of `CHUNK` (int32) and the rest, `[N]` each.

    Args:
        size: payloads, whole bytes, int64, `[N]`.
    """
    wire = size + int(HEADER) * -(-size // int(PAYLOAD))
    high = np.maximum(wire // int(CHUNK) - 1, 0)
    return high.astype(np.int32), (wire - high * int(CHUNK)).astype(np.float32)


def widest_tick(start_ns: np.ndarray, tick_us: float, limit: int) -> int:
    """Largest number of flows that start within one tick, at most `limit`."""
    ticks = np.floor(np.asarray(start_ns, np.float64) / (1e3 * tick_us)).astype(np.int64)
    return min(int(np.unique(ticks, return_counts=True)[1].max()), limit)
