"""Hosts that change places: permutations, the flows of both simulators, refusals."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ecn_marl
from ecn_marl.packets import packet_simulator
from ecn_marl.sim import Graph, Poisson, Schedule, Simulator, leaf_spine, scaled_ecn
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.graphs import Node
from ecn_marl.sim.traffic.placement import draw_places

HOSTS = 12
GROUPS = ((0, 2, 3), (4, 9, 10, 11))


@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.permutations(range(HOSTS)),
    cut=st.sampled_from([2, 5, 9]),
)
@settings(max_examples=40, deadline=None)
def test_hosts_change_places_within_their_groups_only(seed, order, cut):
    groups = (tuple(order[:cut]), tuple(order[cut : cut + 2]))
    places = np.asarray(draw_places(jnp.uint32(seed), groups, HOSTS))
    for group in groups:
        assert sorted(places[list(group)]) == sorted(group)
    others = order[cut + 2 :]
    assert list(places[list(others)]) == others


def test_all_orders_are_equally_likely():
    seeds = jax.random.bits(jax.random.key(0), (6000,), jnp.uint32)
    places = np.asarray(jax.jit(jax.vmap(lambda seed: draw_places(seed, GROUPS, HOSTS)))(seeds))
    seen = Counter(map(tuple, places[:, list(GROUPS[0])].tolist()))
    assert set(seen) == set(permutations(GROUPS[0]))
    # 1000 are expected of each; four standard deviations are 115.
    assert max(abs(count - 1000) for count in seen.values()) < 115


NODES = tuple(Node(f"{i}", i, (i + 5) % HOSTS, 4000 + i) for i in range(HOSTS))


@pytest.mark.parametrize("packets", [False, True])
def test_flows_go_between_the_places_of_their_hosts(packets):
    if packets:
        pytest.importorskip("numba", reason="extra packets is not installed")
    network = leaf_spine(2, 6, 2)
    placed = Simulator(
        network,
        (Graph(NODES, pause_us=1e5),),
        slots=32,
        interval_steps=200,
        flow_log=64,
        placement=GROUPS,
    )
    sim = packet_simulator(placed) if packets else placed
    params = sim.default_params()
    init, step = (f if packets else jax.jit(f) for f in (sim.init, sim.interval))
    state = init(jax.random.key(3), params)
    places = np.asarray(state.places)
    assert (places != np.arange(HOSTS)).any()
    state, _ = step(state, params, scaled_ecn(params.net, 5.0, 200.0, 0.01))
    log = sim.finished(state)
    n = int(log.count)
    assert n == HOSTS
    found = {
        int(size): (int(a), int(b))
        for size, a, b in zip(
            log.real["payload"][:n], log.whole["src"][:n], log.whole["dst"][:n], strict=True
        )
    }
    assert found == {node.bytes: (places[node.src], places[node.dst]) for node in NODES}


def test_every_episode_has_places_of_its_own():
    hosts = range(8)
    env = ecn_marl.make("websearch-star-v0", placement=(tuple(hosts),))
    reset = jax.jit(env.reset)
    states = [reset(jax.random.key(seed), env.default_params)[1] for seed in range(2)]
    first, second = (np.asarray(state.sim.places) for state in states)
    assert sorted(first) == sorted(second) == list(hosts)
    assert (first != second).any()
    assert ecn_marl.make("websearch-star-v0").sim.placement == ()


def test_roles_are_not_mixed():
    assert ecn_marl.make("restore-serve-v0", placement=((0, 1), (4, 5, 6))).sim.placement
    with pytest.raises(ValueError, match=r"placement = \(\(3, 4\),\) .*host_groups"):
        ecn_marl.make("restore-serve-v0", placement=((3, 4),))


UNEQUAL = star(4, gbps=(10.0, 10.0, 25.0, 25.0))
LISTED = (Schedule(1.0, 1),)
BONDED = leaf_spine(4, 2, 2, nics_per_server=2)


@pytest.mark.parametrize(
    ("network", "traffic", "placement", "match"),
    [
        (star(4), (Poisson(load=0.1),), ((0,),), r"placement = \(0,\) .* at least 2"),
        (star(4), (Poisson(load=0.1),), ((0, 0),), r"placement = \(0, 0\) .*different"),
        (star(4), (Poisson(load=0.1),), ((0, 1), (1, 2)), "one group at most"),
        (star(4), (Poisson(load=0.1),), ((0, 4),), "hosts 0 to 3"),
        (UNEQUAL, (Poisson(load=0.1),), ((1, 2),), r"one rate .*\[10.0, 25.0\]"),
        (star(4), LISTED, ((0, 1),), r"\(\) with a list of flows"),
        (BONDED, (Poisson(load=0.1),), ((0, 1),), r"\(\) with servers"),
    ],
)
def test_what_cannot_be_placed_is_refused(network, traffic, placement, match):
    with pytest.raises(ValueError, match=match):
        Simulator(network, traffic, slots=16, placement=placement)
