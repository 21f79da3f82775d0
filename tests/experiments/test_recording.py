"""Records: J from flows, conservation, equal files, a writer that is cut off, figures' numbers."""

from __future__ import annotations

import errno
import json
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import small
from commands import TINY, failure, run

import ecn_marl
from ecn_marl import _tables, errors
from ecn_marl._tables import Coded, Tables, TableWriter
from ecn_marl.baselines.evaluation import traces
from ecn_marl.envs.registry import make
from ecn_marl.experiments import engine
from ecn_marl.experiments import plan as pl
from ecn_marl.render import record_plots as rp
from ecn_marl.sim.core.lifecycle import SLOWDOWN_TOP

EPISODES = 3


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    small.register()
    folder = tmp_path_factory.mktemp("records") / "first"
    names = ["static:secn1", "static:5,20,1.0"]
    return ecn_marl.evaluate(names, small.SMALL, episodes=EPISODES, records=folder)


def test_J_computed_from_flows_is_that_of_the_table(recorded):
    """Means to rounding; p99, which the table reads off a histogram, to its error.

    Bins are SLOWDOWN_TOP^(1 / bins) wide: 12 % with the 80 bins here, 6 % with 160. J holds the
    fourth root of p99, so its error is below 3 %, and 1.5 %.
    """
    flows = recorded.flows.query("measured")
    step = SLOWDOWN_TOP ** (1.0 / make(small.SMALL).sim.bins)
    assert math.isclose(step, 1.122, rel_tol=1e-3)
    for _, row in recorded.episodes.iterrows():
        own = flows[(flows["policy"] == row["policy"]) & (flows["episode"] == row["episode"])]
        short = own.loc[own["size_bytes"] <= 100_000, "slowdown"]
        long = own.loc[own["size_bytes"] > 1_000_000, "slowdown"]
        assert len(short) == row["short_measured"] and len(long) == row["long_measured"]
        geomean = float(np.exp(np.log(long).mean()))
        np.testing.assert_allclose(short.mean(), row["short_mean"], rtol=1e-5)
        np.testing.assert_allclose(geomean, row["long_geomean"], rtol=1e-5)
        p99 = float(np.quantile(short, 0.99, method="inverted_cdf"))
        assert 1.0 / step < p99 / row["short_p99"] < step
        J = (short.mean() * p99) ** 0.25 * geomean**0.5
        assert 1.0 / step**0.25 < J / row["J"] < step**0.25
        unfinished = own[~own["finished"]]
        assert len(unfinished) == row["short_unfinished"] + row["long_unfinished"]
        assert (unfinished["age_us"] > 0).all() and unfinished["fct_us"].isna().all()


def test_flows_are_held_against_their_links(recorded):
    """What was simulated keeps the bound; the same flows in half of their time do not."""
    env, flows = make(small.SMALL), recorded.flows
    own = flows[(flows["policy"] == "static:5,20,1.0") & (flows["episode"] == 0)]
    hosts = {host: i for i, host in enumerate(env.sim.topology.hosts)}

    def columns(factor):
        def coded(name, names):
            return Coded(own[name].astype(str).map(names).to_numpy(), list(names))

        return {
            "source": coded("source", hosts),
            "destination": coded("destination", hosts),
            "path": coded("path", {"0": 0}),
            "size_bytes": own["size_bytes"].to_numpy(),
            "start_us": own["start_us"].to_numpy(),
            "fct_us": factor * own["fct_us"].to_numpy(),
        }

    traces.check_flows(env, env.default_params, columns(1.0))
    with pytest.raises(errors.BrokenInvariant, match="host0"):
        traces.check_flows(env, env.default_params, columns(0.5))


def test_records_of_a_bench_are_those_of_an_evaluation(recorded, tmp_path):
    """The same policy on the same episodes; what is whole is not run again, what is not, is."""
    place_of = partial(pl.Plan, (small.SMALL,), (), tmp_path / "bench", effort=small.EFFORT)
    plan = place_of(episodes=EPISODES, records=tmp_path / "records")
    (place,), name = plan.places(), ("static:secn1",)

    def score(plan):
        tasks = []
        recording = engine.begin_recording(plan, place, name)

        def show(task):
            tasks.append(task)
            return small.quiet(task)

        engine.scored(plan, place, name, show, recording=recording)
        tables = recording.close()
        assert tables.missing == {}
        return tables, tasks

    tables, tasks = score(plan)
    assert len(tasks) == 1 and tables.facts["scenario"] == small.SMALL
    for table in ("flows", "ports", "episodes"):
        own = recorded.tables.frame(table).query("policy == 'static:secn1'")
        assert tables.frame(table).equals(own)
    assert score(plan)[1] == []
    (plan.records / small.SMALL / "ports" / "000-00000.parquet").unlink()
    assert len(score(plan)[1]) == 1
    with pytest.raises(ValueError, match="overwrite=True"):
        score(place_of(episodes=EPISODES, eval_seed=1, records=plan.records))


LIST = """flow_id,src,dst,size_B,start_ns
17,0,2,20000,0
11,1,2,2000000,1000
12,0,2,30000,200000
13,1,2,30000,990000
14,1,2,30000,9900000
"""


@pytest.mark.parametrize("backend", ["fluid", "packets"])
def test_records_of_a_replay(recorded, tmp_path, backend):
    """Tables as of an evaluation, flows as of `--out`, ports as of `--queues`."""
    if backend == "packets":
        pytest.importorskip("numba")
    (tmp_path / "list.csv").write_text(LIST)
    command = ["replay", tmp_path / "list.csv", "--topology", "star:3", "--duration-ms", 1]
    out = ["--out", tmp_path / "fct.csv", "--queues", tmp_path / "q.npz"]
    records = [*command, "--backend", backend, "--records", tmp_path / "r"]
    answer = run(*records, *out, "--json")
    assert answer.exit_code == 0, answer.output
    tables = Tables(tmp_path / "r")
    assert tables.missing == {} and tables.facts["options"]["ecn"] == [5.0, 200.0, 0.01]
    for table in ("flows", "ports", "episodes"):
        own, other = (t.frame(table) for t in (tables, recorded.tables))
        assert own.dtypes.to_dict() == other.dtypes.to_dict()
    flows, fct = tables.frame("flows"), pd.read_csv(tmp_path / "fct.csv")
    assert flows["flow"].tolist() == [17, 11, 12, 13], "the last one starts after the end"
    done = fct.set_index("flow_id").loc[flows["flow"]]
    np.testing.assert_allclose(flows["fct_us"] * 1e3, done["fct_ns"], atol=1.0)
    late = flows[~flows["finished"]]
    assert late["age_us"].tolist() == [1000.0 - x for x in late["start_us"]]
    np.testing.assert_array_less(late["slowdown"] - 1e-9, late["age_us"] / late["ideal_us"] + 1.0)
    assert set(flows["path"]) == {"2"}
    ports, summary = tables.frame("ports"), json.loads(answer.stdout)
    with np.load(tmp_path / "q.npz") as queues:
        sent = ports["sent_bytes"].to_numpy().reshape(queues["tx_bytes"].shape)
        np.testing.assert_array_equal(sent, queues["tx_bytes"])
        assert ports["port"][:3].tolist() == queues["port"].tolist()
    (host,) = summary["ports"].values()
    assert math.isclose(ports["queue_mean_bytes"].mean(), host["queue_bytes"]["mean"], rel_tol=1e-5)
    assert ports["queue_max_bytes"].max() == host["queue_bytes"]["max"]
    # Of packets, a port's peak is at most a full packet above what is there on the mean of 10 us.
    quiet = ports[ports["queue_std_bytes"] == 0.0]
    assert (quiet["queue_max_bytes"] <= quiet["queue_mean_bytes"] + 1048).all()
    assert "--overwrite" in failure(*records)


@pytest.mark.thorough
def test_records_of_play_are_those_of_the_film(tiny_scenario, tmp_path):
    answer = run(
        *("play", "static:secn1", "--scenario", TINY, "--out", tmp_path / "film.html"),
        *("--records", tmp_path / "r"),
    )
    assert answer.exit_code == 0, answer.output
    flows = Tables(tmp_path / "r").frame("flows")
    assert f"{len(flows)} flows" in answer.stdout
    counts = Tables(tmp_path / "r").frame("episodes").iloc[0]
    assert f"finished {counts['flows_finished']:.0f}" in answer.stdout
    assert "used with --records" in failure("play", "static:secn1", "--out", "x.gif", "--overwrite")
    assert "--fps = 5" in failure("play", "static:secn1", "--out", "x.html", "--fps", 5)


def test_an_evaluation_checks_its_flows(monkeypatch):
    seen = []
    monkeypatch.setattr(traces, "check_flows", lambda env, params, rows: seen.append(len(rows)))
    ecn_marl.evaluate("static:secn1", small.SMALL, episodes=EPISODES, records=False, check=True)
    assert len(seen) == EPISODES


def test_tables_are_whole(recorded):
    """Flows are those of the accounts, and bytes at the ports those of the flows, headers added."""
    flows, ports, episodes = recorded.flows, recorded.ports, recorded.episodes
    where = ["policy", "episode"]
    counts = flows.groupby(where).size()
    started = episodes.set_index(where)["flows_started"]
    assert counts.sort_index().equals(started.sort_index().astype(int))
    assert (flows["slowdown"] >= 0.999).all()
    assert (flows["start_us"].diff().dropna()[flows["flow"].diff() == 1] >= 0).all()
    assert set(flows["path"]) == {"0"} and set(flows["destination"]) == {"host0"}
    done = flows[flows["finished"]].groupby(where)["size_bytes"].sum()
    sent = ports[ports["port"].str.endswith("host0")].groupby(where)["sent_bytes"].sum()
    assert (sent.loc[done.index] >= done * 1.048).all()
    assert (sent.loc[done.index] <= flows.groupby(where)["size_bytes"].sum() * 1.06).all()
    assert len(ports) == 2 * EPISODES * 20 * 3
    mean = ports.groupby(where)["queue_mean_bytes"].mean()
    expected = episodes.set_index(where)["queue_mean_bytes"]
    np.testing.assert_allclose(mean.sort_index(), expected.sort_index(), rtol=1e-5)
    secn1 = ports[ports["policy"] == "static:secn1"]
    assert set(secn1["kmin_bytes"]) == {5000.0} and set(secn1["kmax_bytes"]) == {200_000.0}
    returns = ports.groupby([*where, "port"])["reward"].sum().groupby(where).mean()
    wanted = episodes.set_index(where)["return"]
    np.testing.assert_allclose(returns.sort_index(), wanted.sort_index(), rtol=1e-5)


def test_a_rerun_writes_equal_files_and_a_log_that_is_too_short_grows(
    recorded, tmp_path, monkeypatch
):
    monkeypatch.setattr(traces, "ROOM", 4)
    again = tmp_path / "again"
    ecn_marl.evaluate("static:secn1", small.SMALL, episodes=EPISODES, records=again)
    for table in ("flows", "ports", "episodes"):
        chunk = f"{table}/000-00000.parquet"
        frames = [pd.read_parquet(x / chunk) for x in (again, recorded.tables.folder)]
        assert frames[0].equals(frames[1])
    (first,) = [x["policy"] for x in Tables(again).facts["policies"]]
    assert first == "static:secn1" and Tables(again).facts["scenario"] == small.SMALL
    with pytest.raises(ValueError, match="overwrite=True"):
        ecn_marl.evaluate("static:secn1", small.SMALL, records=again)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        ecn_marl.evaluate("static:secn1", small.SMALL, records=tmp_path)


COLUMNS = {
    "policy": Coded(np.array([0, 1]), ("a", "b")),
    "path": Coded(np.array([0, 1]), ("", "1-2")),
    "fct_us": np.array([1.5, np.nan]),
    "finished": np.array([True, False]),
}
PARTS = {"flows": ["000-00000", "000-00032"]}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_writer_that_is_cut_off_leaves_whole_chunks(tmp_path, monkeypatch, suffix):
    if suffix == "csv":
        monkeypatch.setattr(_tables, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError), TableWriter(tmp_path / "r", {"seed": 1}, PARTS) as writer:
        writer.write("flows", "000-00000", COLUMNS)
        raise RuntimeError("killed")
    tables = Tables(tmp_path / "r")
    assert tables.missing == {"flows": ["000-00032"]} and "1 chunks missing" in repr(tables)
    frame = tables.frame("flows")
    assert frame["policy"].tolist() == ["a", "b"] and frame["path"].tolist() == ["", "1-2"]
    assert frame["finished"].tolist() == [True, False] and math.isnan(frame["fct_us"][1])
    index = json.loads((tmp_path / "r" / "records.json").read_text())
    assert (index["complete"], index["files"]) == (False, suffix)
    with TableWriter(tmp_path / "r", {"seed": 1}, PARTS, overwrite=True) as writer:
        for part in PARTS["flows"]:
            writer.write("flows", part, COLUMNS)
    tables = Tables(tmp_path / "r")
    assert tables.missing == {} and len(tables.frame("flows")) == 4
    index = json.loads((tmp_path / "r" / "records.json").read_text())
    assert index["complete"] and index["columns"]["flows"]["fct_us"] == "µs"


def test_a_full_disk_is_one_line_and_names_the_file(tmp_path, monkeypatch):
    small.register()

    def full(columns, facts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_tables, "_parquet", full)
    command = ["eval", "static:secn1", "--scenario", small.SMALL, "--episodes", 1]
    text = failure(*command, "--records", tmp_path / "r")
    assert "No space left on device" in text
    assert Tables(tmp_path / "r").missing["flows"] == ["000-00000"]


def test_numbers_of_the_figures(recorded):
    """Each against the same computed with pandas in another way."""
    flows, ports, episodes = recorded.flows, recorded.ports, recorded.episodes
    measured = rp.measured(recorded.tables)
    assert measured.equals(flows[flows["measured"]])
    numbers = rp.slowdown_numbers(measured, bins=4)
    assert numbers["flows"].sum() == len(measured)
    # Two sizes, 20 KB and 2 MB, which no edge divides: a bin each.
    assert numbers.loc["static:secn1"]["size_bytes"].tolist() == [20e3, 2e6]
    for policy, size in (("static:secn1", 20e3), ("static:5,20,1.0", 2e6)):
        own = measured[(measured["policy"] == policy) & (measured["size_bytes"] == size)]
        row = numbers.loc[policy].set_index("size_bytes").loc[size]
        quantiles = own["slowdown"].quantile([0.5, 0.95, 0.99])
        np.testing.assert_allclose(row[["median", "p95", "p99"]], quantiles)
    classes = rp.classes_numbers(measured, points=5)
    short = measured[(measured["policy"] == "static:secn1") & (measured["class"] == "short")]
    row = classes[(classes["policy"] == "static:secn1") & (classes["class"] == "short")]
    np.testing.assert_allclose(row["slowdown"], np.quantile(short["slowdown"], row["share"]))
    queues = rp.queues_numbers(ports, points=4)
    own = ports.loc[ports["policy"] == "static:secn1", "queue_max_bytes"]
    row = queues[queues["policy"] == "static:secn1"]
    np.testing.assert_allclose(row["queue_max_bytes"], np.quantile(own, row["share"]))
    paired = rp.paired_numbers(episodes, "static:secn1")
    wide = episodes.pivot(index="episode", columns="policy", values="J")
    np.testing.assert_allclose(paired["ratio"], wide["static:5,20,1.0"] / wide["static:secn1"])
    kmin = rp.thresholds_numbers(ports, bins=3)
    assert set(kmin.loc["static:secn1"]["median"]) == {5000.0}
    assert kmin.loc["static:secn1"]["intervals"].sum() == EPISODES * 3 * 19
    phases = rp.phases_numbers(measured, ports)
    logs = np.log(measured[measured["policy"] == "static:secn1"]["slowdown"])
    assert math.isclose(phases.loc[("static:secn1", "all"), "geomean"], np.exp(logs.mean()))


def test_equal_counts_in_bins_of_a_class():
    """As pandas' `qcut` divides each class; long flows, of which there are few, have bins, too."""
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.integers(100, 90_000, 4000), rng.integers(2_000_000, 9e6, 60)])
    edges = rp.size_edges(sizes, 8)
    counts = np.bincount(np.searchsorted(edges, sizes))
    assert len(counts) == 8 + rp.LEAST and set(counts[-3:]) == {20}
    short = pd.qcut(pd.Series(sizes[:4000]), 8).value_counts()
    assert sorted(counts[:8]) == sorted(short)


@pytest.mark.parametrize("kind", rp.KINDS)
def test_every_figure_is_drawn_and_repeats(recorded, tmp_path, kind):
    folder = recorded.tables.folder
    other_formats = ("c.svg", "d.png") if kind == "slowdown" else ()
    for name in ("a.pdf", "b.pdf", *other_formats):
        answer = run("plot", folder, "--kind", kind, "--out", tmp_path / name)
        assert answer.exit_code == 0, answer.output
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert pdf == (tmp_path / "b.pdf").read_bytes()
    assert b"/FontFile2" in pdf or b"/Type /Font" in pdf
    assert pytest.approx(float(pdf.split(b"/MediaBox [ 0 0 ")[1].split()[0])) == rp.WIDTH_IN * 72


def test_plot_errors(recorded, tmp_path):
    folder = recorded.tables.folder
    wrong_kind = failure("plot", folder, "--kind", "slowdwn", "--out", tmp_path / "x.pdf")
    assert "did you mean 'slowdown'" in wrong_kind
    assert "ends in .pdf" in failure("plot", folder, "--out", tmp_path / "x.gif")
    assert "records.json" in failure("plot", tmp_path, "--out", tmp_path / "x.pdf")
