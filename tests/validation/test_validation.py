"""Validation: readers, verdicts, measured quantities, the command, and a real case."""

from __future__ import annotations

import json
import math
from importlib import resources

import numpy as np
import pytest
from commands import run

from ecn_marl.render.validation_table import error_text, figure, tolerance_text, verdict_text
from ecn_marl.sim.network.topology import star
from ecn_marl.validation import (
    endurance,
    expected,
    incast,
    leaf_spine,
    messages,
    recorded,
    registry,
    runs,
)
from ecn_marl.validation.lines import (
    Case,
    Line,
    Outcome,
    Slowdowns,
    Tolerance,
    Trace,
    theory_case,
)

NAN = math.nan


def line(reference: float, ours: float, tolerance: Tolerance | None, **more) -> Line:
    return Line("group", "case", "queue mean", more.pop("unit", "KB"), reference, ours, tolerance)


@pytest.mark.parametrize(
    ("reference", "ours", "tolerance", "verdict"),
    [
        (100.0, 110.0, Tolerance(relative=0.1), "pass"),
        (1.0, 1.1, Tolerance(relative=0.1), "pass"),  # 1.1 - 1.0 > 0.1 in floating point
        (100.0, 90.0, Tolerance(relative=0.1), "pass"),
        (100.0, 110.001, Tolerance(relative=0.1), "FAIL"),
        (100.0, 89.999, Tolerance(relative=0.1), "FAIL"),
        (10.0, 13.0, Tolerance(relative=0.1, absolute=3.0), "pass"),  # the larger part counts
        (10.0, 13.001, Tolerance(relative=0.1, absolute=3.0), "FAIL"),
        (100.0, 110.0, Tolerance(relative=0.1, absolute=3.0), "pass"),
        (-10.0, -10.9, Tolerance(relative=0.1), "pass"),
        (0.0, 0.0, Tolerance(), "pass"),
        (0.0, 1e-6, Tolerance(), "FAIL"),
        (100.0, NAN, Tolerance(relative=0.1), "FAIL"),
        (NAN, 100.0, Tolerance(relative=0.1, absolute=1e9), "FAIL"),
        (100.0, math.inf, Tolerance(relative=0.1), "FAIL"),
        (100.0, 500.0, None, "reported"),
    ],
)
def test_verdict(reference, ours, tolerance, verdict):
    assert line(reference, ours, tolerance).verdict == verdict


def test_line_texts():
    tolerance = Tolerance(relative=0.1, absolute=3.0)
    small, large = line(10.0, 13.0, tolerance), line(1000.0, 900.0, tolerance)
    assert (error_text(small), tolerance_text(small)) == ("+30.0%", "3 KB")
    assert (error_text(large), tolerance_text(large)) == ("-10.0%", "10%")
    share = line(98.0, 97.25, Tolerance(absolute=1.0), unit="%")
    assert (error_text(share), tolerance_text(share)) == ("-0.75 pt", "1 pt")
    assert tolerance_text(line(1.0, 2.0, None)) == "–"
    assert error_text(line(1.0, NAN, tolerance)) == "–"
    assert [figure(x) for x in (28854.7, 61.6848, 0.41605, 0.0, NAN)] == [
        *("28,855", "61.68", "0.416", "0", "–")
    ]


def test_recorded_tables():
    """Against statistics noted when the packet runs were made."""
    row = recorded.rows("incast_200ms", profile="paper", N=8, ecn="SECN1")[0]
    assert float(row["q_mean_B"]) == pytest.approx(151560, abs=1)
    assert len(recorded.rows("delay_sweep")) == 16
    flows, times = recorded.flow_list("websearch_60"), recorded.arrays("websearch_60_fct")
    slowdown = times["run_SECN1"] / times["standalone_ns"]
    small = flows["size_B"] <= 100_000
    assert (len(small), small.sum()) == (1813, 971)
    assert slowdown.mean() == pytest.approx(3.47744, rel=1e-4)
    assert slowdown[small].mean() == pytest.approx(2.91914, rel=1e-4)
    assert np.percentile(slowdown[small], 99) == pytest.approx(10.9687, rel=1e-4)


@pytest.mark.parametrize("name", leaf_spine.LISTS)
def test_every_recorded_list_is_complete(name):
    stem = name.replace("-", "_")
    flows, times = recorded.flow_list(stem), recorded.arrays(f"{stem}_fct")
    n = len(flows["src"])
    assert all(x.shape == (n,) and (x > 0).all() for x in times.values())
    assert (np.diff(flows["start_ns"]) >= 0).all()
    settings = [key for key in times if key != "standalone_ns"]
    assert len(settings) >= 6
    assert {key.split("_")[1] for key in settings} <= set(runs.ECN)
    members = leaf_spine.class_members(flows["size_B"])
    assert sum(m.sum() for m in members.values()) == n
    assert np.sum(list(members.values()), axis=0).max() == 1


def test_recorded_queues_match_the_tables():
    """The traces that are drawn belong to the runs whose statistics are compared."""
    for key, queue in recorded.arrays("incast_queues").items():
        profile, n, ecn = key.split("_")
        row = recorded.rows("incast_40ms", profile=profile, N=n, ecn=ecn)[0]
        assert queue.shape == (2000,)
        assert queue[500:].mean() == pytest.approx(float(row["q_mean_B_5_20"]), rel=0.02)
        assert queue[:100].mean() == pytest.approx(float(row["q_mean_B_0_1ms"]), rel=0.02)


def test_first_burst():
    rise, fall = np.linspace(0, 1000, 11)[1:], np.linspace(1000, 0, 11)[1:]
    second_burst = np.array([5000.0, 0.0])
    peak, drained = incast.first_burst(np.concatenate([rise, fall, second_burst]) * 1e3)
    assert peak == 1000.0
    assert drained == pytest.approx(0.20)  # the 20th sample is the first below 100 KB
    peak, drained = incast.first_burst(rise * 1e3)
    assert peak == 1000.0
    assert math.isnan(drained)


def samples(**series: np.ndarray) -> runs.Samples:
    """Samples of one run, zero where not given."""
    length = len(next(iter(series.values())))
    rows = {name: series.get(name, np.zeros(length)) for name in runs.Rows._fields}
    lanes = runs.Rows(**{name: x[None, None, None] for name, x in rows.items()})
    nothing = np.zeros((1, 1, 1))
    return runs.Samples(lanes, np.full((1, 1, 1, 2), 1000.0), nothing)


def test_steady_statistics():
    """A queue that alternates between 0 and 20 KB, and twice that before the window."""
    mean = np.tile([0.0, 20e3], 200) * np.repeat([2.0, 1.0], 200)
    used = np.repeat([0.5, 0.9], 200)
    of = samples(mean=mean, square=mean**2, utilisation=used)
    np.testing.assert_allclose(incast.steady(of, 0, (2, 4)), [10.0, 10.0, 90.0])
    np.testing.assert_allclose(incast.steady(of, 0, (0, 2)), [20.0, 20.0, 50.0])


def test_recovery():
    """The second flow comes at 5 ms and takes 1 ms; 25 Gb/s are 3125 bytes per µs."""
    rate = np.full(2500, 3125.0)
    rate[500:600] = 312.5
    rate[600:900] = 0.6 * 3125
    used = np.ones(2500)
    used[600:850] = 0.5
    recovery = messages._recovery(samples(rate=rate, utilisation=used), 0, 0, 0, 25.0)
    assert recovery["short_fct_us"] == 1000
    assert recovery["long_rate_min_Gbps"] == pytest.approx(2.5)
    assert recovery["rec50_rate_after_short_start_ms"] == pytest.approx(1.0)
    assert recovery["rec90_rate_after_short_start_ms"] == pytest.approx(4.0)
    assert recovery["util_5ms_after_short"] == pytest.approx(75.0)
    rate[600:] = 0
    unrecovered = messages._recovery(samples(rate=rate, utilisation=used), 0, 0, 0, 25.0)
    assert math.isnan(unrecovered["rec50_rate_after_short_start_ms"])


def test_message_lists():
    flows = messages.short_flows(8, 2, 64_000)
    assert flows["src"].tolist() == [9, 10, 1, 2, 3, 4, 5, 6, 7, 8]
    assert flows["start_ns"].tolist() == [0, 0, *[5_000_000] * 8]
    assert flows["size_B"].tolist() == [4_000_000_000] * 2 + [64_000] * 8


def test_cases_have_names_of_their_own():
    names = [case.name for case in registry.cases()]
    assert len(set(names)) == len(names) >= 28
    assert all(name == name.lower() for name in names)
    quick = [case.name for case in registry.select(quick=True)]
    assert 3 <= len(quick) < len(names) / 2
    assert [c.name for c in registry.select("*n8-0-long")] == [
        *("messages/run-n8-0-long", "messages/paper-n8-0-long")
    ]
    assert len(registry.select("delay/")) == 2
    long_names = [case.name for case in registry.select(long=True)]
    assert long_names == ["endurance/star", "endurance/fat-tree"]
    assert not {*long_names} & {case.name for case in registry.select()}
    with pytest.raises(ValueError, match=r"--only = 'nonsense'.*delay/run-n16"):
        registry.select("nonsense")


def validate(*args: object):
    return run("validate", *args)


def outcome(ours: float) -> Outcome:
    tenth = Tolerance(0.1)
    compared = Line("g", "c", "queue mean", "KB", 100.0, ours, tenth, "independent", "a note")
    unknown = Line("g", "c", "drained", "ms", 1.0, NAN, None)
    time = np.linspace(0.01, 20, 2000)
    size = np.array([5e4, 5e5, 5e6] * 10)
    return Outcome(
        [compared, unknown],
        [Trace("n8", "run, N = 8", time, 1e5 * np.sin(time) ** 2, 1e5 * np.cos(time) ** 2)],
        [Slowdowns("list run", "E3", size, 1 + size / 1e6, np.stack([1 + size / 2e6] * 2))],
    )


WANTED = {("g", "c", "queue mean"): "pass", ("g", "c", "drained"): "reported"}


def expect(monkeypatch, verdicts):
    monkeypatch.setattr(expected, "expected", lambda: verdicts)


@pytest.mark.parametrize(
    ("change", "report"),
    [
        ({("g", "c", "queue mean"): "FAIL"}, "g, c, queue mean: pass, expected FAIL"),
        ({("g", "c", "drained"): "pass"}, "g, c, drained: reported, expected pass"),
        ({("g", "c", "more"): "pass"}, "g, c, more: no line, expected pass"),
        ({("g", "c", "drained"): None}, "g, c, drained: reported, expected no line"),
        ({("g", "c", "queue mean"): "edge"}, None),
        ({}, None),
    ],
)
def test_any_change_of_a_verdict_is_news(change, report, monkeypatch):
    """Better, worse, new or missing; a line at the edge may pass or fail."""
    monkeypatch.setattr(registry, "SOURCES", [lambda: [Case("g/c", lambda: outcome(100.0))]])
    verdicts = {name: verdict for name, verdict in (WANTED | change).items() if verdict}
    expect(monkeypatch, verdicts)
    result = validate()
    assert result.exit_code == int(report is not None), result.output
    if report:
        assert report in result.stdout
        partial = validate("--only", "g")
        missing = "no line, expected" in report
        assert partial.exit_code == int(not missing), (
            "a part of the cases lacks lines, as it should"
        )


def test_expected_verdicts_are_written_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "SOURCES", [lambda: [Case("g/c", lambda: outcome(108.5))]])
    path = tmp_path / "expected.csv"
    assert validate("--write-expected", path).exit_code == 0
    assert path.read_text().splitlines() == [
        "group,case,quantity,verdict",
        "g,c,queue mean,edge",
        "g,c,drained,reported",
    ]
    result = validate("--write-expected", path, "--only", "g")
    assert result.exit_code == 2 and "a run of all cases" in result.stderr


def test_ranks_that_chance_decides_are_at_the_edge():
    """Two settings that seeds do not tell apart may change places; a clear order may not."""
    tolerance = Tolerance(absolute=0.1)
    clear = np.array([[1.0, 1.1, 0.9], [2.0, 2.2, 1.9], [3.0, 3.2, 2.7]])
    # The first two settings are a hundredth apart, and each seed orders them differently.
    close = np.array([[1.0, 1.1, 0.9], [1.01, 1.0, 0.95], [3.0, 3.2, 2.7]])
    assert leaf_spine.undecided(clear) == 0.0
    assert leaf_spine.undecided(close) == pytest.approx(1 / 3)
    assert leaf_spine.undecided(clear[:, :1]) == 1.0, "one seed decides nothing"
    for means, tau, verdict in (
        (clear, 1.0, "pass"),
        (clear, 1 / 3, "FAIL"),
        (close, 1.0, "edge"),
        (close, 1 / 3, "edge"),
        (close, -1.0, "FAIL"),  # more pairs are exchanged than chance can exchange
    ):
        noise = 2 * leaf_spine.undecided(means)
        rank = Line("g", "c", "tau", "", 1.0, tau, tolerance, noise=noise)
        assert expected.as_csv([rank]).splitlines()[1] == f"g,c,tau,{verdict}"


def test_every_case_is_expected():
    """The committed file has lines of all groups, each once, with verdicts that exist."""
    verdicts = expected.expected()
    assert set(verdicts.values()) <= {"pass", "FAIL", "reported", "edge"}
    assert {group for group, _, _ in verdicts} >= {"theory", "link delay", "leaf-spine", "substeps"}
    path = resources.files("ecn_marl.validation") / "data" / expected.FILE
    assert len(path.read_text().splitlines()) == len(verdicts) + 1, "a line is there twice"


@pytest.mark.parametrize(("ours", "code"), [(110.0, 0), (110.1, 1), (NAN, 1)])
def test_report(ours, code, monkeypatch, tmp_path):
    monkeypatch.setattr(registry, "SOURCES", [lambda: [Case("g/c", lambda: outcome(ours))]])
    expect(monkeypatch, WANTED)
    path, folder = tmp_path / "out.json", tmp_path / "new" / "plots"
    result = validate("--out", path, "--plots", folder)
    assert result.exit_code == code, result.output
    assert ("FAIL" in result.stdout) == (code == 1)
    assert f"{1 - code} of 1 lines within tolerance (independent {1 - code}/1)" in result.stdout
    assert sorted(p.name for p in folder.iterdir()) == [
        *(["fct-list-run.png"] + ["overview.png"] * (ours == ours) + ["queues-n8.png"])
    ]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in folder.iterdir())
    tree = json.loads(path.read_text())
    assert tree.keys() == {"schema", "seconds", "counts", "cases", "lines"}
    assert tree["counts"]["independent"] == {"pass": 1 - code, "FAIL": code, "reported": 0}
    assert tree["cases"][0]["name"] == "g/c"
    first, second = tree["lines"]
    assert first == {
        "group": "g",
        "case": "c",
        "quantity": "queue mean",
        "unit": "KB",
        "reference": 100.0,
        "ours": None if ours != ours else ours,
        "error": None if ours != ours else pytest.approx(ours - 100),
        "relative_error": None if ours != ours else pytest.approx(ours / 100 - 1),
        "tolerance": {"relative": 0.1, "absolute": 0.0, "allowed": 10.0},
        "verdict": "FAIL" if code else "pass",
        "basis": "independent",
        "note": "a note",
        "noise": 0.0,
    }
    assert (second["tolerance"], second["verdict"], second["ours"]) == (None, "reported", None)


def test_bad_options(tmp_path):
    result = validate("--only", "nonsense")
    assert result.exit_code == 2
    assert "--only" in result.stderr
    assert validate("--out", tmp_path / "none" / "out.json").exit_code == 2


def test_theory_case(monkeypatch):
    """The shortest way to add a comparison: a function that returns lines."""
    exact = Line("theory", "fixed point", "rate", "Gb/s", 2.5, 2.5, Tolerance(1e-3), "theory")
    monkeypatch.setattr(registry, "SOURCES", [lambda: [theory_case("theory/a", lambda: [exact])]])
    expect(monkeypatch, {("theory", "fixed point", "rate"): "pass"})
    result = validate("--quick")
    assert result.exit_code == 0
    assert "(theory 1/1)" in result.stdout
    assert verdict_text([exact], 3.2).endswith("3 s")
    printed = json.loads(validate("--quick", "--json").stdout)
    assert printed["counts"]["theory"]["pass"] == 1, "one document, no table"


def test_lanes_are_the_runs_they_say():
    """A batch of variants, settings and seeds gives the results of each alone."""
    flows = [messages.short_flows(3, 0, size) for size in (20_000, 600_000)]
    network = star(4)
    together = runs.simulate("paper", [(network, f) for f in flows], ["E3", "E4"], 2, 4.0)
    assert together.rows.queue.shape == (2, 2, 2, 400)
    assert together.fct_us.shape == (2, 2, 2, 3)
    alone = runs.simulate("paper", [(network, flows[1])], ["E4"], 2, 20.0, until_done=True)
    length = alone.rows.queue.shape[-1]
    assert length == 200, "the messages are through after 2 ms"
    np.testing.assert_allclose(
        alone.rows.queue[0, 0], together.rows.queue[1, 1, :, :length], rtol=1e-5, atol=1
    )
    np.testing.assert_allclose(alone.fct_us[0, 0], together.fct_us[1, 1], rtol=1e-5)
    assert (together.fct_us[1] > together.fct_us[0]).all()
    wire = 3 * 600 * 1048.0
    sent = together.rows.utilisation[1].sum(-1) * 25 * 125 * 10
    np.testing.assert_allclose(sent, wire, rtol=1e-4)


@pytest.mark.slow
def test_a_real_case_in_processes(tmp_path):
    """Two cases, each in a process: complete, in order, and the exit code is that of the lines."""
    path = tmp_path / "out.json"
    result = validate("--only", "*n8-0-long", "--out", path)
    tree = json.loads(path.read_text())
    assert [case["name"] for case in tree["cases"]] == [
        *("messages/run-n8-0-long", "messages/paper-n8-0-long")
    ]
    assert len(tree["lines"]) == 2 * 2 * 3 * 2
    verdicts = [entry["verdict"] for entry in tree["lines"]]
    expected_verdicts = expected.expected()
    committed = [expected_verdicts[e["group"], e["case"], e["quantity"]] for e in tree["lines"]]
    fits = [
        committed_verdict in (verdict, "edge")
        for verdict, committed_verdict in zip(verdicts, committed, strict=True)
    ]
    assert result.exit_code == int(not all(fits)), result.stdout
    for entry in tree["lines"]:
        assert entry["ours"] == pytest.approx(entry["reference"], rel=0.5), entry["case"]
    large = [e for e in tree["lines"] if "1000 KB" in e["case"] and e["quantity"] == "FCT mean"]
    assert len(large) == 6
    assert all(entry["ours"] > 8e6 * 1.048 / 3125 * 0.8 for entry in large)


def test_long_runs_say_what_they_find():
    """A short run: bytes and arrivals agree; halves of 0.1 s have too few flows to be alike."""
    network = star(4, gbps=25.0)
    lines = {line.quantity: line for line in endurance.long_run("short", network, 0.1, 2).lines}
    assert lines["bytes lost or made"].verdict == lines["flows deferred"].verdict == "pass"
    # 876 flows in expectation: within five standard deviations.
    assert lines["flows"].simulated * 0.2 == pytest.approx(876.6, abs=5 * 876.6**0.5)
    ratio = lines["started, second half"].simulated
    assert 0.5 < ratio < 2.0
    assert lines["delivered, second half"].simulated > 0
