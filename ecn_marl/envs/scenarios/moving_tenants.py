"""`moving-tenants-v0`: two tenants share a rack, one restores while the other serves."""

from __future__ import annotations

from dataclasses import replace

from ecn_marl.envs.episode import HostGroup
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import restore_serve as rs


def scenario() -> Scenario:
    """`restore-serve-v0`, with the flows to hosts 2 and 3 one phase later.

    So neighbouring ports of one switch need opposite settings at all times, and swap them.
    """
    storage = tuple(range(rs.RACK, rs.RACK + rs.STORAGE))
    return replace(
        rs.scenario(),
        slowdown_weights=(0.0054, 1.0, 0.48),
        traffic=rs.tenant((0, 1)) + rs.tenant((2, 3), shift=1),
        host_groups=(
            HostGroup("tenant A", rs.host_names((0, 1))),
            HostGroup("tenant B", rs.host_names((2, 3)), shift=1),
            HostGroup("storage", rs.host_names(storage)),
        ),
    )
