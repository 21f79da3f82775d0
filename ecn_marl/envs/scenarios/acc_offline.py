"""`acc-offline-v0`, `acc-offline-small-v0`: the traffic of ACC's offline training.

§4.3: bursts of 2 to 64 senders to one receiver, messages of 10 KB to 10 MB, loads of 10 to 90 %.
Every third host receives such bursts, so that a third of the links to hosts carry traffic. There
are nine phases, one for each load, in an order drawn for every episode. The paper also trains on
traces of storage, of high-performance computing and of distributed training, which are not
published.

A burst has at most 20 MB, fewer flows the larger they are. The paper has up to 1000 flows. But
bursts of 60 MB to one of nine hosts hold 600 to 1000 KB under every static setting, and all of them
earn ACC's reward alike (.67 to .69): the first windows of so many senders fill the queue before a
mark can reach them, and a learner has nothing to choose. Here shallow and deep settings earn .72
and .65.
"""

from __future__ import annotations

from ecn_marl.envs.phases import Phase
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.incast import Incast
from ecn_marl.sim.topology import star

KINDS = (
    (10.0, 8, 64, (0.1, 0.2, 0.3)),
    (100.0, 4, 32, (0.4, 0.5)),
    (1_000.0, 2, 8, (0.6, 0.7)),
    (10_000.0, 2, 4, (0.8, 0.9)),
)
"""Payload (KB), fewest and most flows of a burst, loads. Small messages have low loads: otherwise
the queue left by a phase of large ones would delay thousands of small ones."""

WIDTH = 64
"""Most flows of a burst of any kind."""

EVERY = 3
"""Of so many hosts one receives."""

PHASE_STEPS = 100

WEIGHTS = (0.00075, 0.074, 1.14)
"""Weights of slowdowns on the small network: all classes count alike under SECN1, and an interval
earns -1. Measured in 8 tuning episodes; at full size as many bytes come to a receiver."""


def _phases(hosts: int) -> tuple[Phase, ...]:
    """A phase for every kind and load."""
    phases = []
    for flow_kb, fewest, most, loads in KINDS:
        for load in loads:
            bursts = tuple(
                Incast(
                    load=load,
                    n_min=fewest,
                    n_max=most,
                    flow_kb=flow_kb,
                    receiver=receiver,
                    min_gap_us=an.TICK_US,
                    width=WIDTH,
                )
                for receiver in range(0, hosts, EVERY)
            )
            phases.append(Phase(f"{round(100 * load)} % of {flow_kb:g} KB", bursts))
    return tuple(phases)


def _scenario(hosts: int, slots: int) -> Scenario:
    phases = _phases(hosts)
    return Scenario(
        topology=star(hosts, delay_us=0.58),
        traffic=phases[0].traffic,
        phases=phases,
        phase_steps=PHASE_STEPS,
        max_steps=PHASE_STEPS * len(phases),
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
