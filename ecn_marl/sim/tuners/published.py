"""Published rules, adapted to one update per interval: ECN#, PI marking, dynamic thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.core.slots import segment_sum
from ecn_marl.sim.state import NetParams, PortStats
from ecn_marl.sim.tuners.base import Ramped, Tuner, port_scale
from ecn_marl.sim.units import KB

PACKET = 1000.0
"""Bytes of a packet in the gains of `PiMarker` (8000-bit packets in its authors' model)."""


class SharpState(NamedTuple):
    """State of `EcnSharp`, `[P]` each: time with a standing queue, µs; packets marked for it."""

    standing_us: Array
    marked: Array


@dataclass(frozen=True)
class EcnSharp(Tuner):
    """ECN# (Zhang et al., CoNEXT'19): mark bursts at once, standing queues little by little.

    The rule, per packet. *Instantaneous*: mark if its sojourn time exceeds `instant_us`.
    *Persistent* (CoDel's control law): once the sojourn time has stayed above `target_us` for
    `persist_us`, mark one packet, and the next ones `persist_us / sqrt(count)` apart, `count` being
    the packets marked so far, until the sojourn time falls below `target_us`.

    As thresholds. A FIFO port of rate C keeps a packet `queue / C`, so times become bytes:

    * `kmax = instant_us C`: above it every packet is marked. This half is exact.
    * `kmin = target_us C`: below it nothing is marked, as in the rule.
    * In between, `pmax` is set so that the ramp's mean over the band, `pmax / 2`, is the share of
      packets that the persistent rule would mark in the coming interval. With `count` as a number
      that grows at `sqrt(count) / persist_us`, an interval of T µs takes sqrt(count) to
      `sqrt(count) + T / (2 persist_us)` exactly; the increment of `count` over the packets that a
      busy link sends in T is that share.

    Choices: statistics do not hold the smallest queue of an interval, which the persistent rule
    needs. It is taken as `mean - dip std`, with dip = sqrt(3) the minimum of a
    saw-tooth (any evenly spread queue), or the queue at the end if that is smaller. The rule acts
    from the next interval on, so up to one interval late. While it is at rest `pmax` is `p_rest`,
    as it cannot be 0.

    Attributes:
        instant_us: sojourn time above which all is marked, µs.
        target_us: sojourn time of a standing queue, µs.
        persist_us: how long the queue must stand, and first spacing of marks, µs.
        dip: how far the lowest queue of an interval lies below its mean, standard deviations.
        p_rest: `pmax` while no queue stands.
    """

    name: ClassVar[str] = "ecn-sharp"
    title: ClassVar[str] = "ECN#"

    instant_us: float = 20.0
    target_us: float = 10.0
    persist_us: float = 100.0
    dip: float = 3**0.5
    p_rest: float = 1e-6

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._at_most("target_us", "instant_us")
        self._probability("p_rest")

    def init(self, net: NetParams) -> SharpState:
        """No queue stands."""
        zero = jnp.zeros_like(jnp.asarray(net.port_rate))
        return SharpState(zero, zero)

    def update(
        self, state: SharpState, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[SharpState, Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        rate = jnp.asarray(net.port_rate)
        # The difference of two close squares may round to less than 0.
        deviation = jnp.sqrt(jnp.maximum(stats.queue_sq - stats.queue_mean**2, 0.0))
        lowest = jnp.minimum(stats.queue, stats.queue_mean - self.dip * deviation)
        stands = lowest > self.target_us * rate
        standing = jnp.where(stands, state.standing_us + interval_us, 0.0)
        active = standing >= self.persist_us
        # The rule counts from the first mark, and its spacing divides by sqrt(count).
        count_before = jnp.maximum(state.marked, 1.0)
        count_after = (jnp.sqrt(count_before) + interval_us / (2.0 * self.persist_us)) ** 2
        share = (count_after - count_before) * net.packet_bytes / (rate * interval_us)
        ecn = Ecn(
            kmin=self.target_us * rate,
            kmax=self.instant_us * rate,
            pmax=jnp.where(active, jnp.clip(2.0 * share, self.p_rest, 1.0), self.p_rest),
        )
        return SharpState(standing, jnp.where(active, count_after, 0.0)), ecn


class PiState(NamedTuple):
    """State of `PiMarker`, `[P]` each: marking probability, relative error of the last interval."""

    p: Array
    error: Array


@dataclass(frozen=True)
class PiMarker(Tuner):
    """PI marking (Zhu et al., CoNEXT'16; `dcqcn2.m`): `p += a (q - qref) - b (q_old - qref)`.

    Unlike RED, whose queue grows with the number of flows, the integral holds the queue at `qref`.

    Retuned to an interval. In continuous time the rule has the proportional gain b and the integral
    gain `(a - b) / sample_us`; at an interval of T µs it is therefore applied with the same b and
    with `a = b + (a - b) T / sample_us`. The authors' model gives b = 1.816e-5 per packet and
    qref = 200 KB at 40 Gb/s; here b and qref are kept in proportion to the rate (the same p for the
    same queueing delay), 2.906e-5 and 125 KB at 25 Gb/s. Its a = 1.00001 b is applied at every call
    of the solver, of no stated length, so the integral gain is not determined; it is *our choice*:
    `a = 1.2 b` at 100 µs, an integral time of 0.5 ms, where a 16:1 incast settles in 10 ms.

    As thresholds. A flat p at every queue cannot be written as `(kmin, kmax, pmax)`: above `kmax`
    all is marked. The ramp through the origin and (qref, p) is used, `kmin = 0`,
    `kmax = qref / p`, `pmax = 1`: p at qref, proportionally less or more around it, no jump. Within
    an interval it acts as a further proportional gain p / qref.

    Two more choices. q is the mean queue of the interval; samples at its end would alias with the
    senders' oscillation. Errors are cut at `error_max` times qref (an empty queue's is -1): else
    one burst of 50 qref drives p to 1, and the links idle for tens of ms until it has come down.
    Both cuts, this one and that at `p_min`, let a queue that swings beyond them settle off qref
    (two flows: a third below).

    Attributes:
        qref_kb: queue to hold, KB at 25 Gb/s.
        a: weight of the queue's error, per packet of 1000 B at 25 Gb/s.
        b: weight of the former error, in the same unit.
        sample_us: interval that `a` and `b` are for, µs.
        error_max: largest error that counts, in units of qref.
        p_min: smallest marking probability at qref, also that of an episode's start.
    """

    name: ClassVar[str] = "pi"
    title: ClassVar[str] = "PI"

    qref_kb: float = 125.0
    a: float = 3.487e-5
    b: float = 2.906e-5
    sample_us: float = 100.0
    error_max: float = 1.0
    p_min: float = 1e-4

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._probability("p_min")
        self._at_most("b", "a", 1.0)

    def init(self, net: NetParams) -> PiState:
        """Marking probability at its minimum."""
        zero = jnp.zeros_like(jnp.asarray(net.port_rate))
        return PiState(zero + self.p_min, zero - 1.0)

    def update(
        self, state: PiState, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[PiState, Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        qref = self.qref_kb * KB * port_scale(net)
        error = jnp.clip(stats.queue_mean / qref - 1.0, -1.0, self.error_max)
        packets = self.qref_kb * KB / PACKET
        integral = (self.a - self.b) * interval_us / self.sample_us
        change = packets * (self.b * (error - state.error) + integral * error)
        p = jnp.clip(state.p + change, self.p_min, 1.0)
        return PiState(p, error), Ecn(jnp.zeros_like(p), qref / p, jnp.ones_like(p))


@dataclass(frozen=True)
class Shared(Tuner):
    """A tuner that looks at the free buffer of its switch.

    Attributes:
        port_switch: switch of every port, from `Topology.port_switch`; empty if there is only one.
    """

    port_switch: tuple[int, ...] = ()

    def init(self, net: NetParams) -> tuple[()]:
        """Nothing to remember.

        Raises:
            ValueError: several switches, but no `port_switch` for every port.
        """
        ports, switches = jnp.shape(net.port_rate)[0], jnp.shape(net.buffer)[0]
        complete = len(self.port_switch) == ports and max(self.port_switch) < switches
        if not complete and (self.port_switch or switches > 1):
            text = (
                f"the switches of {ports} ports, 0 to {switches - 1}: give parse_tuner a topology"
            )
            raise bad_value(f"{self.name}: port_switch", self.port_switch, text)
        return ()

    def free(self, stats: PortStats, net: NetParams) -> Float[Array, " ports"]:
        """Free buffer of every port's switch, bytes."""
        ports, switches = jnp.shape(net.port_rate)[0], jnp.shape(net.buffer)[0]
        switch = jnp.asarray(self.port_switch or (0,) * ports, jnp.int32)
        used = segment_sum(jnp.asarray(stats.queue), switch, switches)
        free: Array = jnp.maximum(net.buffer - used, 0.0)[switch]
        return free


@dataclass(frozen=True)
class BufferCoupled(Shared, Ramped):
    """Thresholds as a share of the switch's free buffer.

    Dynamic thresholds (Choudhury and Hahne, ToN'98; those of PFC in `core.pfc.decide`) applied to
    marking: `kmax = alpha (B - sum of the switch's queues)`, `kmin` a fixed part of it. A port
    marks earlier when others fill the buffer, long before PFC's share of it is reached. An
    Internet-Draft has the same idea: thresholds as a share of the dynamic limit of a queue's buffer
    (draft-yang-dynamic-ecn-threshold-00). The default
    gives an empty switch of 32 MiB Kmax = 419 KB at 25 Gb/s, near the 400 KB of SECN2 (Li et al.,
    SIGCOMM'19), whose Kmax / Kmin and Pmax are taken over.

    Attributes:
        alpha: share of the free buffer that is `kmax` at 25 Gb/s (PFC's is 0.125).
        floor_kb: smallest `kmax`, KB at 25 Gb/s.
    """

    name: ClassVar[str] = "buffer"
    title: ClassVar[str] = "buffer-coupled"

    alpha: float = 0.0125
    floor_kb: float = 5.0

    def update(
        self, state: tuple[()], stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[tuple[()], Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        kmax = port_scale(net) * jnp.maximum(self.alpha * self.free(stats, net), self.floor_kb * KB)
        return (), self.ramp(kmax / self.kmax_over_kmin)


@dataclass(frozen=True)
class Relative(Shared):
    """Thresholds as percentages of what a queue may take of the free shared buffer.

    The rule that NVIDIA ships: Cumulus Linux from 5.17, congestion control with `mode relative` on
    Spectrum-4. With `quota` the share of the free buffer that a queue may take (`alpha` of the
    dynamic limit),

        kmin = low quota (B - used),    kmax = high quota (B - used)

    whatever the rate of the port. The vendor's examples are 20/80, 10/90 and 35/80 %, and 2 % for
    the probability. *Our choice* is the quota, 1/8, the share at which PFC pauses an ingress here:
    the vendor's depends on the profile of the buffer. The switch follows its buffer from packet to
    packet; here thresholds are set once per interval, from the queues at its end.

    Attributes:
        low: Kmin, percent of the queue's share.
        high: Kmax, percent of it.
        pmax: marking probability at `kmax`.
        quota: share of the free buffer that a queue may take.
        floor_kb: smallest `kmax`, KB.
    """

    name: ClassVar[str] = "relative"
    title: ClassVar[str] = "relative"

    low: float = 20.0
    high: float = 80.0
    pmax: float = 0.02
    quota: float = 0.125
    floor_kb: float = 5.0

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._probability("pmax")
        self._at_most("low", "high")
        if self.high > 100:
            raise bad_value("relative: high", self.high, "at most 100 %")

    def update(
        self, state: tuple[()], stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[tuple[()], Ecn]:
        """Thresholds for the next interval, see `Tuner.update`."""
        share = self.quota * self.free(stats, net)
        kmax = jnp.maximum(self.high / 100.0 * share, self.floor_kb * KB)
        return (), Ecn(self.low / self.high * kmax, kmax, jnp.full_like(kmax, self.pmax))
