"""A learner is judged on its own reward: the best static setting of it, and the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import record

from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.static import Static
from ecn_marl.envs.registry import make
from ecn_marl.experiments import best_static as bs
from ecn_marl.experiments import own_reward as own
from ecn_marl.experiments.recipes import Recipe
from ecn_marl.experiments.records import Record
from ecn_marl.render.papers import own_flags

RECIPE = Recipe(
    "ippo",
    {
        **{"features": "pet", "reward": "pet", "actions": "multidiscrete"},
        "action_options": {"alpha_kb": 20.0},
    },
)
OPTIONS = {"max_steps": 40, "load": 0.8, "pfc": False}


@pytest.fixture(scope="module")
def found():
    keys = tuning_keys("report", 0, bs.EPISODES)
    return keys, bs.best_static("websearch-star-v0", OPTIONS, RECIPE, keys)


def test_it_is_the_best_of_what_the_learner_can_set(found):
    """By `evaluate` on the same episodes, which sums rewards in the environment instead."""
    keys, best = found
    env = make("websearch-star-v0", **OPTIONS, **RECIPE.options)
    params = env.default_params

    def earned(setting, keys):
        policy = Static(env, params, ",".join(map(repr, setting)))
        result = evaluate(env, params, policy, name="x", episodes=len(keys), keys=keys)
        return result.columns["reward"]

    np.testing.assert_allclose(earned(best.setting, keys), best.reward, rtol=1e-5)
    search = tuning_keys("search", 0, bs.EPISODES)
    deep = (5120.0, 10240.0, 0.01)
    assert earned(best.setting, search).mean() > earned(deep, search).mean()
    index = env.action.encode(*best.setting)
    assert tuple(env.action.describe(index)) == pytest.approx(best.setting)


def test_the_same_reward_is_searched_once(found, monkeypatch):
    keys, best = found
    monkeypatch.setattr(bs, "make", None)
    other = Recipe("ddqn", {**RECIPE.options, "features": "acc"})
    assert bs.best_static("websearch-star-v0", OPTIONS, other, keys) is best


@pytest.mark.parametrize(("less", "learnt"), [(9.0, False), (-9.0, True), (0.0, True)])
def test_learnt_is_what_the_margin_says(less, learnt):
    base = record("pet", seeds=3, noise=0.0)
    best = bs.BestStatic((20.0, 40.0, 1.0), 5, base.columns["reward"].mean(0) + less)
    judged = bs.with_own_reward(base, best, RECIPE)
    facts = own.own_reward(judged)
    assert facts["learnt"] is learnt and own.learnt(judged) is learnt
    # Records keep six digits of numbers of about 10, so two are off by 1e-5 together.
    assert facts["margin"]["value"] == pytest.approx(-less, abs=1e-5)
    assert facts["setting"] == [20.0, 40.0, 1.0]


@pytest.mark.parametrize(
    ("rewards", "growth"),
    [
        ([0.0, 0.0, 0.5, 0.5, 1.0, 1.0], 0.5),
        ([0.0] * 5 + [0.7, 0.7, 0.7], 0.7 / 1.4),  # parts beyond three equal thirds are the first
        ([0.0, 0.4, 0.8, 0.8, 0.8, 0.8], 0.0),
        ([1.0, 1.0, 1.0, 1.0, 0.8, 0.8], -0.25),
        ([-4.0, -4.0, -4.0, -4.0, -2.0, -2.0], 1.0),
    ],
)
def test_growth_is_of_the_last_third(rewards, growth):
    assert own.growth({"reward": rewards}) == pytest.approx(growth)
    judged = record("pet", seeds=2, noise=0.0)
    best = bs.BestStatic((20.0, 40.0, 1.0), 5, judged.columns["reward"].mean(0))
    judged = bs.with_own_reward(judged, best, RECIPE)
    judged.meta["rewards"] = {"reward": rewards}
    facts = own.own_reward(judged)
    assert facts["rising"] is (growth > own.FLAT)
    assert ("still rising" in own_flags(facts)) is facts["rising"]


def test_too_short_a_curve_has_no_growth():
    assert own.growth(None) is None and own.growth({"reward": [0.0] * 5}) is None


def test_rules_have_no_own_reward():
    assert own.own_reward(record("static:secn1")) is None and own.learnt(record("static:secn1"))
    assert isinstance(record("x"), Record)
