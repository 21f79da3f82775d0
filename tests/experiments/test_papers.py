"""Suites of papers: their consistency, the values of claims, the report."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from commands import failure, run
from synthetic import evaluation, record

from ecn_marl.baselines.evaluation import windows as wd
from ecn_marl.envs.registry import lookup, make
from ecn_marl.experiments import engine as en
from ecn_marl.experiments.own_reward import own_reward as paper_own
from ecn_marl.experiments.papers import SUITES, measures, pet, suite
from ecn_marl.experiments.papers import publish as pb
from ecn_marl.experiments.papers import rows as rw
from ecn_marl.experiments.papers import run as runs
from ecn_marl.experiments.papers.outcome import claim_row, outcome
from ecn_marl.experiments.papers.run import SuitePlan, check_folder, protocol, run_suite
from ecn_marl.experiments.papers.suite import Claim, Measured, Row, Suite
from ecn_marl.experiments.publish import holds_papers
from ecn_marl.experiments.recipes import LEARNERS
from ecn_marl.experiments.records import Record
from ecn_marl.render import papers as rp

TINY = {"envs": 2, "rollout": 5, "minibatches": 2, "epochs": 1, "batch": 4, "hidden": (4,)}
VERDICTS = ("reproduced", "beyond", "weaker", "too wide", "not", "opposite")
MACHINE = {"processor": "a <processor>", "versions": {"ecn-marl": "0", "jax": "0"}}


def quiet(task):
    return lambda done, note="": None


def nothing(done, total):
    pass


# What is claimed.


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize(
    "small", [True, pytest.param(False, marks=[pytest.mark.slow, pytest.mark.thorough])]
)
def test_suites_fit_scenarios_and_trainers(name, small):
    """Every cell and training is made with the options of every row, its interval among them."""
    paper_suite, made = suite(name, small), {}

    def env_of(scenario, options):
        """Made once for all rows that see and do the same."""
        view = (scenario, repr(options))
        if view not in made:
            made[view] = make(scenario, **options)
        return made[view]

    for cell in {cell.scenario: cell for cell in paper_suite.cells}.values():
        rows = [paper_suite.row(paper_suite.row(row).trained or row) for row in cell.rows]
        for recipe in (row.recipe for row in rows):
            env = env_of(cell.scenario, {**cell.options, **(recipe.options if recipe else {})})
            assert cell.windows <= env.horizon
        assert lookup(cell.scenario).benchmark is False
    for training in paper_suite.trainings:
        for row in paper_suite.rows:
            if row.recipe is not None:
                env_of(training.scenario, {**training.options, **row.recipe.options})
    assert {row.form for row in paper_suite.rows} >= {"published", "reading", "rule"}
    assert all(row.unstated for row in paper_suite.rows if row.form in ("published", "reading"))
    assert all(bool(row.choices) == (row.form == "reading") for row in paper_suite.rows)
    assert paper_suite.notes and bool(paper_suite.plots) == bool(paper_suite.claims)


def test_published_rows_have_the_papers_values():
    options = rw.PET.recipe.options
    assert options["action_options"] == {"alpha_kb": 20.0} and options["features"] == "pet"
    assert rw.PET.recipe.settings == {"gae_lambda": 0.01}
    env = make("pet-websearch-small-v0", **options)
    lowest = jnp.zeros((env.num_agents, 3), jnp.int32)
    ecn = env.action.decode(lowest, jnp.ones(env.num_agents))
    assert float(ecn.kmin[0]) == 20e3 and float(ecn.kmax[0]) == 40e3
    assert rw.ACC.recipe.settings == {} and rw.ACC.recipe.algorithm == "ddqn"
    assert rw.PET_TUNED.recipe is LEARNERS["ippo"], "the tuned recipe is written once"


@pytest.mark.parametrize(
    ("published", "reading"), [(rw.PET, rw.PET_READING), (rw.ACC, rw.ACC_READING)]
)
def test_a_reading_changes_nothing_that_is_printed(published, reading):
    """Same algorithm, features, actions and reward; rates, discount and clip are the defaults."""
    assert reading.recipe.algorithm == published.recipe.algorithm
    assert reading.recipe.options == published.recipe.options
    printed = {"actor_lr", "critic_lr", "clip", "clip_decay", "lr", "idle_gating", "priority"}
    assert not printed & set(reading.recipe.settings)


def test_every_alternative_of_a_choice_is_a_row():
    rows = {row.name: row for row in suite("readings", True).rows}
    named = {name for row in rows.values() for choice in row.choices for name in choice.rows}
    assert named <= set(rows)
    alternatives = {name for name, row in rows.items() if row.form == "alternative"}
    assert alternatives == named
    for name in alternatives:
        reading = rw.PET_READING if name.startswith("pet") else rw.ACC_READING
        assert rows[name].recipe != reading.recipe
        assert rows[name].recipe.settings != reading.recipe.settings or name == "pet:per-switch"


def test_the_claims_of_pet_are_the_papers():
    claims = {claim.key: claim for claim in suite("pet", True).claims}
    against = ("acc", "secn1", "secn2")
    assert [claims[f"overall-{x}"].paper for x in against] == [-3.9, -5.8, -17.6]
    assert [claims[f"mice-p99-{x}"].paper for x in against] == [-9.9, -23.6, -48.6]
    assert [claims[f"web-{x}"].paper for x in against] == [-8.2, -23.2, -67.3]
    assert [claims[f"mining-{x}"].paper for x in against] == [-3.7, -7.6, -13.4]
    assert claims["queue-pet"].paper == 5.3 and claims["queue-spread-acc"].paper == 14.1
    assert claims["failures-fct"].paper == -26.0 and claims["ablation"].paper == -6.3


def test_windows_of_the_dynamic_figures_lie_between_the_papers_times():
    """Of 10 s in 20 windows of 0.5 s."""
    assert pet._parts(20) == ("9-15", "17-17", "19-19")
    assert pet._down(20) == ("7-7", "8-8", "9-9", "10-10", "11-11")
    assert pet._parts(100) == ("41-80", "81-90", "91-99")


# What is measured.


def slow(name: str, factor: float, seeds: int = 1, **options) -> Record:
    """A record whose every mean slowdown is `factor` times that of factor 1, exactly."""
    base = record(name, seeds=seeds, noise=0.0, **options)
    first = Record.of("first", [evaluation(noise=0.0)], {})
    columns = dict(base.columns)
    for size in ("short", "medium", "long"):
        columns[f"{size}_sum"] = np.repeat(factor * first.columns[f"{size}_sum"], seeds, 0)
    return Record(name, base.meta, columns)


def test_a_change_is_relative_to_the_other_row():
    rules = {name: slow(name, x) for name, x in (("static:secn1", 1.0), ("static:best", 0.5))}
    results = {
        cell: {"pet:published": slow("pet:published", x, 3), **rules}
        for cell, x in (("a", 0.9), ("b", 0.8))
    }
    up_to = measures.Change(("a", "b"), "all mean", "pet", "static:secn1")
    change = up_to(results, "published")
    assert change.value == pytest.approx(-20.0, abs=1e-3) and change.cell == "b"
    assert change.low <= change.value <= change.high and change.high - change.low < 1e-3
    assert up_to(results, "best").value == pytest.approx(-50.0, abs=1e-3)
    assert up_to(results, "tuned") is None
    assert change.holding == "2 of 2"
    most = replace(up_to, pick="highest")(results, "published")
    assert most.value == pytest.approx(-10.0, abs=1e-3) and most.cell == "a"
    assert most.holding == "0 of 2"
    mean = replace(up_to, pick="mean")(results, "published")
    assert mean.value == pytest.approx(100.0 * (0.72**0.5 - 1.0), abs=1e-3)
    assert mean.cell == "2 cells" and mean.holding == ""


def test_the_choice_of_the_best_of_equal_cells_is_in_the_interval():
    """Ten cells without any difference: the lowest is below 0, its interval does not exclude 0."""
    rng = np.random.default_rng(0)

    def drawn(name: str, seeds: int) -> Record:
        base = slow(name, 1.0, seeds)
        factor = rng.lognormal(0.0, 0.1, (seeds, base.episodes))
        sums = {f"{x}_sum": base.columns[f"{x}_sum"] * factor for x in ("short", "medium", "long")}
        return Record(name, base.meta, {**base.columns, **sums})

    results = {
        str(i): {
            "pet:published": drawn("pet:published", 3),
            "static:secn1": drawn("static:secn1", 1),
        }
        for i in range(10)
    }
    alone = [measures.Change((cell,), "all mean", "pet", "static:secn1") for cell in results]
    lowest = measures.Change(tuple(results), "all mean", "pet", "static:secn1")(
        results, "published"
    )
    single = min((x(results, "published") for x in alone), key=lambda x: x.value)
    assert lowest.value == single.value and lowest.cell == single.cell
    assert lowest.low < single.low, "the lowest of ten varies more than a cell chosen beforehand"


def test_a_learner_that_earns_less_than_a_static_setting_has_no_verdict():
    """Own reward -1, the best static setting earns 0.1 more or less in every episode."""

    def judged(best: float) -> tuple[Measured, str]:
        learner = slow("pet:published", 0.9, 3)
        own = {"setting": [20.0, 40.0, 1.0]}
        columns = {**learner.columns, "own_static": learner.columns["reward"] + best}
        learner = Record(learner.name, {**learner.meta, "own": own}, columns)
        results = {"a": {"pet:published": learner, "static:secn1": slow("static:secn1", 1.0)}}
        found = measures.Change(("a",), "all mean", "pet", "static:secn1")(results, "published")
        return found, measures.verdict(-10.0, found, relative=True)

    assert judged(0.1)[0].unlearnt == "pet:published" and judged(0.1)[1] == "did not learn"
    assert judged(-0.1)[0].unlearnt == "" and judged(-0.1)[1] == "reproduced"


def test_invalid_records_give_invalid_verdicts():
    lost = slow("pet:published", 0.5, deferred=100.0 * np.ones(6))
    theirs = slow("acc:published", 1.0)
    measure = measures.Change(("a",), "all mean", "pet", "acc")
    change = measure({"a": {"pet:published": lost, "acc:published": theirs}}, "published")
    assert "deferred" in change.invalid
    assert measures.verdict(-3.9, change, relative=True) == "invalid"


@pytest.mark.parametrize(
    ("paper", "low", "high", "relative", "want"),
    [
        (-5.0, -6.0, -2.0, True, "reproduced"),
        (-5.0, -9.0, -8.0, True, "beyond"),
        (-5.0, -40.0, -0.1, True, "too wide"),
        (-10.0, -96.0, -90.0, True, "beyond"),
        (-5.0, -4.0, -1.0, True, "weaker"),
        (-5.0, -9.0, 1.0, True, "not"),
        (-5.0, 1.0, 2.0, True, "opposite"),
        (30.0, 10.0, 20.0, True, "weaker"),
        (30.0, -20.0, -10.0, True, "opposite"),
        (5.3, 5.0, 6.0, False, "reproduced"),
        (5.3, 1.0, 9.0, False, "too wide"),
        (5.3, 6.0, 7.0, False, "not"),
    ],
)
def test_verdicts(paper, low, high, relative, want):
    assert measures.verdict(paper, Measured((low + high) / 2, low, high), relative) == want


@pytest.mark.parametrize(
    ("paper", "unit"), [(-5.0, True), (-50.0, True), (5.0, True), (-4.0, False)]
)
@pytest.mark.parametrize("seeds", [None, 1, 2, 3, 5])
def test_learners_of_less_than_three_seeds_have_no_verdict(paper, unit, seeds):
    plain = measures.verdict(paper, Measured(-4.0, -6.0, -2.0), unit)
    assert plain in VERDICTS
    few = seeds in (1, 2)
    figure = Measured(-4.0, -6.0, -2.0, seeds=seeds)
    assert measures.verdict(paper, figure, unit) == ("too few seeds" if few else plain)
    assert measures.verdict(paper, figure._replace(invalid="lost"), unit) == "invalid"


def test_the_fewest_seeds_of_a_learner_count():
    records = {
        "pet:published": slow("pet:published", 0.9, 5),
        "acc:published": slow("acc:published", 1.0, 2),
        "static:secn1": slow("static:secn1", 1.0),
        "static:best": slow("static:best", 0.8),
    }
    results = {"a": records}

    def seeds(against: str, column: str = "published") -> int | None:
        return measures.Change(("a",), "all mean", "pet", against)(results, column).seeds

    assert (seeds("acc"), seeds("static:secn1")) == (2, 5)
    records["acc:reading"] = slow("acc:reading", 1.0, 2)
    assert (seeds("acc", "best"), seeds("static:secn1", "best")) == (2, None)
    assert measures.Value("a", "queue", "acc")(results, "published").seeds == 2
    claim = Claim(
        *("key", "text"), 10.0, "%", "where", measures.Change(("a",), "all mean", "pet", "acc")
    )
    assert claim_row(claim, results)["columns"]["published"]["verdict"] == "too few seeds"


def test_ratios_less_one_end_at_minus_100_percent():
    columns = record("rule").columns | {"inferences_per_decision": np.array([[0.9, 0, 0, 0, 0, 0]])}
    estimate = measures.estimated(Record("rule", {}, columns), "inferences saved")
    assert estimate["value"] == pytest.approx(-85.0)
    assert -100.0 <= estimate["low"] < -85.0 < estimate["high"]


def test_a_window_of_a_long_episode_keeps_its_digits():
    """Sums of slowdowns 10^9 and bytes 10^12 before; two windows with 3.25 and 5.5 more each."""
    size_sums = jnp.array([[1e8], [1e8], [1e8]]) + jnp.zeros((3, 3))
    rests = jnp.array([[0.5] * 3, [3.75] * 3, [9.25] * 3])
    rows = {
        "finished": jnp.array([[1.0] * 3, [2.0] * 3, [3.0] * 3]),
        "slowdown": jnp.stack([size_sums, rests], axis=1),
        "queue": jnp.zeros(3),
        "utilisation": jnp.zeros(3),
        "intervals": jnp.arange(1.0, 4.0),
        "delivered": jnp.array([[4e6, 1.0], [4e6, 8.0], [4e6 + 1, 0.0]]),
    }
    windows = wd.in_windows(rows)
    for size in ("short", "medium", "long"):
        np.testing.assert_array_equal(windows[f"windows:{size}_slowdown"][1:], [3.25, 5.5])
    np.testing.assert_array_equal(windows["windows:delivered"][1:], [7.0, 2**18 - 8.0])


def test_unknown_figures_and_windows_are_named():
    x = slow("x", 1.0)
    with pytest.raises(ValueError, match="unknown figure 'all maen'"):
        measures.figure(x, "all maen")
    with pytest.raises(ValueError, match="windows"):
        measures.figure(x, "queue@0-1")


def test_suites_that_do_not_fit_are_refused():
    good = suite("pet", True)
    with pytest.raises(ValueError, match="unknown row"):
        replace(good, rows=good.rows[1:])
    with pytest.raises(ValueError, match="unknown training"):
        replace(good, trainings=good.trainings[:1])
    with pytest.raises(ValueError, match="unknown cell"):
        replace(good, cells=good.cells[1:])
    with pytest.raises(ValueError, match="claim"):
        replace(good, claims=(*good.claims, good.claims[0]))
    with pytest.raises(ValueError, match="recipe of pet"):
        Row("pet", "PET", "published")
    with pytest.raises(ValueError, match="unknown algorithm 'ptt'"):
        SuitePlan(good, pb.Path("x"), only=("ptt",))


# What is shown.


@pytest.fixture(scope="module")
def results():
    """Drawn records of every row in every cell of PET's suite."""
    pet_suite, records = suite("pet", True), {}
    for i, cell in enumerate(pet_suite.cells):
        records[cell.name] = {}
        for j, name in enumerate(cell.rows):
            is_learner = pet_suite.row(name).form != "rule"
            scale = (1.0 + 0.05 * i, 1.0, 1.0 + 0.1 * (j % 3))
            options = {"meta": {"seconds": 12.0, "settings": [[5, 20, 1]]}} if is_learner else {}
            row_record = record(
                name, scale, 3 if is_learner else 1, scenario=f"pet/{cell.name}", **options
            )
            if cell.windows:
                rng = np.random.default_rng(j)
                shape = (row_record.seeds, row_record.episodes)
                columns = dict(row_record.columns)
                for w in range(cell.windows):
                    for series in ("queue", "utilisation", "delivered"):
                        columns[f"windows:{series}:{w}"] = rng.uniform(1e3, 2e3, shape)
                    for size in ("short", "medium", "long"):
                        columns[f"windows:{size}_finished:{w}"] = np.full(shape, 10.0)
                        columns[f"windows:{size}_slowdown:{w}"] = rng.uniform(20, 40, shape)
                row_record = Record(name, row_record.meta, columns)
            records[cell.name][name] = row_record
    return records


@pytest.fixture(scope="module")
def shown(results, tmp_path_factory):
    plan = SuitePlan(suite("pet", True), tmp_path_factory.mktemp("papers"), small=True, seeds=3)
    return plan, outcome(plan.suite, results, protocol(plan))


def test_the_report_has_every_claim_and_every_note(shown, results, tmp_path):
    plan, paper = shown
    command = "ecn-marl bench pet --small --seeds 3"
    _, files = pb.publish([paper], tmp_path, MACHINE, command)
    assert {file.name for file in files} == {
        *("results.json", "report.html", "claims.csv", "figures.csv")
    }
    page = (tmp_path / "report.html").read_text()
    for claim in plan.suite.claims:
        assert f'id="pet-{claim.key}"' in page and claim.where in page
        assert rp.amount(claim.paper, claim.unit) in page
    assert page.count("<figure>") == len(plan.suite.plots)
    assert all(row.title in page for row in plan.suite.rows if row.form != "rule")
    assert command in page and "a &lt;processor&gt;" in page
    assert "http" not in page.replace("http-equiv", ""), "one file, nothing from elsewhere"
    rows = list(csv.DictReader((tmp_path / "claims.csv").open()))
    assert len(rows) == 4 * len(plan.suite.claims)
    known = {*VERDICTS, measures.FEW, measures.UNLEARNT, "invalid", ""}
    assert {row["verdict"] for row in rows} <= known
    ours = next(r for r in rows if r["claim"] == "overall-acc" and r["column"] == "published")
    want = plan.suite.claims[0].measure(results, "published")
    assert float(ours["paper_value"]) == -3.9 and float(ours["value"]) == pytest.approx(want.value)
    figures = list(csv.DictReader((tmp_path / "figures.csv").open()))
    cells = sum(len(cell.rows) for cell in plan.suite.cells)
    assert len(figures) == cells * len(measures.FIGURES)
    tree = json.loads((tmp_path / "results.json").read_text())
    assert tree["papers"][0]["claims"][0]["columns"]["published"]["cell"].startswith("websearch")
    markdown = rp.claims_markdown(tree["papers"][0])
    assert markdown.count("\n") == len(plan.suite.claims) + 1


def test_a_claim_without_records_is_empty(results):
    claim = suite("pet", True).claims[0]
    empty = claim_row(claim, {})
    assert set(empty["columns"].values()) == {None}
    assert rp.claim_cell(empty, "tuned") == rp.DASH


# What is run.


def small_suite() -> Suite:
    """The smallest cell of PET's suite, with windows, for a learner and rules."""
    full = suite("pet", True)
    row_names = ("pet:reading", "pet:online", "static:secn1", "static:best")
    cell = replace(full.cell("websearch-90"), rows=row_names, windows=4)
    claims = tuple(claim for claim in full.claims if claim.key == "overall-secn1")
    claims = tuple(
        replace(claim, measure=replace(claim.measure, cells=("websearch-90",))) for claim in claims
    )
    return replace(full, cells=(cell,), claims=claims, plots=())


@pytest.fixture(scope="module")
def module_patch():
    """What is patched for all tests that look at `done`."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def done(tmp_path_factory, module_patch):
    """That suite, run: a thinner grid to search, one seed, tiny networks, episodes of 4 ms."""
    module_patch.setattr(runs, "thin_grid", lambda: ())
    plan = SuitePlan(
        small_suite(),
        tmp_path_factory.mktemp("bench") / "pet",
        small=True,
        seeds=1,
        steps=20,
        episodes_asked=2,
        search_episodes=1,
        options={"max_steps": 40},
        settings=TINY,
        eval_episodes=2,
    )
    return plan, run_suite(plan, quiet, nothing)


@pytest.mark.slow
def test_the_smallest_cell_runs(done):
    plan, records = done
    assert list(records) == ["websearch-90"]
    for cell in plan.suite.cells:
        assert set(records[cell.name]) == set(cell.rows)
        offered = [
            row_record.columns["offered"].tolist() for row_record in records[cell.name].values()
        ]
        assert all(x == offered[0] for x in offered), "the same flows for everyone"
        for row_record in records[cell.name].values():
            assert np.isfinite(row_record.columns["short_mean"]).all()
            assert wd.count_windows(row_record.columns) == cell.windows
    learner = records["websearch-90"]["pet:reading"]
    assert learner.meta["form"] == "reading" and learner.meta["unstated"]["discount"] == "0.95"
    own = paper_own(learner)
    assert own["margin"]["value"] == pytest.approx(own["reward"]["value"] - own["best_static"])
    assert own["setting"][0] >= 20.0, "a setting that PET's actions can set"
    assert records["websearch-90"]["pet:online"].meta["learns_online"]
    paper = outcome(plan.suite, records, protocol(plan))
    claim = paper["claims"][0]["columns"]
    assert claim["reading"]["cell"] == "websearch-90" and claim["tuned"] is None
    assert math.isfinite(claim["best"]["value"])


@pytest.mark.slow
def test_one_training_serves_all_cells(done):
    plan, _ = done
    assert [path.name for path in (plan.out / "runs" / "websearch").iterdir()] == ["pet_reading"]
    config = json.loads((plan.out / "runs/websearch/pet_reading/config.json").read_text())
    assert config["randomise"] == {"load": 3.0} and config["options"]["load"] == 0.3


@pytest.mark.slow
def test_windows_add_up_to_the_episode(done):
    """Flows that finished in windows, and their slowdowns, are those of the whole episode."""
    _, records = done
    columns = records["websearch-90"]["static:secn1"].columns
    for size in ("short", "long"):
        counts = [columns[f"windows:{size}_finished:{i}"] for i in range(4)]
        want = columns[f"{size}_measured"] - columns[f"{size}_unfinished"]
        np.testing.assert_allclose(sum(counts), want)
    queue = np.mean([columns[f"windows:queue:{i}"] for i in range(4)], axis=0)
    np.testing.assert_allclose(queue, columns["queue_mean"], rtol=1e-4)
    sent = sum(columns[f"windows:delivered:{i}"] for i in range(4))
    assert (sent > 0).all() and (sent <= columns["bytes_offered"]).all()


@pytest.mark.slow
def test_valid_records_are_not_made_again(done, monkeypatch):
    plan, records = done

    def never(*args, **kwargs):
        raise AssertionError("done again")

    for name in ("_score_learner", "_score_rule"):
        monkeypatch.setattr(en, name, never)
    monkeypatch.setattr(runs, "train_all", lambda *args: None)
    again = run_suite(plan, quiet, nothing)
    for cell, rows in records.items():
        for name, row_record in rows.items():
            np.testing.assert_array_equal(again[cell][name].columns["J"], row_record.columns["J"])
    with pytest.raises(ValueError, match="--resume"):
        check_folder(replace(plan, episodes_asked=3), resume=False)
    check_folder(replace(plan, episodes_asked=3), resume=True)
    with pytest.raises(AssertionError, match="again"):
        run_suite(replace(plan, episodes_asked=3), quiet, nothing, resume=True)
    cell = plan.suite.cells[0]
    other = replace(plan.suite, cells=(replace(cell, options={**cell.options, "load": 0.8}),))
    with pytest.raises(AssertionError, match="again"):
        run_suite(replace(plan, suite=replace(other, claims=())), quiet, nothing, resume=True)
    monkeypatch.setattr(en, "code", lambda: {"sources": "other"})
    with pytest.raises(AssertionError, match="again"):
        run_suite(plan, quiet, nothing, resume=True)


def test_folders_without_a_plan_are_refused(tmp_path):
    plan = SuitePlan(suite("pet", True), tmp_path / "pet", small=True)
    check_folder(plan, resume=False)
    (tmp_path / "pet").mkdir()
    (tmp_path / "pet" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"plan\.json"):
        check_folder(plan, resume=True)


def test_options_that_papers_do_not_have_are_refused(tmp_path):
    assert "no such option with papers" in failure(
        "bench", "pet", "--sealed", "--out", tmp_path / "x"
    )
    assert "unknown algorithm" in failure("bench", "pet", "--algos", "ptt", "--out", tmp_path / "x")
    setting = ("--algos", "pet:reading,static:5,200,0.3", "--out", tmp_path / "x")
    assert "'static:5,200,0.3'" in failure("bench", "pet", *setting)
    assert "papers" in failure("bench", "websearch-v0", "--resume", "--out", tmp_path / "x")
    assert "unknown cell" in failure("bench", "pet", "--cells", "web", "--out", tmp_path / "x")
    assert "papers" in failure("bench", "websearch-v0", "--cells", "a", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_the_command_prints_the_claims(done, tmp_path, monkeypatch):
    """The plan is done already, so nothing is run."""
    plan, _ = done
    monkeypatch.setitem(SUITES, "pet", lambda small: plan.suite)
    monkeypatch.setattr(runs, "SuitePlan", lambda *args, **options: plan)
    file = tmp_path / "results.json"
    answer = run("bench", "pet", "--small", "--out", plan.out.parent, "--results", file)
    assert answer.exit_code == 0, answer.output
    assert "| overall mean FCT, PET against SECN1 | Fig. 4(a) | −5.8 % |" in answer.stdout
    assert json.loads(file.read_text())["papers"][0]["protocol"]["seeds"] == 1
    assert (plan.out.parent / "report.html").is_file()


@pytest.mark.slow
def test_the_report_is_rebuilt_from_records(done):
    plan, records = done
    paper = outcome(plan.suite, records, protocol(plan))
    out = plan.out.parent
    pb.publish([paper], out, MACHINE, "command")
    (out / "report.html").unlink()
    assert holds_papers(out)
    answer = run("report", out)
    assert answer.exit_code == 0, answer.output
    assert 'id="pet-overall-secn1"' in (out / "report.html").read_text()
