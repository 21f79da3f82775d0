"""The network simulator; it knows nothing of agents and can be used alone."""

from ecn_marl.sim.collectives import (
    all_to_all,
    parameter_server,
    read_graph,
    ring_all_reduce,
    tree_all_reduce,
)
from ecn_marl.sim.graphs import Graph
from ecn_marl.sim.loops import ClosedLoop
from ecn_marl.sim.queues import Ecn
from ecn_marl.sim.simulator import PortStats, SimParams, SimState, Simulator, scaled_ecn
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
from ecn_marl.sim.traffic import Incast, Poisson, Schedule, schedule
from ecn_marl.sim.transports import Dcqcn

__all__ = [
    "ClosedLoop",
    "Dcqcn",
    "Ecn",
    "Graph",
    "Incast",
    "Link",
    "Poisson",
    "PortStats",
    "Schedule",
    "SimParams",
    "SimState",
    "Simulator",
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
