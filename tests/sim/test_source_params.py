"""Parameters of sources that do not fit their simulator are refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecn_marl.sim import Graph, Incast, Poisson, Simulator, star
from ecn_marl.sim.traffic.graphs import Node, graph_params

NET = star(4)


def test_a_misspelt_argument_is_refused():
    sim = Simulator(NET, (Poisson(load=0.3),), slots=16)
    with pytest.raises(TypeError, match="trafic"):
        sim.default_params(trafic=(None,))


@pytest.mark.parametrize("count", [2, 5])
def test_a_graph_of_another_number_of_nodes_is_refused(count):
    """Shapes follow from the source; its parameters may be those of another graph of that size."""
    nodes = tuple(Node(i, i % 3, 3, 1000) for i in range(3))
    sim = Simulator(NET, (Graph(nodes),), slots=16)
    other = tuple(Node(i, 3, i % 3, 1000) for i in range(count))
    with pytest.raises(ValueError, match=f"number of nodes of graph = {count} .* 3, as many as"):
        sim.default_params(traffic=(graph_params(other),))
    sim.default_params(traffic=(graph_params(other[:1] + nodes[1:]),))


def test_the_receiver_of_parameters_is_a_host():
    source = Incast(load=0.2, n_max=3)
    sim = Simulator(NET, (source,), slots=16)
    with pytest.raises(ValueError, match=r"receiver = 4 .* one of 4 hosts, 0 to 3, or -1"):
        sim.default_params(traffic=(replace(source.default_params(), receiver=np.int32(4)),))
