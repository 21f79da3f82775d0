"""DCQCN as its authors' fluid model: mean rates under a marking probability, no single CNPs.

Every flow's rate, target and alpha follow the delay differential equations of Zhu et al., "ECN or
Delay", CoNEXT'16, Fig. 3 (per flow as in SIGCOMM'15, §5), with the marking probability of the whole
way and the flow's own rate one feedback delay ago. Everything is smooth but for the clips, so
gradients pass through whole episodes. Its rates settle where packets oscillate: use `Dcqcn` to
predict queues, and this model to compare with theory and to differentiate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import FIELD, Feedback
from ecn_marl.sim.transports.base import Overrides, put_new
from ecn_marl.sim.transports.dcqcn import DcqcnParams, preset
from ecn_marl.sim.transports.names import canonical

PACKET = 1000.0
"""Bytes of a packet in the fluid model (8000 bit)."""

NEAR = 0.03
"""Below this a series replaces `x / (e^x - 1)`; its error is below 3e-14."""


@struct.dataclass
class DcqcnFluidState:
    """Senders, each leaf `[F]`; rates in bytes/µs."""

    rate: Leaf
    target: Leaf
    line: Leaf
    alpha: Leaf


@dataclass(frozen=True)
class DcqcnFluid:
    """Mean-field DCQCN senders.

    Attributes:
        name: preset of `Dcqcn` that `default_params` returns. Hyper increase, target clamping and
            the first CNP's rule have no counterpart in the equations and are not used.
        byte_counter: whether the preset has a byte counter.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "dcqcn"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = False

    name: str = "paper"
    byte_counter: bool = True
    overrides: Overrides = ()

    def __post_init__(self) -> None:
        """Replace a second name of the preset by its first."""
        object.__setattr__(self, "name", canonical(self.kind, self.name))

    @staticmethod
    def of(name: str, **overrides: float) -> DcqcnFluid:
        """Senders for a preset.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        constants = preset(name, **overrides)
        if float(constants.cnp_interval_us) > 0:
            allowed = "0 with source=mean_field, whose equations have decrease_us for it"
            raise bad_value("cnp_interval_us", constants.cnp_interval_us, allowed)
        counter = math.isfinite(float(constants.byte_counter))
        return DcqcnFluid(name, counter, tuple(sorted(overrides.items())))

    @property
    def needs(self) -> frozenset[str]:
        """Marking probability and own rate, delayed."""
        return frozenset((FIELD,))

    def default_params(self) -> DcqcnParams:
        """Constants of the named preset, overrides applied."""
        return preset(self.name, **dict(self.overrides))

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> DcqcnFluidState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero = jnp.zeros((slots,), dtype)
        return DcqcnFluidState(zero, zero, zero, zero)

    def start(
        self,
        state: DcqcnFluidState,
        params: DcqcnParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float = 0.0,
    ) -> DcqcnFluidState:
        """Start flows at line rate in the slots `new`, see `Transport.start`."""
        del base_rtt
        return DcqcnFluidState(
            rate=put_new(new, line, state.rate),
            target=put_new(new, line, state.target),
            line=put_new(new, line, state.line),
            alpha=put_new(new, params.alpha_init, state.alpha),
        )

    def rate(self, state: DcqcnFluidState) -> Float[Array, " flows"]:
        """Rate that each sender allows, bytes/µs, `[F]`."""
        return state.rate

    def window(self, state: DcqcnFluidState) -> Float[Array, " flows"] | None:
        """There is no window."""
        return None

    def update(
        self, state: DcqcnFluidState, params: DcqcnParams, heard: Feedback, dt: float
    ) -> DcqcnFluidState:
        """Advance all senders by one substep, see `Transport.update`.

        With p and the packet rate r (packets/µs) of one feedback delay ago:
        `dalpha = g/tau' ((1-(1-p)^(tau' r)) - alpha)`,
        `dtarget = -(target-rate)/tau a + R_AI r (c+e)`,
        `drate = -rate alpha/(2 tau) a + (target-rate)/2 r (b+d)`,
        where a is the chance of a CNP per decrease interval, b and d are the increase events per
        packet of byte counter and timer, c and e those past fast recovery.
        """
        assert heard.mark is not None and heard.past_rate is not None
        packets = heard.past_rate / PACKET
        # The bound keeps the logarithm finite. `1 - p` itself would round p below 6e-8 to 0.
        log_miss = jnp.log1p(-jnp.minimum(heard.mark, 1.0 - 2.0**-20))
        cnp = -jnp.expm1(params.decrease_us * packets * log_miss)
        cnp_present = -jnp.expm1(params.alpha_us * packets * log_miss)
        d, e = _events(log_miss, params.increase_us * packets, params.recovery_steps)
        b = c = jnp.zeros_like(log_miss)
        if self.byte_counter:
            count = jnp.broadcast_to(jnp.asarray(params.byte_counter) / PACKET, log_miss.shape)
            b, c = _events(log_miss, count, params.recovery_steps)
        gap = state.target - state.rate
        alpha = state.alpha + dt * params.g / params.alpha_us * (cnp_present - state.alpha)
        target = state.target + dt * (
            -gap / params.decrease_us * cnp + params.ai * packets * (c + e)
        )
        rate = state.rate + dt * (
            -state.rate * state.alpha / (2.0 * params.decrease_us) * cnp
            + 0.5 * gap * packets * (b + d)
        )
        run = heard.running
        low = jnp.minimum(params.min_rate, state.line)
        return replace(
            state,
            alpha=jnp.where(run, alpha, state.alpha),
            target=jnp.where(run, jnp.clip(target, low, state.line), state.target),
            rate=jnp.where(run, jnp.clip(rate, low, state.line), state.rate),
        )


def _events(log_miss: Array, packets: Array, recovery: Leaf) -> tuple[Array, Array]:
    """Increase events per packet, of a counter that a mark resets: all, and past fast recovery.

    `p / ((1-p)^-n - 1)` for a counter of n packets, which tends to `1/n` without marks; none where
    n is 0 (a flow that sends nothing).
    """
    idle = packets <= 0
    # Values that are selected away need finite derivatives, too: 0 times infinity is NaN.
    n = jnp.where(idle, 1.0, packets)
    # Beyond 60 the chance of an event is negligible; the bound keeps the exponential finite.
    every = _ratio(jnp.minimum(-n * log_miss, 60.0)) / (n * _ratio(log_miss))
    past_recovery = every * jnp.exp(recovery * n * log_miss)
    return jnp.where(idle, 0.0, every), jnp.where(idle, 0.0, past_recovery)


def _ratio(x: Array) -> Array:
    """`x / (e^x - 1)`; near 0 by its series, since the quotient's gradient cancels there."""
    near = jnp.abs(x) < NEAR
    # Near 0 a number that is not used, whose derivative is finite; see `_events`.
    far = jnp.where(near, NEAR, x)
    return jnp.where(near, 1.0 - x / 2.0 + x**2 / 12.0 - x**4 / 720.0, far / jnp.expm1(far))
