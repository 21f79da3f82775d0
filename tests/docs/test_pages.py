"""Pages of the documentation: code that runs, tables that follow from the code, a site."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import code_blocks
import pytest

import ecn_marl

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MDP = DOCS / "mdp.md"


@pytest.fixture(autouse=True)
def only_the_packages_scenarios(monkeypatch):
    """Other tests register scenarios of their own."""
    from ecn_marl.envs import registry

    ecn_marl.scenarios()
    monkeypatch.setattr(registry.SCENARIOS, "registered", {})


@pytest.fixture(scope="module")
def tables():
    import tables

    return tables


def rows(table: str) -> list[list[str]]:
    """Cells of a table, without its head."""
    lines = table.strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_tables_follow_from_the_code(tables):
    """If this fails: `python docs/tables.py`."""
    pages = tables.pages()
    assert sum(len(tables.BLOCK.findall(page.read_text())) for page in pages) >= 12
    stale = [page.name for page in pages if tables.renewed(page.read_text()) != page.read_text()]
    assert not stale


def test_a_wrong_figure_is_seen(tables):
    text = MDP.read_text()
    assert tables.renewed(text.replace("| `pet` | `queue`", "| `pet` | `quota`")) == text


def test_formulas_give_the_examples(tables):
    """The formulas that the page states in words, in float64, against its table."""
    table = rows(tables.TABLES["queue-examples"]())
    assert len(table) > 10
    for kb, *cells in ([float(cell) for cell in row] for row in table):
        n = sum(kb > 5 * 2**i for i in range(10))
        want = [math.log(1 + kb / s) / math.log(1 + 10240) for s in (1, 4)]
        want += [n / 10, 1 - n / 10, 1 / max(kb, 1)]
        for cell, value, digits in zip(cells, want, (3, 3, 1, 1, 4), strict=True):
            assert cell == pytest.approx(min(value, 1.0), abs=0.51 * 10**-digits)


def test_every_feature_reward_and_info_is_defined(tables):
    from ecn_marl.envs.features import FEATURE_SETS, FEATURES
    from ecn_marl.envs.rewards import REWARDS

    page = tables.shown(MDP.read_text())
    first = {
        cell for line in page.splitlines() if line.startswith("|") for cell in line.split("|")[1:2]
    }
    defined = set(re.findall(r"`([\w-]+)`", " ".join(first)))
    assert defined >= set(REWARDS) | set(FEATURE_SETS) | set(FEATURES)


def whole(page: str):
    """A page as it stands, which takes minutes."""
    return pytest.param(page, None, marks=pytest.mark.thorough, id=page)


@pytest.mark.parametrize(
    ("page", "smaller"),
    [
        pytest.param("datasets", None, id="datasets"),
        pytest.param("ns3", None, id="ns3"),
        pytest.param("scenarios", None, id="scenarios"),
        *map(whole, ("frameworks", "results", "train", "transport")),
    ],
)
@pytest.mark.slow
def test_code_of_pages_runs(page, smaller, tmp_path):
    text = (DOCS / "howto" / f"{page}.md").read_text()
    assert code_blocks.blocks(text)
    code_blocks.run(text, tmp_path, smaller)


def test_commands_of_all_pages_exist(tables):
    """Subcommands and options, wherever they are named: in blocks, in text, in notebooks."""
    import typer

    from ecn_marl.cli import app

    commands = typer.main.get_command(app).commands
    options = {
        name: {"--help"}.union(*([*p.opts, *p.secondary_opts] for p in command.params))
        for name, command in commands.items()
    }
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    wrong, checked = [], 0
    for page in [*pages, *(ROOT / "notebooks").glob("*.ipynb"), *DOCS.rglob("*.svg")]:
        text = tables.shown(page.read_text())
        for call in re.finditer(r"ecn-marl ([a-z][a-z-]*)((?:[^`\n#\\<]|\\\n)*)", text):
            name, rest = call.groups()
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", rest))
            checked += 1
            if name not in options or named - options[name]:
                wrong.append((page.name, call.group(0)))
    assert checked > 150
    assert not wrong


def test_first_page_has_the_quick_start_of_the_readme():
    quick, *_ = code_blocks.blocks((DOCS / "index.md").read_text())
    assert quick in code_blocks.blocks((ROOT / "README.md").read_text())


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs", reason="extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.parent.name for path in (tmp_path / "tutorials").glob("*/index.html")} == names
    assert "marking probability" in (tmp_path / "api" / "sim" / "index.html").read_text()
