"""Interaction: best responses and costs against tables by hand; `play` against `evaluate`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.objective import episode_objective
from ecn_marl.baselines.oracle import group_names, port_groups
from ecn_marl.baselines.static import Static
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.headroom import headroom
from ecn_marl.experiments.hindsight import hindsight
from ecn_marl.experiments.interaction import (
    BestResponses,
    between_groups,
    play,
)
from ecn_marl.render.headroom_table import interaction_table
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline

LINE = Timeline((500.0, 500.0), names=("load", "serve"))
SCENARIO = Scenario(
    topology=star(3),
    traffic=(
        FlowSets(LINE, phase=0, pairs=((0, 2), (1, 2)), fill=2.0, start_us=100.0),
        FlowSets(LINE, phase=1, pairs=((0, 1),), fill=2.0, start_us=100.0),
        Requests(LINE, per_us=(0.02, 0.02), sources=(0, 1, 2), destinations=(1, 2), width=4),
    ),
    slots=32,
    max_steps=20,
    pfc=False,
    host_groups=(HostGroup("receiver", ("host2",)),),
)
SETTINGS = (EcnSetting(5, 10, 1.0), EcnSetting(160, 320, 0.1))


@pytest.fixture(scope="module")
def env():
    return make(SCENARIO)


def table(rows, noise=0.0, episodes=40):
    """Responses to means written by hand, with independent noise in every run."""
    rng = np.random.default_rng(3)
    mean = np.asarray(rows)[..., None]
    J = mean * np.exp(noise * rng.normal(size=(*np.shape(rows), episodes)))
    return BestResponses(("a", "b"), SETTINGS, J)


def test_matching_best_responses_interact():
    """Against b's first setting a's first is better by 10 %; against b's second, a's second."""
    responses = table([[1.0, 1.25], [1.1, 1.0]], noise=0.01)
    np.testing.assert_array_equal(responses.best(0), [0, 1])
    np.testing.assert_array_equal(responses.best(1), [0, 1])
    regrets = {(r["here"], r["there"]): r for r in responses.regrets(0)}
    assert regrets.keys() == {(0, 1), (1, 0)}
    assert regrets[0, 1]["cost"] == pytest.approx(0.10, abs=0.01)
    assert regrets[1, 0]["cost"] == pytest.approx(0.25, abs=0.01)
    assert all(r["low"] < r["cost"] < r["high"] for r in regrets.values())
    assert responses.as_dict()["interacts"] == [True, True]


def test_one_best_setting_does_not_interact():
    same = table([[1.0, 1.2], [1.1, 1.4]], noise=0.01)
    np.testing.assert_array_equal(same.best(0), [0, 0])
    assert same.regrets(0) == [] and not same.as_dict()["interacts"][0]


def test_noise_is_no_interaction():
    """Of 200 tables without any effect, at most four seem to interact."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        J = np.exp(0.1 * rng.normal(size=(2, 2, 16)))
        wrong += BestResponses(("a", "b"), SETTINGS, J).as_dict()["interacts"][0]
    assert wrong <= 4  # both costs above 2.5 % quantiles, where answers differ at all


def test_the_interval_of_a_cost_is_paired():
    """J differs tenfold between episodes, the ratio of settings does not."""
    level = np.geomspace(1.0, 10.0, 20)
    J = np.stack([np.stack([level, 1.2 * level]), np.stack([1.1 * level, level])])
    regrets = BestResponses(("a", "b"), SETTINGS, J).regrets(0)
    assert regrets[0]["low"] == pytest.approx(0.1) and regrets[0]["high"] == pytest.approx(0.1)


@pytest.mark.thorough
def test_play_is_evaluate(env):
    """A table of one setting everywhere earns what a static controller earns."""
    tables = np.broadcast_to(np.array(SETTINGS)[:, None, None], (2, 2, 3, 3))
    got = play(env, tables, 5, seed=4, batch=4)
    params = env.default_params
    for i, setting in enumerate(SETTINGS):
        static = Static(env, params, ",".join(str(x) for x in setting))
        want = evaluate(env, params, static, name="x", episodes=5, seed=4).episodes
        for name, values in want.items():
            np.testing.assert_allclose(got[name][i], values, rtol=1e-5, err_msg=name)


def test_groups_get_their_settings_and_the_rest_the_base(env):
    """Every pair of groups in every phase beside `play` of thresholds written down by hand."""
    names, phases = group_names(env), env.phase_names
    assert len(names) == 2 and len(phases) == 2
    rng = np.random.default_rng(0)
    base = rng.choice(np.asarray(SETTINGS), (len(phases), len(names)))
    rows = between_groups(env, SETTINGS, 4, base=base, seed=4)
    assert [(row["phase"], *row["groups"]) for row in rows] == [(p, *names) for p in phases]
    first, second = (np.asarray(port_groups(env)) == name for name in names)
    tables = np.empty((2, 2, 2, 3, 3))  # settings of both groups, phase, port, setting
    tables[:, :, 0, first], tables[:, :, 0, second] = base[0]
    for i, j in np.ndindex(2, 2):
        tables[i, j, 1, first], tables[i, j, 1, second] = SETTINGS[i], SETTINGS[j]
    metrics = play(env, tables.reshape(4, 2, 3, 3), 4, seed=4)
    J = episode_objective(metrics)["J"].reshape(2, 2, 4)
    assert (J[1, 0] != J[0, 0]).any() and (J[1, 0] != J[1, 1]).any()
    want = BestResponses((names[0], names[1]), SETTINGS, J).as_dict()
    assert rows[1] == {"phase": phases[1], **want} and want["invalid"] == []


def test_wrong_arguments_are_named(env):
    base = np.zeros((2, 2, 3))
    with pytest.raises(ValueError, match="episodes = 3 is not allowed: expected an integer >= 4"):
        between_groups(env, SETTINGS, 3, base=base)
    with pytest.raises(ValueError, match=r"settings = .*at least two settings"):
        between_groups(env, SETTINGS[:1], base=base)
    with pytest.raises(ValueError, match="several groups"):
        between_groups(make("incast-v0"), SETTINGS, base=np.zeros((1, 1, 3)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"episodes": 3, "interaction": 2}, r"episodes = 3 .* >= 4"),
        ({"episodes": 8, "interaction": 2}, r"interaction = 2 .* >= 4 and <= 8"),
        ({"episodes": 1, "hindsight": 1}, r"episodes = 1 .* >= 2"),
    ],
)
def test_too_few_episodes_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        headroom("incast-v0", **wrong)


def test_costs_are_the_larger_ones_of_cases_that_both_cost():
    found = table([[1.0, 1.25], [1.1, 1.0]], noise=0.01).as_dict()
    assert found["best"] == [[0, 1], [0, 1]] and found["interacts"] == [True, True]
    assert found["cost"][0]["cost"] == pytest.approx(0.25, abs=0.01)
    none = table([[1.0, 1.2], [1.1, 1.4]], noise=0.01).as_dict()
    assert none["interacts"] == [False, False] and none["cost"] == [None, None]


def test_runs_that_do_not_count_say_so():
    """Four slots are too few: flows wait, and both searches and the table give the reason."""
    few = make(replace(SCENARIO, slots=4))
    base = np.full((2, 2, 3), SETTINGS[0])
    reason = between_groups(few, SETTINGS, 4, base=base, seed=4)[0]["invalid"][0]
    assert "of flows deferred or waiting" in reason
    (same,) = hindsight(few, SETTINGS, episodes=2, seed=4).as_dict()["invalid"]
    assert "of flows deferred or waiting" in same
    pair = {"phase": "load", "groups": ["a", "b"], "best": [[0, 1]] * 2, "cost": [None] * 2}
    found = {"episodes": 4, "settings": SETTINGS, "pairs": [{**pair, "invalid": [reason]}] * 2}
    assert f"INVALID, best responses: {reason}." in str(interaction_table(found).caption)
