"""The compiler stands by itself: what it imports, what it reads, what is loaded when."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ecn_marl
from ecn_marl import lanes
from ecn_marl.lanes import settings

FOLDER = Path(lanes.__file__).parent
DEPENDENCIES = {"jax", "jaxtyping", "llvmlite", "numpy"}


def imports(source: str) -> Iterator[str]:
    """Modules that a file imports, at its top or within functions, as absolute names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = {0: node.module, 1: "ecn_marl.lanes"}.get(node.level, "above ecn_marl.lanes")
            yield home or ""


def foreign(source: str) -> set[str]:
    """What a file imports that is neither its own package, nor a dependency, nor Python's."""
    return {
        name
        for name in imports(source)
        if name.split(".")[0] not in DEPENDENCIES | sys.stdlib_module_names
        and not re.fullmatch(r"ecn_marl\.lanes(\.\w+)?", name)
    }


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_it_imports_nothing_of_the_package_around_it(path: Path) -> None:
    source = path.read_text()
    assert not foreign(source)
    handed_on = source.replace("env=os.environ | ", "")  # to a process of its own
    assert path.stem == "settings" or not re.search(r"os\.environ|getenv", handed_on)


@pytest.mark.parametrize(
    "line",
    [
        "import ecn_marl",
        "from ecn_marl import sim",
        "from ecn_marl.errors import InvalidValue",
        "def f():\n    from ecn_marl.wrappers import AutoReset",
        "from ..sim import slots",
        "import flax",
    ],
)
def test_other_imports_are_seen(line: str) -> None:
    assert foreign(line)


def test_the_readme_names_what_it_reads() -> None:
    read = set(re.findall(r'^[A-Z]+ = "([A-Z_]+)"$', (FOLDER / "settings.py").read_text(), re.M))
    assert read == {settings.GPU, settings.CACHE}
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in read)


def test_public_names() -> None:
    assert ecn_marl.lanes is lanes
    assert {"busy", "mapped", "off", "vmap"} <= set(lanes.__all__) <= set(dir(lanes))
    assert all(getattr(lanes, name) is not None for name in lanes.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'map'; it has .*mapped"):
        _ = lanes.map


def test_the_simulator_loads_no_compiler() -> None:
    """Marking flags needs one small module; the compiler comes with the first batch."""
    code = (
        "import sys, ecn_marl; "
        "assert all(getattr(ecn_marl, n) for n in ('lanes', 'sim', 'envs', 'wrappers')); "
        "print(*(m for m in sys.modules if m.startswith('ecn_marl.lanes')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert len(done.stdout.split()) <= 4
    assert "ecn_marl.lanes.mapping" not in done.stdout
