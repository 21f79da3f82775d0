"""Servers with several NICs: the networks, and traffic that never stays within a server."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from netcases import imbalance

import ecn_marl
from ecn_marl.sim import (
    ClosedLoop,
    Dcqcn,
    Graph,
    Incast,
    Poisson,
    Simulator,
    acc_testbed,
    from_links,
    leaf_spine,
    ring_all_reduce,
    scaled_ecn,
    star,
)
from ecn_marl.sim.network.servers import burst
from ecn_marl.sim.network.topology import GBPS, Link
from ecn_marl.sim.traffic import matrices, sizing
from ecn_marl.sim.traffic.jobs import FlowSets, Requests, Timeline
from ecn_marl.sim.traffic.trace import read_flows

DUAL = leaf_spine(4, 3, 2, nics_per_server=2)
"""Six servers: NICs 0..2 and 3..5 of the first pair of leaves, 6..8 and 9..11 of the second."""

UNEVEN = from_links(
    "uneven",
    [f"h{i}" for i in range(6)],
    ["s"],
    [Link(f"h{i}", "s", 25.0, 1.0) for i in range(6)],
    server=(0, 1, 0, 2, 3, 0),
)
"""A server with three NICs and three with one."""

WEIGHTS = np.arange(1.0, 145.0).reshape(12, 12) * (1 - np.eye(12))

TIMELINE = Timeline((1000.0,))


# --- networks -------------------------------------------------------------------------------------


def test_every_host_is_a_server_by_default():
    for net in (star(4), leaf_spine(2, 3, 2)):
        assert net.server == tuple(range(net.n_hosts))
        assert net.bonds == ()


def test_nics_of_a_server_are_on_the_leaves_of_a_pair():
    leaf = np.array(DUAL.edge)
    assert DUAL.server == (0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5)
    assert DUAL.bonds == DUAL.server
    for server in range(6):
        pair = {0, 1} if server < 3 else {2, 3}
        assert set(leaf[np.array(DUAL.server) == server]) == pair
    plain = leaf_spine(4, 3, 2)
    assert (plain.ports, plain.edge) == (DUAL.ports, DUAL.edge), "only the servers differ"
    assert plain != DUAL


def test_the_testbed_of_acc():
    """SIGCOMM'21, §5.1: 24 servers with two 25G NICs, 4 leaves with four 100G links to 2 spines."""
    net = acc_testbed()
    assert len(set(net.server)) == 24
    assert (np.bincount(net.server) == 2).all()
    assert set(net.nic_gbps) == {25.0}
    for leaf in range(4):
        up = [p for p in net.ports if p.switch == f"leaf{leaf}" and p.kind == "leaf-up"]
        assert [p.gbps for p in up] == [100.0] * 4
        assert {p.peer for p in up} == {"spine0", "spine1"}
    delay = np.array([p.delay_us for p in net.ports])

    def round_trip(source, sink):
        way = net.paths(source, sink)[0]
        out = net.nic_delay_us[source] + delay[way[way < net.n_ports]].sum()
        return 2 * out

    assert round_trip(0, 1) == pytest.approx(2.32)
    assert round_trip(0, 47) == pytest.approx(6.13)


# --- traffic --------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=(0, 1))
def draw(source, hosts, ticks):
    """Sources and destinations of the flows of many ticks, all of them taken."""
    nic, params = jnp.full(hosts, 3125.0), source.default_params()
    state = source.init(jax.random.key(1), params, nic)

    def tick(state, _):
        offer = source.offer(state, params, nic)
        state = source.advance(state, params, nic, offer.valid.sum(), 0.0)
        return state, (offer.src, offer.dst, offer.valid)

    return jax.lax.scan(tick, state, ticks)[1]


def drawn(source, net, ticks=400):
    """Number of flows from each host to each, `[H, H]`."""
    (aware,) = sizing.with_widths((source,), net, 10.0)
    src, dst, valid = map(np.asarray, draw(aware, net.n_hosts, jnp.arange(ticks)))
    counts = np.zeros((net.n_hosts, net.n_hosts), int)
    np.add.at(counts, (src[valid], dst[valid]), 1)
    return counts


SOURCES = {
    "uniform": Poisson(width=200),
    "matrix": Poisson(width=200, matrix=matrices.as_matrix(WEIGHTS)),
    "incast": Incast(n_min=2, n_max=5, receiver=-1),
    "incast to one": Incast(n_min=2, n_max=5, receiver=9),
}


@pytest.mark.parametrize("name", SOURCES)
def test_no_flow_stays_within_a_server(name):
    """And shares are those of the source's demand, by chi-squared over pairs of hosts."""
    source = SOURCES[name]
    (aware,) = sizing.with_widths((source,), DUAL, 10.0)
    share = aware.demand(np.array(DUAL.nic_gbps) * GBPS, 10.0).pairs
    server = np.array(DUAL.server)
    assert (share[server[:, None] == server] == 0).all()
    assert share.sum() == pytest.approx(1.0)
    counts = drawn(source, DUAL)
    assert (counts[share == 0] == 0).all()
    n, cells = counts.sum(), share > 0
    assert n > 1000
    if isinstance(source, Poisson):  # flows of a burst have one receiver, so are not independent
        squared = ((counts - n * share)[cells] ** 2 / (n * share[cells])).sum()
        degrees = cells.sum() - 1
        assert squared < degrees + 5 * np.sqrt(2 * degrees) + 5


@pytest.mark.parametrize("n", [3, 6, 7])
def test_all_other_servers_send_once_before_one_sends_again(n):
    """A round of a burst, from every server but the one that receives it."""
    for number in range(20):
        seed, flows = jnp.uint32(5), jnp.arange(2 * (n - 1))
        src, dst = burst(tuple(range(n)), -1, seed, jnp.int32(number), flows)
        others = sorted({*range(n)} - {int(dst[0])})
        assert len({*dst.tolist()}) == 1
        assert sorted(src[: n - 1].tolist()) == sorted(src[n - 1 :].tolist()) == others


@pytest.mark.parametrize("name", ["uniform", "incast", "incast to one"])
def test_both_nics_carry_half(name):
    """Of what each server sends and receives: within 4.5 binomial standard deviations."""
    counts, server = drawn(SOURCES[name], DUAL, 2000), np.array(DUAL.server)
    for flows in (counts.sum(1), counts.sum(0)):
        for s in range(6):
            first, second = flows[server == s]
            n = first + second
            assert abs(first - n / 2) <= 4.5 * np.sqrt(n) / 2
    if name != "incast to one":
        assert (counts.sum(0) > 0).all()
    else:
        assert set(np.flatnonzero(counts.sum(0))) == {6, 9}, "both NICs of the server of host 9"


def test_hosts_send_by_the_weights_of_their_row():
    """Weights within a server go to the other servers; every host sends as much as before."""
    (aware,) = sizing.with_widths((SOURCES["matrix"],), DUAL, 10.0)
    np.testing.assert_allclose(np.sum(aware.matrix, 1), WEIGHTS.sum(1))
    matrix = np.array(aware.matrix)
    server = np.array(DUAL.server)
    for row, plain in zip(matrix, WEIGHTS, strict=True):
        ratio = row[row > 0] / plain[row > 0]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    assert ((matrix == 0) == (server[:, None] == server)).all()


def test_matrices_of_servers():
    weights = np.arange(1.0, 37.0).reshape(6, 6) * (1 - np.eye(6))
    of_nics = np.array(matrices.of_servers(DUAL, weights))
    server = np.array(DUAL.server)
    of_servers = np.zeros((6, 6))
    np.add.at(of_servers, (server[:, None], server), of_nics)
    np.testing.assert_allclose(of_servers, weights)
    assert (of_nics == matrices.between_servers(matrices.as_matrix(of_nics), DUAL.server)).all()
    with pytest.raises(ValueError, match=r"one for each of 6 servers"):
        matrices.of_servers(DUAL, np.ones((3, 3)) - np.eye(3))


def test_servers_of_unequal_numbers_of_nics():
    """Uniform over the NICs of other servers; bursts are uniform over servers."""
    server = np.array(UNEVEN.server)
    other = server[:, None] != server
    poisson, incast = drawn(Poisson(width=200), UNEVEN), drawn(SOURCES["incast"], UNEVEN, 4000)
    assert (poisson[~other] == 0).all() and (incast[~other] == 0).all()
    expected = other / other.sum(1, keepdims=True) * poisson.sum(1, keepdims=True)
    assert (np.abs(poisson - expected) <= 4.5 * np.sqrt(expected)).all()
    for flows in (incast.sum(1), incast.sum(0)):
        shares = np.bincount(server, flows) / flows.sum()
        np.testing.assert_allclose(shares, 1 / 4, atol=0.02)


def test_nics_of_the_largest_bursts_are_drawn_independently():
    """Receivers' NICs: one of two by a coin. Two bursts agree in half of 65,536 flows."""
    n, seed = 65_536, jnp.uint32(4)
    nics = [np.asarray(burst(DUAL.server, 0, seed, jnp.int32(i), jnp.arange(n))[1]) for i in (0, 1)]
    assert set(nics[0]) == set(nics[1]) == {0, 3}
    for later in range(4096, n, 4096):
        same = (nics[0][later:] == nics[1][: n - later]).mean()
        assert same == pytest.approx(0.5, abs=4 * 0.5 / (n - later) ** 0.5)


def test_loads_are_those_of_the_nics():
    """0.5 on every NIC and on every port to a host, whatever the servers."""
    for source in (Poisson(load=0.5), Incast(load=0.5, receiver=-1, n_max=4)):
        (aware,) = sizing.with_widths((source,), DUAL, 10.0)
        loads = sizing.link_loads([sizing.demand_of(aware, DUAL, 10.0)], DUAL)
        sent, received = loads[:12], loads[12:][DUAL.last]
        np.testing.assert_allclose(sent, sent[0])
        np.testing.assert_allclose(received, sent[0])
        wire = 1.0 if isinstance(source, Incast) else 1.048
        assert sent[0] == pytest.approx(0.5 * wire, rel=0.01)


def test_one_nic_per_server_changes_nothing():
    """Sources in other networks do not get servers."""
    source = Poisson(width=10)
    assert Simulator(star(4), (source,)).traffic == (source,)
    aware = Simulator(DUAL, (source,)).traffic
    assert aware[0].server == DUAL.server
    assert Simulator(star(12), aware).traffic == (source,)


# --- in a network ---------------------------------------------------------------------------------


@cache
def run():
    """3 ms of the testbed under load."""
    sim = Simulator(
        acc_testbed(),
        (Poisson(load=0.45, table="GoogleRPC2008"), Incast(load=0.05, flow_kb=10.0, receiver=-1)),
        Dcqcn.of("hpcc-paper"),
        dt_us=2.0,
        tick_steps=5,
        interval_steps=250,
        slots=192,
    )
    params = sim.default_params()
    state = jax.jit(sim.init)(jax.random.key(5), params)
    ecn, sent = scaled_ecn(params.net, 5.0, 200.0, 0.01), 0.0
    interval = jax.jit(sim.interval, compiler_options={"xla_backend_optimization_level": 0})
    for _ in range(6):
        state, stats = interval(state, params, ecn)
        sent = sent + np.asarray(stats.tx_bytes, float)
    return sim, state, sent


@pytest.mark.thorough
def test_every_port_is_used_and_no_byte_is_lost():
    sim, state, sent = run()
    assert (sent > 1e5).all()
    error, offered = imbalance(state)
    assert offered > 1e7
    assert abs(error) < 1e-6 * offered
    flows, server = state.flows, np.array(sim.topology.server)
    busy = np.asarray(flows.stage) > 0
    assert busy.sum() > 10
    assert (server[np.asarray(flows.src)] != server[np.asarray(flows.dst)])[busy].all()


def test_make_takes_it():
    env = ecn_marl.make("websearch-v0", topology=acc_testbed(), load=0.3)
    assert env.num_agents == 80
    assert env.sim.traffic[0].server == acc_testbed().server


# --- errors ---------------------------------------------------------------------------------------


def requests(*hosts):
    return Requests(TIMELINE, (0.1,), hosts, hosts)


def flow_set(*pairs):
    return FlowSets(TIMELINE, 0, pairs, start_us=100.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: leaf_spine(3, 2, 1, nics_per_server=2), "nics_per_server = 2 .* divides 3 leaves"),
        (lambda: leaf_spine(2, 1, 1, nics_per_server=2), "two servers at least"),
        (lambda: leaf_spine(2, 1, 1, nics_per_server=0), "nics_per_server = 0"),
        (lambda: from_links("x", ["a"], ["s"], [Link("a", "s", 1, 1)], server=(1,)), "server = "),
        (lambda: Simulator(DUAL, (requests(0, 1, 3),)), "hosts of Requests .* no pair has one"),
        (lambda: Simulator(DUAL, (flow_set((0, 1), (2, 5)),)), "hosts of FlowSets"),
        (lambda: Simulator(DUAL, (ClosedLoop((0,), (1, 3)),)), "hosts of ClosedLoop"),
        (lambda: Simulator(DUAL, (Graph(ring_all_reduce((0, 3, 6), 300)),)), "hosts of Graph"),
        (
            lambda: Simulator(DUAL, (Poisson(width=9, matrix=matrices.shift(12, 3)),)),
            r"matrix\[0\] = .* another server",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_hosts_of_different_servers_are_fine():
    assert Simulator(DUAL, (requests(0, 1, 8),)).n_queues == DUAL.n_ports
    assert Simulator(DUAL, (flow_set((0, 1), (2, 3)),)).n_queues == DUAL.n_ports
    assert (
        Simulator(DUAL, (ClosedLoop((0,), (1, 6), random_server=False),)).n_queues == DUAL.n_ports
    )
    assert Simulator(DUAL, (Graph(ring_all_reduce((0, 4, 6), 300)),)).n_queues == DUAL.n_ports


def test_recorded_flows_within_a_server_are_refused(tmp_path):
    path = tmp_path / "flows.csv"
    path.write_text("flow_id,src,dst,size_B,start_ns\n0,0,3,1000,0\n")
    assert len(read_flows(path, leaf_spine(4, 3, 2))) > 0
    with pytest.raises(ValueError, match="of another server than src"):
        read_flows(path, DUAL)
