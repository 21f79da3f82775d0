"""The CI lanes name everything that they should."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"

NO_BRIDGE = {"cuda12", "cuda13", "notebooks", "docs", "test", "dev"}
"""Extras without a framework behind them: hardware, and what the `test` lane installs."""


@pytest.mark.skipif(not WORKFLOW.is_file(), reason="a source archive has no workflows")
def test_every_bridge_has_its_lane():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"]
    lanes = jobs["bridges"]["strategy"]["matrix"]["extra"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(lanes) == set(project["optional-dependencies"]) - NO_BRIDGE
    listed = re.search(r"^EXTRAS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed and listed[1].split() == lanes
    for extra in lanes:
        assert re.search(
            rf"^(\w+ \| )*{extra}( \| \w+)*\) ", (ROOT / ".ci/bridge").read_text(), re.M
        )
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    named = [c.split(" :: ")[-1] for c in project["classifiers"] if "Python :: 3." in c]
    assert versions == named
