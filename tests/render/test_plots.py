"""Plots of a run's queues."""

from __future__ import annotations

import io

import matplotlib.image
import numpy as np

from ecn_marl.render.plots import QueueSeries, queues


def picture(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png), format="png")


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
    single = picture(queues([series(5e4, 1e9)], "t"))
    triple = picture(queues([series(5e4, 1e9)] * 3, "t"))
    assert triple.shape[1] == single.shape[1]
    assert triple.shape[0] > 2 * single.shape[0]
    shown = picture(queues([series(5e4, 2e4)], "t"))
    assert (shown != single).any(), "a threshold within the axes is drawn"
    assert picture(queues([series(0.0, 1e9)], "empty")).size > 0
