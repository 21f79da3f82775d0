"""Policies by name, and results over several seeds."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats
from synthetic import evaluation

from ecn_marl.baselines.search import Effort
from ecn_marl.experiments import evaluation as ev
from ecn_marl.experiments import jobs, searches
from ecn_marl.experiments import policies as po
from ecn_marl.experiments import recipes as rc
from ecn_marl.experiments import workflow as wf
from ecn_marl.experiments.taught import with_teacher


@pytest.fixture
def run_of_three(tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    config = {"algorithm": "ippo", "scenario": "incast-v0", "seed": 10, "seeds": 3}
    config |= {"steps": 1000, "settings": {}}
    config["options"] = {"features": "pet", "reward": "pet"}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_learners(run_of_three):
    assert po.resolve(run_of_three).members == [f"{run_of_three}#{i}" for i in range(3)]
    assert po.resolve(f"{run_of_three}#1").members == [f"{run_of_three}#1"]
    assert po.resolve("static:secn1").members == ["static:secn1"]


def test_labels(run_of_three):
    assert po.resolve(run_of_three).label == "IPPO three"
    assert po.resolve(f"{run_of_three}#2").label == "IPPO three, seed 12"
    assert po.resolve("static:secn1").label == "SECN1 (5,200,0.01)"
    assert po.resolve("static:7,9,0.5").label == "static (7,9,0.5)"


def test_arena_follows_the_first_run(run_of_three):
    place = po.arena(["static:secn1", f"{run_of_three}#0"], None, max_steps=7)
    assert place.scenario == "incast-v0"
    assert place.env("static:secn1").reward.name == "pet"
    assert place.env("static:secn1").horizon == 7
    assert po.arena(["static:secn1"], None).scenario == jobs.DEFAULT_SCENARIO
    assert po.arena([run_of_three], "websearch-v0").scenario == "websearch-v0"


def test_policies_keep_their_view(run_of_three):
    """Reward and traffic are the arena's, features those that the policy was trained on."""
    place = po.Arena("incast-v0", {"features": "acc", "reward": "acc"})
    env = place.env(run_of_three)
    assert (env.feature.name, env.reward.name) == ("pet", "acc")


def test_runs_with_several_seeds_have_a_row_of_their_own():
    """Its interval includes the variance between seeds, whose rewards are 1, 2 and 3."""
    parts = {
        f"run#{i}": evaluation(episodes=4, seed=i, reward=np.array([0.9, 1.1, 1.0, 1.0]) + i)
        for i in range(3)
    }
    records = ev.grouped({**parts, "lone#0": evaluation(), "static:secn1": evaluation()}, {})
    assert list(records) == ["run#0", "run#1", "run#2", "lone#0", "static:secn1", "run"]
    row = ev._summary(records["run"], allow_flagged=False)
    assert (row["name"], row["seeds"], row["episodes"]) == ("run", 3, 4)
    assert row["reward"]["mean"] == pytest.approx(2.0)
    within = stats.t.ppf(0.975, 3) * np.std([0.9, 1.1, 1.0, 1.0], ddof=1) / 2.0
    among = stats.t.ppf(0.975, 2) / 3**0.5
    assert row["reward"]["ci95"] == pytest.approx(np.hypot(within, among))
    assert row["statistics"]["of"] == "J"
    seed_means = [np.exp(np.log(part.columns["J"]).mean()) for part in parts.values()]
    np.testing.assert_allclose(
        row["statistics"]["scores"], np.array(seed_means)[:, None], rtol=1e-5
    )
    assert "statistics" not in ev._summary(records["run#0"], allow_flagged=False)


def test_scores_and_shares_between_the_best_static_setting_and_the_oracle():
    """With `static:best` among the policies, each row has its score and share of the gain."""
    scales = {"static:best": 1.0, "oracle": 0.4, "static:secn1": 1.3}

    def rows(*names: str) -> dict:
        parts = {n: evaluation(n, 5, (scales[n], 1.0, 1.0), seed=len(n)) for n in names}
        records = ev.grouped(parts, {"scenario": "websearch-v0"})
        return {row["name"]: row for row in ev.rows_of(records, allow_flagged=False)}

    result = rows(*scales)
    assert result["static:best"]["share"]["value"] == 0.0
    assert result["oracle"]["share"]["value"] == pytest.approx(1.0)
    assert result["static:secn1"]["share"]["value"] < 0.0
    want = result["oracle"]["J"]["value"] / result["static:best"]["J"]["value"]
    assert result["oracle"]["score"]["value"] == pytest.approx(want)
    assert result["static:secn1"]["worse"][0]["size"] == "short"
    alone = rows("static:secn1", "oracle")
    assert "score" not in alone["oracle"]


def test_training_in_a_benchmark_scenario_starts_from_its_recipe():
    job = jobs.new_job("ippo", {}, {"max_steps": 20}, ["envs=4"])
    assert job.scenario == jobs.DEFAULT_SCENARIO == "restore-serve-v0"
    assert job.options["interval_us"] == 250.0 and job.options["features"] == "flows-memory"
    assert job.options["history"] == 1 and job.options["credit"] == "flows"
    assert "history" not in jobs.new_job("ippo", {}, {"features": "flows"}, []).options
    assert job.options["max_steps"] == 8, "20 intervals of 100 µs"
    assert job.settings["gamma"] == 0.995 and job.settings["persistence"] == 0.5
    assert job.settings["envs"] == 4
    paper = jobs.new_job("ippo", {}, {"reward": "pet"}, [])
    assert paper.options["reward"] == "pet"
    assert not {"credit", "reward_options"} & set(paper.options), "they belong to another reward"
    plain = jobs.new_job("ippo", {"scenario": "websearch-v0"}, {}, [])
    assert (plain.options, plain.settings, plain.steps) == ({}, {}, jobs.DEFAULT_STEPS)
    of_steps = jobs.new_job("ippo", {"scenario": "storage-train-v0"}, {}, [])
    assert of_steps.options["reward"] == "objective-shaped"  # it pays for steps of jobs, too


def test_learners_of_the_benchmark_are_trained_by_their_names():
    for name in rc.LEARNERS:
        job = jobs.new_job(name, {}, {}, [])
        recipe = with_teacher(rc.recipe(jobs.DEFAULT_SCENARIO, name), jobs.DEFAULT_SCENARIO, {})
        assert job.algorithm == recipe.algorithm
        assert job.options.items() >= recipe.options.items(), name
        assert job.settings.items() >= recipe.settings.items(), name
    # Its recipe is what a name like this one means, in scenarios without recipes, too.
    own = jobs.new_job("ddqn-fct", {"scenario": "websearch-v0"}, {}, ["lr=0.5"])
    assert own.settings["ordinal"] == 1 and own.settings["lr"] == 0.5
    assert own.options["reward"] == "objective-shaped"
    again = jobs.new_job(None, {}, {}, [], asdict(own))
    assert again == own, "a file of the job is the same job"
    with pytest.raises(ValueError, match="unknown algorithm 'ddqn-ftc': did you mean 'ddqn-fct'"):
        jobs.new_job("ddqn-ftc", {}, {}, [])


def test_searches_that_ship_are_used(tmp_path, monkeypatch):
    """A search in the package's folder is used for its own options only."""
    monkeypatch.setattr(searches, "REFERENCES", tmp_path)
    monkeypatch.setattr(searches, "_SEARCHES", {})  # those of other tests
    facts = searches.search_request("restore-serve-v0", {}, Effort()) | {"code": "of a release"}
    table = [{"settings": [[2.5, 5.0, 1.0]], "objective": 8.0, "episodes": 64}]
    shipped = {"name": "static:best", "settings": [[[2.5, 5.0, 1.0]]], "objective": 8.0}
    shipped |= {"episodes": 64, "runs": 1, "table": table}
    folder = tmp_path / "restore-serve-v0"
    folder.mkdir()
    (folder / "static_best.json").write_text(json.dumps({"asked": facts, "found": shipped}))
    assert searches.shipped("restore-serve-v0") == ("static:best",)
    assert wf.references("restore-serve-v0") == ("static:best", "static:secn1", "static:secn2")
    assert wf.references("websearch-v0") == ("static:secn1", "static:secn2")
    search = searches.find(
        "static:best",
        "restore-serve-v0",
        {"reward": "acc", "credit": None, "reward_options": {"mice_factor": 2.0}},
    )
    assert search.objective == 8.0 and search.runs == 1

    def never(*_, **__):
        raise AssertionError("a search began")

    monkeypatch.setattr(searches.Search, "find", never)
    with pytest.raises(AssertionError, match="a search began"):
        searches.find("static:best", "restore-serve-v0", {"slots": 200})
