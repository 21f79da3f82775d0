"""Records of evaluations on packets: the tables of the fluid, the same flows, exact accounts."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import nullcontext

import numpy as np
import pytest
from commands import TINY, Counter
from packetcases import runner

import ecn_marl
from ecn_marl.experiments import evaluation as ev

assert runner  # importing it skips these tests where Numba is missing

pytestmark = pytest.mark.usefixtures("tiny_scenario")


def hosted(observations):
    """PettingZoo's dicts."""
    return {agent: np.array([0, 0, 3]) for agent in observations}


@pytest.fixture(scope="module")
def results(tiny_scenario):
    run = {"scenario": TINY, "episodes": 2, "allow_flagged": True}
    packets = ecn_marl.evaluate(
        ["static:secn1", Counter(), hosted], backend="packets", check=True, **run
    )
    return packets, ecn_marl.evaluate("static:secn1", **run)


def test_flows_are_those_of_the_fluid(results):
    """Who sends what when does not depend on how the network is simulated."""
    packets, fluid = results
    own = packets.flows.query("policy == 'static:secn1'")
    assert own.dtypes.to_dict() == fluid.flows.dtypes.to_dict()
    for name in ("episode", "flow", "source", "destination", "size_bytes", "path"):
        np.testing.assert_array_equal(own[name], fluid.flows[name], err_msg=name)
    # The fluid counts the start within a tick down in float32.
    np.testing.assert_allclose(own["start_us"], fluid.flows["start_us"], atol=1e-5)
    both = own["finished"].to_numpy() & fluid.flows["finished"].to_numpy()
    assert both.sum() > 10
    ratio = own["fct_us"].to_numpy()[both] / fluid.flows["fct_us"].to_numpy()[both]
    assert abs(np.log(ratio).mean()) < 0.2 and (own["fct_us"].to_numpy()[both] > 0).all()


def test_tables_are_whole(results):
    packets, _ = results
    where = ["policy", "episode"]
    flows, ports, episodes = packets.flows, packets.ports, packets.episodes.set_index(where)
    started = flows.groupby(where).size()
    assert started.equals(episodes["flows_started"].astype(int).sort_index())
    done = flows[flows["finished"]].groupby(where).size()
    assert done.equals(episodes["flows_finished"].astype(int).sort_index())
    short = flows[(flows["size_bytes"] <= 1e5) & flows["measured"]]
    means = short.groupby(where)["slowdown"].mean()
    np.testing.assert_allclose(means, episodes["short_mean"].sort_index(), rtol=1e-5)
    assert len(ports) == 3 * 2 * 6 * 3
    queue = ports.groupby(where)["queue_mean_bytes"].mean()
    np.testing.assert_allclose(queue, episodes["queue_mean_bytes"].sort_index(), rtol=1e-5)


def test_policies_keep_their_state_on_packets(results):
    ports = results[0].ports
    counted = ports[ports["policy"] == "Counter"].groupby("interval")["kmin_bytes"].unique()
    assert [list(x) for x in counted] == [[5e3], [5e3], [320e3], [320e3], [320e3], [320e3]]
    assert set(ports[ports["policy"] == "hosted"]["kmin_bytes"]) == {5e3}


def test_several_processes_write_the_same(results, monkeypatch):
    """The parent writes what they return; here they are this process."""

    class Here(Executor):
        def map(self, function, values):
            return map(function, values)

    monkeypatch.setattr(ev, "executor", lambda workers: nullcontext(Here()))
    alone = ecn_marl.evaluate(
        "static:secn1", TINY, episodes=2, allow_flagged=True, backend="packets", workers=2
    )
    for table in ("flows", "ports", "episodes"):
        own = results[0].tables.frame(table).query("policy == 'static:secn1'")
        assert alone.tables.frame(table).equals(own)
