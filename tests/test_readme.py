"""The commands of the README work in an empty folder outside the checkout."""

from __future__ import annotations

import re
from importlib.metadata import metadata
from pathlib import Path

import code_blocks
import pytest

README = Path(__file__).parents[1] / "README.md"


def readme() -> str:
    """The README of the checkout, or the one that the installed package carries."""
    if README.is_file():
        return README.read_text()
    carried = metadata("ecn-marl").get_payload()
    assert isinstance(carried, str)
    return carried


SMALLER = {
    "websearch-v0": "websearch-star-v0",
    "--steps 20000": "--steps 64 --envs 2 --set rollout=16",
    "--episodes 8": "--episodes 2",
}
"""A smaller network, and two updates. Nothing else of the commands changes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "smaller", [SMALLER, pytest.param(None, marks=pytest.mark.thorough)], ids=["short", "whole"]
)
def test_quick_start(smaller, tmp_path):
    output = code_blocks.run(readme(), tmp_path, smaller)
    assert "IPPO first" in output and "SECN1" in output
    run, page = tmp_path / "runs" / "first", tmp_path / "episode.html"
    assert (run / "learning_curve.png").is_file()
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_every_way_in_is_shown():
    """The blocks that are run hold both faces, training, evaluation and the player."""
    text = "".join(block for _, block in code_blocks.blocks(readme()))
    for name in ("parallel_env", "make"):
        assert f"ecn_marl.{name}(" in text
    for command in ("train", "eval", "play"):
        assert f"ecn-marl {command} " in text


def test_it_stays_short():
    assert len(readme().split()) <= 900


@pytest.mark.skipif(
    not README.is_file(), reason="the links of a wheel's README lead to its repository"
)
def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)\s#]+)", readme())
    local = [link for link in links if not link.startswith(("https://", "../../actions/"))]
    assert len(local) > 15
    assert not [link for link in local if not (README.parent / link).exists()]


def test_blocks_are_told_apart():
    text = "```python\na\n```\n```\nb\n```\n```sh\nc\n```\n```console\nd\n```\n"
    assert code_blocks.blocks(text) == [("python", "a\n"), ("sh", "c\n")]


def test_failures_are_seen(tmp_path):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        code_blocks.run("```python\n1 / 0\n```\n", tmp_path)
    with pytest.raises(AssertionError, match="false"):
        code_blocks.run("```sh\nfalse\necho on\n```\n", tmp_path)
