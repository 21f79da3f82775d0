"""Statistics over seeds and episodes: interquartile means, bootstrap intervals, profiles.

**Seeds and scenarios** (`iqm`, `interval`, `profile`, `over_seeds`): Agarwal et al., "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS'21. A score is that of one
learner (one seed of training) in one scenario, lower is better; scores are arrays
`[seeds, scenarios]`. The bootstrap draws seeds with replacement within each scenario (the strata).
Their library, `rliable`, depends on `arch`, `pandas`, `seaborn` and `absl-py`. The few functions
needed are here, on top of `scipy.stats.trim_mean`.

**Seeds and episodes** (`Draws`, `estimate`): all seeds meet the same episodes, so a mean over both
varies with the seeds and with the episodes. The bootstrap draws both with replacement, each as a
whole (Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1, 2007). Noise of one seed in
one episode enters with both draws, so the interval is rather too wide than too narrow. With few
seeds a percentile interval is too narrow; `stretch` is the factor that corrects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float
from scipy import stats

from ecn_marl._checks import check_seed
from ecn_marl._errors import bad_value

RESAMPLES = 2000
"""Resamples of the bootstrap."""

QUANTILE = 0.975
"""Quantile of a distribution at the upper end of an interval of 95 %, which all of these are."""

TAIL = 50.0 * (1.0 - 0.95)
"""Percentile of resamples at its lower end."""

Statistic = Callable[[np.ndarray], Any]
"""`[..., seeds, scenarios] -> [...]`."""


def mean_interval(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean, and half-width of its 95 % confidence interval (Student's t); NaN for one value."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(half_width(values))


def half_width(values: Float[np.ndarray, "..."], axis: int = -1) -> np.ndarray:
    """Half the width of the 95 % confidence interval of means over an axis (Student's t)."""
    n = values.shape[axis]
    return np.asarray(stats.t.ppf(QUANTILE, n - 1) * values.std(axis, ddof=1) / n**0.5)


def positive_interval(values: Float[np.ndarray, " n"]) -> tuple[float, float, float]:
    """Mean of numbers that cannot be negative, and the ends of its 95 % confidence interval.

    Student's t of the mean's logarithm, whose standard error is that of the mean over the mean (to
    first order). Single zeros count like any number.

    Args:
        values: numbers >= 0.

    Returns:
        Mean, lower and upper end; NaN ends for one value, ends of 0 if all are 0.

    Raises:
        ValueError: a value below 0.
    """
    _check_positive(values)
    mean, half = mean_interval(values)
    if mean == 0.0:
        return 0.0, half, half
    factor = float(np.exp(half / mean))
    return mean, mean / factor, mean * factor


def _check_positive(values: np.ndarray) -> None:
    """Raise a ValueError if there are numbers below 0; NaN passes."""
    if (values < 0.0).any():
        raise bad_value("values", float(np.nanmin(values)), "numbers >= 0")


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
    check_seed(seed)
    n, scenarios = scores.shape
    rows = np.random.default_rng(seed).integers(0, n, size=(resamples, n, scenarios))
    return scores[rows, np.arange(scenarios)]


def interval(
    scores: Float[np.ndarray, "seeds scenarios"], statistic: Statistic = iqm
) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval of a statistic from the stratified bootstrap.

    With few seeds it is too narrow, so report their number beside it.

    Args:
        scores: scores.
        statistic: what is estimated.

    Returns:
        Lower and upper end.

    Raises:
        ValueError: no scores.
    """
    if scores.size == 0:
        raise bad_value("scores", scores.shape, "at least one seed and one scenario")
    low, high = np.percentile(statistic(resampled(scores)), [TAIL, 100.0 - TAIL], axis=0)
    return np.asarray(low), np.asarray(high)


def crossed_interval(values: Float[np.ndarray, "seeds episodes"]) -> tuple[float, float]:
    """Mean of all values, and half the width of an interval over both seeds and episodes.

    Without a bootstrap: the half-widths of Student's t over the seeds' means and over the episodes'
    means are added in quadrature. With one seed only (a rule), the interval is that over episodes.

    Args:
        values: a metric, or its difference to that of another policy in the same episode. NaN is
            left out.

    Returns:
        Mean and half-width; NaN for the latter if there is a single value.
    """
    halves = []
    for axis in (0, 1):
        means = _finite_means(values, axis)
        if means.size > 1:
            halves.append(float(half_width(means)))
    return float(np.nanmean(values)), float(np.hypot.reduce(halves or [np.nan]))


def _finite_means(values: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """Means over axes without NaN, of those rows that have a number."""
    # `np.nanmean` warns of rows without a number.
    finite = np.isfinite(values)
    count = finite.sum(axes)
    total = np.where(finite, values, 0.0).sum(axes)
    return np.asarray(total[count > 0] / count[count > 0])


@dataclass(frozen=True)
class Draws:
    """Resamples of a two-way bootstrap, as how often each seed and each episode was drawn.

    The draws of episodes are common to all policies, so that comparisons of policies are paired.
    The seeds of every policy are drawn independently. These draws depend on the policy's name only,
    so that its interval does not change with the other policies.

    Attributes:
        n_episodes: number of episodes.
        resamples: number of resamples.
        seed: seed of the draws.
    """

    n_episodes: int
    resamples: int = RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the seed."""
        check_seed(self.seed)

    @cached_property
    def episodes(self) -> Float[np.ndarray, "resamples episodes"]:
        """How often each episode was drawn."""
        return self._counts("", self.n_episodes)

    def seeds(self, name: str, n: int) -> Float[np.ndarray, "resamples seeds"]:
        """How often each of the `n` seeds of a policy was drawn.

        Args:
            name: the policy.
            n: its number of seeds.
        """
        return self._counts(f"policy {name}", n)

    def _counts(self, label: str, n: int) -> np.ndarray:
        # Not `hash`, which Python salts anew in every process.
        rng = np.random.default_rng([self.seed, crc32(label.encode())])
        # Counts instead of drawn indices: the means of all resamples are then matrix products.
        return rng.multinomial(n, np.full(n, 1.0 / n), size=self.resamples).astype(np.float64)


def resampled_mean(
    values: Float[np.ndarray, "..."], counts: Sequence[Float[np.ndarray, "resamples _"]]
) -> Float[np.ndarray, " resamples"]:
    """Mean of an array in every resample.

    Args:
        values: numbers; those that are NaN are left out.
        counts: for each axis of `values`, how often each index was drawn.

    Returns:
        Means; NaN where nothing but NaN was drawn.
    """
    finite = np.isfinite(values)
    total, count = _contracted(np.where(finite, values, 0.0), counts), None
    if finite.all():
        # Every resample draws as many values as there are, so their count needs no product.
        count = np.full(len(total), float(values.size))
    else:
        count = _contracted(finite.astype(np.float64), counts)
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def _contracted(values: np.ndarray, counts: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of `values`, each times how often it was drawn, in every resample."""
    sums = values @ counts[-1].T
    for axis_counts in reversed(counts[:-1]):
        sums = (sums * axis_counts.T).sum(-2)
    return np.asarray(sums)


def stretch(values: Float[np.ndarray, "..."]) -> float:
    """How much wider than its percentiles a bootstrap interval of a mean must be.

    A resample of n values spreads by a factor sqrt((n - 1) / n) too little, and normal quantiles
    are too small for few values (Hesterberg, "What Teachers Should Know About the Bootstrap", The
    American Statistician 69, 2015, widens the percentiles for that). Here with several axes: the
    variance of the mean is the sum over axes of that of the axis' means; the degrees of freedom of
    that sum are Welch's and Satterthwaite's, and Student's quantile replaces the normal one.

    Args:
        values: numbers to average; NaN is left out. Axes of length 1 add no variance.

    Returns:
        A factor of at least 1; NaN if there is one value only.
    """
    variance_sum, bootstrap_variance, weight = 0.0, 0.0, 0.0
    several = False
    for axis in range(values.ndim):
        other_axes = tuple(i for i in range(values.ndim) if i != axis)
        means = _finite_means(values, other_axes)
        n = means.size
        if n > 1:
            several = True
            variance = float(means.var(ddof=1)) / n
            variance_sum += variance
            bootstrap_variance += variance * (n - 1) / n
            weight += variance**2 / (n - 1)
    if not several:
        return float("nan")
    if weight == 0.0:
        return 1.0
    student = float(stats.t.ppf(QUANTILE, variance_sum**2 / weight))
    normal = float(stats.norm.ppf(QUANTILE))
    return float((variance_sum / bootstrap_variance) ** 0.5) * (student / normal)


def estimate(
    value: float,
    resamples: Float[np.ndarray, " resamples"],
    influence: Float[np.ndarray, "..."],
    *,
    positive: bool = False,
) -> dict[str, float]:
    """A statistic with its interval.

    Args:
        value: the statistic.
        resamples: the statistic of every resample.
        influence: values of which it is the mean (its linear part, if it is not a mean), by seed
            and episode, for `stretch`.
        positive: whether the statistic cannot be negative; its interval is then stretched on the
            scale of logarithms, and has no end below 0.

    Returns:
        `value`, `low`, `high`: the percentile interval, stretched about the value; NaN ends where
        there is one seed and one episode, or a resample without a value.

    Raises:
        ValueError: a positive statistic that is below 0 in a resample.
    """
    percentiles = np.percentile(resamples, [TAIL, 100.0 - TAIL])
    factor = stretch(influence)
    if positive and value > 0.0:
        _check_positive(resamples)
        with np.errstate(divide="ignore"):  # a percentile of 0 stays an end of 0
            ends = value * np.exp(factor * np.log(percentiles / value))
    else:
        ends = value + factor * (percentiles - value)
    return {"value": float(value), "low": float(ends[0]), "high": float(ends[1])}


def mean_estimate(
    values: Float[np.ndarray, "..."],
    counts: Sequence[Float[np.ndarray, "resamples _"]],
    *,
    positive: bool = False,
) -> dict[str, float]:
    """Mean of an array without its NaN, with its interval; all NaN if there is no number.

    Raises:
        ValueError: a value below 0 of a quantity that cannot be negative.
    """
    if not np.isfinite(values).any():
        return {"value": float("nan"), "low": float("nan"), "high": float("nan")}
    if positive:
        _check_positive(values)
    resamples = resampled_mean(values, counts)
    return estimate(float(np.nanmean(values)), resamples, values, positive=positive)


def profile(
    scores: Float[np.ndarray, "*b seeds scenarios"], thresholds: Float[np.ndarray, " t"]
) -> Float[np.ndarray, "*b t"]:
    """Performance profile: the share of scores at or below each threshold (lower is better).

    Args:
        scores: scores; leading axes are kept.
        thresholds: thresholds, `[T]`.
    """
    reached = scores[..., None] <= thresholds
    return np.asarray(reached.mean(axis=(-3, -2)))


def over_seeds(
    scores: Float[np.ndarray, "seeds scenarios"], thresholds: Float[np.ndarray, " t"] | None = None
) -> dict[str, Any]:
    """JSON-able statistics of learners that differ in their seed.

    Args:
        scores: scores.
        thresholds: where the profile is read; 21 points from the lowest to the highest score if
            None.

    Returns:
        `scores` by seed, `iqm` and `mean` with 95 % intervals (`value`, `low`, `high`), and
        `profile` with `thresholds`, `below`, `low` and `high`.
    """
    if thresholds is None:
        thresholds = np.linspace(scores.min(), scores.max(), 21)

    def ranged(statistic: Statistic) -> dict[str, float]:
        low, high = interval(scores, statistic)
        return {"value": float(statistic(scores)), "low": float(low), "high": float(high)}

    low, high = interval(scores, lambda x: profile(x, thresholds))
    return {
        "scores": scores.tolist(),
        "iqm": ranged(iqm),
        "mean": ranged(lambda x: x.mean(axis=(-2, -1))),
        "profile": {
            "thresholds": thresholds.tolist(),
            "below": profile(scores, thresholds).tolist(),
            "low": low.tolist(),
            "high": high.tolist(),
        },
    }
