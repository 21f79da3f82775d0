"""Tables: all numbers are in them, at common widths of terminals."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console
from synthetic import record

from ecn_marl.baselines.evaluation.completion import summarise
from ecn_marl.render.tables import evaluation_tables, kilobytes, number, percent


def text(table, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue()


def row(name: str, scale: float, **columns):
    return summarise(name, record(name, (scale, 1.0, 1.0), **columns).columns)


RESULT = {
    "scenario": "websearch-v0",
    "episodes": 6,
    "seed": 5,
    "policies": [row("a", 1.0), row("b", 0.5), row("c", 0.7, seeds=3)],
}
LABELS = {"a": "SECN2 (100,400,0.2)", "b": "IPPO b", "c": "IPPO c"}


def shown(policies: list, width: int) -> list[str]:
    result = {**RESULT, "policies": policies}
    return [text(table, width) for table in evaluation_tables(result, LABELS.__getitem__, width)]


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("width", [80, 110])
def test_completion_times_are_whole_and_sorted(width, scored):
    policies = [dict(policy) for policy in RESULT["policies"]]
    if scored:
        policies[0] |= {"score": {"value": float("nan")}, "share": None}
        policies[1] |= {"score": {"value": 0.789}, "share": {"value": 0.456}}
        policies[2] |= {"score": {"value": 0.654}, "share": {"value": -0.1}}
    printed = shown(policies, width)[0]
    assert "…" not in printed
    assert "6 episodes never trained on, seed 5" in printed
    lines = printed.splitlines()
    assert sum("≥" in line and "±" in line for line in lines) == 3  # one line each
    for policy in policies:
        short, long = policy["slowdown"]["short"], policy["slowdown"]["long"]
        half_width = (policy["J"]["high"] - policy["J"]["low"]) / 2
        cells = (
            f"{policy['J']['value']:.2f}±{half_width:.2f}",
            f"{short['mean']:.2f}/{short['p99']:.1f}",
            f"≥{long['geomean']:.2f}/{long['p99']:.1f}",
        )
        assert all(cell in printed for cell in cells)
    assert printed.index("IPPO b") < printed.index("IPPO c, 3 seeds") < printed.index("SECN2")
    assert "INVALID" not in printed
    assert ("0.79" in printed and "46%" in printed and "Score:" in printed) == scored


@pytest.mark.parametrize("width", [80, 110])
def test_flows_and_ports(width):
    columns = {"deferred": np.full(6, 7.0), "deferred_us": np.full(6, 5.5)}
    invalid = row("b", 0.5, flows_waiting=np.full(6, 3), **columns)
    _, flows, ports = shown([invalid, row("c", 1.0)], width)
    for printed in (flows, ports):
        assert "…" not in printed and printed.index("IPPO c") < printed.index("INVALID")
    line = next(line for line in flows.splitlines() if "3,138" in line)
    assert line.split()[-7:] == ["3,138", "3,120", "3,084", "36", "42", "33", "18"]
    for cell in (
        f"{invalid['reward']['mean']:.4f}±{invalid['reward']['ci95']:.4f}",
        f"{invalid['queue_mean'] / 1e3:.1f}±{invalid['queue_std'] / 1e3:.1f}",
        f"{invalid['utilisation']:.1%}",
    ):
        assert cell in ports


@pytest.mark.parametrize("width", [80, 110])
def test_flowlets_are_shown_where_there_are_any(width):
    drawn = {"flowlets": np.full(6, 4.0), "flowlets_kept": np.full(6, 2.5)}
    policies = [row("b", 0.5, **drawn), row("c", 1.0, **drawn)]
    assert policies[0]["flows"]["flowlets"] == 24
    flows = shown(policies, width)[1]
    assert "…" not in flows and "Flowlets:" in flows
    assert [line.split()[-2:] for line in flows.splitlines() if "3,120" in line] == [
        ["24", "15"]
    ] * 2
    assert "lowlets" not in shown([row("b", 0.5)], width)[1]


def test_invalid_policies_say_why():
    waiting = {"flows_waiting": np.full(6, 52.0)}
    bad = row("b", 0.5, **waiting)
    printed = shown([bad, RESULT["policies"][0]], 110)[0]
    assert printed.index("SECN2") < printed.index("INVALID")
    reason = (
        "INVALID IPPO b: 9.1 % of flows deferred or waiting (allowed: 0.1 %; cure: more `slots`"
    )
    assert reason in " ".join(printed.split())
    assert "not scored (--allow-flagged does)." in " ".join(printed.split())
    line = next(line for line in printed.splitlines() if line.strip().startswith("INVALID"))
    assert line.split()[1] == "–", "J is withheld"


def test_no_flows_leave_dashes():
    printed = shown([row("b", 1.0, flows_measured=np.zeros((6, 3)))], 110)[0]
    assert "–/–" in printed


@pytest.mark.parametrize("half", [None, float("nan")])
def test_one_episode_has_no_interval(half):
    policy = row("b", 1.0) | {"reward": {"mean": 0.5, "ci95": half}}
    policy["J"] = {"value": 3.21, "low": None, "high": None, "missing": 0}
    times, _, ports = shown([policy], 100)
    assert "0.5000" in ports and "0.5000±" not in ports
    assert "3.21" in times and "3.21±" not in times


def test_cells():
    assert number(1234.567) == "1,234.57"
    assert number(None) == number(float("nan")) == kilobytes(None) == percent(float("nan")) == "–"
    assert kilobytes(1500.0) == "1.5"
    assert percent(0.1234) == "12.3%"
