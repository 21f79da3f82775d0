"""An evaluation's completion times against episodes written out by hand."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from scipy import stats

import ecn_marl
from ecn_marl._flags import names
from ecn_marl.baselines.evaluation.completion import invalid_reasons, objective, summarise
from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.envs.episode import ACCOUNTS, FLOWLETS
from ecn_marl.sim import Poisson, leaf_spine

BINS = 400


def histogram(*classes: list[float]) -> np.ndarray:
    """Log-spaced bins from 1 to 1e4, as the environment counts slowdowns."""
    edges = np.geomspace(1.0, 1e4, BINS + 1)
    return np.stack([np.histogram(values, edges)[0] for values in classes])


def episodes(*slowdowns: tuple[list[float], list[float], list[float]], **changes) -> Evaluation:
    """Episodes with these slowdowns of short, medium and long flows."""
    n = len(slowdowns)
    sizes = np.array([[len(values) for values in classes] for classes in slowdowns])
    metrics = {
        "flows_measured": sizes,
        "flows_unfinished": np.zeros((n, 3), int),
        "slowdown_sum": np.array([[sum(values) for values in classes] for classes in slowdowns]),
        "slowdown_log_sum": np.array(
            [[np.log(values).sum() for values in classes] for classes in slowdowns]
        ),
        "slowdown_histogram": np.stack([histogram(*classes) for classes in slowdowns]),
        "flows_started": sizes.sum(1) + 5,
        "flows_finished": sizes + 1,
        "flows_waiting": np.zeros(n, int),
        "deferred": np.zeros(n, int),
        "deferred_us": np.zeros(n),
        "bytes_offered": np.full(n, 1e9),
        "bytes_dropped": np.zeros(n),
        "feedback_cut": np.zeros(n),
        "flow_ticks": np.full(n, 1e6),
        "reward": np.arange(n, dtype=float),
        "queue_mean": np.array([1e3, 3e3, 2e3])[:n],
        "queue_std": np.full(n, 500.0),
        "utilisation": np.full(n, 0.5),
        "paused": np.zeros(n),
        "pauses": np.ones(n, int),
        **changes,
    }
    return Evaluation("x", metrics)


PLAIN = episodes(([2.0, 4.0], [3.0], [2.0, 8.0]), ([1.5, 3.0, 6.0], [], [9.0]))


def test_parts_of_an_episode():
    columns = PLAIN.columns
    short_mean, short_p99 = columns["short_mean"], columns["short_p99"]
    np.testing.assert_allclose(short_mean, [3.0, 3.5])
    np.testing.assert_allclose(columns["long_geomean"], [4.0, 9.0])
    # 99 % of two or three flows: within the largest one's bin, a factor of 1e4^(1/400).
    np.testing.assert_allclose(short_p99, [4.0, 6.0], rtol=0.024)
    expected = (short_mean * short_p99) ** 0.25 * columns["long_geomean"] ** 0.5
    np.testing.assert_allclose(columns["J"], expected)
    assert columns["J"].dtype == np.float64
    assert objective(np.array(16.0), np.array(1.0), np.array(9.0)) == pytest.approx(6.0)


def test_classes_without_flows_are_not_numbers():
    columns = PLAIN.columns
    np.testing.assert_array_equal(np.isnan(columns["medium_mean"]), [False, True])
    np.testing.assert_array_equal(np.isnan(columns["medium_p99"]), [False, True])
    assert np.isfinite(columns["J"]).all()


@pytest.mark.parametrize("empty", [([], [3.0], [2.0]), ([2.0], [3.0], [])])
def test_episodes_without_short_or_long_flows_are_counted_not_averaged(empty):
    evaluation = episodes(empty, ([2.0], [3.0], [4.0]))
    assert np.isnan(evaluation.columns["J"][0])
    estimate = evaluation.summary()["J"]
    assert estimate["missing"] == 1
    assert estimate["value"] == pytest.approx(evaluation.columns["J"][1])
    assert estimate["low"] is None and estimate["high"] is None


def test_counts_of_flows():
    evaluation = episodes(
        ([2.0], [3.0], [4.0]), flows_waiting=np.array([2]), deferred=np.array([1])
    )
    flows = evaluation.summary()["flows"]
    assert flows == {
        "offered": 10,
        "started": 8,
        "finished": 6,
        "unfinished": 2,
        "deferred": 1,
        "waiting": 2,
        "deferred_us": 0,
        "dropped": 0,
        "late_feedback": 0,
    }


def test_accounts_agree_in_info_metrics_and_summary():
    """Those of flowlets are among them."""
    source = Poisson(load=0.5, table="FbHdp")
    net = leaf_spine(2, 2, 2, gbps=1.0, uplink_gbps=1.0)
    env = ecn_marl.make(
        "websearch-v0",
        topology=net,
        traffic=(source,),
        load_balancing="flowlet",
        flowlet_gap_us=5.0,
    )
    params, key = env.default_params, jax.random.key(0)
    ecn = env.static_ecn("secn1", params)

    @jax.jit
    def run(key):
        def step(state, _):
            _, state, *_, info = env.step_ecn(key, state, ecn, params)
            return state, info

        state, info = jax.lax.scan(step, env.reset(key, params)[1], length=20)
        metrics = env.episode_metrics(state, params)
        return state, info, metrics, env.accounts(state.sim, params)

    state, info, metrics, accounts = jax.device_get(run(key))
    counts = {name: int(x) for name, x in accounts.items()}
    assert set(counts) == {*ACCOUNTS, "flags", *FLOWLETS}
    assert (counts["flowlets"], counts["flowlets_kept"]) == tuple(
        map(int, state.sim.totals.flowlets)
    )
    assert counts["started"] > 0 and counts["flowlets"] > 0
    for name, count in counts.items():
        assert int(metrics[name]) == int(info[name][-1, 0]) == count
    columns = {name: np.asarray(x)[None] for name, x in metrics.items()}
    summary = Evaluation("static", columns).summary()
    assert summary["flags"] == list(names(counts.pop("flags")))
    assert summary["flows"] == counts


def test_summary():
    unfinished = np.array([[0, 0, 1], [0, 0, 0]])
    evaluation = episodes(
        ([2.0, 4.0], [3.0], [2.0, 8.0]),
        ([1.5, 3.0, 6.0], [], [9.0]),
        flows_unfinished=unfinished,
        flops_per_decision=np.array([10.0, 20.0]),
    )
    summary = evaluation.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert list(summary)[:5] == ["name", "episodes", "seeds", "J", "parts"]
    logs = np.log(evaluation.columns["J"])
    assert summary["J"]["value"] == pytest.approx(np.exp(logs.mean()))
    ends = stats.t.interval(0.95, 1, loc=logs.mean(), scale=stats.sem(logs))
    assert (summary["J"]["low"], summary["J"]["high"]) == pytest.approx(tuple(np.exp(ends)))
    long = summary["slowdown"]["long"]
    assert (long["measured"], long["unfinished"], long["finished"]) == (3, 1, 5)
    assert long["geomean"] == pytest.approx((4.0 * 9.0) ** 0.5)
    assert long["mean"] == pytest.approx((5.0 * 9.0) ** 0.5)
    assert [summary["slowdown"][s]["lower_bound"] for s in ("short", "medium", "long")] == [
        False,
        False,
        True,
    ]
    assert summary["costs"] == {"flops_per_decision": 15.0}
    assert summary["queue_mean"] == 2e3
    assert summary["queue_std"] == pytest.approx((1e6 + 500.0**2) ** 0.5)
    assert summary["invalid"] == []


def test_the_summary_of_several_seeds_has_wider_intervals():
    """Seeds differ by a factor, which an interval over episodes alone ignores."""
    one_seed = {name: x[None] for name, x in PLAIN.columns.items()}
    two_seeds = {name: np.concatenate([x, 2.0 * x]) for name, x in one_seed.items()}
    narrow, wide = summarise("x", one_seed)["J"], summarise("x", two_seeds)["J"]
    assert wide["high"] / wide["low"] > 1.5 * narrow["high"] / narrow["low"]
    assert (summarise("x", two_seeds)["seeds"], summarise("x", two_seeds)["episodes"]) == (2, 2)


CLEAN = {
    "offered": [[1000.0, 1000.0]],
    "deferred": [[0.0, 0.0]],
    "waiting": [[0.0, 0.0]],
    "bytes_offered": [[1e9, 1e9]],
    "bytes_dropped": [[0.0, 0.0]],
    "flow_ticks": [[1e6, 1e6]],
    "feedback_cut": [[0.0, 0.0]],
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deferred": [[2.0, 0.0]]}, None),
        ({"deferred": [[2.0, 1.0]]}, "0.15 % of flows deferred or waiting"),
        ({"deferred": [[1.0, 0.0]], "waiting": [[2.0, 0.0]]}, "0.15 % of flows"),
        ({"bytes_dropped": [[2e6, 0.0]]}, None),
        ({"bytes_dropped": [[3e6, 0.0]]}, "0.15 % of bytes dropped"),
        ({"feedback_cut": [[0.0, 2e3]]}, None),
        ({"feedback_cut": [[0.0, 1e6]]}, "50 % of flow-ticks with feedback cut"),
    ],
)
def test_invalid_results_have_a_reason(change, reason):
    columns = {name: np.array(x) for name, x in (CLEAN | change).items()}
    reasons = invalid_reasons(columns)
    if reason is None:
        assert reasons == []
    else:
        (text,) = reasons
        assert text.startswith(reason) and "0.1 %" in text


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        # Which structure it was decides what cures it.
        ({"flags": [[1, 0]], "deferred": [[9, 0]]}, ["cure: more `slots`)"]),
        ({"flags": [[2, 0]], "deferred": [[9, 0]]}, ["cure: a larger `width`, or a shorter tick"]),
        ({"flags": [[3, 0]], "deferred": [[9, 0]]}, ["cure: more `slots`, or a larger `width`"]),
        ({"flags": [[4, 0]], "feedback_cut": [[0, 1e6]]}, ["cure: a longer `memory_us`)"]),
        (
            {"flags": [[8, 0]], "feedback_cut": [[0, 1e6]]},
            ["cure: `ack_priority`, a longer `dt_us`"],
        ),
        ({"flags": [[16, 0]], "flowlets_kept": [[0, 1e6]]}, ["of flow-ticks on a path kept"]),
        ({"flags": [[32, 0]], "bytes_spilled": [[9e6, 0]]}, ["cure: a larger `buffer_mib`"]),
        # At most one in a thousand: flagged, and still a result.
        ({"flags": [[1, 0]], "deferred": [[1, 0]]}, []),
        ({"flags": [[4, 0]], "feedback_cut": [[0, 1e3]]}, []),
        ({"flags": [[32, 0]], "bytes_spilled": [[1e6, 0]]}, []),
        # Drops that PFC need not have kept from happening are a signal.
        ({"flags": [[0, 0]], "bytes_dropped": [[9e8, 0]]}, []),
        # These have no share.
        ({"flags": [[64, 0]]}, ["a counter passed 2^31 and is wrong in 1 of 2 episodes"]),
        ({"flags": [[128, 128]]}, ["a parameter was NaN in 2 of 2 episodes (cure: other param"]),
        ({"flags": [[192, 0]]}, ["a counter passed", "a parameter was NaN in 1 of 2"]),
    ],
)
def test_flags_decide_what_counts_and_name_the_cure(change, reasons):
    new = {"flags": [[0, 0]], "bytes_spilled": [[0, 0]], "flowlets_kept": [[0, 0]]}
    columns = {name: np.array(x, float) for name, x in (CLEAN | new | change).items()}
    found = invalid_reasons(columns)
    assert len(found) == len(reasons)
    assert all(part in text for part, text in zip(reasons, found, strict=True)), found


def test_a_summary_withholds_j_unless_it_is_allowed():
    columns = {name: x[None] for name, x in PLAIN.columns.items()}
    columns["flags"] = np.array([[1.0, 4.0]])
    counts = summarise("x", columns)
    assert counts["flags"] == ["slots", "memory"]
    assert not counts["refused"] and counts["J"]["value"] == pytest.approx(
        float(np.exp(np.log(PLAIN.columns["J"]).mean()))
    )
    columns["deferred"] = 0.5 * columns["offered"]
    refused, allowed = summarise("x", columns), summarise("x", columns, allow_flagged=True)
    assert refused["refused"] and refused["J"]["value"] is None
    assert not allowed["refused"] and allowed["J"] == counts["J"]
    assert refused["invalid"] == allowed["invalid"] and len(refused["invalid"]) == 1
    assert refused["parts"] == counts["parts"]
    assert PLAIN.summary()["flags"] == []


def test_nothing_offered_is_valid_and_a_drop_of_nothing_is_not():
    nothing = {name: np.zeros((1, 2)) for name in CLEAN}
    assert invalid_reasons(nothing) == []
    assert len(invalid_reasons(nothing | {"waiting": np.ones((1, 2))})) == 1
