"""The fluid models' signals: marking probability and own rate one feedback delay ago."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback.signals import Line, Observed, write


@struct.dataclass
class Field:
    """History of path marking probability and rate, `log` of `[D, 2, F]`."""

    log: Leaf


def init(slots: int, depth: int, real: DTypeLike) -> Field:
    """No history."""
    return Field(jnp.zeros((depth, 2, slots), real))


def step(
    field: Field, observed: Observed, line: Line, step: Int[Array, ""], dt: float
) -> tuple[Field, Float[Array, " flows"], Float[Array, " flows"]]:
    """Marking probability and rate one feedback delay ago; none before the flow's first mark.

    Rows of the history are values in the middle of their substeps. The result changes the rates at
    the end of this substep, so it is interpolated to one delay before that end.

    Args:
        field: history.
        observed: what the queues did.
        line: delays.
        step: substep (integer clock).
        dt: substep, µs.

    Returns:
        History, marking probability and rate (bytes/µs), `[F]` each.
    """
    # `1 - exp(-x)` would round probabilities below 6e-8 to 0 in float32.
    mark = -jnp.expm1(-observed.log_survival)
    log = write(field.log, jnp.stack([mark, observed.rate]), step)
    depth, flows = log.shape[0], jnp.arange(mark.shape[0])
    lag = jnp.maximum((observed.flows.rtt + line.back_wait) / dt - 0.5, 0.0)
    newer = jnp.minimum(lag.astype(jnp.int32), depth - 1)
    older = jnp.minimum(newer + 1, depth - 1)
    part = jnp.clip(lag - newer, 0.0, 1.0)[:, None]
    delayed = log[(step - newer) % depth, :, flows] * (1.0 - part)
    delayed = delayed + log[(step - older) % depth, :, flows] * part
    young = step - observed.flows.start_step < lag
    past = jnp.where(young, jnp.stack([jnp.zeros_like(mark), observed.rate]), delayed.T)
    return Field(log), past[0], past[1]
