"""Scenarios as pictures: the traffic in them is that of the sources."""

from __future__ import annotations

import matplotlib.image as mpimg
import numpy as np
import pytest
from commands import failure, run

from ecn_marl.envs.registry import make
from ecn_marl.render.scenario_page import sample_traffic
from ecn_marl.sim.traffic.sizes import size_table


@pytest.fixture(scope="module")
def switching():
    return make("pet-switching-small-v0")


def test_a_sample_is_the_offered_load(switching):
    """Mean of many flows: 60 % of what the hosts can send, in each of the two long parts."""
    sample = sample_traffic(switching, seed=3)
    assert sample.span_us == 100_000.0
    assert ((sample.start_us >= 0.0) & (sample.start_us < sample.span_us)).all()
    rate = sum(switching.sim.topology.nic_gbps) * 125.0
    for table, begin, end in (("WebSearch", 0.0, 41e3), ("DataMining_10MB", 41e3, 81e3)):
        within = (sample.start_us >= begin) & (sample.start_us < end)
        per_us = within.sum() / (end - begin)
        want = 0.6 * rate / float(size_table(table).mean)
        assert per_us == pytest.approx(want, rel=5.0 / np.sqrt(within.sum()))
        largest = 30e6 if table == "WebSearch" else 10e6
        assert sample.payload[within].max() <= largest


def test_other_seeds_are_other_flows(switching):
    first, same, other = (sample_traffic(switching, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.start_us, same.start_us)
    assert len(first.start_us) != len(other.start_us) or (first.start_us != other.start_us).any()


def test_traffic_that_needs_a_network_has_no_sample():
    assert sample_traffic(make("acc-storage-small-v0"), 0) is None


def test_the_command_draws(tmp_path):
    file = tmp_path / "star.png"
    answer = run("scenarios", "websearch-star-v0", "--out", file)
    assert answer.exit_code == 0, answer.output
    assert "websearch-star-v0: 8 ports" in answer.stdout
    picture = mpimg.imread(file)
    assert picture.shape[1] > 1000 and picture[..., :3].std() > 0.05
    assert "unknown scenario" in failure("scenarios", "websearch-stra-v0", "--out", file)
    assert "--out" in failure("scenarios", "--out", file)
    assert "--all" in failure("scenarios", "websearch-star-v0", "--all")
