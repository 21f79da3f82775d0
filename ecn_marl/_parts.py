"""Names of the parts of a declared objective among the metrics of an episode.

A scenario may declare what J is made of, see `envs.objectives`. Its episodes then have
`weight:NAME` for every part, and `part:NAME` for parts that are no slowdowns of flows. So J follows
from the metrics, or the columns of a record, alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

PART, WEIGHT = "part:", "weight:"
"""Prefixes of the value of a part, and of its weight."""


def is_declared(name: str) -> bool:
    """Whether a metric belongs to a declared objective."""
    return name.startswith((PART, WEIGHT))


def exponents(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Exponents of J by part, which add up to 1; empty if no objective is declared.

    Args:
        metrics: of episodes, or columns; a weight is the same in all of them.
    """
    found = {
        name.removeprefix(WEIGHT): float(np.ravel(np.asarray(value))[0])
        for name, value in metrics.items()
        if name.startswith(WEIGHT)
    }
    total = sum(found.values())
    return {name: weight / total for name, weight in found.items()}


def of_steps(names: Iterable[str]) -> list[str]:
    """Metrics that are parts and no slowdowns of flows, `part:NAME`."""
    return [name for name in names if name.startswith(PART)]


def composed(parts: Mapping[str, np.ndarray], weights: Mapping[str, float]) -> np.ndarray:
    """The weighted geometric mean of parts; NaN where one is.

    Args:
        parts: values by part, of one shape.
        weights: exponents by part, which add up to 1.
    """
    logs = [weight * np.log(np.asarray(parts[name])) for name, weight in weights.items()]
    return np.asarray(np.exp(np.sum(logs, axis=0)))


def formula(weights: Mapping[str, float]) -> str:
    """J as text, e.g. `J = short_mean^0.5 · all-reduce^0.5`."""
    return "J = " + " · ".join(f"{name}^{weight:.3g}" for name, weight in weights.items())
