"""Random search over settings: its log, its budget, and that it goes on after a stop."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from commands import failure, run
from small import SMALL, register

import ecn_marl
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.training.loop import TrainingDiverged
from ecn_marl.errors import FolderInUse
from ecn_marl.experiments import tune as tn
from ecn_marl.experiments.recipes import LEARNERS, Tuning

SHARED = {"envs": 2, "rollout": 4, "epochs": 1, "minibatches": 2, "hidden": (4,)}


@pytest.fixture(scope="module", autouse=True)
def small_scenario():
    register()


def search(**changes):
    fields_ = {"trials": 2, "steps": 16, "episodes": 2, "seeds": 2, "settings": SHARED}
    return tn.Search(SMALL, "pet", **(fields_ | changes))


def test_spaces_have_settings_of_their_trainers():
    assert set(tn.SPACES) == set(ALGORITHMS.builtin)
    for algorithm, space in tn.SPACES.items():
        setting_names = {f.name for f in fields(ALGORITHMS[algorithm].config_class)}
        assert set(space) <= setting_names
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
    small_search = search()
    assert small_search.drawn(0) == {}, "the recipe as it is"
    assert small_search.drawn(1) == small_search.drawn(1) != small_search.drawn(2)
    assert not set(SHARED) & set(small_search.drawn(1))
    fixed = search(settings=SHARED | {"actor_lr": 1e-3}).drawn(1)
    assert fixed | {"actor_lr": small_search.drawn(1)["actor_lr"]} == small_search.drawn(1)


def test_costs_are_searched_in_the_scenarios_that_were_asked_for(monkeypatch):
    asked = []

    def taught(recipe, *where, settings):
        asked.append(settings.get("also"))
        return recipe

    monkeypatch.setattr(tn, "with_teacher", taught)
    settings = {"envs": 2, "also": ("websearch-v0",)}
    assert replace(search(), learner="generalist", settings=settings).recipe.taught
    assert asked[-1] == ("websearch-v0",)


@pytest.fixture(scope="module")
def done(tmp_path_factory, small_scenario):
    """One trial, trained; `test_trials_are_trained_with_what_they_drew` has several."""
    out, one = tmp_path_factory.mktemp("tune") / "t", search(trials=1)
    return one, out, tn.tune(one, out)


def test_result_and_log(done):
    finished, out, result = done
    rows = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert rows == result["trials"]
    assert [(row["trial"], row["settings"]) for row in rows] == [(0, finished.drawn(0))]
    assert result["winner"] == rows[0]
    assert all(row["J"] >= 1.0 and row["seconds"] > 0 for row in rows)
    budget = result["budget"]
    assert (budget["trials"], budget["steps"], budget["episodes"]) == (1, 16, 2)
    assert budget["steps_in_all"] == 32
    assert json.loads((out / "result.json").read_text()) == result
    assert not list((out / "trials").iterdir()), "runs of finished trials are gone"


def test_trials_are_trained_with_what_they_drew(tmp_path, monkeypatch):
    """The one with the lowest J wins."""
    trained = []
    monkeypatch.setattr(tn, "train_run", lambda *_, **request: trained.append(request))
    monkeypatch.setattr(tn, "_score", lambda search, run: (3.0, 1.5, 2.0)[len(trained) - 1])
    three = search(trials=3)
    result = tn.tune(three, tmp_path / "t")
    rows = (tmp_path / "t" / "trials.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == result["trials"]
    for i, (row, request) in enumerate(zip(result["trials"], trained, strict=True)):
        drawn = three.drawn(i)
        assert (row["trial"], row["settings"]) == (i, json.loads(json.dumps(drawn)))
        assert (drawn | SHARED).items() <= request["settings"].items()
        assert (request["seed"], request["seeds"], request["steps"]) == (2 * i, 2, 16)
    assert result["winner"] == result["trials"][1] and drawn
    assert result["budget"]["steps_in_all"] == 3 * 2 * 16


def test_finished_trials_are_not_repeated(done, monkeypatch):
    finished, out, result = done

    def never(*args, **kwargs):
        raise AssertionError("trained again")

    monkeypatch.setattr(tn, "train_run", never)
    assert tn.tune(finished, out)["trials"] == result["trials"]
    with pytest.raises(AssertionError, match="again"):
        tn.tune(replace(finished, trials=2), out)  # one more, which is not there
    with pytest.raises(ValueError, match="another search"):
        tn.tune(replace(finished, steps=24), out)


def test_a_killed_search_goes_on_after_its_last_whole_line(tmp_path, monkeypatch):
    """Trials that are in the log are kept, the one that was cut short is run again."""
    ran = []

    def trial(search, out, number, show):
        ran.append(number)
        if ran == [0, 1]:
            raise KeyboardInterrupt
        return {"trial": number, "settings": search.drawn(number), "J": 3.0, "seconds": 0.0}

    monkeypatch.setattr(tn, "_trial", trial)
    killed, out = search(trials=3), tmp_path / "t"
    with pytest.raises(KeyboardInterrupt):
        tn.tune(killed, out)
    with (out / "trials.jsonl").open("a") as file:
        file.write('{"trial": 1, "set')  # a line cut short
    again = tn.tune(killed, out)
    assert [row["trial"] for row in again["trials"]] == [0, 1, 2]
    assert ran == [0, 1, 1, 2]
    lines = (out / "trials.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == again["trials"]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_search_ends_with_the_same_result(tmp_path, monkeypatch):
    finished = search()
    result = tn.tune(finished, tmp_path / "whole")
    out, scored = tmp_path / "t", tn._score
    calls = []

    def killed(search, run):
        calls.append(run)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return scored(search, run)

    monkeypatch.setattr(tn, "_score", killed)
    with pytest.raises(KeyboardInterrupt):
        tn.tune(finished, out)
    assert len((out / "trials.jsonl").read_text().splitlines()) == 1
    with (out / "trials.jsonl").open("a") as file:
        file.write('{"trial": 1, "set')  # a line cut short
    again = tn.tune(finished, out)
    assert [row["trial"] for row in again["trials"]] == [0, 1]
    values = [[row["J"] for row in outcome["trials"]] for outcome in (again, result)]
    np.testing.assert_allclose(*values, rtol=1e-5)


def test_diverged_trials_are_noted_and_cannot_win(tmp_path, monkeypatch):
    def sometimes(*args, seed, **kwargs):
        if seed == 0:
            raise TrainingDiverged("loss = nan")

    monkeypatch.setattr(tn, "train_run", sometimes)
    monkeypatch.setattr(tn, "_score", lambda search, run: 2.0)
    result = tn.tune(search(trials=2), tmp_path / "t")
    assert result["trials"][0]["J"] is None and "nan" in result["trials"][0]["error"]
    assert result["winner"]["trial"] == 1
    monkeypatch.setattr(tn, "train_run", lambda *a, **k: sometimes(*a, **{**k, "seed": 0}))
    with pytest.raises(ValueError, match="at least one that can be scored"):
        tn.tune(search(trials=1), tmp_path / "u")


def test_the_winner_is_printed_as_a_recipe(done):
    finished, _, result = done
    winner = tn.winner_recipe(finished, result)
    assert winner.tuning == Tuning(1, 16, 2, 2, SMALL)
    names = {"LEARNERS": LEARNERS, "Tuning": Tuning, "with_settings": tn.with_settings}
    again = eval("{" + tn.recipe_text("pet", winner) + "}", names)  # the text is ours
    assert again["pet"].settings == {
        k: tuple(v) if isinstance(v, list) else v for k, v in winner.settings.items()
    }
    assert again["pet"].tuning == winner.tuning


def test_the_command(tmp_path, monkeypatch):
    """Its options reach the search, whose trials are those of `done`."""
    asked = []

    def trial(search, out, number, show):
        asked.append(search)
        return {"trial": number, "settings": {}, "J": 3.0, "seconds": 0.0}

    monkeypatch.setattr(tn, "_trial", trial)
    args = ["tune", SMALL, "pet", "--out", tmp_path / "t", "--trials", 1, "--steps", 64]
    args += ["--episodes", 2, "--envs", 1, "--max-steps", 6]
    shown = run(*args)
    assert shown.exit_code == 0, shown.output
    options, settings = {"max_steps": 6}, {"envs": 1}
    assert asked == [tn.Search(SMALL, "pet", 1, 64, 2, 2, options=options, settings=settings)]
    assert "trial 0 has the lowest J" in shown.stdout and '"pet": with_settings(' in shown.stdout
    assert "unknown learner 'ipo'" in failure("tune", SMALL, "ipo", "--out", tmp_path / "u")
    busy = tmp_path / "v"
    busy.mkdir()
    (busy / "x").write_text("")
    assert "out = " in failure("tune", SMALL, "pet", "--out", busy, "--trials", 1)


@dataclass(frozen=True)
class Settings:
    envs: int = 1
    steps_per_update: int = 4
    lr: float = 0.1


def own_trainer(**changes):
    """A user's trainer; these tests do not run it."""

    def init(self, key, params): ...
    def update(self, state, params): ...
    def act(self, actor, key, obs, greedy=False): ...

    members = {"config_class": Settings, "init": init, "update": update, "act": act}
    return type("Own", (ecn_marl.Trainer,), members | changes)


@pytest.fixture
def none_registered(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "registered", {})


def test_a_registered_trainer_is_tuned_over_the_space_that_it_declares(
    none_registered, monkeypatch, tmp_path
):
    ecn_marl.register_algorithm("own", own_trainer(space={"lr": tn.LogUniform(1e-3, 1e-1)}))

    def trial(search, out, number, show):
        drawn = search.drawn(number)
        return {"trial": number, "settings": drawn, "J": 3.0 - len(drawn), "seconds": 0.0}

    monkeypatch.setattr(tn, "_trial", trial)
    shown = run("tune", SMALL, "own", "--out", tmp_path / "t", "--trials", 2)
    assert shown.exit_code == 0, shown.output
    (option,) = [line for line in shown.stdout.splitlines() if line.startswith("--set lr=")]
    assert 1e-3 <= float(option.partition("=")[2]) <= 1e-1
    request = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert request["space"] == {"lr": ["LogUniform", {"low": 1e-3, "high": 1e-1, "digits": 2}]}
    assert request["own"], "another file that registers the trainer is another search"


def test_a_trainer_without_a_space_is_refused_with_the_reason(none_registered, tmp_path):
    ecn_marl.register_algorithm("own", own_trainer())
    message = failure("tune", SMALL, "own", "--out", tmp_path / "t")
    assert "learner = 'own'" in message and "its Trainer declares none (`space`)" in message


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"rate": tn.Choice((1,))}, "space has 'rate', Settings has envs, steps_per_update, lr"),
        ({"lr": (1e-3, 1e-1)}, r"space of lr is \(0.001, 0.1\), a LogUniform or Choice"),
        ([1], "space is list, a dict by setting"),
    ],
)
def test_a_wrong_space_is_named_at_registration(none_registered, space, message):
    with pytest.raises(ValueError, match=message):
        ecn_marl.register_algorithm("own", own_trainer(space=space))
    with pytest.raises(ValueError, match=r"LogUniform = .*0 < low <= high"):
        tn.LogUniform(0.0, 1.0)
    with pytest.raises(ValueError, match=r"Choice = .*at least one value"):
        tn.Choice(())


def test_bad_searches_are_named():
    for name in ("trials", "steps", "episodes", "seeds"):
        with pytest.raises(ValueError, match=f"{name} = 0"):
            search(**{name: 0})


def test_a_folder_has_one_search_at_a_time(tmp_path, monkeypatch):
    def at_work(running, out, show, workers):
        with pytest.raises(FolderInUse, match=r"in use by process .*tune"):
            tn.tune(running, out)
        return {}

    monkeypatch.setattr(tn, "_tune", at_work)
    assert tn.tune(search(), tmp_path / "t") == {}
    assert tn.tune(search(), tmp_path / "t") == {}, "nothing was left in the folder"


def test_settings_that_a_trial_would_draw_are_checked_before_any_is_run():
    """A GRU's minibatches are whole rollouts; of trials 1 to 7 some draw more than there are."""
    with pytest.raises(ValueError, match=r"minibatches of trial \d = 16 .*divisor of envs = 8"):
        tn.Search(SMALL, "ippo", trials=8, settings={"memory": 4})
    assert tn.Search(SMALL, "ippo", trials=8, settings={"memory": 4, "minibatches": 4}).trials == 8


def test_another_content_of_the_flow_list_is_another_search(tmp_path):
    """Trials on other traffic are not to stand beside each other under one name of a file."""
    file, asked = tmp_path / "flows.csv", []
    for size in (1000, 2000):
        rows = "".join(f"{i},{s},0,{size},{50_000 * i}\n" for i, s in enumerate((1, 2) * 8))
        file.write_text(f"flow_id,src,dst,size_B,start_ns\n{rows}")
        asked.append(search(options={"flows": str(file)}).request())
    assert asked[0] != asked[1]
    assert {x: y for x, y in asked[0].items() if x != "flows_sha256"} == {
        x: y for x, y in asked[1].items() if x != "flows_sha256"
    }
