"""What searches tell learners: costs that ship, and those of other lists of settings."""

from __future__ import annotations

import numpy as np
import pytest

from ecn_marl.baselines.oracle import group_names
from ecn_marl.baselines.search import SearchResult
from ecn_marl.envs.registry import make
from ecn_marl.experiments import recipes as rc
from ecn_marl.experiments import taught

SCENARIO = rc.LEARNT[0]


def test_costs_of_all_scenarios_ship(monkeypatch):
    """No search; the best setting of every phase and group costs nothing."""
    monkeypatch.setattr(taught.searches, "find", lambda *a: pytest.fail("searched"))
    recipe = taught.with_teacher(rc.recipe(SCENARIO, "generalist"), SCENARIO, {})
    names = (SCENARIO, *recipe.settings["also"])
    assert names == rc.LEARNT
    for name, costs in zip(names, recipe.settings["costs"], strict=True):
        table = np.array(costs)
        env = make(name)
        places = (len(env.phase_names), len(group_names(env)))
        assert table.shape == (*places, len(rc.DEPTHS)), name
        assert (table.min(2) == 0.0).all(), name
    racks = group_names(make(SCENARIO)).index("rack")
    restore, serve = np.array(recipe.settings["costs"][0])[:, racks]
    assert restore[0] > 0.3 and serve[-1] > 0.3, "shallow while restoring, deep while serving"
    assert restore.argmin() == 8 and serve.argmin() == 0


def test_another_list_of_settings_is_searched(monkeypatch, tmp_path):
    """In each scenario, in a folder of its own; J is twice as high with the second setting."""
    asked = []

    def find(name, scenario, options, effort, folder, progress):
        asked.append((name, scenario, [tuple(x) for x in effort.grid], folder))
        env = make(scenario)
        best = np.tile(effort.grid[0], (len(env.phase_names), len(group_names(env)), 1))
        rows = [{"settings": best.tolist(), "episodes": 16, "J": 3.0, "invalid": []}]
        for place in np.ndindex(best.shape[:2]):
            other = best.copy()
            other[place] = effort.grid[1]
            rows.append({"settings": other.tolist(), "episodes": 16, "J": 6.0, "invalid": []})
        return SearchResult(name, best, 3.0, 16, 1, tuple(rows))

    monkeypatch.setattr(taught.searches, "find", find)
    grid = ((5.0, 20.0, 1.0), (160.0, 640.0, 1.0))
    recipe = taught.with_teacher(
        rc.recipe(SCENARIO, "generalist"),
        SCENARIO,
        {"action_options": {"template": grid}},
        folder=tmp_path,
        settings={"also": ("websearch-v0",)},
    )
    both = (SCENARIO, "websearch-v0")
    assert asked == [("oracle:choices", name, list(grid), tmp_path / name) for name in both]
    row = (0.0, round(float(np.log(2.0)), taught.DIGITS))
    of_phase = (row,) * 3, (row,) * 2  # as many as groups of ports
    assert recipe.settings["costs"] == ((of_phase[0],) * 2, of_phase[1:])


def test_costs_of_ones_own_are_kept():
    recipe = rc.recipe(SCENARIO, "generalist")
    assert taught.with_teacher(recipe, SCENARIO, {}, settings={"costs": ()}) is recipe
    ippo = rc.recipe(SCENARIO, "ippo")
    assert taught.with_teacher(ippo, SCENARIO, {}) is ippo
