"""Reference lines of learning curves are measured in the same way as the curve's merits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small import SMALL, register

import ecn_marl
from ecn_marl.baselines.evaluation.merit import Merits, episode_merits, merit_function
from ecn_marl.baselines.static import Static
from ecn_marl.experiments import curves as cv
from ecn_marl.experiments.searches import shipped_search

VIEW = {"interval_us": 250.0, "max_steps": 4, "features": "queue"}
CONFIG = {
    **{"algorithm": "ippo", "scenario": SMALL, "options": VIEW, "settings": {"rollout": 4}},
    **{"seed": 3, "seeds": 1, "eval_episodes": 3, "best_by": "objective"},
    **{"steps": 8, "versions": {}},
}


@pytest.fixture(scope="module", autouse=True)
def small_scenario():
    register()


@pytest.fixture(scope="module")
def merits(small_scenario):
    return cv.reference_merits(CONFIG)


class Never:
    """A learner that learnt to play SECN1."""

    def controller(self, actor, env):
        return Static(env, env.default_params, "secn1")


def test_a_reference_has_the_merit_of_a_learner_that_plays_it(merits):
    """The run decides every fifth of the scenario's intervals; J is of whole episodes."""
    env = ecn_marl.make(SMALL, **VIEW)
    state = type("State", (), {"actor": ()})
    by = {"episodes": CONFIG["eval_episodes"], "seed": CONFIG["seed"], "by": "objective"}
    played = merit_function(Never(), env, env.default_params, **by)(state)
    assert list(merits) == ["static:secn1"]
    np.testing.assert_allclose(merits["static:secn1"][:3], played[:3], rtol=1e-4)
    value, low, high, refused = merits["static:secn1"]
    assert not refused
    assert low[0] < value[0] < high[0] < -1.0, "minus a slowdown, in its interval"


def test_a_run_keeps_its_references(merits, tmp_path, monkeypatch):
    monkeypatch.setattr(cv, "reference_merits", lambda config, show: merits)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    row = {"update": 1, "steps": 8, "merit": -2.0, "reward": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    cv.draw_learning_curve(tmp_path)
    assert (tmp_path / cv.CURVE).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(cv, "reference_merits", None)  # not measured again
    assert cv.references(tmp_path) == {"SECN1 (5,200,0.01)": merits["static:secn1"].value[0]}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"eval_episodes": 4}))
    with pytest.raises(TypeError):
        cv.references(tmp_path)  # other episodes are other merits


def test_searches_that_ship_are_used_for_their_own_episodes_only():
    run = CONFIG | {"scenario": "restore-serve-v0", "options": {"actions": "discrete"}}
    settings_of = cv.reference_settings(run)
    assert list(settings_of) == ["static:secn1", "static:best", "oracle"]
    assert {settings.shape for settings in settings_of.values()} == {(2, 3, 3)}
    np.testing.assert_array_equal(
        settings_of["static:secn1"], np.full((2, 3, 3), [5.0, 200.0, 0.01])
    )
    shorter = run | {"options": {"max_steps": 8}}
    assert list(cv.reference_settings(shorter)) == ["static:secn1"]
    assert shipped_search("static:best", SMALL, {}) is None


def test_references_that_do_not_count_are_left_out(small_scenario):
    crowded = CONFIG | {"options": VIEW | {"slots": 6}}
    assert cv.reference_merits(crowded) == {}
    assert list(cv.reference_merits(crowded | {"allow_flagged": True})) == ["static:secn1"]


def test_merits_of_which_a_policy_does_not_count_are_refused():
    """The second of two policies had flows that waited for a slot: 3 of 1000 in all episodes."""
    rewards, deferred = np.ones((2, 3)), np.array([[0, 0, 0], [0, 3, 0]])
    metrics = {
        "flags": np.where(deferred > 0, 1, 0),
        "deferred": deferred,
        "waiting": 0 * deferred,
        "offered": np.array([[300, 400, 300]] * 2),
    }
    refused = episode_merits("reward", rewards, metrics)
    assert refused.refused == (
        "0.3 % of flows deferred or waiting (allowed: 0.1 %; cure: more `slots`)"
    )
    assert not episode_merits("reward", rewards, metrics, allow_flagged=True).refused
    assert not episode_merits("reward", rewards, metrics | {"deferred": deferred // 3}).refused


def test_merits_have_an_interval_over_episodes():
    rewards = np.array([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0]])
    value, low, high, _ = episode_merits("reward", rewards, {})
    np.testing.assert_allclose(value, [2, 4])
    half = 4.3027 / 3**0.5  # Student's t with 2 degrees of freedom, standard deviation 1
    np.testing.assert_allclose([value - low, high - value], [[half, 0], [half, 0]], rtol=1e-4)
    assert episode_merits("reward", rewards[:, :1], {}) == Merits(pytest.approx([1.0, 4.0]))
