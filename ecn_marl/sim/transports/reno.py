"""TCP that backs off on loss: slow start, one segment per round trip, half on a drop (RFC 5681).

A drop is noticed one feedback delay later (duplicate ACKs); the bytes are sent again. Timeouts are
not modelled: every drop is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._checks import POSITIVE, SHARE
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import ACKS, PROBE, Feedback
from ecn_marl.sim.transports.base import Overrides, limiting, put_new, with_overrides

SEGMENT = 1000.0
"""Payload of a full packet, bytes."""


@struct.dataclass
class RenoParams:
    """Constants, traced.

    Attributes:
        initial: first window, bytes.
        ai_bytes: growth of the window per round trip, bytes.
        keep: share of the window left after a loss.
    """

    initial: Annotated[Leaf, POSITIVE]
    ai_bytes: Annotated[Leaf, POSITIVE]
    keep: Annotated[Leaf, SHARE]


# RFC 5681: half the window, but two segments, after a loss; the first window of RFC 6928.
PRESETS = {"rfc5681": RenoParams(10 * SEGMENT, SEGMENT, 0.5)}


@struct.dataclass
class RenoState:
    """Senders, each leaf `[F]`: windows in bytes, rates in bytes/µs, times in µs.

    `hold` is the time until the next cut is allowed.
    """

    window: Leaf
    line: Leaf
    hold: Leaf
    slow_start: Leaf


@dataclass(frozen=True)
class Reno:
    """Loss-driven TCP senders.

    Attributes:
        name: preset that `default_params` returns.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "reno"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False

    name: str = "rfc5681"
    overrides: Overrides = ()

    @staticmethod
    def of(name: str, **overrides: float) -> Reno:
        """Senders for a preset.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        senders = Reno(name, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Acknowledgements, losses, and the ends of round trips."""
        return frozenset((ACKS, PROBE))

    def default_params(self) -> RenoParams:
        """Constants of the preset, overrides applied."""
        constants: RenoParams = with_overrides("reno", PRESETS, self.name, dict(self.overrides))
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> RenoState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero = jnp.zeros((slots,), dtype)
        return RenoState(zero, zero, zero, jnp.zeros((slots,), bool))

    def start(
        self,
        state: RenoState,
        params: RenoParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> RenoState:
        """Start flows in slow start, see `Transport.start`."""
        del base_rtt
        return RenoState(
            window=put_new(new, params.initial, state.window),
            line=put_new(new, line, state.line),
            hold=put_new(new, 0.0, state.hold),
            slow_start=put_new(new, True, state.slow_start),
        )

    def rate(self, state: RenoState) -> Float[Array, " flows"]:
        """The line's: the window decides."""
        return state.line

    def window(self, state: RenoState) -> Float[Array, " flows"] | None:
        """Congestion window."""
        return state.window

    def update(self, state: RenoState, params: RenoParams, heard: Feedback, dt: float) -> RenoState:
        """Advance all senders by one substep, see `Transport.update`."""
        assert heard.acked is not None and heard.lost is not None and heard.rtt is not None
        assert heard.returned is not None and heard.base_rtt is not None
        hold = state.hold - dt
        cut = (heard.lost > 0) & (hold <= 0)
        calm = heard.returned & (hold <= 0)
        step = jnp.where(calm, params.ai_bytes, 0.0)
        step = jnp.where(state.slow_start, SEGMENT * heard.acked, step)
        # Slow start doubles a window per round trip: the last one needed half of it.
        needed = state.window / jnp.where(state.slow_start, 2.0, 1.0)
        window = state.window + jnp.where(limiting(needed, state.line, heard), step, 0.0)
        window = jnp.where(cut, jnp.maximum(state.window * params.keep, 2.0 * SEGMENT), window)
        return replace(
            state,
            window=window,
            # `rtt` is 0 until the first probe is back.
            hold=jnp.where(cut, jnp.maximum(heard.rtt, heard.base_rtt), hold),
            slow_start=state.slow_start & ~cut,
        )
