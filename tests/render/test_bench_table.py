"""The Markdown tables of a comparison: all numbers, and their marks."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import record

from ecn_marl.experiments.compare import compare, overall
from ecn_marl.render.bench_table import (
    COLUMNS,
    COUNT_COLUMNS,
    bench_table,
    estimated,
    policy_title,
    ranked,
)


def comparison(**changes):
    records = [
        record("static:best", meta={"settings": [[5, 320, 0.02]]}),
        record("oracle", (0.4, 1.0, 1.1), meta={"settings": [[1, 2, 0.1], [3, 4, 0.2]]}),
        record("static:secn1", (1.5, 1.0, 1.0)),
        record(
            "ippo",
            (0.6, 1.0, 1.0),
            seeds=3,
            meta={"steps": 700_000, "seconds": 1234.5, "us_per_decision": 3.21},
            flops_per_decision=np.full(6, 4321.0),
            **changes,
        ),
    ]
    return compare({x.name: x for x in records})


def cells(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose head starts with this, without the head."""
    lines = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_first_table_leads_with_the_score():
    result = comparison()
    text = bench_table({"scenarios": {"restore-serve-v0": result}})
    assert text.startswith("## restore-serve-v0\n\n| policy | score | J |")
    assert len(COLUMNS) <= 9 and len(COUNT_COLUMNS) <= 9
    rows = cells(text, "policy | score")
    assert [row[0] for row in rows] == ["oracle", "ippo", "static:best (5,320,0.02)", "SECN1"]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    ippo = {row["name"]: row for row in result["policies"]}["ippo"]
    score = ippo["score"]
    assert rows[1][1] == f"{score['value']:.2f} [{score['low']:.2f}, {score['high']:.2f}]"
    short = [ippo["figures"][f"short_{x}"]["value"]["value"] for x in ("mean", "p99")]
    assert rows[1][3] == f"{short[0]:.2f} / {short[1]:.1f}"
    assert [cell.startswith("≥") for cell in rows[1][2:6]] == [True, False, False, True]
    assert rows[1][5].count("≥") == 3
    assert rows[2][6:] == ["–", "–", "–"]
    assert rows[3][8].startswith("short p99 +")


def test_ratios_and_counts_follow():
    result = comparison()
    text = bench_table({"scenarios": {"s": result}})
    ratios = cells(text, "policy | short mean")
    assert [row[0] for row in ratios] == ["oracle", "ippo", "SECN1"]
    ratio = result["policies"][1]["figures"]["short_p99"]["ratio"]
    assert ratios[0][2] == f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    counts = cells(text, "policy | offered")
    assert counts[0][1:] == ["520", "520", "514", "6.0", "0", "0", "0", "0"]
    costs = cells(text, "policy | cost of a decision")
    assert costs == [["ippo", "4,321 FLOPs, 3.2 µs", "1,234 s, 3 x 700 k steps"]]
    assert "INVALID" not in text


def test_losses_and_waits_are_shown():
    columns = {"deferred": 0.5, "deferred_us": 5.0, "bytes_dropped": 12e3, "feedback_cut": 2.0}
    result = comparison(**{name: np.full(6, x) for name, x in columns.items()})
    ippo = next(row for row in result["policies"] if row["name"] == "ippo")
    text = bench_table({"scenarios": {"s": result}})
    row = next(row for row in cells(text, "policy | offered") if row[0].endswith("ippo"))
    assert row[5] == "0.5 (10.0)"
    assert row[7] == f"{100 * ippo['dropped']:.2g} %" and ippo["dropped"] > 0
    assert row[8] == f"{100 * ippo['cut']:.2g} %" and ippo["cut"] > 0
    # A record of an old version does not say how long flows waited.
    del ippo["flows"]["deferred_us"]
    assert "| 0.5 (–) |" in bench_table({"scenarios": {"s": result}})


def test_invalid_rows_are_last_and_say_why():
    text = bench_table({"scenarios": {"s": comparison(deferred=np.full(6, 26.0))}})
    rows = cells(text, "policy | score")
    assert rows[-1][0] == "**INVALID** ippo"
    assert "* INVALID ippo: 5 % of flows deferred or waiting (allowed: 0.1 %; cure: more" in text
    assert "not scored (--allow-flagged does)." in text
    assert rows[-1][1:3] == ["–", "–"], "neither a score nor J"


def test_episodes_without_a_score_are_counted():
    measured = np.tile([400, 60, 12], (6, 1))
    measured[0, 2] = 0
    text = bench_table({"scenarios": {"s": comparison(flows_measured=measured)}})
    assert "* ippo: no J in 3 episodes, which are left out of it." in text


def test_overall_comes_last():
    scenarios = {"a": comparison(), "b": comparison()}
    scenarios["b"]["policies"].pop()
    text = bench_table({"scenarios": scenarios, "overall": overall(scenarios)})
    rows = cells(text, "policy | score, interquartile mean")
    assert [row[0] for row in rows] == ["oracle", "static:best", "SECN1"]
    assert "* ippo: not scored in b." in text
    assert text.index("## All scenarios") > text.index("## b") > text.index("## a")


@pytest.mark.parametrize(
    ("name", "settings", "title"),
    [
        ("static:best", [[5, 20.0, 0.5]], "static:best (5,20,0.5)"),
        ("static:5,20,0.5", [[5, 20.0, 0.5]], "static:5,20,0.5"),
        ("oracle", [[5, 20.0, 0.5]] * 2, "oracle"),
        ("ippo", {"hidden": 1}, "ippo"),
        ("static:secn2", None, "SECN2"),
    ],
)
def test_titles(name, settings, title):
    assert policy_title({"name": name, "meta": {"settings": settings}}) == title


def test_estimates_without_intervals():
    nan = float("nan")
    assert estimated({"value": nan, "low": nan, "high": nan}) == "–"
    assert estimated({"value": 0.5, "low": None, "high": None}) == "0.50"
    assert estimated({"value": 0.5, "low": 0.25, "high": 1.0}) == "0.50 [0.25, 1.00]"


def test_rows_without_a_score_come_after_those_with_one():
    rows = [{"invalid": [], "score": {"value": x}} for x in (float("nan"), 2.0, None, 1.0)]
    assert [row["score"]["value"] for row in ranked(rows)][:2] == [1.0, 2.0]
