"""Random search over settings: its log, its budget, that it goes on where it was."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from commands import failure, run
from small import SMALL, register

from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.common.training import TrainingDiverged
from ecn_marl.errors import FolderInUse
from ecn_marl.experiments import tune as tn
from ecn_marl.experiments.recipes import LEARNERS, Tuning

SHARED = {"envs": 2, "rollout": 4, "epochs": 1, "minibatches": 2, "hidden": (4,)}


@pytest.fixture(scope="module", autouse=True)
def small_scenario():
    register()


def search(**changes):
    asked = {"trials": 3, "steps": 16, "episodes": 2, "seeds": 2, "settings": SHARED}
    return tn.Search(SMALL, "pet", **(asked | changes))


def test_spaces_are_of_settings_that_trainers_take():
    assert set(tn.SPACES) == set(ALGORITHMS)
    for algorithm, space in tn.SPACES.items():
        known = {f.name for f in fields(ALGORITHMS[algorithm].config_class)}
        assert set(space) <= known
        assert not {"envs", "shared", "pretrained"} & set(space)
        rng = np.random.default_rng(0)
        for _ in range(20):
            algorithm_config(algorithm, **{name: x.draw(rng) for name, x in space.items()})


def test_draws():
    rng = np.random.default_rng(1)
    drawn = np.array([tn.LogUniform(1e-4, 1e-2, digits=6).draw(rng) for _ in range(4000)])
    assert drawn.min() >= 1e-4 and drawn.max() <= 1e-2
    below = (drawn < 1e-3).mean()  # half of the range in logarithms
    assert below == pytest.approx(0.5, abs=4 * 0.5 / 4000**0.5)
    assert {tn.Choice((1, 2, 3)).draw(rng) for _ in range(100)} == {1, 2, 3}
    one = search()
    assert one.drawn(0) == {}, "the recipe as it is"
    assert one.drawn(1) == one.drawn(1) != one.drawn(2)
    assert not set(SHARED) & set(one.drawn(1))


@pytest.fixture(scope="module")
def done(tmp_path_factory, small_scenario):
    out = tmp_path_factory.mktemp("tune") / "t"
    return search(), out, tn.tune(search(), out)


def test_result_and_log(done):
    one, out, result = done
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert rows == result["trials"]
    assert [row["trial"] for row in rows] == [0, 1, 2]
    assert [row["settings"] for row in rows] == [
        json.loads(json.dumps(one.drawn(i))) for i in range(3)
    ]
    assert result["winner"] == min(rows, key=lambda row: row["J"])
    assert all(row["J"] >= 1.0 and row["seconds"] > 0 for row in rows)
    budget = result["budget"]
    assert (budget["trials"], budget["steps"], budget["episodes"]) == (3, 16, 2)
    assert budget["steps_in_all"] == 96
    assert json.loads((out / "result.json").read_text()) == result
    assert not list((out / "trials").iterdir()), "runs of finished trials are gone"


def test_finished_trials_are_not_repeated(done, monkeypatch):
    one, out, result = done

    def never(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(tn, "train_run", never)
    assert tn.tune(one, out)["trials"] == result["trials"]
    with pytest.raises(AssertionError, match="again"):
        tn.tune(replace(one, trials=4), out)  # one more, which is not there
    with pytest.raises(ValueError, match="another search"):
        tn.tune(replace(one, steps=24), out)


def test_a_killed_search_ends_as_if_it_had_not_been(done, tmp_path, monkeypatch):
    one, _, result = done
    out, scored = tmp_path / "t", tn._score
    calls = []

    def killed(search, run):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scored(search, run)

    monkeypatch.setattr(tn, "_score", killed)
    with pytest.raises(KeyboardInterrupt):
        tn.tune(one, out)
    assert len((out / "trials.jsonl").read_text().splitlines()) == 1
    with (out / "trials.jsonl").open("a") as file:
        file.write('{"trial": 1, "set')  # a line cut short
    again = tn.tune(one, out)
    assert [row["trial"] for row in again["trials"]] == [0, 1, 2]
    values = [[row["J"] for row in found["trials"]] for found in (again, result)]
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_diverged_trials_are_noted_and_cannot_win(tmp_path, monkeypatch):
    trained = tn.train_run

    def sometimes(*args, seed, **kwargs):
        if seed == 0:
            raise TrainingDiverged("loss = nan")
        return trained(*args, seed=seed, **kwargs)

    monkeypatch.setattr(tn, "train_run", sometimes)
    result = tn.tune(search(trials=2), tmp_path / "t")
    assert result["trials"][0]["J"] is None and "nan" in result["trials"][0]["error"]
    assert result["winner"]["trial"] == 1
    monkeypatch.setattr(tn, "train_run", lambda *a, **k: sometimes(*a, **{**k, "seed": 0}))
    with pytest.raises(ValueError, match="at least one that can be scored"):
        tn.tune(search(trials=1), tmp_path / "u")


def test_the_winner_is_printed_as_a_recipe(done):
    one, _, result = done
    found = tn.winner_recipe(one, result)
    assert found.tuning == Tuning(3, 16, 2, 2, SMALL)
    names = {"LEARNERS": LEARNERS, "Tuning": Tuning, "with_settings": tn.with_settings}
    again = eval("{" + tn.recipe_text("pet", found) + "}", names)  # the text is ours
    assert again["pet"].settings == {
        k: tuple(v) if isinstance(v, list) else v for k, v in found.settings.items()
    }
    assert again["pet"].tuning == found.tuning


def test_the_command(tmp_path):
    args = ["tune", SMALL, "pet", "--out", tmp_path / "t", "--trials", 1, "--steps", 64]
    args += ["--episodes", 2, "--envs", 1, "--max-steps", 6]
    shown = run(*args)
    assert shown.exit_code == 0, shown.output
    assert "trial 0 has the lowest J" in shown.stdout and '"pet": with_settings(' in shown.stdout
    assert "unknown learner 'ipo'" in failure("tune", SMALL, "ipo", "--out", tmp_path / "u")
    busy = tmp_path / "v"
    busy.mkdir()
    (busy / "x").write_text("")
    assert "out = " in failure("tune", SMALL, "pet", "--out", busy, "--trials", 1)


def test_bad_searches_are_named():
    for name in ("trials", "steps", "episodes", "seeds"):
        with pytest.raises(ValueError, match=f"{name} = 0"):
            search(**{name: 0})


def test_a_folder_has_one_search_at_a_time(tmp_path, monkeypatch):
    def at_work(one, out, show):
        with pytest.raises(FolderInUse, match=r"in use by process .*tune"):
            tn.tune(one, out)
        return {}

    monkeypatch.setattr(tn, "_tune", at_work)
    assert tn.tune(search(), tmp_path / "t") == {}
    assert tn.tune(search(), tmp_path / "t") == {}, "nothing was left in the folder"
