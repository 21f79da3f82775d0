"""docs/first-hour.md: its table has the commands that are measured, and they are commands."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import click
import code_blocks
import pytest
import typer
from commands import run

from ecn_marl import _registry
from ecn_marl.cli import app

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "first-hour.md"


@pytest.fixture(scope="module")
def first_hour():
    spec = importlib.util.spec_from_file_location("first_hour", DOCS / "first_hour.py")
    module = sys.modules["first_hour"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_row_with_times_for_every_step(first_hour):
    before, rest = PAGE.read_text().split(first_hour.START)
    block, after = rest.split(first_hour.END)
    assert before and after
    row = re.compile(r"\| (.+?) \| ([\d.]+) s \| ([\d.]+) s \| `(.+)` \|")
    found = [row.fullmatch(line) for line in block.splitlines()[2 : 2 + len(first_hour.STEPS)]]
    assert [m and m.group(1, 4) for m in found] == [s[:2] for s in first_hour.STEPS]
    clock, processor = (sum(float(m[i]) for m in found) for i in (2, 3))
    total = re.search(r"\| All \| ([\d.]+) min \| ([\d.]+) min \| \|", block)
    assert total is not None
    assert float(total[1]) == pytest.approx(clock / 60, abs=0.15)
    assert float(total[2]) == pytest.approx(processor / 60, abs=0.15)
    assert "cores" in block and "Python 3." in block


def test_a_table_of_other_times_is_written_the_same_way(first_hour):
    times = [first_hour.Measured(2.4, 1.6)] * len(first_hour.STEPS)
    text = first_hour.table(times, "A machine")
    assert "| Install | 2.4 s | 1.6 s | `pip install ecn_marl-*.whl` |" in text
    assert text.endswith("\n\nA machine.\n")


def test_failures_are_seen(first_hour, tmp_path):
    with pytest.raises(RuntimeError, match="nothing here"):
        first_hour.measure("echo nothing here; false", tmp_path, {"PATH": "/usr/bin:/bin"})
    one = first_hour.measure("true", tmp_path, {"PATH": "/usr/bin:/bin"})
    assert 0 <= one.cpu <= one.wall + 0.1 < 10


@pytest.fixture
def as_before():
    """Other tests have registered nothing, and what the examples register is forgotten."""
    held = [(r, dict(r.registered), dict(r.origin)) for r in _registry.REGISTRIES.values()]
    for registry, *_ in held:
        registry.registered, registry.origin = {}, {}
    yield
    for registry, registered, origin in held:
        registry.registered, registry.origin = registered, origin


def test_options_of_the_commands_exist(first_hour, tmp_path, monkeypatch, as_before):
    """They are parsed as the command line parses them; nothing is run."""
    monkeypatch.chdir(tmp_path)
    assert run("examples", "examples").exit_code == 0
    commands = typer.main.get_command(app)
    parsed = []
    for step in first_hour.STEPS:
        words = shlex.split(step.command)
        if words[0] == "ecn-marl":
            with click.Context(commands, info_name="ecn-marl") as context:
                command = commands.get_command(context, words[1])
                command.make_context(words[1], words[2:], parent=context)
            parsed.append(words[1])
    assert parsed == ["examples", "train", "eval", "play", "play", "train", "bench"]


def test_code_of_the_page_runs(capsys):
    ((language, text),) = code_blocks.blocks(PAGE.read_text())
    assert language == "python"
    exec(compile(text, str(PAGE), "exec"), {})
    assert "<EcnParallelEnv" in capsys.readouterr().out
