"""Senders against the fluid's, fed with the same CNPs at a fine clock, and closed forms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packetcases import plain, runner

from ecn_marl.packets import delays, senders
from ecn_marl.packets.records import PS_PER_US
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.feedback import Feedback
from ecn_marl.sim.transports import parse_transport

LINE = 3125.0
DT_US = 0.25


def packet_sender(transport, base_rtt=10.0):
    """A sender that has begun, and its constants."""
    constants = senders.constants_of(transport, transport.default_params(), 1, base_rtt)[0]
    x = np.zeros(1, senders.SENDER)[0]
    senders.start(x, constants, LINE)
    return x, constants


@pytest.mark.parametrize("preset", ["hpcc-run", "hpcc-paper", "paper", "hpcc-config"])
def test_dcqcn_follows_the_fluids_rate_machine(preset):
    """CNPs at random substeps for 1 ms, then none for 4 ms: rates stay together."""
    transport = parse_transport(f"dcqcn:{preset}")
    params = transport.default_params()
    x, constants = packet_sender(transport)
    fluid = transport.start(transport.init(1), params, jnp.ones(1, bool), jnp.full(1, LINE), 10.0)
    random = np.random.default_rng(0)
    steps = round(5000 / DT_US)
    cnps = (random.random(steps) < 0.02) & (np.arange(steps) < steps // 5)

    def update(state, cnp):
        heard = Feedback(cnp=cnp[None], sent=jnp.zeros(1))
        state = transport.update(state, params, heard, DT_US)
        return state, transport.rate(state)[0]

    _, rates = jax.jit(lambda state: jax.lax.scan(update, state, jnp.asarray(cnps)))(fluid)
    rates, off = np.asarray(rates), []
    for i, cnp in enumerate(cnps):
        now = round((i + 1) * DT_US * PS_PER_US)
        if cnp:
            senders.on_cnp(x, constants, now)
        if i % 40 == 0:
            off.append(senders.rate(x, constants, now) / rates[i] - 1.0)
    assert x["rate"] > 2.0 * constants["min_rate"]
    # At a substep the fluid takes a timer that ends there before or after a CNP.
    assert np.median(np.abs(off)) < 0.01 and np.abs(off[-1]) < 0.02


def test_dcqcn_cuts_as_the_recorded_simulator():
    """First CNP: no cut; a CNP in every interval: rate halves as alpha stays 1; target stays."""
    x, constants = packet_sender(parse_transport("dcqcn:hpcc-paper"))
    td, g = constants["decrease"], constants["g"]
    for i in range(4):
        senders.on_cnp(x, constants, i * td + 1)
        assert senders.rate(x, constants, i * td + 2) == pytest.approx(
            LINE / 2**i, rel=2 * g * i + 1e-9
        )
    assert x["target"] == LINE
    # A timed recovery goes half-way to the target; the timer was restarted by the last cut.
    before = senders.rate(x, constants, 4 * td + 2)
    later = senders.rate(x, constants, 4 * td + 2 + constants["increase"])
    assert later == pytest.approx(0.5 * (before + LINE + constants["ai"]), rel=0.01) or (
        later == pytest.approx(0.5 * (before + LINE), rel=0.01)
    )


def test_dctcp_learns_the_marked_share_and_cuts_once_per_round_trip():
    """Closed form: alpha moves to the share by g every round; a cut takes alpha / 2."""
    x, constants = packet_sender(parse_transport("dctcp:hpcc"))
    alpha, number = 1.0, 0
    for turn in range(60):
        for i in range(10):
            now = (turn * 10 + i + 1) * PS_PER_US
            senders.on_ack(x, constants, now, i == 5, number, (turn + 1) * 10, 10.0)
            number += 1
        alpha += constants["g"] * (0.1 - alpha) if turn else 0.0
    assert x["alpha"] == pytest.approx(0.1, abs=0.03)
    x["window"] = window = 20_000.0  # so many cuts have left the least one
    senders.on_ack(x, constants, now + 100 * PS_PER_US, True, number, 10**6, 10.0)
    assert x["window"] == pytest.approx(window * (1 - x["alpha"] / 2), rel=0.02)
    senders.on_ack(x, constants, now + 101 * PS_PER_US, True, number + 1, 10**6, 10.0)
    assert x["window"] == pytest.approx(window * (1 - x["alpha"] / 2), rel=0.02)


def test_dctcp_knows_its_own_round_trip_not_the_networks_longest():
    """Of 10 µs among 42 µs: after so long it is cut again; a window of more does not limit it."""
    for preset in ("dctcp:hpcc", "dctcp:sigcomm10"):
        x, constants = packet_sender(parse_transport(preset), 42.0)
        x["window"] = 100_000.0
        for i, now in enumerate((100, 105, 111)):
            senders.on_ack(x, constants, now * PS_PER_US, True, i, 10, 10.0)
        assert x["window"] == pytest.approx(100_000.0 * (1.0 - 0.5 * x["alpha"]) ** 2)
    x["window"] = wide = 2.0 * LINE * 10.0
    senders.on_ack(x, constants, 200 * PS_PER_US, False, 10, 20, 10.0)
    assert x["window"] == wide


def heard(rtt, base_rtt, returned=True, packets=1.0):
    """What the fluid's senders hear when a packet of a round trip comes back."""
    one = jnp.ones(1)
    return Feedback(
        rtt=one * rtt,
        returned=jnp.full(1, returned),
        acked=one * packets,
        base_rtt=one * base_rtt,
        n_hops=one * 3,
        sent=one,
        running=jnp.ones(1, bool),
    )


def both(preset, rtts, longest, base_rtt=10.0):
    """A round trip a packet: the fluid's sender and that of packets, what they allow after each.

    `longest` is the longest round trip of the network without queues, `base_rtt` that of the flow.
    """
    transport = parse_transport(preset)
    params, (x, constants) = transport.default_params(), packet_sender(transport, longest)
    line = jnp.full(1, LINE)
    fluid = transport.start(transport.init(1), params, jnp.ones(1, bool), line, longest)
    update = jax.jit(transport.update, static_argnums=3)
    now, rows = 0.0, []
    for i, rtt in enumerate(rtts):
        now += rtt
        fluid = update(fluid, params, heard(rtt, base_rtt), float(rtt))
        time = round(now * PS_PER_US)
        if constants["kind"] == senders.TIMELY:
            delays.timely_hears(x, constants, time, i, i + 1, rtt)
        else:
            delays.swift_hears(x, constants, time, 3, rtt)
        window = transport.window(fluid)
        rows.append(
            (
                (float(transport.rate(fluid)[0]), float(senders.rate(x, constants, time))),
                (0.0, 0.0) if window is None else (float(window[0]), 1e3 * max(x["cwnd"], 1.0)),
            )
        )
    return np.array(rows)


@pytest.mark.parametrize(
    ("preset", "longest"),
    [
        *(("timely:hpcc", 10.0), ("timely:conext16", 10.0), ("timely:patched", 10.0)),
        *(("swift:htsim", 10.0), ("swift:htsim", 40.0)),
    ],
)
def test_delay_senders_follow_the_fluids_rules(preset, longest):
    """The same round-trip times, one by one: rates and windows are the same numbers."""
    random = np.random.default_rng(1)
    # Few values, since the fluid's rule is compiled for each.
    levels = np.repeat([60.0, 15.0, 60.0, 140.0, 700.0, 60.0, 12.0], [1] + 6 * [40])
    rtts = levels + random.choice([0.0, 7.3], levels.size)
    rates, windows = np.moveaxis(both(preset, rtts.tolist(), longest), 1, 0)
    np.testing.assert_allclose(rates[:, 1], rates[:, 0], rtol=1e-4)
    np.testing.assert_allclose(windows[:, 1], windows[:, 0], rtol=1e-4)
    assert np.ptp(rates[:, 1]) + np.ptp(windows[:, 1]) > 100.0, "something happened"


def test_hpcc_gets_the_utilisation_it_wants():
    """Li et al., §3.2: in the steady state the fullest link carries eta of its rate, no queue."""
    rows = [(i + 1, 0, 40_000_000, 0.0) for i in range(4)]
    run = runner("star", "hpcc:sigcomm19")
    state, params, ecn = run.start(plain("star", *rows))
    sizes = []
    for i in range(30):
        state, sums = run.collect(state, params, ecn)
        port = int(np.argmax(np.asarray(sums.sent)))
        if i >= 15:
            sizes.append((float(sums.queue[port]) / 100, float(sums.sent[port]) / 312_500))
    queue, used = np.mean(sizes, axis=0)
    assert used == pytest.approx(0.95, abs=0.02) and queue < 4_000
    load = state.engine.net.senders["load"][:4]
    assert load == pytest.approx(np.full(4, 0.95), abs=0.05)


def test_dctcp_keeps_a_queue_about_its_threshold():
    """Alizadeh et al., §3.3: the queue swings below K + N packets, and does not empty."""
    rows = [(i + 1, 0, 40_000_000, 0.0) for i in range(3)]
    run = runner("star", "dctcp:hpcc")
    state, params, ecn = run.start(plain("star", *rows, ecn=(60.0, 60.0, 1.0)))
    sizes = []
    for i in range(60):
        state, sums = run.collect(state, params, ecn)
        port = int(np.argmax(np.asarray(sums.sent)))
        if i >= 20:
            sizes.append((float(sums.queue[port]) / 100, float(sums.sent[port]) / 312_500))
    mean, used = np.mean(sizes, axis=0)
    assert 20_000 < mean < 75_000
    assert used > 0.97


def test_paced_cnps_come_once_per_interval():
    """All packets are marked: a receiver sends a CNP at once, then one every 50 µs."""
    transport = "dcqcn:sigcomm15-np50us"
    rows = [(1, 0, 3_000_000, 0.0), (2, 0, 3_000_000, 0.0)]
    run = runner("star", transport)
    state, params, ecn = run.start(plain("star", *rows, ecn=(0.001, 0.001, 1.0)))
    state, _ = run.collect(state, params, ecn)
    sender = state.engine.net.senders[0]
    assert sender["has_had_cnp"]
    # Two CNPs reach it within 100 µs, so it was cut twice at most.
    assert sender["rate"] >= LINE / 4 * (1 - 1e-6) and sender["rate"] <= LINE / 2
    assert math.isfinite(sender["alpha"])


def test_the_next_flow_of_a_slot_hears_no_cnp_of_the_last():
    """All packets are marked. The second CNP is due at 71 µs, when its flow has long ended.

    The next flow of the slot, between other hosts, begins at 75 µs: its own first CNP could be
    there at 116 µs.
    """
    rows = [(1, 0, 2_000, 0.0), (2, 3, 1_000_000, 75.0)]
    run = runner("star", "dcqcn:sigcomm15-np50us")
    state, params, _ = run.start(plain("star", *rows, delay_us=10.0))
    ecn = Ecn(*(np.full(6, x, np.float32) for x in (-2.0, -1.0, 1.0)))
    state, _ = run.collect(state, params, ecn)
    net = state.engine.net
    assert run.fct(state)[0] < 50.0 and net.flows[0]["payload"] == 1_000_000
    assert not net.senders[0]["has_had_cnp"]
    assert (net.lanes["held"] >= 0).all(), "a CNP leaves a switch by the link that it came by"
