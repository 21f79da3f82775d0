"""An episode: its parameters and state, and what is counted and measured over it.

The papers' metrics (throughput, the bottleneck's queue, shares of classes) come from the network's
counters, so all policies have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from ecn_marl._checks import INT32, TEXT, Each, Whole, check
from ecn_marl._flags import FLAGGED
from ecn_marl._types import Leaf
from ecn_marl.envs.features import FeatureScale
from ecn_marl.envs.objectives import Part, objective_metrics
from ecn_marl.envs.rewards import RewardParams
from ecn_marl.envs.telemetry import TelemetryState
from ecn_marl.sim.metrics import source_metrics
from ecn_marl.sim.network.topology import GBPS
from ecn_marl.sim.simulator import Ecn, SimParams, SimState, Simulator
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.traffic.sizes import CHUNK, counter_value
from ecn_marl.sim.traffic.tickets import TIME_UNIT

ACCOUNTS = (
    *("offered", "started", "finished", "unfinished", "waiting"),
    *("deferred", "deferred_us", "dropped", "late_feedback"),
)
"""Counts of the flows of an episode, see `accounts`, which has its flags as well."""

PHASE = "phase"
"""Entry of `info` with the phase of the next interval; `make(counts=("phase",))` asks for it."""

FLOWLETS = ("flowlets", "flowlets_kept")
"""Further accounts where `load_balancing` is `flowlet`."""

SAME = (*ACCOUNTS, *FLOWLETS, FLAGGED)
"""Entries of `info` that are the same for all ports."""

PORT_METRICS = (
    "throughput_gbps",
    "bottleneck_queue_mean",
    "bottleneck_queue_std",
    "bottleneck_utilisation",
)
"""Metrics of `port_metrics` that every environment has."""

SHARE = "share:"
"""Prefix of the metrics of traffic classes."""


@dataclass(frozen=True)
class HostGroup:
    """Hosts that share a role, or a place on the timeline.

    Attributes:
        name: name of their ports in `EcnEnv.port_groups`.
        hosts: names of hosts.
        shift: phases by which they run behind the timeline.
    """

    name: Annotated[str, TEXT]
    hosts: Annotated[tuple[str, ...], Each(TEXT)]
    shift: Annotated[int, Whole(low=-INT32)] = 0

    def __post_init__(self) -> None:
        """Check all fields."""
        check(self)


@struct.dataclass
class PhaseEcn(Ecn):
    """Thresholds for each phase, bytes, leaves `[phases, A]`: for policies that know the phase."""

    def during(self, phase: Int[Array, "*agents"]) -> Ecn:
        """Thresholds of the current phase: one phase for all ports, or one for each port."""

        def pick(table: Leaf) -> Array:
            rows = jnp.broadcast_to(phase, table.shape[1:])
            return jnp.take_along_axis(jnp.asarray(table), rows[None], 0)[0]

        return Ecn(kmin=pick(self.kmin), kmax=pick(self.kmax), pmax=pick(self.pmax))


@struct.dataclass
class EnvParams:
    """Traced parameters of an episode; vmap over them to randomise the network.

    Attributes:
        sim: network, senders, traffic.
        reward: constants of the reward.
        scale: units of the features.
        max_steps: tuning intervals in an episode; it is truncated there.
    """

    sim: SimParams
    reward: RewardParams
    scale: FeatureScale
    max_steps: Annotated[Leaf, Whole(low=1)]


@struct.dataclass
class EpisodeSums:
    """Sums over the intervals of the episode so far, every leaf `[A]`.

    `class_tx`, bytes sent per traffic class, is `[A, C]`, and None with a single class.
    """

    reward: Leaf
    queue: Leaf
    queue_sq: Leaf
    utilisation: Leaf
    paused: Leaf
    class_tx: Leaf = None

    @staticmethod
    def start(num_agents: int, classes: int) -> EpisodeSums:
        """Sums at the start of an episode."""
        zero = jnp.zeros((num_agents,), jnp.float32)
        by_class = None if classes == 1 else jnp.zeros((num_agents, classes), jnp.float32)
        return EpisodeSums(zero, zero, zero, zero, zero, by_class)

    def with_interval(self, reward: Float[Array, " agents"], stats: PortStats) -> EpisodeSums:
        """The sums with one more interval."""
        by_class = self.class_tx
        return EpisodeSums(
            reward=self.reward + reward,
            queue=self.queue + stats.queue_mean,
            queue_sq=self.queue_sq + stats.queue_sq,
            utilisation=self.utilisation + stats.utilisation,
            paused=self.paused + stats.paused,
            class_tx=None if by_class is None else by_class + stats.class_tx_bytes,
        )


@struct.dataclass
class EnvState:
    """State of an episode.

    Attributes:
        sim: state of the network.
        ecn: thresholds in force, bytes, `[P]` each, with `per_queue` `[P, C]`.
        history: the last k observations of an interval that ports have shown, `[P, k, width]`.
        steps: intervals so far.
        sums: sums for `episode_metrics`.
        telemetry: observations and thresholds that are delayed; None without such options.
    """

    sim: SimState
    ecn: Ecn
    history: Leaf
    steps: Leaf
    sums: EpisodeSums
    telemetry: TelemetryState | None = None


Step = tuple[
    Float[Array, "agents obs"],
    EnvState,
    Float[Array, " agents"],
    Bool[Array, " agents"],
    Bool[Array, " agents"],
    dict[str, Array],
]
"""`obs, state, reward, terminated, truncated, info` of a step."""


def accounts(network: Simulator, sim: SimState, params: SimParams) -> dict[str, Array]:
    """Counts of the flows and bytes of the episode so far; scalars, of the whole network.

    Returns:
        Flows `offered` (started or waiting), `started`, `finished`, `unfinished` (started, not
        finished), `waiting` (arrived, without a slot; a lower bound, see `Simulator.waiting`),
        `deferred` (those that waited for a slot) and the time they waited, `deferred_us`;
        `dropped` bytes; `late_feedback`, ticks of flows whose feedback was cut; `flags`, the
        structures of fixed size that were too small, see `sim.core.flags`. With the load
        balancing `flowlet` also `flowlets`, paths drawn after the first of a flow, and
        `flowlets_kept`, ticks of flows that kept a path because an older one had to drain.
    """
    totals, waiting = sim.totals, network.waiting(sim, params)
    finished = totals.finished.sum()
    flowlets = {} if totals.flowlets is None else dict(zip(FLOWLETS, totals.flowlets, strict=True))
    return {
        "offered": totals.started + waiting,
        "started": totals.started,
        "finished": finished,
        "unfinished": totals.started - finished,
        "waiting": waiting,
        "deferred": totals.deferred,
        "deferred_us": counter_value(totals.deferred_us, TIME_UNIT),
        "dropped": counter_value(totals.dropped),
        "late_feedback": counter_value(totals.late_feedback),
        # int32, as faces and records know no unsigned numbers; exact as a float, too.
        FLAGGED: jnp.asarray(sim.flags).astype(jnp.int32),
        **flowlets,
    }


def episode_metrics(
    network: Simulator, objective: tuple[Part, ...], state: EnvState, params: EnvParams
) -> dict[str, Array]:
    """Metrics of the episode so far; means over ports and time unless said otherwise.

    Returns:
        `reward`, `queue_mean` and `queue_std` (bytes), `utilisation`, `paused` (share of
        time); all `accounts`; counts `pauses`, `flow_ticks`, `bytes_offered`, `bytes_spilled`
        (see `sim.state.Totals`); per size class `[3]` (mice, medium, elephants)
        `flows_finished`. `flows_started`, `flows_waiting`, `bytes_dropped` and `feedback_cut`
        are second names of `started`, `waiting`, `dropped` and `late_feedback`.

        Of the measured flows, by size class: `flows_measured`, `flows_unfinished`,
        `slowdown_sum`, `slowdown_log_sum` and `slowdown_histogram` `[3, bins]`. Unfinished
        flows count at their age, a lower bound; see `sim.core.delays.completion`.

        Of `port_metrics`: throughput, the bottleneck's queue, shares of classes.

        Of sources that count on their own (`sim.metrics.source_metrics`), `source:i:name`, e.g.
        `source:0:iops` of a `ClosedLoop`, `source:1:step_us` of a `Graph`.

        Of a declared objective, `weight:NAME` and `part:NAME`, see `envs.objectives`.
    """
    # At least 1, so that metrics before the first interval are 0, not NaN.
    n = jnp.maximum(state.steps, 1).astype(jnp.float32)
    sums, totals = state.sums, state.sim.totals
    completion = network.completion(state.sim, params.sim)
    counts = accounts(network, state.sim, params.sim)
    mean = sums.queue.mean() / n
    variance = sums.queue_sq.mean() / n - mean**2
    metrics: dict[str, Any] = {
        "reward": sums.reward.mean() / n,
        "queue_mean": mean,
        # For a steady queue the difference of two float32 can come out below 0.
        "queue_std": jnp.sqrt(jnp.maximum(variance, 0.0)),
        "utilisation": sums.utilisation.mean() / n,
        "paused": sums.paused.mean() / n,
        "pauses": totals.pauses,
        **counts,
        "flows_started": counts["started"],
        "flows_waiting": counts["waiting"],
        "flows_finished": totals.finished,
        "bytes_offered": counter_value(totals.offered),
        "bytes_dropped": counts["dropped"],
        "bytes_spilled": totals.spilled,
        "feedback_cut": counts["late_feedback"],
        "flow_ticks": counter_value(totals.flow_ticks),
        "flows_measured": completion.begun,
        "flows_unfinished": completion.unfinished,
        "slowdown_sum": completion.total,
        "slowdown_log_sum": completion.log_total,
        "slowdown_histogram": completion.histogram,
    }
    names = tuple(kind.name for kind in network.classes)
    metrics |= port_metrics(sums, totals.delivered, names, n, network.interval_us)
    for i, values in enumerate(source_metrics(network, state.sim, jnp)):
        metrics |= {f"source:{i}:{name}": value for name, value in values.items()}
    of_jobs = state.sim.traffic
    return metrics | objective_metrics(objective, network.traffic, of_jobs, network.tick_us)


def port_metrics(
    sums: EpisodeSums,
    delivered: tuple[Leaf, Leaf],
    names: tuple[str, ...],
    intervals: Float[Array, ""],
    interval_us: float,
) -> dict[str, Array]:
    """Throughput and queue of an episode so far; scalars.

    Args:
        sums: those of the episode.
        delivered: wire bytes delivered to hosts, as a counter of `sim.state.Totals`.
        names: names of the traffic classes; none or one if there is a single one.
        intervals: tuning intervals so far, at least 1.
        interval_us: length of an interval, µs.

    Returns:
        `throughput_gbps`, bytes delivered to all hosts per time, headers included. Of the
        bottleneck, the port that was busiest over the episode: `bottleneck_queue_mean` and
        `bottleneck_queue_std` over time (bytes), `bottleneck_utilisation`. With traffic classes
        `share:NAME`, what each had of the bytes that the bottleneck sent.
    """
    high, low = delivered
    total = jnp.asarray(high).astype(jnp.float32) * CHUNK + low
    busiest = jnp.argmax(sums.utilisation)
    mean = sums.queue[busiest] / intervals
    variance = sums.queue_sq[busiest] / intervals - mean**2
    metrics = {
        "throughput_gbps": total / (intervals * interval_us) / GBPS,
        "bottleneck_queue_mean": mean,
        # For a steady queue the difference of two float32 can come out below 0.
        "bottleneck_queue_std": jnp.sqrt(jnp.maximum(variance, 0.0)),
        "bottleneck_utilisation": sums.utilisation[busiest] / intervals,
    }
    if sums.class_tx is not None:
        sent = sums.class_tx[busiest]
        # At least one byte: shares are 0, not NaN, where nothing was sent.
        share = sent / jnp.maximum(sent.sum(), 1.0)
        metrics |= {SHARE + name: share[i] for i, name in enumerate(names)}
    return metrics
