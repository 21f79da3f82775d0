"""J of episodes straight from the environment's metrics, for scores and searches.

`Evaluation` computes every number of an episode. A comparison of thousands of candidates needs only
J and its parts (see `completion`), and their geometric means over episodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ecn_marl._errors import bad_value
from ecn_marl.baselines.evaluation.completion import PARTS, objective
from ecn_marl.sim.metrics import histogram_quantile

SHORT, LONG = 0, 2
"""Size classes of J, in the order of `completion.SIZES`."""

NEEDS = ("flows_measured", "slowdown_sum", "slowdown_log_sum", "slowdown_histogram")
"""The metrics of an episode from which J is computed."""


def episode_objective(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """J and its parts, by episode; NaN where no flow of a class was measured.

    Args:
        metrics: what `episode_metrics` gives, with any leading axes: `flows_measured`,
            `slowdown_sum` and `slowdown_log_sum` `[..., 3]`, `slowdown_histogram` `[..., 3, bins]`.

    Returns:
        `J` and those of `completion.PARTS`, `[...]` each.

    Raises:
        ValueError: one of the metrics is missing.
    """
    for name in NEEDS:
        if name not in metrics:
            raise bad_value("metrics", sorted(metrics), f"those of an episode with {name}")
    raw = {name: np.asarray(metrics[name], np.float64) for name in NEEDS}
    # NaN, not 0 flows: a quotient would warn, or be infinite.
    flows = np.where(raw["flows_measured"] > 0, raw["flows_measured"], np.nan)
    parts = {
        "short_mean": raw["slowdown_sum"][..., SHORT] / flows[..., SHORT],
        "short_p99": histogram_quantile(raw["slowdown_histogram"][..., SHORT, :], 0.99),
        "long_geomean": np.exp(raw["slowdown_log_sum"][..., LONG] / flows[..., LONG]),
    }
    return {"J": objective(*(np.asarray(parts[name]) for name in PARTS)), **parts}


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
