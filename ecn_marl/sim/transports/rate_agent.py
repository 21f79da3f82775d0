"""Rates set from outside: the senders of ADPG and other learned congestion control.

Every round trip ends with a new RTT; at that moment the rate is multiplied by the factor that was
last set from outside (Tessler et al., "Reinforcement Learning for Datacenter Congestion Control",
2021; ADPG acts on every RTT packet). To choose a factor after the RTT is known, leave the factors
at 1 and call `multiply` afterwards.
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
from ecn_marl.sim.feedback import PROBE, Feedback
from ecn_marl.sim.transports.base import Overrides, put_new, with_overrides
from ecn_marl.sim.units import MBPS


@struct.dataclass
class RateAgentParams:
    """Constants, traced.

    Attributes:
        min_rate: smallest rate, bytes/µs.
        share: rate of a new flow as a share of the line rate.
    """

    min_rate: Annotated[Leaf, POSITIVE]
    share: Annotated[Leaf, SHARE]


PRESETS = {"line-rate": RateAgentParams(10 * MBPS, 1.0)}


@struct.dataclass
class RateAgentState:
    """Senders, each leaf `[F]`.

    Attributes:
        rate: bytes/µs.
        line: rate of the NIC, bytes/µs.
        factor: multiplies the rate when the next round trip ends; set it with
            `RateAgent.set_factor`.
        inflation: RTT of the last round trip over the RTT without queues.
        rounds: round trips ended so far.
    """

    rate: Leaf
    line: Leaf
    factor: Leaf
    inflation: Leaf
    rounds: Leaf


@dataclass(frozen=True)
class RateAgent:
    """Senders whose rates are set from outside.

    Attributes:
        name: preset that `default_params` returns.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "rate-agent"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False

    name: str = "line-rate"
    overrides: Overrides = ()

    @staticmethod
    def of(name: str, **overrides: float) -> RateAgent:
        """Senders for a preset.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        senders = RateAgent(name, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Round-trip times."""
        return frozenset((PROBE,))

    def default_params(self) -> RateAgentParams:
        """Constants of the preset, overrides applied."""
        constants: RateAgentParams = with_overrides(
            "rate-agent", PRESETS, self.name, dict(self.overrides)
        )
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> RateAgentState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero = jnp.zeros((slots,), dtype)
        return RateAgentState(zero, zero, zero + 1.0, zero + 1.0, jnp.zeros((slots,), jnp.int32))

    def start(
        self,
        state: RateAgentState,
        params: RateAgentParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> RateAgentState:
        """Start flows, see `Transport.start`."""
        del base_rtt
        return RateAgentState(
            rate=put_new(new, line * params.share, state.rate),
            line=put_new(new, line, state.line),
            factor=put_new(new, 1.0, state.factor),
            inflation=put_new(new, 1.0, state.inflation),
            rounds=put_new(new, 0, state.rounds),
        )

    def set_factor(self, state: RateAgentState, factor: Float[Array, " flows"]) -> RateAgentState:
        """Set the factors that multiply the rates when their next round trips end, `[F]`."""
        return replace(state, factor=factor)

    def multiply(
        self,
        state: RateAgentState,
        params: RateAgentParams,
        factor: Float[Array, " flows"],
        where: Bool[Array, " flows"],
    ) -> RateAgentState:
        """Multiply some rates at once, `[F]`; within the smallest rate and that of the NIC."""
        least = jnp.minimum(params.min_rate, state.line)
        rate = jnp.clip(state.rate * factor, least, state.line)
        return replace(state, rate=jnp.where(where, rate, state.rate))

    def rate(self, state: RateAgentState) -> Float[Array, " flows"]:
        """Paced rate."""
        return state.rate

    def window(self, state: RateAgentState) -> Float[Array, " flows"] | None:
        """There is no window."""
        return None

    def update(
        self, state: RateAgentState, params: RateAgentParams, heard: Feedback, dt: float
    ) -> RateAgentState:
        """Apply the factors where a round trip ended, see `Transport.update`."""
        del dt
        assert heard.rtt is not None and heard.returned is not None and heard.base_rtt is not None
        least = jnp.minimum(params.min_rate, state.line)
        rate = jnp.clip(state.rate * state.factor, least, state.line)
        # Slots that no flow has had yet have a base RTT of 0.
        inflation = heard.rtt / jnp.maximum(heard.base_rtt, 1e-3)
        return replace(
            state,
            rate=jnp.where(heard.returned, rate, state.rate),
            inflation=jnp.where(heard.returned, inflation, state.inflation),
            rounds=state.rounds + heard.returned,
        )
