"""Suites of ACC and HAECN: the papers' figures, the values of claims, and runs of a cell."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest
import small
from synthetic import record

from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.evaluation.episodes import evaluate, evaluation_keys
from ecn_marl.baselines.haecn import HAECN, HAECNConfig
from ecn_marl.envs.registry import make
from ecn_marl.experiments import measured_delay
from ecn_marl.experiments.papers import measures, online, suite
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers.outcome import outcome
from ecn_marl.experiments.papers.run import SuitePlan, protocol, run_suite
from ecn_marl.experiments.papers.suite import Suite
from ecn_marl.experiments.records import Record
from ecn_marl.sim.tuners import TUNERS


def quiet(task):
    return lambda done, note="": None


def nothing(done, total):
    pass


def with_columns(name: str, **columns: float) -> Record:
    """A record with some columns that are the same in every episode; `__` is a colon."""
    base = record(name, noise=0.0)
    shape = (base.seeds, base.episodes)
    further = {key.replace("__", ":"): np.full(shape, value) for key, value in columns.items()}
    return Record(name, base.meta, {**base.columns, **further})


def claims(name: str) -> dict[str, float]:
    return {claim.key: claim.paper for claim in suite(name, True).claims}


def test_the_claims_of_acc_are_the_papers():
    stated = claims("acc")
    assert stated["throughput"] == 26.1 and stated["queue"] == -90.0
    assert (stated["tail-20-least"], stated["tail-20-to"]) == (-33.3, -66.7)
    assert (stated["tail-60-least"], stated["tail-60-to"]) == (-50.0, -85.7)
    for who, mean, deviation in (("acc", 5.6, 13.3), ("secn1", 20.4, 49.6), ("secn2", 37.5, 109.3)):
        assert stated[f"bottleneck-queue-{who}"] == mean
        assert stated[f"bottleneck-queue-spread-{who}"] == deviation
    assert stated["bottleneck-queue-secn1-change"] == -72.5
    assert (stated["tcp-least"], stated["tcp-to"]) == (-10.0, -20.0)
    assert (stated["iops"], stated["iops-most"]) == (20.0, 30.0)
    assert (stated["mice-mean"], stated["mice-p99"], stated["idle"]) == (-17.3, -47.5, -10.0)


def test_the_claims_of_haecn_are_the_papers():
    stated = claims("haecn")
    opponents = ("dcqcn", "timely", "hpcc", "acc")
    assert [stated[f"fct-36-{who}"] for who in opponents] == [-30.0, -24.0, -22.0, -16.0]
    assert [stated[f"fct-48-{who}"] for who in opponents] == [-33.0, -28.0, -25.0, -21.0]
    assert [stated[f"throughput-{who}"] for who in opponents] == [47.0, 34.0, 32.0, 24.0]


def test_vendors_and_rules_are_rows():
    for name in ("acc", "haecn"):
        rows = {row.name for row in suite(name, True).rows}
        vendors = ("alibaba", "huawei-25g", "huawei-100g", "arista", "sonic-mellanox", "dctcp")
        assert {f"static:{vendor}" for vendor in vendors} <= rows
        assert {"dynamic:ecn-sharp", "dynamic:pi", "dynamic:buffer"} <= rows
    assert all(row.name.removeprefix("dynamic:") in TUNERS for row in rw.RULES)


def test_figures_from_columns():
    x = with_columns(
        "x",
        throughput_gbps=20.0,
        bottleneck_queue_mean=5600.0,
        bottleneck_queue_std=13_300.0,
        share__rdma=0.56,
        source__0__iops=1000.0,
        source__1__iops=500.0,
        source__2__step_us=2000.0,
        inferences_per_decision=0.9,
        activation_frequency=0.25,
    )
    want = {
        "throughput": 20.0,
        "bottleneck queue": 5.6,
        "bottleneck queue spread": 13.3,
        "rdma share": -20.0,
        "iops": 1500.0,
        "step time": 2.0,
        "inferences saved": -10.0,
        "activations": 25.0,
    }
    for name, value in want.items():
        np.testing.assert_allclose(measures.figure(x, name), value, rtol=1e-6)
    bare = record("y", noise=0.0)
    assert all(np.isnan(measures.figure(bare, name)).all() for name in want)


def test_claims_of_acc_by_hand():
    """ACC has 24 Gb/s, SECN1 20 and SECN2 16: up to 50 % more."""
    gbps = {
        "acc:published": 24.0,
        "acc:reading": 24.0,
        "static:secn1": 20.0,
        "static:secn2": 16.0,
        "static:best": 18.0,
    }
    results = {
        "heterogeneous": {k: with_columns(k, throughput_gbps=v) for k, v in gbps.items()},
        "tcp-2": {"static:secn1": with_columns("static:secn1", share__rdma=0.63)},
        "tcp-7": {"static:secn1": with_columns("static:secn1", share__rdma=0.7)},
    }
    by_key = {claim.key: claim.measure for claim in suite("acc", True).claims}
    assert by_key["throughput"](results, "published").value == pytest.approx(50.0, abs=1e-3)
    assert by_key["throughput"](results, "best").value is not None
    assert by_key["throughput"](results, "tuned") is None
    assert by_key["tcp-to"](results, "published").value == pytest.approx(-10.0, abs=1e-3)
    assert by_key["tcp-to"](results, "published").cell == "tcp-2"
    assert by_key["tcp-least"](results, "published").value == pytest.approx(0.0, abs=1e-3)
    assert by_key["iops"](results, "published") is None


def test_claims_of_haecn_read_other_cells_for_other_senders():
    """24 Gb/s against 16 of DCQCN in the same cell, and 20 of TIMELY in another cell."""
    results = {
        "gradual-48": {
            "haecn:published": with_columns("haecn:published", throughput_gbps=24.0),
            "static:secn1": with_columns("static:secn1", throughput_gbps=16.0),
        },
        "gradual-48-timely": {"static:secn1": with_columns("static:secn1", throughput_gbps=20.0)},
        "gradual-12-timely": {"static:secn1": with_columns("static:secn1", throughput_gbps=1.0)},
    }
    by_key = {claim.key: claim.measure for claim in suite("haecn", True).claims}
    changes = {
        who: by_key[f"throughput-{who}"](results, "published") for who in ("dcqcn", "timely")
    }
    assert changes["dcqcn"].value == pytest.approx(50.0, abs=1e-3)
    assert changes["timely"].value == pytest.approx(20.0, abs=1e-3)
    assert changes["timely"].cell == "gradual-48"
    assert by_key["throughput-hpcc"](results, "published") is None


# What is run.


def only(name: str, cell: str, rows: tuple[str, ...]) -> Suite:
    """A suite of one cell, without claims."""
    full = suite(name, True)
    return replace(full, cells=(replace(full.cell(cell), rows=rows),), claims=(), plots=())


RULES = ("static:secn1", "static:huawei-100g", "dynamic:buffer")


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("acc", "messages-20"),
        pytest.param("haecn", "bursty-12-hpcc", marks=pytest.mark.thorough),
    ],
)
def test_the_smallest_cell_of_rules_runs(name, cell, tmp_path):
    small_suite = only(name, cell, RULES[: 2 if name == "haecn" else 3])
    plan = SuitePlan(small_suite, tmp_path, small=True, episodes_asked=2, options={"max_steps": 40})
    records = run_suite(plan, quiet, nothing)
    paper = outcome(small_suite, records, protocol(plan))
    for row in small_suite.cells[0].rows:
        figures = paper["cells"][0]["rows"][row]["figures"]
        assert 0.0 < figures["throughput"]["value"] < 25.1
        assert figures["bottleneck queue"]["value"] >= 0.0
        assert math.isnan(figures["iops"]["value"])


TINY = {"envs": 2, "rollout": 5, "batch": 4, "hidden": (4,), "gradient_steps": 1}


def test_a_measured_delay_is_that_of_the_largest_switch(monkeypatch):
    """Three ports at 7 µs each, one after the other."""
    monkeypatch.setattr(measured_delay, "decision_us", lambda *_: 7.0)
    small.register()
    options = {"features": "haecn", "actions": "discrete"}
    env = make(small.SMALL, **options)
    learner = HAECN(env, HAECNConfig(hidden=(4,), decision_hidden=(2,)))
    actor = jax.eval_shape(learner.init, jax.random.key(0), env.default_params).actor
    actor = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), actor)
    keys = evaluation_keys(0, 2)
    delay_us = measured_delay.measured_delay_us(small.SMALL, options, learner, actor, keys)
    assert delay_us == 21.0


@pytest.mark.slow
@pytest.mark.thorough
def test_decisions_of_learners_have_the_measured_delay(tmp_path, monkeypatch):
    """A leaf of the small network has 8 ports: at 7 µs each decisions are 56 µs late."""
    monkeypatch.setattr(measured_delay, "decision_us", lambda *_: 7.0)
    small_suite = only("haecn", "bursty-12", ("haecn:published", "static:secn1"))
    plan = SuitePlan(
        small_suite,
        tmp_path,
        small=True,
        seeds=1,
        steps=20,
        episodes_asked=2,
        options={"max_steps": 20},
        settings=TINY,
        eval_episodes=2,
    )
    (records,) = run_suite(plan, quiet, nothing).values()
    assert records["haecn:published"].meta["decision_delay_us"] == 56.0
    assert "decision_delay_us" not in records["static:secn1"].meta
    assert (records["haecn:published"].columns["activation_frequency"] <= 1.0).all()


@pytest.mark.slow
@pytest.mark.thorough
def test_acc_online_starts_as_the_offline_model_and_leaves_it():
    """Without exploring and with a learning rate of about 0, it plays as the greedy policy."""
    env = make("websearch-star-v0", features="acc", reward="acc", max_steps=20, load=0.9)
    params = env.default_params
    offline = DDQN(env, DDQNConfig(**TINY))
    kind = online.KINDS["ddqn"]
    start = kind.start(offline.init(jax.random.key(3), params))
    keys = evaluation_keys(4, 2)
    still = replace(kind.config(asdict(offline.config), 20, 4), epsilon=0.0, epsilon_min=0.0)
    assert (still.envs, still.rollout, still.shared) == (1, 5, False)
    metrics = [
        online.episode_runner(kind, env, replace(still, lr=rate), 4)(start, keys)
        for rate in (1e-30, 1.0)
    ]
    greedy = evaluate(
        env, params, offline.controller(start[0], env), name="x", episodes=2, keys=keys
    )
    for name in ("queue_mean", "reward", "flows_finished"):
        np.testing.assert_allclose(metrics[0][name], greedy.episodes[name], rtol=1e-4)
    assert (np.asarray(metrics[1]["queue_mean"]) != np.asarray(metrics[0]["queue_mean"])).any()
    with pytest.raises(ValueError, match="windows"):
        kind.config(asdict(offline.config), 20, 0)
