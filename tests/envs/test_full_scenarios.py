"""Clusters: eight copies of a small scenario of AI fabrics."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from sim.netcases import imbalance

import ecn_marl
from ecn_marl.envs.registry import lookup
from ecn_marl.sim.traffic.graphs import Graph

CLUSTERS = tuple(name for name in ecn_marl.scenarios() if name.endswith("-full-v0"))
COPIES = 8


def small_of(name):
    return lookup(name.replace("-full-", "-"))


def hosts_of(sources):
    """Numbers of the hosts that send or receive."""
    hosts = set()
    for source in sources:
        if isinstance(source, Graph):
            hosts |= {host for node in source.nodes for host in (node.src, node.dst)}
        else:
            hosts |= {*source.sources, *source.destinations}
    return hosts


def pairs_of(source, place):
    """Sender, receiver, bytes and delay of its flows, with hosts by their place in the copy."""
    if not isinstance(source, Graph):
        return [place[i] for i in source.sources], [place[i] for i in source.destinations]
    return [(place[n.src], place[n.dst], n.bytes, n.delay_us, n.after) for n in source.nodes]


def test_there_is_one_of_most_scenarios():
    assert len(CLUSTERS) == 6


@pytest.mark.parametrize("name", CLUSTERS)
def test_each_copy_has_the_small_ones_traffic_on_hosts_of_its_own(name):
    full, small = lookup(name), small_of(name)
    n, half = len(small.traffic), small.topology.n_hosts // 2
    assert len(full.traffic) == COPIES * n
    assert full.slots == COPIES * small.slots
    copies = [full.traffic[n * i :][:n] for i in range(COPIES)]
    used = Counter(host for sources in copies for host in hosts_of(sources))
    assert max(used.values()) == 1
    assert len(used) == COPIES * len(hosts_of(small.traffic))
    for i, sources in enumerate(copies):
        left = half * (i % 2) + 4 * half * (i // 2)
        hosts = [*range(left, left + half), *range(left + 2 * half, left + 3 * half)]
        place = {host: j for j, host in enumerate(hosts)}
        for a, b in zip(sources, small.traffic, strict=True):
            same = {j: j for j in range(2 * half)}
            assert pairs_of(a, place) == pairs_of(b, same)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_leaf_has_as_much_bandwidth_up_per_host(name):
    def share(topology):
        leaf = topology.ports[0].switch
        ports = [p for p in topology.ports if p.switch == leaf]
        down = sum(p.gbps for p in ports if p.peer in topology.hosts)
        return (sum(p.gbps for p in ports) - down) / down

    full, small = lookup(name), small_of(name)
    assert share(full.topology) == pytest.approx(share(small.topology))
    assert full.topology.n_hosts == COPIES * small.topology.n_hosts
    moved = sorted(host for group in full.placement for host in group)
    assert moved == list(range(full.topology.n_hosts))


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_part_is_of_the_same_sources_in_every_copy(name):
    full, small = lookup(name), small_of(name)
    n = len(small.traffic)
    for a, b in zip(full.objective, small.objective, strict=True):
        assert (a.name, a.weight, a.ideal_us) == (b.name, b.weight, b.ideal_us)
        assert Counter(i % n for i in a.sources) == Counter(list(b.sources) * COPIES)
        assert len(set(a.sources)) == len(a.sources)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", CLUSTERS)
def test_nothing_waits_and_no_byte_is_lost(name):
    env = ecn_marl.make(name, max_steps=60)
    params, key = env.default_params, jax.random.key(5)
    ecn, step = env.static_ecn("secn1", params), jax.jit(env.step_ecn)
    _, state = jax.jit(env.reset)(key, params)
    for _ in range(60):
        _, state, *_ = step(key, state, ecn, params)
    names = ("deferred", "flows_waiting", "flows_started", "bytes_dropped")
    found = env.episode_metrics(state, params)
    metrics = {name: float(np.sum(found[name])) for name in names}
    assert metrics["deferred"] == metrics["flows_waiting"] == 0
    assert metrics["flows_started"] > 100
    lost, offered = imbalance(jax.device_get(state.sim))
    assert offered > 1e7
    assert abs(lost) <= 1e-5 * offered
    if not lookup(name).failing:
        assert metrics["bytes_dropped"] == 0
