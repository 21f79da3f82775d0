"""Statistics over seeds: interquartile means, stratified-bootstrap intervals, performance profiles.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS'21.
A score is the mean of one learner (one seed of training) in one scenario; scores are arrays
`[seeds, scenarios]`. The bootstrap draws seeds with replacement within each scenario (the strata).
Their library, `rliable`, brings `arch`, `pandas`, `seaborn` and `absl-py` along; what is needed of
it is here, on top of `scipy.stats.trim_mean`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from ecn_marl._errors import bad_value

RESAMPLES = 2000
"""Resamples of the bootstrap."""

Statistic = Callable[[np.ndarray], Any]
"""`[..., seeds, scenarios] -> [...]`."""


def iqm(scores: Float[np.ndarray, "*b seeds scenarios"]) -> Float[np.ndarray, "*b"]:
    """Interquartile mean: the mean of the middle half of all scores, seeds and scenarios pooled.

    A quarter of the scores, rounded down, is left out at either end.

    Args:
        scores: scores; leading axes are kept.
    """
    flat = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(stats.trim_mean(flat, 0.25, axis=-1))


def resampled(
    scores: Float[np.ndarray, "seeds scenarios"], seed: int = 0, resamples: int = RESAMPLES
) -> Float[np.ndarray, "resamples seeds scenarios"]:
    """Bootstrap resamples: in every scenario, seeds drawn with replacement.

    Args:
        scores: scores.
        seed: seed of the draws.
        resamples: number of resamples.
    """
    n, scenarios = scores.shape
    rows = np.random.default_rng(seed).integers(0, n, size=(resamples, n, scenarios))
    return scores[rows, np.arange(scenarios)]


def interval(
    scores: Float[np.ndarray, "seeds scenarios"],
    statistic: Statistic = iqm,
    *,
    level: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of a statistic from the stratified bootstrap.

    With few seeds it is too narrow (three seeds cannot show what a fourth would do); report their
    number beside it.

    Args:
        scores: scores.
        statistic: what is estimated.
        level: coverage.
        seed: seed of the draws.
        resamples: number of resamples.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no scores, or a level outside (0, 1).
    """
    if scores.size == 0:
        raise bad_value("scores", scores.shape, "at least one seed and one scenario")
    if not 0.0 < level < 1.0:
        raise bad_value("level", level, "a number in (0, 1)")
    found = statistic(resampled(scores, seed, resamples))
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(found, [tail, 100.0 - tail], axis=0)
    return np.asarray(low), np.asarray(high)


def crossed_interval(
    values: Float[np.ndarray, "seeds episodes"], level: float = 0.95
) -> tuple[float, float]:
    """Mean of all values, and half the width of an interval over both seeds and episodes.

    All seeds meet the same episodes, so the mean is uncertain for two reasons: other seeds would
    have learnt otherwise, other episodes would have gone otherwise. The half-widths of Student's t
    over the seeds' means and over the episodes' means are added in quadrature. Noise that belongs
    to one seed in one episode is in both, so the interval is rather too wide than too narrow. What
    has one seed only (a rule) gets the interval over episodes.

    Args:
        values: a metric, or its difference to that of another policy in the same episode.
        level: coverage.

    Returns:
        Mean and half-width; NaN for the latter if there is a single value.
    """
    halves = []
    for axis in (0, 1):
        means = values.mean(axis=axis, dtype=np.float64)
        n = means.size
        if n > 1:
            quantile = float(stats.t.ppf(0.5 + level / 2.0, n - 1))
            halves.append(quantile * float(means.std(ddof=1)) / n**0.5)
    return float(values.mean(dtype=np.float64)), float(np.hypot.reduce(halves or [np.nan]))


def profile(
    scores: Float[np.ndarray, "*b seeds scenarios"], thresholds: Float[np.ndarray, " t"]
) -> Float[np.ndarray, "*b t"]:
    """Performance profile: the share of scores above each threshold (their Eq. 2).

    Args:
        scores: scores; leading axes are kept.
        thresholds: thresholds, `[T]`.
    """
    above = scores[..., None] > thresholds
    return np.asarray(above.mean(axis=(-3, -2)))


def over_seeds(
    scores: Float[np.ndarray, "seeds scenarios"], thresholds: Float[np.ndarray, " t"] | None = None
) -> dict[str, Any]:
    """JSON-able statistics of learners that differ in their seed.

    Args:
        scores: scores.
        thresholds: where the profile is read; 21 points from the lowest to the highest score (on
            the headroom scale, 0 to 1 is the usual choice).

    Returns:
        `scores` by seed, `iqm` and `mean` with 95 % intervals (`value`, `low`, `high`), and
        `profile` with `thresholds`, `above`, `low` and `high`.
    """
    if thresholds is None:
        thresholds = np.linspace(scores.min(), scores.max(), 21)

    def estimate(statistic: Statistic) -> dict[str, float]:
        low, high = interval(scores, statistic)
        return {"value": float(statistic(scores)), "low": float(low), "high": float(high)}

    low, high = interval(scores, lambda x: profile(x, thresholds))
    return {
        "scores": scores.tolist(),
        "iqm": estimate(iqm),
        "mean": estimate(lambda x: x.mean(axis=(-2, -1))),
        "profile": {
            "thresholds": thresholds.tolist(),
            "above": profile(scores, thresholds).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
    }
