"""`ecn-marl speed --explain` and `--senders`: skipped work, and costs of senders."""

from __future__ import annotations

import json

import pytest
from commands import run

from ecn_marl.speed import programs, senders
from ecn_marl.speed.timing import Plan

QUICK = Plan(steps=2)


def test_explain_measures_nothing(tmp_path, monkeypatch):
    """`--explain` states how batches run, and which part of a step skips free slots."""
    monkeypatch.setattr(programs, "time_env", None)
    file = tmp_path / "explained.json"
    result = run("speed", "--explain", "--scenario", "websearch-star-v0", "--out", file)
    assert result.exit_code == 0, result.output
    assert "Batches run as lanes" in result.output
    assert "websearch-star-v0: a step" in result.output
    tree = json.loads(file.read_text())
    (row,) = tree["explain"]
    assert 0.9 < row["skipped"] <= 1.0
    assert tree["environments"] == []


def test_senders_are_compared_with_the_first(monkeypatch):
    """Flows in use are those of the simulator; the first sender's cost is 1."""
    few = senders.SENDERS[:1], "hpcc:hpcc"
    monkeypatch.setattr(senders, "SENDERS", (*few[0], few[1]))
    monkeypatch.setattr(senders, "ENVS", 4)
    first, other = senders.rows("websearch-star-v0", QUICK, lambda task: None)
    assert (first["sender"], other["sender"]) == senders.SENDERS
    assert first["over_first"] == 1.0
    ratio = other["cpu_ns_per_busy_flow_substep"] / first["cpu_ns_per_busy_flow_substep"]
    assert other["over_first"] == pytest.approx(ratio)
    for row in (first, other):
        assert 0.0 < row["busy"] < row["slots"]
        assert 0.9 < row["skipped"] <= 1.0
    assert senders.table("websearch-star-v0", [first, other]).row_count == 2
