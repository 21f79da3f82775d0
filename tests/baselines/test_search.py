"""Searches for the settings of the reference policies, on an environment in closed form."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from handover import Handover, log_j
from toy import ToyEnv

from ecn_marl.baselines import search as sr
from ecn_marl.baselines.evaluation.episodes import roll_out
from ecn_marl.baselines.evaluation.objective import episode_objective, geometric_means
from ecn_marl.baselines.evaluation.streams import tuning_keys
from ecn_marl.baselines.oracle import Random, Rule, RuleSettings, Settings, labelled
from ecn_marl.envs.actions import EcnSetting, MultiDiscreteAction

KMIN = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
GRID = tuple(EcnSetting(k, 2 * k, 1.0) for k in KMIN)
EFFORT = sr.Effort(episodes=24, grid=GRID, thin=GRID)


def searched(env, effort=EFFORT):
    return sr.Search(env, env.default_params, effort, batch=16)


def test_static_search_finds_the_best_of_the_grid():
    result = searched(Handover()).find("static:best")
    best = min(KMIN, key=lambda k: log_j((k, k), (k, k)))
    assert result.settings.shape == (2, 2, 3)
    assert (result.settings == np.array([best, 2 * best, 1.0])).all()
    assert result.episodes == 24
    assert len(result.table) == len(GRID)
    assert {tuple(row["settings"][0][0]) for row in result.table} == set(GRID)
    assert result.table[0]["J"] == result.objective
    log_luck = [  # J is proportional to the root of an episode's luck
        0.5 * np.log(float(Handover().reset(jax.random.split(key)[0], None)[1].luck))
        for key in tuning_keys("search", 0, 24)
    ]
    expected = log_j((best, best), (best, best)) + np.mean(log_luck)
    assert np.log(result.objective) == pytest.approx(expected, abs=0.01)  # a bin of the histogram


def test_candidates_that_do_not_count_come_last():
    """Without the rule 80 KB wins the bulk phase; a tenth of its flows waits for a slot."""

    class Crowded(Handover):
        def episode_metrics(self, state, params):
            waited = 10.0 * (state.left == 0.0)  # Kmin of at least 80 KB in bulk
            metrics = super().episode_metrics(state, params)
            return metrics | {"offered": 100.0, "deferred": waited, "waiting": 0.0}

    free, crowded = searched(Handover()).find("oracle"), searched(Crowded()).find("oracle")
    assert (free.settings[0, 0, 0], crowded.settings[0, 0, 0]) == (80.0, 40.0)
    assert crowded.objective > free.objective
    full = [row for row in crowded.table if row["episodes"] == 24]
    counts = [not row["invalid"] for row in full]
    assert counts == sorted(counts, reverse=True) and {*counts} == {True, False}
    assert "10 % of flows deferred or waiting" in full[-1]["invalid"][0]


def test_a_search_reports_every_batch():
    """Candidates times episodes so far, up to all that were run."""
    reports = []
    env, effort = Handover(), replace(EFFORT, episodes=4)
    search = sr.Search(env, env.default_params, effort, batch=16)
    search.report_to(lambda done, note: reports.append((done, note)))
    result = search.find("static:best")
    counts = [done for done, _ in reports]
    assert len(counts) > 1 and np.diff(counts).min() > 0 and np.diff(counts).max() <= 16
    assert counts[-1] == result.runs and {note for _, note in reports} == {"searched"}


def test_oracle_search_switches_inside_the_run():
    """Alone, 20 KB is best for the bulk phase; its effect on the next phase makes 80 KB best."""
    assert log_j((20, 20), (5, 5)) > log_j((80, 80), (5, 5))
    result = searched(Handover()).find("oracle")
    pairs = {(a, b): log_j((a, a), (b, b)) for a, b in product(KMIN, KMIN)}
    best = min(pairs, key=pairs.__getitem__)
    assert best == (80.0, 5.0)
    assert result.settings[..., 0].tolist() == [[80.0, 80.0], [5.0, 5.0]]


def test_a_shipped_result_without_a_table_is_searched_again_for_it():
    """Shipped results have no table, which other searches (`static:ports`) start from."""
    complete = searched(Handover())
    shipped = replace(complete.find("static:best"), table=(), objective=1.0)
    search = searched(Handover())
    search.add(shipped)
    assert search.shortlist() == complete.shortlist()
    assert search.find("static:best").objective == 1.0, "the shipped result stays"


@pytest.mark.parametrize("combinations", [1, 256])
def test_oracle_by_coordinates_where_the_product_is_too_large(combinations):
    """Coordinate descent may miss the best pair, but is never worse than the static setting."""
    effort = sr.Effort(episodes=8, grid=GRID, thin=GRID, combinations=combinations)
    search = searched(Handover(), effort)
    result = search.find("oracle")
    assert result.settings[..., 0].tolist() == [[80.0, 80.0], [5.0, 5.0]]
    assert result.objective <= search.find("static:best").objective


def test_groups_of_ports_get_settings_of_their_own():
    env = Handover(phase_names=("all",), want=(5.0, 160.0))
    search = searched(env)
    result = search.find("static:ports")
    objectives = {(a, b): log_j((a, b), (a, b), (5.0, 160.0)) for a, b in product(KMIN, KMIN)}
    assert log_j(result.settings[0, :, 0], result.settings[0, :, 0], (5, 160)) <= min(
        objectives[(k, k)] for k in KMIN
    )
    assert result.objective <= search.find("static:best").objective
    phased = searched(Handover(want=(80.0, 160.0))).find("oracle:ports")
    assert phased.settings[..., 0].tolist() == [[80.0, 160.0], [5.0, 5.0]]


def test_without_groups_and_phases_all_are_the_best_static_setting():
    env = Handover(phase_names=("all",), port_groups=())
    search = searched(env)
    for name in ("static:ports", "oracle", "oracle:ports"):
        np.testing.assert_array_equal(
            search.find(name).settings, search.find("static:best").settings
        )


def test_rule_is_tuned():
    """Half a flow per 100 µs begins in bulk, four in serving: limits between these switch."""
    deep, shallow = (80.0, 160.0, 1.0), (5.0, 10.0, 1.0)
    rules = tuple(
        (*d, *s, x) for d, s, x in product((deep, shallow), (deep, shallow), (0.1, 2.0, 9.0))
    )
    search = searched(Handover(), sr.Effort(episodes=8, grid=GRID, rules=rules))
    result = search.find("rule")
    assert result.settings.tolist() == [*deep, *shallow, 2.0]
    found = labelled("rule", result.settings, Handover())
    assert found == {"deep": [*deep], "shallow": [*shallow], "limit": 2.0}
    assert result.runs == 12 * 8 and len(result.table) == 12
    grid = sr.rule_grid()
    assert grid.shape == (48, 7) and len({tuple(row) for row in grid}) == 48
    assert (grid[:3, 6] < 0.0).all() and (grid[3:, 6] > 0.0).all()


def test_choices_cost_what_they_cost_in_their_phase_at_their_group():
    """Beside the closed form; the searched list need not have more than a few settings."""
    want = (80.0, 160.0)
    found = searched(Handover(want=want)).find("oracle:choices")
    best = [[80.0, 160.0], [5.0, 5.0]]
    assert found.settings[..., 0].tolist() == best, "the oracle of this list"
    expected = np.empty((2, 2, len(KMIN)))
    for phase, group, i in np.ndindex(expected.shape):
        changed = np.array(best)
        changed[phase, group] = KMIN[i]
        expected[phase, group, i] = log_j(*changed, want) - log_j(*best, want)
    np.testing.assert_allclose(sr.costs_in(found, GRID), expected, atol=0.02)  # two bins
    again = sr.SearchResult.from_dict(json.loads(json.dumps(found.as_dict())))
    np.testing.assert_array_equal(sr.costs_in(again, GRID), sr.costs_in(found, GRID))


def test_a_choice_that_does_not_count_costs_as_much_as_the_worst():
    found = searched(Handover()).find("oracle:choices")
    costs = sr.costs_in(found, GRID)
    rows = [
        {**row, "invalid": ["too small"]} if row["settings"][0][0][0] == 40.0 else row
        for row in found.table
    ]
    marked = sr.costs_in(replace(found, table=tuple(rows)), GRID)
    first = costs[0, 0]
    assert first.argmax() != KMIN.index(40.0)
    assert marked[0, 0, KMIN.index(40.0)] == first.max()
    np.testing.assert_array_equal(np.delete(marked, 3, 2), np.delete(costs, 3, 2))


def test_settings_are_labelled_by_phase_and_group():
    """What is the same everywhere is named once; the rest says where it holds."""
    env = Handover()
    (first, second), groups = env.phase_names, list(dict.fromkeys(env.port_groups))
    one, two = [5.0, 10.0, 1.0], [80.0, 160.0, 0.1]
    same = np.array([[one, one], [one, one]])
    assert labelled("static:best", same, env) == {"all": {"all": one}}
    by_phase = labelled("oracle", np.array([[one, one], [two, two]]), env)
    assert by_phase == {first: {"all": one}, second: {"all": two}}
    by_group = labelled("static:ports", np.array([[one, two], [one, two]]), env)
    assert by_group == {"all": {groups[0]: one, groups[1]: two}}
    whole = labelled("oracle:ports", np.array([[one, two], [two, two]]), env)
    assert whole[first] == {groups[0]: one, groups[1]: two} and whole[second][groups[0]] == two


def test_rule_averages_the_flows_that_began():
    env = Handover(interval_us=50.0)
    settings = RuleSettings(jnp.array((80.0, 160.0, 0.1)), jnp.array((5.0, 10.0, 1.0)), 2.0)
    rule = Rule(env, env.default_params, settings)
    inputs = (jax.random.key(0), jnp.zeros((2, 1)))
    memory = rule.init()
    assert rule(*inputs, memory).kmin.tolist() == [80e3, 80e3]
    never_deep = Rule(env, env.default_params, replace(settings, limit=-1.0))
    assert never_deep(*inputs, memory).kmin.tolist() == [5e3, 5e3]
    memory = rule.observe(memory, {"flows_begun": jnp.array([1.0, 2.0])})  # 2 and 4 per 100 µs
    np.testing.assert_allclose(memory, [1.4, 2.8])
    chosen = rule(*inputs, memory)
    assert chosen.kmin.tolist() == [80e3, 5e3]
    np.testing.assert_allclose(chosen.pmax, [0.1, 1.0])
    np.testing.assert_allclose(
        rule.observe(memory, {"flows_begun": jnp.zeros(2)}), [0.3 * 1.4, 0.3 * 2.8], rtol=1e-6
    )
    with pytest.raises(ValueError, match="flows_begun"):
        rule.observe(memory, {})


def test_settings_must_fit_phases_and_groups():
    env = Handover()
    with pytest.raises(ValueError, match=r"settings shape = \(1, 2, 3\) .* \(2, 2, 3\)"):
        Settings(env, env.default_params, np.ones((1, 2, 3)))
    with pytest.raises(ValueError, match=r"port_groups = .* one name for each of 2 ports"):
        searched(Handover(port_groups=("a",)))


def test_halving_ends_with_all_episodes_and_drops_no_incumbent():
    env = Handover()
    trials = searched(env).trials("static:best")
    grid = [np.broadcast_to(np.array(s), (2, 2, 3)) for s in sr.static_grid()]
    incumbent = np.broadcast_to(np.array((640.0, 40960.0, 0.005)), (2, 2, 3))  # the worst of all
    finalists = sr.halving(trials, [incumbent, *grid], 24, finalists=4, keep=1)
    assert any((x == incumbent).all() for x in finalists)
    scores = geometric_means(trials.measure(finalists, 24))
    assert (np.diff(scores) >= 0).all()
    grid_scores = geometric_means(trials.measure(grid, 24))  # nothing is run twice
    assert trials.runs == 24 * len(grid)
    assert grid_scores.min() == pytest.approx(scores[0])


def test_measured_values_do_not_depend_on_the_batch():
    env = Handover()
    keys = tuning_keys("search", 3, 5)
    candidates = [np.broadcast_to(np.array(s), (2, 2, 3)) for s in GRID[:3]]
    measured = [
        sr.Trials(
            env, env.default_params, lambda x: Settings(env, env.default_params, x), keys, batch=b
        ).measure(candidates, 5)
        for b in (4, 64)
    ]
    np.testing.assert_allclose(*measured, rtol=1e-6)
    state, _, _ = roll_out(
        env, env.default_params, Settings(env, env.default_params, candidates[1]), keys[2]
    )
    single = episode_objective(jax.device_get(env.episode_metrics(state, None)))["J"]
    assert measured[0][1, 2] == pytest.approx(float(single), rel=1e-6)


def test_results_survive_json():
    result = searched(Handover()).find("oracle")
    again = sr.SearchResult.from_dict(json.loads(json.dumps(result.as_dict())))
    np.testing.assert_array_equal(again.settings, result.settings)
    assert again.as_dict() == result.as_dict()
    env = Handover()
    assert again.controller(env, env.default_params).ecn.kmin.shape == (2, 2)


def test_grid_is_broad_and_allowed():
    grid = sr.static_grid()
    assert len(set(grid)) == len(grid) >= 150
    assert all(0 < s.kmin_kb < s.kmax_kb and 0 < s.pmax <= 1 for s in grid)
    kmin = {s.kmin_kb for s in grid}
    assert (min(kmin), max(kmin)) == (2.5, 640.0)
    assert {0.005, 1.0} <= {s.pmax for s in grid}


def test_episodes_without_an_objective_are_left_out_of_all():
    values = np.array([[1.0, 4.0, np.nan], [np.nan, 9.0, 2.0]])
    np.testing.assert_allclose(geometric_means(values), [4.0, 9.0])
    with pytest.raises(ValueError, match="3 without J"):
        geometric_means(np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="slowdown_sum"):
        episode_objective({"flows_measured": np.ones(3)})


@pytest.mark.parametrize("field", ["episodes", "combinations", "sweeps"])
def test_bad_efforts_are_named(field):
    with pytest.raises(ValueError, match=f"{field} = 0"):
        sr.Effort(**{field: 0})
    with pytest.raises(ValueError, match="grid: Pmax = 2"):
        sr.Effort(grid=(EcnSetting(1.0, 2.0, 2.0),))
    with pytest.raises(ValueError, match="unknown policy to search for 'orakle'"):
        searched(Handover()).find("orakle")


def test_random_draws_every_action():
    env = ToyEnv(action=MultiDiscreteAction())
    act = jax.vmap(lambda key: Random(env)(key, jnp.zeros(())))
    drawn = np.asarray(act(jax.random.split(jax.random.key(0), 500)))
    assert drawn.shape == (500, 3, 3)
    for i, n in enumerate(env.action.nvec):
        counts = np.bincount(drawn[..., i].ravel(), minlength=n)
        assert len(counts) == n
        np.testing.assert_allclose(counts, 1500 / n, atol=5 * (1500 / n) ** 0.5)
