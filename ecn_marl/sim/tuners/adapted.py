"""Our own rules, some of which follow published ideas whose formulas were not found: K moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.state import NetParams, PortStats
from ecn_marl.sim.tuners.base import Ramped, port_scale
from ecn_marl.sim.units import KB


@dataclass(frozen=True)
class Stepped(Ramped):
    """A tuner that moves `kmin` = K, a number within bounds.

    Attributes:
        start_kb: K at the start, KB at 25 Gb/s.
        low_kb: smallest K.
        high_kb: largest K.
    """

    start_kb: float = 20.0
    low_kb: float = 5.0
    high_kb: float = 200.0

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._at_most("low_kb", "start_kb", 1.0)
        self._at_most("start_kb", "high_kb", 1.0)

    def start(self, net: NetParams) -> Float[Array, " ports"]:
        """K of every port at the start."""
        return jnp.full_like(jnp.asarray(net.port_rate), self.start_kb)


@dataclass(frozen=True)
class UtilisationDriven(Stepped):
    """K rises where the link lacks bytes, and falls where it is full and the queue long.

    The idea is AMT's; its formulas were not found, so *the rule is ours*, a multiplicative step per
    interval: with u the utilisation and q the mean queue,

    * K `up` if u < `full` and q < `empty_kb`: marking may have cut too deep;
    * K `down` if u >= `full` and q > `long_kb`: there is more queue than the link needs;
    * else, and where less than a packet was ever queued (marks slow no sender down), K stays.

    `kmin = K`, `kmax = kmax_over_kmin K`. Marks with SECN2's slope (Kmax / Kmin = 4, Pmax = 20 %).

    Attributes:
        full: utilisation above which a link counts as full.
        empty_kb: mean queue below which it counts as empty.
        long_kb: mean queue above which it counts as long.
        up: factor of a raise.
        down: factor of a cut.
    """

    name: ClassVar[str] = "utilisation"
    title: ClassVar[str] = "utilisation-driven"

    full: float = 0.95
    empty_kb: float = 5.0
    long_kb: float = 20.0
    up: float = 1.25
    down: float = 0.8

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._probability("full")
        self._probability("down")
        self._at_most("empty_kb", "long_kb", 1.0)
        if self.up < 1:
            raise bad_value("utilisation: up", self.up, "a factor >= 1")

    def init(self, net: NetParams) -> Float[Array, " ports"]:
        """K of every port, KB at 25 Gb/s."""
        return self.start(net)

    def update(
        self, state: Array, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[Array, Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        unit = KB * port_scale(net)
        queue, full = stats.queue_mean / unit, stats.utilisation >= self.full
        short = ~full & (queue < self.empty_kb) & (stats.queue_max >= net.packet_bytes)
        factor = jnp.where(short, self.up, jnp.where(full & (queue > self.long_kb), self.down, 1.0))
        k = jnp.clip(state * factor, self.low_kb, self.high_kb)
        return k, self.ramp(k * unit)


class TrendState(NamedTuple):
    """State of `QueueDriven`, `[P]` each: K, KB at 25 Gb/s; the last level."""

    k: Array
    level: Array


@dataclass(frozen=True)
class QueueDriven(Stepped):
    """K follows the trend of the queue length: down as it grows, up as it drains.

    The idea is QAECN's; its formulas were not found, so *the rule is ours*. With the mean queue q
    of an interval, its level `e = min((q - target) / target, 1)` and the level before,

        K <- K exp(-gain [lead (e - e_old) + e])

    within bounds; intervals in which less than a packet was queued are skipped. With the trend
    alone K would be a function of the queue (the sum telescopes). So the level counts, too: it
    holds the mean queue at the target. The level is cut before the trend is taken, so that
    growth and drain cancel, however fast either is. `kmin = K`, `kmax = kmax_over_kmin K`,
    with SECN2's slope.

    Attributes:
        target_kb: mean queue at which K rests.
        lead: weight of the trend against the level, intervals to look ahead.
        gain: largest change of log K per interval for the level.
    """

    name: ClassVar[str] = "queue"
    title: ClassVar[str] = "queue-driven"

    target_kb: float = 20.0
    lead: float = 1.0
    gain: float = 0.1

    def init(self, net: NetParams) -> TrendState:
        """K at its start, no queue."""
        k = self.start(net)
        return TrendState(k, jnp.full_like(k, -1.0))

    def update(
        self, state: TrendState, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[TrendState, Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        unit = KB * port_scale(net)
        level = jnp.minimum(stats.queue_mean / unit / self.target_kb - 1.0, 1.0)
        busy = stats.queue_max >= net.packet_bytes
        step = self.gain * (self.lead * (level - state.level) + level)
        k = jnp.clip(state.k * jnp.exp(-step), self.low_kb, self.high_kb)
        k, level = jnp.where(busy, k, state.k), jnp.where(busy, level, state.level)
        return TrendState(k, level), self.ramp(k * unit)


class ClimbState(NamedTuple):
    """State of `HillClimbing`, `[P]` each.

    Attributes:
        k: K in use, KB at 25 Gb/s.
        before: K before it.
        up: whether the next K to try is larger.
        trying: whether K is on trial, beside the one before it.
        seen: busy intervals with this K.
        mean: mean utility in these.
        square: sum of squared deviations from it.
        mean_before: mean utility with the K before.
        square_before: sum of squared deviations from that.
    """

    k: Array
    before: Array
    up: Array
    trying: Array
    seen: Array
    mean: Array
    square: Array
    mean_before: Array
    square_before: Array


@dataclass(frozen=True)
class HillClimbing(Stepped):
    """K climbs to where a port's own utility is largest, where gains are certain.

    *The rule is ours.* The utility of an interval is the utilisation less the mean queue over
    `price_kb`. Every K has `trial` busy intervals. Then the next K, larger or smaller by `factor`,
    is on trial for as many. It stays if its mean utility is higher by `gate` standard errors of the
    difference, and the next one in the same direction is tried. Otherwise K is what it was, is
    measured again, and the other direction is tried. Intervals in which less than a packet was
    queued are skipped.

    Attributes:
        factor: ratio of neighbouring K.
        trial: busy intervals of a trial.
        gate: standard errors by which a K has to be better.
        price_kb: mean queue that costs as much as the whole link is worth.
    """

    name: ClassVar[str] = "climb"
    title: ClassVar[str] = "hill climbing"

    factor: float = 2.0
    trial: float = 10.0
    gate: float = 2.0
    price_kb: float = 100.0

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        if self.factor < 1.01:
            raise bad_value("climb: factor", self.factor, "a factor >= 1.01")
        if self.trial < 2:
            raise bad_value("climb: trial", self.trial, "at least 2 intervals")

    def init(self, net: NetParams) -> ClimbState:
        """K at its start, nothing measured."""
        k = self.start(net)
        no, zero = jnp.zeros(k.shape, bool), jnp.zeros_like(k)
        return ClimbState(k, k, ~no, no, zero, zero, zero, zero, zero)

    def update(
        self, state: ClimbState, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[ClimbState, Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        unit = KB * port_scale(net)
        utility = stats.utilisation - stats.queue_mean / unit / self.price_kb
        state = self._counted(state, utility, stats.queue_max >= net.packet_bytes)
        due = state.seen >= self.trial
        # With the sample variances, square / (trial - 1), of both means of `trial` intervals.
        spread = (state.square + state.square_before) / (self.trial * (self.trial - 1.0))
        gain = state.mean - state.mean_before
        stays = ~state.trying | (gain > self.gate * jnp.sqrt(spread))
        k = jnp.where(due & ~stays, state.before, state.k)
        up, climbs = state.up ^ (due & ~stays), due & stays
        # At a bound there is only one way to go.
        up = jnp.where(climbs & (k >= self.high_kb), False, up)
        up = jnp.where(climbs & (k <= self.low_kb), True, up)
        other = jnp.where(up, k * self.factor, k / self.factor)
        found = ClimbState(
            k=jnp.where(climbs, jnp.clip(other, self.low_kb, self.high_kb), k),
            before=jnp.where(climbs, k, state.before),
            up=up,
            trying=jnp.where(due, climbs, state.trying),
            seen=jnp.where(due, 0.0, state.seen),
            mean=jnp.where(due, 0.0, state.mean),
            square=jnp.where(due, 0.0, state.square),
            mean_before=jnp.where(climbs, state.mean, state.mean_before),
            square_before=jnp.where(climbs, state.square, state.square_before),
        )
        return found, self.ramp(found.k * unit)

    def _counted(self, state: ClimbState, utility: Array, busy: Array) -> ClimbState:
        """The state with an interval's utility (Welford's recurrence), where the port was busy."""
        seen = state.seen + busy
        error = jnp.where(busy, utility - state.mean, 0.0)
        mean = state.mean + error / jnp.maximum(seen, 1.0)
        square = state.square + error * jnp.where(busy, utility - mean, 0.0)
        return state._replace(seen=seen, mean=mean, square=square)
