"""Closed loops: order and times against plain Python, rates against closed forms, overflow."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopcases import NIC, TICK, after, drive, near
from netcases import OFF, QUICK, alone_us, imbalance, kolmogorov
from roundoff import U

import ecn_marl
from ecn_marl.sim import (
    ClosedLoop,
    Dcqcn,
    Graph,
    Poisson,
    Schedule,
    Simulator,
    leaf_spine,
    ring_all_reduce,
    scaled_ecn,
    schedule,
    star,
)
from ecn_marl.sim.metrics import source_metrics
from ecn_marl.sim.traffic.sizing import slots_for
from ecn_marl.sim.traffic.tickets import TIME_UNIT

LOOP = ClosedLoop((0, 1, 2), (2, 3, 4), depth=2, request=(0.1, 1.0), response=64.0, width=8)


@given(
    seed=st.integers(0, 1000),
    service=st.sampled_from([0.0, 2.0, 30.0]),
    think=st.sampled_from([0.0, 5.0, 200.0]),
    share=st.sampled_from([0.0, 0.4, 1.0]),
)
@settings(max_examples=12, deadline=None)
def test_requests_and_responses_take_turns_at_their_times(seed, service, think, share):
    """Every place of a client: request, service, response, think time, request, ..."""
    rng = np.random.default_rng(seed)
    params = replace(
        LOOP.default_params(),
        service_us=np.float32(service),
        think_us=np.float32(think),
        read_share=np.float32(share),
    )
    flows, state, waited = drive(LOOP, params, 200, lambda _: rng.uniform(1.0, 70.0), seed=seed)
    assert waited == 0
    latencies, reads = [], 0
    for ticket in range(LOOP.n_tickets):
        turns = [f for f in flows if f.ticket == ticket]
        client = LOOP.clients[ticket // 2]
        assert 0.0 <= turns[0].start <= max(think, TICK)
        for i, (flow, follower) in enumerate(pairwise(turns)):
            wait = think if i % 2 else service
            assert follower.start == pytest.approx(after(flow.end, wait), abs=near(wait))
        for request, answer in zip(turns[::2], turns[1::2], strict=False):
            assert request.src == answer.dst == client != request.dst == answer.src
            assert request.dst in LOOP.servers
            small, large = sorted((request.payload, answer.payload))
            assert 100 <= small <= 1000 and large == 64_000
            if np.isfinite(answer.end):
                latencies.append(answer.end - request.start)
                reads += request.payload < answer.payload
    metrics = LOOP.metrics(jax.device_get(state), 200 * TICK)
    assert metrics["operations"] == len(latencies) > 10
    assert metrics["reads"] == reads
    assert metrics["iops"] == pytest.approx(len(latencies) / (200 * TICK * 1e-6))
    # Each is a difference of times within a tick of whole ticks, added to a counter below 1024 us.
    widest = max(latencies) + 4 * TICK + TIME_UNIT
    assert metrics["latency_us"] == pytest.approx(np.mean(latencies), abs=4 * widest * U)


def test_hours_change_nothing():
    """Clocks, counters and sums of a run that has lasted for hours: whole numbers that wrap."""
    source = replace(LOOP, request=1.0, think_us=3.0)
    late = 2**31 - 60

    def hours(state):
        after_hours = jnp.full_like(state.begun_tick, late)
        sums = (state.latency[0] + 2**30, state.latency[1])
        return replace(state, tick=jnp.int32(late), begun_tick=after_hours, latency=sums)

    params = source.default_params()
    fresh, long = (
        drive(source, params, 120, lambda f: 20.3 + f.ticket, begin=b) for b in (lambda s: s, hours)
    )
    assert [(f.start, f.end) for f in fresh[0]] == [(f.start, f.end) for f in long[0]]
    assert int(long[1].tick) < 0, "the clock has wrapped"
    latency = tuple(jax.device_get(x) for x in long[1].latency)
    np.testing.assert_array_equal(latency[0] - 2**30, fresh[1].latency[0])
    np.testing.assert_array_equal(latency[1], fresh[1].latency[1])


def test_servers_kinds_sizes_and_think_times_follow_their_distributions():
    source = ClosedLoop(
        (0, 1), (1, 2, 3), request="FbHdp", response=(1.0, 100.0), read_share=0.3,
        think_us=30.0, think="exponential", width=2,
    )  # fmt: skip
    flows, state, _ = drive(source, source.default_params(), 5_000, lambda _: 1.0)
    client = [[f for f in flows if f.ticket == t] for t in (0, 1)]
    requests = client[1][::2]
    n = len(requests)
    assert n > 500
    for server in (2, 3):
        assert abs(sum(f.dst == server for f in requests) / n - 0.5) < 4 * math.sqrt(0.25 / n)
    assert {f.dst for f in client[0][::2]} == {1, 2, 3}
    metrics = source.metrics(jax.device_get(state), 1.0)
    share, total = metrics["reads"] / metrics["operations"], metrics["operations"]
    assert abs(share - 0.3) < 4 * math.sqrt(0.21 / total)
    gaps = [b.start - a.end for a, b in zip(client[1][1::2], client[1][2::2], strict=False)]
    late = [g for g in gaps if g > TICK]  # shorter ones wait for the tick
    assert kolmogorov(np.array(late) - TICK, lambda x: 1 - np.exp(-x / 30.0)) < 1.95 / math.sqrt(
        len(late)
    )
    uniform = np.array([f.payload for f in flows if 1000 <= f.payload <= 100_000])
    assert len(uniform) > n / 2


def test_a_server_of_ones_own():
    source = ClosedLoop((0, 1, 2), (3, 4), random_server=False, request=1.0, response=(1.0, 100.0))
    source = replace(source, width=3)
    flows, *_ = drive(source, source.default_params(), 600, lambda _: 3.0)
    requests = [f for f in flows if f.src in source.clients]
    assert {(f.src, f.dst) for f in requests} == {(0, 3), (1, 4), (2, 3)}
    sizes = np.array([f.payload for f in flows if f.dst in source.clients]) / 1000.0
    assert len(sizes) > 500
    distance = kolmogorov(np.log(sizes) / np.log(100.0), lambda x: x)
    assert distance < 1.95 / math.sqrt(len(sizes)) + 1e-3


# --- on a simulated network -----------------------------------------------------------------------

ALONE = Simulator(
    star(4),
    (ClosedLoop((1,), (0,), request=1.0, response=64.0),),
    Dcqcn.of("hpcc-paper"),
    slots=4,
    bins=0,
)


def run(sim, params, count, ecn=OFF):
    """A compiled run over `count` intervals of several keys and traffic, one after the other."""

    def single(case):
        key, traffic = case
        p = replace(params, traffic=traffic)
        state = sim.init(key, p)

        def step(state, _):
            return sim.interval(state, p, scaled_ecn(p.net, *ecn))[0], None

        return jax.lax.scan(step, state, None, length=count)[0]

    return jax.jit(lambda *cases: jax.lax.map(single, cases), compiler_options=QUICK)


def test_one_client_alone_completes_operations_at_the_closed_form():
    """Without queues: a request, service, a response, a think time; and a tick for each of two."""
    cases = [(10.0, 50.0, 64_000), (0.0, 0.0, 64_000), (20.0, 7.0, 900), (300.0, 11.0, 2_000_000)]
    base = ALONE.default_params().traffic[0]
    rows = []
    for service, think, size in cases:
        fixed = replace(base.response, low=np.float32(size), high=np.float32(size))
        times = {"service_us": np.float32(service), "think_us": np.float32(think)}
        rows.append(replace(base, response=fixed, **times))
    traffic = (jax.tree.map(lambda *x: np.stack(x), *rows),)
    keys = jax.random.split(jax.random.key(0), len(cases))
    state = jax.device_get(run(ALONE, ALONE.default_params(), 200)(keys, traffic))
    metrics = source_metrics(ALONE, state)[0]
    for i, (service, think, size) in enumerate(cases):
        request, response = alone_us(1000, [25.0]), alone_us(size, [25.0])
        period = request + service + response + think
        measured = 1e6 / metrics["iops"][i]
        tick_waits = sum(min(5.0, max(5.0 - wait, 0.0)) for wait in (service, think))
        rounding = 2.0 * period / metrics["operations"][i] + 0.01 * period
        assert period - rounding <= measured <= period + tick_waits + rounding
        latency = period - think
        assert latency * 0.99 - 0.5 <= metrics["latency_us"][i]
        assert metrics["latency_us"][i] <= latency * 1.01 + 0.5 + min(5.0, max(5.0 - service, 0.0))
    assert (state.totals.deferred == 0).all()


STORAGE = ClosedLoop(
    (0, 1, 2), (3, 4), depth=4, request=0.2, response=(4.0, 64.0), read_share=0.7, service_us=2.0
)
CROWDED = Simulator(star(5), (STORAGE,), Dcqcn.of("hpcc-paper"), slots=3, bins=0)


def test_too_few_slots_are_counted_and_nothing_is_lost():
    """Twelve operations share three slots: they wait in turn, and all go on."""
    params = CROWDED.default_params()
    traffic = jax.tree.map(lambda x: np.stack([x] * 3), params.traffic)
    keys = jax.random.split(jax.random.key(1), 3)
    states = jax.device_get(run(CROWDED, params, 100)(keys, traffic))
    for i in range(3):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        totals, source = state.totals, state.traffic[0]
        error, offered = imbalance(state)
        assert abs(error) <= 1e-6 * offered
        assert int(totals.deferred) > 100
        flying = (state.flows.stage > 0) & (state.flows.stage < 4)
        assert int(totals.started) == int(totals.finished.sum()) + flying.sum()
        tickets = state.flows.ticket[flying]
        assert len(set(tickets)) == len(tickets)
        ready = source.pending.place >= 0
        assert flying.sum() + ready.sum() == STORAGE.n_tickets, "in the network or in the line"
        assert not ready[tickets].any()
        turns = 2 * source.number + source.answer
        assert turns.sum() == totals.finished.sum()
        assert turns.max() - turns.min() < 0.3 * turns.mean(), "all have their turn"


@pytest.mark.thorough
def test_a_slot_for_every_operation_is_enough_on_a_star():
    """And operations are faster than with too few."""
    params = CROWDED.default_params()
    traffic = jax.tree.map(lambda x: np.stack([x] * 3), params.traffic)
    keys = jax.random.split(jax.random.key(1), 3)
    roomy = replace(CROWDED, slots=STORAGE.n_tickets)
    short, ample = (
        jax.device_get(run(sim, params, 100)(keys, traffic)) for sim in (CROWDED, roomy)
    )
    assert (ample.totals.deferred == 0).all()
    assert (
        source_metrics(CROWDED, short)[0]["iops"] < source_metrics(roomy, ample)[0]["iops"]
    ).all()


MIXED = (
    Poisson(load=0.3, table="FbHdp"),
    ClosedLoop(
        (0, 1), (4, 5, 6), depth=4, response="FbHdp", read_share=0.5, service_us=9.0,
        think_us=30.0, think="exponential",
    ),
    Graph(ring_all_reduce((2, 3, 7), 300_000), pause_us=40.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def mixed():
    """Open and closed sources of all kinds in an environment."""
    scenario = ecn_marl.Scenario(leaf_spine(2, 4, 2), MIXED, dt_us=2.0, tick_steps=5)
    return ecn_marl.make(scenario)


@pytest.mark.thorough
def test_sources_of_all_kinds_in_one_environment(mixed):
    """Widths and slots follow, bytes are conserved, every source makes progress, no flow waits."""
    sim, batch = mixed.sim, 3
    assert [s.width for s in sim.traffic[1:]] == [8, 3]
    params = mixed.default_params.sim
    traffic = jax.tree.map(lambda x: np.stack([x] * batch), params.traffic)
    keys = jax.random.split(jax.random.key(3), batch)
    states = jax.device_get(run(sim, params, 150, (5.0, 200.0, 0.01))(keys, traffic))
    metrics = source_metrics(sim, states)
    assert metrics[0] == {}
    assert (metrics[1]["operations"] > 50).all() and (metrics[2]["steps"] > 5).all()
    assert len(set(metrics[1]["operations"])) > 1, "environments differ"
    assert (states.totals.deferred == 0).all()
    for i in range(batch):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        error, offered = imbalance(state)
        assert abs(error) <= 1e-5 * offered
        loop, graph = state.traffic[1:]
        closed_loop = (2 * loop.number + loop.answer).sum() + graph.steps * 12 + 12 - graph.left
        open_loop = int(state.totals.finished.sum()) - closed_loop
        assert 0 < open_loop <= state.traffic[0].count


def test_without_such_sources_flows_have_no_tickets():
    sim = Simulator(star(3), (Poisson(),), slots=4)
    assert sim.n_tickets == 0
    state = jax.eval_shape(sim.init, jax.random.key(0), sim.default_params())
    assert state.flows.ticket is None


def test_lists_and_loops_side_by_side():
    """A list's completion times are those of its flows, whatever else asks for tickets."""
    loop = ClosedLoop((1,), (2,), request=1.0, response=1.0)
    sim = Simulator(
        star(4), (loop, Schedule(1.0, 4)), Dcqcn.of("hpcc-paper"), slots=4, scheduled=3, bins=0
    )
    rows = {
        "src": [3, 0, 3],
        "dst": [0, 3, 0],
        "size_B": [5000, 90_000, 10],
        "start_ns": [0, 0, 1e6],
    }
    rows = {k: np.array(v) for k, v in rows.items()}
    params = sim.default_params(traffic=(loop.default_params(), schedule(rows, 1.0)))
    traffic = jax.tree.map(lambda x: np.asarray(x)[None], params.traffic)
    state = jax.device_get(run(sim, params, 15)(jax.random.split(jax.random.key(0), 1), traffic))
    expected = [alone_us(size, [25.0]) for size in rows["size_B"]]
    np.testing.assert_allclose(state.fct_log[0], expected, rtol=0.02, atol=1.0)
    assert source_metrics(sim, state)[0]["operations"][0] > 20


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"clients": ()}, "clients"),
        ({"servers": (1, 1)}, "servers"),
        ({"clients": (-1,)}, "clients"),
        ({"clients": (1,), "servers": (1,)}, "servers .* other than itself for client 1"),
        ({"clients": (1, 2), "servers": (2, 1)}, None),
        (
            {"clients": (1, 2), "servers": (1, 2), "random_server": False},
            "other than itself for client 1",
        ),
        ({"depth": 0}, "depth"),
        ({"request": -1.0}, "request"),
        ({"response": (5.0, 1.0)}, "response"),
        ({"request": True}, "request = True .* KB"),
        ({"response": "WebSeach"}, "WebSearch"),
        ({"read_share": 1.5}, "read_share"),
        ({"service_us": -1.0}, "service_us"),
        ({"think_us": 2e6}, "think_us .* 1e\\+06 µs"),
        ({"think_us": 1e5, "think": "exponential"}, "think_us"),
        ({"think": "exponental"}, "exponential"),
    ],
)
def test_bad_values_are_refused(fields, words):
    if words is None:
        replace(LOOP, **fields)
        return
    with pytest.raises(ValueError, match=words):
        replace(LOOP, **fields)


def test_slots_are_those_that_can_be_in_use():
    """Exactly so many behind one switch; half as many again where finished flows hold slots."""
    for topology, factor in ((star(16), 1.0), (leaf_spine(4, 4, 2), 1.5)):
        for source in (replace(LOOP, depth=32), Graph(ring_all_reduce(range(16), 16))):
            demand = source.demand(NIC, TICK)
            assert demand.bound == demand.most in (96, 16)
            slots = slots_for([demand], topology, TICK)
            assert slots == 16 * math.ceil(factor * demand.bound / 16)


def test_hosts_have_to_exist():
    with pytest.raises(ValueError, match=r"clients = 2 .* 0 to 1"):
        LOOP.demand(NIC[:2], TICK)
    with pytest.raises(ValueError, match=r"servers = 4 .* 0 to 3"):
        ecn_marl.make(ecn_marl.Scenario(star(4), (LOOP,)))
