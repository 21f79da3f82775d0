"""Interquartile means, bootstrap intervals and profiles against plain numpy and known laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ecn_marl.baselines.common.statistics import interval, iqm, over_seeds, profile, resampled


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
    other = stats.bootstrap((scores[:, 0],), np.mean, method="percentile", rng=3)
    want = other.confidence_interval
    assert (float(low), float(high)) == pytest.approx((want.low, want.high), abs=0.04)
    half = 1.96 * scores.std() / 200**0.5
    assert float(high - low) == pytest.approx(2 * half, rel=0.07)


def test_profile_counts_scores_above():
    scores = np.array([[0.1, 0.9], [0.5, 0.5]])
    np.testing.assert_allclose(profile(scores, np.array([0.0, 0.1, 0.5, 0.9])), [1, 0.75, 0.25, 0])


def test_summary():
    scores = np.array([[0.2], [0.4], [0.6], [0.8]])
    found = over_seeds(scores, np.array([0.0, 0.5, 1.0]))
    assert found["iqm"]["value"] == pytest.approx(0.5)
    assert 0.2 <= found["iqm"]["low"] < 0.5 < found["iqm"]["high"] <= 0.8
    assert found["profile"]["above"] == [1.0, 0.5, 0.0]
    assert found["profile"]["low"][1] <= 0.5 <= found["profile"]["high"][1]
    same = over_seeds(np.full((3, 1), 0.7))
    assert same["iqm"] == pytest.approx({"value": 0.7, "low": 0.7, "high": 0.7})


@pytest.mark.parametrize(("scores", "level"), [(np.zeros((0, 1)), 0.95), (np.ones((2, 1)), 1.0)])
def test_bad_input_is_named(scores, level):
    with pytest.raises(ValueError, match=r"scores|level"):
        interval(scores, level=level)
