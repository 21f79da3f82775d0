"""Numbers of an episode over time, in windows of equal length.

The simulation's counters since its start are read after every interval. Numbers of a window are
differences of them. Flows count in the window in which they finish; the scenario's margins decide
which flows are measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.completion import SIZES
from ecn_marl.envs.episode import EnvState
from ecn_marl.sim.traffic.sizes import CHUNK, SLOWDOWN_UNIT

PREFIX = "windows:"
"""Prefix of metrics and columns of windows; a column's name ends with the number of its window."""

RATES = {"queue": 1e-3, "utilisation": 100.0}
"""Means over intervals and ports, and the factor to KB and percent."""


def counters(state: EnvState) -> dict[str, Array]:
    """Counters since the start of an episode.

    Args:
        state: state of an `EcnEnv`.

    Returns:
        By size class flows `finished` (measured ones), `[3]`, and the sum of their `slowdown` in
        units and a rest, `[2, 3]`; sums over intervals of the mean `queue` (bytes) and
        `utilisation` of ports; `intervals`; `delivered` bytes in chunks and a rest, `[2]`.
    """
    totals, sums = state.sim.totals, state.sums
    return {
        "finished": jnp.asarray(totals.measured).astype(jnp.float32),
        "slowdown": jnp.stack([jnp.asarray(x).astype(jnp.float32) for x in totals.slowdown]),
        "queue": sums.queue.mean(),
        "utilisation": sums.utilisation.mean(),
        "intervals": jnp.asarray(state.steps).astype(jnp.float32),
        "delivered": jnp.stack([jnp.asarray(x).astype(jnp.float32) for x in totals.delivered]),
    }


def ends(intervals: int, windows: int) -> np.ndarray:
    """Intervals after which windows end, counted from 0, `[windows]`.

    Raises:
        ValueError: more windows than intervals.
    """
    if windows > intervals:
        raise bad_value("windows", windows, f"at most the {intervals} intervals of an episode")
    return np.round(np.arange(1, windows + 1) * intervals / windows).astype(int) - 1


def in_windows(rows: Mapping[str, Array]) -> dict[str, Float[Array, " windows"]]:
    """Numbers of each window.

    Args:
        rows: `counters` at the ends of windows, leading axis windows.

    Returns:
        `windows:SIZE_finished` and `windows:SIZE_slowdown` (sums) by size class,
        `windows:queue` (bytes) and `windows:utilisation` (means), `windows:delivered` (bytes), each
        `[windows]`.
    """
    deltas: dict[str, Array] = jax.tree.map(
        lambda x: jnp.diff(x, axis=0, prepend=jnp.zeros_like(x[:1])), dict(rows)
    )
    # Differences first: float32 holds the numbers of a window to a few parts in 10^7, but the
    # difference of two totals of a whole episode would lose them.
    slowdown = deltas["slowdown"][:, 0] * SLOWDOWN_UNIT + deltas["slowdown"][:, 1]
    figures = {}
    for i, size in enumerate(SIZES):
        figures[f"{size}_finished"] = deltas["finished"][:, i]
        figures[f"{size}_slowdown"] = slowdown[:, i]
    for name in RATES:
        figures[name] = deltas[name] / jnp.maximum(deltas["intervals"], 1.0)
    figures["delivered"] = deltas["delivered"][:, 0] * CHUNK + deltas["delivered"][:, 1]
    return {PREFIX + name: x for name, x in figures.items()}


def window_columns(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns `windows:NAME:I` of metrics `windows:NAME` `[episodes, windows]`."""
    return {
        f"{name}:{i}": np.asarray(values[:, i], np.float64)
        for name, values in metrics.items()
        if name.startswith(PREFIX)
        for i in range(values.shape[1])
    }


_FLOWS = {
    "all mean": SIZES,
    "mice mean": SIZES[:2],
    "short mean": SIZES[:1],
    "long mean": SIZES[2:],
}

SERIES = {
    "all mean": "mean FCT of the flows that finish, normalised",
    "mice mean": "mean FCT of flows up to 1 MB that finish, normalised",
    "short mean": "mean FCT of flows up to 100 KB that finish, normalised",
    "long mean": "mean FCT of flows above 1 MB that finish, normalised",
    "queue": "mean queue, KB",
    "utilisation": "utilisation, %",
    "delivered": "delivered, MB",
}
"""Figures of windows by name, and their titles."""


def count_windows(columns: Mapping[str, np.ndarray]) -> int:
    """Windows that columns have; 0 for none."""
    return sum(name.startswith(f"{PREFIX}queue:") for name in columns)


def series_column(
    columns: Mapping[str, np.ndarray], name: str, first: int, last: int
) -> np.ndarray:
    """A figure of the windows `first` to `last` together, of the shape of the columns.

    Args:
        columns: columns of a record.
        name: name in `SERIES`.
        first: first window, from 0.
        last: last window, included.

    Raises:
        ValueError: unknown figure, or windows that the columns do not have.
    """
    if name not in SERIES:
        raise unknown_name("series", name, SERIES)
    n_windows = count_windows(columns)
    if not 0 <= first <= last < n_windows:
        raise bad_value(
            "windows", (first, last), f"0 <= first <= last < {n_windows}, what was kept"
        )
    span = range(first, last + 1)

    def total(metric: str) -> np.ndarray:
        return np.asarray(sum(columns[f"{PREFIX}{metric}:{i}"] for i in span))

    if name in RATES:
        return total(name) * RATES[name] / len(span)
    if name == "delivered":
        return total(name) * 1e-6
    flows = sum(total(f"{size}_finished") for size in _FLOWS[name])
    slow = sum(total(f"{size}_slowdown") for size in _FLOWS[name])
    return np.asarray(slow / np.where(flows > 0, flows, np.nan))
