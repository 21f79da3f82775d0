"""Sums over an episode, and the papers' metrics: throughput, the bottleneck's queue, shares.

They come from the network's counters, so all policies have them.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._types import Leaf
from ecn_marl.sim.sizes import CHUNK
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.topology import GBPS

PORT_METRICS = (
    "throughput_gbps",
    "bottleneck_queue_mean",
    "bottleneck_queue_std",
    "bottleneck_utilisation",
)
"""Metrics of `port_metrics` that every environment has."""

SHARE = "share:"
"""Prefix of the metrics of traffic classes."""


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
