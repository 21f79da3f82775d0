"""CNPs: single marks on their way back, one bit each, in shift registers per flow.

The delay line has two parts. `Flows.marks` is near: one bit per substep, 32 per word, long enough
for the way without queues. `Flows.late_marks` is far: one word, one bit per `far_step` substeps,
for what queues add. It moves once per `far_step` substeps, at the start of a tick (`refresh`); what
leaves it enters the near part in the middle of the time that its bit stands for.
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
    """Substeps per bit of the far part: whole ticks, 20 substeps or a little less."""
    return tick_steps * max(1, 20 // tick_steps)


class Refreshed(NamedTuple):
    """The delay line at the start of a tick.

    Attributes:
        flows: slots, far marks that came near among the near ones.
        far: position of a new mark in the far part, `[F]`.
        late: whether the far part is too short for it, `[F]`.
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
        coarse: substeps per bit of the far part, see `far_step`.
    """
    phase = step % coarse
    near, half = coarse - phase, coarse // 2
    far = (delay - half - near + coarse // 2) // coarse
    coming, turn = flows.late_marks, phase == 0
    arrive = turn & ((coming & 1) == 1)
    first = jnp.where(arrive, flows.marks[0] | jnp.uint32(1 << half), flows.marks[0])
    flows = replace(
        flows,
        marks=flows.marks.at[0].set(first),
        late_marks=jnp.where(turn, coming >> 1, coming),
    )
    return Refreshed(flows, jnp.clip(far, 0, BITS - 1), far > BITS - 1)


def move(flows: Flows, hit: Bool[Array, " flows"], line: Line) -> tuple[Flows, Array]:
    """Put the marks of a substep into the delay line and move it on by one.

    Args:
        flows: slots.
        hit: flows with a marked packet in this substep, `[F]`.
        line: delays.

    Returns:
        Slots, and whether a CNP reaches each sender now, `[F]`.
    """
    words, late = list(flows.marks), flows.late_marks
    for i, word in enumerate(words):
        words[i] = set_bit(word, hit & (line.delay // BITS == i), line.delay - BITS * i)
    far = hit & (line.delay >= BITS * len(words))
    cnp = (words[0] & 1) == 1
    carry = [(word & 1) << (BITS - 1) for word in words[1:]] + [jnp.uint32(0)]
    marks = jnp.stack([(w >> 1) | c for w, c in zip(words, carry, strict=True)])
    return replace(flows, marks=marks, late_marks=set_bit(late, far, line.far)), cnp


def set_bit(
    register: jax.Array, hit: Bool[Array, " flows"], position: Int[Array, " flows"]
) -> jax.Array:
    """Set bit `position` (0..31) of each flow's uint32 `register` where `hit`."""
    bit = jnp.left_shift(jnp.uint32(1), jnp.clip(position, 0, BITS - 1).astype(jnp.uint32))
    return register | jnp.where(hit, bit, jnp.uint32(0))
