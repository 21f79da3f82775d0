"""`acc-training-v0`, `acc-training-small-v0`: distributed training (ACC, Fig. 10).

ResNet-50 with TensorFlow on the testbed; the paper reports training speed and PFC pauses. Workers
compute, push their gradients to parameter servers, and pull the sums: 25.6 million parameters of
4 bytes, He et al., CVPR'16. The numbers of workers and servers and the computing time of a step are
not in the excerpt used here: 8 and 2 (4 and 2 if small), 100 ms. In the small scenario the
parameters and the computing time are 1/10.
"""

from __future__ import annotations

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.envs.scenarios.pings import WAITING, pings
from ecn_marl.sim.traffic.collectives import parameter_server
from ecn_marl.sim.traffic.graphs import Graph

MODEL_BYTES = 102_400_000

COMPUTE_US = 100_000.0
"""Computing time of a step."""

SMALL_FACTOR = 10


def _scenario(small: bool, workers: int, steps: int) -> Scenario:
    shared = an.common(small)
    nics = an.first_nics(shared["topology"])
    divisor = SMALL_FACTOR if small else 1
    nodes = parameter_server(nics[2 : 2 + workers], nics[:2], MODEL_BYTES // divisor)
    graph = Graph(nodes, pause_us=COMPUTE_US / divisor)
    traffic = (graph, pings(nics[2:], nics[0]))
    slots = WAITING + 16 * workers
    return Scenario(traffic=traffic, slots=slots, max_steps=steps, **shared)


def full() -> Scenario:
    """8 workers, 2 servers; episodes of 1.6 s, some four steps."""
    return _scenario(False, 8, 16_000)


def small() -> Scenario:
    """4 workers, 2 servers; episodes of 100 ms."""
    return _scenario(True, 4, 1000)
