"""Tables: every number that was found is there, at the widths terminals have."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ecn_marl.report.tables import evaluation_table, kilobytes, number, percent


def text(table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


def row(name: str, reward: float, half: float | None = 0.00123, **more):
    slow = {"flows": 9, "mean": 12.345, "p99": 23.456}
    return {
        "name": name,
        "reward": {"mean": reward, "ci95": half},
        "slowdown": {
            "mice": slow,
            "medium": slow,
            "elephants": {**slow, "mean": None, "p99": None},
        },
        "queue_mean": 12_345.0,
        "queue_std": 67_890.0,
        "utilisation": 0.4567,
        "pauses": 1234,
        **more,
    }


RESULT = {
    "scenario": "websearch-v0",
    "episodes": 64,
    "seed": 5,
    "policies": [row("a", 0.5), row("b", 0.75), row("b", 0.25, seeds=3)],
}


@pytest.mark.parametrize("width", [80, 110])
def test_evaluation_table_is_whole_and_sorted(width):
    table = evaluation_table(RESULT, {"a": "SECN2 (100,400,0.2)", "b": "IPPO b"}.__getitem__, width)
    printed = text(table, width)
    assert "…" not in printed
    assert "64 episodes never trained on, seed 5" in printed
    for cell in ("0.7500±0.0012", "12.35/23.5", "–/–", "12.3±67.9", "45.7%", "1,234"):
        assert cell in printed
    assert "seeds" in printed
    assert printed.index("0.7500") < printed.index("0.5000") < printed.index("0.2500")


@pytest.mark.parametrize("half", [None, float("nan")])
def test_one_episode_has_no_interval(half):
    one = row("a", 0.5, half)
    printed = text(evaluation_table({**RESULT, "policies": [one]}, str), 100)
    assert "0.5000" in printed
    assert "0.5000±" not in printed


def test_cells():
    assert number(1234.567) == "1,234.57"
    assert number(None) == number(float("nan")) == kilobytes(None) == percent(float("nan")) == "–"
    assert kilobytes(1500.0) == "1.5"
    assert percent(0.1234) == "12.3%"
