"""`spread`: J and its parts under static settings."""

from __future__ import annotations

import numpy as np
import pytest
from commands import TINY, failure

import ecn_marl
from ecn_marl import register
from ecn_marl.baselines.evaluation.objective import geometric_means
from ecn_marl.envs.actions import EcnSetting
from ecn_marl.envs.objectives import Part
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.spread import NEAR, _figures, spread
from ecn_marl.render.spread_plot import spread_plot, spread_table
from ecn_marl.sim import Poisson, star
from ecn_marl.sim.traffic.collectives import all_to_all, stripe_read
from ecn_marl.sim.traffic.graphs import Graph

GRID = (EcnSetting(5.0, 10.0, 1.0), EcnSetting(100.0, 400.0, 0.2), EcnSetting(1e5, 2e5, 0.01))
NAME = "two-loops-v0"
POLICIES = ("dynamic:relative", "static:100,400,0.2")


def scenario() -> Scenario:
    """Two jobs into one host."""
    jobs = (
        Graph(all_to_all((0, 1, 2), 300_000), pause_us=50.0, pause_jitter=0.5),
        Graph(stripe_read((3, 4), 0, 900_000, 6), pause_us=20.0, start_us=80.0),
    )
    parts = (Part("exchange", 1.0, (0,), 100.0), Part("read", 3.0, (1,), 305.0))
    return Scenario(
        topology=star(5),
        traffic=(*jobs, Poisson(load=0.05)),
        dt_us=2.0,
        tick_steps=2,
        slots=48,
        max_steps=30,
        pfc=False,
        objective=parts,
    )


@pytest.fixture(scope="module")
def result():
    register(NAME, scenario, replace=True)
    return spread(NAME, policies=POLICIES, episodes=2, grid=GRID)


def test_the_numbers_are_those_of_an_evaluation_of_each_setting(result):
    """In the same episodes, by another way."""
    names = ["static:{:g},{:g},{:g}".format(*setting) for setting in GRID]
    evaluated = ecn_marl.evaluate(names, NAME, episodes=2, records=False, allow_flagged=True)
    rows = {tuple(row["setting"]): row for row in result["settings"]}
    for setting, name in zip(GRID, names, strict=True):
        columns = evaluated.records[name].columns
        for figure, column in (("J", "J"), ("exchange", "part:exchange"), ("read", "part:read")):
            expected = geometric_means(columns[column][0])
            assert rows[setting][figure] == pytest.approx(expected, rel=1e-5)


def test_policies_run_in_the_episodes_of_the_settings(result):
    """A setting that is named as a policy has the row that it has as a setting."""
    relative, fixed = result["policies"]
    row = next(row for row in result["settings"] if tuple(row["setting"]) == GRID[1])
    for figure in ("J", "exchange", "read"):
        assert fixed[figure] == pytest.approx(row[figure], rel=1e-5)
    assert relative["name"] == POLICIES[0] and relative["J"] > 0.0


def test_sums_follow_from_the_rows(result):
    rows = result["settings"]
    J = np.array([row["J"] for row in rows])
    assert (np.diff(J) >= 0.0).all() and result["worst"] == J[-1] / J[0] > 1.0
    assert result["near"] == ((1.0 + NEAR) * J[0] >= J).mean()
    lowest = {name: min(row[name] for row in rows) for name in ("exchange", "read")}
    apart = lowest["exchange"] ** 0.25 * lowest["read"] ** 0.75
    assert result["apart"] == pytest.approx(apart / J[0]) and result["apart"] <= 1.0 + 1e-12
    assert result["parts"] == ["exchange", "read"]


def test_settings_whose_episodes_do_not_count_are_left_out_of_the_sums():
    rows = [
        {"J": 2.0, "a": 4.0, "b": 1.0, "invalid": []},
        {"J": 2.01, "a": 1.0, "b": 3.0, "invalid": []},
        {"J": 1.0, "a": 0.1, "b": 0.1, "invalid": ["10 % of flows waited"]},
        {"J": 9.0, "a": 9.0, "b": 9.0, "invalid": ["10 % of flows waited"]},
    ]
    weights = {"a": 0.5, "b": 0.5}
    assert _figures(rows, weights) == {"worst": 2.01 / 2.0, "near": 1.0, "apart": 0.5}
    assert _figures(rows[2:], weights)["worst"] == 9.0, "all of them, if none counts"


def test_the_picture_has_both_parts_and_the_table_all_settings(result):
    assert spread_plot(result).startswith(b"\x89PNG")
    table = spread_table(result)
    assert [str(column.header) for column in table.columns][1:] == ["J", "exchange", "read"]
    assert table.row_count == len(POLICIES) + len(GRID) + 1
    assert spread_plot(result | {"parts": ["read"]}).startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny_scenario")
def test_what_cannot_be_run_is_one_clear_line():
    assert "did you mean" in failure("spread", "restore-v0")
    assert "did you mean" in failure("spread", TINY, "dynamic:relativ")
    assert "--plot" in failure("spread", TINY, "--plot", "/nowhere/picture.png")
