"""Topologies: ports, levels, and paths against a breadth-first search that shares no code."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from netcases import OFF, QUICK, alone_us, flow_list, network

from ecn_marl.sim import scaled_ecn, schedule
from ecn_marl.sim.network import routing
from ecn_marl.sim.network.topology import (
    Link,
    dumbbell,
    fat_tree,
    from_links,
    leaf_spine,
    parking_lot,
    parse_topology,
    star,
)


def mesh(*pairs, gbps=25.0, delay_us=1.0):
    return [Link(a, b, gbps, delay_us) for a, b in pairs]


def diamond():
    """Two edge switches, three ways between them, one of which is longer."""
    links = mesh(("h0", "a"), ("h1", "a"), ("h2", "d"), ("a", "b"), ("a", "c"), ("b", "d"))
    links += mesh(("c", "d"), ("a", "e"), ("e", "f"), ("f", "d"))
    hosts, switches = ["h0", "h1", "h2"], ["a", "b", "c", "d", "e", "f"]
    return from_links("diamond", hosts, switches, links)


TOPOLOGIES = {
    "star": star(5),
    "smallest star": star(2),
    "dumbbell": dumbbell(3, 2, uplink_gbps=100.0),
    "parking lot": parking_lot(3),
    "leaf-spine": leaf_spine(3, 2, 4),
    "one spine": leaf_spine(2, 1, 1),
    "diamond": diamond(),
    "fat-tree": fat_tree(4),
}


def graph(topology):
    """Neighbours of every node, from the ports and NICs."""
    edges = {(p.switch, p.peer) for p in topology.ports}
    return {n: {t for s, t in edges if s == n} for n in topology.switches}


def home(topology, host):
    """The switch that has a port to `host`."""
    (switch,) = [p.switch for p in topology.ports if p.peer == host]
    return switch


def search(neighbours, start, goal):
    """Length and number of the shortest walks over switches from `start` to `goal`, by layers."""
    layer, visited, length = Counter({start: 1}), {start}, 0
    while layer and goal not in layer:
        following: Counter = Counter()
        for node, ways in layer.items():
            for other in neighbours.get(node, ()):
                if other not in visited:
                    following[other] += ways
        visited |= set(following)
        layer, length = following, length + 1
    return length, layer[goal]


def walks(topology, source, sink):
    """All paths from a host to another, as lists of ports."""
    for row in topology.paths(source, sink):
        yield [(level, port) for level, port in enumerate(row) if port < topology.n_ports]


def check_paths(topology):
    neighbours = graph(topology)
    edge_switch = {topology.edge[i]: home(topology, h) for i, h in enumerate(topology.hosts)}
    first = {topology.edge[i]: i for i in range(topology.n_hosts)}
    assert sorted(edge_switch) == list(range(len(edge_switch)))
    assert topology.n_paths.shape == (len(edge_switch), len(edge_switch))
    for (e, switch), (d, host) in itertools.product(edge_switch.items(), enumerate(topology.hosts)):
        length, ways = search(neighbours, switch, host)
        paths = list(walks(topology, first[e], d))
        assert len(paths) == ways == topology.n_paths[e, topology.edge[d]], "none is left out"
        assert len({tuple(walk) for walk in paths}) == len(paths), "a path is listed twice"
        for walk in paths:
            ports = [topology.ports[p] for _, p in walk]
            assert len(ports) == length
            assert ports[0].switch == switch
            assert all(a.peer == b.switch for a, b in itertools.pairwise(ports))
            assert ports[-1].peer == host
            assert all(topology.ports[p].level == level for level, p in walk)
        unused = topology.routes[e, topology.edge[d], len(paths) :]
        assert (unused == topology.n_ports).all()


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_path_is_a_shortest_walk(name):
    check_paths(TOPOLOGIES[name])


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_ports_are_grouped_by_level(name):
    t = TOPOLOGIES[name]
    assert t.level_bounds[0] == 0
    assert t.level_bounds[-1] == t.n_ports
    assert t.n_levels == len(t.level_bounds) - 1 == t.routes.shape[-1] + 1
    for level, (low, high) in enumerate(itertools.pairwise(t.level_bounds)):
        assert low < high, "no level is empty"
        assert [p.level for p in t.ports[low:high]] == [level] * (high - low)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_link_ends(name):
    t = TOPOLOGIES[name]
    switches = (*t.switches, None)
    for i, port in enumerate(t.ports):
        assert t.switches[t.port_switch()[i]] == port.switch
        end = port.peer if port.peer in t.switches else None
        assert switches[t.link_switch()[t.n_hosts + i]] == end
    for h, host in enumerate(t.hosts):
        assert switches[t.link_switch()[h]] == home(t, host)


def kinds(t):
    return Counter(p.kind for p in t.ports)


def test_port_counts_and_kinds():
    assert kinds(star(7)) == {"host": 7}
    assert kinds(dumbbell(3, 2)) == {"host": 5, "down": 2}
    assert kinds(parking_lot(3)) == {"host": 8, "down": 6}
    assert kinds(leaf_spine(3, 2, 4)) == {"host": 6, "leaf-up": 12, "spine-down": 12}
    pet = leaf_spine(12, 24, 6)
    assert (pet.n_hosts, pet.n_ports, pet.n_switches, pet.n_levels) == (288, 432, 18, 3)
    tree = fat_tree(10)
    assert (tree.n_hosts, tree.n_switches, tree.n_levels) == (250, 125, 5)
    assert kinds(tree) == {"host": 250, "up": 500, "down": 500}
    assert kinds(diamond()) == {"host": 3, "up": 6, "down": 8}


def test_leaf_spine_levels_rates_and_paths():
    t = leaf_spine(3, 2, 4, gbps=25.0, uplink_gbps=100.0, delay_us=1.5)
    for kind, level, gbps in (("leaf-up", 0, 100.0), ("spine-down", 1, 100.0), ("host", 2, 25.0)):
        ports = [t.ports[i] for i in t.ports_of_kind(kind)]
        assert {(p.level, p.gbps, p.delay_us) for p in ports} == {(level, gbps, 1.5)}
    assert t.ports_of_kind("none such").size == 0
    assert t.nic_gbps == (25.0,) * 6
    assert t.nic_delay_us == (1.5,) * 6
    np.testing.assert_array_equal(t.n_paths, np.where(np.eye(3, dtype=bool), 1, 4))
    for k in range(4):  # the k-th path is by spine k: flow lists name spines by number
        first = t.ports[t.paths(0, 5)[k, 0]]
        assert (first.switch, first.peer) == ("leaf0", f"spine{k}")


def test_port_names():
    assert star(3).port_names == tuple(f"switch0->host{i}" for i in range(3))
    names = leaf_spine(2, 1, 1).port_names
    assert set(names[:2]) == {"leaf0->spine0", "leaf1->spine0"}
    assert set(names[2:4]) == {"spine0->leaf0", "spine0->leaf1"}
    assert set(names[4:]) == {"leaf0->host0", "leaf1->host1"}


def test_diamond_keeps_the_two_shortest_paths():
    t = diamond()
    assert len(t.paths(0, 2)) == 2
    via = {t.ports[w[0][1]].peer for w in walks(t, 0, 2)}
    assert via == {"b", "c"}


@pytest.mark.parametrize("t", [leaf_spine(2, 2, 32), fat_tree(10)], ids=["wide", "10-ary"])
def test_every_port_is_on_a_path(t):
    used = {*t.routes.ravel().tolist(), *t.last.tolist()} - {t.n_ports}
    assert used == set(range(t.n_ports))
    assert t.n_paths.max() == (32 if t.n_levels == 3 else 25)


@pytest.mark.thorough
def test_a_fat_tree_of_1024_hosts_is_built_and_steps():
    """At the cost per route of a small one; flows from end to end take the time of six links."""

    def seconds_per_route(k):
        begin = time.process_time()
        net = fat_tree(k)
        return net, (time.process_time() - begin) / net.routes.size

    _, small = seconds_per_route(8)
    net, large = seconds_per_route(16)
    assert large < 4.0 * small
    assert (net.n_hosts, net.n_ports, net.n_paths.max()) == (1024, 5120, 64)
    sim = network(net)
    params = sim.default_params(traffic=(schedule(flow_list([(0, 1023, 10_000, 0.0)]), 1.0),))

    def step(key, params):
        return sim.interval(sim.init(key, params), params, scaled_ecn(params.net, *OFF))[0]

    state = jax.jit(step, compiler_options=QUICK)(jax.random.key(0), params)
    assert float(state.fct_log[0]) == pytest.approx(alone_us(10_000, [25] * 5), rel=1e-5)


def test_fat_tree_rates():
    t = fat_tree(4, gbps=25.0, uplink_gbps=12.5)
    assert {(p.kind, p.gbps) for p in t.ports} == {("host", 25.0), ("up", 12.5), ("down", 12.5)}
    assert fat_tree(2).n_hosts == 2


def test_too_many_paths_are_refused(monkeypatch):
    monkeypatch.setattr(routing, "MOST_ENTRIES", 2 * 2 * 3 * 2 - 1)
    assert leaf_spine(2, 1, 2).n_paths.max() == 2
    with pytest.raises(ValueError, match=r"'leaf-spine:2,1,3': 3 equal-cost paths .* too many"):
        leaf_spine(2, 1, 3)


def test_each_direction_has_the_rate_of_its_link():
    links = [Link("h0", "s", 10.0, 0.5), Link("s", "h1", 40.0, 0.0)]
    t = from_links("mixed", ["h0", "h1"], ["s"], links)
    assert t.nic_gbps == (10.0, 40.0)
    assert t.nic_delay_us == (0.5, 0.0)
    assert {(p.peer, p.gbps, p.delay_us) for p in t.ports} == {("h0", 10.0, 0.5), ("h1", 40.0, 0.0)}


def test_equal_topologies_are_equal_and_hash_alike():
    assert star(4) == star(4)
    assert hash(star(4)) == hash(star(4))
    assert star(4) != star(5)
    assert star(4) != star(4, gbps=10.0)
    assert star(4) != star(4, delay_us=2.0)
    assert star(4) != "star:4"


@st.composite
def networks(draw):
    """Random connected switches, often a ring with chords; hosts on some or on all of them."""
    n = draw(st.integers(1, 7))
    switches = [f"s{i}" for i in range(n)]
    ring = n >= 3 and draw(st.booleans())
    pairs = {(i - 1 if ring else draw(st.integers(0, i - 1)), i) for i in range(1, n)}
    pairs |= {(0, n - 1)} if ring else set()
    spare = [p for p in itertools.combinations(range(n), 2) if p not in pairs]
    if spare:
        pairs |= draw(st.sets(st.sampled_from(spare), max_size=3))
    placed = draw(st.lists(st.integers(0, n - 1), min_size=2, max_size=6))
    placed += range(n) if ring else []
    hosts = [f"h{i}" for i in range(len(placed))]
    links = mesh(*((switches[a], switches[b]) for a, b in sorted(pairs)))
    links += mesh(*((h, switches[i]) for h, i in zip(hosts, placed, strict=True)))
    return hosts, switches, draw(st.permutations(links))


def followers(hosts, switches, links):
    """For every port on a shortest path, the ports that may come before it."""
    ends = {(x.a, x.b) for x in links} | {(x.b, x.a) for x in links}
    neighbours = {s: {b for a, b in ends if a == s} for s in switches}
    before: dict = {}
    edges = {s for s in switches if neighbours[s] & set(hosts)}
    for start, host in itertools.product(edges, hosts):
        total, _ = search(neighbours, start, host)
        for s, t in ends:
            if s in switches and search(neighbours, start, s)[0] + 1 <= total:
                to_go = 0 if t == host else search(neighbours, t, host)[0] if t in switches else 99
                if search(neighbours, start, s)[0] + 1 + to_go == total:
                    before.setdefault((s, t), set())
                    for r in neighbours[s]:
                        if r in switches and search(neighbours, start, r)[0] == (
                            search(neighbours, start, s)[0] - 1
                        ):
                            before[s, t].add((r, s))
    return before


@given(networks())
def test_random_networks(network):
    """Either levels exist and every path is right, or the queues depend on each other in a ring."""
    hosts, switches, links = network
    try:
        tuple(TopologicalSorter(followers(hosts, switches, links)).static_order())
    except CycleError:
        with pytest.raises(ValueError, match="cycle of queues"):
            from_links("ring", hosts, switches, links)
        return
    t = from_links("random", hosts, switches, links)
    assert t.n_ports == len(hosts) + 2 * (len(links) - len(hosts))
    check_paths(t)


def test_a_ring_has_no_order_of_queues():
    n = 5
    links = mesh(*((f"s{i}", f"s{(i + 1) % n}") for i in range(n)))
    links += mesh(*((f"h{i}", f"s{i}") for i in range(n)))
    hosts, switches = [f"h{i}" for i in range(n)], [f"s{i}" for i in range(n)]
    with pytest.raises(ValueError, match="topology 'ring': shortest paths allow a cycle of queues"):
        from_links("ring", hosts, switches, links)


HOSTS, SWITCHES = ["h0", "h1"], ["a", "b"]
HOME = mesh(("h0", "a"), ("h1", "b"))
BAD_LINKS = {
    "unknown node": (mesh(("h0", "a"), ("h1", "x")), "link end = 'x' is not allowed: .* name of a"),
    "no link": (mesh(("h0", "a"), ("a", "b")), r"links of h1 = \[\] is not allowed: .* one link"),
    "two links": (HOME + mesh(("h0", "b")), r"links of h0 = \['a', 'b'\] .* exactly one link, to"),
    "hosts joined": (mesh(("h0", "h1")), r"links of h0 = \['h1'\] is not allowed: .* to a switch"),
    "unreachable": (HOME, "topology 'bad': no path from switch '[ab]' to switch '[ab]'"),
    "rate 0": (
        HOME + mesh(("a", "b"), gbps=0.0),
        "gbps = 0.0 is not allowed: .* > 0 and",
    ),
    "rate NaN": (HOME + mesh(("a", "b"), gbps=float("nan")), "gbps = nan is not allowed"),
    "delay": (
        HOME + mesh(("a", "b"), delay_us=-1.0),
        "delay_us = -1.0 is not .* >= 0 and",
    ),
    "loop": (HOME + mesh(("a", "b"), ("a", "a")), r"link = \('a', 'a'\) .* two different nodes"),
}


@pytest.mark.parametrize("case", BAD_LINKS)
def test_bad_links(case):
    links, message = BAD_LINKS[case]
    with pytest.raises(ValueError, match=message):
        from_links("bad", HOSTS, SWITCHES, links)


def test_names_must_differ():
    with pytest.raises(ValueError, match="node name = 'a' is not allowed: expected a name of its"):
        from_links("bad", ["a", "h1"], ["a"], mesh(("h1", "a")))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: star(1), "hosts = 1 is not allowed: expected an integer >= 2"),
        (lambda: dumbbell(0, 1), "left = 0 is not allowed: expected an integer >= 1"),
        (lambda: dumbbell(1, 0), "right = 0 is not allowed: expected an integer >= 1"),
        (lambda: dumbbell(1, 1, uplink_gbps=0.0), "gbps = 0.0 is not allowed"),
        (lambda: parking_lot(0), "hops = 0 is not allowed: expected an integer >= 1"),
        (lambda: leaf_spine(1, 1, 1), "leaves = 1 is not allowed: expected an integer >= 2"),
        (lambda: leaf_spine(2, 0, 1), "hosts_per_leaf = 0 is not allowed"),
        (lambda: leaf_spine(2, 1, 0), "spines = 0 is not allowed"),
        (lambda: fat_tree(3), "k = 3 is not allowed: expected an even number >= 2"),
        (lambda: star(3, gbps=-25.0), "gbps = -25.0 is not allowed"),
    ],
)
def test_bad_sizes(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def parse(text):
    return parse_topology(text, gbps=10.0, uplink_gbps=40.0, delay_us=2.0)


def test_short_forms():
    assert parse("star:4") == star(4, gbps=10.0, delay_us=2.0)
    assert parse("dumbbell:2,3") == dumbbell(2, 3, gbps=10.0, uplink_gbps=40.0, delay_us=2.0)
    assert parse("parking-lot:2") == parking_lot(2, gbps=10.0, delay_us=2.0)
    assert parse("fat-tree:4") == fat_tree(4, gbps=10.0, uplink_gbps=40.0, delay_us=2.0)
    want = leaf_spine(2, 3, 4, gbps=10.0, uplink_gbps=40.0, delay_us=2.0)
    assert parse("leaf-spine:2,3,4") == want
    assert want.name == "leaf-spine:2,3,4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stra:4",
            "unknown topology 'stra': did you mean 'star'.* known: dumbbell, fat-tree",
        ),
        ("", "unknown topology ''"),
        ("star", "topology = 'star' is not allowed: expected star: followed by 1 integer"),
        ("star:4,2", "topology = 'star:4,2' is not allowed"),
        ("star:x", "topology = 'star:x' is not allowed"),
        ("leaf-spine:4,8", "expected leaf-spine: followed by 3 integer"),
        ("leaf-spine:4,8,2.5", "topology = 'leaf-spine:4,8,2.5' is not allowed"),
        ("star:1", "hosts = 1 is not allowed"),
    ],
)
def test_bad_short_forms(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_parallel_links_are_paths_of_their_own():
    """Two links between each leaf and spine: four ways where there were two, each port used."""
    net = leaf_spine(2, 2, 2, parallel=2)
    assert net.n_ports == 4 + 2 * 2 * 2 * 2
    assert len(set(net.port_names)) == net.n_ports
    assert {"leaf0->spine1", "leaf0->spine1#1"} <= set(net.port_names)
    paths = net.paths(0, 2)
    assert len(paths) == 2 * 2 * 2, "two spines, two links up, two down"
    used = {net.port_names[i] for path in paths for i in path if i < net.n_ports}
    assert used == {
        name
        for name in net.port_names
        if name.startswith(("leaf0->s", "spine"))
        and name.split("->")[1].split("#")[0] in ("spine0", "spine1", "leaf1")
    } | {"leaf1->host2"}
    for path in paths:
        ends = [net.ports[i] for i in path if i < net.n_ports]
        assert [p.switch for p in ends[1:]] == [p.peer for p in ends[:-1]]


def test_hosts_of_their_own_rates():
    rates = (25.0, 100.0, 400.0, 50.0)
    for net in (star(4, gbps=rates), leaf_spine(2, 2, 2, gbps=rates)):
        assert net.nic_gbps == rates
        assert tuple(net.ports[i].gbps for i in net.last) == rates
    assert fat_tree(2, gbps=(25.0, 100.0)).ports[0].gbps == 100.0
    with pytest.raises(ValueError, match=r"gbps = '3 rates' .* one for each of 4"):
        star(4, gbps=(1.0, 2.0, 3.0))
