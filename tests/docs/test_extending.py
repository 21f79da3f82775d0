"""The recipes of docs/extending.md: short files that work from an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir
from functools import cache
from pathlib import Path

import code_blocks
import pytest
from commands import failure, run

import ecn_marl
from ecn_marl import _registry

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
LONGEST = 60
SMALLER = ("--env", "pfc=false", "--eval-every", "0")
"""More options of the training: without PFC, and merits of what is trained, which other tests have.
"""


def recipes() -> dict[str, tuple[str, list[str]]]:
    """By the name of a recipe's file, its text and its commands."""
    made: dict[str, tuple[str, list[str]]] = {}
    for language, text in code_blocks.blocks(PAGE.read_text()):
        if language == "python":
            name = re.match(r"# (\w+\.py): .*\n", text)[1]
            made[name] = (text, [])
        else:
            made[list(made)[-1]][1].extend(text.strip().splitlines())
    return made


RECIPES = recipes()


@pytest.fixture(scope="module", autouse=True)
def as_before():
    """What the recipes register is forgotten."""
    held = [(r, dict(r.registered), dict(r.origin)) for r in _registry.REGISTRIES.values()]
    yield
    for registry, registered, origin in held:
        registry.registered, registry.origin = registered, origin


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Runs a recipe by name, once, in a folder of all; returns the folder."""
    folder = tmp_path_factory.mktemp("own")

    @cache
    def ran(name):
        text, commands = RECIPES[name]
        (folder / name).write_text(text)
        with chdir(folder):
            for command in commands:
                program, *words = shlex.split(command)
                assert program == "ecn-marl"
                result = run(*words, *(SMALLER if words[:2] == ["train", "linear"] else ()))
                assert result.exit_code == 0, f"{command}\n{result.output}"
        return folder

    return ran


def test_there_are_five_and_they_are_short():
    assert list(RECIPES) == ["queue_peak.py", "calm.py", "ring.py", "aimd.py", "linear.py"]
    for name, (text, commands) in RECIPES.items():
        assert text.count("\n") <= LONGEST, name
        assert commands and f"--import {name}" in commands[0]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs(name, recipe):
    recipe(name)


def test_what_the_commands_left(recipe):
    folder = recipe("linear.py")
    rows = (folder / "runs" / "linear" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["steps"] for row in rows] == [16, 32, 48]
    assert ecn_marl.load_policy(folder / "linear.npz").features[0] == "queue"
    config = json.loads((folder / "runs" / "linear" / "config.json").read_text())
    assert config["imports"] == {str(folder / "linear.py"): ["algorithm linear"]}


ANOTHER = """
from typer.testing import CliRunner
from ecn_marl.cli import app
result = CliRunner().invoke(app, "export runs/linear --out again.npz".split())
assert result.exit_code == 0, result.output
"""


def test_another_process_imports_what_a_run_needs(recipe):
    folder = recipe("linear.py")
    subprocess.run([sys.executable, "-c", ANOTHER], cwd=folder, check=True, timeout=600)
    assert ecn_marl.load_policy(folder / "again.npz").header["algorithm"] == "linear"


def test_where_a_lost_file_was_is_said_in_one_line(recipe, tmp_path, monkeypatch):
    """As in a process that never saw it; `--import` then says where it is."""
    folder = recipe("linear.py")
    shutil.copytree(folder / "runs" / "linear", tmp_path / "linear")
    config = tmp_path / "linear" / "config.json"
    config.write_text(config.read_text().replace("linear.py", "lost.py"))
    monkeypatch.setattr(_registry.REGISTRIES["algorithm"], "registered", {})
    command = ("export", tmp_path / "linear", "--out", tmp_path / "third.npz")
    assert re.search(r"needs algorithm linear, which .*/lost.py registered \(.*", failure(*command))
    (tmp_path / "moved.py").write_text((folder / "linear.py").read_text())
    assert run(*command, "--import", tmp_path / "moved.py").exit_code == 0
