"""Tables: every number that was found is there, at the widths terminals have."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from synthetic import record

from ecn_marl.baselines.common.completion import summarise
from ecn_marl.report.tables import evaluation_table, flows_table, kilobytes, number, percent


def text(table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


def row(name: str, scale: float, **more):
    return summarise(name, record(name, (scale, 1.0, 1.0), **more).columns)


RESULT = {
    "scenario": "websearch-v0",
    "episodes": 6,
    "seed": 5,
    "policies": [row("a", 1.0), row("b", 0.5), row("c", 0.7, seeds=3)],
}
LABELS = {"a": "SECN2 (100,400,0.2)", "b": "IPPO b", "c": "IPPO c"}


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("width", [80, 110])
def test_evaluation_table_is_whole_and_sorted(width, scored):
    policies = [dict(one) for one in RESULT["policies"]]
    if scored:
        policies[1] |= {"score": {"value": 0.789}, "share": {"value": 0.456}}
        policies[2] |= {"score": {"value": float("nan")}, "share": None}
    table = evaluation_table(RESULT | {"policies": policies}, LABELS.__getitem__, width)
    printed = text(table, width)
    assert "…" not in printed
    assert "6 episodes never trained on, seed 5" in printed
    assert all(len(line) <= width for line in printed.splitlines())
    for one in policies:
        short, long = one["slowdown"]["short"], one["slowdown"]["long"]
        half = (one["J"]["high"] - one["J"]["low"]) / 2
        cells = (
            f"{one['J']['value']:.2f}±{half:.2f}",
            f"{short['mean']:.2f}/{short['p99']:.1f}",
            f"≥{long['geomean']:.2f}/{long['p99']:.1f}",
            f"{one['reward']['mean']:.4f}",
        )
        for cell in cells:
            assert cell in printed
    assert printed.index("IPPO b") < printed.index("IPPO c") < printed.index("SECN2")
    assert "3 seeds" in printed and "INVALID" not in printed
    assert ("0.79" in printed and "46%" in printed and "Score:" in printed) == scored


def test_invalid_policies_are_marked_and_last():
    bad = row("b", 0.5, waiting=np.full(6, 52.0))
    result = RESULT | {"policies": [bad, RESULT["policies"][0]]}
    printed = text(evaluation_table(result, LABELS.__getitem__, 110), 110)
    assert printed.index("SECN2") < printed.index("INVALID IPPO b")
    assert "INVALID IPPO b: 9.1 % of flows deferred or waiting" in printed


def test_no_flows_leave_dashes():
    none = row("a", 1.0, flows_measured=np.zeros((6, 3)))
    assert "–/–" in text(evaluation_table(RESULT | {"policies": [none]}, str), 110)


@pytest.mark.parametrize("width", [80, 110])
def test_flows_table_has_every_count(width):
    waiting = row("a", 1.0, flows_waiting=np.full(6, 3), deferred=np.full(6, 7.0))
    printed = text(flows_table(RESULT | {"policies": [waiting]}, str), width)
    assert "…" not in printed
    line = next(line for line in printed.splitlines() if line.startswith("INVALID a"))
    assert line.split()[2:] == ["3,138", "3,120", "3,084", "36", "42", "18", "0.0%", "18"]


def test_cells():
    assert number(1234.567) == "1,234.57"
    assert number(None) == number(float("nan")) == kilobytes(None) == percent(float("nan")) == "–"
    assert kilobytes(1500.0) == "1.5"
    assert percent(0.1234) == "12.3%"
