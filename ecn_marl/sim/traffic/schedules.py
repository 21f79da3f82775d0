"""A fixed list of flows; a source, see `sim.traffic.base`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.traffic.flow_checks import Rows, check_flows
from ecn_marl.sim.traffic.sizes import CHUNK, wire_size

COLUMNS = ("src", "dst", "size_B", "start_ns")
"""Columns of flows that a schedule needs."""

PATHS = ("spine_data", "spine_ack")
"""Columns that it may have."""


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

    def check_params(self, params: ScheduleParams, topology: Topology) -> None:
        """Refuse a list whose hosts or paths a network does not have, see `traffic.Source`."""
        leaves = (params.src, params.dst, params.path, params.path_back)
        names = ("src", "dst", *PATHS)
        columns = {name: np.ravel(leaf) for name, leaf in zip(names, leaves, strict=True)}
        check_flows(columns, topology, Rows("schedule."))

    def default_params(self) -> ScheduleParams:
        """A schedule has no default list."""
        raise bad_value("schedule", None, "a list of flows: see ecn_marl.sim.schedule")

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
        # Rows past the end of the list repeat its last flow, and are not valid.
        rows: PyTree = jax.tree.map(lambda x: jnp.asarray(x)[jnp.minimum(index, n - 1)], params)
        # Integers are subtracted first: float32 tells times 1 µs apart only up to 16 s.
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


def schedule(flows: Mapping[str, ArrayLike], dt_us: float) -> ScheduleParams:
    """Turn columns of flows into the arrays of a `Schedule`.

    Args:
        flows: columns `src`, `dst`, `size_B` (payload bytes), `start_ns`, sorted by start, and
            optionally `spine_data`, `spine_ack` (path index, -1 for none given), each `[N]`.
        dt_us: substep of the simulator, µs.

    Returns:
        The schedule's traced parameters.

    Raises:
        ValueError: a column is missing or of another length than the others, there is no flow, a
            value is not allowed in a flow list (see `flow_checks.check_flows`), the flows are not
            in order of their start, or one starts too late. Whether the network has the hosts and
            the paths is checked where the schedule meets it, in `Simulator.default_params`.
    """
    columns = _checked(flows)
    size, start = columns["size_B"], columns["start_ns"] / 1e3
    high, low = wire_parts(size)
    # Whole substeps and a rest: the rest alone is small enough for float32.
    step = np.floor(start / dt_us)
    outside = np.flatnonzero(~((step >= 0.0) & (step < 2.0**31)))
    if outside.size:
        allowed = f"a time from 0 to {2.0**31 * dt_us * 1e3:g} ns, 2^31 substeps of {dt_us:g} µs"
        row = int(outside[0])
        raise bad_value(f"start_ns[{row}]", float(1e3 * start[row]), allowed)
    unset = np.full(size.shape, -1)
    return ScheduleParams(
        start_step=step.astype(np.int32),
        start_rest=(start - step * dt_us).astype(np.float32),
        src=columns["src"].astype(np.int32),
        dst=columns["dst"].astype(np.int32),
        payload=size.astype(np.float32),
        wire_high=high,
        wire_low=low,
        path=columns.get("spine_data", unset).astype(np.int32),
        path_back=columns.get("spine_ack", unset).astype(np.int32),
    )


def _checked(flows: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Columns of a schedule as numbers, checked but for the network."""
    for name in COLUMNS:
        if name not in flows:
            allowed = f"a column {name}; the columns are {', '.join(COLUMNS)}"
            raise bad_value("flows", list(flows), f"{allowed}, and optionally {', '.join(PATHS)}")
    given = {name: flows[name] for name in (*COLUMNS, *PATHS) if name in flows}
    place = Rows()
    place.check_lengths(given)
    columns = check_flows(given, None, place)
    start = columns["start_ns"]
    unsorted = np.flatnonzero(np.diff(start) < 0)
    if unsorted.size:
        row = int(unsorted[0]) + 1
        raise place.error("start_ns", row, float(start[row]), "flows in order of their start")
    return columns


def wire_parts(size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wire bytes of payloads, exactly: whole units of `CHUNK` (int32) and the rest, `[N]` each.

    Args:
        size: payloads, whole bytes, int64, `[N]`.
    """
    wire = wire_size(size).astype(np.int64)
    # A chunk stays in the rest: NICs send from it, and it would limit their rates.
    high = np.maximum(wire // int(CHUNK) - 1, 0)
    return high.astype(np.int32), (wire - high * int(CHUNK)).astype(np.float32)


def widest_tick(start_ns: np.ndarray, tick_us: float, limit: int) -> int:
    """Largest number of flows that start within one tick, at most `limit`."""
    ticks = np.floor(np.asarray(start_ns, np.float64) / (1e3 * tick_us)).astype(np.int64)
    return min(int(np.unique(ticks, return_counts=True)[1].max()), limit)
