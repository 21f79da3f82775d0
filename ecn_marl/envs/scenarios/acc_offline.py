"""`acc-offline-v0`, `acc-offline-small-v0`: the traffic of ACC's offline training.

§4.3: bursts of 2 to 64 senders to one receiver, 1 to 1000 flows, messages of 10 KB to 10 MB, loads
of 10 to 90 %. There are nine phases, one for each load, in an order drawn for every episode. The
number of flows depends on their size, so that a burst has at most some 60 MB. The paper also trains
on traces of storage, of high-performance computing and of distributed training, which are not
published.
"""

from __future__ import annotations

from ecn_marl.envs.phases import Phase
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.incast import Incast
from ecn_marl.sim.topology import star

KINDS = (
    (10.0, 32, 1000, (0.1, 0.2, 0.3)),
    (100.0, 8, 512, (0.4, 0.5)),
    (1_000.0, 2, 64, (0.6, 0.7)),
    (10_000.0, 2, 4, (0.8, 0.9)),
)
"""Payload (KB), fewest and most flows of a burst, loads. Small messages have low loads: otherwise
the queue left by a phase of large ones would delay thousands of small ones."""

PHASE_STEPS = 100

WEIGHTS = (0.00076, 0.06, 2.45)
"""Weights of slowdowns on the small network: all classes count alike under SECN1, and an interval
earns -1. Measured in 4 episodes; at full size as many bytes come to the receiver."""


def _phases(largest_burst: int, width: int) -> tuple[Phase, ...]:
    """A phase for every kind and load."""
    phases = []
    for flow_kb, fewest, most, loads in KINDS:
        for load in loads:
            bursts = Incast(
                load=load,
                n_min=fewest,
                n_max=min(most, largest_burst),
                flow_kb=flow_kb,
                min_gap_us=an.TICK_US,
                width=width,
            )
            phases.append(Phase(f"{round(100 * load)} % of {flow_kb:g} KB", (bursts,)))
    return tuple(phases)


def _scenario(hosts: int, most: int, width: int, slots: int) -> Scenario:
    phases = _phases(most, width)
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
    """64 senders around a switch, bursts of up to 1000 flows; episodes of 90 ms."""
    return _scenario(65, 1000, 1000, 8192)


def small() -> Scenario:
    """8 senders, bursts of up to 64 flows; episodes of 90 ms."""
    return _scenario(9, 64, 64, 1024)
