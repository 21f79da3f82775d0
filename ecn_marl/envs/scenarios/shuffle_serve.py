"""`shuffle-serve-v0`: `restore-serve-v0` with twice as many large flows while serving."""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import restore_serve as rs


def scenario() -> Scenario:
    """12 large flows of half the size to each rack host in every serving phase, instead of 6."""
    hosts = tuple(range(rs.RACK))
    return replace(
        rs.scenario(),
        traffic=rs.tenant(hosts, streams=12),
        slots=224,
        slowdown_weights=(0.0043, 1.0, 0.14),
    )
