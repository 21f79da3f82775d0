"""A fixed list of flows; a source, see `sim.traffic`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.sizes import CHUNK, wire_size
from ecn_marl.sim.traffic import Offer


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
        raise bad_value("schedule", None, "a list of flows: see ecn_marl.sim.schedules.schedule")

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
    unsorted = np.flatnonzero(np.diff(np.asarray(flows["start_ns"], np.float64)) < 0)
    if unsorted.size:
        row = int(unsorted[0]) + 1
        raise bad_value(f"start_ns[{row}]", flows["start_ns"][row], "flows in order of their start")
    size = np.asarray(flows["size_B"], np.int64)
    high, low = wire_parts(size)
    start = np.asarray(flows["start_ns"], np.float64) / 1e3
    # Whole substeps and a rest: the rest alone is small enough for float32.
    step = np.floor(start / dt_us)
    outside = np.flatnonzero(~((step >= 0.0) & (step < 2.0**31)))
    if outside.size:
        allowed = f"a time from 0 to {2.0**31 * dt_us * 1e3:g} ns, 2^31 substeps of {dt_us:g} µs"
        raise bad_value("start_ns", float(1e3 * start[outside[0]]), allowed)
    unset = np.full(size.shape, -1, np.int32)
    return ScheduleParams(
        start_step=step.astype(np.int32),
        start_rest=(start - step * dt_us).astype(np.float32),
        src=np.asarray(flows["src"], np.int32),
        dst=np.asarray(flows["dst"], np.int32),
        payload=size.astype(np.float32),
        wire_high=high,
        wire_low=low,
        path=np.asarray(flows.get("spine_data", unset), np.int32),
        path_back=np.asarray(flows.get("spine_ack", unset), np.int32),
    )


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
