"""`export sonic` and `export nvue`: from thresholds to a switch, and back."""

from __future__ import annotations

import json

import jsonpatch
import numpy as np
import pandas as pd
import pytest
from commands import TINY, failure, run

import ecn_marl
from ecn_marl.experiments import switch_export as se

STAR = ("--scenario", TINY)

pytestmark = pytest.mark.usefixtures("tiny_scenario")


def output(*args):
    """What a command that works prints."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def table(path, rows):
    """A table of thresholds: port, start in µs, Kmin and Kmax in bytes, Pmax."""
    names = ["port", "start_us", "kmin_bytes", "kmax_bytes", "pmax"]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    return str(path)


def test_a_static_setting_goes_to_a_switch_and_comes_back(tmp_path):
    patch, config = tmp_path / "patch.json", tmp_path / "config_db.json"
    text = output("export", "sonic", "static:secn2", *STAR, "--out", str(patch))
    assert "1 profiles, 0 changes" in text and "Kmin 100000 B, Kmax 400000 B, 20 %" in text
    empty = {"WRED_PROFILE": {}}
    applied = jsonpatch.apply_patch(empty, json.loads(patch.read_text()))
    config.write_text(json.dumps(applied))
    names = ("static:secn2", f"static:@{config}")
    result = ecn_marl.evaluate(names, TINY, episodes=1, records=False, allow_flagged=True)
    # All ports of a star have the rate that the table's KB are for.
    np.testing.assert_array_equal(*(result.records[name].columns["reward"] for name in names))
    assert "on every port" in result.label(names[1])


def test_thresholds_that_change_are_steps_in_time(tmp_path):
    rows = [("s->a", 0, 5e3, 2e5, 0.01), ("s->b", 0, 5e3, 2e5, 0.01)]
    rows += [("s->a", 100, 4e5, 8e5, 0.2), ("s->b", 100, 5e3, 2e5, 0.01)]
    rows += [("s->a", 200, 4e5, 8e5, 0.2), ("s->b", 200, 5e3, 2e5, 0.01)]
    file, out = table(tmp_path / "ports.csv", rows), tmp_path / "out"
    output("export", "sonic", file, "--interfaces", "Ethernet0,Ethernet4", "--out", str(out))
    steps = json.loads(out.read_text())
    assert [step["at_us"] for step in steps] == [0.0, 100.0, 100.0, 100.0]
    config = {"WRED_PROFILE": {}, "QUEUE": {"Ethernet0|3": {}, "Ethernet4|3": {}}}
    for step in steps:
        config = jsonpatch.apply_patch(config, step["patch"])
    used = [config["QUEUE"][f"{port}|3"]["wred_profile"] for port in ("Ethernet0", "Ethernet4")]
    largest = [config["WRED_PROFILE"][name]["green_max_threshold"] for name in used]
    assert largest == ["800000", "200000"]
    output("export", "nvue", file, "--cell", "1000", "--queue", "5", "--out", str(out))
    lines = out.read_text().splitlines()
    assert lines.count("nv config apply -y") == 2
    changes = lines[lines.index("# at 100 us") + 1 : -1]
    start = "nv set qos congestion-control ECN_MARL_0 traffic-class 5"
    assert changes == [
        f"{start} max-threshold 800000",
        f"{start} min-threshold 400000",
        f"{start} probability 20",
    ]


def test_what_a_rule_sets_is_what_its_records_say(tmp_path):
    out, records = tmp_path / "steps.json", tmp_path / "records"
    rule = "dynamic:queue"
    output("export", "sonic", rule, *STAR, "--out", str(out))
    frame = ecn_marl.evaluate(rule, TINY, episodes=1, records=records, allow_flagged=True).ports
    config = {"WRED_PROFILE": {}}
    for step in json.loads(out.read_text()):
        config = jsonpatch.apply_patch(config, step["patch"])
    last = frame[frame["start_us"] == frame["start_us"].max()]
    found = sorted(int(x["green_min_threshold"]) for x in config["WRED_PROFILE"].values())
    assert found == sorted(set(last["kmin_bytes"].round().astype(int)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sonic", "static:secn1", "--scenario", "websearch-v0"), "name of one of the switches"),
        (("nvue", "static:secn1", *STAR, "--switch", "leaf9"), "unknown switch 'leaf9'"),
        (("sonic", "static:secn1", *STAR, "--interfaces", "a,b"), "interfaces = 'a,b'"),
        (("sonic", "static:secn1", *STAR, "--interfaces", "a,a"), "each of them once"),
        (("sonic", "static:secn1", *STAR, "--cell", "0"), "cell = 0"),
        (("cisco", "static:secn1", *STAR), "unknown system 'cisco'"),
        (("sonic", "none.csv", "--scenario", "websearch-v0"), "none.csv has the thresholds"),
        (("runs/one", "--switch", "leaf0"), "none without sonic or nvue"),
        (("a", "b", "c"), "or sonic POLICY"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line(tmp_path, words, message):
    out = tmp_path / "out.json"
    assert message in failure("export", *words, "--out", str(out))
    assert not out.exists()


def test_tables_that_are_none_are_refused(tmp_path):
    bad = tmp_path / "bad.csv"
    bad.write_text("port,kmin_bytes\ns->a,5\n")
    with pytest.raises(ValueError, match="a column kmax_bytes"):
        se.read_table(bad)
    twice = pd.DataFrame({"port": ["s->a"] * 2, "start_us": [0.0, 0.0]})
    twice = twice.assign(kmin_bytes=1e3, kmax_bytes=2e3, pmax=0.5)
    with pytest.raises(ValueError, match="more than one episode"):
        se.groups_of(twice, ["s->a"])
    with pytest.raises(ValueError, match="kmax"):
        se.groups_of(twice.iloc[:1].assign(kmax_bytes=1e10), ["s->a"])
