"""The scripts that learn in other frameworks; each runs where its extra is installed."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# What has to be installed, the script, its options.
SCRIPTS = [
    ("stable_baselines3", "sb3_ppo", "--updates 30"),
    ("torchrl", "torchrl_ppo", "--updates 30"),
    ("jaxmarl", "jaxmarl_ippo", "--updates 40"),
    ("ray.rllib", "rllib_ppo", "--updates 30"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("needs", "name", "options"), SCRIPTS, ids=[row[1] for row in SCRIPTS])
def test_it_learns_and_prints_the_table(needs, name, options, capfd, monkeypatch):
    pytest.importorskip(needs)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, example)  # flax looks its classes up there
    spec.loader.exec_module(example)
    result = example.main([*options.split(), "--episodes", "32"])
    learner, *others = result["policies"]
    for other in others:
        low = learner["reward"]["mean"] - learner["reward"]["ci95"]
        assert low > other["reward"]["mean"] + other["reward"]["ci95"], result["policies"]
    sys.stdout.flush()  # jaxmarl has put another one there
    out = capfd.readouterr().out
    assert all(row["name"] in out for row in result["policies"])
    assert "nan" not in out


@pytest.mark.parametrize("name", ["sb3_ppo", "rllib_ppo"])
def test_before_an_episode_has_ended_there_is_no_nan(name):
    """The function that says it, without the framework that its script imports."""
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    report = next(x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == "report")
    space = {"math": math}
    exec(compile(ast.Module([report], []), name, "exec"), space)  # the script is ours
    assert space["report"](float("nan")) == "no episode has ended yet"
    assert "0.25" in space["report"](0.25)
