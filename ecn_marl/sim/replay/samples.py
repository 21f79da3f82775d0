"""Samples of a replay: statistics of every port over each 10 µs, and their sums over the replay."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from ecn_marl._types import Leaf
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.units import GBPS

SAMPLE_US = 10
"""Time between samples, µs."""


class Rows(NamedTuple):
    """Statistics of the samples of one chunk, every leaf `[chunk, P]`, see `PortStats`."""

    queue: Leaf
    tx_bytes: Leaf
    queue_mean: Leaf
    queue_sq: Leaf
    queue_max: Leaf
    marked_bytes: Leaf
    paused: Leaf


class Record:
    """Record of all samples: two series, and per port the sums behind the statistics.

    Attributes:
        queue: queue at the end of each sample, bytes, float32 `[T, P]`.
        tx_bytes: bytes sent during each sample, float32 `[T, P]`.
        sums: sums over the samples, in float64, by name: `queue_mean`, `queue_sq`, `marked_bytes`,
            `paused`, `tx_bytes`, `[P]` each.
        peak: largest queue, bytes, `[P]`.
        rows: all statistics of every sample, float32 `[T, P]` each; None unless they are kept.
    """

    def __init__(self, samples: int, ports: int, keep: bool = False) -> None:
        self.queue = np.zeros((samples, ports), np.float32)
        self.tx_bytes = np.zeros((samples, ports), np.float32)
        names = ("queue_mean", "queue_sq", "marked_bytes", "paused", "tx_bytes")
        self.sums = {name: np.zeros(ports) for name in names}
        self.peak = np.zeros(ports)
        shape = (samples, ports)
        blank = (np.zeros(shape, np.float32) for _ in Rows._fields)
        self.rows = Rows(*blank) if keep else None

    def add(self, at: int, n: int, rows: Rows) -> None:
        """Add the first `n` rows of a chunk, from sample `at` on."""
        host: Rows = jax.device_get(rows)  # of numpy arrays itself
        self.queue[at : at + n] = host.queue[:n]
        self.tx_bytes[at : at + n] = host.tx_bytes[:n]
        for name, total in self.sums.items():
            # float64: sums over millions of samples would lose digits in float32.
            total += getattr(host, name)[:n].sum(0, dtype=np.float64)
        self.peak = np.maximum(self.peak, host.queue_max[:n].max(0))
        for kept, values in zip(self.rows or (), host, strict=self.rows is not None):
            kept[at : at + n] = values[:n]


def port_classes(topology: Topology, record: Record, packet: float) -> dict[str, Any]:
    """Statistics of every class of ports, see `_port_class`."""
    kinds = sorted({p.kind for p in topology.ports}, key=lambda kind: (kind != "host", kind))
    return {kind: _port_class(topology, record, kind, packet) for kind in kinds}


def _port_class(topology: Topology, record: Record, kind: str, packet: float) -> dict[str, Any]:
    """Statistics over all ports of a class and the whole time.

    Returns:
        `ports` (their number), `queue_bytes` (`mean`, `std` and `max` over every substep, `p99`
        over the samples every 10 µs), `utilisation` in [0, 1], `marks` (expected number of marked
        packets), `paused` (share of time).
    """
    index, samples = topology.ports_of_kind(kind), len(record.queue)
    mean = {name: total[index].mean() / samples for name, total in record.sums.items()}
    rate = np.array([topology.ports[i].gbps for i in index]) * GBPS
    sent = record.sums["tx_bytes"][index] / (rate * (SAMPLE_US * samples))
    variance = mean["queue_sq"] - mean["queue_mean"] ** 2
    return {
        "ports": len(index),
        "queue_bytes": {
            "mean": float(mean["queue_mean"]),
            "std": math.sqrt(max(variance, 0.0)),
            "p99": float(np.percentile(record.queue[:, index], 99)),
            "max": float(record.peak[index].max()),
        },
        "utilisation": float(sent.mean()),
        "marks": float(record.sums["marked_bytes"][index].sum() / packet),
        "paused": float(mean["paused"]),
    }
