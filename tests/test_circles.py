"""No module of the package imports itself in a circle; `make lint` holds the layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ecn_marl

FOLDER = Path(ecn_marl.__file__).parent


def modules() -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    files = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in files.items() if ".examples" not in name}


MODULES = modules()


def imports(source: str) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a source imports, and whether it does so within a function.

    Imports for type checkers are left out: they never run.
    """

    def visit(node: ast.AST, within: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, within) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield (full if full in MODULES else child.module or ""), within
            yield from visit(child, within or isinstance(child, ast.FunctionDef))

    for name, within in visit(ast.parse(source), False):
        if name.split(".")[0] == "ecn_marl":
            yield name, within


def test_no_imports_go_in_a_circle() -> None:
    graph = {
        module: {
            name
            for name, within in imports(path.read_text())
            if not within and name in MODULES and name not in (module, "ecn_marl")
        }
        for module, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")
