"""`ecn-marl examples`: it lists and copies the documented files and overwrites none."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import code_blocks
import pytest
from commands import failure, run

from ecn_marl.cli.examples import example_files, folder
from ecn_marl.sim import star
from ecn_marl.sim.replay import read_flows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "extending.md"
in_checkout = pytest.mark.skipif(not PAGE.is_file(), reason="the docs are not in the wheel")


def test_every_example_is_listed_with_a_line_and_copied(tmp_path):
    result = run("examples", tmp_path / "new" / "folder")
    assert result.exit_code == 0, result.output
    names = [str(name) for name in example_files()]
    assert {"sb3_ppo.py", "own/linear.py", "flows/websearch_star8.csv"} <= set(names)
    *lines, last = result.output.splitlines()
    assert [line.split()[0] for line in lines] == names and last.endswith(f"{len(names)} files")
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in lines)
    for name in names:
        copy = tmp_path / "new" / "folder" / name
        assert copy.read_bytes() == (folder() / name).read_bytes()


def test_listing_copies_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "ecn-marl examples DIR copies them" in run("examples").output
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    existing = tmp_path / "sb3_ppo.py"
    existing.write_text("mine")
    message = failure("examples", tmp_path)
    assert message.count("\n") <= 1 and "a folder without sb3_ppo.py" in message
    assert [existing] == list(tmp_path.iterdir()) and existing.read_text() == "mine"
    assert "expected a folder" in failure("examples", existing)


def test_flow_lists_are_those_of_the_script_that_writes_them(tmp_path):
    script = runpy.run_path(str(folder() / "make_flows.py"))
    for name, hosts in (("websearch_star8", 8), ("incast_star17", 17)):
        script["write"](tmp_path / name, script[name.split("_")[0]]())
        shipped = folder() / "flows" / f"{name}.csv"
        assert (tmp_path / name).read_bytes() == shipped.read_bytes()
        rows = read_flows(shipped, star(hosts))
        assert len(rows.size) > 100


@in_checkout
def test_files_of_your_own_are_the_recipes_of_the_docs():
    blocks = code_blocks.blocks(PAGE.read_text())
    recipes = {m[1]: text for _, text in blocks if (m := re.match(r"# (\w+\.py): ", text))}
    job = re.search(r"```toml\n(# run\.toml.*?)```", PAGE.read_text(), re.DOTALL)
    assert job is not None and tomllib.loads(job[1])["algorithm"] == "linear"
    recipes["run.toml"] = job[1]
    files = {path.name: path.read_text() for path in (folder() / "own").iterdir() if path.is_file()}
    assert files == recipes
