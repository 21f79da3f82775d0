"""Against the recorded packet runs: what differs is the coins of marks."""

from __future__ import annotations

import numpy as np
import pytest
from packetcases import runner

from ecn_marl.validation import recorded
from ecn_marl.validation.closed_loop import objective, replayed, slowdowns
from ecn_marl.validation.incast import steady
from ecn_marl.validation.runs import PACKETS, incast_flows, simulate

assert runner  # importing it skips these tests where Numba is missing

COINS = 8
PREDICTED = 2.36 * np.sqrt(1 + 1 / COINS)
"""A further run lies within so many standard deviations of the mean of eight in 95 %."""


@pytest.fixture(autouse=True)
def on_packets(monkeypatch):
    monkeypatch.setenv(PACKETS, str(COINS))


@pytest.mark.thorough
@pytest.mark.parametrize(("profile", "n", "ecn"), [("run", 16, "E3")])
def test_incasts_settle_where_they_did(profile, n, ecn):
    """Queue mean and std within 3 % or the coins' spread, utilisation within .3 points."""
    row = recorded.rows("incast_40ms", profile=profile, N=n, ecn=ecn)[0]
    samples = simulate(profile, [(recorded.star(n + 1), incast_flows(n))], [ecn], 0, 40.0)
    rows = samples.window(20, 40)
    means = rows.mean[0, 0].mean(-1) / 1e3
    reference = float(row["q_mean_B_20_40"]) / 1e3
    allowed = max(0.03 * reference, PREDICTED * means.std(ddof=1))
    assert means.mean() == pytest.approx(reference, abs=allowed)
    _, std, used = steady(samples, 0, (20, 40))
    assert std == pytest.approx(float(row["q_std_B_20_40"]) / 1e3, rel=0.06)
    assert used == pytest.approx(100 * min(float(row["util_20_40"]), 1.0), abs=0.3)


@pytest.mark.parametrize(("profile", "n"), [("hpcc", 16), ("timely", 2)])
def test_hpcc_and_timely_hold_the_recorded_queues(profile, n, monkeypatch):
    """Means and spread within 4 %, utilisation within .3 points; two coins, which decide little.

    HPCC reads the telemetry of every hop, TIMELY the round trips: neither looks at marks.
    """
    monkeypatch.setenv(PACKETS, "2")
    (row,) = recorded.rows("incast_other_senders", profile=profile, N=n)
    samples = simulate(profile, [(recorded.star(n + 1), incast_flows(n))], [row["ecn"]], 0, 40.0)
    mean, std, used = steady(samples, 0, (20, 40))
    assert mean == pytest.approx(float(row["q_mean_B_20_40"]) / 1e3, rel=0.04)
    assert std == pytest.approx(float(row["q_std_B_20_40"]) / 1e3, rel=0.04)
    assert used == pytest.approx(100 * float(row["util_20_40"]), abs=0.3)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_fabrics_completion_times_are_those_recorded(monkeypatch):
    """FbHdp at 30 % load: mean of every size class within the spread of coins and 3 %."""
    monkeypatch.setenv(PACKETS, "4")
    flows, times = recorded.flow_list("fbhdp_30"), recorded.arrays("fbhdp_30_fct")
    samples = simulate(
        "paper", [(recorded.fabric(), flows)], ["E3"], 0, 50.0, slots=80, until_done=True
    )
    ours = 1e3 * samples.fct_us[0, 0] / times["standalone_ns"]
    theirs = times["paper_E3"] / times["standalone_ns"]
    for low, high in ((0, 1e5), (1e5, 1e6), (1e6, np.inf)):
        members = (flows["size_B"] > low) & (flows["size_B"] <= high)
        means = ours[:, members].mean(-1)
        allowed = max(0.03 * theirs[members].mean(), 3.5 * means.std(ddof=1))
        assert means.mean() == pytest.approx(theirs[members].mean(), abs=allowed)


@pytest.mark.thorough
def test_a_closed_loop_has_the_recorded_objective(monkeypatch):
    """`restore-serve-v0` under the oracle's changing thresholds: J within 5 %."""
    monkeypatch.setenv(PACKETS, "2")
    data = recorded.arrays("restore_serve_e10")
    fct, deferred = replayed(data, "oracle", 0)
    inside = (data["start_ns"] >= 1e6) & (data["start_ns"] < 31e6)
    payload = data["bytes"][inside]
    ours = [objective(row, payload)["J"] for row in slowdowns(data, 1e3 * fct)[:, inside]]
    theirs = objective(slowdowns(data, data["fct_ns_oracle"])[inside], payload)["J"]
    assert np.mean(ours) == pytest.approx(theirs, rel=0.05) and deferred == 0
