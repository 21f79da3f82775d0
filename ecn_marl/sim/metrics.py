"""Metrics of a simulation: slowdown percentiles, bytes, operations and steps of sources."""

from __future__ import annotations

from types import ModuleType

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.core.lifecycle import SLOWDOWN_TOP
from ecn_marl.sim.state import SimState
from ecn_marl.sim.traffic.sizes import CHUNK


def histogram_quantile(counts: ArrayLike, q: float) -> np.ndarray:
    """Quantile of slowdowns from their log-spaced histogram, interpolated within a bin.

    Args:
        counts: number of flows per bin, `[..., bins]`; bins as in `lifecycle.slowdown_bin`.
        q: quantile in [0, 1].

    Returns:
        Slowdowns `[...]`, NaN where there are no flows. The error is below one bin: a factor of
        `SLOWDOWN_TOP ** (1 / bins)`.
    """
    counts = np.asarray(counts, np.float64)
    bins = counts.shape[-1]
    total = counts.sum(-1)
    cumulative = counts.cumsum(-1)
    # At q = 0 a rank of 0 would be met by empty bins before the first flow.
    rank = np.maximum(q * total, np.minimum(total, 1e-9))
    cell = np.argmax(cumulative >= rank[..., None], axis=-1)
    before = np.take_along_axis(cumulative - counts, cell[..., None], -1)[..., 0]
    inside = np.take_along_axis(counts, cell[..., None], -1)[..., 0]
    part = np.divide(rank - before, inside, out=np.zeros_like(total), where=inside > 0)
    value = np.exp((cell + part) / bins * np.log(SLOWDOWN_TOP))
    return np.where(total > 0, value, np.nan)


def counter_bytes(counter: tuple[ArrayLike, ArrayLike]) -> np.ndarray:
    """Value of a `Totals` byte counter as float64 (or of a batch of them)."""
    return counted(counter, CHUNK)


def counted(counter: tuple[ArrayLike, ArrayLike], unit: float) -> np.ndarray:
    """Value of a counter of whole units and a rest as float64 (or of a batch of them)."""
    high, low = counter
    return np.asarray(np.asarray(high, np.float64) * unit + np.asarray(low, np.float64))


def source_metrics(
    sim: SimConfig, state: SimState, xp: ModuleType = np
) -> tuple[dict[str, np.ndarray | Array], ...]:
    """Metrics that the traffic sources of a simulation have counted since the start.

    Args:
        sim: the simulator.
        state: its state, or the states of a batch (a leading axis on every leaf).
        xp: `numpy`, or `jax.numpy` where the state is traced.

    Returns:
        A dict for each source: operations per second and latencies of a `ClosedLoop`, times of the
        steps of a `Graph`, empty for others. Entries are float64 (of `jax.numpy` its default
        float), with the leading axis of a batch. To leave a warm-up out, take differences of
        `operations` or `steps`.
    """
    elapsed = xp.asarray(state.step, float) * sim.dt_us
    return tuple(
        dict(source.metrics(source_state, elapsed, xp)) if hasattr(source, "metrics") else {}
        for source, source_state in zip(sim.traffic, state.traffic, strict=True)
    )


def slowdown_summary(slowdown: np.ndarray, payload: np.ndarray) -> dict[str, dict[str, float]]:
    """Mean and percentiles of slowdowns, for all flows and per size class.

    Args:
        slowdown: completion time over ideal time, NaN for unfinished flows, `[N]`.
        payload: flow sizes, bytes, `[N]`.

    Returns:
        `{class: {"flows", "mean", "p50", "p95", "p99"}}`; NaN where no flow finished.
    """
    done = np.isfinite(slowdown)
    mice, big = payload <= 100e3, payload > 1e6
    groups = {"all": done, "mice": done & mice, "medium": done & ~mice & ~big}
    groups["elephants"] = done & big
    summary = {}
    for name, member in groups.items():
        values = slowdown[member]
        row = {"flows": float(values.size)}
        empty = not values.size
        row["mean"] = float("nan") if empty else float(values.mean())
        for p in (50, 95, 99):
            row[f"p{p}"] = float("nan") if empty else float(np.percentile(values, p))
        summary[name] = row
    return summary
