"""A log of the flows that have finished, in the state of a simulation; kept on request only.

Slots are used again, so what a flow was is lost when the next one takes its slot. The log keeps one
row for each flow that finishes, in this order, in arrays of a fixed length. Once they are full,
further flows are counted and not kept: `count` above the length says that the log is not whole.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.state import Flows

WHOLE = ("src", "dst", "kind", "flow_id", "start_step")
"""Fields of the slots that are kept as whole numbers."""

REAL = ("start_rest", "payload", "ideal", "tail")
"""Fields of the slots that are kept as reals."""


@struct.dataclass
class FlowLog:
    """Finished flows, one a row; names as in `state.Flows`.

    Attributes:
        count: flows that have finished, those that found no room among them.
        whole: the fields of `WHOLE`, and `end_step`, the substeps at the end of the tick in which
            the flow finished, by name, int32 `[N]`. It finished `tail` µs after that (below 0).
        real: the fields of `REAL` by name, `[N]`.
        hop: the queue at each level of its way, numbers as in `Flows.hop`, `[rows, N]`.
    """

    count: Leaf
    whole: dict[str, Leaf]
    real: dict[str, Leaf]
    hop: Leaf


def empty(length: int, rows: int, real: DTypeLike) -> FlowLog:
    """A log without flows.

    Args:
        length: room for so many flows, N.
        rows: rows of `Flows.hop`.
        real: type of the reals.
    """
    integers, reals = jnp.zeros((length,), jnp.int32), jnp.zeros((length,), real)
    return FlowLog(
        count=jnp.zeros((), jnp.int32),
        whole=dict.fromkeys((*WHOLE, "end_step"), integers),
        real=dict.fromkeys(REAL, reals),
        hop=jnp.zeros((rows, length), jnp.int32),
    )


def append(
    log: FlowLog, flows: Flows, done: Bool[Array, " flows"], step: Int[Array, ""]
) -> FlowLog:
    """The log with the flows that have finished in a tick.

    Args:
        log: the log before.
        flows: slots at the end of the tick, before any is released.
        done: which of them finished in this tick.
        step: substeps since the start, at the end of the tick.
    """
    length = log.hop.shape[-1]
    place = log.count + jnp.cumsum(done).astype(jnp.int32) - 1
    # What is out of bounds is dropped, so `lanes` may skip slots that finish nothing.
    row = jnp.where(done, place, length)

    def put(rows: Leaf, values: Array) -> Array:
        return jnp.asarray(rows).at[row].set(values.astype(rows.dtype), mode="drop")

    ends = jnp.broadcast_to(step, row.shape)
    return FlowLog(
        count=log.count + done.sum().astype(jnp.int32),
        whole={name: put(log.whole[name], getattr(flows, name)) for name in WHOLE}
        | {"end_step": put(log.whole["end_step"], ends)},
        real={name: put(log.real[name], getattr(flows, name)) for name in REAL},
        hop=jnp.stack([put(log.hop[i], flows.hop[i]) for i in range(log.hop.shape[0])]),
    )
