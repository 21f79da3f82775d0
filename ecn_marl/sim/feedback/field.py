"""The fluid models' signals: marking probability and own rate one feedback delay ago."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback.signals import Line, Observed, write


@struct.dataclass
class Field:
    """History of path marking probability and rate, `log` of `[D, 2, F]`."""

    log: Leaf


def init(slots: int, depth: int, real: Any) -> Field:
    """No history."""
    return Field(jnp.zeros((depth, 2, slots), real))


def step(
    field: Field, now: Observed, line: Line, step: Int[Array, ""]
) -> tuple[Field, Float[Array, " flows"], Float[Array, " flows"]]:
    """Marking probability and rate one feedback delay ago; none before the flow's first mark.

    Args:
        field: history.
        now: what the queues did.
        line: delays.
        step: substep (integer clock).

    Returns:
        History, marking probability and rate (bytes/µs), `[F]` each.
    """
    mark = -jnp.expm1(-now.log_survival)
    log = write(field.log, jnp.stack([mark, now.rate]), step)
    then = log[(step - line.delay) % log.shape[0], :, jnp.arange(mark.shape[0])]
    young = step - now.flows.start_step < line.delay
    past = jnp.where(young, jnp.stack([jnp.zeros_like(mark), now.rate]), then.T)
    return Field(log), past[0], past[1]
