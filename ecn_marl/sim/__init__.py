"""The network simulator; it knows nothing of agents and can be used alone.

Start with `simulator` (three clocks: substep, tick, interval), `config` (what fixes all shapes) and
`state` (what changes). The rooms:

* `core`: what a byte meets, substep by substep: NIC, hops, queues, sink; slots of flows; failures.
* `feedback`: signals to the senders, a module each (`cnp`, `acks`, `probe`, `telemetry`, `field`).
* `transports`: the senders' machines, a module each.
* `network`: topology, links, routes.
* `traffic`: where flows come from, and how large they are.
* `replay`: a list of flows through a network.
* `tuners`: rules that switches have to set their own thresholds.
* `formats`: files of other simulators and of switches.

Beside them: `clocks` (the longest substep that senders tolerate), `metrics`, `regimes` (where the
fluid is known to be off), `theory` (closed forms), `random`, `units`. The names below can be
imported from here.
"""

from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import (
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
from ecn_marl.sim.simulator import PortStats, SimParams, SimState, Simulator, scaled_ecn
from ecn_marl.sim.traffic.collectives import (
    all_to_all,
    parameter_server,
    read_graph,
    ring_all_reduce,
    tree_all_reduce,
)
from ecn_marl.sim.traffic.flow_groups import FlowGroup
from ecn_marl.sim.traffic.graphs import Graph
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.loops import ClosedLoop
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.sim.traffic.schedules import Schedule, schedule
from ecn_marl.sim.traffic.streams import Streams
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
