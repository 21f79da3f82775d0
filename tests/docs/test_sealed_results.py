"""The maker of `results/sealed.json`, and what the file says of its own scores."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import sealed

from ecn_marl.experiments.records import Record

CLASSES = sealed.CLASSES


def record(name, j, steps=0, commit="a" * 40):
    """A record whose size classes are multiples of J."""
    j = np.asarray(j, float)
    meta = {"scenario": "x-v0", "commit": commit}
    columns = {key: j * (i + 2) for i, key in enumerate(CLASSES)}
    counts = {key: np.full(j.shape, 100.0) for key in ("offered", "bytes_offered", "flow_ticks")}
    none = ("deferred", "waiting", "bytes_dropped", "bytes_spilled", "feedback_cut", "flags")
    counts |= {key: np.zeros(j.shape) for key in none}
    if steps:
        meta |= {"steps": steps, "seconds": 1.0}
    return Record(name, meta, {"J": j, **columns, **counts})


def run(**policies):
    """Records of references beside other policies, in four episodes."""
    shape = np.array([1.0, 1.1, 0.9, 1.05])
    references = {
        "static:best": record("static:best", [8.0 * shape]),
        "rule": record("rule", [4.0 * shape]),
        "oracle": record("oracle", [2.0 * shape]),
    }
    return references | {
        name: record(name, np.outer(level, shape), 20_000) for name, level in policies.items()
    }


def test_a_row_in_closed_form():
    row = sealed.row_of(run(ippo=[4.0, 2.0]))
    assert row["share"] == pytest.approx({"static:best": 0, "rule": 0.5, "oracle": 1, "ippo": 0.75})
    assert row["to_rule"]["oracle"] == pytest.approx([0.5] * 3)
    half = 12.7062 * 0.5 * np.log(2.0)  # Student's t of two seeds; episodes do not differ
    ends = np.exp([0.0, -half, half]) / 2**0.5
    assert row["to_rule"]["ippo"] == pytest.approx(ends, rel=1e-3, abs=1e-4)
    assert set(row["classes_to_static"]["oracle"].values()) == {0.25}
    assert set(row["seeds"]) == set(row["steps"]) == {"ippo"}
    assert row["invalid"] == {} and "commits" not in row


def test_a_second_run_adds_its_policies_and_must_agree_on_the_others():
    row = sealed.row_of(run(ippo=[4.0, 2.0]))
    before = copy.deepcopy(row)
    both = sealed.row_of(run(gnn=[2.0, 2.0]), row)
    assert row == before
    assert both["scores"] == sealed.row_of(run(ippo=[4.0, 2.0], gnn=[2.0, 2.0]))["scores"]
    other = run() | {"rule": record("rule", [[4.0, 4.4, 3.6, 4.3]])}
    with pytest.raises(ValueError, match="J of rule in x-v0"):
        sealed.row_of(other, row)
    rounded = run() | {"rule": record("rule", [[4.0, 4.4001, 3.6, 4.2]])}
    assert sealed.row_of(rounded, row)["scores"]["rule"] == before["scores"]["rule"]
    later = run() | {"mappo": record("mappo", [[2.0] * 4], 20_000, commit="b" * 40)}
    assert sealed.row_of(later, row)["commits"] == {"mappo": "b" * 12}


def test_what_packets_say_is_of_the_best_seed_and_the_first_episodes(tmp_path):
    fluid = run(ippo=[4.0, 2.0], gnn=[2.0, 2.0])
    on_packets = {}
    for name, level in {"rule": 4.4, "oracle": 2.2, "ippo": 2.1}.items():
        of_seed = {} if name != "ippo" else {"seed": 1}
        on_packets[name] = record(name, [level * np.array([1.0, 1.1])])
        on_packets[name].meta.update(of_seed, scenario="x-v0 on packets")
    for records, folder in ((fluid, "sealed"), (on_packets, "packets/sealed")):
        for name, kept in records.items():
            file = tmp_path / "x-v0" / folder / "scores" / f"{name.replace(':', '_')}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            kept.save(file)
    (row,) = sealed.merged([], tmp_path, new=False)
    found = row["packets"]
    assert set(row["scores"]) == set(fluid) and set(found["J"]) == {"rule", "oracle", "ippo"}
    assert found["episodes"] == 2 and len(found["scores"]["rule"][0]) == 2
    assert found["to_rule"]["ippo"] == pytest.approx([2.1 / 4.4] * 3, abs=1e-4)
    assert found["fluid_to_rule"]["ippo"] == pytest.approx([0.5] * 3)
    assert found["tau"] == pytest.approx(0.816, abs=1e-3)  # two of three are level in the fluid


def test_a_row_of_a_scenario_with_parts_of_its_own_has_these_for_classes(monkeypatch):
    def with_parts(name, j, step):
        found = record(name, [np.multiply(j, [1.0, 1.2])])
        parts = {
            "part:all-reduce": np.full((1, 2), step),
            "weight:all-reduce": np.full((1, 2), 2.0),
            "weight:short_mean": np.full((1, 2), 2.0),
        }
        return replace(found, columns={**found.columns, **parts})

    levels = {"static:best": (8.0, 3.0), "rule": (4.0, 4.5), "oracle": (2.0, 1.5)}
    row = sealed.row_of({name: with_parts(name, *found) for name, found in levels.items()})
    assert row["parts"] == ["all-reduce", "short_mean"]
    assert row["classes_to_static"]["rule"] == {"all-reduce": 1.5, "short_mean": 0.5}

    from generated import learners

    plain = {"scenario": "fabric-v0"}
    jobs = row | {"scenario": "storage-train-v0"}
    monkeypatch.setattr(learners, "_read", lambda name: {"scenarios": [jobs, plain]})
    assert learners._sealed() == [plain] and learners._sealed(jobs=True) == [jobs]
    assert "| `storage-train-v0` | `rule` |" in learners.learners_of_jobs()
    assert "all-reduce +50 %" in learners.learners_of_jobs()


def test_a_run_without_the_best_static_setting_is_refused(tmp_path):
    records = run()
    del records["static:best"]
    with pytest.raises(ValueError, match="static:best"):
        sealed.row_of(records)
    with pytest.raises(ValueError, match="--out"):
        sealed.records_of(tmp_path)


def test_the_files_figures_follow_from_its_scores():
    stored = json.loads(sealed.FILE.read_text())
    for row in stored["scenarios"]:
        for key, value in sealed.relative(row["scores"]).items():
            if key == "oracle":
                assert row[key] == value
                continue
            for name, x in value.items():  # stored scores are rounded to four decimals
                assert row[key][name] == pytest.approx(x, abs=2e-4), (row["scenario"], key, name)


def test_without_phases_there_is_no_gain_to_share():
    level = [[2.0, 3.0]]
    scores = {"static:best": level, "oracle": level, "rule": level, "ippo": [[1.0, 1.5]]}
    found = sealed.relative(scores)
    assert found["share"] == {}
    assert found["to_oracle"]["ippo"][0] == 0.5
