"""Flowlets, against packets, ECMP, and a count of bytes queue by queue."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import OFF, SPINE, Run, flow_list, imbalance, network, simulate, start, wire
from packet_paths import ACK, PACKET, Message, send
from roundoff import U

import ecn_marl
from ecn_marl.sim import Dcqcn, Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim.core import flowlets
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.failures import NEVER
from ecn_marl.sim.transports import Hpcc, RateAgent

LINE = 12.5
"""0.1 Gb/s in bytes/µs: a packet takes 84 µs, so every packet is a flowlet."""


def slow(balancing, **options):
    """Two leaves of two hosts, two spines, everything at 0.1 Gb/s; senders at a constant rate."""
    return Simulator(
        leaf_spine(2, 2, 2, gbps=0.1, uplink_gbps=0.1),
        (Schedule(10.0, 24),),
        RateAgent(),
        dt_us=10.0,
        tick_steps=2,
        interval_steps=50,
        slots=8,
        scheduled=24,
        load_balancing=balancing,
        **options,
    )


FLOWLETS = slow("flowlet", failures=True)
SIZE = 300_000


def constant(share, seed, intervals, size=SIZE, **net):
    """Two elephants to two hosts, each at a share of its NIC, both hashed onto one uplink.

    `net` replaces fields of `NetParams`.
    """
    sim = FLOWLETS
    columns = flow_list([(0, 2, size, 0.0), (1, 3, size, 40.0)])
    columns |= {"spine_data": np.where(np.arange(24) < 2, 0, -1)}
    params = sim.default_params(traffic=(schedule(columns, sim.dt_us),))
    params = replace(params, transport=replace(params.transport, share=np.float32(share)))
    params = replace(params, net=replace(params.net, **net))
    state = start(sim)(jax.random.key(seed), params)
    return Run(sim, state, params, scaled_ecn(params.net, *OFF)).on(intervals)


def ports(sim):
    """The uplinks of leaf 0."""
    return [sim.topology.port_names.index(f"leaf0->spine{s}") for s in (0, 1)]


def test_two_elephants_on_one_uplink():
    """Each gets its own rate, as with packets; with ECMP it were half of the uplink for life."""
    share, back = 0.8, 4 * (1.0 + ACK / LINE)
    last_packet = 3 * PACKET / LINE + 4.0
    runs = [constant(share, seed, 120) for seed in range(4)]
    flowlet_fct = np.array([run.fct[:2] for run in runs])
    alone = wire(SIZE) / (share * LINE) + last_packet + back
    assert (flowlet_fct > alone - PACKET / (share * LINE)).all()
    np.testing.assert_allclose(flowlet_fct, alone, rtol=0.06)
    for run in runs:
        # A path per packet; with two paths none has to wait for an older flowlet.
        drawn, late = (int(x) for x in run.totals.flowlets)
        assert drawn >= 590
        assert drawn <= 602
        assert late == 0
    rng = np.random.default_rng(0)
    spacing = PACKET / (share * LINE)
    twins = []
    for _ in range(20):
        messages = [Message(0, 2, 300, spacing, 0.0), Message(1, 3, 300, spacing, 40.0)]
        twin = send(messages, lambda i, k: int(rng.integers(2)), LINE, [LINE] * 2, [LINE] * 2, LINE)
        twins.append(np.array(twin.arrival) - [0.0, 40.0] + back)
    np.testing.assert_allclose(flowlet_fct.mean(), np.mean(twins), rtol=0.03)


def test_each_packet_draws_a_path():
    """Of n packets, n / 2 take each uplink, with the variance n / 4 of fair coins."""
    share, size = 0.4, 60_000
    packets = np.ceil(wire(size) / PACKET)
    runs = [constant(share, seed, 30, size) for seed in range(12)]
    sent = np.array([run.stats.tx_bytes[:, ports(FLOWLETS)].sum(0) for run in runs]) / PACKET
    np.testing.assert_allclose(sent.sum(1), 2 * packets, rtol=1e-3)
    first = sent[:, 0]
    n = 2 * packets
    assert abs(first.mean() - n / 2) < 4 * np.sqrt(n / 4 / len(runs))
    # The standard deviation of 12 samples is within a factor of 2 in 99.7 % of cases.
    assert 0.5 < first.std(ddof=1) / np.sqrt(n / 4) < 1.8


def test_a_link_that_fails():
    """Flowlets keep to the living uplink; what the dead one held is sent again."""
    up, dead = ports(FLOWLETS)
    fail, repair = np.full((2, FLOWLETS.topology.n_ports), NEVER, np.int32)
    fail[dead], repair[dead] = 1000, 1600  # 10 to 16 ms
    run = constant(1.0, 5, 160, fail_step=fail, repair_step=repair)
    sent = np.asarray(run.stats.tx_bytes)
    assert (sent[21:31, dead] == 0).all()
    np.testing.assert_allclose(sent[21:31, up], 500 * LINE, rtol=1e-4)
    assert sent[33:45, dead].sum() > 3000 * LINE
    assert np.isfinite(run.fct[:2]).all()
    error, offered = imbalance(run.state)
    assert abs(error) <= 1e-6 * offered
    assert 0 < run.dropped() < 40 * PACKET


@given(st.lists(st.sampled_from([0.0, 0.0, 50.0, 400.0, 1047.875, 2500.0]), max_size=60))
def test_when_a_packet_was_sent(gives):
    """Against a list of packets: the time since the last was complete, what the next one has.

    All numbers are eighths, which float32 adds exactly.
    """
    dt, total, last = 2.0, 0.0, 0.0
    state = flowlets.empty(1, jnp.float32)
    for step, give in enumerate(gives, 1):
        state = flowlets.advance(state, jnp.array([give]), jnp.array([9.0]), jnp.array(1048.0), dt)
        if (total + give) // 1048.0 > total // 1048.0:
            last = step * dt
        total += give
        np.testing.assert_array_equal(state.since, step * dt - last)
        np.testing.assert_array_equal(state.part, total % 1048.0)
    quiet = next((i for i, give in enumerate(reversed(gives)) if give > 0), None)
    left = 0.0 if quiet is None else max(9.0 - dt * quiet, 0.0)
    np.testing.assert_array_equal(state.through, left)


@pytest.mark.thorough
def test_without_pauses_nothing_is_drawn():
    """Senders at line rate never pause: flowlets are ECMP."""
    rows = [(h % 2, 2 + h % 2, 150_000, 3.3 * h) for h in range(6)]
    balanced = network(SPINE.topology, load_balancing="flowlet", flowlet_gap_us=150.0)
    a, b = (simulate(sim, rows, 10, ecn=(50, 500, 0.2)) for sim in (SPINE, balanced))
    assert [int(x) for x in b.totals.flowlets] == [0, 0]
    np.testing.assert_allclose(b.fct[:6], a.fct[:6], rtol=1e-5)
    np.testing.assert_allclose(b.stats.queue_mean, a.stats.queue_mean, rtol=1e-4, atol=1.0)


amounts = st.floats(0.0, 1e5, width=32) | st.sampled_from([0.0, 0.2])


@given(
    st.lists(st.tuples(*[amounts] * 6), min_size=8, max_size=8),
    st.lists(st.sampled_from([-1.0, 0.0, 49.0, 51.0, 1e4]), min_size=8, max_size=8),
    st.lists(st.sampled_from([0, 1, 1, 2, 4]), min_size=8, max_size=8),
    st.integers(0, 2**31 - 1),
)
@settings(max_examples=60)
def test_bytes_stay_in_their_queues(backlog, since, stage, seed):
    """A new path moves no byte of the old one, and is for those who paused and can change."""
    sim = FLOWLETS
    params = sim.default_params(traffic=(schedule(flow_list([(0, 2, SIZE, 0.0)]), sim.dt_us),))
    net, n = jax.tree.map(jnp.asarray, params.net), sim.slots
    rng = np.random.default_rng(seed)
    flows = sim.empty_flows()
    ways = sim.topology.paths(0, 2) - np.array(sim.queue_bounds[:-1])
    hop = ways[rng.integers(0, 2, (2, n))].transpose(2, 0, 1).reshape(6, n)
    flows = replace(
        flows,
        stage=jnp.array(stage, jnp.int32),
        src=jnp.zeros(n, jnp.int32),
        dst=jnp.full(n, 2, jnp.int32),
        payload=jnp.full(n, 1e6, jnp.float32),
        hop=jnp.array(hop, jnp.int32),
        backlog=jnp.array(backlog, jnp.float32).T,
        flowlets=replace(
            flows.flowlets,
            since=jnp.array(since, jnp.float32),
            through=jnp.full(n, 77.0),
            draw=jnp.array(rng.integers(0, 2**32, n), jnp.uint32),
        ),
    )
    redrawn = redraw(flows, net, jnp.uint32(seed))
    first, second = (np.array(backlog)[:, way::2].sum(1) for way in (0, 1))
    eligible = (np.array(stage) == life.SENDING) & (np.array(since) > 50.0)
    drained = (first < flowlets.EMPTY) | (second < flowlets.EMPTY)
    both_paths = (hop[0::2] != hop[1::2]).any(0)  # all paths there are
    np.testing.assert_array_equal(redrawn.drawn | redrawn.waiting, eligible)
    assert not (redrawn.drawn & redrawn.waiting).any()
    assert not (redrawn.waiting & (drained | both_paths)).any()
    after = jax.device_get(redrawn.flows)
    for flow in range(n):
        bytes_before, bytes_after = (by_queue(sim, f, flow) for f in (jax.device_get(flows), after))
        moved = sum(abs(bytes_after.get(q, 0.0) - b) for q, b in bytes_before.items())
        assert moved <= 2 * flowlets.EMPTY, "less than `EMPTY` bytes"
        # Float32 adds what was left on the older path to up to three backlogs.
        assert sum(bytes_after.values()) == pytest.approx(sum(bytes_before.values()), rel=U)
        turned = (after.hop[0::2, flow] != hop[0::2, flow]).any()
        left = turned and first[flow] >= flowlets.EMPTY
        assert after.flowlets.behind[flow] == (77.0 if left else 0.0)
        if redrawn.drawn[flow]:
            assert after.hop[0::2, flow].tolist() in ways.tolist()
        else:
            np.testing.assert_array_equal(after.hop[:, flow], hop[:, flow])
            np.testing.assert_array_equal(after.backlog[:, flow], np.float32(backlog[flow]))


@jax.jit
def redraw(flows, net, seed):
    """`flowlets.redraw` on the slow network."""
    used = flows.stage != life.FREE
    return flowlets.redraw(flows, used, net, seed, 50.0, FLOWLETS.queue_bounds, 1)


def by_queue(sim, flows, flow):
    """Bytes of a flow in each queue."""
    sizes = {}
    for row, (hop, size) in enumerate(zip(flows.hop[:, flow], flows.backlog[:, flow], strict=True)):
        queue = (row // 2, int(hop))
        sizes[queue] = sizes.get(queue, 0.0) + float(size)
    return sizes


def test_one_path_is_one_path():
    """Where there is nothing to choose, the programs are those of ECMP."""
    sims = [
        network(star(4), load_balancing=balancing) for balancing in ("ecmp", "flowlet", "spray")
    ]
    programs = set()
    for sim in sims:
        params = sim.default_params(traffic=(schedule(flow_list([(0, 1, 1000, 0.0)]), 1.0),))
        state = jax.eval_shape(sim.init, jax.random.key(0), params)
        assert state.flows.flowlets is None
        assert state.flows.by_way is None
        ecn = scaled_ecn(params.net, *OFF)
        programs.add(jax.jit(sim.interval).lower(state, params, ecn).as_text())
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_balancing": "flowlets"}, "unknown load balancing 'flowlets'.*'flowlet'"),
        ({"load_balancing": "flowlet", "flowlet_gap_us": 0.0}, "flowlet_gap_us = 0.0 .* > 0"),
        ({"load_balancing": "spray", "transport": Hpcc()}, "load_balancing = 'spray'.*hpcc"),
        ({"load_balancing": "flowlet", "transport": Hpcc()}, "load_balancing = 'flowlet'.*hpcc"),
        (
            {"load_balancing": "spray", "loss_recovery": "go-back-n"},
            "load_balancing = 'spray'.*ecmp or flowlet",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Simulator(leaf_spine(2, 2, 2), (Schedule(1.0, 24),), **{"transport": Dcqcn()} | options)


def test_make_accepts_flowlets():
    options = {"load_balancing": "flowlet", "flowlet_gap_us": 20.0}
    env = ecn_marl.make("websearch-v0", topology=leaf_spine(2, 4, 4), **options)
    assert env.sim.redraws
    assert (env.sim.n_ways, env.sim.flowlet_gap_us) == (2, 20.0)
    with pytest.raises(ValueError, match="did you mean 'spray'"):
        ecn_marl.make("websearch-v0", load_balancing="sprayed")
