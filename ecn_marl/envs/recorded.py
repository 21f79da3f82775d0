"""Recorded traffic: episodes that replay windows of a flow list.

PET pre-trains its model offline on data collected from a network (§4.4.1). A flow list (see
`sim.traffic.trace`) is such a record: which host sent how much to which, and when. An episode
starts at a random time of the list, with an empty network. After the last flow the list repeats,
one mean gap later, so that a window may start anywhere and has the load of the record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, PyTree

from ecn_marl._checks import Real
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.schedules import (
    Schedule,
    ScheduleParams,
    ScheduleState,
    schedule,
    widest_tick,
)
from ecn_marl.sim.traffic.sizes import wire_size
from ecn_marl.sim.traffic.sizing import Demand
from ecn_marl.sim.traffic.trace import FlowList, read_flows

WIDEST = 4096
"""Flows that may start within one tick."""


@struct.dataclass
class RecordedParams:
    """A recorded list of flows.

    Attributes:
        flows: the list, sorted by start, leaves `[N]`.
        period: substeps after which it begins again.
    """

    flows: ScheduleParams
    period: Annotated[Leaf, Real(low=1.0)]


@dataclass(frozen=True)
class Recorded(Schedule):
    """A source that replays a flow list from a random moment on; see `recorded`.

    Attributes:
        path: file of the list.
        topology: network it is for.
        digest: SHA-256 of the file when it was read. Sources that replay the same list are equal.
        flows: the list as it was then; the file is not read again.
    """

    path: str
    topology: Topology
    digest: str
    flows: FlowList = field(compare=False, repr=False)

    def check_params(self, params: PyTree, topology: Topology) -> None:
        """Refuse a list whose hosts or paths a network does not have."""
        super().check_params(params.flows, topology)

    def default_params(self) -> PyTree:
        """The list as arrays."""
        flows = self.flows
        order = np.argsort(flows.start_ns, kind="stable")
        columns = flows.take(order)
        first_ns = flows.start_ns.min()
        columns["start_ns"] = columns["start_ns"] - first_ns
        span = float(columns["start_ns"][-1]) / 1e3
        gap = span / max(len(flows) - 1, 1)
        period = max(round((span + gap) / self.dt_us), 1)
        return RecordedParams(schedule(columns, self.dt_us), np.int32(period))

    def demand(self, nic_rate: np.ndarray, tick_us: float) -> Demand:
        """Mean traffic of the list, see `sizing.Demand`; `nic_rate`: bytes/µs, `[H]`."""
        flows = self.flows
        columns, n = flows.take(np.arange(len(flows))), len(nic_rate)
        wire = wire_size(columns["size_B"])
        pairs = np.zeros((n, n))
        # `+=` would count one of several flows between the same hosts.
        np.add.at(pairs, (columns["src"], columns["dst"]), wire / wire.sum())
        span = float(np.ptp(flows.start_ns)) / 1e3
        return Demand(
            per_us=len(flows) / max(span, self.dt_us),
            burst=1.0,
            wire=float(wire.mean()),
            square=float((wire**2).mean()),
            pairs=pairs,
            most=self.width,
        )

    def init(
        self, key: jax.Array, params: PyTree, nic_rate: Array, episode: Array | None = None
    ) -> ScheduleState:
        """Start at a random substep of the list."""
        step = jax.random.randint(key, (), 0, params.period, jnp.int32)
        at = jnp.searchsorted(jnp.asarray(params.flows.start_step), step)
        return ScheduleState(at.astype(jnp.int32), step)

    def offer(self, state: ScheduleState, params: PyTree, nic_rate: Array) -> Offer:
        """The next `width` flows; after the last one, those of the next repetition."""
        n = params.flows.src.shape[0]
        index = state.next + jnp.arange(self.width, dtype=jnp.int32)
        # `Schedule.offer` counts from `next`; the rows below begin with that flow already.
        from_start = replace(state, next=jnp.zeros((), jnp.int32))
        rows: PyTree = jax.tree.map(lambda x: jnp.asarray(x)[index % n], params.flows)
        later = rows.start_step + index // n * params.period
        offered = super().offer(from_start, replace(rows, start_step=later), nic_rate)
        return replace(offered, flow_id=jnp.full((self.width,), -1, jnp.int32))

    def advance(
        self, state: ScheduleState, params: PyTree, nic_rate: Array, taken: Array, elapsed: float
    ) -> ScheduleState:
        """Drop the first `taken` flows and let `elapsed` µs pass."""
        return super().advance(state, params.flows, nic_rate, taken, elapsed)


def recorded(path: str, topology: Topology, dt_us: float, tick_us: float) -> Recorded:
    """A source that replays a flow list.

    Args:
        path: the file.
        topology: network it is for.
        dt_us: substep, µs.
        tick_us: time between admissions, µs.

    Raises:
        ValueError: it cannot be read, does not fit the network, or changed meanwhile.
        OSError: it cannot be opened.
    """
    digest = _digest(path)
    flows = _read(path, topology, digest)
    if len(flows) < 2:
        raise bad_value("flows", path, "a list of at least two flows")
    width = widest_tick(flows.start_ns, tick_us, WIDEST)
    return Recorded(dt_us, width, path, topology, digest, flows)


@lru_cache(maxsize=8)
def _read(path: str, topology: Topology, digest: str) -> FlowList:
    """A list, read once for all environments of a run; another content is another entry."""
    flows = read_flows(path, topology)
    if _digest(path) != digest:
        raise bad_value("flows", path, "a file that nobody writes to while it is read")
    return flows


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
