"""Our own rules, which follow published ideas whose formulas were not found: K moves in steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.sim.queues import Ecn
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
