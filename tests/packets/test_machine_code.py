"""What is kept in Numba's cache goes by the files that it was compiled from."""

from __future__ import annotations

import ast
import re
import sys
from hashlib import sha256

import pytest

pytest.importorskip("numba", reason="extra packets is not installed")

from ecn_marl.packets import compiling

FILES = {
    "inner": "from ecn_marl.packets.compiling import inlined\n"
    "@inlined\ndef value(x):\n    return x + {number}\n",
    "middle": "from ecn_marl.packets.compiling import called\nfrom inner import value\n"
    "@called\ndef twice(x):\n    return 2 * value(x)\n",
    "outer": "from ecn_marl.packets.compiling import compiled\nfrom middle import twice\n"
    "@compiled\ndef run(x):\n    return twice(x)\n",
}


def result(tmp_path, monkeypatch, number):
    """What the outer function returns with a number in the innermost one, all imported anew."""
    for name, text in FILES.items():
        file = tmp_path / f"{name}.py"
        new = text.format(number=number)
        if not file.exists() or file.read_text() != new:
            file.write_text(new)
    monkeypatch.setattr(compiling, "SOURCES", sha256(str(number).encode()))
    monkeypatch.syspath_prepend(tmp_path)
    for name in FILES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    from outer import run

    return run(10), sum(run.stats.cache_hits.values())


def test_an_edit_of_one_file_reaches_those_that_call_it(tmp_path, monkeypatch):
    """First a new program, then another number in the innermost file, then the same again."""
    found = [result(tmp_path, monkeypatch, number) for number in (1, 200, 200)]
    assert found == [(22, 0), (420, 0), (420, 1)]


def test_files_whose_numbers_are_compiled_in_are_known():
    """Those that files with compiled functions take constants from."""
    package = compiling.HERE
    found = set()
    for file in package.glob("*.py"):
        text = file.read_text()
        if not re.search(r"^@(compiled|called|inlined)$", text, re.MULTILINE):
            continue
        for line in ast.walk(ast.parse(text)):
            if isinstance(line, ast.ImportFrom) and any(x.name.isupper() for x in line.names):
                found.add(package.parents[1] / f"{line.module.replace('.', '/')}.py")
    assert {x for x in found if x.parent != package} == set(compiling.CONSTANTS)
