"""Interquartile means, bootstrap intervals and profiles against plain numpy and known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ecn_marl.baselines.evaluation.statistics import (
    Draws,
    crossed_interval,
    estimate,
    interval,
    iqm,
    mean_estimate,
    over_seeds,
    positive_interval,
    profile,
    resampled,
    resampled_mean,
    stretch,
)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 1), (4, 2), (10, 3)])
def test_iqm_is_the_mean_of_the_middle_half(shape):
    scores = np.random.default_rng(sum(shape)).normal(size=shape)
    ordered = sorted(scores.ravel().tolist())
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    assert float(iqm(scores)) == pytest.approx(sum(middle) / len(middle))


def test_iqm_ignores_outliers_and_keeps_leading_axes():
    scores = np.array([[1.0], [2.0], [3.0], [4.0]])
    wild = scores.copy()
    wild[3] = 1e9
    assert float(iqm(wild)) == float(iqm(scores)) == 2.5
    np.testing.assert_array_equal(iqm(np.stack([scores, scores + 1])), [2.5, 3.5])


def test_resamples_stay_within_their_scenario():
    scores = np.array([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0]])
    drawn = resampled(scores, seed=1, resamples=4000)
    assert drawn.shape == (4000, 3, 2)
    for column, allowed in ((0, [0, 1, 2]), (1, [10, 11, 12])):
        values, counts = np.unique(drawn[..., column], return_counts=True)
        np.testing.assert_array_equal(values, allowed)
        np.testing.assert_allclose(counts / counts.sum(), 1 / 3, atol=0.02)
    # Scenarios are drawn independently of each other.
    assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 0, 1])[0, 1]) < 0.06


def test_interval_of_a_mean_is_that_of_scipy_and_of_theory():
    scores = np.random.default_rng(0).normal(5.0, 2.0, size=(200, 1))

    def mean(x):
        return x.mean(axis=(-2, -1))

    low, high = interval(scores, mean)
    scipy_result = stats.bootstrap((scores[:, 0],), np.mean, method="percentile", rng=3)
    expected = scipy_result.confidence_interval
    assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=0.04)
    half = 1.96 * scores.std() / 200**0.5
    assert float(high - low) == pytest.approx(2 * half, rel=0.07)


def test_profile_counts_scores_at_or_below():
    scores = np.array([[0.1, 0.9], [0.5, 0.5]])
    np.testing.assert_allclose(profile(scores, np.array([0.0, 0.1, 0.5, 0.9])), [0, 0.25, 0.75, 1])


def test_summary():
    scores = np.array([[0.2], [0.4], [0.6], [0.8]])
    summary = over_seeds(scores, np.array([0.0, 0.5, 1.0]))
    assert summary["iqm"]["value"] == pytest.approx(0.5)
    assert 0.2 <= summary["iqm"]["low"] < 0.5 < summary["iqm"]["high"] <= 0.8
    assert summary["profile"]["below"] == [0.0, 0.5, 1.0]
    assert summary["profile"]["low"][1] <= 0.5 <= summary["profile"]["high"][1]
    constant = over_seeds(np.full((3, 1), 0.7))
    assert constant["iqm"] == pytest.approx({"value": 0.7, "low": 0.7, "high": 0.7})


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="scores"):
        interval(np.zeros((0, 1)))


def test_resampled_means_are_those_of_the_drawn_values():
    """Counts against the same draws written out index by index, with and without NaN."""
    values = np.random.default_rng(3).normal(size=(3, 2, 4))
    draws = Draws(4, resamples=50, seed=9)
    counts = (draws.seeds("a", 3), draws.seeds("b", 2), draws.episodes)
    for hole in (False, True):
        if hole:
            values[1, :, 2] = np.nan
        expected = []
        for row in zip(*counts, strict=True):
            rows = [
                np.repeat(np.arange(len(axis_counts)), axis_counts.astype(int))
                for axis_counts in row
            ]
            expected.append(np.nanmean(values[np.ix_(*rows)]))
        np.testing.assert_allclose(resampled_mean(values, counts), expected)


def test_draws_depend_on_the_name_alone():
    """They do not depend on the other policies or the numbers of their seeds."""
    draws, other_draws = Draws(8, 100, seed=1), Draws(8, 100, seed=1)
    other_draws.seeds("other", 3)
    np.testing.assert_array_equal(draws.seeds("ippo", 5), other_draws.seeds("ippo", 5))
    np.testing.assert_array_equal(draws.episodes, other_draws.episodes)
    assert (draws.seeds("ippo", 5) != draws.seeds("mappo", 5)).any()
    assert (draws.seeds("ippo", 8) != draws.episodes).any()
    assert (Draws(8, 100, seed=2).episodes != draws.episodes).any()
    assert (draws.seeds("static:best", 1) == 1.0).all()
    assert (draws.episodes.sum(1) == 8.0).all()


def test_stretch_of_one_axis_is_students():
    values = np.random.default_rng(0).normal(size=(1, 6))
    expected = (6 / 5) ** 0.5 * stats.t.ppf(0.975, 5) / stats.norm.ppf(0.975)
    assert stretch(values) == pytest.approx(expected)
    assert stretch(values.T[..., None]) == pytest.approx(expected)
    assert stretch(np.append(values, [[np.nan]], axis=1)) == pytest.approx(expected)
    assert stretch(np.ones((3, 4))) == 1.0
    assert np.isnan(stretch(np.ones((1, 1))))


@pytest.mark.parametrize(
    ("seeds", "episodes", "between"), [(1, 24, 0.0), (4, 24, 0.7), (10, 24, 0.1)]
)
def test_intervals_cover_the_true_mean(seeds, episodes, between):
    """Seeds, episodes and noise drawn from known laws: 95 % intervals hold the mean of all.

    300 trials: 95 % +- 1.3 %. The interval may be too wide where noise is in both ways of drawing,
    so the upper bound is loose; an interval without seeds, or without `stretch`, fails the lower.
    """
    rng = np.random.default_rng(seeds)
    hits, naive = 0, 0
    for trial in range(300):
        values = between * rng.normal(size=(seeds, 1)) + rng.normal(size=episodes)
        values = values + 0.5 * rng.normal(size=(seeds, episodes))
        draws = Draws(episodes, 400, trial)
        estimate = mean_estimate(values, (draws.seeds("x", seeds), draws.episodes))
        hits += estimate["low"] <= 0.0 <= estimate["high"]
        alone = mean_estimate(values.mean(0)[None], (np.ones((400, 1)), draws.episodes))
        naive += alone["low"] <= 0.0 <= alone["high"]
    assert 0.92 <= hits / 300 <= 0.995
    if between > 0.5:
        assert naive / 300 < 0.85


def test_one_value_has_no_interval():
    draws = Draws(1, 20)
    estimate = mean_estimate(np.array([[2.0]]), (draws.seeds("x", 1), draws.episodes))
    assert estimate["value"] == 2.0 and np.isnan([estimate["low"], estimate["high"]]).all()
    none = mean_estimate(np.array([[np.nan]]), (draws.seeds("x", 1), draws.episodes))
    assert np.isnan(list(none.values())).all()


def test_crossed_interval_leaves_out_nan():
    values = np.random.default_rng(2).normal(size=(1, 9))
    holes = np.insert(values, 4, np.nan, axis=1)
    assert crossed_interval(holes) == pytest.approx(crossed_interval(values))


def test_positive_interval_of_student_in_logarithms():
    values = np.array([2.0, 3.0, 7.0])
    mean, low, high = positive_interval(values)
    relative = stats.t.ppf(0.975, 2) * stats.sem(values) / 4.0
    assert mean == pytest.approx(4.0)
    assert (low, high) == pytest.approx((4.0 * np.exp(-relative), 4.0 * np.exp(relative)))


def test_positive_interval_covers_the_mean_as_often_as_it_says():
    """Of log-normal numbers with a spread of 40 %; below 0 of none, where plain ones have some."""
    rng = np.random.default_rng(5)
    samples = np.exp(rng.normal(0.0, 0.4, size=(2000, 4)))
    truth = np.exp(0.4**2 / 2.0)
    ends = np.array([positive_interval(x)[1:] for x in samples])
    inside = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
    assert inside.mean() == pytest.approx(0.95, abs=0.03)
    assert ends.min() > 0.0


@pytest.mark.parametrize("values", [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 1500.0], [1e-9, 1.0, 1e6]])
def test_no_interval_of_few_positive_values_is_below_zero(values):
    """Plain intervals are for these: 0.2 - 0.56 < 0, to begin with."""
    values = np.array(values)
    draws = Draws(values.size)
    plain = mean_estimate(values, [draws.episodes])
    ranged = mean_estimate(values, [draws.episodes], positive=True)
    assert plain["low"] < 0.0 <= ranged["low"] < ranged["value"] < ranged["high"]
    mean, low, high = positive_interval(values)
    assert 0.0 < low < mean < high
    # Both are stretched as much on the scale of logarithms as plain ones are on their own.
    resamples = resampled_mean(values, [draws.episodes])
    top = np.percentile(resamples, 97.5)
    factor = (plain["high"] - plain["value"]) / (top - plain["value"])
    assert ranged["high"] == pytest.approx(mean * (top / mean) ** factor)


def test_zeros_and_negative_values_of_positive_quantities():
    nothing = np.zeros(5)
    draws = [Draws(5).episodes]
    assert positive_interval(nothing) == (0.0, 0.0, 0.0)
    assert mean_estimate(nothing, draws, positive=True) == {"value": 0.0, "low": 0.0, "high": 0.0}
    # One value: no interval, of whatever size it is.
    for value in (0.0, 3.0):
        single = mean_estimate(np.array([value]), [Draws(1).episodes], positive=True)
        assert single["value"] == value and np.isnan([single["low"], single["high"]]).all()
        assert np.isnan(positive_interval(np.array([value]))[1:]).all()
    # One of five is above 0: 0.8^5 = 33 % of the resamples are 0, and so is the lower end.
    assert mean_estimate(np.array([0, 0, 0, 0, 1.0]), draws, positive=True)["low"] == 0.0
    with pytest.raises(ValueError, match=r"values = -2\.0 .*>= 0"):
        mean_estimate(np.array([np.nan, 1.0, -2.0]), [Draws(3).episodes], positive=True)
    with pytest.raises(ValueError, match=r"values = -2\.0 .*>= 0"):
        positive_interval(np.array([1.0, -2.0]))
    with pytest.raises(ValueError, match=r"values = -1\.0 .*>= 0"):
        estimate(1.0, np.array([-1.0, 1.0]), np.array([0.5, 1.5]), positive=True)
