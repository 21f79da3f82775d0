"""`acc-messages-v0`, `acc-messages-small-v0`: messages of two senders to one (ACC, Fig. 7).

Messages of 1 KB, 10 KB, 100 KB, 1 MB and 10 MB, each size as often as the others, at 20 and 60 %
load (§5.2). The load of a source counts against the NICs of all hosts: `load_of` turns that of the
receiver's links into it.
"""

from __future__ import annotations

import numpy as np

from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.network.topology import Topology, star
from ecn_marl.sim.traffic.poisson import Poisson

TABLE = "AccMessages"

SENDERS, RECEIVER = (1, 2), 0
"""Servers that take part; the others are silent."""


def network(small: bool) -> Topology:
    """The testbed; if small one switch with the three servers, a NIC of 25 Gb/s each."""
    return star(3, delay_us=0.58) if small else an.network(False)


def load_of(small: bool, receiver: float) -> float:
    """The option `load` at which the receiver's links have some load."""
    topology = network(small)
    return receiver * topology.server.count(RECEIVER) / topology.n_hosts


def _scenario(small: bool, steps: int, slots: int) -> Scenario:
    topology = network(small)
    server = np.array(topology.server)
    weights = np.outer(np.isin(server, SENDERS), server == RECEIVER).astype(float)
    messages = Poisson(load=load_of(small, 0.6), table=TABLE, matrix=tuple(map(tuple, weights)))
    shared = {**an.fields(), "topology": topology, "margins_us": (1000.0, 20_000.0)}
    return Scenario(traffic=(messages,), max_steps=steps, slots=slots, **shared)


def full() -> Scenario:
    """On the testbed, episodes of 400 ms."""
    return _scenario(False, 4000, 256)


def small() -> Scenario:
    """Around one switch, episodes of 200 ms: some 170 messages at 60 % load."""
    return _scenario(True, 2000, 256)
