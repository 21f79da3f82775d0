"""The layers of the package: imports lead from a layer to those below it, none in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ecn_marl

FOLDER = Path(ecn_marl.__file__).parent

LAYERS = (
    ("base",),
    ("lanes",),
    ("sim", "parallelism"),
    ("packets",),
    ("envs", "validation"),
    ("wrappers",),
    ("baselines",),
    ("render",),
    ("experiments", "wrappers.bridges", "speed"),
    ("cli",),
)
"""From the bottom to the top; layers side by side do not know each other. `base` are the modules at
the top of the package: errors, checks of values, locks, registries."""

UP = {
    ("envs", "render"): "`env.render()` loads what draws when it is first asked for a frame",
    ("envs", "wrappers"): "`make(checked=True)` wraps the environment",
}
"""What may be imported from above, within functions only, and why."""


def modules() -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    files = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in files.items() if ".examples" not in name}


MODULES = modules()


def layer(module: str) -> str:
    """The layer that a module is in."""
    parts = module.split(".")[1:]
    if parts[:2] == ["wrappers", "bridges"]:
        return "wrappers.bridges"
    has_layer = parts[0] == "parallelism" or (FOLDER / parts[0]).is_dir()
    return parts[0] if has_layer else "base"


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


def wrong_arrows(module: str, source: str) -> list[str]:
    """Imports of a module that do not lead downwards."""
    height = {name: i for i, names in enumerate(LAYERS) for name in names}
    own_layer = layer(module)
    return [
        f"{module} -> {name}"
        for name, within in imports(source)
        if name != "ecn_marl" and layer(name) != own_layer
        if height[layer(name)] >= height[own_layer]
        and not (within and (own_layer, layer(name)) in UP)
    ]


@pytest.mark.parametrize("name", [name for names in LAYERS for name in names])
def test_imports_lead_downwards(name: str) -> None:
    members = [m for m in MODULES if m != "ecn_marl" and layer(m) == name]
    assert members
    assert not [arrow for m in members for arrow in wrong_arrows(m, MODULES[m].read_text())]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("ecn_marl.sim.nic", "from ecn_marl.envs import registry"),
        ("ecn_marl.wrappers.batch", "from ecn_marl.wrappers.bridges.vector import EcnVectorEnv"),
        ("ecn_marl.baselines.ippo", "def f():\n    import ecn_marl.render.tables"),
        ("ecn_marl.envs.ecn", "from ecn_marl.render.frames import draw"),
        ("ecn_marl.errors", "from ecn_marl.lanes import vmap"),
    ],
)
def test_an_import_that_leads_upwards_is_noticed(module: str, line: str) -> None:
    assert wrong_arrows(module, line)


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
