"""The network simulator; it knows nothing of agents and can be used alone."""

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
    "Dcqcn",
    "Ecn",
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
    "dumbbell",
    "fat_tree",
    "from_links",
    "leaf_spine",
    "parking_lot",
    "scaled_ecn",
    "schedule",
    "star",
]
