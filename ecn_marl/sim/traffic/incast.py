"""Bursts of many senders to one receiver; a source, see `sim.traffic.base`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.network.servers import Server, burst, burst_links, burst_pairs
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.random import (
    IncastStream,
    hash_bits,
    member_bits,
    shuffled,
    to_unit,
    uniform,
)
from ecn_marl.sim.traffic.base import LOAD, PAYLOAD_KB, WIDTH, Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.sizes import wire_bytes, wire_size
from ecn_marl.sim.traffic.sizing import Demand, uniform_pairs
from ecn_marl.sim.units import GBPS

MOST_SENDERS = 2**16
"""Most senders in a burst."""


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
        min_gap_us: least time between the starts of two bursts, µs.
    """

    load: Annotated[Leaf, LOAD]
    n_min: Annotated[Leaf, Real(low=1.0, high=MOST_SENDERS)]
    n_max: Annotated[Leaf, Real(low=1.0, high=MOST_SENDERS)]
    flow_bytes: Annotated[Leaf, POSITIVE]
    jitter_us: Annotated[Leaf, NOT_NEGATIVE]
    receiver: Annotated[Leaf, Real(low=-1.0)]
    min_gap_us: Annotated[Leaf, NOT_NEGATIVE]


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

    The senders are hosts in an order drawn for each burst; none sends twice before all others sent.

    The time to the next burst is exponential with mean `N * flow_bytes / (load * rate)`: large
    bursts are followed by longer pauses, so the load does not depend on N. A tick offers one burst,
    so a second one in the same tick waits for the next: with `min_gap_us` of a tick there is none.

    Attributes:
        load: mean load of the receiver's link (of each, if the receiver is random), as a share of
            the mean rate of the NICs; where NICs differ, that is not the receiver's own.
        n_min: fewest senders.
        n_max: most senders.
        flow_kb: payload per sender, KB.
        receiver: receiving host, -1 for a random one each burst.
        jitter_us: the starts of a burst are spread over this time, µs.
        min_gap_us: least time between two bursts, µs; the mean of the rest of the gap is
            shorter by as much, so that the load stays. At most the mean gap after the smallest
            bursts.
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
    min_gap_us: Annotated[float, Real(low=0.0, high=1e6, unit="µs")] = 0.0
    width: Annotated[int | str, WIDTH] = "auto"
    server: Server = ()

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)
        if self.n_min > self.n_max:
            raise bad_value("n_min, n_max", (self.n_min, self.n_max), "1 <= n_min <= n_max")

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError if the receiver is none of the hosts."""
        _check_receiver(self.receiver, hosts)

    def check_params(self, params: IncastParams, topology: Topology) -> None:
        """Refuse a receiver that is no host, and a gap too long for the load, see `Source`."""
        receiver = np.asarray(params.receiver)
        _check_receiver(receiver.max().item(), topology.n_hosts)
        links = np.where(receiver < 0, topology.n_hosts, 1)
        if self.server:
            links = np.asarray(burst_links(self.server, receiver))
        rate = np.asarray(params.load) * np.mean(topology.nic_gbps) * GBPS * links
        mean_gap = np.asarray(params.n_min) * wire_size(params.flow_bytes) / rate
        # Parameters are float32, and a gap that is always the mean one is allowed.
        for gap, largest in np.broadcast(params.min_gap_us, mean_gap):
            if gap > largest * (1.0 + 1e-6):
                allowed = f"at most {largest:.6g}, the mean gap after the smallest bursts"
                raise bad_value("min_gap_us", float(gap), f"{allowed} at this load")

    def default_params(self) -> IncastParams:
        """Traced parameters for the defaults above."""
        return IncastParams(
            load=np.float32(self.load),
            n_min=np.float32(self.n_min),
            n_max=np.float32(self.n_max),
            flow_bytes=np.float32(self.flow_kb * 1000.0),
            jitter_us=np.float32(self.jitter_us),
            receiver=np.int32(self.receiver),
            min_gap_us=np.float32(self.min_gap_us),
        )

    def program(self) -> Incast:
        """The source with fixed values in place of its traced parameters; see `program_of`."""
        burst = replace(self, n_min=1, n_max=1, flow_kb=1.0, receiver=0)
        return replace(burst, load=1.0, jitter_us=0.0, min_gap_us=0.0)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """Load and bursts of the defaults, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        n, hosts = np.arange(self.n_min, self.n_max + 1), len(nic_rate)
        self.check_network(hosts)
        # Probabilities of the sizes: `_size` draws them log-uniform.
        share = np.diff(np.log(np.append(n, self.n_max + 1.0)))
        wire = n * float(wire_size(1000.0 * self.flow_kb))
        mean = float(np.average(wire, weights=share))
        random_receiver = self.receiver < 0
        pairs = uniform_pairs(
            range(hosts), range(hosts) if random_receiver else (self.receiver,), hosts
        )
        links = hosts if random_receiver else 1
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
        # `exp` and `log` round, so the floor may be one too low or too high.
        return jnp.clip(n, jnp.int32(params.n_min), jnp.int32(params.n_max))

    def offer(self, state: IncastState, params: IncastParams, nic_rate: Array) -> Offer:
        """The rest of the current burst, at most `width` flows."""
        n_hosts = nic_rate.shape[0]
        number = state.taken + jnp.arange(fixed_width(self), dtype=jnp.int32)
        host_bits = hash_bits(state.seed, state.burst, IncastStream.RECEIVER)
        random_host = (host_bits % jnp.uint32(n_hosts)).astype(jnp.int32)
        receiver = jnp.where(jnp.asarray(params.receiver) < 0, random_host, params.receiver)
        # Two draws of a burst: no other draw of this stream has a negative counter.
        draw = hash_bits(state.seed, jnp.stack([state.burst, -1 - state.burst]), IncastStream.ORDER)
        # Counted from the host after the receiver, which sends nothing to itself.
        src = (receiver + 1 + shuffled(draw, number, n_hosts - 1)) % n_hosts
        if self.server:
            src, receiver = burst(self.server, params.receiver, state.seed, state.burst, number)
        size = self._size(state, params)
        coin = to_unit(member_bits(state.seed, state.burst, number, IncastStream.START))
        delay = params.jitter_us * (number + coin) / size
        return anonymous_offer(
            state.start + delay,
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
        mean_rest = jnp.maximum(mean_gap - params.min_gap_us, 0.0)
        gap = -jnp.log(uniform(state.seed, state.burst, IncastStream.GAP)) * mean_rest
        gap = gap + params.min_gap_us
        return IncastState(
            seed=state.seed,
            burst=state.burst + over,
            taken=jnp.where(over, 0, total),
            start=state.start + jnp.where(over, gap, 0.0) - elapsed,
        )


def _check_receiver(receiver: int, hosts: int) -> None:
    """Refuse a receiver that is none of the hosts."""
    if receiver >= hosts:
        allowed = f"one of {hosts} hosts, 0 to {hosts - 1}, or -1 for a random one each burst"
        raise bad_value("receiver", receiver, allowed)
