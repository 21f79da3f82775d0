"""The commands that list senders and scenarios."""

from __future__ import annotations

import json

from commands import run

import ecn_marl
from ecn_marl.envs import registry


def test_senders():
    rows = {row["preset"]: row for row in json.loads(run("senders", "--json").stdout)}
    assert rows["dcqcn:hpcc-run"]["link_rate"] == "25 Gb/s; gbps= scales ai and hai"
    assert rows["dcqcn:paper"]["second_name"] == "dcqcn:sigcomm15"
    table = run("senders").stdout
    assert all(name in table for name in rows) and "gbps=100" in table


def test_scenarios(monkeypatch):
    ecn_marl.scenarios()
    monkeypatch.setattr(registry.SCENARIOS, "registered", {})  # other tests register some
    rows = json.loads(run("scenarios", "--json").stdout)
    named = {row["name"]: row for row in rows}
    assert {"websearch-v0", "incast-v0", "pet-websearch-v0"} <= set(named)
    assert named["pet-websearch-v0"]["agents"] == 432
    assert named["websearch-v0"]["port_gbps"] == [25.0, 50.0]
    assert named["restore-serve-v0"]["benchmark"] and not named["incast-v0"]["benchmark"]
    assert named["incast-v0"]["superseded"] and not named["websearch-v0"]["superseded"]
    assert (
        named["pet-fabric-v0"]["about"] == "the jobs of `fabric-v0` on PET's network of 432 ports."
    )
    assert named["acc-tcp-2-v0"]["transport"] == "mixed:dcqcn:mellanox+reno:rfc5681"
    assert named["acc-tcp-2-v0"]["paper"] == "acc" and not named["fabric-v0"]["paper"]
    assert all(row["about"] for row in rows), "every scenario says what it is"
    table = run("scenarios").stdout
    shown = {name for name, row in named.items() if not row["paper"] and not row["superseded"]}
    assert all((f" {name} " in table) == (name in shown) for name in named)
    assert f"With --all: {len(named) - len(shown)} more" in table
    assert table.index("restore-serve-v0") < table.index("all-reduce-v0")
    whole = run("scenarios", "--all").stdout
    assert all(name in whole for name in named) and "superseded: its bursts are over" in whole
    trained = {policy for row in rows for policy in row["pretrained"]}
    assert trained == {f"pretrained:{name}" for name in ecn_marl.pretrained_policies()}
    assert "pretrained:restore-serve-mappo" in named["restore-serve-v0"]["pretrained"]
    assert all(policy in table for policy in trained)
