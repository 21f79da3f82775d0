"""J of episodes straight from the environment's metrics, for scores and searches.

`Evaluation` computes every number of an episode. A comparison of thousands of candidates needs only
J and its parts (see `completion`), and their geometric means over episodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ecn_marl import _parts
from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.completion import PARTS, SIZES, objective
from ecn_marl.sim.metrics import histogram_quantile

NEEDS = ("flows_measured", "slowdown_sum", "slowdown_log_sum", "slowdown_histogram")
"""The metrics of an episode from which J is computed."""


def episode_objective(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """J and its parts, by episode; NaN where no flow of a class was measured.

    Args:
        metrics: what `episode_metrics` gives, with any leading axes: `flows_measured`,
            `slowdown_sum` and `slowdown_log_sum` `[..., 3]`, `slowdown_histogram` `[..., 3, bins]`;
            the weights and parts of a declared objective, see `envs.objectives`.

    Returns:
        `J` and its parts, those of `completion.PARTS` if none are declared, `[...]` each.

    Raises:
        ValueError: one of the metrics is missing.
    """
    for name in NEEDS:
        if name not in metrics:
            raise bad_value("metrics", sorted(metrics), f"those of an episode with {name}")
    raw = {name: np.asarray(metrics[name], np.float64) for name in NEEDS}
    # NaN, not 0 flows: a quotient would warn, or be infinite.
    flows = np.where(raw["flows_measured"] > 0, raw["flows_measured"], np.nan)
    weights = _parts.exponents(metrics)
    names = PARTS if not weights else tuple(weights)
    parts: dict[str, np.ndarray] = {}
    for name in names:
        size, _, statistic = name.partition("_")
        if _parts.PART + name in metrics:
            parts[name] = np.asarray(metrics[_parts.PART + name], np.float64)
        elif statistic == "p99":
            histogram = raw["slowdown_histogram"][..., SIZES.index(size), :]
            parts[name] = histogram_quantile(histogram, 0.99)
        else:
            number = SIZES.index(size)
            total = raw["slowdown_sum" if statistic == "mean" else "slowdown_log_sum"]
            mean = np.asarray(total[..., number] / flows[..., number])
            parts[name] = mean if statistic == "mean" else np.exp(mean)
    if weights:
        return {"J": _parts.composed(parts, weights), **parts}
    return {"J": objective(*(np.asarray(parts[name]) for name in PARTS)), **parts}


def is_needed(name: str) -> bool:
    """Whether J or one of its parts is computed from a metric."""
    return name in NEEDS or _parts.is_declared(name)


def geometric_means(values: Float[np.ndarray, "*b episodes"]) -> Float[np.ndarray, "*b"]:
    """Geometric means over episodes; an episode without a value in any row is left out of all.

    Args:
        values: J or a part of it by episode.

    Raises:
        ValueError: no episode has a value in all rows.
    """
    values = np.asarray(values, np.float64)
    defined = np.isfinite(values).reshape(-1, values.shape[-1]).all(0)
    if not defined.any():
        allowed = "at least one episode with short (<= 100 KB) and long (> 1 MB) flows"
        raise bad_value("episodes", f"{values.shape[-1]} without J", f"{allowed}, e.g. longer ones")
    return np.asarray(np.exp(np.log(values[..., defined]).mean(-1)))
