"""Regimes in which the fluid is off are named below the results that are in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ecn_marl
from ecn_marl._regimes import REGIMES, regime, remarks
from ecn_marl.render.tables import replay_tables
from ecn_marl.sim import star
from ecn_marl.sim.config import SimConfig
from ecn_marl.sim.regimes import is_balanced, regimes_of
from ecn_marl.sim.replay import FlowList, Settings, replay
from ecn_marl.sim.transports import parse_transport
from ecn_marl.sim.transports.mixed import Mixed

PACKET = 1048.0


def config(sender: str = "dcqcn:hpcc-paper", **fields: object) -> SimConfig:
    return SimConfig(star(4), (), parse_transport(sender), **fields)


@pytest.mark.parametrize(
    ("sender", "fields", "expected"),
    [
        ("dcqcn:hpcc-paper", {"dt_us": 2.0}, []),
        ("dcqcn:hpcc-paper", {"dt_us": 5.0}, ["coarse-clock"]),
        ("dctcp:hpcc", {"dt_us": 5.0}, []),
        ("hpcc:hpcc", {"dt_us": 2.0}, []),
        ("hpcc:hpcc", {"dt_us": 1.0}, ["hpcc-clock"]),
        ("swift:htsim", {"dt_us": 1.0}, ["unrecorded"]),
        ("dcqcn:hpcc-paper", {"dt_us": 5.0, "pfc": False}, ["coarse-clock", "losses"]),
    ],
)
def test_regimes_follow_from_the_configuration(sender, fields, expected):
    assert regimes_of(config(sender, **fields)) == expected


@pytest.mark.parametrize(
    ("sender", "packet"), [("dcqcn:hpcc-paper", PACKET), ("hpcc:hpcc", PACKET + 42.0)]
)
def test_three_packets_are_few_no_more(sender, packet):
    cfg = config(sender, dt_us=2.0)
    assert regimes_of(cfg, 3.0 * packet - 1.0) == ["few-packets"]
    assert regimes_of(cfg, 3.0 * packet) == []


def test_mixed_senders_are_in_the_regimes_of_all_members():
    both = Mixed((parse_transport("dcqcn:hpcc-paper"), parse_transport("swift:htsim")))
    assert regimes_of(replace(config(dt_us=5.0), transport=both)) == ["coarse-clock", "unrecorded"]


def test_a_replay_names_the_regime_of_its_thresholds():
    flows = FlowList(
        flow_id=np.arange(1),
        src=np.array([1]),
        dst=np.array([0]),
        size=np.array([5_000]),
        start_ns=np.zeros(1),
        spine_data=np.array([-1]),
        spine_ack=np.array([-1]),
    )
    settings = Settings(ecn=(2.5, 5.0, 1.0), dt_us=2.0, duration_ms=1.0)
    shallow = replay(flows, star(4), settings)
    deep = replay(flows, star(4), replace(settings, ecn=(100.0, 400.0, 0.2)))
    assert shallow.summary()["regimes"] == ["few-packets"]
    assert deep.summary()["regimes"] == []
    counts = next(t for t in replay_tables(shallow.summary()) if t.title == "Flows")
    assert regime("few-packets").error in str(counts.caption)


def test_every_regime_has_a_remark():
    names = [row.name for row in REGIMES]
    assert len(set(names)) == len(names)
    assert all(row.error in text for row, text in zip(REGIMES, remarks(names), strict=True))


def test_a_balanced_burst_is_told_by_its_flows():
    """`shuffle-serve-v0` has it; half as many flows, or one host that gets more, have not."""
    shuffle, restore = (ecn_marl.make(f"{name}-serve-v0").sim for name in ("shuffle", "restore"))
    assert "balanced-bursts" in regimes_of(shuffle) and "balanced-bursts" not in regimes_of(restore)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b for _ in range(4)]
    assert is_balanced(pairs)
    assert not is_balanced([*pairs, (1, 0)])
    assert not is_balanced([(a, (a + 1) % 4) for a in range(4) for _ in range(12)])  # one host each
