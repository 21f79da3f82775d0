"""The CI lanes name everything that they should."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from skipped import PROGRAMS

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"

NO_BRIDGE = {
    *("cuda12", "cuda13", "onnx", "packets", "records", "notebooks"),
    *("docs", "test", "dev"),
}
"""Extras without a framework behind them: hardware, and what the `test` lane installs."""

TOGETHER = {"slurm": "ray"}
"""Extras in the lane of another one."""

needs_workflow = pytest.mark.skipif(
    not WORKFLOW.is_file(), reason="a source archive has no workflows"
)


@pytest.fixture
def jobs():
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


@needs_workflow
def test_every_bridge_has_its_lane(jobs):
    lanes = jobs["bridges"]["strategy"]["matrix"]["extra"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(lanes) == set(project["optional-dependencies"]) - NO_BRIDGE - set(TOGETHER)
    listed = re.search(r"^EXTRAS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed and listed[1].split() == lanes
    for extra in lanes:
        assert re.search(
            rf"^(\w+ \| )*{extra}( \| \w+)*\) ", (ROOT / ".ci/bridge").read_text(), re.M
        )
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    named = [c.split(" :: ")[-1] for c in project["classifiers"] if "Python :: 3." in c]
    assert versions == named


@needs_workflow
def test_no_test_is_skipped_everywhere(jobs):
    """Programs are installed where the suite runs; frameworks have bridges, see above."""
    steps = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    assert steps == [".ci/programs", ".ci/run"]
    text = (ROOT / ".ci/programs").read_text()
    checked = set(re.search(r"^for program in (.*); do$", text, re.MULTILINE)[1].split())
    player = (ROOT / "tests/render/test_player.py").read_text()
    browsers = set(re.findall(r"which\(\"(\S+)\"\)", player)) - {"ffmpeg"}
    assert checked & browsers
    assert set(PROGRAMS) - browsers <= checked


@needs_workflow
def test_fresh_examples_are_drawn_once_a_week(jobs):
    assert jobs["fresh"]["steps"][-1]["run"] == "make fresh"
    assert "schedule" in jobs["fresh"]["if"]
    rule = re.search(r"^fresh:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert "-m hypothesis" in rule and "--hypothesis-profile fresh" in rule


@needs_workflow
def test_what_make_test_leaves_out_runs_once_a_week(jobs):
    assert jobs["thorough"]["steps"][-1]["run"] == "make thorough"
    assert "schedule" in jobs["thorough"]["if"]
    rule = re.search(r"^thorough:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert rule.endswith("-m thorough")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    assert "-m 'not thorough'" in settings["ini_options"]["addopts"]
