"""The sealed episodes: which code reaches them, under which conditions, and notes of uses."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import failure

import ecn_marl
from ecn_marl.baselines.evaluation.streams import PARTS, tuning_keys
from ecn_marl.experiments import bench as bn
from ecn_marl.experiments import sealed, sources

PACKAGE = Path(ecn_marl.__file__).parent
SEALED = "ecn_marl.experiments.sealed"
BENCH = "ecn_marl.experiments.bench"


def python_files():
    """Every module of the package by name, and examples and notebooks' code by path."""
    sources_of = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        sources_of[".".join(parts).removesuffix(".__init__")] = path.read_text()
    for path in sorted((PACKAGE.parent / "examples").glob("*.py")):
        sources_of[str(path)] = path.read_text()
    for path in sorted((PACKAGE.parent / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        lines = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
        sources_of[str(path)] = "\n".join(
            x for x in lines.splitlines() if not x.lstrip().startswith(("!", "%"))
        )
    return sources_of


def imported(module: str, text: str) -> set[str]:
    """All names of modules that a source imports or names in a string, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if ".sealed" in node.value or "experiments.bench" in node.value:
                names.add(f"string {node.value}")
        elif isinstance(node, ast.Attribute) and node.attr in ("_ROOT", "sealed_keys"):
            names.add(f"attribute {node.attr}")
    return names


def importers(target: str) -> set[str]:
    return {
        name
        for name, text in python_files().items()
        if any(x == target or x.startswith(f"{target}.") for x in imported(name, text))
    }


def test_the_walk_sees_imports_of_every_kind():
    """In a function, relative, renamed, by name, by attribute."""
    for text in (
        "def f():\n from ecn_marl.experiments.sealed import sealed_keys as k",
        "from ecn_marl.experiments import sealed as s",
        "import ecn_marl.experiments.sealed",
        "from . import sealed",
        "from .sealed import Use",
    ):
        names = imported("ecn_marl.experiments.tune", text)
        assert any(x == SEALED or x.startswith(f"{SEALED}.") for x in names), text
    text = "import importlib\nimportlib.import_module('ecn_marl.experiments.sealed')"
    assert f"string {SEALED}" in imported("ecn_marl.baselines.runs", text)
    text = "import ecn_marl.experiments as e\ne.x.sealed_keys"
    assert "attribute sealed_keys" in imported("a", text)


def test_only_bench_reaches_the_sealed_episodes():
    assert len(python_files()) > 100
    assert importers(SEALED) == {BENCH}
    assert importers(BENCH) == {"ecn_marl.experiments.front"}
    for name, text in python_files().items():
        if name not in (SEALED, BENCH):
            named = {x for x in imported(name, text) if x.startswith(("string", "attribute"))}
            assert not named, (name, named)


def test_only_two_modules_make_roots():
    """No other module makes keys from words, so none can rebuild the root."""
    allowed = {"ecn_marl.baselines.evaluation.streams", SEALED}
    for name, text in python_files().items():
        calls = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        assert name in allowed or not calls & {"root_key", "stream_keys"}, name
        numbers = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)}
        assert name == SEALED or sealed._ROOT[0] not in numbers, name


def test_bench_imports_sealed_episodes_in_one_function_only():
    tree = ast.parse((PACKAGE / "experiments" / "bench.py").read_text())
    functions = [
        f.name
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef)
        and any(isinstance(n, ast.ImportFrom) and n.module == SEALED for n in ast.walk(f))
    ]
    assert functions == ["_keys"]
    at_module_level = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == SEALED]
    assert not at_module_level, "not imported with the module"


def git(folder, *args):
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A checkout with one file."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


USE = sealed.Use("websearch-v0", ("ippo", "static:best"), 5000, 3, 4, "abc")


def test_a_use_is_written_down(tree):
    checkout = sources.checkout(tree)
    keys = sealed.sealed_keys(USE, checkout)
    again = sealed.sealed_keys(USE, checkout)  # the line of the first use is no change of the tree
    assert (jax.random.key_data(keys) == jax.random.key_data(again)).all()
    head, *_, first, second = (tree / sealed.USES).read_text().splitlines()
    assert head == "# Uses of the sealed episodes"
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert len(first.split("|")) == len(second.split("|"))
    assert cells[1:] == [
        f"`{checkout.commit[:12]}`",
        "`websearch-v0`",
        "ippo, static:best",
        "5,000",
        "3",
        "4",
        "`abc`",
    ]
    assert cells[0].startswith("20") and len(cells[0]) == 19


@pytest.mark.parametrize("change", ["changed", "new", "staged"])
def test_a_dirty_tree_gets_nothing(tree, change):
    checkout = sources.checkout(tree)
    (tree / ("new.py" if change == "new" else "code.py")).write_text("x = 2\n")
    if change == "staged":
        git(tree, "add", ".")
    with pytest.raises(ValueError, match=r"git tree = .*commit them first"):
        sealed.sealed_keys(USE, checkout)
    assert not (tree / sealed.USES).exists()


def test_results_may_have_changed(tree):
    (tree / "results").mkdir()
    (tree / "results" / "new.json").write_text("{}")
    assert sources.checkout(tree).changes() == []


def test_a_folder_that_the_checkout_does_not_track_is_refused(tree):
    inside = tree / "venv"  # an untracked folder of somebody else's checkout
    inside.mkdir()
    (inside / "x.py").write_text("")
    with pytest.raises(ValueError, match="a folder of a git checkout that tracks it"):
        sources.checkout(inside)


def test_no_checkout_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ValueError, match="git checkout"):
        sources.checkout(tmp_path)


def test_the_command_refuses_before_any_work(tmp_path, tree, monkeypatch):
    (tree / "code.py").write_text("x = 2\n")
    dirty = sources.checkout(tree)
    monkeypatch.setattr(bn, "checkout", lambda: dirty)
    args = ("bench", "websearch-v0", "--algorithms", "random", "--sealed", "--out", tmp_path / "b")
    assert "git tree" in failure(*args)
    monkeypatch.setattr(bn, "checkout", lambda: sources.checkout(tmp_path / "nothing"))
    (tmp_path / "nothing").mkdir()
    git(tmp_path / "nothing", "init", "-q")
    assert "git checkout" in failure(*args)
    assert not (tmp_path / "b").exists()


def test_sealed_keys_differ_from_all_tuning_keys(tree):
    data = np.asarray(jax.random.key_data(sealed.sealed_keys(USE, sources.checkout(tree))))
    words = {tuple(row) for row in data.tolist()}
    assert len(words) == 4
    for part in PARTS:
        other = np.asarray(jax.random.key_data(tuning_keys(part, 2000, 64))).tolist()
        assert not words & {tuple(row) for row in other}


def test_hash_follows_the_sources(tmp_path, monkeypatch):
    for part in sources.PARTS:
        (tmp_path / part).mkdir()
    (tmp_path / "sim" / "a.py").write_text("1")
    monkeypatch.setattr(sources, "package_folder", lambda: tmp_path)
    hashes = []
    for text in ("1", "2", "1"):
        (tmp_path / "sim" / "a.py").write_text(text)
        sources.sources_hash.cache_clear()
        hashes.append(sources.sources_hash())
    sources.sources_hash.cache_clear()
    assert hashes[0] == hashes[2] != hashes[1]
