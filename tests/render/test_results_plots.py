"""Plots of a comparison: they show its numbers."""

from __future__ import annotations

import io
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from synthetic import record

from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.records import Curve
from ecn_marl.render import results_plots as rp
from ecn_marl.render.plots import Page

RECORDS = {
    one.name: one
    for one in (
        record("static:best"),
        record("oracle", (0.4, 1.0, 1.1)),
        record("ippo", (0.6, 1.0, 1.0), seeds=3, curves=True),
        record("static:secn1", (1.5, 1.0, 1.0), deferred=np.full(6, 99.0)),
    )
}
FOUND = compare(RECORDS)


@pytest.fixture
def pages(monkeypatch):
    """The pages that were drawn, with their figures."""
    drawn = []
    png = Page.png
    monkeypatch.setattr(Page, "png", lambda page: drawn.append(page) or png(page))
    return drawn


def picture(data: bytes) -> np.ndarray:
    pixels = matplotlib.image.imread(io.BytesIO(data))
    assert pixels.shape[0] > 200 and pixels[..., :3].std() > 0.02
    return pixels


def test_bars_start_at_the_baseline_and_end_at_the_ratio(pages):
    picture(rp.ratios(FOUND, "title"))
    (page,) = pages
    names = [label.get_text() for label in page.axes[0].get_yticklabels()]
    assert names == ["oracle", "ippo", "SECN1 (invalid)"]
    rows = {row["name"]: row for row in FOUND["policies"]}
    figures = ("J", "short_mean", "short_p99", "long_geomean")
    for axis, figure in zip(page.axes, figures, strict=True):
        ratios = [rows[name]["figures"][figure]["ratio"] for name in ("oracle", "ippo")]
        for bar, line, ratio in zip(axis.patches, axis.lines, ratios, strict=False):
            assert bar.get_x() + min(bar.get_width(), 0) == pytest.approx(min(1, ratio["value"]))
            assert abs(bar.get_width()) == pytest.approx(abs(ratio["value"] - 1.0))
            np.testing.assert_allclose(line.get_xdata(), [ratio["low"], ratio["high"]])
        low, high = axis.get_xlim()
        ends = [ratio[end] for ratio in ratios for end in ("low", "high")]
        assert low < min(ends) and high > max(ends), "panels have axes of their own"
    assert len(page.axes[0].patches) == 2, "a result that does not count has no bar"


def test_learning_curves_are_medians_over_seeds(pages):
    picture(rp.learning_curves(list(RECORDS.values()), "title"))
    (line,) = pages[0].axes[0].lines
    curves = RECORDS["ippo"].curves
    np.testing.assert_array_equal(line.get_xdata(), curves[0].steps)
    np.testing.assert_allclose(line.get_ydata(), np.median([c.value for c in curves], axis=0))
    assert line.get_label() == "ippo, 3 seeds"
    assert rp.learning_curves([RECORDS["oracle"]], "title") is None


def test_rules_are_lines_only_beside_curves_of_the_same_quantity(pages):
    oracle = RECORDS["oracle"]
    level = replace(oracle, meta=dict(oracle.meta) | {"curve_level": 4.9})
    learner = RECORDS["ippo"]
    of_j = replace(learner, meta=dict(learner.meta) | {"curve": "J"})
    rp.learning_curves([learner, level], "rewards")
    assert len(pages.pop().axes[0].lines) == 1, "a level is J, these curves are not"
    rp.learning_curves([of_j, level, RECORDS["static:best"]], "title")
    _, line = pages[0].axes[0].lines
    assert line.get_label() == "oracle: 4.90"
    np.testing.assert_array_equal(line.get_ydata(), [4.9, 4.9])


def test_curves_with_other_steps_are_interpolated_in_their_common_range():
    nan = float("nan")
    first = Curve(np.array([0.0, 10.0, 30.0]), np.array([0.0, 1.0, 3.0]))
    second = Curve(np.array([5.0, 20.0, 25.0, 40.0]), np.array([5.0, nan, 25.0, 40.0]))
    steps, scores = rp.common_steps([first, second])
    np.testing.assert_array_equal(steps, [5.0, 10.0, 25.0, 30.0])
    np.testing.assert_allclose(scores, [steps / 10.0, steps])


def test_profiles_show_policies_with_several_scores(pages):
    by_name = {row["name"]: row["over_seeds"] for row in FOUND["policies"]}
    picture(rp.profiles(by_name, "title"))
    line, baseline = pages[0].axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), by_name["ippo"]["profile"]["below"])
    assert line.get_label() == "ippo" and set(baseline.get_xdata()) == {1.0}
    assert rp.profiles({"oracle": by_name["oracle"]}, "title") is None


def test_profiles_of_few_seeds_have_no_band(pages):
    for seeds, bands in ((2, 0), (rp.BANDED, 1)):
        found = compare({**RECORDS, "ippo": record("ippo", (0.6, 1.0, 1.0), seeds=seeds)})
        by_name = {row["name"]: row["over_seeds"] for row in found["policies"]}
        rp.profiles({"ippo": by_name["ippo"]}, "title")
        assert len(pages.pop().axes[0].collections) == bands


def test_many_policies_have_different_styles():
    styles = rp._line_styles()
    assert len({next(styles) for _ in range(20)}) == 20


def test_a_policy_far_away_leaves_the_others_visible(pages):
    far = {**RECORDS, "random": record("random", (40.0, 1.0, 30.0))}
    picture(rp.ratios(compare(far), "title"))
    low, high = pages[0].axes[0].get_xlim()
    assert low < 0.7 and high <= 10.0
