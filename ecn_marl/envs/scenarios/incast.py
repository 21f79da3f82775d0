"""`incast-v0`: bursts of N senders to one receiver, N changing from burst to burst."""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.incast import Incast


def scenario() -> Scenario:
    """A star of 17 hosts at 25 Gb/s; 2 to 16 hosts send 500 KB each to host 0, load 0.8."""
    return Scenario(
        topology=star(17),
        traffic=(Incast(load=0.8, n_min=2, n_max=16, flow_kb=500.0, width=16),),
        dt_us=5.0,
        slots=64,
        superseded=(
            "its bursts are over before thresholds can act: every setting earns the same, "
            "0.682 to 0.683"
        ),
    )
