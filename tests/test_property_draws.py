"""Property tests draw the same examples everywhere; what fails can be kept as an example."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_draws import examples

HERE = Path(__file__).parent


def drawn():
    """Examples of one property test."""
    found = []

    @given(st.integers(), st.floats())
    @settings(max_examples=200)
    def collect(number, real):
        found.append((number, repr(real)))

    collect()
    return found


@pytest.mark.skipif(
    settings.get_current_profile_name() == "fresh", reason="only fresh examples were asked for"
)
def test_what_was_imported_before_changes_no_example(tmp_path):
    """Hypothesis would try the constants of all local modules."""
    before = drawn()
    module = tmp_path / "module_with_constants.py"
    module.write_text(f"NUMBERS = {[10**9 + 7 * k for k in range(50)]}\n")
    spec = importlib.util.spec_from_file_location("module_with_constants", module)
    sys.modules["module_with_constants"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules["module_with_constants"])
        assert drawn() == before
    finally:
        del sys.modules["module_with_constants"]


FAILING = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.parametrize("name", ["a"])
@given(seed=st.integers(0, 2**31 - 1), others=st.lists(st.text(min_size=30), min_size=4))
@settings(max_examples=20)
def test_small(name, seed, others):
    assert seed < 1000

@given(data=st.data())
def test_drawn_later(data):
    assert data.draw(st.integers()) < 2
"""


def run(tmp_path, profile):
    """What pytest says of `FAILING` with the suite's `conftest.py`."""
    conftest = (HERE / "conftest.py").read_text()
    # These tests compile nothing, so they need no JAX.
    assert conftest.count("autouse=True") == 2
    (tmp_path / "conftest.py").write_text(conftest.replace("autouse=True", "autouse=False"))
    (tmp_path / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += ["--hypothesis-profile", profile, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stderr
    return done.stdout


def test_a_failing_example_can_be_pasted(tmp_path):
    """It is the same twice, without a database; `fresh` says how to repeat what cannot be."""
    first, again, fresh = (run(tmp_path, name) for name in ("mutation", "mutation", "fresh"))
    for text in (first, again, fresh):
        assert text.count(TITLE) == 1, "not where data is drawn later"
        assert "    name=" not in pasted(text)
    assert pasted(first) == pasted(again) != pasted(fresh)
    assert "@example(\n    seed=1000,\n    others=[" in pasted(fresh), "the smallest one"
    assert "@reproduce_failure" in fresh
    assert not (tmp_path / ".hypothesis" / "examples").exists()


TITLE = "to keep: paste above the test"


def pasted(text):
    return text.partition(TITLE)[2].partition("\n)")[0]


def test_examples_of_a_group_of_errors():
    errors = [ValueError(), KeyError()]
    errors[0].add_note("Failing test case: test_x(\n    a=[1,\n     2],\n    port_stats=f,\n)")
    errors[1].add_note("Failing explicit test case: test_x(\n    a=3,\n    port_stats=f,\n)")
    found = examples(ExceptionGroup("two", errors), ["port_stats"])
    assert found == ["@example(\n    a=[1,\n     2],\n)", "@example(\n    a=3,\n)"]
