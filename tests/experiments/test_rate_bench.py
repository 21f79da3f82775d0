"""`ecn-marl bench adpg`: its cells, its tables, and that it goes on after a stop."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from commands import failure, run

import ecn_marl
from ecn_marl.baselines.adpg import ADPG, ADPGConfig
from ecn_marl.errors import FolderInUse
from ecn_marl.experiments import rate
from ecn_marl.experiments import rate_bench as rb
from ecn_marl.experiments.rate_paper import printed
from ecn_marl.render.rate_bench_table import rate_bench_figure, rate_bench_tables
from ecn_marl.render.tables import DASH

SHORT = {"duration_us": 1e4, "warm_up_us": 5e3}
PLACES = {"many-to-one-4-v0": SHORT}
POLICIES = ("adpg", "adpg:int8", "swift:htsim")


@dataclass(frozen=True)
class Tiny(ADPGConfig):
    """ADPG that trains in no time."""

    senders: tuple[int, ...] = (4,)
    envs: int = 2
    rollout: int = 64
    events: int = 16


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def benched(out):
    """A bench of few updates and flows, repeated, and the tasks that it reported."""
    tasks = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ADPG, "config_class", Tiny)
        plan = rb.RatePlan(out, POLICIES, 2, PLACES, 20)

        def show(task):
            tasks.append(task)
            return lambda share, note="": None

        first, run_episodes = rb.rate_bench(plan, show), rb.run_episodes
        patch.setattr(rb, "run_episodes", None)  # nothing is done again
        patch.setattr(rb, "train_rate", None)
        again = rb.rate_bench(plan, show)
        longer = {"many-to-one-4-v0": {**SHORT, "duration_us": 2e4}}
        with pytest.raises(TypeError, match="NoneType"):
            rb.rate_bench(rb.RatePlan(out, POLICIES, 2, longer, 20), show)
        with pytest.raises(TypeError, match="NoneType"):
            rb.rate_bench(rb.RatePlan(out, POLICIES, 2, PLACES, 40), show)
        patch.setattr(rb, "run_episodes", run_episodes)
        with pytest.raises(TypeError, match="NoneType"):  # that training has replaced the first
            rb.rate_bench(plan, show)
    return first, again, tasks


def test_valid_results_are_not_made_again(benched):
    first, again, tasks = benched
    assert first == again
    trained = [task for task in tasks if task.startswith("train")]
    assert trained[:2] == ["train adpg, seed 0", "train adpg, seed 1"]


@pytest.fixture(scope="module")
def evaluated(benched, out):
    """The bench's run and senders by `evaluate`, with records."""
    names = [out / "runs" / "adpg-seed0", "swift:htsim"]
    return ecn_marl.evaluate(names, "many-to-one-4-v0", episodes=2, **SHORT)


def test_cells_equal_evaluations(benched, evaluated):
    rows = benched[0]["scenarios"]["many-to-one-4-v0"]["policies"]
    assert tuple(rows) == POLICIES
    run, senders = evaluated.summary["policies"].values()
    for name, values in senders.items():
        assert rows["swift:htsim"]["metrics"][name] == pytest.approx(values, rel=1e-5)
        assert rows["adpg"]["metrics"][name][0] == pytest.approx(run[name][0], rel=1e-5)
    assert rows["adpg:int8"]["metrics"] != rows["adpg"]["metrics"]
    assert rows["adpg"]["paper"] == pytest.approx(
        {"utilisation": 0.969, "fairness": 0.98, "queue_us": 5.4}
    )


def test_flows_of_an_evaluation(evaluated):
    """Their rates are those behind utilisation and fairness."""
    where = ["policy", "episode"]
    flows, episodes = evaluated.flows, evaluated.episodes.set_index(where).sort_index()
    rates = flows.groupby(where)["rate_gbps"]
    assert (rates.size() == 4).all() and not flows["finished"].any()
    np.testing.assert_allclose(rates.min() / rates.max(), episodes["fairness"], rtol=1e-6)
    # What flows of a steady queue send is what its port sends.
    sent, used = rates.sum() / 100.0, episodes["utilisation"]
    np.testing.assert_allclose(sent["swift:htsim"], used["swift:htsim"], atol=0.002)
    assert set(flows["destination"]) == {flows["destination"][0]} and (flows["age_us"] > 5e3).all()
    assert "swift:htsim" in str(evaluated) and "swift" in evaluated._repr_html_()
    assert evaluated.compare(*evaluated.records, "queue_us").values.shape == (1, 2)
    with pytest.raises(ValueError, match="ports decide nothing"):
        _ = evaluated.ports
    with pytest.raises(ValueError, match=r"policy = 'rule' .* a policy of flows"):
        ecn_marl.evaluate(["swift:htsim", "rule"])
    with pytest.raises(ValueError, match=r"policy = 'swift:htsim' .* a policy of ports"):
        ecn_marl.evaluate(["rule", "swift:htsim"])
    with pytest.raises(ValueError, match="backend = 'packets'"):
        ecn_marl.evaluate("swift:htsim", backend="packets")
    with pytest.raises(ValueError, match="evaluate them by this name"):
        ecn_marl.load_policy("swift:htsim")


def test_records_of_the_bench_are_those_of_an_evaluation(out, evaluated, tmp_path):
    """The same flows; a chunk that is lost is made again, and whole records are left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ADPG, "config_class", Tiny)
        # `adpg:int8` is recorded as `adpg` is.
        plan = rb.RatePlan(out, ("adpg", "swift:htsim"), 2, PLACES, 20, tmp_path / "records")
        first = rb.rate_bench(plan, lambda task: lambda share, note="": None)
        folder = tmp_path / "records" / "many-to-one-4-v0"
        tables = ecn_marl.read_records(folder)
        assert not tables.missing and tables.names == ("flows", "episodes")
        (folder / "flows" / "003-00000.parquet").unlink()
        assert rb.rate_bench(plan, lambda task: lambda share, note="": None) == first
        patch.setattr(rb, "run_episodes", None)
        assert rb.rate_bench(plan, lambda task: lambda share, note="": None) == first
    flows = ecn_marl.read_records(folder).frame("flows")
    assert flows.groupby(["policy", "seed"]).size().eq(4).all() and len(flows) == 2 * 2 * 4
    for seed in (0, 1):
        own = flows[(flows["policy"] == "swift:htsim") & (flows["seed"] == seed)]
        other = evaluated.flows.query("policy == 'swift:htsim' and episode == @seed")
        np.testing.assert_allclose(own["rate_gbps"], other["rate_gbps"], rtol=1e-5)
        np.testing.assert_array_equal(own["source"], other["source"])
        metrics = first["scenarios"]["many-to-one-4-v0"]["policies"]["swift:htsim"]["metrics"]
        rates = own["rate_gbps"]
        assert rates.min() / rates.max() == pytest.approx(metrics["fairness"][seed], rel=1e-5)


def test_flows_that_finish_have_their_own_rate(tmp_path):
    """By the command; the short flow has ended, the long one has not."""
    fields = ("duration_us=3000", "interrupt_us=1000", "short_kb=100")
    options = [x for field in fields for x in ("--env", field)]
    command = ["eval", "swift:htsim", "--scenario", "long-short-2-v0", *options]
    answer = run(*command, "--records", tmp_path / "r", "--json")
    assert answer.exit_code == 0, answer.output
    tables = ecn_marl.read_records(tmp_path / "r")
    assert tables.names == ("flows", "episodes") and tables.facts["scenario"] == "long-short-2-v0"
    flows = tables.frame("flows")
    short, long = (flows[flows["finished"] == done].iloc[0] for done in (True, False))
    assert len(flows) == 2 and short["size_bytes"] == 100_000
    assert short["rate_gbps"] == pytest.approx(1.048 * 8e5 / short["fct_us"] / 1e3, rel=1e-3)
    share = json.loads(answer.stdout)["policies"]["swift:htsim"]["long_bandwidth"][0]
    assert long["rate_gbps"] / 100.0 == pytest.approx(share, rel=1e-6)
    assert "--load = 0.5" in failure(*command, "--load", 0.5)


def test_numbers_of_the_paper():
    many = printed("many-to-one", 8192, "adpg")
    assert many == pytest.approx({"utilisation": 0.92, "fairness": 0.29, "queue_us": 42.0})
    int8 = printed("many-to-one", 8192, "adpg:int8")
    assert int8 == pytest.approx({"utilisation": 0.9679, "fairness": 0.29, "queue_us": 48.4})
    long = printed("long-short", 2, "adpg")
    assert long == pytest.approx({"recovery_us": 0.6, "drop_rate": 0.0, "long_bandwidth": 0.97})
    assert printed("many-to-one", 8192, "swift:htsim") is None
    assert printed("all-to-all", 4, "ppo") is None


def test_tables_and_figure(benched):
    text = rate_bench_tables(benched[0])
    assert "mean of 2 seeds [95 %, in logarithms]" in text
    assert text.count("\n| 4 | ") == len(POLICIES)
    assert "| 96.9, 98, 5.4 |" in text
    assert rate_bench_figure(benched[0]).startswith(b"\x89PNG")
    metrics = {"recovery_us": [np.nan, 40.0], "drop_rate": [0.01, 0.01]}
    row = {"metrics": {**metrics, "long_bandwidth": [0.9, 0.95]}, "paper": None}
    place = {"kind": "long-short", "size": 8, "policies": {"swift:htsim": row}}
    text = rate_bench_tables({"protocol": {"seeds": 2}, "scenarios": {"x": place}})
    # 12.7 times the error of 2.5 is 31.8: 92.5 exp(-31.8 / 92.5) = 65.6; nothing is above 100 %.
    assert f"| 40 (1 of 2 never), 1.00, 92.5 [65.6, 100.0] | {DASH} |" in text


def test_wrong_plans_are_refused(tmp_path):
    out = ("--out", tmp_path)
    assert "adpg or adpg:int8" in failure("bench", "adpg", "--algorithms", "adpg:int4", *out)
    assert "did you mean 'swift'" in failure("bench", "adpg", "--algorithms", "swoft:x", *out)
    assert "--sealed = True" in failure("bench", "adpg", "--sealed", *out)
    assert "no such option without adpg" in failure("bench", "--small", *out)
    assert rb.row_names("adpg,dcqcn:hpcc-paper,ai=2.5,g=0.1,adpg:int8") == (
        "adpg",
        "dcqcn:hpcc-paper,ai=2.5,g=0.1",
        "adpg:int8",
    )
    assert set(rb.of_sizes(rb.SMALL, None, 4)) == {
        *("many-to-one-2-v0", "all-to-all-4-v0", "all-to-all-8-v0", "long-short-2-v0")
    }
    assert set(rb.of_sizes(rb.FULL, 2048, 4096)) == {
        *("many-to-one-2048-v0", "many-to-one-4096-v0", "long-short-2048-v0")
    }
    assert rb.of_sizes(rb.FULL, None, None) == rb.FULL
    with pytest.raises(ValueError, match=r"largest = 1 .*2 to 8192"):
        rb.of_sizes(rb.FULL, None, 1)
    with pytest.raises(ValueError, match="smallest = 9000"):
        rb.of_sizes(rb.FULL, 9000, None)
    assert "no such option without adpg" in failure("bench", "--largest", 8, *out)
    with pytest.raises(ValueError, match="seeds = 0"):
        rb.RatePlan(tmp_path, seeds=0)
    assert not list(tmp_path.iterdir())


def test_the_command_writes_everything(tmp_path, monkeypatch):
    """For one sender, which needs no training."""
    monkeypatch.setattr(rb, "SMALL", PLACES)
    out, file = tmp_path / "out", tmp_path / "results.json"
    options = ("--small", "--largest", 4, "--seeds", 1, "--algorithms", "swift:htsim")
    options += ("--results", file)
    result = run("bench", "adpg", *options, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == (out / "table.md").read_text()
    tree = json.loads(file.read_text())
    assert tree["machine"]["versions"]["jax"]
    assert "machine" in tree and "command" in tree["machine"]
    assert (out / "many_to_one.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path, monkeypatch):
    """Benchmarks of flows, and trainings of their learners."""

    def bench_at_work(plan, show):
        with pytest.raises(FolderInUse, match=r"in use by process .*bench"):
            rb.rate_bench(plan, show)
        return {}

    def train_at_work(trainer, folder, config, resume, saving, progress):
        with pytest.raises(FolderInUse, match=r"in use by process .*train"):
            rate.train_rate("adpg", folder, settings=["senders=2"], overwrite=True)
        with pytest.raises(FolderInUse, match=r"in use by process .*train"):
            rate.resume_rate(folder)
        return []

    monkeypatch.setattr(rb, "_bench", bench_at_work)
    monkeypatch.setattr(rate, "_train", train_at_work)
    assert rb.rate_bench(rb.RatePlan(tmp_path / "b"), lambda task: None) == {}
    assert rate.train_rate("adpg", tmp_path / "r", settings=["senders=2"]) == []
    assert rate.resume_rate(tmp_path / "r") == []
