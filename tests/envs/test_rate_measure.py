"""The paper's metrics against records made by hand, and against conservation of bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ecn_marl.envs.rate.measure import (
    OwnRates,
    Row,
    Snapshot,
    _of_long_flow,
    _of_ports,
    congested_ports,
    measure,
)
from ecn_marl.envs.rate.scenarios import with_options
from ecn_marl.sim.traffic.sizes import CHUNK

LINE = 12500.0


def long_short(rates: list[float], finished: list[int], row_us: float = 20.0) -> dict:
    """Metrics of a long flow that has these shares of the line rate, row by row."""
    spec = with_options("long-short-8-v0", {})
    remaining = 1e9 - np.cumsum(np.array(rates) * LINE * row_us)
    high = np.floor(remaining / CHUNK)
    nothing = np.zeros((1, len(rates), 1))
    record = Row(
        nothing, nothing, (high[None], (remaining - high * CHUNK)[None]), np.array([finished])
    )
    return _of_long_flow(
        spec, record, Snapshot(np.array([[1e9]]), np.zeros(1), np.zeros((1, 1))), row_us
    )


def test_recovery_counts_from_the_last_short_flow():
    rates = [1.0, 0.3, 0.2, 0.2, 0.5, 0.9, 0.94, 0.96, 1.0]
    metrics = long_short(rates, [0, 0, 3, 7, 7, 7, 7, 7, 7])
    assert metrics["recovery_us"][0] == pytest.approx(3 * 20.0)
    assert metrics["long_bandwidth"][0] == pytest.approx(np.mean(rates), rel=1e-6)


def test_recovery_at_once_and_never():
    assert long_short([0.5, 1.0, 1.0], [0, 7, 7])["recovery_us"][0] == 0.0
    assert np.isnan(long_short([1.0, 1.0, 0.5], [0, 7, 7])["recovery_us"][0])
    assert np.isnan(long_short([1.0, 1.0, 1.0], [0, 6, 6])["recovery_us"][0])


def test_ports_are_averaged_and_fairness_is_per_port():
    """Flows of 2, 4, 1 into the first port (1/4) and 3, 2 into the second (2/3)."""
    spec = with_options("all-to-all-4-v0", {})
    dst = np.array([[0, 0, 0, 1, 1, 2, 3]])
    sent = np.array([[2.0, 4.0, 1.0, 3.0, 2.0, 5.0, 6.0]])
    record = Row(np.full((1, 2, 4), 0.5), np.array([[[1.0, 3, 0, 0], [1, 3, 0, 0]]]), None, None)
    start = Snapshot(np.full((1, 7), 100.0), np.full(1, 500.0), dst)
    end = Snapshot(100.0 - sent, np.full(1, 1500.0), dst)
    metrics = _of_ports(spec, record, start, end, 10.0)
    assert metrics["fairness"][0] == pytest.approx((1 / 4 + 2 / 3 + 1 + 1) / 4)
    assert metrics["queue_us"][0] == pytest.approx(1.0)
    assert metrics["utilisation"][0] == pytest.approx(0.5)
    assert metrics["drop_rate"][0] == pytest.approx(1000.0 / (4 * LINE * 10.0))


def test_congested_ports():
    assert congested_ports(with_options("many-to-one-8-v0", {})) == (0,)
    assert congested_ports(with_options("long-short-8-v0", {})) == (0,)
    assert congested_ports(with_options("all-to-all-4-v0", {})) == (0, 1, 2, 3)


def test_senders_that_never_slow_down_fill_the_buffer_and_drop_the_rest():
    """Four senders at line rate: a full queue, and three of four bytes dropped."""
    options = {"buffer_mib": 1.0, "duration_us": 1.2e4, "warm_up_us": 6e3}
    spec = with_options("many-to-one-4-v0", options)
    metrics = measure(OwnRates(spec.simulator(), spec.ecn), spec, seeds=2)
    np.testing.assert_allclose(metrics["utilisation"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(metrics["queue_us"], 2**20 / LINE, rtol=1e-3)
    np.testing.assert_allclose(metrics["drop_rate"], 3.0, rtol=2e-3)
    np.testing.assert_allclose(metrics["fairness"], 1.0, rtol=5e-3)
