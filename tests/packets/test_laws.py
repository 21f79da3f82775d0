"""Laws of networks that packets keep exactly, whatever the network, senders and thresholds."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packetcases import (
    DEEP,
    NETWORKS,
    SENDERS,
    balance,
    cases,
    flow_list,
    plain,
    runner,
    wire,
)
from tiers import tiers

from ecn_marl.packets import packet_simulator
from ecn_marl.sim import Schedule, Simulator, scaled_ecn, schedule
from ecn_marl.sim.core import flags
from ecn_marl.sim.transports import parse_transport

ROUNDING_US = 1e-5
"""Of float64 times in µs, and of rates in float32, over some ms."""


@pytest.mark.parametrize(
    ("network", "transport"),
    tiers(
        product(NETWORKS, SENDERS),
        ("star", "dcqcn:hpcc-run"),
        ("leaf-spine", "dcqcn:hpcc-paper"),
        ("leaf-spine", "dctcp:sigcomm10"),
        ("star", "timely:hpcc"),
        ("leaf-spine", "swift:htsim"),
        ("leaf-spine", "hpcc:sigcomm19"),
    ),
)
@settings(max_examples=12)
@given(data=st.data())
def test_every_byte_and_flow_is_accounted_for_and_no_link_is_overbooked(network, transport, data):
    case = data.draw(cases(network))
    run = runner(network, transport)
    state, params, ecn = run.start(case)
    n, largest = len(case.flows["src"]), 0
    while not np.isfinite(run.fct(state)[:n]).all():
        state, _ = run.collect(state, params, ecn)
        offered, parts = balance(state)
        assert offered == sum(parts.values())
        assert int(state.totals.started) <= n
        largest += 1
        assert largest < 600, "a flow did not finish in 60 ms"
    header = run.sim.transport.header
    assert offered == parts["delivered"] == wire(case.flows["size_B"], header).sum()
    assert int(state.totals.finished.sum()) == int(state.totals.started) == n
    assert run.worst(case, state, params).early_us < ROUNDING_US
    net = state.engine.net
    assert net.clock["n_free"][0] == len(net.packets)
    assert not net.lanes["bytes"].any() and not net.lanes["held"].any()
    assert not net.switches["used"].any() and not net.switches["used_shared"].any()
    assert not net.ports["queue"].any() and not state.flows.stage.any()


@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_lone_flow_takes_its_ideal_time(network, data):
    """`sim.core.paths` has it as a closed form, which a recurrence over packets agrees with."""
    case = data.draw(cases(network, deep=True))
    alone = {name: column[:1] for name, column in case.flows.items()}
    case = type(case)(alone, case.ecn, case.nic, case.port, case.delay_us, case.seed)
    run = runner(network)
    state, params = run.run(case)
    ideal = float(run.paths(state, params).ideal[0])
    # An ACK may find the one before it in transmission, if the last packet is shorter than that.
    ack_us = 60 / 125.0 / min(*case.nic, *case.port)
    assert ideal - 1e-4 <= run.fct(state)[0] * (1 + 2e-6) <= ideal * (1 + 4e-6) + ack_us + 1e-4


@pytest.mark.parametrize(
    ("n", "size", "gbps"), [(5, 1000, 100.0), (5, 40_000, 25.0), (2, 100, 10.0)]
)
def test_the_last_flow_of_a_burst_ends_when_its_link_has_sent_all(n, size, gbps):
    """Closed form: a packet on the NIC, all packets at the port, propagation, and an ACK."""
    rows = [(i + 1, 0, size, 0.0) for i in range(n)]
    run = runner("star")
    state, _ = run.run(plain("star", *rows, gbps=gbps))
    per_us = gbps * 125.0
    first = min(size, 1000) + 48
    ends = (first + n * wire(size) + 2 * 60) / per_us + 4.0
    assert np.nanmax(run.fct(state)) == pytest.approx(ends, abs=1e-5)


def test_a_run_repeats_and_leaves_its_state_alone():
    rows = [(i + 1, 0, 300_000, float(i)) for i in range(5)]
    run = runner("star", "dcqcn:hpcc-run")
    state, params, ecn = run.start(plain("star", *rows, ecn=(5.0, 20.0, 0.2)))
    state, _ = run.collect(state, params, ecn)
    restored, copied = pickle.loads(pickle.dumps(state)), copy.deepcopy(state)
    ends = [run.collect(s, params, ecn) for s in (state, state, restored, copied)]
    first, sums = ends[0]
    for later, later_sums in ends[1:]:
        for table, other in zip(first.engine.net, later.engine.net, strict=True):
            assert (table == other).all()
        assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), sums, later_sums))
    other, _ = run.run(plain("star", *rows, ecn=(5.0, 20.0, 0.2), seed=1))
    assert (run.fct(other) != run.fct(run.run(plain("star", *rows, ecn=(5.0, 20.0, 0.2)))[0])).any()


def test_more_flows_than_slots_wait_and_are_counted():
    """Their waiting accrues, too: all that accrues are their slowdowns."""
    rows = [(1 + i % 5, 0, 20_000, 0.0) for i in range(12)]
    run = runner("star", slots=4, accrue=True, interval_steps=20)
    state, params, ecn = run.start(plain("star", *rows))
    state, sums = run.collect(state, params, ecn)
    accrued = [sums.accrued.sum()]
    assert int(state.totals.deferred) + int(state.waiting) == 8
    assert int(state.totals.started) == 4 == int(state.totals.begun.sum())
    while not np.isfinite(run.fct(state)).all():
        state, sums = run.collect(state, params, ecn)
        accrued.append(sums.accrued.sum())
    assert int(state.totals.deferred) == 8 and int(state.waiting) == 0
    assert int(state.totals.begun.sum()) == 12
    total = run.sim.completion(state, params).total.sum()
    assert np.sum(accrued) == pytest.approx(float(total), rel=1e-4)
    assert np.isfinite(run.fct(state)).all()
    assert flags.names(int(state.flags)) == ("slots",)


def test_flows_begin_in_their_ticks_at_any_clock():
    """Substeps of 10/7 µs are no whole number of ps: 3 ps a tick would be 1.2 ns after 4 ms."""
    dt = 10.0 / 7.0
    sim = Simulator(
        NETWORKS["star"],
        (Schedule(dt, 2),),
        dt_us=dt,
        tick_steps=7,
        interval_steps=700,
        slots=2,
        scheduled=2,
        bins=0,
    )
    packets = packet_simulator(sim)
    flows = flow_list((1, 0, 1000, 0.0), (1, 0, 1000, 4000.0))
    params = packets.default_params(traffic=(schedule(flows, dt),))
    state, ecn = packets.init(jax.random.key(0), params), scaled_ecn(params.net, *DEEP)
    for _ in range(5):
        state, _ = packets.collect(state, params, ecn)
    assert int(state.totals.deferred) == 0
    first, later = state.engine.log
    # The list's times are float32 within a tick.
    assert later == pytest.approx(first, abs=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_balancing": "spray"}, "load_balancing"),
        ({"loss_recovery": "go-back-n"}, "loss_recovery"),
        ({"jitter_us": 1.0}, "jitter_us"),
        ({"softness": 100.0}, "softness"),
    ],
)
def test_what_packets_do_not_have_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        runner("leaf-spine", **options)


def test_senders_that_packets_do_not_know_are_refused():
    run = runner("star", "reno:rfc5681")
    with pytest.raises(ValueError, match="transport = 'reno:rfc5681'"):
        run.start(plain("star", (1, 0, 1000, 0.0)))
    assert parse_transport("reno:rfc5681").kind == "reno"
