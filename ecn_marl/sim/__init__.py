"""The network simulator; it knows nothing of agents and can be used alone.

A byte's way, one module per stage; `substep` puts them together:

* `nic`: hosts share their NIC among flows and space packets.
* `hops`, `queues`: all levels of queues; marking, service and drops at one of them.
* `feedback`: signals to the senders, a module each (`cnp`, `acks`, `probe`, `telemetry`, `field`).
* `sink`: when the last byte of a flow has left the last queue.
* `transports`: the senders' machines, a module each.

Around it: `lifecycle` (stages of a flow, and its slot), `paths` (its way), `ways` (several
of them at once), `flowlets` (a new one after a pause), `recovery` (what is sent again), `pfc`
(pauses), `failures`, `tick` (what is constant for a few substeps), `simulator` (the three clocks),
`stats` and `counts` (statistics of ports). Traffic: `traffic`, `jobs` (open loop), `flow_groups`
(static groups, endless flows), `streams`, `loops`, `graphs`, `collectives` (flows that follow from
others, by `tickets`). `slots` holds helpers that shape the compiled code. The names below can be
imported from here.
"""

from ecn_marl.sim.collectives import (
    all_to_all,
    parameter_server,
    read_graph,
    ring_all_reduce,
    tree_all_reduce,
)
from ecn_marl.sim.flow_groups import FlowGroup
from ecn_marl.sim.graphs import Graph
from ecn_marl.sim.incast import Incast
from ecn_marl.sim.loops import ClosedLoop
from ecn_marl.sim.poisson import Poisson
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.schedules import Schedule, schedule
from ecn_marl.sim.simulator import PortStats, SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.streams import Streams
from ecn_marl.sim.topology import (
    Link,
    Topology,
    acc_testbed,
    dumbbell,
    fat_tree,
    from_links,
    leaf_spine,
    parking_lot,
    star,
)
from ecn_marl.sim.transports import Dcqcn

__all__ = [
    "ClosedLoop",
    "Dcqcn",
    "Ecn",
    "FlowGroup",
    "Graph",
    "Incast",
    "Link",
    "Poisson",
    "PortStats",
    "Schedule",
    "SimParams",
    "SimState",
    "Simulator",
    "Streams",
    "Topology",
    "acc_testbed",
    "all_to_all",
    "dumbbell",
    "fat_tree",
    "from_links",
    "leaf_spine",
    "parameter_server",
    "parking_lot",
    "read_graph",
    "ring_all_reduce",
    "scaled_ecn",
    "schedule",
    "star",
    "tree_all_reduce",
]
