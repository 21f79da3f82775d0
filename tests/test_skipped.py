"""What is said of skipped tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import skipped

HERE = Path(__file__).parent


def test_the_line_names_what_to_install():
    reasons = [
        "Skipped: ffmpeg is not installed",
        "Skipped: no chromium or chrome is installed",
        "Skipped: no chromium or chrome is installed",
        "Skipped: could not import 'jaxmarl.wrappers.baselines': No module named 'jaxmarl'",
        "Skipped: extra docs is not installed",
        "Skipped: run by the test above",
    ]
    assert skipped.line(reasons) == (
        "To run the skipped tests: install chromium or chrome (2), ffmpeg (1), the extra docs (1); "
        "run `make bridges` for the extras jaxmarl (1)"
    )
    assert skipped.line(["Skipped: no /dev/full"]).endswith("see why: no /dev/full (1)")
    assert skipped.line(["Skipped: run by the test above"]) == ""


def test_every_module_that_may_be_missing_is_known():
    text = "".join(path.read_text() for path in HERE.rglob("test_*.py"))
    modules = {name.partition(".")[0] for name in re.findall(r"importorskip\(\"(\S+?)\"", text)}
    assert modules and modules <= set(skipped.EXTRAS)


@pytest.mark.skipif(
    not (HERE.parent / "pyproject.toml").is_file(), reason="the wheel has no project file"
)
def test_every_extra_is_one():
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    assert set(skipped.EXTRAS.values()) <= set(project["optional-dependencies"])
