"""Groups of flows: all hosts of one set send to all of another, a given size or endlessly.

The static workloads of congestion-control papers: N flows to one receiver, all to all, a long flow
that others interrupt (Tessler et al., "Reinforcement Learning for Datacenter Congestion Control",
2021, §7).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array

from ecn_marl._checks import NOT_NEGATIVE, Real, Whole, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.random import GroupStream, shuffled, uniform
from ecn_marl.sim.traffic.base import WIDTH, Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.flow_checks import host_group
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.traffic.sizing import Demand
from ecn_marl.sim.traffic.tickets import check_hosts

ENDLESS_CHUNKS = 2**29
"""Size of a group's endless flows together, in units of `sizes.CHUNK`: 141 TB, three hours of
100 Gb/s. Counters of bytes hold two such groups."""

LONG_AGO_US = -1e7
"""A group's clock stops here, long after its last start; float32 still holds every µs."""


@struct.dataclass
class FlowGroupParams:
    """Traced parameters of `FlowGroup`: start and start window, µs; payload of each flow, bytes."""

    start_us: Annotated[Leaf, NOT_NEGATIVE]
    start_window_us: Annotated[Leaf, NOT_NEGATIVE]
    payload: Annotated[Leaf, Real(above=0.0, infinite=True, unit="bytes")]


@struct.dataclass
class FlowGroupState:
    """State of `FlowGroup`: its seed, the number of the next flow, µs until the group starts."""

    seed: Leaf
    next: Leaf
    start: Leaf


@dataclass(frozen=True)
class FlowGroup:
    """Flows between two sets of hosts, each once.

    The window of `start_window_us` is split evenly among the flows, in a random order of the pairs.
    Each flow starts at a random moment of its part.

    Attributes:
        sources: hosts that send.
        destinations: hosts that receive; none sends to itself.
        each: flows from every source to every destination.
        flow_kb: payload of each flow, KB; infinite for flows that do not end, each an equal
            share of `ENDLESS_CHUNKS`.
        start_us: when the group starts, µs.
        start_window_us: time within which all its flows start, µs.
        width: flows offered per tick; `auto` for as many as start in one.
    """

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    each: Annotated[int, Whole(low=1)] = 1
    flow_kb: Annotated[float, Real(low=1e-3, high=1e9, unit="KB", infinite=True)] = math.inf
    start_us: Annotated[float, Real(low=0.0, below=1e7, unit="µs")] = 0.0
    start_window_us: Annotated[float, Real(low=0.0, below=1e7, unit="µs")] = 0.0
    width: Annotated[int | str, WIDTH] = "auto"

    def __post_init__(self) -> None:
        """Check all fields."""
        for name in ("sources", "destinations"):
            object.__setattr__(self, name, host_group(name, getattr(self, name)))
        check(self)
        if not len(self.pairs):
            raise bad_value("destinations", self.destinations, "a host that is no source of it")

    @property
    def pairs(self) -> np.ndarray:
        """Source and destination of every flow, `[N, 2]`."""
        pairs = [(s, d) for s in self.sources for d in self.destinations if s != d]
        return np.repeat(np.array(pairs, np.int32).reshape(-1, 2), self.each, axis=0)

    @property
    def n_flows(self) -> int:
        """Number of flows N."""
        return len(self.pairs)

    @property
    def endless(self) -> bool:
        """Whether its flows never end."""
        return math.isinf(self.flow_kb)

    @property
    def _chunks(self) -> int:
        """Size of an endless flow."""
        return ENDLESS_CHUNKS // self.n_flows

    def default_params(self) -> FlowGroupParams:
        """Traced parameters for the fields above."""
        payload = self._chunks * CHUNK if self.endless else 1000.0 * self.flow_kb
        return FlowGroupParams(
            np.float32(self.start_us), np.float32(self.start_window_us), np.float32(payload)
        )

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        check_hosts("sources", self.sources, hosts)
        check_hosts("destinations", self.destinations, hosts)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """At most its flows, all at once; see `sizing.Demand`."""
        hosts, n = len(nic_rate), self.n_flows
        self.check_network(hosts)
        share = np.zeros((hosts, hosts))
        np.add.at(share, tuple(self.pairs.T), 1.0 / n)
        per_tick = (
            n if self.start_window_us <= 0 else math.ceil(n * tick_us / self.start_window_us) + 1
        )
        return Demand(0.0, 1.0, 0.0, 0.0, share, most=min(per_tick, n), bound=n)

    def init(
        self,
        key: jax.Array,
        params: FlowGroupParams,
        nic_rate: Array,
        episode: Array | None = None,
    ) -> FlowGroupState:
        """All flows about to start; `key` seeds their order and moments."""
        seed = jax.random.bits(key, (), jnp.uint32)
        start = jnp.asarray(params.start_us, nic_rate.dtype)
        return FlowGroupState(seed, jnp.zeros((), jnp.int32), start)

    def offer(self, state: FlowGroupState, params: FlowGroupParams, nic_rate: Array) -> Offer:
        """The next `width` flows."""
        n, pairs = self.n_flows, jnp.asarray(self.pairs)
        number = state.next + jnp.arange(fixed_width(self), dtype=jnp.int32)
        late = (number + uniform(state.seed, number, GroupStream.START)) * (
            params.start_window_us / n
        )
        bits = jax.lax.bitcast_convert_type(state.seed, jnp.uint32)
        # Rows past the last flow are computed too: their indices have to stay in range.
        order = shuffled(jnp.stack([bits, bits >> 16]), jnp.minimum(number, n - 1), n)
        payload = jnp.broadcast_to(jnp.asarray(params.payload, jnp.float32), number.shape)
        offer = anonymous_offer(
            state.start + late, pairs[order, 0], pairs[order, 1], payload, number < n
        )
        if self.endless:  # float32 does not hold so many bytes exactly
            # The low part gets a chunk: it holds at least one until the end, see `nic.send`.
            high = jnp.full(number.shape, self._chunks - 1, jnp.int32)
            low = jnp.zeros_like(offer.wire_low)
            offer = replace(offer, wire_high=high, wire_low=low + CHUNK)
        return offer

    def advance(
        self,
        state: FlowGroupState,
        params: FlowGroupParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> FlowGroupState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        start = jnp.maximum(state.start - elapsed, LONG_AGO_US)
        return FlowGroupState(state.seed, state.next + taken.astype(jnp.int32), start)
