"""`rpc-shuffle-v0`: a rack that serves requests and shuffles data in turns.

A job of an analytics cluster fetches its blocks from several hosts at once. Until the next job the
rack answers requests. The senders are those of DCQCN's paper (Zhu et al., SIGCOMM'15), which
return to line rate in steps of 55 µs. Early marking costs the shuffle a quarter of its throughput,
and with thresholds deep enough for it, requests wait behind megabytes. The weights of the reward
change with the traffic, as PET weighs WebSearch and DataMining differently (§5.2). The change is
visible at a port: many short flows from all hosts, or a few long ones that start together.
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


def _requests() -> tuple[Source, ...]:
    """Requests and answers between all hosts, sizes of Facebook's Hadoop clusters."""
    off = Incast(load=NOTHING, n_min=1, n_max=1, flow_kb=1.0, receiver=-1, width=8)
    return (Poisson(load=0.8, table="FbHdp", width=4), off)


def _blocks() -> tuple[Source, ...]:
    """Blocks of 1.2 MB that three hosts at once send to a fourth, and a few requests."""
    blocks = Incast(load=0.9, n_min=3, n_max=3, flow_kb=1_200.0, receiver=-1, width=8)
    return (Poisson(load=0.01, table="FbHdp", width=4), blocks)


def scenario() -> Scenario:
    """Eight hosts at 25 Gb/s around one switch, 4 µs links; phases of 10 ms.

    The reward favours short queues in `rpc` (w = 0.1) and throughput in `shuffle` (w = 0.9). More
    blocks are requested than the ports carry, so unused capacity is lost.
    """
    return Scenario(
        topology=star(8, delay_us=4.0),
        traffic=_requests(),
        transport="dcqcn:paper",
        dt_us=5.0,
        slots=64,
        phases=(
            Phase("rpc", _requests(), utilisation_weight=0.1),
            Phase("shuffle", _blocks(), utilisation_weight=0.9),
        ),
        phase_steps=100,
        max_steps=400,
        superseded=(
            "73 % of its flows wait for one of 64 slots, and its headroom is that of a reward "
            "whose weights switch with the phase: in completion times there is none"
        ),
    )
