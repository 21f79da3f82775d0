"""Plots: pages that are drawn from what runs leave behind."""

from __future__ import annotations

import io

import matplotlib.image
import numpy as np
import pytest

from ecn_marl.report.plots import QueueSeries, learning_curve, queues, trailing_mean


def picture(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png), format="png")


def test_trailing_mean():
    values = np.array([3.0, 0.0, 3.0, 6.0])
    np.testing.assert_allclose(trailing_mean(values, 1), values)
    np.testing.assert_allclose(trailing_mean(values, 3), [2, 3])
    wave = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    np.testing.assert_allclose(trailing_mean(wave, 3), [[2], [5]])


def rows(seeds: int | None):
    def value(x: float):
        return x if seeds is None else [x + i / 10 for i in range(seeds)]

    return [
        {
            "steps": 10 * (i + 1),
            "reward": value(i / 9),
            "queue_mean": value(1e3),
            "utilisation": 0.5,
        }
        | ({} if seeds is None else {"utilisation": value(0.5)})
        for i in range(10)
    ]


@pytest.mark.parametrize("seeds", [None, 3])
def test_learning_curve(seeds):
    plain = picture(learning_curve(rows(seeds), "IPPO on a toy"))
    assert plain.shape[0] > 500 and plain.shape[1] > 800
    marked = picture(learning_curve(rows(seeds), "IPPO on a toy", {"SECN1": 0.5}))
    assert (marked != plain).any(), "reference lines are drawn"


def test_learning_curve_of_one_update():
    assert picture(learning_curve(rows(None)[:1], "one")).size > 0


def series(queue: float, kmin: float) -> QueueSeries:
    return QueueSeries(
        label="x",
        time_ms=np.arange(1, 21) / 10,
        queue=np.full(20, queue),
        interval_ms=np.arange(10) / 5,
        kmin=np.full(10, kmin),
        kmax=np.full(10, 1e9),
        utilisation=0.5,
    )


def test_queues_one_panel_per_policy():
    one = picture(queues([series(5e4, 1e9)], "t"))
    three = picture(queues([series(5e4, 1e9)] * 3, "t"))
    assert three.shape[1] == one.shape[1]
    assert three.shape[0] > 2 * one.shape[0]
    shown = picture(queues([series(5e4, 2e4)], "t"))
    assert (shown != one).any(), "a threshold within the axes is drawn"
    assert picture(queues([series(0.0, 1e9)], "empty")).size > 0


@pytest.mark.parametrize("kept", [(), ("reward",), ("queue_mean",), ("utilisation", "reward")])
def test_a_learning_curve_shows_the_metrics_that_there_are(kept):
    """Those of another trainer may be all others."""
    some = [{"update": i, "steps": 8 * i} | dict.fromkeys(kept, 0.5 * i) for i in (1, 2)]
    assert picture(learning_curve(some, "t", {"SECN1": 0.4})).size > 0
