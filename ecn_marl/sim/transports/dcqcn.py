"""DCQCN reaction point as NICs implement it: timers, sampled CNPs (Zhu et al., SIGCOMM'15, §3).

The rate machine of each flow is driven by single CNPs:

* a CNP received within a decrease interval cuts the rate by `alpha / 2`; the target rate moves to
  the rate before the cut only if an increase happened since the last one (or always, if clamped);
* `alpha` is an average, over alpha intervals, of whether a CNP arrived;
* an increase timer, restarted by each cut, and a byte counter drive fast recovery, additive and
  hyper increase.

The first CNP does not cut: it starts the timers, and the first cut follows one decrease interval
later (unless `cut_at_first_cnp`).

The receiver (notification point, §3.1 and Fig. 6 there) sends a CNP for every marked packet, or,
with `cnp_interval_us`, at most one per flow and interval. A mark after the end of the interval
leaves at once and starts the next one; all marks within an interval leave as one CNP at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import NOT_NEGATIVE, POSITIVE, Real
from ecn_marl._types import Leaf
from ecn_marl.sim.feedback import ACKS, CNP, Feedback
from ecn_marl.sim.transports.base import Bound, Overrides, put_new, with_overrides
from ecn_marl.sim.transports.names import canonical
from ecn_marl.sim.units import MBPS


@struct.dataclass
class DcqcnParams:
    """Constants of the rate machine; all traced, so they can differ between environments.

    Attributes:
        decrease_us: interval at which a received CNP cuts the rate, µs.
        alpha_us: interval of the alpha update, µs.
        g: weight of a new sample in alpha.
        increase_us: increase timer, µs.
        byte_counter: bytes sent per increase event, `inf` for none.
        recovery_steps: increase events in fast recovery.
        ai: additive increase of the target, bytes/µs.
        hai: hyper increase of the target, bytes/µs.
        min_rate: smallest rate, bytes/µs.
        alpha_init: alpha at the first CNP.
        clamp_target: 1 to move the target at each cut, 0 to keep it over back-to-back cuts.
        cut_at_first_cnp: 1 if the first CNP cuts at once, 0 if it only starts the timers.
        cnp_interval_us: least time between two CNPs of a flow at its receiver, µs; 0 for a CNP per
            marked packet. Read only by senders with `Dcqcn.cnp_paced`. `alpha_us` should be longer:
            else alpha decays between CNPs, and cuts are small.
    """

    decrease_us: Annotated[Leaf, POSITIVE]
    alpha_us: Annotated[Leaf, POSITIVE]
    g: Annotated[Leaf, POSITIVE]
    increase_us: Annotated[Leaf, POSITIVE]
    byte_counter: Annotated[Leaf, Real(above=0.0, infinite=True, unit="bytes")]
    recovery_steps: Annotated[Leaf, NOT_NEGATIVE]
    ai: Annotated[Leaf, NOT_NEGATIVE]
    hai: Annotated[Leaf, NOT_NEGATIVE]
    min_rate: Annotated[Leaf, POSITIVE]
    alpha_init: Annotated[Leaf, POSITIVE] = 1.0
    clamp_target: Annotated[Leaf, NOT_NEGATIVE] = 0.0
    cut_at_first_cnp: Annotated[Leaf, NOT_NEGATIVE] = 0.0
    cnp_interval_us: Annotated[Leaf, NOT_NEGATIVE] = 0.0


def _preset(
    td: float,
    ta: float,
    g: float,
    ti: float,
    counter: float,
    f: int,
    ai: float,
    hai: float,
    low: float,
    **options: float,
) -> DcqcnParams:
    """Rates in Mb/s, times in µs."""
    return DcqcnParams(
        td, ta, g, ti, counter, float(f), ai * MBPS, hai * MBPS, low * MBPS, **options
    )


PRESETS: dict[str, DcqcnParams] = {
    # Zhu et al., SIGCOMM'15, §5 and Table 14; hyper increase and minimum rate, which the paper does
    # not state, as in its authors' simulator.
    "paper": _preset(
        50, 55, 1 / 256, 55, 10e6, 5, 40, 200, 100, clamp_target=1.0, cut_at_first_cnp=1.0
    ),
    # NVIDIA ConnectX-4 and later, firmware defaults.
    "mellanox": _preset(4, 1, 1 - 1019 / 1024, 300, 32767, 1, 5, 50, 1, alpha_init=1023 / 1024),
    # The three profiles of the HPCC simulator (Li et al., SIGCOMM'19), the first two at 25 Gb/s;
    # with `gbps` they are scaled as it scales them, see `names`.
    "hpcc-run": _preset(4, 1, 1 / 256, 300, math.inf, 1, 5, 50, 100),
    "hpcc-paper": _preset(50, 50, 1 / 256, 55, math.inf, 1, 5, 50, 100),
    "hpcc-config": _preset(4, 1, 1 / 256, 900, math.inf, 1, 50, 100, 100),
    # SIGCOMM'15 with the interval of 50 µs where the paper has it, at the receiver (§3.1), and a
    # sender that reacts to every CNP: it checks for one every 4 µs. In "paper" the sender itself
    # checks every 50 µs.
    "sigcomm15-np50us": _preset(
        *(4, 55, 1 / 256, 55, 10e6, 5, 40, 200, 100),
        clamp_target=1.0,
        cut_at_first_cnp=1.0,
        cnp_interval_us=50.0,
    ),
}


def preset(name: str, **overrides: float) -> DcqcnParams:
    """Constants of a named preset, some of them replaced.

    Args:
        name: `paper` (SIGCOMM'15), `mellanox`, `hpcc-run`, `hpcc-paper`, `hpcc-config`,
            `sigcomm15-np50us`, or a second name from `names`.
        **overrides: fields of `DcqcnParams` in its units (µs, bytes, bytes/µs), and `gbps`, see
            `names`.

    Raises:
        ValueError: unknown preset or field, or a value out of range.
    """
    constants: DcqcnParams = with_overrides("DCQCN", PRESETS, name, overrides)
    return constants


ALPHA_TERMS = 0.1
"""Largest `n g` for which `(1 - g)^n` is taken to second order: good to 2e-4."""


@struct.dataclass
class DcqcnState:
    """Rate machines of all slots, each leaf `[F]`; rates in bytes/µs, times in µs, `bdp` in bytes.

    `to_...` is what remains until the next cut, alpha update, timed or byte-counted increase;
    `..._stage` counts increases since the last cut; `cnp_...` is whether a CNP has come in the
    present interval. The timers rest until a flow has had its first CNP.

    `bdp` is the window at line rate (rate times the network's longest base RTT). The last two are
    the receivers': time until they may send a CNP again, and whether they owe one then; None unless
    CNPs are paced.
    """

    rate: Leaf
    target: Leaf
    line: Leaf
    alpha: Leaf
    to_decrease: Leaf
    to_alpha: Leaf
    to_increase: Leaf
    to_count: Leaf
    timer_stage: Leaf
    count_stage: Leaf
    has_had_cnp: Leaf
    cnp_decrease: Leaf
    cnp_alpha: Leaf
    bdp: Leaf
    cnp_left: Leaf = None
    cnp_owed: Leaf = None


@dataclass(frozen=True)
class Dcqcn:
    """DCQCN senders with timers and sampled CNPs.

    Attributes:
        name: preset that `default_params` returns.
        byte_counter: whether a byte counter is simulated (static, it costs time).
        windowed: whether a flow may have no more on the way than a window that follows its rate,
            one bandwidth-delay product at line rate (HPCC simulator, `HAS_WIN` and `VAR_WIN`).
        overrides: constants that differ from the preset, as sorted pairs.
        cnp_paced: whether receivers pace their CNPs (static, it costs time).
    """

    kind: ClassVar[str] = "dcqcn"
    header: ClassVar[float] = 0.0
    latched: ClassVar[bool] = True

    name: str = "hpcc-paper"
    byte_counter: bool = False
    windowed: bool = False
    overrides: Overrides = ()
    cnp_paced: bool = False

    def __post_init__(self) -> None:
        """Replace a second name of the preset by its first."""
        object.__setattr__(self, "name", canonical(self.kind, self.name))

    @staticmethod
    def of(
        name: str,
        params: DcqcnParams | None = None,
        *,
        windowed: bool = False,
        **overrides: float,
    ) -> Dcqcn:
        """Senders for a preset.

        `byte_counter` and `cnp_paced` follow from it, or from `params` if given.

        Raises:
            ValueError: unknown preset or constant, or a value out of range.
        """
        constants = preset(name, **overrides) if params is None else params
        counter = bool(math.isfinite(float(constants.byte_counter)))
        paced = float(constants.cnp_interval_us) > 0
        return Dcqcn(name, counter, windowed, tuple(sorted(overrides.items())), paced)

    @property
    def needs(self) -> frozenset[str]:
        """Single marks; acknowledgements too if there is a window."""
        return frozenset((CNP, ACKS) if self.windowed else (CNP,))

    def default_params(self) -> DcqcnParams:
        """Constants of the named preset, overrides applied."""
        return preset(self.name, **dict(self.overrides))

    def bound_dt(self, line: float) -> Bound:
        """Longest substep in which no timer event is lost.

        At most one cut, one increase, one CNP and a tenth of the byte counter fall into it. It has
        at most two alpha intervals, or as many as `(1 - g)^n` is accurate for at second order.

        Args:
            line: rate of the fastest NIC, bytes/µs.
        """
        constants = self.default_params()
        timer = float(constants.decrease_us) / 2.0
        counter = float(constants.byte_counter) / line / 10.0
        increase, alpha = float(constants.increase_us), float(constants.alpha_us)
        terms = max(2.0, ALPHA_TERMS / float(constants.g))
        bounds = [Bound(timer, "half of decrease_us"), Bound(increase, "increase_us")]
        bounds.append(Bound(terms * alpha, f"{terms:.3g} times alpha_us"))
        if self.cnp_paced:
            bounds.append(Bound(float(constants.cnp_interval_us) / 2.0, "half of cnp_interval_us"))
        bounds.append(Bound(counter, "a tenth of the byte counter at line rate"))
        return min(bounds, key=lambda bound: bound.dt_us)

    def init(
        self, slots: int, dtype: jax.typing.DTypeLike = jnp.float32, levels: int = 1
    ) -> DcqcnState:
        """State of `slots` idle flows on ways of at most `levels` queues."""
        del levels
        zero = jnp.zeros((slots,), dtype)
        stage = jnp.zeros((slots,), jnp.int32)
        no = jnp.zeros((slots,), bool)
        state = DcqcnState(
            zero, zero, zero, zero, zero, zero, zero, zero, stage, stage, no, no, no, zero
        )
        return replace(state, cnp_left=zero, cnp_owed=no) if self.cnp_paced else state

    def start(
        self,
        state: DcqcnState,
        params: DcqcnParams,
        new: Bool[Array, " flows"],
        line: Float[Array, " flows"],
        base_rtt: Float[Array, ""] | float = 0.0,
    ) -> DcqcnState:
        """Start flows at line rate in the slots `new`, see `Transport.start`."""

        def put(value: Array | float, old: Array) -> Array:
            return put_new(new, value, old)

        return DcqcnState(
            rate=put(line, state.rate),
            target=put(line, state.target),
            line=put(line, state.line),
            alpha=put(params.alpha_init, state.alpha),
            to_decrease=put(params.decrease_us, state.to_decrease),
            to_alpha=put(params.alpha_us, state.to_alpha),
            # inf less dt is inf: the timer rests until the first cut.
            to_increase=put(jnp.inf, state.to_increase),
            to_count=put(params.byte_counter, state.to_count),
            timer_stage=put(0, state.timer_stage),
            count_stage=put(0, state.count_stage),
            has_had_cnp=put(False, state.has_had_cnp),
            cnp_decrease=put(False, state.cnp_decrease),
            cnp_alpha=put(False, state.cnp_alpha),
            bdp=put(line * base_rtt, state.bdp),
            cnp_left=put(0.0, state.cnp_left) if self.cnp_paced else None,
            cnp_owed=put(False, state.cnp_owed) if self.cnp_paced else None,
        )

    def rate(self, state: DcqcnState) -> Float[Array, " flows"]:
        """Rate that each sender allows, bytes/µs, `[F]`."""
        return state.rate

    def window(self, state: DcqcnState) -> Float[Array, " flows"] | None:
        """A bandwidth-delay product, scaled with the rate; None without windows."""
        # 0 / 0 in slots that no flow has had yet; windows of slots that do not send are masked.
        return state.bdp * state.rate / state.line if self.windowed else None

    def update(
        self, state: DcqcnState, params: DcqcnParams, heard: Feedback, dt: float
    ) -> DcqcnState:
        """Advance all rate machines by one substep, see `Transport.update`."""
        cnp, sent = heard.cnp, heard.sent
        assert cnp is not None
        # Timers count down in float32: rounding must not make one run out a substep late.
        eps = 1e-3 * dt
        running = state.has_had_cnp
        first = cnp & ~running
        # Before the cut, as in the HPCC simulator: it uses the new alpha.
        alpha, to_alpha, cnp_alpha = self._alpha(state, params, cnp, dt, eps)

        to_decrease = jnp.where(running, state.to_decrease - dt, state.to_decrease)
        check = running & (to_decrease <= eps)
        pending = state.cnp_decrease | cnp
        cut = (check & pending) | (first & (jnp.asarray(params.cut_at_first_cnp) > 0))
        # Added, not set: what remains of the substep belongs to the next interval.
        to_decrease = jnp.where(check, to_decrease + params.decrease_us, to_decrease)
        raised = (state.timer_stage > 0) | (state.count_stage > 0)
        move = cut & (raised | (jnp.asarray(params.clamp_target) > 0))
        target = jnp.where(move, state.rate, state.target)
        cut_rate = jnp.maximum(state.rate * (1.0 - 0.5 * alpha), params.min_rate)
        rate = jnp.where(cut, cut_rate, state.rate)

        to_increase = state.to_increase - dt
        tick = ~cut & (to_increase <= eps)
        to_increase = jnp.where(tick, to_increase + params.increase_us, to_increase)
        to_increase = jnp.where(cut, params.increase_us, to_increase)
        timer_stage, count_stage = state.timer_stage, state.count_stage
        to_count, count = state.to_count, jnp.zeros_like(tick)
        if self.byte_counter:
            to_count = jnp.where(running, to_count - sent, to_count)
            count = ~cut & running & (to_count <= 0)
            to_count = jnp.where(count, to_count + params.byte_counter, to_count)
            to_count = jnp.where(cut, params.byte_counter, to_count)
        up = tick | count
        rise = self._rise(timer_stage, count_stage, params)
        target = jnp.where(up, jnp.minimum(target + rise, state.line), target)
        rate = jnp.where(up, 0.5 * (rate + target), rate)
        return replace(
            state,
            rate=rate,
            target=target,
            alpha=alpha,
            to_decrease=to_decrease,
            to_alpha=to_alpha,
            to_increase=to_increase,
            to_count=to_count,
            timer_stage=jnp.where(cut, 0, timer_stage + tick),
            count_stage=jnp.where(cut, 0, count_stage + count),
            has_had_cnp=running | cnp,
            cnp_decrease=pending & ~check & ~cut,
            cnp_alpha=cnp_alpha,
        )

    def notify(
        self, state: DcqcnState, params: DcqcnParams, marked: Bool[Array, " flows"], dt: float
    ) -> tuple[DcqcnState, Bool[Array, " flows"]]:
        """Decide at the receivers which marks leave as CNPs, see `Transport`.

        The next interval starts at the end of the last, not at the end of its substep: receivers
        that always owe a CNP send one per interval on average, whatever the substep.
        """
        if not self.cnp_paced:
            return state, marked
        running, remaining = state.cnp_left > 0, state.cnp_left - dt
        over = running & (remaining <= 1e-3 * dt)
        pending = state.cnp_owed | marked
        sent = jnp.where(running, over & pending, marked)
        renewed = jnp.where(over, remaining, 0.0) + params.cnp_interval_us
        remaining = jnp.where(sent, renewed, jnp.where(over, 0.0, remaining))
        owed = running & ~over & pending
        return replace(state, cnp_left=jnp.maximum(remaining, 0.0), cnp_owed=owed), sent

    def _alpha(
        self,
        state: DcqcnState,
        params: DcqcnParams,
        cnp: Bool[Array, " flows"],
        dt: float,
        eps: float,
    ) -> tuple[Array, Array, Array]:
        """Average of CNP presence over alpha intervals; several may end within one substep.

        The CNP that starts the machine belongs to no alpha interval.
        """
        remaining = state.to_alpha - dt
        ended = jnp.where(state.has_had_cnp, jnp.ceil((eps - remaining) / params.alpha_us), 0.0)
        ended = jnp.maximum(ended, 0.0)
        present = state.cnp_alpha | (cnp & state.has_had_cnp)
        # (1 - g)^n to second order in g: exact for n <= 2, and g is 1/256 or so.
        keep = 1.0 - ended * params.g * (1.0 - 0.5 * (ended - 1.0) * params.g)
        alpha = state.alpha * keep + jnp.where(present & (ended > 0), params.g, 0.0)
        to_alpha = jnp.where(state.has_had_cnp, remaining + ended * params.alpha_us, state.to_alpha)
        return alpha, to_alpha, present & (ended == 0)

    def _rise(
        self, timer: Int[Array, " flows"], count: Int[Array, " flows"], params: DcqcnParams
    ) -> Float[Array, " flows"]:
        """Increase of the target: none in fast recovery, then additive, then hyper."""
        low, high = timer, timer
        if self.byte_counter:
            low, high = jnp.minimum(timer, count), jnp.maximum(timer, count)
        rise = jnp.where(high < params.recovery_steps, 0.0, params.ai)
        return jnp.where(low > params.recovery_steps, params.hai, rise)
