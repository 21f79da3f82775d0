"""Graphs of flows: order, starts and steps against plain Python; collectives; files."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopcases import NIC, TICK, after, drive, near
from netcases import OFF, QUICK, alone_us, imbalance, wire
from roundoff import U

from ecn_marl.sim import (
    Dcqcn,
    Graph,
    Simulator,
    all_to_all,
    parameter_server,
    read_graph,
    ring_all_reduce,
    scaled_ecn,
    star,
    tree_all_reduce,
)
from ecn_marl.sim.metrics import counter_bytes, source_metrics
from ecn_marl.sim.traffic.collectives import stripe_read
from ecn_marl.sim.traffic.graphs import Node, graph_params, most_at_once
from ecn_marl.sim.traffic.sizes import CHUNK
from ecn_marl.sim.traffic.tickets import TIME_UNIT

NODES, EDGES = 8, 16


def random_nodes(seed, delays=(0.0, 3.0, 40.0)):
    """A random graph on pairs of hosts of their own, in an order of nodes that is not its own."""
    rng = np.random.default_rng(seed)
    links = [(a, b) for b in range(NODES) for a in range(b)]
    keep = rng.choice(len(links), rng.integers(0, EDGES + 1), replace=False)
    nodes = [
        Node(
            id=f"n{i}",
            src=2 * i,
            dst=2 * i + 1,
            bytes=int(rng.integers(1, 200_000)),
            delay_us=float(rng.choice(delays)),
            after=tuple(f"n{a}" for a, b in (links[k] for k in keep) if b == i),
        )
        for i in range(NODES)
    ]
    return tuple(nodes[i] for i in rng.permutation(NODES))


def twin(nodes, begun, duration, round_up):
    """Start and end of every node of a step, one event after the other."""
    times, left = {}, list(nodes)
    while left:
        ready = [n for n in left if all(a in times for a in n.after)]
        for n in ready:
            start = max((round_up(times[a][1], n.delay_us) for a in n.after), default=None)
            start = begun + n.delay_us if start is None else start
            times[n.id] = start, start + duration(n)
            left.remove(n)
    return times


SMALL = Graph(random_nodes(0), width=NODES)


@given(seed=st.integers(0, 10_000), pause=st.sampled_from([0.0, 5.0, 90.0]))
@settings(max_examples=12, deadline=None)
def test_every_flow_begins_when_the_last_of_those_before_it_has_finished(seed, pause):
    """Steps of random graphs, each flow once per step, at its time; and the steps' times."""
    nodes, rng = random_nodes(seed), np.random.default_rng(seed)
    params = graph_params(nodes, pause, EDGES)
    flows, state, waited = drive(SMALL, params, 300, lambda _: rng.uniform(1.0, 60.0))
    assert waited == 0
    begun, times, n_steps = 0.0, [], len(flows) // NODES
    assert n_steps >= 2
    for step in range(n_steps):
        step_flows = {nodes[f.ticket].id: f for f in flows[step * NODES : (step + 1) * NODES]}
        assert len(step_flows) == NODES, "every flow once"
        for node in nodes:
            flow, delay = step_flows[node.id], node.delay_us
            # From the ends as they were: sums of durations could end on another tick.
            earliest = (after(step_flows[a].end, delay) for a in node.after)
            expected = max(earliest, default=begun + delay)
            assert flow.start == pytest.approx(expected, abs=near(delay) + near(pause))
            assert (flow.src, flow.dst, flow.payload) == (node.src, node.dst, node.bytes)
        end = max(f.end for f in step_flows.values())
        if np.isfinite(end):
            times.append(end - begun)
            begun = after(end, pause)
    metrics = SMALL.metrics(jax.device_get(state), 300 * TICK)
    assert metrics["steps"] == len(times)
    # Each is a difference of times within a tick or a pause of whole ticks, as is its begin; the
    # counter of them rounds below its unit.
    off = near(pause) + 4 * (max(times) + pause + TICK) * U
    assert metrics["step_us"] == pytest.approx(np.mean(times), abs=off + TIME_UNIT * U)
    assert metrics["longest_us"] == pytest.approx(max(times), abs=off)
    assert metrics["last_us"] == pytest.approx(times[-1], abs=off)


def test_before_the_first_step_there_is_no_time_and_no_nan():
    """A training whose state held NaN would stop where it saves a checkpoint."""
    params = graph_params(random_nodes(0), 5.0, EDGES)
    _, state, _ = drive(SMALL, params, 1, lambda _: 1e6)
    assert not any(np.isnan(x).any() for x in jax.tree.leaves(jax.device_get(state)))
    metrics = SMALL.metrics(jax.device_get(state), TICK)
    assert metrics["steps"] == 0 and np.isnan(metrics["last_us"]) and np.isnan(metrics["step_us"])


JITTERED = Graph(
    random_nodes(0), pause_us=80.0, width=NODES, pause_jitter=0.5, size_jitter=0.25, start_us=200.0
)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_jitter_draws_pauses_and_sizes_for_each_step(seed):
    """Within their bounds, one factor for all flows of a step, another one for the next step."""
    nodes, rng = random_nodes(0, delays=(0.0,)), np.random.default_rng(seed)
    params = graph_params(nodes, 80.0, EDGES)
    flows, _, waited = drive(JITTERED, params, 400, lambda _: rng.uniform(1.0, 60.0), seed=seed)
    assert waited == 0
    steps = [flows[i : i + NODES] for i in range(0, len(flows) - NODES + 1, NODES)]
    assert len(steps) >= 3
    assert 0.0 <= steps[0][0].start < 200.0
    factors = np.array([[f.payload / nodes[f.ticket].bytes for f in step] for step in steps])
    rounding = 1.0 / min(node.bytes for node in nodes)
    assert np.ptp(factors, axis=1).max() <= 2 * rounding
    assert (abs(factors - 1.0) <= 0.25 + rounding).all() and np.ptp(factors[:, 0]) > 0.01
    ends = [max(f.end for f in step) for step in steps]
    pauses = np.array([b[0].start - a for a, b in zip(ends, steps[1:], strict=False)])
    assert (pauses > 40.0 - near(80.0)).all() and (pauses < 120.0 + TICK).all()
    assert np.ptp(pauses) > 1.0


@given(seed=st.integers(0, 10_000), pause=st.sampled_from([0.0, 90.0]), ticks=st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_time_in_steps_and_progress_are_those_of_the_flows(seed, pause, ticks):
    """At the end of any tick, against the ends of all flows so far."""
    nodes, rng = random_nodes(seed), np.random.default_rng(seed)
    params = graph_params(nodes, pause, EDGES)
    flows, state, _ = drive(SMALL, params, ticks, lambda _: rng.uniform(1.0, 60.0))
    now = ticks * TICK
    ends = sorted(f.end for f in flows if f.end <= now)
    over = [max(f.end for f in flows[i : i + NODES]) for i in range(0, len(flows), NODES)]
    over = [end for i, end in enumerate(over) if end <= now and len(flows) >= (i + 1) * NODES]
    begins = [0.0, *(after(end, pause) for end in over)]
    expected = sum(end - begin for begin, end in zip(begins, over, strict=False))
    expected += max(now - begins[len(over)], 0.0)
    begun, spent = jax.device_get(SMALL.in_steps(state, TICK))
    assert begun == len(over) + (now > begins[len(over)])
    assert spent == pytest.approx(expected, abs=(len(over) + 1) * near(pause) + TIME_UNIT * 64 * U)
    assert float(SMALL.progress(state)) == pytest.approx(len(ends) / NODES)


def test_jitter_that_float32_cannot_hold_is_refused():
    large = (Node("a", 0, 1, 16_000_000),)
    with pytest.raises(ValueError, match="size_jitter"):
        Graph(large, size_jitter=0.2)
    with pytest.raises(ValueError, match="pause_jitter"):
        Graph(large, pause_jitter=1.5)
    with pytest.raises(ValueError, match="start_us"):
        Graph(large, start_us=-1.0)


def test_a_stripe_is_dealt_to_its_servers():
    nodes = stripe_read((3, 4, 5), 0, 1000, 8)
    assert [n.src for n in nodes] == [3, 4, 5, 3, 4, 5, 3, 4]
    assert {n.dst for n in nodes} == {0} and sum(n.bytes for n in nodes) == 1000
    assert most_at_once(nodes) == 8
    with pytest.raises(ValueError, match="another host than the servers"):
        stripe_read((3, 4), 4, 1000, 8)


@given(seed=st.integers(0, 10_000), room=st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_flows_that_find_no_room_wait_in_their_order_and_none_is_lost(seed, room):
    nodes = random_nodes(seed, (0.0,))
    params = graph_params(nodes, 0.0, EDGES)
    flows, state, _ = drive(SMALL, params, 400, lambda f: 5.0 + f.ticket, room)
    n_steps = int(state.steps)
    assert n_steps > 0
    for step in range(n_steps):
        step_flows = flows[step * NODES : (step + 1) * NODES]
        assert sorted(f.ticket for f in step_flows) == list(range(NODES))
        starts = [f.start // TICK for f in step_flows]
        assert starts == sorted(starts), "first come first served, to the tick"


def test_most_at_once_is_the_width_of_collectives():
    hosts = range(8)
    assert most_at_once(ring_all_reduce(hosts, 800)) == 8
    assert most_at_once(all_to_all(hosts, 800)) == 56
    assert most_at_once(parameter_server(range(6), (6, 7), 800)) == 12
    assert 4 <= most_at_once(tree_all_reduce(hosts, 800)) <= 6, "four leaves, there and back"
    assert most_at_once((Node(0, 0, 1, 1), Node(1, 1, 0, 1, 0.0, (0,)))) == 1


@pytest.mark.parametrize("seed", range(4))
def test_flows_in_progress_stay_below_most_at_once(seed):
    nodes, rng = random_nodes(seed), np.random.default_rng(seed)
    params = graph_params(nodes, 0.0, EDGES)
    flows, *_ = drive(SMALL, params, 300, lambda _: rng.uniform(1.0, 60.0))
    ends = [(f.end, -1) for f in flows]
    most = np.cumsum([n for _, n in sorted([*((f.start, 1) for f in flows), *ends])]).max()
    assert most <= most_at_once(nodes)


def sent(nodes, host, side="src"):
    return sum(n.bytes for n in nodes if getattr(n, side) == host)


@pytest.mark.parametrize(("n", "size"), [(2, 1000), (5, 1003), (8, 4096)])
def test_amounts_of_data_are_those_of_the_textbook(n, size):
    hosts = [3 * i for i in range(n)]
    ring = ring_all_reduce(hosts, size)
    assert len(ring) == 2 * n * (n - 1)
    assert sum(x.bytes for x in ring) == 2 * (n - 1) * size
    for h in hosts:
        least = 2 * (size - -(-size // n))
        assert least <= sent(ring, h) <= 2 * size * (n - 1) / n + 2
    tree = tree_all_reduce(hosts, size)
    assert sum(x.bytes for x in tree) == 2 * (n - 1) * size
    assert sent(tree, hosts[-1]) == sent(tree, hosts[-1], "dst") == size
    shuffle = all_to_all(hosts, size * n)
    assert {(x.src, x.dst) for x in shuffle} == {(a, b) for a in hosts for b in hosts if a != b}
    assert sum(x.bytes for x in shuffle) == (n - 1) * size * n
    ps = parameter_server(hosts, (1, 2), size)
    for h in hosts:
        assert sent(ps, h) == sent(ps, h, "dst") == size


@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("kind", [ring_all_reduce, tree_all_reduce])
def test_an_all_reduce_brings_everything_everywhere(kind, n):
    """Follow which contributions each host has of each chunk; a flow sends what it then has."""
    nodes, hosts = kind(range(n), 100 * n), range(n)
    ring = kind is ring_all_reduce
    contributions = {(h, c): {h} for h in hosts for c in range(n)}
    done: set[str] = set()
    while len(done) < len(nodes):
        ready = [x for x in nodes if x.id not in done and set(x.after) <= done]
        assert ready
        moved = []
        for x in ready:
            step = int(x.id.split()[1]) if ring else None
            chunks = [(x.src - step) % n] if ring else range(n)
            moved += [((x.dst, c), set(contributions[x.src, c])) for c in chunks]
        for key, parts in moved:
            contributions[key] |= parts
        done |= {x.id for x in ready}
    assert all(parts == set(hosts) for parts in contributions.values())


# --- on a simulated network -----------------------------------------------------------------------

RING = 4
STAR = Simulator(
    star(2 * NODES), (SMALL,), Dcqcn.of("hpcc-paper"), interval_steps=5, slots=NODES, bins=0
)
"""An interval is a tick, so that every flow is seen."""


def ticks(sim, params, count):
    """Final state, and slots at the end of every tick, of a batch of parameters."""
    ecn = scaled_ecn(params.net, *OFF)

    def run(traffic):
        p = replace(params, traffic=traffic)

        def tick(state, _):
            state, _ = sim.interval(state, p, ecn)
            f = state.flows
            slots = (f.stage, f.ticket, f.start_step, f.start_rest, f.tail)
            return state, (*slots, state.totals.finished.sum())

        return jax.lax.scan(tick, sim.init(jax.random.key(0), p), None, length=count)

    return jax.jit(jax.vmap(run), compiler_options=QUICK)


def test_random_graphs_on_an_idle_network():
    """Starts follow from the ends that the network gives; these match its closed form."""
    graphs = [random_nodes(seed) for seed in range(6)]
    traffic = jax.tree.map(lambda *x: np.stack(x), *(graph_params(g, 25.0, EDGES) for g in graphs))
    count = 600
    state, slots = jax.device_get(ticks(STAR, STAR.default_params(), count)((traffic,)))
    source = source_metrics(STAR, state)[0]
    assert int(state.totals.deferred.sum()) == 0
    for g, nodes in enumerate(graphs):
        ends, starts = {}, {}
        stage, ticket, step, rest, tail, finished = (x[g] for x in slots)
        for t in range(count):
            over = (ticket[t] >= 0) & ((stage[t] == 0) | (stage[t] == 4))
            for slot in np.flatnonzero(over):
                key = (int(step[t, slot]), int(ticket[t, slot]))
                if key not in ends:
                    ends[key] = 5.0 * (t + 1) + float(tail[t, slot])
                    starts[key] = key[0] * 1.0 + float(rest[t, slot])
        assert len(ends) == finished[-1] > 2 * NODES
        order = sorted(ends)
        begun, n_steps = 0.0, int(source["steps"][g])
        times = []
        for s in range(n_steps):
            keys = {nodes[k[1]].id: k for k in order[s * NODES : (s + 1) * NODES]}
            assert len(keys) == NODES

            duration = {n.id: ends[keys[n.id]] - starts[keys[n.id]] for n in nodes}
            expected = twin(nodes, begun, lambda n, duration=duration: duration[n.id], ceil5)
            for n in nodes:
                assert starts[keys[n.id]] == pytest.approx(expected[n.id][0], abs=5e-3)
                alone = alone_us(n.bytes, [25.0])
                assert duration[n.id] == pytest.approx(alone, rel=0.01, abs=1.0)
            times.append(max(ends[k] for k in keys.values()) - begun)
            begun = ceil5(begun + times[-1], 25.0)
        assert source["step_us"][g] == pytest.approx(np.mean(times), abs=0.01)
        assert source["longest_us"][g] == pytest.approx(max(times), abs=0.01)


def ceil5(end, delay):
    return max(end + delay, np.ceil(end / 5.0 - 1e-5) * 5.0)


@pytest.mark.thorough
def test_a_ring_all_reduce_takes_as_long_as_its_bytes():
    """2 (n - 1) times a chunk, and bytes to the last one; ACKs of the other ring flow beside it."""
    n, size = RING, 4_000_000
    sim = replace(STAR, topology=star(n), traffic=(Graph(ring_all_reduce(range(n), size)),))
    traffic = jax.tree.map(lambda x: np.asarray(x)[None], sim.default_params().traffic)
    state, _ = jax.device_get(ticks(sim, sim.default_params(), 800)(traffic))
    metrics = source_metrics(sim, state)[0]
    chunk = size // n
    rate = 3125.0 * 1048 / (1048 + 60)
    latency = alone_us(chunk, [25.0]) - wire(chunk) / 3125.0
    step_us = wire(chunk) / rate + latency
    assert metrics["steps"][0] >= 1
    ideal = 2 * (n - 1) * step_us
    assert ideal < metrics["step_us"][0] < ideal + 2 * (n - 1) * 5.0 + 0.01 * ideal
    single = jax.tree.map(lambda x: x[0], state)
    error, offered = imbalance(single)
    assert abs(error) <= 1e-6 * offered
    assert offered == int(single.totals.started) * wire(chunk)
    assert float(counter_bytes(single.totals.delivered)) >= metrics["steps"][0] * 2 * (
        n - 1
    ) * n * wire(chunk) * (1 - 1e-6)


# --- files and errors -----------------------------------------------------------------------------


def written(tmp_path, tree):
    path = tmp_path / "job.json"
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


def test_a_graph_from_a_file(tmp_path):
    nodes = [
        {"id": "push", "src": 0, "dst": 1, "bytes": 1_000_000},
        {"id": 2, "src": 1, "dst": 0, "bytes": 5, "delay_us": 20, "after": ["push"]},
    ]
    graph = read_graph(written(tmp_path, {"nodes": nodes}))
    assert graph == (Node("push", 0, 1, 1_000_000), Node(2, 1, 0, 5, 20, ("push",)))


A, B = {"id": "a", "src": 0, "dst": 1, "bytes": 9}, {"id": "b", "src": 1, "dst": 0, "bytes": 9}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("{", "not JSON"),
        ([], "nodes"),
        ({"nodes": []}, "at least one node"),
        ({"nodes": [A], "node": 1}, "'node': did you mean 'nodes'"),
        ({"nodes": [3]}, r"nodes\[0\]"),
        ({"nodes": [A, {"id": "b"}]}, "node 'b': src .* missing"),
        ({"nodes": [{**A, "size": 3}]}, "node 'a': 'size'"),
        ({"nodes": [A, {**B, "id": "a"}]}, "node 'a': id .* of its own"),
        ({"nodes": [{**A, "dst": 0}]}, "node 'a': dst = 0 .* other than src"),
        ({"nodes": [{**A, "src": -1}]}, "node 'a': src = -1"),
        ({"nodes": [{**A, "bytes": -5}]}, "node 'a': bytes = -5"),
        ({"nodes": [{**A, "bytes": 10**12 + 1}]}, "node 'a': bytes = 1000000000001"),
        ({"nodes": [{**A, "bytes": 2**63}]}, "node 'a': bytes = 9223372036854775808"),
        ({"nodes": [A, {**B, "bytes": 10**20}]}, "node 'b': bytes = 1000000000000000000"),
        ({"nodes": [{**A, "delay_us": -1}]}, "node 'a': delay_us = -1"),
        ({"nodes": [{**A, "after": "b"}]}, "node 'a': after = 'b'"),
        ({"nodes": [{**A, "after": ["c"]}]}, "node 'a': after = 'c' .* ids of other nodes"),
        ({"nodes": [{**A, "after": ["a"]}]}, "node 'a': after .* no cycle: 'a' after 'a'"),
        ({"nodes": [{**A, "after": ["b"]}, {**B, "after": ["a"]}]}, "no cycle: 'a' after 'b'"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path, tree, words):
    with pytest.raises(ValueError, match=r"job\.json.*" + words) as error:
        read_graph(written(tmp_path, tree))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Graph(()), "at least one node"),
        (lambda: Graph(SMALL.nodes, pause_us=float("nan")), "pause_us"),
        (lambda: graph_params(ring_all_reduce(range(3), 9), edges=1), "edges = 1 .* at least 9"),
        (lambda: ring_all_reduce((1,), 9), "hosts"),
        (lambda: tree_all_reduce((1, 1), 9), "hosts"),
        (lambda: ring_all_reduce(range(4), 3), "size = 3 .* >= 4"),
        (lambda: all_to_all((0, -1), 9), "hosts"),
        (lambda: parameter_server((0, 1), (1,), 9), "servers .* than the workers"),
        (lambda: Graph(SMALL.nodes).demand(NIC[:3], 5.0), "node 'n[0-9]': .* 0 to 2"),
    ],
)
def test_bad_values_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_largest_flow_of_a_file_is_the_largest_of_a_graph():
    (node,) = Graph((Node("a", 0, 1, 10**12),)).nodes
    params = graph_params([node])
    wire = int(params.wire_high[0]) * int(CHUNK) + int(params.wire_low[0])
    assert wire == 10**12 + 48 * 10**9


def test_hosts_of_exchanged_parameters_have_to_exist():
    """`traffic=` replaces a graph by one with as many nodes; its hosts are checked, too."""
    graph = Graph(ring_all_reduce(range(4), 400))
    sim = Simulator(star(4), (graph,), slots=16)
    params = sim.default_params(traffic=(graph_params(ring_all_reduce((3, 1, 2, 0), 400)),))
    assert params.traffic[0].src[0] == 3
    with pytest.raises(ValueError, match=r"graph\.dst\[0\] = 4 .* a host of star:4, 0 to 3"):
        sim.default_params(traffic=(graph_params(ring_all_reduce((3, 4, 2, 0), 400)),))
