"""The learning curve: merits with their interval, references, all updates from the first on."""

from __future__ import annotations

import io

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from ecn_marl.render.learning_curve import draw_merits, learning_curve, merit_band, trailing_mean

SECN1 = {"SECN1": -8.0}


def picture(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png), format="png")


def rows(seeds: int | None, evaluated: bool = True):
    """Ten updates, every third of which is evaluated: J falls from 9 to 6."""

    def value(x: float, apart: float = 0.1):
        return x if seeds is None else [x + apart * i for i in range(seeds)]

    metrics = [
        {
            "steps": 10 * (i + 1),
            "reward": value(i / 9),
            "queue_mean": value(1e3),
            "utilisation": value(0.5),
        }
        for i in range(10)
    ]
    if evaluated:
        for i, row in enumerate(metrics[::3]):
            row |= {"merit": value(i - 9.0), "merit_low": value(i - 9.5)}
            row |= {"merit_high": value(i - 8.6)}
    return metrics


def drawn(seeds: int | None, references=None, best_by="objective"):
    axis = Figure().subplots()
    draw_merits(axis, rows(seeds)[::3], references or {}, best_by)
    return axis


def lines(axis) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.asarray(line.get_ydata()) for line in axis.lines}


def test_merits_are_drawn_as_j_with_their_interval_and_the_references():
    axis = drawn(None, SECN1)
    np.testing.assert_allclose(lines(axis)["greedy policy"], [9, 8, 7, 6])
    np.testing.assert_allclose(lines(axis)["SECN1: 8.00"], 8.0)
    assert axis.get_ylabel() == "J (lower is better)"
    (band,) = axis.collections
    ys = band.get_paths()[0].vertices[:, 1]
    assert (ys.min(), ys.max()) == (5.6, 9.5), "from merit_high of the last to merit_low at first"
    assert axis.lines[0].get_xdata()[0] == 10, "the first merit is there"
    rewards = drawn(None, SECN1, "reward")
    np.testing.assert_allclose(lines(rewards)["greedy policy"], [-9, -8, -7, -6])
    np.testing.assert_allclose(lines(rewards)["SECN1: -8.00"], -8.0)


def test_references_that_lie_on_one_another_can_be_told_apart():
    """A later line is thinner and has gaps, so that what is below it shows."""
    same = drawn(None, {"SECN1": -8.0, "static:best": -8.0, "oracle": -8.0}).lines[1:]
    widths = [line.get_linewidth() for line in same]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3
    assert [line.is_dashed() for line in same] == [False, True, True]


def test_the_interval_of_several_seeds_is_over_seeds():
    middle, low, high = merit_band(rows(3)[::3])
    np.testing.assert_allclose(middle, np.array([-9, -8, -7, -6]) + 0.1)
    half = 4.303 * 0.1 / 3**0.5  # Student's t with 2 degrees of freedom
    np.testing.assert_allclose([middle - low, high - middle], half, rtol=1e-3)
    shown = lines(drawn(3))
    assert {"each seed", "mean of greedy policies"} <= set(shown)
    bare = [{"steps": 1, "merit": 1.0}, {"steps": 2, "merit": 2.0}]
    assert merit_band(bare)[1:] == (None, None), "one episode has no interval"


def test_the_beginning_is_not_dropped():
    values = np.array([3.0, 0.0, 3.0, 6.0])
    np.testing.assert_allclose(trailing_mean(values, 1), values)
    np.testing.assert_allclose(trailing_mean(values, 3), [3, 1.5, 2, 3])
    wave = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    np.testing.assert_allclose(trailing_mean(wave, 3), [[1, 1.5, 2], [5, 5, 5]])


@pytest.mark.parametrize("seeds", [None, 3])
def test_the_page(seeds):
    without = picture(learning_curve(rows(seeds), "IPPO", {}, best_by="objective"))
    assert without.shape[0] > 500 and without.shape[1] > 800
    marked = picture(learning_curve(rows(seeds), "IPPO", SECN1, best_by="objective"))
    assert (marked != without).any(), "reference lines are drawn"
    assert picture(learning_curve(rows(seeds, evaluated=False), "IPPO")).size > 0
    assert picture(learning_curve(rows(seeds)[:1], "one")).size > 0


@pytest.mark.parametrize("names", [(), ("reward",), ("queue_mean",), ("utilisation", "merit")])
def test_it_shows_the_metrics_of_the_run(names):
    """Other trainers may have other metrics."""
    metrics = [{"update": i, "steps": 8 * i} | dict.fromkeys(names, 0.5 * i) for i in (1, 2)]
    assert picture(learning_curve(metrics, "t", {"SECN1": 0.4})).size > 0
