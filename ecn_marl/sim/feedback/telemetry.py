"""In-network telemetry: queues and counters of the ports on the way (Li et al., SIGCOMM'19)."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ecn_marl._types import Leaf
from ecn_marl.sim.feedback.signals import Line, Observed, write


@struct.dataclass
class Telemetry:
    """Counters of the ports, and their history.

    Attributes:
        sent: bytes sent by each queue, modulo 2^32, and the rest below a byte, `[Q]` each.
        queue_log: history of the queues, bytes, `[D, Q]`.
        sent_log: history of `sent`, `[D, Q]`.
    """

    sent: tuple[Leaf, Leaf]
    queue_log: Leaf
    sent_log: Leaf


def init(queues: int, depth: int, real: DTypeLike) -> Telemetry:
    """Empty queues that have sent nothing."""
    return Telemetry(
        sent=(jnp.zeros((queues,), jnp.uint32), jnp.zeros((queues,), real)),
        queue_log=jnp.zeros((depth, queues), real),
        sent_log=jnp.zeros((depth, queues), jnp.uint32),
    )


def step(
    telemetry: Telemetry, observed: Observed, line: Line, step: Int[Array, ""]
) -> tuple[Telemetry, Float[Array, "levels flows"], Array]:
    """Queues and counters of the ports on the way, as they were when the ACKed packet left.

    Args:
        telemetry: counters and history.
        observed: what the queues did.
        line: delays.
        step: substep (integer clock).

    Returns:
        Counters and history; queues (bytes) and bytes sent (modulo 2^32), `[L, F]` each.
    """
    count, fraction = telemetry.sent
    fraction = fraction + observed.sent
    # A float32 counter would lose single bytes from 2^24 on: whole bytes go to the integer.
    whole = jnp.floor(fraction)
    count = count + whole.astype(jnp.uint32)
    queues = write(telemetry.queue_log, observed.queue, step)
    counts = write(telemetry.sent_log, count, step)
    row = (step - line.delay) % queues.shape[0]
    # Levels without a queue read some row, which `exists` masks.
    port = jnp.minimum(line.queues, observed.queue.shape[0] - 1)
    exists = line.queues < observed.queue.shape[0]
    telemetry = Telemetry(sent=(count, fraction - whole), queue_log=queues, sent_log=counts)
    return telemetry, jnp.where(exists, queues[row, port], 0.0), counts[row, port]
