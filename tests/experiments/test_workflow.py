"""Policies by name, and results over several seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ecn_marl.baselines.common.evaluation import Evaluation
from ecn_marl.experiments import workflow as wf


@pytest.fixture
def run_of_three(tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    config = {"algorithm": "ippo", "scenario": "incast-v0", "seed": 10, "seeds": 3}
    config["options"] = {"features": "pet", "reward": "pet"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_learners(run_of_three):
    assert wf.learners(run_of_three) == [f"{run_of_three}#{i}" for i in range(3)]
    assert wf.learners(f"{run_of_three}#1") == [f"{run_of_three}#1"]
    assert wf.learners("static:secn1") == ["static:secn1"]


def test_labels(run_of_three):
    assert wf.label(run_of_three) == "IPPO three"
    assert wf.label(f"{run_of_three}#2") == "IPPO three, seed 12"
    assert wf.label("static:secn1") == "SECN1 (5,200,0.01)"
    assert wf.label("static:7,9,0.5") == "static (7,9,0.5)"


def test_arena_follows_the_first_run(run_of_three):
    place = wf.arena(["static:secn1", f"{run_of_three}#0"], None, max_steps=7)
    assert place.scenario == "incast-v0"
    assert place.env("static:secn1").reward.name == "pet"
    assert place.env("static:secn1").horizon == 7
    assert wf.arena(["static:secn1"], None).scenario == "websearch-v0"
    assert wf.arena([run_of_three], "websearch-v0").scenario == "websearch-v0"


def test_policies_keep_their_view(run_of_three):
    """Reward and traffic are the arena's, features those that the policy was trained on."""
    place = wf.Arena("incast-v0", {"features": "acc", "reward": "acc"})
    env = place.env(run_of_three)
    assert (env.feature.name, env.reward.name) == ("pet", "acc")


def test_interval_over_seeds():
    """Three seeds of means 1, 2, 3: t(0.975, 2) / sqrt(3) = 2.484 whatever happens within them."""

    def found(mean: float) -> Evaluation:
        zero = np.zeros(2)
        episodes = {
            "reward": np.array([mean - 1, mean + 1]),
            **{k: zero for k in ("queue_mean", "queue_std", "utilisation", "paused")},
            **{k: zero for k in ("pauses", "deferred")},
            "flows_finished": np.ones((2, 3), int),
            "slowdown_sum": np.full((2, 3), mean),
            "slowdown_histogram": np.ones((2, 3, 4)),
        }
        return Evaluation("x", episodes)

    parts = {f"run#{i}": found(i + 1.0) for i in range(3)} | {"static:secn1": found(9.0)}
    (row,) = wf._over_seeds(parts)
    assert (row["name"], row["seeds"], row["episodes"]) == ("run", 3, 6)
    assert row["reward"]["mean"] == pytest.approx(2.0)
    assert row["reward"]["ci95"] == pytest.approx(2.484, abs=1e-3)
    assert row["slowdown"]["mice"] == {"flows": 6, "mean": 2.0, "p99": pytest.approx(1e4, rel=0.2)}
    assert row["statistics"]["of"] == "reward"
    assert row["statistics"]["iqm"]["value"] == pytest.approx(2.0)
    assert wf._over_seeds({"run#0": found(1.0)}) == []
    references = {"static:best": found(1.0), "oracle": found(5.0)}
    (row,) = wf._over_seeds(parts | references)
    assert row["statistics"]["of"] == "headroom"
    assert row["statistics"]["scores"] == [[0.0], [0.25], [0.5]]
