"""The comparison of `ecn-marl bench`: what it computes, that it goes on where it was."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from commands import TINY, failure, run
from scipy import stats

from ecn_marl.baselines import oracle
from ecn_marl.baselines.common.checkpoint import Checkpoints, read_config
from ecn_marl.baselines.common.statistics import crossed_interval
from ecn_marl.baselines.common.training import state_shapes
from ecn_marl.baselines.ddqn import CentralACC, DDQNConfig
from ecn_marl.baselines.runs import (
    ALGORITHMS,
    algorithm_config,
    resume_run,
    run_actors,
    run_state,
    trainer_of,
)
from ecn_marl.envs.actions import STATIC_ECN
from ecn_marl.envs.registry import make
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments.recipes import RECIPES, VIEWS, recipe
from ecn_marl.report.bench_table import COLUMNS, bench_table

pytestmark = pytest.mark.usefixtures("tiny_scenario")

SMALL = {"envs": 2, "rollout": 4, "minibatches": 2, "epochs": 1, "batch": 4, "hidden": (4,)}


def quiet(task: str):
    return lambda done, note="": None


def test_interval_over_seeds_and_episodes():
    """One seed: Student's t over episodes. Seeds that differ by constants: both in quadrature."""
    rng = np.random.default_rng(0)
    episodes, seeds = rng.normal(size=30), np.array([0.5, -1.0, 2.0])
    alone = stats.t.ppf(0.975, 29) * episodes.std(ddof=1) / 30**0.5
    mean, half = crossed_interval(episodes[None])
    assert (mean, half) == pytest.approx((episodes.mean(), alone))
    among = stats.t.ppf(0.975, 2) * seeds.std(ddof=1) / 3**0.5
    mean, half = crossed_interval(seeds[:, None] + episodes)
    assert mean == pytest.approx(episodes.mean() + seeds.mean())
    assert half == pytest.approx(np.hypot(alone, among))
    assert np.isnan(crossed_interval(np.zeros((1, 1)))[1])


def test_intervals_cover_what_they_should():
    """Seeds, episodes and their interaction drawn at random: at least 93 % hold the true mean."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        values = 0.7 * rng.normal(size=(5, 1)) + rng.normal(size=20) + rng.normal(size=(5, 20))
        mean, half = crossed_interval(values)
        hits += abs(mean) <= half
    assert hits >= 0.93 * 400


def entry(rewards, name):
    return {
        "asked": {"name": name, "options": {}, "settings": {}},
        "name": name,
        "rewards": rewards,
    }


def test_differences_are_paired_and_placed():
    """Luck common to all policies of an episode cancels; places are those of the headroom."""
    luck = np.array([0.0, 5.0, -3.0, 1.0])
    entries = {
        "static:best": entry([(1.0 + luck).tolist()], "static:best"),
        "oracle": entry([(3.0 + luck).tolist()], "oracle"),
        "ippo": entry([(2.0 + luck).tolist(), (2.5 + luck).tolist()], "ippo"),
    }
    found = bn._compared(entries)
    assert found["headroom"] == {"mean": pytest.approx(2.0), "ci95": pytest.approx(0.0, abs=1e-9)}
    best, oracle, ippo = found["policies"]
    assert (best["headroom"]["iqm"]["value"], oracle["headroom"]["iqm"]["value"]) == (0.0, 1.0)
    assert ippo["headroom"]["scores"] == [[pytest.approx(0.5)], [pytest.approx(0.75)]]
    assert ippo["over_best"]["mean"] == pytest.approx(1.25)
    among = stats.t.ppf(0.975, 1) * np.std([1.0, 1.5], ddof=1) / 2**0.5
    assert ippo["over_best"]["ci95"] == pytest.approx(among)
    overall = bn._overall({"a": found, "b": found})
    assert overall["ippo"]["iqm"]["value"] == pytest.approx(0.625)
    assert "seeds" not in overall and set(overall) == {"static:best", "oracle", "ippo"}


@pytest.fixture(scope="module")
def done(tmp_path_factory, tiny_scenario):
    """A learner and a rule on a network of three hosts."""
    out = tmp_path_factory.mktemp("bench")
    plan = bn.Plan((TINY,), ("ippo", "static:secn1"), out, 2, 8, 3, settings=SMALL)
    few = tuple(STATIC_ECN.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "default_grid", lambda: few)
        yield plan, bn.bench(plan, quiet)


@pytest.mark.slow
def test_everything_is_scored(done):
    _, result = done
    rows = {row["name"]: row for row in result["scenarios"][TINY]["policies"]}
    assert list(rows) == ["static:best", "oracle", "ippo", "static:secn1"]
    env = make(TINY)
    per_second = env.num_agents * 1e6 / env.interval_us
    assert rows["ippo"]["costs"]["inferences_per_second"] == pytest.approx(per_second)
    assert rows["ippo"]["costs"]["us_per_decision"] > 0.0
    assert rows["ippo"]["exchanged_bytes_per_second"] == 0.0
    assert (rows["ippo"]["seeds"], rows["ippo"]["steps"]) == (2, 8)
    assert "costs" not in rows["static:secn1"] and rows["static:secn1"]["seeds"] == 1
    table = bench_table(result, bn.title)
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(rows)
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 1}
    assert json.loads(json.dumps(result)) == result


def test_one_inference_of_c_acc_serves_all_ports():
    env = make(TINY, actions="discrete")
    algorithm = CentralACC(env, DDQNConfig(hidden=(4,)))
    costs = algorithm.controller(None, env).costs()
    inputs, outputs = 2 * env.obs_dim, env.action.n
    flops = (2 * inputs * 4 + 4) + 4 + (2 * 4 * outputs + outputs)
    assert costs["inferences_per_decision"] == pytest.approx(1 / env.num_agents)
    assert costs["flops_per_decision"] == pytest.approx(flops / env.num_agents)
    sent = bn._exchanged("c-acc", env, [])
    assert sent == pytest.approx(env.num_agents * (6 + 3) * 4 * 1e6 / env.interval_us)


@pytest.mark.slow
def test_what_is_there_is_not_done_again(done, monkeypatch):
    plan, result = done

    def never(*args, **kwargs):
        raise AssertionError("trained or scored again")

    monkeypatch.setattr(bn, "_score_learner", never)
    monkeypatch.setattr(bn, "_score_rule", never)
    assert bn.bench(plan, quiet) == result
    with pytest.raises(AssertionError, match="again"):
        bn.bench(replace(plan, eval_seed=77), quiet)


@pytest.mark.slow
def test_runs_are_kept_when_only_scores_are_lost(done):
    """The same policies, scored again, earn the same; a run of other settings is not mixed in."""
    plan, result = done
    (plan.out / TINY / "scores" / "ippo.json").unlink()
    run_file = plan.out / TINY / "ippo" / "metrics.jsonl"
    before = run_file.read_text()
    again = bn.bench(plan, quiet)
    assert run_file.read_text() == before
    old, new = (r["scenarios"][TINY]["policies"][2] for r in (result, again))
    assert new["reward"] == old["reward"] and new["name"] == "ippo"
    with pytest.raises(ValueError, match=r"another run of ippo"):
        bn.bench(replace(plan, seeds=3), quiet)


@pytest.mark.slow
def test_the_policy_of_each_seed_is_that_of_its_own_best_checkpoint(done, tmp_path):
    plan, _ = done
    here = tmp_path / "ippo"
    shutil.copytree(plan.out / TINY / "ippo", here)
    resume_run(here, steps=16)
    checkpoints = Checkpoints(here)
    first, last = checkpoints.steps[0], checkpoints.steps[-1]
    assert first < last
    best = [{"step": last, "score": 1.0}, {"step": first, "score": 1.0}]
    (here / "checkpoints" / "best.json").write_text(json.dumps(best))
    _, actors = run_actors(here)
    _, latest = run_actors(here, "latest")
    shapes = state_shapes(trainer_of(read_config(here)), make(TINY).default_params, 2)
    before = checkpoints.restore(shapes, first).actor
    jax.tree.map(np.testing.assert_array_equal, actors[0], latest[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[1]), actors[1], before)
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, actors[1], latest[1])))
    jax.tree.map(np.testing.assert_array_equal, run_state(here, 1).actor, actors[1])


def test_recipes_fit_their_trainers_and_scenarios():
    assert set(VIEWS) == set(ALGORITHMS)
    for scenario, recipes in RECIPES.items():
        for algorithm in recipes:
            how = recipe(scenario, algorithm)
            config = algorithm_config(algorithm, **how.settings)
            assert how.steps >= config.steps_per_update
            env = make(scenario, **how.options)
            plain = make(scenario)
            assert (env.reward, env.horizon, env.sim.traffic) == (
                plain.reward,
                plain.horizon,
                plain.sim.traffic,
            )
    with pytest.raises(ValueError, match="unknown algorithm 'ipo'"):
        recipe("websearch-v0", "ipo")


def test_bad_plans_are_named(tmp_path):
    for wrong in ({"seeds": 0}, {"episodes": 0}, {"steps": 0}, {"eval_seed": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            bn.Plan((TINY,), ("random",), tmp_path, **({"seeds": 2} | wrong))
    assert "unknown policy 'ipo'" in failure(
        "bench", TINY, "--algorithms", "ipo", "--out", tmp_path / "x"
    )
    assert "unknown scenario" in failure("bench", "tiny-v9", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_command(done, tmp_path):
    """Of what a bench has already, the table is made without running anything."""
    plan, result = done
    file = tmp_path / "results.json"
    args = ["bench", TINY, "--algorithms", "SECN1", "--episodes", plan.episodes, "--seeds", 2]
    shown = run(*args, "--out", plan.out, "--results", file)
    assert shown.exit_code == 0, shown.output
    assert "SECN1 (5,200,0.01)" in shown.stdout
    assert shown.stdout == (plan.out / "table.md").read_text()
    written = json.loads(file.read_text())
    assert written["machine"]["versions"]["jax"]
    rows = written["scenarios"][TINY]["policies"]
    assert [row["name"] for row in rows] == ["static:best", "oracle", "static:secn1"]
    assert rows[2]["reward"] == result["scenarios"][TINY]["policies"][3]["reward"]
