"""SWIFT: windows that keep the delay at a target (Kumar et al., SIGCOMM'20).

The target grows with the number of hops and, to keep many small flows apart, with `1 / sqrt(cwnd)`.
Below it the window grows by `ai` segments per round trip; above it is cut in proportion to the
excess, at most once per round trip. Windows below one segment pace single packets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, SHARE
from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import ACKS, PROBE, Feedback
from ecn_marl.sim.transports.base import Overrides, limiting, put_new, with_overrides

SEGMENT = 1000.0
"""Payload of a full packet, bytes."""


@struct.dataclass
class SwiftParams:
    """Constants of SWIFT, traced.

    Attributes:
        base: target delay of a flow without hops and with a large window, µs.
        per_hop: additional target per hop, µs.
        fs_range: largest additional target of flow scaling, µs.
        fs_min: window at which flow scaling is largest, segments.
        fs_max: window from which there is none, segments.
        ai: additive increase, segments per round trip.
        beta: strength of a cut.
        max_cut: largest cut.
        least: smallest window, segments.
    """

    base: Annotated[Leaf, POSITIVE]
    per_hop: Annotated[Leaf, NOT_NEGATIVE]
    fs_range: Annotated[Leaf, NOT_NEGATIVE]
    fs_min: Annotated[Leaf, POSITIVE]
    fs_max: Annotated[Leaf, POSITIVE]
    ai: Annotated[Leaf, POSITIVE]
    beta: Annotated[Leaf, POSITIVE]
    max_cut: Annotated[Leaf, SHARE]
    least: Annotated[Leaf, POSITIVE]


PRESETS = {
    # The published values could not be read; htsim's authors call ai, beta, max_cut and the hop
    # term of theirs a guess. Base target 20 µs, hop term base / 6.55, scaling up to 5 times base.
    "htsim": SwiftParams(20.0, 20.0 / 6.55, 100.0, 0.1, 100.0, 1.0, 0.8, 0.5, 0.01),
}


@struct.dataclass
class SwiftState:
    """Senders, each leaf `[F]`: window in segments, rates in bytes/µs, times in µs.

    `hold` is the time until the next cut is allowed.
    """

    cwnd: Leaf
    line: Leaf
    rtt: Leaf
    hold: Leaf


@dataclass(frozen=True)
class Swift:
    """SWIFT senders.

    Attributes:
        name: preset that `default_params` returns.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "swift"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False

    name: str = "htsim"
    overrides: Overrides = ()

    @staticmethod
    def of(name: str, **overrides: float) -> Swift:
        """Senders for a preset.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        senders = Swift(name, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Acknowledgements and round-trip times."""
        return frozenset((ACKS, PROBE))

    def default_params(self) -> SwiftParams:
        """Constants of the preset, overrides applied."""
        constants: SwiftParams = with_overrides("SWIFT", PRESETS, self.name, dict(self.overrides))
        if not constants.fs_min < constants.fs_max:
            raise bad_value("fs_min", constants.fs_min, f"less than fs_max = {constants.fs_max:g}")
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> SwiftState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero = jnp.zeros((slots,), dtype)
        # `rate` and `update` divide by the window and the RTT, in free slots, too.
        return SwiftState(zero + 1.0, zero, zero + 1.0, zero)

    def start(
        self,
        state: SwiftState,
        params: SwiftParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> SwiftState:
        """Start flows with a window of a bandwidth-delay product."""
        del params
        return SwiftState(
            cwnd=put_new(new, line * base_rtt / SEGMENT, state.cwnd),
            line=put_new(new, line, state.line),
            rtt=put_new(new, base_rtt, state.rtt),
            hold=put_new(new, 0.0, state.hold),
        )

    def rate(self, state: SwiftState) -> Float[Array, " flows"]:
        """Line rate, or less than a segment per round trip."""
        paced = SEGMENT * state.cwnd / jnp.maximum(state.rtt, 1e-3)
        return jnp.where(state.cwnd < 1.0, jnp.minimum(paced, state.line), state.line)

    def window(self, state: SwiftState) -> Float[Array, " flows"] | None:
        """Congestion window, at least a segment."""
        return SEGMENT * jnp.maximum(state.cwnd, 1.0)

    def update(
        self, state: SwiftState, params: SwiftParams, heard: Feedback, dt: float
    ) -> SwiftState:
        """Advance all senders by one substep, see `Transport.update`."""
        assert heard.acked is not None and heard.rtt is not None and heard.n_hops is not None
        measured = heard.rtt > 0
        rtt = jnp.where(measured, heard.rtt, state.rtt)
        target = swift_target(params, state.cwnd, heard.n_hops)
        above = measured & (rtt >= target)
        hold = state.hold - dt
        # Below a segment single packets are paced, and each adds `ai` (as in htsim).
        step = params.ai * heard.acked / jnp.maximum(state.cwnd, 1.0)
        grow = measured & ~above & limiting(SEGMENT * state.cwnd, state.line, heard)
        cwnd = jnp.where(grow, state.cwnd + step, state.cwnd)
        keep = jnp.maximum(1.0 - params.beta * (rtt - target) / rtt, 1.0 - params.max_cut)
        cut = above & (heard.acked > 0) & (hold <= 0)
        cwnd = jnp.where(cut, state.cwnd * keep, cwnd)
        cwnd = jnp.clip(cwnd, params.least, None)
        return replace(state, cwnd=cwnd, rtt=rtt, hold=jnp.where(cut, rtt, hold))


def swift_target(
    params: SwiftParams, cwnd: Float[Array, " flows"], n_hops: Float[Array, " flows"]
) -> Float[Array, " flows"]:
    """Target delay, µs: base, hops, and flow scaling `clip(a / sqrt(cwnd) + b, 0, fs_range)`."""
    at_min, at_max = params.fs_min**-0.5, params.fs_max**-0.5
    a = params.fs_range / (at_min - at_max)
    scaling = jnp.clip(a / jnp.sqrt(jnp.maximum(cwnd, 1e-6)) - a * at_max, 0.0, params.fs_range)
    return params.base + params.per_hop * n_hops + scaling
