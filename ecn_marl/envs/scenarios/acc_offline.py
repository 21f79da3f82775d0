"""`acc-offline-v0`, `acc-offline-small-v0`: the traffic of ACC's offline training.

§4.3: bursts of 2 to 64 senders to one receiver, messages of 10 KB to 10 MB, loads of 10 to 90 %.
Every third host receives such bursts, so that a third of the links to hosts carry traffic. There
are nine phases of 10 ms, one for each load. The paper also trains on traces of storage, of
high-performance computing and of distributed training, which are not published.

A burst has at most 20 MB, fewer flows the larger they are. The paper has up to 1000 flows. But
bursts of 60 MB to one of nine hosts hold 600 to 1000 KB under every static setting, and all of them
earn ACC's reward alike (.67 to .69): the first windows of so many senders fill the queue before a
mark can reach them, and a learner has nothing to choose. Here shallow and deep settings earn .72
and .65.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.phased_incast import PhasedIncast

SENDERS = {10.0: (8, 64), 100.0: (4, 32), 1_000.0: (2, 8), 10_000.0: (2, 4)}
"""Fewest and most flows of a burst, by their payload (KB)."""

PHASES = (
    *((0.1, 10.0), (0.8, 10_000.0), (0.4, 100.0), (0.6, 1_000.0), (0.2, 10.0)),
    *((0.9, 10_000.0), (0.5, 100.0), (0.7, 1_000.0), (0.3, 10.0)),
)
"""Load and payload (KB) of every phase, large and small ones in turns. Small messages have low
loads: otherwise the queue left by a phase of large ones would delay thousands of small ones."""

EVERY = 3
"""Of so many hosts one receives."""

PHASE_US = 10_000.0

WEIGHTS = (0.00033, 0.07, 0.79)
"""Weights of slowdowns on the small network: all classes count alike under SECN1, and an interval
earns -1. Measured in 8 tuning episodes; at full size as many bytes come to a receiver."""


def _scenario(hosts: int, slots: int) -> Scenario:
    names = tuple(f"{100 * load:.0f} % of {flow_kb:g} KB" for load, flow_kb in PHASES)
    timeline = Timeline((PHASE_US,) * len(names), names=names)

    def source(receiver: int) -> PhasedIncast:
        bursts = (
            Incast(load, *SENDERS[flow_kb], flow_kb, receiver, min_gap_us=an.TICK_US)
            for load, flow_kb in PHASES
        )
        return PhasedIncast(timeline, tuple(bursts))

    return Scenario(
        topology=star(hosts, delay_us=0.58),
        traffic=tuple(source(receiver) for receiver in range(0, hosts, EVERY)),
        max_steps=100 * len(names),
        slots=slots,
        slowdown_weights=WEIGHTS,
        **an.fields(),
    )


def full() -> Scenario:
    """65 hosts around a switch, 22 of them receivers; episodes of 90 ms."""
    return _scenario(65, 8192)


def small() -> Scenario:
    """9 hosts around a switch, 3 of them receivers; episodes of 90 ms."""
    return _scenario(9, 1024)
