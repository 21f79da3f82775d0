"""How an episode went over time: its numbers in equal windows of it.

Counters of the simulation since its start, read after every interval, give what happened in a
window as a difference. Flows count in the window in which they finish; which are measured at all
follows from the scenario's margins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ecn_marl._errors import bad_value, unknown_name
from ecn_marl.baselines.evaluation.completion import SIZES
from ecn_marl.sim.sizes import CHUNK

PREFIX = "windows:"
"""How metrics and columns of windows begin; the number of the window ends a column's name."""

RATES = {"queue": 1e-3, "utilisation": 100.0}
"""Means over intervals and ports, and the factor to KB and percent."""


def counters(state: Any) -> dict[str, Array]:
    """Counters since the start of an episode.

    Args:
        state: state of an `EcnEnv`.

    Returns:
        By size class flows `finished` and the sum of their `slowdown` (measured ones), `[3]`; sums
        over intervals of the mean `queue` (bytes) and `utilisation` of ports; `intervals`;
        `delivered` bytes in chunks and a rest, `[2]`.
    """
    totals, sums = state.sim.totals, state.sums
    return {
        "finished": jnp.asarray(totals.measured).astype(jnp.float32),
        "slowdown": jnp.asarray(totals.slowdown),
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
    """What happened in each window.

    Args:
        rows: `counters` at the ends of windows, leading axis windows.

    Returns:
        `windows:SIZE_finished` and `windows:SIZE_slowdown` (sums) by size class,
        `windows:queue` (bytes) and `windows:utilisation` (means), `windows:delivered` (bytes), each
        `[windows]`.
    """
    gone: dict[str, Array] = jax.tree.map(
        lambda x: jnp.diff(x, axis=0, prepend=jnp.zeros_like(x[:1])), dict(rows)
    )
    found = {}
    for i, size in enumerate(SIZES):
        found[f"{size}_finished"] = gone["finished"][:, i]
        found[f"{size}_slowdown"] = gone["slowdown"][:, i]
    for name in RATES:
        found[name] = gone[name] / jnp.maximum(gone["intervals"], 1.0)
    found["delivered"] = gone["delivered"][:, 0] * CHUNK + gone["delivered"][:, 1]
    return {PREFIX + name: x for name, x in found.items()}


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
        last: last window, itself among them.

    Raises:
        ValueError: unknown figure, or windows that the columns do not have.
    """
    if name not in SERIES:
        raise unknown_name("series", name, SERIES)
    known = count_windows(columns)
    if not 0 <= first <= last < known:
        raise bad_value("windows", (first, last), f"0 <= first <= last < {known}, what was kept")
    span = range(first, last + 1)

    def total(what: str) -> np.ndarray:
        return np.asarray(sum(columns[f"{PREFIX}{what}:{i}"] for i in span))

    if name in RATES:
        return total(name) * RATES[name] / len(span)
    if name == "delivered":
        return total(name) * 1e-6
    flows = sum(total(f"{size}_finished") for size in _FLOWS[name])
    slow = sum(total(f"{size}_slowdown") for size in _FLOWS[name])
    return np.asarray(slow / np.where(flows > 0, flows, np.nan))
