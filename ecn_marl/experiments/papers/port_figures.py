"""Figures that ACC and HAECN report beside completion times; importing this registers them.

Throughput, the bottleneck's queue, shares of classes, operations of storage, steps of a training,
and costs of decisions. They are NaN where a record lacks the columns.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ecn_marl.envs.episode import SHARE
from ecn_marl.experiments.papers.measures import Columns, register_figure

RDMA, RDMA_SHARE = "rdma", 0.7
"""Traffic class of `acc-tcp-…`, and its allotted share."""


def _or_nan(rule: Callable[[Columns], np.ndarray], *needs: str) -> Callable[[Columns], np.ndarray]:
    """A rule that gives NaN where a record lacks one of its columns."""

    def read(columns: Columns) -> np.ndarray:
        if all(name in columns for name in needs):
            return np.asarray(rule(columns))
        return np.full(np.shape(columns["offered"]), np.nan)

    return read


def _scaled(name: str, factor: float = 1.0) -> Callable[[Columns], np.ndarray]:
    return _or_nan(lambda columns: np.asarray(columns[name]) * factor, name)


def _of_sources(end: str, reduce: Callable[..., np.ndarray]) -> Callable[[Columns], np.ndarray]:
    """A counter of traffic sources by its name, reduced over all sources that have it."""

    def read(columns: Columns) -> np.ndarray:
        counts = [columns[n] for n in columns if n.startswith("source:") and n.endswith(f":{end}")]
        if not counts:
            return np.full(np.shape(columns["offered"]), np.nan)
        return np.asarray(reduce(np.stack(counts), axis=0))

    return read


def _milliseconds(columns: Columns) -> np.ndarray:
    """Mean time of a step, ms."""
    return 1e-3 * _of_sources("step_us", np.mean)(columns)


def _from_share(columns: Columns) -> np.ndarray:
    """RDMA's throughput over its allotted share, less one, %."""
    return 100.0 * (np.asarray(columns[SHARE + RDMA]) / RDMA_SHARE - 1.0)


for _name, _title, _rule, *_below in (
    ("short p99", "99th percentile of flows up to 100 KB, normalised", _scaled("short_p99")),
    ("throughput", "throughput, Gb/s", _scaled("throughput_gbps")),
    (
        "bottleneck queue",
        "mean queue of the busiest port, KB",
        _scaled("bottleneck_queue_mean", 1e-3),
    ),
    (
        "bottleneck queue spread",
        "standard deviation of the queue of the busiest port, KB",
        _scaled("bottleneck_queue_std", 1e-3),
    ),
    (
        "rdma share",
        "throughput of RDMA against what it is allotted, %",
        _or_nan(_from_share, SHARE + RDMA),
        100.0,
    ),
    ("iops", "operations per second", _of_sources("iops", np.sum)),
    ("step time", "mean time of a training step, ms", _milliseconds),
    ("pauses", "PFC pauses", _scaled("pauses")),
    (
        "inferences saved",
        "inferences against one for every decision, %",
        _or_nan(
            lambda columns: 100.0 * (np.asarray(columns["inferences_per_decision"]) - 1.0),
            "inferences_per_decision",
        ),
        100.0,
    ),
    (
        "activations",
        "decisions that run the large network, %",
        _scaled("activation_frequency", 100.0),
    ),
):
    register_figure(_name, _title, _rule, *_below)
