"""The comparison against small cases by hand, and changes that must not affect it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic import record

from ecn_marl._files import json_text, without_nan
from ecn_marl.baselines.evaluation.completion import SLOWDOWNS
from ecn_marl.experiments.compare import ARITHMETIC, GEOMETRIC, compare, overall
from ecn_marl.experiments.records import Record


def make_record(name: str, objective, **columns) -> Record:
    """A record with this J, `[seeds, episodes]` (or one seed); other columns are plain."""
    J = np.atleast_2d(np.array(objective, float))
    plain = {"queue_mean": 1e4, "utilisation": 0.5, "reward": -2.0, "offered": 100.0}
    plain |= dict.fromkeys(("started", "bytes_offered", "flow_ticks"), 100.0)
    zero = ("finished", "unfinished", "deferred", "waiting", "bytes_dropped", "feedback_cut")
    zero += tuple(f"{size}_unfinished" for size in ("short", "medium", "long"))
    plain |= dict.fromkeys(zero, 0.0) | dict.fromkeys(SLOWDOWNS, 3.0) | columns
    full = {key: np.broadcast_to(x, J.shape).astype(float) for key, x in plain.items()}
    return Record(name, {"scenario": "s"}, {"J": J, **full})


def compared(*records: Record, **options) -> dict[str, dict]:
    comparison = compare({x.name: x for x in records}, **options)
    assert json.loads(json_text(comparison)) == without_nan(comparison)
    return {row["name"]: row for row in comparison["policies"]}


BEST = make_record("static:best", [8.0, 2.0])
ORACLE = make_record("oracle", [4.0, 1.0])


def test_scores_are_geometric_means_of_ratios():
    rows = compared(BEST, ORACLE, make_record("ippo", [[8.0, 1.0], [2.0, 2.0]]))
    ippo = rows["ippo"]
    # Ratios 1, 1/2, 1/4, 1: their product is 1/8.
    assert ippo["score"]["value"] == pytest.approx(0.125**0.25)
    assert ippo["figures"]["J"]["value"]["value"] == pytest.approx(32.0**0.25)
    assert ippo["gain"]["value"] == pytest.approx(1.0 - 0.125**0.25)
    assert ippo["gain"]["low"] == pytest.approx(1.0 - ippo["score"]["high"])
    np.testing.assert_allclose(ippo["over_seeds"]["scores"], [[0.5**0.5], [0.25**0.5]], rtol=1e-12)
    # log2: of 1 that the oracle gains, the seeds gain (0 + 1) / 2 and (2 + 0) / 2.
    assert ippo["share"]["value"] == pytest.approx(0.75)
    assert rows["static:best"]["score"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert rows["static:best"]["share"]["value"] == 0.0
    assert rows["oracle"]["share"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert rows["oracle"]["score"] == pytest.approx({"value": 0.5, "low": 0.5, "high": 0.5})


def test_improvement_counts_pairs_and_halves_ties():
    rows = compared(BEST, make_record("a", [[8.0, 1.0], [9.0, 2.0]]), make_record("b", [8.5, 1.0]))
    assert rows["a"]["improvement"]["value"] == pytest.approx((0.5 + 1 + 0 + 0.5) / 4)
    assert rows["a"]["over"]["b"]["value"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert rows["b"]["over"]["a"]["value"] == pytest.approx(1 - 1.5 / 4)
    assert set(rows["a"]["over"]) == {"static:best", "b"}
    estimate = rows["a"]["improvement"]
    assert 0.0 <= estimate["low"] <= estimate["value"] <= estimate["high"] <= 1.0


def test_the_difficulty_of_an_episode_cancels():
    """A factor on an episode, the same for all policies, changes no ratio and no interval."""
    luck = np.exp(np.random.default_rng(0).normal(size=6))
    geometric = {name: luck for name in GEOMETRIC}

    def hit(original: Record) -> Record:
        columns = {k: x * geometric.get(k, 1.0) for k, x in original.columns.items()}
        return Record(original.name, original.meta, columns)

    plain = [record("static:best"), record("oracle", (0.5, 1.0, 1.0)), record("ippo", seeds=3)]
    before, after = compared(*plain), compared(*(hit(original) for original in plain))
    for name in before:
        for column in ("score", "share", "improvement"):
            assert after[name][column] == pytest.approx(before[name][column], abs=1e-4)
        for figure in GEOMETRIC:
            ratios = (rows[name]["figures"][figure]["ratio"] for rows in (before, after))
            assert next(ratios) == pytest.approx(next(ratios), abs=1e-4)
    value = [rows["ippo"]["figures"]["J"]["value"] for rows in (before, after)]
    width = [np.log(original["high"] / original["low"]) for original in value]
    assert width[1] > 1.5 * width[0]  # what is not paired does change


def test_a_row_does_not_depend_on_other_policies():
    records = [record("static:best"), record("ippo", (0.6, 1.0, 1.0), seeds=3)]
    alone = compared(*records)["ippo"]
    beside = compared(*records, record("mappo", seeds=2))["ippo"]
    beside["over"].pop("mappo")
    assert beside == alone


def test_the_score_is_the_product_of_its_parts():
    rows = compared(record("static:best"), record("ippo", (0.6, 1.0, 1.2), seeds=2))
    ratio = {k: f["ratio"]["value"] for k, f in rows["ippo"]["figures"].items()}
    parts = (ratio["short_mean"] * ratio["short_p99"]) ** 0.25 * ratio["long_geomean"] ** 0.5
    assert rows["ippo"]["score"]["value"] == pytest.approx(parts, rel=1e-4)


def test_more_seeds_and_episodes_narrow_the_intervals():
    def width(seeds: int, episodes: int) -> float:
        rows = compared(
            record("static:best", episodes=episodes),
            record("ippo", seeds=seeds, episodes=episodes),
        )
        return rows["ippo"]["score"]["high"] - rows["ippo"]["score"]["low"]

    assert width(10, 6) < 0.5 * width(3, 6)
    assert width(1, 48) < 0.6 * width(1, 6)


def test_figures_with_arithmetic_means():
    best = make_record("static:best", [1.0, 1.0], reward=[-2.0, -4.0], queue_mean=[1e4, 3e4])
    other = make_record(
        "x", [1.0, 1.0], reward=[-1.0, -3.5], queue_mean=[1e4, 1e4], utilisation=0.6
    )
    figures = compared(best, other)["x"]["figures"]
    assert figures["reward"]["difference"]["value"] == pytest.approx(0.75)
    assert figures["reward"]["ratio"]["value"] == pytest.approx(0.75)
    assert figures["queue_mean"]["ratio"]["value"] == pytest.approx(0.5)
    assert figures["utilisation"]["ratio"] == pytest.approx({"value": 1.2, "low": 1.2, "high": 1.2})
    signs = make_record("y", [1.0, 1.0], reward=[1.0, 2.0])
    assert np.isnan(compared(best, signs)["y"]["figures"]["reward"]["ratio"]["value"])
    assert set(ARITHMETIC) < set(figures)


def test_intervals_of_few_episodes_are_not_below_zero():
    """A queue that one episode of three has: plain intervals of it and its ratio reach below 0."""
    best = make_record("static:best", [1.0] * 3, queue_mean=[1e4, 1.1e4, 0.9e4])
    other = make_record("x", [[1.0] * 3] * 2, queue_mean=[[0.0, 0.0, 3e4], [0.0, 0.0, 2e4]])
    rows = compared(best, other)
    for name in ("value", "ratio"):
        ends = rows["x"]["figures"]["queue_mean"][name]
        assert 0.0 <= ends["low"] < ends["value"] < ends["high"]
    assert rows["x"]["figures"]["queue_mean"]["difference"]["low"] < 0.0
    # A reward has either sign; a ratio of rewards only where all resamples have one.
    signs = make_record("y", [1.0] * 3, reward=[-9.0, 1.0, -9.0])
    figure = compared(best, signs)["y"]["figures"]["reward"]
    assert figure["value"]["low"] < 0.0 < figure["value"]["high"]
    assert np.isnan(figure["ratio"]["value"])


def test_episodes_without_a_figure_are_left_out_and_counted():
    best = make_record("static:best", [8.0, np.nan, 2.0])
    rows = compared(best, make_record("x", [4.0, 1.0, 2.0]), make_record("none", [np.nan] * 3))
    figure = rows["x"]["figures"]["J"]
    assert (figure["missing"], rows["x"]["score"]["value"]) == (1, pytest.approx(0.5**0.5))
    assert rows["x"]["improvement"]["value"] == pytest.approx(0.75)
    assert rows["none"]["figures"]["J"]["missing"] == 3
    assert np.isnan(rows["none"]["score"]["value"]) and rows["none"]["over_seeds"] is None


def test_an_oracle_that_gains_nothing_has_no_share():
    noise = np.random.default_rng(1).normal(size=8)
    best = make_record("static:best", np.exp(noise))
    assert compared(best, make_record("oracle", 2.0 * np.exp(noise)))["oracle"]["share"] is None
    assert compared(best)["static:best"]["share"] is None
    flat, gaps = make_record("static:best", np.ones(6)), np.array([1.0, -0.9, 1.0, -0.9, 0.5, -0.4])
    share = compared(
        flat, make_record("oracle", np.exp(-gaps)), make_record("x", np.full(6, 0.99))
    )["x"]["share"]
    assert share["value"] == pytest.approx(-np.log(0.99) / gaps.mean(), rel=1e-3)
    assert np.isnan(share["low"]) and np.isnan(share["high"])


def test_the_oracle_by_ports_is_the_scale_if_it_is_there():
    rows = compared(BEST, ORACLE, make_record("oracle:ports", [2.0, 0.5]))
    assert rows["oracle:ports"]["share"]["value"] == 1.0
    assert rows["oracle"]["share"]["value"] == pytest.approx(0.5)
    assert compare({"static:best": BEST, "oracle": ORACLE})["oracle"] == "oracle"
    assert compare({"static:best": BEST})["oracle"] is None


def test_worse_slowdowns_and_their_certainty():
    """7 % worse in every episode is certain; 7 % with much noise is not; 4 % is not worse."""
    wild = np.exp(np.array([[-0.9, 0.9, -0.5, 0.5]]) + np.log(1.07))
    best = make_record("static:best", np.ones(4))
    other = make_record(
        "x", np.ones(4), long_geomean=3.0 * 1.07, medium_p99=3.0 * wild, short_mean=3.0 * 1.04
    )
    worse = compared(best, other)["x"]["worse"]
    assert [(w["figure"], w["size"], w["certain"]) for w in worse] == [
        ("medium_p99", "medium", False),
        ("long_geomean", "long", True),
    ]
    assert worse[1]["ratio"]["value"] == pytest.approx(1.07)


def test_unfinished_flows_make_lower_bounds():
    best = make_record("static:best", [1.0, 1.0])
    figures = compared(best, make_record("x", [1.0, 1.0], medium_unfinished=[0.0, 1.0]))["x"][
        "figures"
    ]
    assert [k for k, f in figures.items() if f["lower_bound"]] == [
        "medium_mean",
        "medium_p99",
        "medium_geomean",
    ]
    figures = compared(best, make_record("x", [1.0, 1.0], long_unfinished=1.0))["x"]["figures"]
    marked = {k for k, f in figures.items() if f["lower_bound"]}
    assert marked == {"J", "long_mean", "long_p99", "long_geomean"}


def test_an_invalid_baseline_makes_all_rows_invalid():
    rows = compared(
        make_record("static:best", [1.0, 1.0], waiting=1.0), make_record("x", [1.0, 1.0])
    )
    assert len(rows["static:best"]["invalid"]) == 1
    assert rows["x"]["invalid"] == ["the baseline static:best is invalid"]
    assert all(row["refused"] for row in rows.values())
    rows = compared(BEST, make_record("x", [1.0, 1.0], bytes_dropped=1.0))
    assert rows["static:best"]["invalid"] == [] and len(rows["x"]["invalid"]) == 1
    assert not rows["static:best"]["refused"]


def test_scores_of_results_that_do_not_count_are_withheld_unless_they_are_allowed():
    bad = make_record("bad", [4.0, 1.0], deferred=1.0, waiting=0.0)
    row = compared(BEST, ORACLE, bad)["bad"]
    assert row["refused"] and len(row["invalid"]) == 1
    hidden = (row["score"], row["gain"], row["improvement"], row["over"]["oracle"])
    hidden += tuple(row["figures"]["J"][name] for name in ("value", "ratio"))
    assert all(np.isnan(x["value"]) for x in hidden)
    assert row["share"] is None and row["over_seeds"] is None
    # What was measured stays.
    assert row["figures"]["short_mean"]["value"]["value"] == pytest.approx(3.0)
    scenario = {"a": compare({x.name: x for x in (BEST, bad)})}
    assert overall(scenario)["left_out"] == {"bad": "invalid in a"}
    allowed = compared(BEST, ORACLE, bad, allow_flagged=True)["bad"]
    assert not allowed["refused"] and allowed["invalid"] == row["invalid"]
    assert allowed["score"]["value"] == pytest.approx(0.5)
    assert allowed["share"]["value"] == pytest.approx(1.0)


def test_flags_without_a_share_count_at_once():
    wrapped = make_record("x", [1.0, 1.0], flags=64.0)
    row = compared(BEST, wrapped)["x"]
    assert row["refused"]
    (reason,) = row["invalid"]
    assert reason.startswith("a counter passed 2^31") and "in 2 of 2 episodes" in reason
    assert "max_steps" in reason


def test_records_of_other_episodes_are_refused():
    with pytest.raises(ValueError, match="static:best"):
        compare({"oracle": ORACLE})
    with pytest.raises(ValueError, match="episodes of x = 3"):
        compared(BEST, make_record("x", [1.0, 2.0, 3.0]))
    other = make_record("x", [1.0, 2.0])
    other.meta["scenario"] = "t"
    with pytest.raises(ValueError, match="scenario of x = 't'"):
        compared(BEST, other)
    with pytest.raises(ValueError, match="seeds = 2"):
        compared(make_record("static:best", [[1.0, 2.0], [1.0, 2.0]]))


def test_overall_has_policies_with_a_score_in_all_scenarios():
    def scenario(*others: Record) -> dict:
        return compare({policy.name: policy for policy in (BEST, *others)})

    half = make_record("ippo", [[4.0, 1.0], [8.0, 2.0]])
    quarter = make_record("ippo", [[2.0, 0.5], [4.0, 1.0]])
    bad = make_record("bad", [1.0, 1.0], deferred=9.0)
    statistics = overall(
        {
            "a": scenario(
                half, make_record("few", [[1.0, 1.0]]), make_record("part", [1.0, 1.0]), bad
            ),
            "b": scenario(
                quarter, make_record("few", [[1.0, 1.0]] * 2), make_record("bad", [1.0, 1.0])
            ),
        }
    )
    assert set(statistics["policies"]) == {"static:best", "ippo"}
    ippo = statistics["policies"]["ippo"]
    np.testing.assert_allclose(ippo["scores"], [[0.5, 0.25], [1.0, 0.5]])
    assert ippo["iqm"]["value"] == pytest.approx(0.5)
    below = dict(zip(ippo["profile"]["thresholds"], ippo["profile"]["below"], strict=True))
    assert (below[0.49], below[0.6], below[1.0]) == (0.25, 0.75, 1.0)
    assert statistics["left_out"] == {
        "few": "1 or 2 seeds, not the same number everywhere",
        "part": "not scored in b",
        "bad": "invalid in a",
    }
