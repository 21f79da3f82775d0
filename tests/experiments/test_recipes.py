"""Recipes are as stated and fair; sides of splits are disjoint."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import ecn_marl
from ecn_marl.baselines.algorithms import ALGORITHMS, algorithm_config
from ecn_marl.baselines.haecn import HAECNConfig
from ecn_marl.baselines.search import static_grid
from ecn_marl.envs.registry import VIEW, make, scenarios
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.splits import SPLITS
from ecn_marl.experiments import recipes as rc
from ecn_marl.experiments.tune import SPACES
from ecn_marl.sim.simulator import Simulator

EXPERIMENTS = Path(ecn_marl.__file__).parent / "experiments"


def every_recipe():
    rows = [("default", name, recipe) for name, recipe in rc.LEARNERS.items()]
    for scenario, entries in rc.RECIPES.items():
        rows += [(scenario, name, recipe) for name, recipe in entries.items()]
    return rows


def test_recipes_fit_their_trainers():
    for _, name, recipe in every_recipe():
        assert recipe.algorithm in ALGORITHMS
        config = algorithm_config(recipe.algorithm, **recipe.settings)
        assert all(rc.steps_of(s) >= config.steps_per_update for s in (*rc.STEPS, "other-v0"))
        assert recipe.algorithm in SPACES, name
    assert {recipe.algorithm for recipe in rc.LEARNERS.values()} == set(ALGORITHMS)


def test_recipes_cannot_set_steps_or_the_task():
    names = {f.name for f in fields(rc.Recipe)}
    assert names == {"algorithm", "options", "settings", "tuning", "anneal", "taught"}
    task_fields = {f.name for f in fields(Scenario)} - {*VIEW, "reward", "reward_options"}
    assert not task_fields & set(rc.OPTIONS)
    for wrong in ("steps", "max_steps", "traffic", "load", "priority", "slowdown_weights"):
        with pytest.raises(ValueError, match=f"option of a recipe = '{wrong}'"):
            rc.Recipe("ippo", {wrong: 1})
    for kind in (ALGORITHMS[name].config_class for name in ALGORITHMS):
        assert not {"steps", "updates", "seeds"} & {f.name for f in fields(kind)}


def test_learning_rates_fall_over_the_whole_run():
    """They fall over whole updates, also with a trial's settings; those of papers do not fall."""
    ippo = rc.Recipe("ippo", {}, {"envs": 8, "rollout": 128}, anneal=True)
    assert ippo.settings_for(240_000)["anneal_updates"] == 235  # 234.4 updates of 8 * 128 steps
    assert ippo.settings_for(240_000, {"rollout": 64})["anneal_updates"] == 469
    assert ippo.settings_for(240_000, {"anneal_updates": 7})["anneal_updates"] == 7
    settings = ippo.settings_for(1, {"envs": 2})
    assert settings == {**ippo.settings, "envs": 2, "anneal_updates": 1}
    for name, recipe in rc.LEARNERS.items():
        assert ("anneal_updates" in recipe.settings_for(1)) is (name not in rc.PAPERS)


def test_budgets_are_equal():
    for scenario in (*rc.STEPS, *rc.RECIPES, "other-v0"):
        assert len(rc.budgets(scenario)) == 1, scenario
    untuned = {name for _, name, recipe in every_recipe() if recipe.tuning is None}
    free = {*rc.PAPERS, "gnn", "dagger", "sac", "pqn", "vdn", rc.GENERALIST}
    assert untuned == free, "settings that no search has paid for"


def test_unequal_budgets_are_detected(monkeypatch):
    a, b = (
        rc.with_settings(rc.LEARNERS["ippo"], {}, rc.Tuning(trials, 10, 4)) for trials in (3, 4)
    )
    monkeypatch.setattr(rc, "RECIPES", {"x": {"ippo": a, "mappo": b}})
    assert rc.budgets("x") == {a.tuning, b.tuning, rc.TUNED}


def test_recipes_of_papers_are_as_published():
    """Their own features and rewards, and the settings that the papers state."""
    assert not {name for recipes in rc.RECIPES.values() for name in recipes} & set(rc.PAPERS)
    views = {name: rc.LEARNERS[name].options for name in rc.PAPERS}
    assert {name: (x["features"], x["reward"]) for name, x in views.items()} == {
        "pet": ("pet", "pet"),
        "ddqn": ("acc", "acc"),
        "c-acc": ("acc", "acc"),
        "haecn": ("haecn", "haecn"),
    }
    assert all(not rc.LEARNERS[name].settings for name in rc.PAPERS)
    assert HAECNConfig().trigger_penalty == 0.05 and HAECNConfig().gamma == 0.98
    assert algorithm_config("ddqn").idle_gating is True
    for name, recipe in rc.LEARNERS.items():
        if name not in rc.PAPERS:
            assert recipe.options["reward"] in ("slowdown-shaped", "objective-shaped")
    assert len({recipe.options["interval_us"] for recipe in rc.LEARNERS.values()}) == 1


def test_action_lists_follow_from_the_range_of_the_hardware():
    """Kmin doubles per rung; every learner has the same list or range, which no search affects."""
    assert [s[0] for s in rc.DEPTHS] == pytest.approx([2.5 * 2**i for i in range(9)], rel=1e-3)
    assert all(s[1:] == (4 * s[0], 1.0) for s in rc.DEPTHS)
    for _, _, recipe in every_recipe():
        if recipe.options["actions"] == "box":
            assert recipe.options["action_options"]["kmin_kb"] == rc.KMIN_RANGE
        else:
            assert recipe.options["action_options"] == {"template": rc.DEPTHS}
    text = (EXPERIMENTS / "recipes.py").read_text()
    imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    own = {n.module: [x.name for x in n.names] for n in imports if "ecn_marl" in str(n.module)}
    assert own.pop("ecn_marl.baselines.algorithms") == [
        "ALGORITHMS",
        "algorithm_config",
        "check_agents",
    ]
    assert list(own) == ["ecn_marl._errors"]
    assert set(rc.DEPTHS) != {tuple(s) for s in static_grid()}


def test_unknown_learners_are_named():
    with pytest.raises(ValueError, match="unknown learner 'ipo'"):
        rc.recipe("websearch-v0", "ipo")


def fingerprint(scenario, options):
    """An environment as text: its network, traffic, senders, failures."""
    env = make(scenario, **options)
    keys = ("topology", "traffic", "transport", "failures", "slots")
    sim: Simulator = env.sim
    return repr([getattr(sim, key) for key in keys]) + repr(env.failing)


@pytest.mark.parametrize("name", SPLITS)
def test_sides_of_a_split_are_disjoint(name):
    split = SPLITS[name]
    assert split.scenario in scenarios()
    assert split.test, "nothing to be scored in"
    train = {"as it is": fingerprint(split.scenario, {})}
    train |= {key: fingerprint(split.scenario, make_it()) for key, make_it in split.train.items()}
    test = {key: fingerprint(split.scenario, make_it()) for key, make_it in split.test.items()}
    prints = [*train.values(), *test.values()]
    assert len(set(prints)) == len(prints)
    plain = make(split.scenario)
    for key, make_it in split.test.items():
        env = make(split.scenario, **make_it())
        assert (env.obs_dim, env.action) == (plain.obs_dim, plain.action), key
        assert env.default_params.sim.net.buffer[0] > 0, key  # PFC leaves something to share


def test_splits_are_frozen():
    """A change of a test variant needs a new version, and a change of this test."""
    from ecn_marl.envs.splits import SPLITS_VERSION

    assert SPLITS_VERSION == 3
    sides = {name: (sorted(s.train), sorted(s.test)) for name, s in SPLITS.items()}
    assert json.loads(json.dumps(sides)) == {
        "loads": [
            ["fill-90", "requests-120", "requests-150", "requests-35", "requests-80"],
            ["fill-110", "fill-75", "requests-200", "requests-25", "requests-50"],
        ],
        "sizes": [
            ["requests-1-to-50-KB", "requests-5-to-70-KB"],
            ["requests-1-to-10-KB", "requests-10-to-100-KB", "streams-12"],
        ],
        "rates": [["g150", "g35"], ["g200", "g25", "g400", "g50"]],
        "rtt": [["d15", "d35", "d45"], ["d10", "d20", "d60"]],
        "senders": [["hpcc-config", "hpcc-run", "np50us"], ["hpcc-paper", "mellanox", "sigcomm"]],
        "topology": [[], ["leaves-2-hosts-8", "leaves-4-hosts-4"]],
        "failures": [[], ["half-for-5-ms", "one-fails"]],
    }


def test_the_generalist_learns_in_no_test_variant():
    variants = {name.partition(":")[2] for name in rc.LEARNT if ":" in name}
    assert variants
    assert variants <= {f"{split}/{name}" for split, s in SPLITS.items() for name in s.train}


def test_a_variant_is_a_scenario():
    name = "restore-serve-v0:rates/g200"
    env = make(name, max_steps=7)
    options = SPLITS["rates"].test["g200"]()
    assert (env.name, env.horizon) == (name, 7)
    assert fingerprint(name, {}) == fingerprint("restore-serve-v0", options)
    with pytest.raises(ValueError, match="unknown variant of restore-serve-v0 'rates/g2000'"):
        make("restore-serve-v0:rates/g2000")


def test_links_of_the_failure_split_fail():
    split = SPLITS["failures"]
    env = make(split.scenario, **split.test["one-fails"]())
    net = env.default_params.sim.net
    steps = round(5000.0 / env.sim.dt_us)
    assert env.sim.failures and int((np.asarray(net.fail_step) == steps).sum()) == 2
    assert not make(split.scenario).sim.failures
