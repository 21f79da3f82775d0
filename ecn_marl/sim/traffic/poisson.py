"""Poisson arrivals at every host, sizes from a measured table; a source, see `sim.traffic.base`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array

from ecn_marl._checks import TEXT, Flag, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.network.servers import Server, apart, nics
from ecn_marl.sim.random import PoissonStream, uniform
from ecn_marl.sim.traffic.base import LOAD, WIDTH, Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.matrices import Matrix, as_matrix, between_servers
from ecn_marl.sim.traffic.sizes import (
    SizeTable,
    sample_in_progress,
    sample_size,
    size_table,
    wire_size,
)
from ecn_marl.sim.traffic.sizing import Demand

MOST_STANDING = 0.95
"""Load up to which the flows of a warm start grow; at 1 their number has no mean."""

STANDING_GAP_US = 5.0
"""Flows of a warm start begin one after the other, so that a tick can offer them, µs."""


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
    """State of `Poisson`: a seed, the number of the next flow, µs until it starts.

    `standing` is the number of flows that were in progress at the start; None without `warm`.
    """

    seed: Leaf
    count: Leaf
    start: Leaf
    standing: Leaf = None


@dataclass(frozen=True)
class Poisson:
    """Poisson arrivals at every host, to uniform destinations or by a traffic matrix.

    Independent Poisson processes per host, at rates proportional to the NICs or to the rows of the
    matrix, are one process whose flows pick their source with these proportions. It is generated
    that way.

    Attributes:
        load: default load, share of NIC rate.
        table: name of the default flow-size table, or the path of a file, see `size_table`.
        width: flows offered per tick; `auto` for what the defaults above need.
        matrix: weights of (source, destination), see `sim.traffic.matrices`; empty for sources in
            proportion to their NICs and uniform destinations. Weights between NICs of one server
            count as 0, see `matrices.between_servers`.
        warm: whether episodes begin with the flows that are in progress when links share them
            equally: at every host a geometric number with mean load / (1 - load), each with what
            is left of it (`sizes.sample_in_progress`). They begin `STANDING_GAP_US` apart.
            Heavy-tailed sizes take long to reach their load from an empty network.
        server: server of each host; a simulator fills it in where servers have several NICs.
    """

    load: Annotated[float, LOAD] = 0.6
    table: Annotated[str, TEXT] = "WebSearch"
    width: Annotated[int | str, WIDTH] = "auto"
    matrix: Matrix = ()
    warm: Annotated[bool, Flag()] = False
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
        # Hosts that send nothing have rows of zeros: 0 / 0 without the floor.
        by_destination = np.cumsum(weights, axis=1) / np.maximum(rows, 1e-300)[:, None]
        # Rounding may leave the last cumulative share below a draw, so the last receiver gets 2.
        last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
        by_destination = np.where(np.arange(weights.shape[1]) >= last[:, None], 2.0, by_destination)
        share = np.cumsum(rows) / rows.sum()
        share = np.where(np.arange(len(rows)) >= np.flatnonzero(rows)[-1], 2.0, share)
        return PoissonParams(
            load, table, share.astype(np.float32), by_destination.astype(np.float32)
        )

    def program(self) -> Poisson:
        """The source with fixed values in place of its traced parameters; see `program_of`."""
        return replace(self, load=1.0, table="WebSearch")

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """Load of the defaults, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        table, n = size_table(self.table), len(nic_rate)
        # Moments of the payload by the midpoint rule over its quantiles.
        payload = np.interp((np.arange(20_000) + 0.5) / 20_000, table.cdf, table.size)
        wire = wire_size(payload)
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
        zero = jnp.zeros((), jnp.int32)
        standing = self._standing(seed, params, nic_rate.shape[0]) if self.warm else None
        first = self._gap(params, nic_rate, seed, zero, standing)
        return PoissonState(seed, zero, first, standing)

    def _standing(self, seed: Array, params: PoissonParams, hosts: int) -> Array:
        """Flows in progress at the start: a geometric number for each host."""
        coins = uniform(seed, jnp.arange(hosts, dtype=jnp.int32), PoissonStream.STANDING)
        load = jnp.minimum(params.load, MOST_STANDING)
        return jnp.sum(jnp.floor(jnp.log(coins) / jnp.log(load)).astype(jnp.int32))

    def check_network(self, hosts: int) -> None:
        """Raise a ValueError if the matrix is of another number of hosts."""
        if self.matrix and len(self.matrix) != hosts:
            raise bad_value("matrix", f"{len(self.matrix)} rows", f"one for each of {hosts} hosts")

    def _gap(
        self,
        params: PoissonParams,
        nic_rate: Array,
        seed: Array,
        index: Array,
        standing: Array | None,
    ) -> Array:
        """Time between flow `index - 1` and flow `index`, µs."""
        per_us = params.load * nic_rate.sum() / params.table.mean
        gap = -jnp.log(uniform(seed, index, PoissonStream.GAP)) / per_us
        return gap if standing is None else jnp.where(index < standing, STANDING_GAP_US, gap)

    def offer(self, state: PoissonState, params: PoissonParams, nic_rate: Array) -> Offer:
        """The next `width` flows."""
        width = fixed_width(self)
        index = state.count + jnp.arange(width, dtype=jnp.int32)
        gaps = self._gap(params, nic_rate, state.seed, index[1:], state.standing)
        start = state.start + jnp.concatenate([jnp.zeros((1,), gaps.dtype), jnp.cumsum(gaps)])
        n = nic_rate.shape[0]
        streams = (PoissonStream.SENDER, PoissonStream.RECEIVER)
        coins = tuple(uniform(state.seed, index, stream) for stream in streams)
        if params.sources is not None:
            src = (coins[0][:, None] >= jnp.asarray(params.sources)).sum(1)
            dst = (coins[1][:, None] >= jnp.asarray(params.destinations)[src]).sum(1)
        else:
            share = jnp.cumsum(nic_rate) / nic_rate.sum()
            # Rounding may leave the last share below a draw. `compare_all` needs no loop.
            src = jnp.minimum(jnp.searchsorted(share, coins[0], method="compare_all"), n - 1)
            hop = jnp.floor(coins[1] * (n - 1)).astype(jnp.int32)
            dst = (src + 1 + jnp.minimum(hop, n - 2)) % n
            if self.server:
                reachable = nics(self.server)
                n_reachable = jnp.asarray(reachable.n_others)[src]
                hop = jnp.minimum((coins[1] * n_reachable).astype(jnp.int32), n_reachable - 1)
                dst = jnp.asarray(reachable.others)[src, hop]
        by_size = uniform(state.seed, index, PoissonStream.SIZE)
        payload = sample_size(params.table, by_size)
        if self.warm:
            left = uniform(state.seed, index, PoissonStream.LEFT)
            in_progress = sample_in_progress(params.table, by_size, left)
            payload = jnp.where(index < state.standing, in_progress, payload)
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
        number = jnp.arange(fixed_width(self), dtype=jnp.int32)
        gaps = self._gap(params, nic_rate, state.seed, state.count + 1 + number, state.standing)
        # Gaps are drawn again from their counters instead of being kept in the state.
        passed = jnp.sum(jnp.where(number < taken, gaps, 0.0))
        return replace(
            state,
            count=state.count + taken.astype(jnp.int32),
            start=state.start + passed - elapsed,
        )
