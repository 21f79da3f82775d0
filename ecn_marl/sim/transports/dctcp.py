"""DCTCP: cut by the marked share of a round trip (Alizadeh et al., SIGCOMM'10).

Once per round trip `alpha = (1 - g) alpha + g F`, with F the share of marked packets; the first
mark cuts the window by `alpha / 2`, at most once per round trip; otherwise the window grows by a
step per round trip. Two forms share these rules: a TCP window with slow start, clocked by its ACKs
(`sigcomm10`), and the paced rate with a window in proportion to it that the HPCC simulator runs
under this name (`hpcc`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._checks import FRACTION, NOT_NEGATIVE, POSITIVE, SHARE
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import ACKS, PROBE, Feedback
from ecn_marl.sim.transports.base import Overrides, limiting, put_new, with_overrides
from ecn_marl.sim.transports.names import canonical
from ecn_marl.sim.units import MBPS

SEGMENT = 1000.0
"""Payload of a full packet, bytes."""


@struct.dataclass
class DctcpParams:
    """Constants of DCTCP, traced.

    Attributes:
        g: weight of a new round trip in alpha.
        ai_bytes: growth of the window per round trip, bytes.
        ai_rate: growth per round trip of the rate that corresponds to the window, bytes/µs.
        initial: first window, bytes; 0 for a bandwidth-delay product.
        least: smallest window, bytes.
        alpha_init: alpha of a new flow.
        min_rate: smallest rate that corresponds to the window, bytes/µs.
    """

    g: Annotated[Leaf, SHARE]
    ai_bytes: Annotated[Leaf, NOT_NEGATIVE]
    ai_rate: Annotated[Leaf, NOT_NEGATIVE]
    initial: Annotated[Leaf, NOT_NEGATIVE]
    least: Annotated[Leaf, POSITIVE]
    alpha_init: Annotated[Leaf, FRACTION] = 1.0
    min_rate: Annotated[Leaf, NOT_NEGATIVE] = 0.0


PRESETS = {
    # Alizadeh et al., SIGCOMM'10, §3.2: g = 1/16, one segment per round trip; RFC 6928's first
    # window.
    "sigcomm10": DctcpParams(1 / 16, SEGMENT, 0.0, 10 * SEGMENT, SEGMENT),
    # HPCC simulator (Li et al., SIGCOMM'19) at 25 Gb/s: starts at line rate, 615 Mb/s per RTT.
    "hpcc": DctcpParams(1 / 16, 0.0, 615 * MBPS, 0.0, 1.0, min_rate=100 * MBPS),
}


@struct.dataclass
class DctcpState:
    """Senders, each leaf `[F]`: windows and counts in bytes and packets, times in µs.

    `top` is the bandwidth-delay product of the line. `acked` and `marked` count the packets of the
    present round trip. `hold` is the time since a cut in which the window neither grows nor is cut
    again, counted down. `young` flows are in their first round trip.
    """

    window: Leaf
    top: Leaf
    line: Leaf
    alpha: Leaf
    acked: Leaf
    marked: Leaf
    hold: Leaf
    slow_start: Leaf
    young: Leaf


@dataclass(frozen=True)
class Dctcp:
    """DCTCP senders.

    Attributes:
        name: preset that `default_params` returns.
        paced: whether the sender is a paced rate (with its window) instead of a TCP window.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "dctcp"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = True

    name: str = "sigcomm10"
    paced: bool = False
    overrides: Overrides = ()

    def __post_init__(self) -> None:
        """Replace a second name of the preset by its first."""
        object.__setattr__(self, "name", canonical(self.kind, self.name))

    @staticmethod
    def of(name: str, **overrides: float) -> Dctcp:
        """Senders for a preset; `hpcc` is the paced one.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        paced = canonical("dctcp", name) == "hpcc"
        senders = Dctcp(name, paced, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Acknowledgements, and the ends of round trips."""
        return frozenset((ACKS, PROBE))

    def default_params(self) -> DctcpParams:
        """Constants of the preset, overrides applied."""
        constants: DctcpParams = with_overrides("DCTCP", PRESETS, self.name, dict(self.overrides))
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> DctcpState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero, no = jnp.zeros((slots,), dtype), jnp.zeros((slots,), bool)
        # `rate` divides by `top`, in free slots, too.
        return DctcpState(zero, zero + 1.0, zero, zero, zero, zero, zero, no, no)

    def start(
        self,
        state: DctcpState,
        params: DctcpParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> DctcpState:
        """Start flows, see `Transport.start`."""
        bdp = line * base_rtt
        initial = jnp.asarray(params.initial)
        initial = jnp.minimum(initial, bdp) if self.paced else initial
        return DctcpState(
            window=put_new(new, jnp.where(initial > 0, initial, bdp), state.window),
            top=put_new(new, bdp, state.top),
            line=put_new(new, line, state.line),
            alpha=put_new(new, params.alpha_init, state.alpha),
            acked=put_new(new, 0.0, state.acked),
            marked=put_new(new, 0.0, state.marked),
            hold=put_new(new, 0.0, state.hold),
            slow_start=put_new(new, not self.paced, state.slow_start),
            young=put_new(new, True, state.young),
        )

    def rate(self, state: DctcpState) -> Float[Array, " flows"]:
        """Paced rate, or the line's (the window decides)."""
        return state.line * state.window / state.top if self.paced else state.line

    def window(self, state: DctcpState) -> Float[Array, " flows"] | None:
        """Congestion window."""
        return state.window

    def update(
        self, state: DctcpState, params: DctcpParams, heard: Feedback, dt: float
    ) -> DctcpState:
        """Advance all senders by one substep, see `Transport.update`."""
        assert heard.acked is not None and heard.marked is not None and heard.rtt is not None
        assert heard.returned is not None and heard.base_rtt is not None
        acked, marked = state.acked + heard.acked, state.marked + heard.marked
        turn = heard.returned
        # Packets are whole: `acked` is 0 or at least 1.
        share = jnp.where(acked > 0, marked / jnp.maximum(acked, 1.0), 0.0)
        learn = turn & ~state.young
        alpha = jnp.where(learn, state.alpha + params.g * (share - state.alpha), state.alpha)
        hold = state.hold - dt
        cut = (heard.marked > 0) & (hold <= 0)
        grow = learn & (hold <= 0) & ~cut
        base_rtt = state.top / jnp.maximum(state.line, 1e-9)
        step = jnp.where(grow, params.ai_bytes + params.ai_rate * base_rtt, 0.0)
        step = jnp.where(state.slow_start, SEGMENT * heard.acked, step)
        window = state.window + step
        if self.paced:
            window = jnp.minimum(window, state.top)
        else:
            # Slow start doubles a window per round trip: the last one needed half of it.
            needed = state.window / jnp.where(state.slow_start, 2.0, 1.0)
            window = jnp.where(limiting(needed, state.line, heard), window, state.window)
        window = jnp.where(cut, state.window * (1.0 - 0.5 * alpha), window)
        return replace(
            state,
            window=jnp.maximum(window, jnp.maximum(params.least, params.min_rate * base_rtt)),
            alpha=alpha,
            acked=jnp.where(turn, 0.0, acked),
            marked=jnp.where(turn, 0.0, marked),
            # `rtt` is 0 until the first probe is back.
            hold=jnp.where(cut, jnp.maximum(heard.rtt, heard.base_rtt), hold),
            slow_start=state.slow_start & ~cut,
            young=state.young & ~turn,
        )
