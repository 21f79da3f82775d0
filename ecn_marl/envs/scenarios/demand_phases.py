"""`demand-phases-v0`: alternating phases of queries and storage.

No static setting fits both: short queues cost storage flows a tenth of their throughput over long
links, and thresholds that keep these links busy delay queries. The weights of the reward change
with the traffic, as PET weighs WebSearch and DataMining differently (section 5.2).
"""

from __future__ import annotations

from ecn_marl.envs.phases import Phase
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim.incast import Incast
from ecn_marl.sim.poisson import Poisson
from ecn_marl.sim.topology import star
from ecn_marl.sim.traffic import Source

NOTHING = 1e-6
"""Load of a source that is off."""


def _queries(table: str, load: float) -> tuple[Source, ...]:
    """Poisson arrivals alone."""
    bursts = Incast(load=NOTHING, n_min=1, n_max=1, flow_kb=1.0, receiver=-1, width=8)
    return (Poisson(load=load, table=table, width=4), bursts)


def _transfers(senders: int, flow_kb: float) -> tuple[Source, ...]:
    """Bulk transfers to hosts chosen at random, and a few queries."""
    bulk = Incast(load=0.9, n_min=senders, n_max=senders, flow_kb=flow_kb, receiver=-1, width=8)
    return (Poisson(load=0.01, table="FbHdp", width=4), bulk)


def scenario() -> Scenario:
    """Eight hosts at 25 Gb/s around one switch; four phases of 5 ms, in an order that changes.

    `rpc` and `web` are queries over 1 µs links; their rewards favour short queues (w = 0.1 and
    0.3). `backup` (one sender) and `storage` (three senders) use 10 µs links; their rewards favour
    throughput.
    """
    return Scenario(
        topology=star(8, delay_us=10.0),
        traffic=_queries("FbHdp", 0.6),
        dt_us=5.0,
        slots=64,
        phases=(
            Phase("rpc", _queries("FbHdp", 0.6), 1.0, 0.1),
            Phase("web", _queries("WebSearch", 0.6), 1.0, 0.3),
            Phase("backup", _transfers(1, 20_000.0), 10.0, 0.9),
            Phase("storage", _transfers(3, 5_000.0), 10.0, 0.9),
        ),
        phase_steps=50,
        max_steps=200,
        superseded=(
            "its headroom is that of a reward whose weights switch with the phase, which no agent "
            "sees: under one weight the oracle gains at most 0.005, in completion times nothing"
        ),
    )
