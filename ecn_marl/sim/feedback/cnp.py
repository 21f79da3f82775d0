"""CNPs: single marks on their way back, one bit each, in shift registers per flow.

The delay line has two parts. `Flows.marks` is near: one bit per substep, 32 per word, long enough
for the way without queues. `Flows.late_marks` is far: one bit per `fine` substeps, for the delay
that queues on the ACKs' way add. It moves once per `far_step` substeps, at the start of a tick
(`refresh`). Marks that leave it enter the near part in the middle of the time that a bit covers.

Marks that share a bit reach the sender as one CNP. A bit of 20 µs is longer than the 4 µs within
which a NIC cuts its rate only once: with it, `hpcc-run` cut too seldom behind deep queues.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from ecn_marl.sim.feedback.signals import Line
from ecn_marl.sim.state import Flows

BITS = 32
"""Bits of a word."""


def near_words(rtt_us: float, dt_us: float) -> int:
    """Words of the near part: the longest round trip without queues, and some substeps more."""
    return math.ceil((rtt_us / dt_us + 8) / BITS)


def far_step(tick_steps: int) -> int:
    """Substeps between two moves of the far part: whole ticks, 20 substeps or a little less."""
    return tick_steps * max(1, 20 // tick_steps)


def fine_step(coarse: int) -> int:
    """Substeps per bit of the far part: 4, or 2 or 1 where `coarse` is no multiple of 4.

    Args:
        coarse: substeps between two moves of the far part, see `far_step`.
    """
    return math.gcd(coarse, 4)


class Refreshed(NamedTuple):
    """The delay line at the start of a tick.

    Attributes:
        flows: slots, with far marks that are due moved to the near part.
        far: where new marks go in the far part, see `signals.Line`, `[F]`.
        late: whether the far part is too short for them, `[F]`.
    """

    flows: Flows
    far: Int[Array, " flows"]
    late: Bool[Array, " flows"]


def refresh(
    flows: Flows, delay: Int[Array, " flows"], step: Int[Array, ""], coarse: int
) -> Refreshed:
    """Move the far part, if its time has come, and find where new marks go for a tick.

    Args:
        flows: slots.
        delay: feedback delay of each flow, substeps, `[F]`.
        step: substep at the start of the tick.
        coarse: substeps between two moves of the far part, see `far_step`.
    """
    words = list(flows.late_marks)
    n, fine = len(words), coarse // len(words)
    phase = step % coarse
    turn, low, first = phase == 0, words[0], flows.marks[0]
    for i in range(n):
        arrives = turn & ((low >> i) & 1 == 1)
        first = jnp.where(arrives, first | jnp.uint32(1 << (i * fine + fine // 2)), first)
    upper_words = [*words[1:], jnp.zeros_like(low)]
    moved = [w >> n | (upper << (BITS - n)) for w, upper in zip(words, upper_words, strict=True)]
    flows = replace(
        flows,
        marks=flows.marks.at[0].set(first),
        late_marks=jnp.where(turn, jnp.stack(moved), flows.late_marks),
    )
    ahead = delay - coarse + phase  # substeps from the next move on, of a mark made now
    far = jnp.clip(ahead // coarse, 0, BITS - 1) if n == 1 else ahead - step
    return Refreshed(flows, far, ahead // fine > BITS * n - 1)


def move(
    flows: Flows, hit: Bool[Array, " flows"], line: Line, step: Int[Array, ""], fine: int
) -> tuple[Flows, Array]:
    """Put the marks of a substep into the delay line and move it on by one.

    Args:
        flows: slots.
        hit: flows with a marked packet in this substep, `[F]`.
        line: delays.
        step: the substep.
        fine: substeps per bit of the far part.

    Returns:
        Slots, and whether a CNP reaches each sender now, `[F]`.
    """
    words, late = list(flows.marks), list(flows.late_marks)
    for i, word in enumerate(words):
        words[i] = set_bit(word, hit & (line.delay // BITS == i), line.delay - BITS * i)
    far = hit & (line.delay >= BITS * len(words))
    cnp = (words[0] & 1) == 1
    carry = [(word & 1) << (BITS - 1) for word in words[1:]] + [jnp.uint32(0)]
    marks = jnp.stack([(w >> 1) | c for w, c in zip(words, carry, strict=True)])
    if len(late) == 1:
        late = [set_bit(late[0], far, line.far)]
    else:
        at = jnp.clip((line.far + step) // fine, 0, BITS * len(late) - 1)
        late = [set_bit(w, far & (at // BITS == i), at % BITS) for i, w in enumerate(late)]
    return replace(flows, marks=marks, late_marks=jnp.stack(late)), cnp


def set_bit(
    register: jax.Array, hit: Bool[Array, " flows"], position: Int[Array, " flows"]
) -> jax.Array:
    """Set bit `position` (0..31) of each flow's uint32 `register` where `hit`."""
    # LLVM leaves shifts by 32 and more undefined, so they are clipped; `hit` is false there.
    bit = jnp.left_shift(jnp.uint32(1), jnp.clip(position, 0, BITS - 1).astype(jnp.uint32))
    return register | jnp.where(hit, bit, jnp.uint32(0))
