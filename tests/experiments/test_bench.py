"""`ecn-marl bench`: its records, and that it goes on after a stop."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from commands import failure, run
from small import EFFORT, GRID, SETTINGS, SMALL, quiet, register

from ecn_marl.baselines import search
from ecn_marl.baselines.c_acc import CentralACC
from ecn_marl.baselines.ddqn import DDQNConfig
from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.trained import run_actors, run_state, trainer_of
from ecn_marl.baselines.training.checkpoint import Checkpoints, read_config
from ecn_marl.baselines.training.loop import state_shapes
from ecn_marl.envs import splits
from ecn_marl.envs.registry import make
from ecn_marl.errors import FolderInUse
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments import curves, searches, sources
from ecn_marl.experiments import engine as en
from ecn_marl.experiments import plan as pl
from ecn_marl.experiments import recipes as rc
from ecn_marl.experiments import trainings as tr
from ecn_marl.experiments.plan import Plan
from ecn_marl.experiments.publish import publish
from ecn_marl.experiments.records import Record
from ecn_marl.sim import star

pytestmark = pytest.mark.usefixtures("small_scenario")


@pytest.fixture(scope="session")
def small_scenario():
    register()


@pytest.fixture(scope="module")
def done(tmp_path_factory, small_scenario):
    """A learner and a rule on a network of three hosts."""
    out = tmp_path_factory.mktemp("bench")
    plan = Plan(
        scenarios=(SMALL,),
        policies=("pet", "static:secn1"),
        out=out,
        seeds=2,
        steps=80,
        episodes=3,
        settings=SETTINGS,
        effort=EFFORT,
        eval_episodes=2,
    )
    return plan, bn.bench(plan, quiet)


@pytest.mark.slow
def test_everything_is_scored(done):
    plan, results = done
    records = results[SMALL]
    assert list(records) == ["static:best", "oracle", "pet", "static:secn1"]
    meta = records["pet"].meta
    env = make(SMALL, interval_us=rc.INTERVAL_US)
    per_second = env.num_agents * 1e6 / env.interval_us
    assert meta["inferences_per_second"] == pytest.approx(per_second)
    assert meta["us_per_decision"] > 0.0 and meta["exchanged_bytes_per_second"] == 0.0
    assert meta["steps"] == 80 and records["pet"].seeds == 2 and records["oracle"].seeds == 1
    assert all(r.meta["stream"] == "tuning" and r.episodes == 3 for r in records.values())
    assert records["static:best"].meta["settings"][0] in [list(s) for s in GRID]
    search = records["static:best"].meta["search"]
    assert search["candidates"] == len(GRID)
    assert search["settings"] == {"all": {"all": records["static:best"].meta["settings"][0]}}
    assert meta["versions"] == meta["trained_with"] == sources.code()
    for name in records:
        file = plan.out / SMALL / "scores" / f"{searches.file_name(name)}.json"
        assert Record.load(file).meta == records[name].meta


def test_learning_curves_are_the_merits_of_the_run(done):
    plan, results = done
    text = (plan.out / SMALL / "pet" / "metrics.jsonl").read_text()
    rows = [row for row in map(json.loads, text.splitlines()) if "merit" in row]
    assert len(rows) >= 2
    lines = results[SMALL]["pet"].curves
    assert len(lines) == 2 and results[SMALL]["pet"].meta["curve"] == "J"
    for i, curve in enumerate(lines):
        assert curve.steps.tolist() == [0, *(row["steps"] for row in rows)], "the untrained first"
        trained = [-row["merit"][i] for row in rows]
        np.testing.assert_allclose(curve.value[1:], trained, rtol=1e-5)
        assert (curve.value >= 1.0).all(), "J is a slowdown"


def test_levels_beside_the_curves_are_of_the_same_episodes(done):
    plan, results = done
    config = read_config(plan.out / SMALL / "pet")
    secn1 = curves.reference_merits(config)["static:secn1"]
    level = {name: record.meta.get("curve_level") for name, record in results[SMALL].items()}
    assert level["static:secn1"] == pytest.approx(-secn1.value[0], rel=1e-4)
    assert level["static:best"] >= 1.0 and level["oracle"] >= 1.0 and level["pet"] is None


def test_tables_state_the_stream_of_the_episodes(done, tmp_path):
    plan, results = done
    result, _ = publish(results, tmp_path, {"protocol": bn.protocol(plan)})
    assert result["protocol"]["stream"] == "tuning"
    assert result["protocol"]["steps"] == {SMALL: 80}
    assert "no test result" in (tmp_path / "table.md").read_text()


def never(*args, **kwargs):
    raise AssertionError("done again")


@pytest.fixture
def no_work(monkeypatch):
    for name in ("_score_learner", "_score_rule"):
        monkeypatch.setattr(en, name, never)
    monkeypatch.setattr(tr, "train_run", never)
    monkeypatch.setattr(searches.Search, "find", never)


@pytest.mark.parametrize(
    "change", [{"eval_seed": 77}, {"episodes": 2}, {"effort": replace(EFFORT, episodes=2)}]
)
def test_valid_records_are_not_made_again(done, no_work, change):
    plan, results = done
    again = bn.bench(plan, quiet)[SMALL]
    for name, record in results[SMALL].items():
        np.testing.assert_array_equal(again[name].columns["J"], record.columns["J"])
    with pytest.raises(AssertionError, match="again"):
        bn.bench(replace(plan, **change), quiet)


@pytest.mark.parametrize("part", ["sources", "jax", "ecn-marl"])
def test_records_of_other_code_are_made_again(done, no_work, monkeypatch, part):
    plan, _ = done
    other = {**sources.code(), part: "other"}
    monkeypatch.setattr(en, "code", lambda: other)
    with pytest.raises(AssertionError, match="again"):
        bn.bench(plan, quiet)


def test_runs_of_other_recipes_are_refused(done, monkeypatch):
    plan, _ = done
    changed = rc.with_settings(rc.LEARNERS["pet"], {"gamma": 0.5}, None)
    monkeypatch.setattr(rc, "RECIPES", {SMALL: {"pet": changed}})
    with pytest.raises(ValueError, match="another run of pet"):
        bn.bench(plan, quiet)


def test_runs_of_settings_that_are_no_longer_asked_are_refused(done):
    plan, _ = done
    fewer = {name: x for name, x in plan.settings.items() if name != "hidden"}
    with pytest.raises(ValueError, match="another run of pet"):
        bn.bench(replace(plan, settings=fewer), quiet)


def test_workers_tell_places_apart(done, monkeypatch):
    """A worker keeps its last environment by the name of its task."""
    plan, _ = done
    names = []

    def ran(pool, task, built, **options):
        names.append(task.name)
        return Evaluation(task.name, {})

    monkeypatch.setattr(en, "run_episodes", ran)
    for place in ("one", "other"):
        at = replace(plan.places()[0], name=place)
        scoring = en.Scoring(plan, at, "rule", (), lambda task: quiet, None, object())
        assert scoring.evaluate(None, None, None).name == "rule"
    assert len(set(names)) == 2


def test_the_best_seed_is_that_of_the_best_checkpoint():
    steps = np.array([0.0, 40.0, 80.0])
    start, better = (steps, np.array([3.0, 7.0, 6.0])), (steps, np.array([9.0, 5.0, 4.0]))
    assert tr.best_seed([start, better]) == 1, "the untrained state is no checkpoint"
    assert tr.best_seed([(steps[:1], np.array([3.0]))]) == tr.best_seed(None) == 0


def test_the_generalist_has_steps_for_all_its_scenarios(done, monkeypatch):
    plan, _ = done
    monkeypatch.setattr(tr, "recipe_of", lambda *where: rc.recipe(SMALL, rc.GENERALIST))
    for steps, expected in ((None, rc.steps_of(SMALL, rc.GENERALIST)), (80, 80)):
        asked = replace(plan, steps=steps)
        training = tr.training_of(asked, asked.places()[0].site, rc.GENERALIST)
        assert training["steps"] == expected


@pytest.mark.slow
def test_a_lost_record_is_scored_again_from_the_same_run(done, monkeypatch):
    """The same policies give the same scores again; a run of other settings is refused."""
    plan, results = done
    file = plan.out / SMALL / "scores" / "pet.json"
    run_file = plan.out / SMALL / "pet" / "metrics.jsonl"
    content, before = file.read_bytes(), run_file.read_text()
    file.unlink()
    again = bn.bench(plan, quiet)[SMALL]["pet"]
    assert run_file.read_text() == before
    for name, column in results[SMALL]["pet"].columns.items():
        np.testing.assert_array_equal(again.columns[name], column)
    with pytest.raises(ValueError, match=r"another run of pet"):
        bn.bench(replace(plan, seeds=3), quiet)
    file.write_bytes(content)


def test_scores_use_the_report_part_of_the_tuning_stream(done, monkeypatch):
    plan, _ = done
    keys = bn._keys(replace(plan, eval_seed=5), plan.places()[0], (), {}, repository=None)
    want = jax.random.key_data(tuning_keys("report", 5, plan.episodes))
    np.testing.assert_array_equal(jax.random.key_data(keys), want)


@pytest.mark.slow
def test_sealed_scores(done, tmp_path, monkeypatch):
    """They are of other episodes, kept beside those on tuning episodes, and noted first."""
    plan, results = done
    root = tmp_path / "checkout"
    checkout = sources.Checkout(root, "0123456789abcdef")
    monkeypatch.setattr(sources.Checkout, "changes", lambda self: [])
    monkeypatch.setattr(bn, "checkout", lambda: checkout)
    records = bn.bench(replace(plan, sealed=True), quiet)[SMALL]
    uses = (root / "results" / "USES.md").read_text().splitlines()[-1]
    assert (
        "`0123456789ab` | `small-v0` | static:best, oracle, pet, static:secn1 | 80 | 2 | 3" in uses
    )
    assert (plan.out / SMALL / "sealed" / "scores" / "pet.json").is_file()
    for name, record in records.items():
        assert record.meta["stream"] == "sealed" and record.meta["commit"] == checkout.commit
        assert not np.array_equal(record.columns["J"], results[SMALL][name].columns["J"])
    assert records["static:best"].meta["settings"] == results[SMALL]["static:best"].meta["settings"]
    bn.bench(replace(plan, sealed=True), quiet)
    assert (root / "results" / "USES.md").read_text().splitlines()[-1] == uses, "no second look"


def test_a_use_is_noted_before_anything_is_scored(done, tmp_path, monkeypatch):
    plan, _ = done
    checkout = sources.Checkout(tmp_path, "0123456789abcdef")
    monkeypatch.setattr(sources.Checkout, "changes", lambda self: [])
    monkeypatch.setattr(bn, "checkout", lambda: checkout)
    monkeypatch.setattr(en, "_score_rule", never)
    sealed = replace(plan, sealed=True, policies=("static:secn2",), episodes=4)
    with pytest.raises(AssertionError):
        bn.bench(sealed, quiet)
    assert "| 4 |" in (tmp_path / "results" / "USES.md").read_text()


class Stop(Exception):
    """Ends a benchmark where it would train."""


@pytest.fixture
def requests(monkeypatch):
    """What trainings are asked for, which then stop."""
    noted = []

    def note(algorithm, scenario, **request):
        noted.append(request)
        raise Stop

    monkeypatch.setattr(tr, "train_run", note)
    return noted


def search_finds(monkeypatch, settings):
    """Every search finds these settings, `[phases, groups, 3]`."""
    result = search.SearchResult("oracle", np.asarray(settings), 1.0, 3, 0, ())
    monkeypatch.setattr(searches.Search, "find", lambda self, name: result)


def test_settings_of_the_oracle_reach_the_learners_that_it_teaches(tmp_path, monkeypatch, requests):
    deep, shallow = (123.0, 456.0, 0.789), (7.0, 8.0, 0.9)
    search_finds(monkeypatch, [[deep] * 3, [shallow] * 3])
    plan = Plan(("restore-serve-v0",), ("dagger",), tmp_path, effort=EFFORT)
    with pytest.raises(Stop):
        bn.bench(plan, quiet)
    assert requests[-1]["options"]["action_options"] == {"template": (deep, shallow)}


def test_settings_of_the_oracle_do_not_reach_other_learners(tmp_path, monkeypatch, requests):
    """With any search result, the trained recipe keeps its ladder of settings."""
    odd = (123.0, 456.0, 0.789)
    search_finds(monkeypatch, np.full((1, 1, 3), odd))
    for name in (n for n in rc.LEARNERS if not rc.LEARNERS[n].taught):
        recipe = replace(
            rc.LEARNERS[name], options={**rc.LEARNERS[name].options, "features": "acc"}
        )
        monkeypatch.setitem(rc.LEARNERS, name, recipe)
        plan = Plan((SMALL,), (name,), tmp_path / name, effort=EFFORT)
        with pytest.raises(Stop):
            bn.bench(plan, quiet)
        assert requests[-1]["options"] == dict(recipe.options)
        actions = recipe.options["action_options"]
        assert actions == {"template": rc.DEPTHS} or actions["kmin_kb"] == rc.KMIN_RANGE
        assert not set(odd) & set(np.ravel(rc.DEPTHS))
        assert requests[-1]["steps"] == rc.DEFAULT_STEPS, "the same for all"
    assert [name for name in rc.LEARNERS if rc.LEARNERS[name].taught] == ["generalist", "dagger"]
    source = ast.parse(inspect.getsource(tr.train))
    assert "searches" not in {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}


def test_each_seed_has_its_own_best_checkpoint(done, tmp_path):
    plan, _ = done
    run_copy = tmp_path / "pet"
    shutil.copytree(plan.out / SMALL / "pet", run_copy)
    checkpoints = Checkpoints(run_copy)
    first = checkpoints.steps[-1]
    last = first + 1  # with other weights
    shapes = state_shapes(trainer_of(read_config(run_copy)), make(SMALL).default_params, 2)
    state = checkpoints.restore(shapes, first)
    checkpoints.save(last, replace(state, actor=jax.tree.map(lambda x: x + 1, state.actor)))
    best = [{"step": last, "merit": 1.0}, {"step": first, "merit": 1.0}]
    (run_copy / "checkpoints" / "best.json").write_text(json.dumps(best))
    _, actors = run_actors(run_copy)
    _, latest = run_actors(run_copy, "latest")
    before = checkpoints.restore(shapes, first).actor
    jax.tree.map(np.testing.assert_array_equal, actors[0], latest[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[1]), actors[1], before)
    assert not all(jax.tree.leaves(jax.tree.map(np.array_equal, actors[1], latest[1])))
    jax.tree.map(np.testing.assert_array_equal, run_state(run_copy, 1).actor, actors[1])


@pytest.mark.slow
def test_a_split_scores_trained_policies_without_training(done, monkeypatch):
    plan, results = done
    variants = {"long": lambda: {"max_steps": 40, "topology": star(3)}}  # no type of JSON
    monkeypatch.setitem(splits.SPLITS, "lengths", splits.Split(SMALL, "", {}, variants))
    monkeypatch.setattr(tr, "train_run", never)
    asked = replace(plan, scenarios=(), policies=("pet",), split="lengths")
    records = bn.bench(asked, quiet)
    assert list(records) == [f"{SMALL}:lengths/long"]
    policies = records[f"{SMALL}:lengths/long"]
    assert list(policies) == ["static:best", "oracle", "pet"]
    assert policies["pet"].meta["scenario"] == f"{SMALL}:lengths/long"
    short, long = (x["pet"].columns["offered"].sum() for x in (results[SMALL], policies))
    assert short < long
    where = plan.out / SMALL / "splits" / "lengths" / "long"
    assert (where / "scores" / "pet.json").is_file()
    assert (where / "searches" / "static_best.json").is_file()
    with pytest.raises(ValueError, match="that of split lengths"):
        replace(plan, scenarios=("websearch-v0",), split="lengths")


def test_one_inference_of_c_acc_serves_all_ports():
    env = make(SMALL, actions="discrete")
    algorithm = CentralACC(env, DDQNConfig(hidden=(4,)))
    costs = algorithm.controller(None, env).costs()
    inputs, outputs = 2 * env.obs_dim, env.action.n
    flops = (2 * inputs * 4 + 4) + 4 + (2 * 4 * outputs + outputs)
    assert costs["inferences_per_decision"] == pytest.approx(1 / env.num_agents)
    assert costs["flops_per_decision"] == pytest.approx(flops / env.num_agents)
    sent = algorithm.exchanged_bytes(env, [])
    assert sent == pytest.approx(env.num_agents * (6 + 3) * 4 * 1e6 / env.interval_us)


def test_bad_plans_are_named(tmp_path):
    for wrong in ({"seeds": 0}, {"episodes": 0}, {"steps": 0}, {"eval_seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Plan((SMALL,), ("random",), tmp_path, **({"seeds": 2} | wrong))
    with pytest.raises(ValueError, match="unknown split 'lods'"):
        Plan((), ("random",), tmp_path, split="lods")
    args = ("bench", SMALL, "--algorithms", "ipo", "--out", tmp_path / "x")
    assert "unknown policy 'ipo'" in failure(*args)
    assert "unknown scenario" in failure("bench", "tiny-v9", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch):
    """It searches, scores and writes; the second time it runs nothing."""
    monkeypatch.setattr(search, "static_grid", lambda: GRID)
    monkeypatch.setattr(search, "thin_grid", lambda: GRID[:1])
    file = tmp_path / "results.json"
    args = ["bench", SMALL, "--algorithms", "SECN1", "--episodes", 2]
    args += ["--search-episodes", 2, "--out", tmp_path / "b", "--results", file]
    first = run(*args)
    assert first.exit_code == 0, first.output
    assert "SECN1 (5,200,0.01)" in first.stdout
    assert first.stdout == (tmp_path / "b" / "table.md").read_text()
    written = json.loads(file.read_text())
    assert written["machine"]["versions"]["jax"]
    assert written["protocol"]["stream"] == "tuning"
    rows = written["scenarios"][SMALL]["policies"]
    assert [row["name"] for row in rows] == ["static:best", "oracle", "static:secn1"]
    monkeypatch.setattr(en, "_score_rule", never)
    assert run(*args).stdout == first.stdout


def test_commas_within_a_static_setting_do_not_split_names():
    names = pl.policy_names("SECN1,static:37.5,375,1,rule,dynamic:pi,static:5,20,.5")
    assert names == ("SECN1", "static:37.5,375,1", "rule", "dynamic:pi", "static:5,20,.5")


def test_a_folder_has_one_benchmark_at_a_time(tmp_path, monkeypatch):
    plan = Plan(scenarios=(SMALL,), policies=("static:secn1",), out=tmp_path / "b")

    def at_work(plan, policies, repository, show):
        with pytest.raises(FolderInUse, match=r"in use by process .*bench"):
            bn.bench(plan, show)
        return {}

    monkeypatch.setattr(bn, "_bench", at_work)
    assert bn.bench(plan, quiet) == {}
    assert not list((tmp_path / "b").iterdir())


def test_settings_are_checked_before_anything_is_trained(tmp_path):
    """Those that no trainer has, and values that one of the learners does not allow."""
    plan = {"scenarios": (SMALL,), "out": tmp_path, "policies": ("ddqn", "ippo")}
    with pytest.raises(ValueError, match=r"unknown setting 'envz': did you mean 'envs'"):
        Plan(**plan, settings={"envz": 8})
    with pytest.raises(ValueError, match=r"minibatches = 3 .*divisor"):
        Plan(**plan, settings={"minibatches": 3})
    with pytest.raises(ValueError, match="envs = 0"):
        Plan(**plan, settings={"envs": 0})
    # Of a learner that is not in the plan: of no effect, as before.
    assert Plan(**plan, settings={"tau": 0.1}).settings == {"tau": 0.1}


def test_records_of_another_flow_list_are_made_again(tmp_path):
    """The file has the same name; every score and search is asked for anew."""
    file, requests = tmp_path / "flows.csv", []
    for size in (1000, 2000):
        rows = "".join(f"{i},{s},0,{size},{50_000 * i}\n" for i, s in enumerate((1, 2) * 8))
        file.write_text(f"flow_id,src,dst,size_B,start_ns\n{rows}")
        options = {"flows": str(file)}
        plan = Plan((SMALL,), ("static:secn1",), tmp_path, options=options)
        searched = searches.search_request(SMALL, options, EFFORT)
        requests.append((en._request(plan, plan.places()[0], "static:secn1"), searched))
    for before, after in zip(*requests, strict=True):
        changed = [name for name in before if before[name] != after[name]]
        assert changed == ["flows_sha256"]


def test_rewards_of_a_trainer_that_logs_none():
    assert tr.training_rewards([{"steps": 16, "loss": 1.0}]) == {"steps": [], "reward": []}


def test_a_folder_holds_what_was_searched_here(tmp_path, monkeypatch):
    """Not what ships, though this process has looked at that before."""
    references, effort = tmp_path / "references", replace(EFFORT, episodes=2)
    shipped = search.SearchResult("static:best", np.full((1, 1, 3), 7.0), 1.0, 2, 0, ())
    facts = searches.search_request(SMALL, {}, effort)
    searches._write(references / SMALL / "best.json", facts, shipped)
    monkeypatch.setattr(searches, "REFERENCES", references)
    monkeypatch.setattr(searches, "_SEARCHES", {})
    assert searches.find("static:best", SMALL, {}, effort).settings[0, 0, 0] == 7.0
    found = searches.find("static:best", SMALL, {}, effort, tmp_path / "own")
    assert tuple(found.settings[0, 0]) in GRID
    assert searches.find("static:best", SMALL, {}, effort).settings[0, 0, 0] == 7.0
