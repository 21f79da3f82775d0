"""What a policy is judged by: completion times of an episode, and when a result does not count.

Slowdown is a flow's completion time over the time it would take alone. Flows are measured if they
begin after the warm-up and before the last millisecond; one that is unfinished at the end enters
with its age, which is a lower bound.

    J = (mean short · p99 short)^(1/4) · (geometric mean long)^(1/2)     of an episode
    score = geometric mean over episodes of J(policy) / J(static:best)   lower is better, both

Over episodes and seeds slowdowns are averaged geometrically, so that the ratios of the three parts
multiply to the score. This module needs numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

SIZES = ("short", "medium", "long")
"""Size classes by payload, in the order of every `[3]`: up to 100 KB, up to 1 MB, above."""

PARTS = ("short_mean", "short_p99", "long_geomean")
"""The parts of J."""

SLOWDOWNS = (
    *("short_mean", "short_p99", "short_geomean"),
    *("medium_mean", "medium_p99", "medium_geomean"),
    *("long_mean", "long_p99", "long_geomean"),
)
"""Slowdowns per size class; all lower is better, averaged geometrically."""

COUNTS = ("offered", "started", "finished", "unfinished", "deferred", "waiting")
"""Flows of the whole episode. Offered: started or still waiting. Deferred: waited for a slot."""

COSTS = ("inferences_per_decision", "flops_per_decision", "activation_frequency")
"""What a controller with a method `costs` reports of an episode, per port and interval."""

TOLERANCE = 1e-3
"""Share of flows, bytes or flow-ticks above which a simulation does not count as a result."""


def objective(
    short_mean: Float[np.ndarray, "*b"],
    short_p99: Float[np.ndarray, "*b"],
    long_geomean: Float[np.ndarray, "*b"],
) -> Float[np.ndarray, "*b"]:
    """J from its parts, NaN where a part is."""
    return np.asarray((short_mean * short_p99) ** 0.25 * long_geomean**0.5)


def invalid_reasons(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Why a result does not count; empty if it does.

    Args:
        columns: per-episode numbers of any shape: `offered`, `deferred`, `waiting` (flows),
            `bytes_offered`, `bytes_dropped`, `flow_ticks`, `feedback_cut` (flow-ticks).
    """
    total = {name: float(np.sum(columns[name])) for name in _CHECKED}
    shares = (
        ("of flows deferred or waiting", total["deferred"] + total["waiting"], total["offered"]),
        ("of bytes dropped", total["bytes_dropped"], total["bytes_offered"]),
        ("of flow-ticks with feedback cut", total["feedback_cut"], total["flow_ticks"]),
    )
    reasons = []
    for what, part, whole in shares:
        share = part / whole if whole > 0 else float(part > 0)
        if share > TOLERANCE:
            reasons.append(f"{100 * share:.2g} % {what} (allowed: {100 * TOLERANCE:g} %)")
    return reasons


_CHECKED = (
    *("offered", "deferred", "waiting", "bytes_offered", "bytes_dropped"),
    *("flow_ticks", "feedback_cut"),
)
