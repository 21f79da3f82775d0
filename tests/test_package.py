"""The package's public names, shipped files and errors."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import ecn_marl
from ecn_marl._errors import bad_value, unknown_name


def test_import_does_not_import_jax():
    code = "import sys, ecn_marl; assert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve():
    for name in ecn_marl.__all__:
        assert getattr(ecn_marl, name) is not None
        assert name in dir(ecn_marl)
    assert ecn_marl.__version__ == version("ecn-marl")


def test_tab_completion_shows_public_names_only():
    shown = dir(ecn_marl)
    assert len(shown) == len(set(shown))
    assert {name for name in shown if not name.startswith("__")} == set(ecn_marl.__all__)


def test_version_is_that_of_the_project_file():
    tests_folder = Path(__file__).parent  # beside the wheel the project file lies among the tests
    candidates = (tests_folder.parent / "pyproject.toml", tests_folder / "pytest-settings.toml")
    project = next(path for path in candidates if path.is_file())
    assert tomllib.loads(project.read_text())["project"]["version"] == ecn_marl.__version__


def test_unknown_name_lists_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'paralel_env'; it has .*parallel_env"):
        _ = ecn_marl.paralel_env


def test_ships_types_and_tables():
    assert files("ecn_marl").joinpath("py.typed").is_file()
    assert files("ecn_marl.sim.traffic").joinpath("data", "WebSearch.csv").is_file()


def test_errors_name_field_value_and_choices():
    error = unknown_name("scenario", "websaerch-v0", ["incast-v0", "websearch-v0"])
    assert "'websaerch-v0'" in str(error)
    assert "did you mean 'websearch-v0'" in str(error)
    assert "incast-v0" in str(error)
    assert str(bad_value("load", -1, "a number > 0")) == (
        "load = -1 is not allowed: expected a number > 0"
    )
