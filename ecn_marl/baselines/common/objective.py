"""What a policy is judged by: one number per episode in completion times, lower is better.

    J = (mean short * p99 short)^(1/4) * (geometric mean long)^(1/2)

All are slowdowns (completion time over that in an empty network) of the flows that begin in the
episode's measured window: `short` up to 100 KB, `long` above 1 MB. Flows that have not finished
count at their age, a lower bound. Over episodes J is averaged geometrically, since what matters is
by which factor a policy changes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ecn_marl._errors import bad_value
from ecn_marl.sim.metrics import histogram_quantile

SHORT, LONG = 0, 2
"""Size classes of J, in the order of `sim.metrics.CLASS_NAMES`."""

NEEDS = ("flows_measured", "slowdown_sum", "slowdown_log_sum", "slowdown_histogram")
"""The metrics of an episode that J is made of."""


def parts(metrics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The parts of J, by episode; NaN where no flow of that class was measured.

    Args:
        metrics: what `episode_metrics` gives, with any leading axes: `flows_measured`,
            `slowdown_sum` and `slowdown_log_sum` `[..., 3]`, `slowdown_histogram` `[..., 3, bins]`.

    Returns:
        `short_mean`, `short_p99` and `long_mean` (geometric), `[...]` each.

    Raises:
        ValueError: one of the metrics is missing.
    """
    for name in NEEDS:
        if name not in metrics:
            raise bad_value("metrics", sorted(metrics), f"those of an episode with {name}")
    count = np.asarray(metrics["flows_measured"], np.float64)
    total, logs = (np.asarray(metrics[n], np.float64) for n in ("slowdown_sum", "slowdown_log_sum"))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, log_mean = total / count, logs / count
    p99 = histogram_quantile(np.asarray(metrics["slowdown_histogram"])[..., SHORT, :], 0.99)
    return {
        "short_mean": mean[..., SHORT],
        "short_p99": p99,
        "long_mean": np.exp(log_mean[..., LONG]),
    }


def objective(metrics: Mapping[str, np.ndarray]) -> Float[np.ndarray, "*episodes"]:
    """J of episodes, lower is better; NaN where no short or no long flow was measured.

    Args:
        metrics: see `parts`.

    Raises:
        ValueError: one of the metrics is missing.
    """
    p = parts(metrics)
    return np.asarray((p["short_mean"] * p["short_p99"]) ** 0.25 * p["long_mean"] ** 0.5)


def geometric_mean(values: Float[np.ndarray, "*b episodes"]) -> Float[np.ndarray, "*b"]:
    """Geometric mean of J over episodes.

    Args:
        values: J by episode.

    Raises:
        ValueError: J of an episode is not defined.
    """
    undefined = int((~np.isfinite(values)).sum())
    if undefined:
        allowed = "episodes long enough that each measures short (<= 100 KB) and long (> 1 MB) flows"
        raise bad_value("episodes without J", undefined, allowed)
    return np.asarray(np.exp(np.log(values).mean(-1)))
