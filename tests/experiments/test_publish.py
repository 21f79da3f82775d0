"""`ecn-marl report`: everything is rebuilt from records alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import failure, run
from synthetic import record

from ecn_marl.experiments.compare import compare
from ecn_marl.experiments.marl_eval import marl_eval
from ecn_marl.experiments.publish import read_records
from ecn_marl.experiments.records import Record

SCENARIOS = ("a-v0", "b-v0")


def records(scenario: str) -> list[Record]:
    return [
        record("static:best", scenario=scenario, meta={"settings": [[5, 320, 0.02]]}),
        record("oracle", (0.4, 1.0, 1.1), scenario=scenario),
        record("ippo", (0.6, 1.0, 1.0), seeds=3, scenario=scenario, curves=True),
    ]


@pytest.fixture
def bench(tmp_path) -> Path:
    """A folder as `bench` leaves it, one scenario compressed, one not."""
    for scenario, suffix in zip(SCENARIOS, (".json", ".json.gz"), strict=True):
        scores = tmp_path / "bench" / scenario / "scores"
        scores.mkdir(parents=True)
        for policy in records(scenario):
            policy.save(scores / f"{policy.name.replace(':', '_')}{suffix}")
    return tmp_path / "bench"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_command(bench, tmp_path):
    before = files(bench)
    out = tmp_path / "out"
    shown = run("report", bench, "--out", out)
    assert shown.exit_code == 0, shown.output
    assert files(bench) == before
    written = files(out)
    pictures = {f"figures/{s}_{x}.png" for s in SCENARIOS for x in ("ratios", "curves", "profiles")}
    pictures.add("figures/all_profiles.png")
    assert set(written) == {"table.md", "results.json", "marl_eval.json", *pictures}
    assert shown.stdout == written["table.md"].decode()
    assert shown.stdout.count("static:best (5,320,0.02)") == 4
    assert all(name in shown.stderr for name in written)

    result = json.loads(written["results.json"])
    assert list(result["scenarios"]) == list(SCENARIOS)
    fresh = compare({policy.name: policy for policy in records("a-v0")})
    rebuilt = {row["name"]: row for row in result["scenarios"]["a-v0"]["policies"]}
    assert len(rebuilt) == 3
    for row in fresh["policies"]:
        assert rebuilt[row["name"]]["score"] == row["score"]
        assert rebuilt[row["name"]]["figures"] == row["figures"]
    assert set(result["overall"]["policies"]) == {"static:best", "oracle", "ippo"}

    again = tmp_path / "again"
    assert run("report", bench, "--out", again).exit_code == 0
    assert files(again) == written
    beside = run("report", bench, "--json")
    assert json.loads(beside.stdout) == result
    assert set(files(bench)) == set(before) | set(written)


def test_the_protocol_is_not_lost(bench):
    facts = {"protocol": {"seeds": 3}, "machine": {"cpu": "x"}}
    (bench / "results.json").write_text(json.dumps({**facts, "scenarios": {"old-v0": {}}}))
    assert run("report", bench).exit_code == 0
    result = json.loads((bench / "results.json").read_text())
    assert {name: result[name] for name in facts} == facts
    assert list(result["scenarios"]) == list(SCENARIOS)
    (bench / "results.json").write_text("{")
    assert "results.json = " in failure("report", bench)


def test_it_needs_no_jax(bench):
    """Records and numpy are enough for the same tables."""
    code = (
        "import sys\n"
        "sys.modules['jax'] = sys.modules['flax'] = None\n"
        "from ecn_marl.cli import app\n"
        f"app(['report', {str(bench)!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (bench / "table.md").read_text()


def test_marl_eval_gets_runs_of_one_shape():
    """Same metrics at all steps, same runs and steps of all algorithms, all names lower case."""
    tree = marl_eval({s: {run_.name: run_ for run_ in records(s)} for s in SCENARIOS})
    assert set(tree) == {"ecn_marl", "ecn_marl_curves"}
    for environment, steps in (("ecn_marl", 1), ("ecn_marl_curves", 21)):
        tasks = tree[environment]
        assert list(tasks) == list(SCENARIOS)
        for algorithms in tasks.values():
            assert len({tuple(a) for a in tasks.values()}) == 1
            for runs in algorithms.values():
                assert list(runs) == ["run_0", "run_1", "run_2"]
                for run_ in runs.values():
                    absolute = run_["absolute_metrics"]
                    assert list(run_) == [*(f"step_{k}" for k in range(steps)), "absolute_metrics"]
                    assert len(absolute[next(iter(absolute))]) == 6
                    for k in range(steps):
                        step = dict(run_[f"step_{k}"])
                        assert isinstance(step.pop("step_count"), int)
                        assert set(step) == set(absolute)
                        assert all(name == name.lower() for name in step)
    ippo, best = records("a-v0")[2], records("a-v0")[0]
    run_1 = tree["ecn_marl"]["a-v0"]["ippo"]["run_1"]["absolute_metrics"]
    gain = 1.0 - ippo.columns["J"][1] / best.columns["J"][0]
    np.testing.assert_allclose(run_1["gain"], gain, atol=1e-6)
    np.testing.assert_array_equal(run_1["j"], ippo.columns["J"][1])
    assert tree["ecn_marl"]["a-v0"]["static:best"]["run_2"]["absolute_metrics"]["gain"] == [0.0] * 6
    curve = tree["ecn_marl_curves"]["a-v0"]["ippo"]["run_2"]
    assert curve["step_4"] == {"step_count": 40_000, "reward": [ippo.curves[2].value[4]]}
    np.testing.assert_array_equal(curve["absolute_metrics"]["reward"], ippo.columns["reward"][2])


def test_curves_of_another_column_have_its_name():
    policy = record("static:best", curves=True, meta={"curve": "J"})
    run_0 = marl_eval({"s": {policy.name: policy}})["ecn_marl_curves"]["s"]["static:best"]["run_0"]
    assert set(run_0["step_3"]) == {"step_count", "j"}
    np.testing.assert_array_equal(run_0["absolute_metrics"]["j"], policy.columns["J"][0])


def test_marl_eval_leaves_out_episodes_without_a_figure():
    measured = np.tile([400, 60, 12], (6, 1))
    measured[2, 2] = 0
    both = [record("static:best"), record("x", flows_measured=measured)]
    tree = marl_eval({"s": {policy.name: policy for policy in both}})
    absolute = tree["ecn_marl"]["s"]["x"]["run_0"]["absolute_metrics"]
    assert {name: len(values) for name, values in absolute.items()} == {
        **dict.fromkeys(("gain", "j", "long_geomean"), 5),
        **dict.fromkeys(("short_mean", "short_p99", "reward", "queue_mean", "utilisation"), 6),
    }
    assert "ecn_marl_curves" not in tree


def test_folders_of_one_scenario_are_told_apart(tmp_path):
    for load in ("load-0.4", "load-0.8"):
        place = tmp_path / load / "scores"
        place.mkdir(parents=True)
        record("static:best", scenario="s").save(place / "best.json")
    assert list(read_records(tmp_path)) == ["s (load-0.4)", "s (load-0.8)"]
    assert list(read_records(tmp_path / "load-0.4")) == ["s"]


def test_records_that_cannot_be_compared_are_named(bench, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "a folder with records" in failure("report", empty)
    assert "--out" in failure("report", bench, "--out", bench / "a-v0" / "scores" / "ippo.json")
    scores = bench / "b-v0" / "scores"
    record("ippo", scenario="b-v0").save(scores / "other.json")
    assert "one record of 'ippo' in the folder" in failure("report", bench)
    record("pqn", scenario="c-v0").save(scores / "other.json")
    assert "['b-v0', 'c-v0'] is not allowed: expected one scenario" in failure("report", bench)
    (scores / "other.json").write_text("{}")
    assert "other.json" in failure("report", bench)
    (scores / "other.json").unlink()
    (scores / "static_best.json.gz").unlink()
    assert "records of b-v0" in failure("report", bench)
    assert not (bench / "table.md").exists()
