"""Telemetry of real switches: delayed, infrequent, coarse, noisy.

A controller of real switches does not see every port every 100 µs, and cannot set any number. Each
option of an environment models one of these limits. Limits of thresholds hold for all policies that
set them through the environment: learners, static settings, oracles and rules. Limits of
observations change observations only. Reward, `info` and metrics stay exact, and rules in the
switch (`dynamic:...`), which read `info`, still see every interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from ecn_marl._checks import Real, check_value
from ecn_marl._errors import bad_value, unknown_name
from ecn_marl._types import Leaf
from ecn_marl.envs.features import push
from ecn_marl.sim.core.queues import LARGEST_KB, Ecn
from ecn_marl.sim.core.stats import closed, empty_sums, merge, summarise
from ecn_marl.sim.network.topology import KB, Topology
from ecn_marl.sim.simulator import Simulator
from ecn_marl.sim.state import PortStats, PortSums, SimParams, SimState

LONGEST_US = 1e7
"""Longest period of telemetry, µs: 10 s."""

MOST_DELAY = 1000
"""Longest delay, in tuning intervals."""


@dataclass(frozen=True)
class Telemetry:
    """Limits of observations and actions; by default there are none.

    Attributes:
        period_us: time between two observations, µs, a multiple of the tuning interval. Counters
            accumulate over it, and between two observations agents see the last one again. None for
            a new observation in every interval.
        observation_delay: intervals until an agent sees an observation, 0 for none.
        action_delay: intervals until new thresholds are in force, 0 for none.
        decision_delay_us: additional time that a decision takes, µs. Thresholds chosen at the start
            of an interval are in force after it, rounded up to a tick of the simulator; the old
            ones stay until then. It models large networks on a switch's CPU (HAECN, §2).
        pmax_percent: Pmax is set in whole percents, at least 1 %.
        one_profile: a switch has one WRED profile. Its first port (the agent with the smallest
            number) sets it, and all its ports get the same thresholds in bytes, whatever their
            rate.
        quantum_kb: thresholds are multiples of this many KB on ports of any rate, and Kmax is at
            least one multiple above Kmin; 0 for any number.
        noisy_marks: features of marked bytes are computed from a count of marked packets, not from
            its expected value.
    """

    period_us: float | None = None
    observation_delay: int = 0
    action_delay: int = 0
    decision_delay_us: float = 0.0
    pmax_percent: bool = False
    one_profile: bool = False
    quantum_kb: float = 0.0
    noisy_marks: bool = False

    def __post_init__(self) -> None:
        """Check all fields."""
        period = Real(above=0.0, high=LONGEST_US, unit="µs", none=True)
        check_value("period_us", self.period_us, period)
        for name in ("observation_delay", "action_delay"):
            value = getattr(self, name)
            is_int = isinstance(value, int) and not isinstance(value, bool)
            if not is_int or not 0 <= value <= MOST_DELAY:
                raise bad_value(name, value, f"an integer from 0 to {MOST_DELAY}")
        time = Real(low=0.0, high=LONGEST_US, unit="µs")
        check_value("decision_delay_us", self.decision_delay_us, time)
        for name in ("pmax_percent", "one_profile", "noisy_marks"):
            if not isinstance(getattr(self, name), bool):
                raise bad_value(name, getattr(self, name), "True or False")
        check_value("quantum_kb", self.quantum_kb, Real(low=0.0, high=LARGEST_KB, unit="KB"))

    @classmethod
    def of(cls, options: Telemetry | Mapping[str, Any] | None) -> Telemetry:
        """Options as they may be given to `make`.

        Args:
            options: a `Telemetry`, its fields by name, or None for the default.

        Raises:
            ValueError: an unknown field (with the nearest names), or a value that is not allowed.
        """
        if options is None:
            return cls()
        if isinstance(options, Telemetry):
            return options
        if not isinstance(options, Mapping):
            raise bad_value("telemetry", options, "a Telemetry, or a dict of its fields")
        field_names = [f.name for f in fields(cls)]
        for name in options:
            if name not in field_names:
                raise unknown_name("telemetry option", name, field_names)
        return cls(**options)

    @property
    def needs(self) -> tuple[str, ...]:
        """Counters of the simulator that it reads."""
        return ("marked_packets",) if self.noisy_marks else ()

    @property
    def alters_view(self) -> bool:
        """Whether observations differ from the features of the last intervals."""
        return self.period_us is not None or self.observation_delay > 0 or self.noisy_marks

    def every(self, interval_us: float) -> int:
        """Intervals per observation.

        Raises:
            ValueError: the period is no multiple of the interval.
        """
        if self.period_us is None:
            return 1
        n = round(self.period_us / interval_us)
        if n < 1 or abs(self.period_us - n * interval_us) > 1e-6 * self.period_us:
            allowed = f"a multiple of the tuning interval, {interval_us:g} µs"
            raise bad_value("period_us", self.period_us, allowed)
        return n

    def late(self, interval_us: float, tick_us: float) -> tuple[int, int]:
        """Whole intervals, and ticks of one more, until thresholds are in force."""
        per_interval = round(interval_us / tick_us)
        # A quotient that rounding leaves just above a whole number must not cost another tick.
        ticks = math.ceil(self.decision_delay_us / tick_us - 1e-6)
        intervals, remainder = divmod(ticks, per_interval)
        return self.action_delay + intervals, remainder

    def check(self, interval_us: float, max_steps: int) -> None:
        """Check the times against those of an environment.

        Raises:
            ValueError: the period is no multiple of the interval, or no observation or action ever
                comes through in an episode.
        """
        n = self.every(interval_us)
        if n + self.observation_delay > max_steps:
            raise bad_value(
                "period_us, observation_delay",
                (self.period_us, self.observation_delay),
                f"a first observation within the episode of {max_steps} intervals",
            )
        if self.action_delay >= max_steps:
            allowed = f"fewer intervals than the {max_steps} of an episode"
            raise bad_value("action_delay", self.action_delay, allowed)
        total_us = self.action_delay * interval_us + self.decision_delay_us
        if total_us >= max_steps * interval_us:
            allowed = f"with action_delay less than an episode, {max_steps * interval_us:g} µs"
            raise bad_value("decision_delay_us", self.decision_delay_us, allowed)

    def limited(self, ecn: Ecn, topology: Topology) -> Ecn:
        """The thresholds that the hardware sets for the requested ones, `[A]` each."""
        kmin, kmax, pmax = ecn.kmin, ecn.kmax, ecn.pmax
        if self.one_profile:
            first = first_ports(topology)
            kmin, kmax, pmax = kmin[first], kmax[first], pmax[first]
        if self.quantum_kb > 0.0:
            quantum = self.quantum_kb * KB
            steps = jnp.round(kmin / quantum)
            kmin = steps * quantum
            kmax = jnp.maximum(jnp.round(kmax / quantum), steps + 1.0) * quantum
        if self.pmax_percent:
            pmax = jnp.clip(jnp.round(100.0 * pmax), 1.0, 100.0) / 100.0
        return Ecn(kmin, kmax, pmax)


def with_delay(telemetry: Telemetry, decision_delay_us: float | None) -> Telemetry:
    """Options with this decision delay, µs; unchanged for None.

    Raises:
        ValueError: a time out of range, or the options have another one.
    """
    if decision_delay_us is None:
        return telemetry
    current = telemetry.decision_delay_us
    if current not in (0.0, decision_delay_us):
        raise bad_value("decision_delay_us", decision_delay_us, f"that of telemetry, {current:g}")
    return replace(telemetry, decision_delay_us=decision_delay_us)


@struct.dataclass
class TelemetryState:
    """Delayed observations and thresholds, and collected counters; None for unused options.

    Attributes:
        sums: counters since the last observation.
        features: observations that no agent has seen yet, oldest first, `[delay, A, width]`.
        ecn: thresholds that are not in force yet, oldest first, `[delay, A]` each.
    """

    sums: PortSums | None = None
    features: Leaf = None
    ecn: Ecn | None = None


def first_ports(topology: Topology) -> np.ndarray:
    """For every port the first port of its switch, int32 `[P]`."""
    switch = topology.port_switch()
    _, first = np.unique(switch, return_index=True)
    return first.astype(np.int32)[np.searchsorted(np.unique(switch), switch)]


def start(
    telemetry: Telemetry,
    cfg: Simulator,
    sim: SimState,
    params: SimParams,
    ecn: Ecn,
    features: Float[Array, "agents width"],
) -> TelemetryState | None:
    """The state at the start of an episode; None if no option needs one.

    Args:
        telemetry: options.
        cfg: simulator.
        sim: its state at the start.
        params: its parameters.
        ecn: thresholds at the start.
        features: those of an idle network.
    """
    state = TelemetryState()
    if telemetry.every(cfg.interval_us) > 1:
        # Closed, as the sums of `Simulator.collect` are: the state keeps its structure.
        state = replace(state, sums=closed(empty_sums(cfg, sim, params)))
    if telemetry.observation_delay:
        repeated = (telemetry.observation_delay, *features.shape)
        state = replace(state, features=jnp.broadcast_to(features, repeated))
    if n := telemetry.late(cfg.interval_us, cfg.tick_us)[0]:
        state = replace(state, ecn=jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *x.shape)), ecn))
    return state if jax.tree.leaves(state) else None


def act(
    telemetry: Telemetry, state: TelemetryState | None, ecn: Ecn, topology: Topology
) -> tuple[Ecn, TelemetryState | None]:
    """Thresholds in force in the next interval, if these are set now."""
    ecn = telemetry.limited(ecn, topology)
    if state is None or state.ecn is None:
        return ecn, state
    waiting = jax.tree.map(lambda old, new: jnp.concatenate((old, new[None])), state.ecn, ecn)
    due, later = (jax.tree.map(lambda x, at=at: x[at], waiting) for at in (0, slice(1, None)))
    return due, replace(state, ecn=later)


def collect(
    telemetry: Telemetry,
    state: TelemetryState | None,
    steps: Int[Array, ""],
    cfg: Simulator,
    sim: SimState,
    params: SimParams,
    sums: PortSums,
    stats: PortStats,
) -> tuple[PortStats, TelemetryState | None]:
    """The statistics that an observation at the end of this interval is made of.

    Args:
        telemetry: options.
        state: collected counters.
        steps: intervals of the episode before this one.
        cfg: simulator.
        sim: its state at the end of the interval.
        params: its parameters.
        sums: sums of the interval.
        stats: statistics of the interval.
    """
    n = telemetry.every(cfg.interval_us)
    if n > 1:
        assert state is not None
        assert state.sums is not None
        # Selected, not branched: under `vmap` both sides of a branch would run anyway.
        begins = steps % n == 0
        total = jax.tree.map(
            lambda fresh, merged: jnp.where(begins, fresh, merged), sums, merge(state.sums, sums)
        )
        stats = summarise(cfg, sim, params, total, n)
        state = replace(state, sums=total)
    if telemetry.noisy_marks:
        packet = jnp.asarray(params.net.packet_bytes)
        stats = replace(stats, marked_bytes=stats.marked_packets * packet)
    return stats, state


def see(
    telemetry: Telemetry,
    state: TelemetryState | None,
    steps: Int[Array, ""],
    interval_us: float,
    history: Float[Array, "agents k width"],
    features: Float[Array, "agents width"],
    share: np.ndarray | None = None,
) -> tuple[Float[Array, "agents k width"], TelemetryState | None]:
    """The history that agents see after an interval.

    Args:
        telemetry: options.
        state: delayed observations.
        steps: intervals of the episode before this one.
        interval_us: length of an interval, µs.
        history: the last observations that agents saw.
        features: features of this interval.
        share: the newest observation's share in averages, see `features.push`.
    """
    n, delay = telemetry.every(interval_us), telemetry.observation_delay
    if n == 1 and not delay:
        return push(history, features, share), state
    if delay:
        assert state is not None
        waiting = jnp.concatenate((state.features, features[None]))
        features, state = waiting[0], replace(state, features=waiting[1:])
    made_at = steps - delay
    # An observation is complete after every n-th interval, and arrives `delay` intervals later.
    arrives = (made_at >= 0) & ((made_at + 1) % n == 0)
    return jnp.where(arrives, push(history, features, share), history), state
