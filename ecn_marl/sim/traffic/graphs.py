"""Graphs of flows that depend on each other: collectives and jobs, step after step.

A node is a flow that begins some time after the flows that it depends on have finished (their last
ACKs have arrived at their senders). When all have finished the step is over, and after a pause the
next one begins. Builders of collectives and a reader of files are in `sim.traffic.collectives`.
Dependencies cost up to a tick, see `sim.traffic.tickets`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral
from types import ModuleType
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike
from jaxtyping import Array
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from ecn_marl._checks import NOT_NEGATIVE, Real, check
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.random import GraphStream, uniform
from ecn_marl.sim.traffic.base import Offer, anonymous_offer, fixed_width
from ecn_marl.sim.traffic.flow_checks import Rows, check_flows
from ecn_marl.sim.traffic.schedules import wire_parts
from ecn_marl.sim.traffic.sizes import exact_add
from ecn_marl.sim.traffic.sizing import Demand
from ecn_marl.sim.traffic.tickets import (
    TIME_UNIT,
    Finished,
    Pending,
    as_reals,
    check_delay,
    check_hosts,
)


@dataclass(frozen=True)
class Node:
    """A flow of a graph.

    Attributes:
        id: name or number of the node, its own.
        src: source host.
        dst: destination host.
        bytes: payload, bytes.
        delay_us: time from the end of the last flow it depends on (or the start of the step) to its
            start, µs: the time that the host computes in between.
        after: the nodes it depends on.
    """

    id: int | str
    src: int
    dst: int
    bytes: int
    delay_us: float = 0.0
    after: tuple[int | str, ...] = ()


def check_nodes(nodes: Sequence[Node], where: str = "nodes") -> None:
    """Refuse nodes that are no graph of flows without cycles.

    Args:
        nodes: the nodes.
        where: their name in errors, e.g. the file they are from.

    Raises:
        ValueError: no node, two of one id, a flow that is not allowed in a flow list (see
            `flow_checks.check_flows`), a delay out of range, an unknown id in `after`, or a cycle;
            the node and field are named.
    """
    if not nodes:
        raise bad_value(where, (), "at least one node")
    ids: set[int | str] = set()
    for node in nodes:
        place = f"{where}: node {node.id!r}"
        if not _is_id(node.id):
            raise bad_value(f"{place}: id", node.id, "a number or text")
        if node.id in ids:
            raise bad_value(f"{place}: id", node.id, "an id of its own: another node has it")
        ids.add(node.id)
        check_delay(f"{place}: delay_us", node.delay_us)
    columns = {name: [getattr(node, name) for node in nodes] for name in ("src", "dst", "bytes")}
    columns["size_B"] = columns.pop("bytes")
    check_flows(columns, None, _Place(nodes, where))
    for node in nodes:
        place = f"{where}: node {node.id!r}"
        if not isinstance(node.after, tuple):
            raise bad_value(f"{place}: after", node.after, "a tuple of ids")
        for needed in node.after:
            if not _is_id(needed) or needed not in ids:
                raise bad_value(f"{place}: after", needed, "ids of other nodes")
    _check_order(nodes, where)


def _is_id(x: object) -> bool:
    """Whether something is a number or text; `True` is neither."""
    return isinstance(x, Integral | str) and not isinstance(x, bool)


class _Place(NamedTuple):
    """Where the flows of a graph are, see `flow_checks.Place`: a node each."""

    nodes: Sequence[Node]
    where: str

    def error(self, column: str, row: int, value: object, allowed: str) -> InvalidInput:
        name = "bytes" if column == "size_B" else column
        return bad_value(f"{self.where}: node {self.nodes[row].id!r}: {name}", value, allowed)

    def row(self, row: int) -> str:
        return f"node {self.nodes[row].id!r}"


def _check_order(nodes: Sequence[Node], where: str) -> None:
    """Refuse cycles: remove, one by one, nodes without unmet dependencies."""
    unmet = {node.id: len(set(node.after)) for node in nodes}
    dependents: dict[int | str, list[int | str]] = {node.id: [] for node in nodes}
    for node in nodes:
        for other in set(node.after):
            dependents[other].append(node.id)
    ready = [name for name, n in unmet.items() if not n]
    for name in ready:  # the loop appends to it
        for dependent in dependents[name]:
            unmet[dependent] -= 1
            if not unmet[dependent]:
                ready.append(dependent)
    if len(ready) == len(nodes):
        return
    stuck = {n.id: n for n in nodes if unmet[n.id]}
    name, visited = next(iter(stuck)), []
    while name not in visited:
        visited.append(name)
        name = next(other for other in stuck[name].after if other in stuck)
    cycle = " after ".join(repr(n) for n in [*visited[visited.index(name) :], name])
    raise bad_value(f"{where}: node {name!r}: after", stuck[name].after, f"no cycle: {cycle}")


@cache
def most_at_once(nodes: tuple[Node, ...]) -> int:
    """An upper bound of the flows of a graph that are in progress at once.

    A path of dependencies has at most one of its flows in progress. So the bound is the smallest
    number of paths that hold all nodes once: the number of nodes less the largest matching of nodes
    and their successors. It is exact for a ring, all-to-all and parameter servers, and 1.5 times
    the maximum for a tree.
    """
    number = {node.id: i for i, node in enumerate(nodes)}
    pairs = [(number[a], i) for i, node in enumerate(nodes) for a in set(node.after)]
    if not pairs:
        return len(nodes)
    rows, columns = zip(*pairs, strict=True)
    shape = (len(nodes), len(nodes))
    graph = csr_matrix((np.ones(len(pairs), np.int8), (rows, columns)), shape)
    return len(nodes) - int((maximum_bipartite_matching(graph) >= 0).sum())


@struct.dataclass
class GraphParams:
    """Traced parameters of `Graph`, for K nodes and E dependencies; see `graph_params`.

    Attributes:
        src: source host of each node, `[K]`.
        dst: destination host, `[K]`.
        payload: bytes, `[K]`.
        wire_high: wire bytes, whole units of `sizes.CHUNK`, `[K]`.
        wire_low: wire bytes beyond those, `[K]`; exact at any size.
        delay_us: time from the last dependency to the start, µs, `[K]`.
        first: node of each dependency that has to finish, K for none, `[E]`.
        then: node that depends on it, K for none, `[E]`.
        needs: number of dependencies of each node, `[K]`.
        pause_us: time from the end of a step to the next one, µs.
    """

    src: Leaf
    dst: Leaf
    payload: Annotated[Leaf, NOT_NEGATIVE]
    wire_high: Leaf
    wire_low: Leaf
    delay_us: Annotated[Leaf, NOT_NEGATIVE]
    first: Leaf
    then: Leaf
    needs: Leaf
    pause_us: Annotated[Leaf, NOT_NEGATIVE]


def graph_params(
    nodes: Sequence[Node], pause_us: float = 0.0, edges: int | None = None
) -> GraphParams:
    """The arrays of a graph, e.g. to replace it by another one with as many nodes.

    Args:
        nodes: the nodes.
        pause_us: time from the end of a step to the next one, µs.
        edges: length of the lists of dependencies; None for as many as there are, at least 1.

    Raises:
        ValueError: not a graph, see `check_nodes`, a pause out of range, or too few edges.
    """
    check_nodes(nodes)
    check_delay("pause_us", pause_us)
    number, k = {node.id: i for i, node in enumerate(nodes)}, len(nodes)
    # `dict.fromkeys` drops repeats like a set, but in the same order in every process.
    pairs = [(number[a], i) for i, node in enumerate(nodes) for a in dict.fromkeys(node.after)]
    length = max(len(pairs), 1) if edges is None else edges
    if length < max(len(pairs), 1):
        raise bad_value("edges", edges, f"at least {max(len(pairs), 1)}")
    links = np.array([*pairs, *[(k, k)] * (length - len(pairs))], np.int32)
    size = np.array([n.bytes for n in nodes], np.int64)
    high, low = wire_parts(size)
    return GraphParams(
        src=np.array([n.src for n in nodes], np.int32),
        dst=np.array([n.dst for n in nodes], np.int32),
        payload=size.astype(np.float32),
        wire_high=high,
        wire_low=low,
        delay_us=np.array([n.delay_us for n in nodes], np.float32),
        first=links[:, 0],
        then=links[:, 1],
        needs=np.array([len(set(n.after)) for n in nodes], np.int32),
        pause_us=np.float32(pause_us),
    )


@struct.dataclass
class GraphState:
    """State of `Graph`.

    Attributes:
        seed: seeds starts, pauses and sizes.
        tick: ticks since the start.
        pending: flows that are to begin, `[K]`.
        missing: dependencies of each node that have not finished in this step, `[K]`.
        left: nodes that have not finished in this step.
        begun: time within the tick `begun_tick` at which the step began, µs.
        begun_tick: see there.
        steps: steps completed since the start.
        total: sum of their times, µs, as whole `tickets.TIME_UNIT`s and a rest.
        longest: the longest of them, µs.
        last: the last of them, µs; infinite before the first, as a state must not hold NaN.
    """

    seed: Leaf
    tick: Leaf
    pending: Pending
    missing: Leaf
    left: Leaf
    begun: Leaf
    begun_tick: Leaf
    steps: Leaf
    total: tuple[Leaf, Leaf]
    longest: Leaf
    last: Leaf


EXACT = 2.0**24
"""Largest payload that float32 holds to the byte."""


@dataclass(frozen=True)
class Graph:
    """A graph of flows, repeated step after step for ever.

    The time of a step is from its start (delays of its first nodes included) to the moment when the
    last of its flows has finished.

    Attributes:
        nodes: its flows, e.g. of `collectives.ring_all_reduce` or `read_graph`.
        pause_us: time from the end of a step to the next one, µs.
        width: flows that may begin in a tick; `auto` for as many as may be in progress at once.
        pause_jitter: pauses are uniform within this share of `pause_us`, up and down, drawn for
            each.
        size_jitter: the payloads of a step are theirs times a factor, uniform within this share of
            1, drawn for each step.
        start_us: the first step begins within this time, uniform, µs.
    """

    nodes: tuple[Node, ...]
    pause_us: float = 0.0
    width: int | str = "auto"
    pause_jitter: Annotated[float, Real(low=0.0, high=1.0)] = 0.0
    size_jitter: Annotated[float, Real(low=0.0, below=1.0)] = 0.0
    start_us: float = 0.0

    def __post_init__(self) -> None:
        """Check all fields."""
        object.__setattr__(self, "nodes", tuple(self.nodes))
        check_nodes(self.nodes)
        check(self)
        check_delay("pause_us", (1.0 + self.pause_jitter) * self.pause_us)
        check_delay("start_us", self.start_us)
        largest = max(node.bytes for node in self.nodes)
        if self.size_jitter and (1.0 + self.size_jitter) * largest > EXACT:
            allowed = f"0 with flows above {EXACT / (1.0 + self.size_jitter):g} bytes"
            raise bad_value("size_jitter", self.size_jitter, allowed)

    @property
    def n_tickets(self) -> int:
        """Number of nodes K."""
        return len(self.nodes)

    def default_params(self) -> GraphParams:
        """Traced parameters for the fields above."""
        return graph_params(self.nodes, self.pause_us)

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """As many flows at once as the dependencies allow, see `sizing.Demand`."""
        self.check_network(len(nic_rate))
        n, pairs = most_at_once(self.nodes), np.zeros((len(nic_rate), len(nic_rate)))
        np.add.at(pairs, tuple(zip(*((x.src, x.dst) for x in self.nodes), strict=True)), 1.0)
        return Demand(0.0, 1.0, 0.0, 0.0, pairs / pairs.sum(), most=n, bound=n)

    def check_params(self, params: GraphParams, topology: Topology) -> None:
        """Refuse another number of nodes, and hosts that a network does not have, see `Source`."""
        count = np.shape(params.src)[-1]
        if count != self.n_tickets:
            allowed = f"{self.n_tickets}, as many as the source has: they fix shapes"
            raise bad_value("number of nodes of graph", count, allowed)
        check_flows({"src": params.src, "dst": params.dst}, topology, Rows("graph."))

    def check_network(self, n_hosts: int) -> None:
        """Raise a ValueError for hosts that a network does not have."""
        for name in ("src", "dst"):
            for node in self.nodes:
                check_hosts(f"node {node.id!r}: {name}", (getattr(node, name),), n_hosts)

    def init(
        self, key: jax.Array, params: GraphParams, nic_rate: Array, episode: Array | None = None
    ) -> GraphState:
        """At the start of the first step."""
        self.check_network(nic_rate.shape[0])
        real, zero = nic_rate.dtype, jnp.zeros((), jnp.int32)
        needs, seed = jnp.asarray(params.needs), jax.random.bits(key, (), jnp.uint32)
        origin = jnp.zeros((), real)
        if self.start_us:
            origin = (self.start_us * uniform(seed, zero, GraphStream.START)).astype(real)
        start = jnp.where(needs == 0, origin + jnp.asarray(params.delay_us, real), jnp.inf)
        return GraphState(
            seed=seed,
            tick=zero,
            pending=Pending.of(start.astype(real)),
            missing=needs,
            left=zero + self.n_tickets,
            begun=origin,
            begun_tick=zero,
            steps=zero,
            total=(zero, jnp.zeros((), real)),
            longest=jnp.zeros((), real),
            last=jnp.full((), math.inf, real),
        )

    def offer(self, state: GraphState, params: GraphParams, nic_rate: Array) -> Offer:
        """The first `width` flows that begin in the coming tick."""
        index, valid = state.pending.front(fixed_width(self))
        start = jnp.where(valid, state.pending.start[index], 0.0)
        lists = (params.src, params.dst, params.payload, params.wire_high, params.wire_low)
        src, dst, payload, high, low = (jnp.asarray(x)[index] for x in lists)
        if self.size_jitter:
            factor = self._factor(self.size_jitter, state, GraphStream.SIZE)
            payload = jnp.maximum(jnp.floor(payload * factor), 1.0)
            return replace(anonymous_offer(start, src, dst, payload, valid), ticket=index)
        offer = anonymous_offer(start, src, dst, payload, valid)
        return replace(offer, wire_high=high, wire_low=low, ticket=index)

    def _factor(self, jitter: float, state: GraphState, stream: GraphStream) -> Array:
        """A factor around 1, drawn for the present step."""
        factor: Array = 1.0 + jitter * (2.0 * uniform(state.seed, state.steps, stream) - 1.0)
        return factor

    def advance(
        self,
        state: GraphState,
        params: GraphParams,
        nic_rate: Array,
        taken: Array,
        elapsed: float,
    ) -> GraphState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        pending = state.pending.advanced(taken.astype(jnp.int32), elapsed)
        return replace(state, tick=state.tick + 1, pending=pending)

    def finished(
        self,
        state: GraphState,
        params: GraphParams,
        nic_rate: Array,
        ends: Finished,
        elapsed: float,
    ) -> GraphState:
        """Begin the flows that depended on these, or the next step if these were the last."""
        k = self.n_tickets
        ended = jnp.where(ends.done, -ends.ago, -jnp.inf)
        first, then = jnp.asarray(params.first), jnp.asarray(params.then)
        # Row K is for dependencies that only fill up the lists.
        met = jnp.append(ends.done, False)[first].astype(jnp.int32)
        met = jnp.zeros((k + 1,), jnp.int32).at[then].add(met)[:k]
        latest = jnp.append(ended, -jnp.inf)[first]
        latest = jnp.full((k + 1,), -jnp.inf, ended.dtype).at[then].max(latest)[:k]
        missing, left = state.missing - met, state.left - ends.done.sum().astype(jnp.int32)
        ready = (missing == 0) & (met > 0)
        start = jnp.where(ready, jnp.maximum(latest + params.delay_us, 0.0), state.pending.start)
        over, end = left == 0, jnp.max(ended)
        # Whole ticks are integers: float32 clocks would lose microseconds in long episodes.
        time = (state.tick - state.begun_tick) * elapsed - state.begun + end
        # Where nothing has ended `end` is -inf, which must not reach the sum of times.
        time = jnp.where(over, time, 0.0)
        pause = params.pause_us
        if self.pause_jitter:
            pause = pause * self._factor(self.pause_jitter, state, GraphStream.PAUSE)
        origin = jnp.where(over, jnp.maximum(end + pause, 0.0), 0.0)
        start = jnp.where(over & (params.needs == 0), origin + params.delay_us, start)
        return replace(
            state,
            pending=replace(state.pending, start=start).lined_up(elapsed),
            missing=jnp.where(over, params.needs, missing),
            left=jnp.where(over, k, left),
            begun=jnp.where(over, origin, state.begun),
            begun_tick=jnp.where(over, state.tick, state.begun_tick),
            steps=state.steps + over,
            total=exact_add(*state.total, time, TIME_UNIT),
            longest=jnp.maximum(state.longest, time),
            last=jnp.where(over, time, state.last),
        )

    def in_steps(self, state: GraphState, elapsed: float) -> tuple[Array, Array]:
        """Steps that have begun, and the time spent in them so far, µs.

        The present step counts with its age. So the time grows by 1 µs per µs within steps, and
        not in pauses; its mean over the steps begun is a lower bound of that of whole steps.

        Args:
            state: state of this source at the end of a tick.
            elapsed: length of a tick, µs.
        """
        age = self._age(state, elapsed)
        high, low = state.total
        spent: Array = high * TIME_UNIT + low + age
        return jnp.asarray(state.steps) + (age > 0.0), spent

    def longest_step(self, state: GraphState, elapsed: float) -> Array:
        """Time of the longest step, µs; the present one counts with its age. NaN before the first.

        Args:
            state: state of this source at the end of a tick.
            elapsed: length of a tick, µs.
        """
        longest = jnp.maximum(state.longest, self._age(state, elapsed))
        return jnp.where(longest > 0.0, longest, jnp.nan)

    def _age(self, state: GraphState, elapsed: float) -> Array:
        """Age of the present step, µs; 0 between steps."""
        age = (state.tick - state.begun_tick) * elapsed - jnp.asarray(state.begun)
        return jnp.maximum(age, 0.0)

    def progress(self, state: GraphState) -> Array:
        """Steps completed, and the share of the present one's flows that have finished."""
        left = jnp.asarray(state.left)
        finished: Array = state.steps + (self.n_tickets - left) / self.n_tickets
        return finished

    def metrics(
        self, state: GraphState, elapsed_us: ArrayLike, xp: ModuleType = np
    ) -> dict[str, np.ndarray | Array]:
        """Steps since the start; every entry a number, or a batch of them.

        Args:
            state: state of this source, perhaps of a batch.
            elapsed_us: time since the start, µs; not used.
            xp: `numpy` for float64, or `jax.numpy` where the state is traced.

        Returns:
            `steps`; `step_us`, their mean time; `longest_us`; `last_us`. Without steps the mean and
            the last time are NaN.
        """
        del elapsed_us
        values = *state.total, state.steps, state.longest, state.last
        high, low, steps, longest, last = as_reals(xp, *values)
        # Without steps the mean is 0 / 0: NaN, as documented.
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = xp.asarray((high * TIME_UNIT + low) / steps)
        last = xp.where(steps > 0, last, math.nan)
        return {"steps": steps, "step_us": mean, "longest_us": longest, "last_us": last}
