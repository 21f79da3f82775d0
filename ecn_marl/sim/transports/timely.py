"""TIMELY: rates that follow the gradient of the round-trip time (Mittal et al., SIGCOMM'15).

Once per completion event (here: per round trip, and no more often than a segment takes to send) the
new RTT moves a filtered gradient. Below `t_low` the rate grows, above `t_high` it is cut towards
it; between them a falling or level RTT grows the rate and a rising one cuts it in proportion. The
algorithm has no unique fixed point; `patched` replaces gradient by a mixture of gradient and
distance from `t_low`, which has one (Zhu et al., "ECN or Delay", CoNEXT'16, §4).
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
from ecn_marl.sim.feedback import PROBE, Feedback
from ecn_marl.sim.transports.base import Overrides, put_new, with_overrides
from ecn_marl.sim.transports.names import canonical
from ecn_marl.sim.units import MBPS


@struct.dataclass
class TimelyParams:
    """Constants of TIMELY, traced.

    Attributes:
        ewma: weight of a new RTT difference.
        beta: strength of a cut.
        t_low: RTT below which the rate only grows, µs.
        t_high: RTT above which the rate is cut whatever the gradient, µs.
        min_rtt: RTT that the gradient is measured in, µs; also the shortest time between updates
            where `segment` is given.
        ai: additive increase, bytes/µs.
        hai: increase after `patience` increases in a row, bytes/µs.
        patience: increases in a row before `hai`.
        segment: bytes per completion event; 0 for one event per round trip.
        min_rate: smallest rate, bytes/µs.
        share: rate of a new flow as a share of the line rate.
    """

    ewma: Annotated[Leaf, SHARE]
    beta: Annotated[Leaf, SHARE]
    t_low: Annotated[Leaf, POSITIVE]
    t_high: Annotated[Leaf, POSITIVE]
    min_rtt: Annotated[Leaf, POSITIVE]
    ai: Annotated[Leaf, POSITIVE]
    hai: Annotated[Leaf, POSITIVE]
    patience: Annotated[Leaf, NOT_NEGATIVE]
    segment: Annotated[Leaf, NOT_NEGATIVE]
    min_rate: Annotated[Leaf, POSITIVE]
    share: Annotated[Leaf, SHARE] = 1.0


PRESETS = {
    # HPCC simulator (Li et al., SIGCOMM'19) at 25 Gb/s: an event per round trip, line-rate start.
    "hpcc": TimelyParams(
        0.875, 0.8, 50.0, 500.0, 20.0, 25 * MBPS, 125 * MBPS, 5.0, 0.0, 100 * MBPS
    ),
    # Zhu et al., CoNEXT'16, Table 2: 10 Mb/s steps, 16 KB segments, no hyper increase.
    "conext16": TimelyParams(
        0.875, 0.8, 50.0, 500.0, 20.0, 10 * MBPS, 10 * MBPS, 5.0, 16e3, 10 * MBPS
    ),
    # The same with the patch of §4.3: a small beta, as its stability needs.
    "patched": TimelyParams(
        0.875, 0.008, 50.0, 500.0, 20.0, 10 * MBPS, 10 * MBPS, 5.0, 16e3, 10 * MBPS
    ),
}


@struct.dataclass
class TimelyState:
    """Senders, each leaf `[F]`; rates in bytes/µs, times in µs.

    `slope` is the filtered difference of RTTs, `raises` the number of increases in a row, `since`
    the time since the last completion event. `young` flows have had no such event.
    """

    rate: Leaf
    line: Leaf
    last_rtt: Leaf
    slope: Leaf
    raises: Leaf
    since: Leaf
    young: Leaf


@dataclass(frozen=True)
class Timely:
    """TIMELY senders.

    Attributes:
        name: preset that `default_params` returns.
        patched: whether distance from `t_low` takes part (CoNEXT'16).
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "timely"
    header: ClassVar[float] = 8.0
    latched: ClassVar[bool] = True

    name: str = "hpcc"
    patched: bool = False
    overrides: Overrides = ()

    def __post_init__(self) -> None:
        """Replace a second name of the preset by its first."""
        object.__setattr__(self, "name", canonical(self.kind, self.name))

    @staticmethod
    def of(name: str, **overrides: float) -> Timely:
        """Senders for a preset; `patched` is the patched form.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        patched = canonical("timely", name) == "patched"
        senders = Timely(name, patched, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Round-trip times."""
        return frozenset((PROBE,))

    def default_params(self) -> TimelyParams:
        """Constants of the preset, overrides applied."""
        constants: TimelyParams = with_overrides("TIMELY", PRESETS, self.name, dict(self.overrides))
        if not constants.t_low < constants.t_high:
            raise bad_value("t_low", constants.t_low, f"less than t_high = {constants.t_high:g}")
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> TimelyState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero, no = jnp.zeros((slots,), dtype), jnp.zeros((slots,), bool)
        return TimelyState(zero, zero, zero, zero, zero, zero, no)

    def start(
        self,
        state: TimelyState,
        params: TimelyParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> TimelyState:
        """Start flows, see `Transport.start`."""
        del base_rtt
        return TimelyState(
            rate=put_new(new, line * params.share, state.rate),
            line=put_new(new, line, state.line),
            last_rtt=put_new(new, 0.0, state.last_rtt),
            slope=put_new(new, 0.0, state.slope),
            raises=put_new(new, 0.0, state.raises),
            since=put_new(new, 0.0, state.since),
            young=put_new(new, True, state.young),
        )

    def rate(self, state: TimelyState) -> Float[Array, " flows"]:
        """Paced rate."""
        return state.rate

    def window(self, state: TimelyState) -> Float[Array, " flows"] | None:
        """TIMELY has no window."""
        return None

    def update(
        self, state: TimelyState, params: TimelyParams, heard: Feedback, dt: float
    ) -> TimelyState:
        """Advance all senders by one substep, see `Transport.update`."""
        assert heard.rtt is not None and heard.returned is not None
        since = state.since + dt
        segment = jnp.asarray(params.segment)
        # Slots that no flow has had yet have a rate of 0.
        pause = jnp.maximum(segment / jnp.maximum(state.rate, 1e-9), params.min_rtt)
        event = heard.returned & ((segment <= 0) | (since >= pause))
        # The first RTT of a flow has none before it to differ from.
        learn = event & ~state.young
        rtt = heard.rtt
        slope = state.slope + params.ewma * (rtt - state.last_rtt - state.slope)
        gradient = slope / params.min_rtt
        rise = jnp.where(state.raises < params.patience, params.ai, params.hai)
        raised = state.rate + rise
        if self.patched:
            rate, up = self._patched(state, params, gradient, rtt, raised)
        else:
            up = (rtt < params.t_low) | ((rtt <= params.t_high) & (gradient <= 0))
            steep = jnp.where(rtt > params.t_high, 1.0 - params.t_high / rtt, gradient)
            # Without the bound a steep gradient would make the rate negative.
            rate = jnp.where(up, raised, state.rate * jnp.maximum(1.0 - params.beta * steep, 0.0))
        rate = jnp.clip(rate, jnp.minimum(params.min_rate, state.line), state.line)
        return replace(
            state,
            rate=jnp.where(learn, rate, state.rate),
            last_rtt=jnp.where(event, rtt, state.last_rtt),
            slope=jnp.where(learn, slope, state.slope),
            raises=jnp.where(learn, jnp.where(up, state.raises + 1.0, 0.0), state.raises),
            since=jnp.where(event, 0.0, since),
            young=state.young & ~event,
        )

    def _patched(
        self, state: TimelyState, params: TimelyParams, gradient: Array, rtt: Array, raised: Array
    ) -> tuple[Array, Array]:
        """CoNEXT'16, Algorithm 2: `(1 - w) AI` up and `w beta (rtt - t_low) / t_low` down."""
        weight = jnp.clip(2.0 * gradient + 0.5, 0.0, 1.0)
        error = (rtt - params.t_low) / params.t_low
        mixed = state.rate * (1.0 - params.beta * weight * error) + (1.0 - weight) * (
            raised - state.rate
        )
        cut = state.rate * (1.0 - params.beta * (1.0 - params.t_high / rtt))
        rate = jnp.where(rtt < params.t_low, raised, jnp.where(rtt > params.t_high, cut, mixed))
        return rate, rate > state.rate
