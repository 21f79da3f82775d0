"""Marks, pauses, classes and drops at a switch, against what their rules say."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from packetcases import NETWORKS, balance, flow_list, plain, runner

from ecn_marl.packets import packet_simulator, tables
from ecn_marl.packets.compiling import compiled
from ecn_marl.packets.records import CLOCK
from ecn_marl.packets.switch import coin, next_lane
from ecn_marl.sim import Schedule, Simulator, scaled_ecn, schedule, star
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.transports import parse_transport


@compiled
def _coins(clock, out):
    for i in range(len(out)):
        out[i] = coin(clock)


def test_coins_are_uniform_and_independent():
    """Kolmogorov's distance and the correlation of neighbours, at the 1 % level."""
    clock, out = np.zeros(1, CLOCK), np.zeros(20_000)
    clock["seed"] = 7
    _coins(clock, out)
    n, ordered = len(out), np.sort(out)
    assert np.abs(ordered - (np.arange(n) + 0.5) / n).max() < 1.63 / np.sqrt(n)
    assert abs(np.corrcoef(out[1:], out[:-1])[0, 1]) < 2.58 / np.sqrt(n)
    assert out.min() >= 0.0 and out.max() < 1.0


@pytest.mark.parametrize(("pmax", "kmax"), [(0.2, 1e5), (1.0, 2e3), (0.05, 60.0)])
def test_marks_are_as_frequent_as_red_says(pmax, kmax):
    """The expected number follows from the queue that each packet leaves: half a ramp, or all."""
    rows = [(i + 1, 0, 2_000_000, 0.0) for i in range(2)]
    run = runner("star", "dcqcn:hpcc-paper,ai=0,hai=0,min_rate=3125")
    state, params, ecn = run.start(plain("star", *rows, ecn=(0.001, kmax, pmax)))
    _, sums = run.collect(state, params, ecn)
    port = int(np.argmax(np.asarray(sums.sent)))
    # Two NICs at line rate: the queue grows by a packet for each one that leaves.
    sent = int(sums.sent[port]) // 1048
    left = 1048.0 * np.arange(sent)
    chance = np.where(left > kmax * 1e3, 1.0, pmax * left / (kmax * 1e3))
    spread = np.sqrt((chance * (1 - chance)).sum())
    assert float(sums.marked[port]) / 1048 == pytest.approx(chance.sum(), abs=4 * spread + 2)


@pytest.mark.parametrize(("packets", "coins"), [(True, 4), (False, 1)])
def test_a_full_queue_that_drains_is_marked_as_sonic_tests_it(packets, coins):
    """SONiC's acceptance test of marking: a full queue drains under 500/900 KB, 5 %.

    910 packets are there before the second one leaves: their NICs are 500 times as fast as the
    port. The share of marked packets follows the queue that each one leaves behind.
    """
    size, n = 1048.0, 910
    left = size * np.arange(n)[::-1]
    chance = np.where(left > 900e3, 1.0, np.clip(0.05 * (left - 500e3) / 400e3, 0.0, 1.0))
    t = NETWORKS["star"]
    rates = {"nic": np.full(t.n_hosts, 100.0), "port": np.full(t.n_ports, 1.0)}
    case = plain("star", *[(i + 1, 0, 182_000, 0.0) for i in range(5)])
    run = runner("star", "dcqcn:hpcc-paper", packets)
    marks, expected, variance = np.zeros((3, 6))
    for seed in range(coins):
        state, params, _ = run.start(replace(case, seed=seed, **rates))
        ecn = scaled_ecn(params.net, 500.0, 900.0, 0.05, base_gbps=1.0)
        sent = 0.0
        while sent < n * size - 1.0:
            state, sums = run.collect(state, params, ecn)
            gone, sent = round(sent / size), sent + float(sums.sent[0])
            now = slice(gone, round(sent / size))
            longer_than = np.searchsorted([500e3, 600e3, 700e3, 800e3, 900e3], n * size - sent)
            marks[longer_than] += float(sums.marked[0]) / size
            expected[longer_than] += chance[now].sum()
            variance[longer_than] += (chance * (1.0 - chance))[now].sum()
        assert sent == pytest.approx(n * size, abs=1.0)
    assert expected.sum() == pytest.approx(coins * chance.sum())
    # Two packets leave while the queue fills; the fluid's intervals hold parts of packets, and its
    # marks are expected ones, which have no variance.
    known = coins * np.array([0.1] * 4 + [1.0, 2.5])
    np.testing.assert_array_less(abs(marks - expected), 4.0 * packets * np.sqrt(variance) + known)
    assert marks[0] == pytest.approx(0.0, abs=0.01)


def test_pfc_keeps_packets_and_pauses_in_time():
    """Five NICs into one port of a small buffer: no drop, pauses, and the buffer holds."""
    rows = [(i + 1, 0, 3_000_000, 0.0) for i in range(5)]
    run = runner("star", "dcqcn:hpcc-paper,ai=0,min_rate=3125", buffer_mib=1.0)
    case = plain("star", *rows)
    state, params, ecn = run.start(case)
    peak, paused = 0, 0.0
    for _ in range(20):
        state, _ = run.collect(state, params, ecn)
        net = state.engine.net
        peak = max(peak, int(net.ports["peak"].max()))
        paused = max(paused, float(net.lanes["paused"].sum()))
    assert int(net.clock["dropped"][0]) == 0 and int(net.clock["pauses"][0]) > 5
    # With N ingresses at alpha = 1/8, each may hold (B - N share) / 8: share = B / (8 + N).
    shared = int(net.switches["shared"][0])
    expected = 5 * (shared / (8 + 5) + int(net.rules["reserve"][0]))
    assert peak == pytest.approx(expected, rel=0.15)
    assert peak < 2**20 and paused > 0


def test_full_buffers_drop_without_pfc_and_all_is_sent_again():
    rows = [(i + 1, 0, 400_000, 0.0) for i in range(5)]
    run = runner("star", "dcqcn:hpcc-paper", pfc=False, buffer_mib=0.25)
    state, _ = run.run(plain("star", *rows))
    offered, parts = balance(state)
    assert parts["dropped"] > 0 and np.isfinite(run.fct(state)[:5]).all()
    assert offered == 5 * 419_200 + parts["dropped"] == parts["delivered"] + parts["dropped"]


def test_classes_share_a_port_by_their_weights():
    senders = parse_transport("dcqcn:hpcc-paper,ai=0,min_rate=3125")
    classes = (TrafficClass("a", senders, weight=3.0), TrafficClass("b", senders, weight=1.0))
    sim = Simulator(
        star(3),
        (Schedule(1.0, 1), Schedule(1.0, 1)),
        dt_us=1.0,
        slots=4,
        scheduled=2,
        classes=classes,
        class_of=(0, 1),
        bins=0,
    )
    run = packet_simulator(sim)
    lists = [
        schedule({"src": [s], "dst": [0], "size_B": [3_000_000], "start_ns": [0.0]}, 1.0)
        for s in (1, 2)
    ]
    params = run.default_params(traffic=tuple(lists))
    state, ecn = run.init(jax.random.key(0), params), scaled_ecn(params.net, 1e6, 2e6, 0.01, 25.0)
    state, _ = run.collect(state, params, ecn)
    _, stats = run.interval(state, params, ecn)
    port = int(np.argmax(np.asarray(stats.tx_bytes)))
    first, second = np.asarray(stats.class_tx_bytes)[port]
    assert first / second == pytest.approx(3.0, rel=0.05)


def test_a_paused_class_saves_no_turns_up():
    """Two classes of equal weights take turns again as soon as the pause of one has ended."""
    senders = parse_transport("dcqcn:hpcc-paper")
    classes = (TrafficClass("a", senders), TrafficClass("b", senders))
    run = packet_simulator(Simulator(star(3), (Schedule(1.0, 1),), slots=4, classes=classes))
    params = run.default_params(traffic=(schedule(flow_list((1, 0, 1000, 0.0)), 1.0),))
    net = tables.network(run, params, 0, False)
    a = 3 * 3  # lanes of the first port: a, b, and ACKs
    net.packets["size"][:2], net.lanes["head"][a : a + 2] = 1048, (0, 1)
    shares = []
    for paused in (True, False):
        net.lanes["paused"][a + 1] = paused
        turns = [next_lane(net, 3) - a for _ in range(100)]
        shares.append(turns.count(1))
    assert shares == [0, 50]


def test_acks_of_their_own_class_do_not_wait():
    """A long flow fills the port that the ACKs of another leave by: without priority they wait."""
    rows = [(1, 0, 500_000, 0.0), (2, 0, 500_000, 0.0), (0, 3, 100_000, 20.0)]
    ends = {}
    for priority in (False, True):
        run = runner("star", "dcqcn:hpcc-paper", ack_priority=priority)
        state, _ = run.run(plain("star", *rows))
        ends[priority] = run.fct(state)[2]
    # The NIC sends an ACK for every packet that it receives meanwhile.
    assert ends[True] == pytest.approx(100_000 * 1.108 / 3125 + 4.4, rel=0.01)
    assert ends[False] > ends[True] + 30.0


def test_whole_nanoseconds_are_those_of_the_recorded_simulator():
    """1048 B at 25 Gb/s take 335.36 ns, cut to 335: 1000 packets are .36 µs faster."""
    run = runner("star")
    case = plain("star", (1, 0, 1_000_000, 0.0))
    state, params = run.run(case)
    exact = run.fct(state)[0]
    sim = replace(run.sim, whole_ns=True)
    state, ecn = sim.init(jax.random.key(0), params), scaled_ecn(params.net, 1e6, 2e6, 0.01, 25.0)
    for _ in range(5):
        state, _ = sim.collect(state, params, ecn)
    assert exact - run.fct(state)[0] == pytest.approx(1001 * 0.36e-3, abs=1e-3)
