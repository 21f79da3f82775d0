"""HPCC: windows from in-network telemetry (Li et al., SIGCOMM'19).

Every ACK carries the queue and the transmitted bytes of every hop. The sender estimates how full
its most loaded link is (bytes in flight over the bandwidth-delay product) and sets its window so
that this becomes `eta`, from a reference window that it renews once per round trip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, SHARE
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import ACKS, PROBE, TELEMETRY, Feedback
from ecn_marl.sim.transports.base import Overrides, put_new, with_overrides
from ecn_marl.sim.transports.names import canonical
from ecn_marl.sim.units import MBPS


@struct.dataclass
class HpccParams:
    """Constants of HPCC, traced.

    Attributes:
        eta: target utilisation.
        ai: additive increase, bytes/µs of rate (times the base RTT: bytes of window).
        max_stage: additive-increase round trips before a multiplicative one.
        min_rate: smallest rate, bytes/µs.
    """

    eta: Annotated[Leaf, SHARE]
    ai: Annotated[Leaf, NOT_NEGATIVE]
    max_stage: Annotated[Leaf, NOT_NEGATIVE]
    min_rate: Annotated[Leaf, POSITIVE]


PRESETS = {
    # HPCC simulator at 25 Gb/s: `run.py --mi 0`, every round trip is multiplicative.
    "hpcc": HpccParams(0.95, 10 * MBPS, 0.0, 100 * MBPS),
    # Li et al., SIGCOMM'19, §5.1: five additive round trips.
    "sigcomm19": HpccParams(0.95, 10 * MBPS, 5.0, 100 * MBPS),
}


@struct.dataclass
class HpccState:
    """Senders; rates in bytes/µs, times in µs; `[F]`, and `[L, F]` for telemetry of the last ACK.

    `load` is the estimate U of how full the path is, `reference` the rate of the reference window,
    `stage` the number of additive round trips in a row. `heard` says whether an ACK has arrived,
    `last_step` in which substep its telemetry was read. `young` flows are in their first round
    trip.
    """

    rate: Leaf
    reference: Leaf
    line: Leaf
    base_rtt: Leaf
    load: Leaf
    stage: Leaf
    young: Leaf
    heard: Leaf
    last_step: Leaf
    last_queue: Leaf
    last_sent: Leaf


@dataclass(frozen=True)
class Hpcc:
    """HPCC senders.

    Attributes:
        name: preset that `default_params` returns.
        overrides: constants that differ from the preset, as sorted pairs.
    """

    kind: ClassVar[str] = "hpcc"
    header: ClassVar[float] = 42.0
    latched: ClassVar[bool] = False

    name: str = "hpcc"
    overrides: Overrides = ()

    def __post_init__(self) -> None:
        """Replace a second name of the preset by its first."""
        object.__setattr__(self, "name", canonical(self.kind, self.name))

    @staticmethod
    def of(name: str, **overrides: float) -> Hpcc:
        """Senders for a preset.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        senders = Hpcc(name, tuple(sorted(overrides.items())))
        senders.default_params()
        return senders

    @property
    def needs(self) -> frozenset[str]:
        """Acknowledgements with telemetry, and the ends of round trips."""
        return frozenset((ACKS, PROBE, TELEMETRY))

    def default_params(self) -> HpccParams:
        """Constants of the preset, overrides applied."""
        constants: HpccParams = with_overrides("HPCC", PRESETS, self.name, dict(self.overrides))
        return constants

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> HpccState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        zero = jnp.zeros((slots,), dtype)
        queue = jnp.zeros((levels, slots), dtype)
        sent = jnp.zeros((levels, slots), jnp.uint32)
        no, step = jnp.zeros((slots,), bool), jnp.zeros((slots,), jnp.int32)
        # `update` divides by the base RTT, in free slots, too.
        return HpccState(zero, zero, zero, zero + 1.0, zero, zero, no, no, step, queue, sent)

    def start(
        self,
        state: HpccState,
        params: HpccParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float,
    ) -> HpccState:
        """Start flows at line rate, with a window of a bandwidth-delay product."""
        del params
        return replace(
            state,
            rate=put_new(new, line, state.rate),
            reference=put_new(new, line, state.reference),
            line=put_new(new, line, state.line),
            base_rtt=put_new(new, base_rtt, state.base_rtt),
            load=put_new(new, 1.0, state.load),
            stage=put_new(new, 0.0, state.stage),
            young=put_new(new, True, state.young),
            heard=put_new(new, False, state.heard),
        )

    def rate(self, state: HpccState) -> Float[Array, " flows"]:
        """Paced rate."""
        return state.rate

    def window(self, state: HpccState) -> Float[Array, " flows"] | None:
        """Bytes that the rate sends in a base RTT."""
        return state.rate * state.base_rtt

    def update(self, state: HpccState, params: HpccParams, heard: Feedback, dt: float) -> HpccState:
        """Advance all senders by one substep, see `Transport.update`."""
        assert heard.acked is not None and heard.returned is not None
        assert heard.hop_rate is not None and heard.hop_queue is not None
        assert heard.hop_step is not None
        ack = heard.acked > 0
        # The first ACK has no reading before it to subtract.
        comparable = ack & state.heard
        span = state.base_rtt
        # At least a substep: two ACKs may bring the same reading.
        since = jnp.maximum((heard.hop_step - state.last_step) * dt, dt).astype(span.dtype)
        part = jnp.minimum(since / span, 1.0)
        # Subtracted as uint32: right across a wrap of the counter, and exact to the byte.
        sent = (heard.hop_sent - state.last_sent).astype(span.dtype)
        # The smaller of two readings filters noise out (SIGCOMM'19, Algorithm 1).
        queue = jnp.minimum(heard.hop_queue, state.last_queue)
        fill = (sent / since + queue / span) / heard.hop_rate
        load = state.load + part * (fill.max(0) - state.load)
        load = jnp.where(comparable, load, state.load)
        cut = (load >= params.eta) | (state.stage >= params.max_stage)
        rate = jnp.where(cut, state.reference * params.eta / load, state.reference) + params.ai
        rate = jnp.clip(rate, jnp.minimum(params.min_rate, state.line), state.line)
        rate = jnp.where(comparable, rate, state.rate)
        renew = heard.returned & state.heard & ~state.young
        return replace(
            state,
            rate=rate,
            reference=jnp.where(renew, rate, state.reference),
            load=load,
            stage=jnp.where(renew, jnp.where(cut, 0.0, state.stage + 1.0), state.stage),
            young=state.young & ~heard.returned,
            heard=state.heard | ack,
            last_step=jnp.where(ack, heard.hop_step, state.last_step),
            last_queue=jnp.where(ack, heard.hop_queue, state.last_queue),
            last_sent=jnp.where(ack, heard.hop_sent, state.last_sent),
        )
