"""Packets beside the fluid: by `evaluate` and `bench`, and `play` of packets."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import small
from commands import failure, run
from scipy import stats

import ecn_marl
from ecn_marl.baselines.static import Static
from ecn_marl.envs.registry import make
from ecn_marl.experiments import backends
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments.plan import Plan
from ecn_marl.experiments.publish import publish, read_records
from ecn_marl.experiments.records import Record
from ecn_marl.render.episode import record

pytest.importorskip("numba", reason="extra packets is not installed")

SETTINGS = ["static:secn1", "static:5,20,1.0", "static:80,320,0.05"]
EPISODES = 3


@pytest.fixture(scope="module")
def beside():
    small.register()
    options = {"backend": "packets", "records": False}
    return ecn_marl.evaluate(SETTINGS, small.SMALL, episodes=EPISODES, beside=True, **options)


def test_both_are_the_evaluations_of_their_own(beside):
    alone = {
        backend: ecn_marl.evaluate(
            SETTINGS, small.SMALL, episodes=EPISODES, backend=backend, records=False
        )
        for backend in ("packets", "fluid")
    }
    for result, backend in ((beside, "packets"), (beside.fluid, "fluid")):
        for name, values in alone[backend].records.items():
            np.testing.assert_array_equal(values.columns["J"], result.records[name].columns["J"])
        assert result.summary["backend"] == backend
    # The scenario has no PFC and a clock of 5 µs, which matter in the fluid alone.
    assert "losses" in beside.fluid.summary["regimes"] and not beside.summary["regimes"]


def test_agreement_is_that_of_the_episodes(beside):
    compared = beside.summary["beside"]
    rows = {row["name"]: row for row in compared["policies"]}
    assert rows.keys() == set(SETTINGS)
    assert [row["packets"] for row in rows.values()] == sorted(x["packets"] for x in rows.values())
    logs = {
        kind: np.log([result.records[name].columns["J"][0] for name in SETTINGS])
        for kind, result in (("packets", beside), ("fluid", beside.fluid))
    }
    for name, own, other in zip(SETTINGS, *logs.values(), strict=True):
        row = rows[name]
        difference = other - own
        ratio, low, high = row["ratios"]["J"]
        assert ratio == pytest.approx(np.exp(difference.mean()))
        half = stats.t.ppf(0.975, EPISODES - 1) * difference.std(ddof=1) / np.sqrt(EPISODES)
        assert np.log([low, high]) == pytest.approx(
            [difference.mean() - half, difference.mean() + half]
        )
        assert row["packets"] == pytest.approx(np.exp(own.mean()))
    means = {kind: values.mean(1) for kind, values in logs.items()}
    assert compared["r"] == pytest.approx(np.corrcoef(means["packets"], means["fluid"])[0, 1])
    order = np.argsort(means["packets"])
    inversions = sum(
        a > b for i, a in enumerate(means["fluid"][order]) for b in means["fluid"][order][i + 1 :]
    )
    assert compared["tau"] == pytest.approx(1.0 - 2.0 * inversions / 3.0)
    text = str(beside)
    assert "The fluid beside packets" in text and f"{compared['tau']:.2f}" in text


def test_two_policies_have_no_order(beside):
    two = {name: beside.records[name] for name in SETTINGS[:2]}
    assert backends.agreement(two, two)["tau"] is None
    no_J = {"J": np.full((1, 2), np.nan), **{f: np.full((1, 2), np.nan) for f in backends.FIGURES}}
    lacking = {"a": Record("a", {}, no_J)}
    compared = backends.agreement(lacking, lacking)
    assert compared["policies"][0]["ratios"]["J"] is None and compared["worst"] is None


@pytest.fixture(scope="module")
def benched(tmp_path_factory):
    """A learner and a setting, scored on both; on packets in two processes, which import, too."""
    small.import_in_workers(tmp_path_factory.mktemp("own"))
    plan = Plan(
        scenarios=(small.SMALL,),
        policies=("pet", "static:secn1"),
        out=tmp_path_factory.mktemp("bench"),
        seeds=2,
        steps=80,
        episodes=3,
        packet_episodes=2,
        settings=small.SETTINGS,
        effort=small.EFFORT,
        eval_episodes=2,
        backend="packets",
        workers=2,
    )
    return plan, bn.bench(plan, small.quiet)


@pytest.mark.slow
def test_a_bench_scores_the_same_policies_on_packets(benched, tmp_path):
    plan, records = benched
    fluid, packets = records[small.SMALL], records[small.SMALL + backends.ON_PACKETS]
    assert list(fluid) == list(packets) == ["static:best", "oracle", "pet", "static:secn1"]
    for name, record_ in packets.items():
        assert record_.meta["backend"] == "packets" and record_.seeds == 1
        assert record_.meta.get("settings") == fluid[name].meta.get("settings")
        same = {key: x[record_.meta.get("seed", 0)][:2] for key, x in fluid[name].columns.items()}
        np.testing.assert_array_equal(record_.columns["offered"][0], same["offered"])
        assert (record_.columns["J"][0] != same["J"]).any()
    best = [curve.value.min() for curve in fluid["pet"].curves]
    assert packets["pet"].meta["seed"] == np.argmin(best), "the seed of the best checkpoint"
    alone = ecn_marl.evaluate(
        "static:secn1", small.SMALL, episodes=2, backend="packets", records=False
    )
    own = alone.records["static:secn1"].columns["J"]
    np.testing.assert_allclose(packets["static:secn1"].columns["J"], own, rtol=1e-5)
    # From the records alone, as `ecn-marl report` does.
    result, _ = publish(read_records(plan.out), tmp_path)
    assert result["beside"].keys() == {small.SMALL} and "overall" not in result
    assert result["beside"] == json.loads(json.dumps(backends.agreements(records)))
    text = (tmp_path / "table.md").read_text()
    assert f"## {small.SMALL}, beside packets" in text and f"## {small.SMALL} on packets" in text


@pytest.mark.slow
def test_processes_score_on_packets_what_one_does(benched):
    plan, records = benched
    place = small.SMALL + backends.ON_PACKETS
    (scores,) = (x for x in plan.out.rglob("scores") if x.is_dir() and "packets" in str(x))
    scores.rename(plan.out / "of-several")  # the same bench again, but for these
    one = bn.bench(replace(plan, workers=1), small.quiet)[place]
    assert scores.is_dir() and one.keys() == records[place].keys()
    for name, record_ in one.items():
        for column, values in record_.columns.items():
            several = records[place][name].columns[column]
            np.testing.assert_allclose(several, values, rtol=1e-5, err_msg=f"{name}, {column}")


def test_a_recorded_episode_is_that_of_the_evaluation(beside):
    env = make(small.SMALL, backend="packets")
    params = env.default_params
    played = record(env, params, Static(env, params, "secn1"), 0)
    own = {n: x[0, 0] for n, x in beside.records["static:secn1"].columns.items()}
    queue = played.info["queue_mean"].mean()
    assert queue == pytest.approx(own["queue_mean"], rel=1e-5)
    assert len(played.flows) == own["started"]
    ended = [flow for flow in played.flows if flow.end_us is not None]
    assert len(ended) == own["finished"] > 10
    assert all(flow.slowdown > 0.9 for flow in ended)
    assert played.ticks.shape == (env.horizon, 5, env.sim.topology.n_ports)  # ticks of 10 µs
    assert played.ticks.max() > 0.0


def test_the_commands(tmp_path):
    words = ("eval", "static:secn1", "--scenario", small.SMALL, "--episodes", "1")
    answer = run(*words, "--backend", "packets", "--json")
    assert answer.exit_code == 0, answer.output
    row = json.loads(answer.stdout)["evaluation"]["beside"]["policies"][0]
    assert row["ratios"]["J"][1:] == [None, None], "one episode has no interval"
    alone = json.loads(run(*words, "--backend", "packets", "--alone", "--json").stdout)
    assert "beside" not in alone["evaluation"]
    out = str(tmp_path / "film.html")
    played = run(
        "play", "static:secn1", "--scenario", small.SMALL, "--backend", "packets", "--out", out
    )
    assert played.exit_code == 0 and "20 intervals" in played.output
    assert "backend" in failure("bench", "pet", "--backend", "packets")
    assert "backend" in failure("bench", small.SMALL, "--backend", "ns3")
    with pytest.raises(ValueError, match="beside = True"):
        ecn_marl.evaluate("static:secn1", small.SMALL, beside=True)
