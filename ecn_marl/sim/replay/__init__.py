"""Replay of a flow list: run it through a network, and summarise the results.

    flows = read_flows("flows.csv.gz", topology)
    result = replay(flows, topology, Settings(ecn=(5, 200, 0.01), duration_ms=60))
    result.fct_ns, result.slowdown, result.queue_bytes, result.summary()

`traffic.trace` reads and checks the list, `settings` makes the simulator, `run` runs it, `samples`
keeps statistics of every 10 µs, `capacity` holds completion times against what links can carry,
and `result` has what comes out.
"""

from ecn_marl.sim.replay.result import CLASS_LABELS, Replay, write_fct, write_queues
from ecn_marl.sim.replay.run import replay
from ecn_marl.sim.replay.settings import Settings
from ecn_marl.sim.traffic.trace import FlowList, read_flows

__all__ = [
    "CLASS_LABELS",
    "FlowList",
    "Replay",
    "Settings",
    "read_flows",
    "replay",
    "write_fct",
    "write_queues",
]
