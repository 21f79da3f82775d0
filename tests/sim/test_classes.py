"""Traffic classes: weighted round robin, thresholds of their own, lossy beside lossless."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from netcases import (
    CHUNKS,
    STAR,
    Run,
    alone_us,
    balance,
    flow_list,
    simulate,
    start,
    wire,
    with_net,
)
from roundoff import U

from ecn_marl.sim import Dcqcn, Ecn, Schedule, Simulator, schedule, star
from ecn_marl.sim.config import TrafficClass
from ecn_marl.sim.core.queues import round_robin, tail_drop
from ecn_marl.sim.feedback import FINE
from ecn_marl.sim.transports import Dctcp, Mixed, Reno

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

KB, MIB = 1000.0, 2**20
NEVER = (1e9, 2e9, 0.01)
"""Thresholds, bytes, that no queue reaches."""

# --- round robin ----------------------------------------------------------------------------------

PORTS = 4
share = jax.jit(round_robin)

ROUNDS = 32 * U
"""Three rounds of sums over three classes, a product and a quotient each."""


def packets_sent(want, capacity, weights, packet, quantum):
    """Deficit round robin packet by packet (Shreedhar and Varghese, SIGCOMM'95), float64.

    A class whose turn it is gets `quantum` times its weight and sends packets while that lasts.
    """
    left, sent, deficit = np.array(want, float), np.zeros(len(want)), np.zeros(len(want))
    capacity_left = float(capacity)
    while capacity_left >= packet and (left >= packet).any():
        for k, w in enumerate(weights):
            if left[k] < packet:
                deficit[k] = 0.0
                continue
            deficit[k] += quantum * w
            while deficit[k] >= packet and left[k] >= packet and capacity_left >= packet:
                for x, sign in ((deficit, -1), (left, -1), (sent, 1)):
                    x[k] += sign * packet
                capacity_left -= packet
    return sent


def cases(c):
    """Wants and capacities of some ports, whole weights."""
    want = npst.arrays(
        np.float32, (PORTS, c), elements=st.floats(0, 6e4, width=32, allow_subnormal=False)
    )
    capacity = npst.arrays(np.float32, PORTS, elements=st.floats(100, 6e4, width=32))
    weights = st.lists(st.integers(1, 9), min_size=c, max_size=c)
    return st.tuples(want, capacity, weights)


def shared(want, capacity, weights):
    rate = jnp.full(PORTS, LINE)
    weights = jnp.asarray(weights, jnp.float32)
    sent, pace = share(jnp.asarray(want).reshape(-1), jnp.asarray(capacity), rate, weights)
    return np.asarray(sent).reshape(want.shape), np.asarray(pace).reshape(want.shape)


@given(st.sampled_from((2, 3)).flatmap(cases))
def test_fluid_is_round_robin_of_small_packets(case):
    """Two orders agree to the quanta of a round, and a packet that did not fit."""
    want, capacity, weights = case
    sent, _ = shared(want, capacity, weights)
    packet = 16.0
    for p in range(PORTS):
        twin = packets_sent(want[p], capacity[p], weights, packet, packet)
        slack = packet * (sum(weights) + len(weights) + 1)
        np.testing.assert_allclose(sent[p], twin, rtol=ROUNDS, atol=slack)


@given(st.sampled_from((2, 3)).flatmap(cases))
def test_backlogged_classes_share_by_weight(case):
    """To rounding: 1 % of a share is what the whole simulator is held to."""
    _, capacity, weights = case
    want = np.full((PORTS, len(weights)), 1e5, np.float32)
    sent, pace = shared(want, capacity, weights)
    parts = np.array(weights) / sum(weights)
    np.testing.assert_allclose(sent, capacity[:, None] * parts, rtol=ROUNDS)
    np.testing.assert_allclose(pace, LINE * np.tile(parts, (PORTS, 1)), rtol=ROUNDS)


@given(st.sampled_from((2, 3)).flatmap(cases))
def test_service_wastes_nothing_and_starves_nobody(case):
    want, capacity, weights = case
    sent, pace = shared(want, capacity, weights)
    assert (sent >= 0).all()
    assert (sent <= want).all()
    total = want.sum(1, dtype=float)
    np.testing.assert_allclose(sent.sum(1, dtype=float), np.minimum(total, capacity), rtol=ROUNDS)
    fair = capacity[:, None] * np.array(weights) / sum(weights)
    assert (sent >= np.minimum(want, fair) * (1 - ROUNDS)).all()
    # A queue is served at what the others leave; nobody is promised less than the weighted share.
    others = (sent.sum(1, keepdims=True, dtype=float) - sent) / capacity[:, None]
    behind = want > sent * (1 + ROUNDS) + 1.0
    # What the others leave is at least 1/19, for the heaviest weights: 19 times the roundings.
    np.testing.assert_allclose(pace[behind], LINE * (1 - others)[behind], rtol=19 * ROUNDS)
    assert (pace >= LINE * np.array(weights) / sum(weights) * (1 - ROUNDS)).all()


def test_a_light_class_beside_a_heavy_one():
    """1 beside 100: a 101st of the port, and all of it once the other is empty."""
    want = np.array([[1e5, 1e5], [1e5, 0], [10, 1e5], [0, 0]], np.float32)
    sent, pace = shared(want, np.full(PORTS, 10100, np.float32), (1, 100))
    np.testing.assert_allclose(sent, [[100, 10000], [10100, 0], [10, 10090], [0, 0]], rtol=1e-5)
    np.testing.assert_allclose(pace[:2, 0], [LINE / 101, LINE], rtol=1e-4)


@given(
    npst.arrays(np.float32, 8, elements=st.floats(0, 1e5, width=32, allow_subnormal=False)),
    npst.arrays(np.int32, 8, elements=st.integers(0, 3)),
    npst.arrays(np.float32, 3, elements=st.floats(-1e5, 2e5, width=32, allow_subnormal=False)),
)
def test_bytes_beyond_the_room_are_dropped(entering, hop, room):
    keep = np.asarray(tail_drop(jnp.asarray(entering), jnp.asarray(hop), jnp.asarray(room)))
    assert ((keep >= 0) & (keep <= 1)).all()
    assert (keep[hop == 3] == 1).all(), "flows that pass by lose nothing"
    for q in range(3):
        arrived = entering[hop == q].sum(dtype=float)
        kept = (entering * keep)[hop == q].sum(dtype=float)
        # A sum of 8, a quotient and a product; arrivals below 1e-3 bytes count as so many.
        assert kept == pytest.approx(min(arrived, max(room[q], 0)), rel=10 * U, abs=1e-3)


def test_dropping_has_finite_derivatives():
    def kept(entering):
        hop, room = jnp.array([0, 1, 2, 3]), jnp.array([1e12, -5.0, 30.0])
        return (entering * tail_drop(entering, hop, room)).sum()

    gradient = jax.grad(kept)(jnp.array([0.0, 1.0, 60.0, 2.0]))
    np.testing.assert_allclose(gradient, [1, 0, 0, 1], atol=1e-6)


# --- whole simulators -----------------------------------------------------------------------------

RDMA, TCP = Dcqcn.of("hpcc-paper"), Dctcp.of("sigcomm10")
ROWS = 12


def of_classes(*classes, topology=None, **options):
    """A simulator with one flow list per class."""
    return Simulator(
        topology or star(9),
        tuple(Schedule(1.0, ROWS) for _ in classes),
        slots=16,
        scheduled=ROWS * len(classes),
        classes=classes,
        class_of=tuple(range(len(classes))),
        **options,
    )


PAIR = of_classes(
    TrafficClass("rdma", RDMA, 1.0),
    TrafficClass("tcp", TCP, 3.0, lossless=False, alpha=0.5),
)
"""RDMA under DCQCN that PFC protects, TCP under DCTCP that drops."""

LOSSY = of_classes(
    TrafficClass("rdma", RDMA, 1.0),
    TrafficClass("tcp", Reno.of("rfc5681"), 1.0, lossless=False, alpha=0.25),
)
"""The same with TCP that only notices drops."""

THREE = of_classes(
    TrafficClass("light", RDMA, 1.0),
    TrafficClass("middle", RDMA, 2.5),
    TrafficClass("heavy", RDMA, 100.0, lossless=False, alpha=0.25),
)
"""Three classes of the same senders; the last one drops."""


@dataclass
class ClassRun(Run):
    """A run whose flow list holds `ROWS` flows of each class in turn."""

    def times(self, kind):
        """Completion times of a class's flows, µs."""
        return self.fct[kind * ROWS : (kind + 1) * ROWS]


def thresholds(sim, *settings):
    """Thresholds (bytes, bytes, 1) of each class, the same on all ports, `[P, C]`."""
    columns = np.array(settings, np.float32)
    return Ecn(*(np.tile(x, (sim.topology.n_ports, 1)) for x in columns.T))


def class_run(sim, lists, intervals, ecn=None, **net):
    """Run a flow list per class; `net` replaces fields of `NetParams`."""
    lists = [flow_list(rows) for rows in lists]
    short = [{k: v[:ROWS] for k, v in columns.items()} for columns in lists]
    params = sim.default_params(traffic=tuple(schedule(x, 1.0) for x in short))
    params = with_net(params, **net)
    ecn = thresholds(sim, *[NEVER] * sim.n_classes) if ecn is None else ecn
    state = start(sim, quick=True)(jax.random.key(0), params)
    return ClassRun(sim, state, params, ecn, quick=True).on(intervals)


LONG = 30_000_000


def test_backlogged_classes_get_their_weights():
    """Three hosts, a class each, one port: 1 : 2.5 : 100 of the line to 1 %, never idle."""
    run = class_run(THREE, [[(1 + k, 0, LONG, 0.0)] for k in range(3)], 20)
    sent = np.asarray(run.stats.class_tx_bytes)[5:20, 0].sum(0)
    want = np.array([1, 2.5, 100]) / 103.5 * LINE * 1500
    np.testing.assert_allclose(sent, want, rtol=0.01)
    assert (run.stats.utilisation[1:, 0] > 1 - 1e-5).all()


def test_unused_bandwidth_of_a_class_goes_to_the_others():
    """The heavy class alone, from 1 ms on two: the light ones share by 1 : 2.5 without it."""
    run = class_run(THREE, [[(1, 0, LONG, 0.0)], [(2, 0, LONG, 1000.0)], []], 20)
    sent = np.asarray(run.stats.class_tx_bytes)[:, 0]
    np.testing.assert_allclose(sent[2:9, 0], LINE * 100, rtol=1e-5)
    want = np.array([1, 2.5]) / 3.5 * LINE * 100
    np.testing.assert_allclose(sent[11:20, :2], np.tile(want, (9, 1)), rtol=0.01)
    assert (sent[:, 2] == 0).all()


@pytest.mark.parametrize("kind", range(3))
def test_a_class_alone_has_the_port_to_itself(kind):
    """And the completion times of a network without classes."""
    lists = [[], [], []]
    lists[kind] = [(1, 0, 400_000, 0.0), (2, 0, 30_000, 10.0), (3, 4, 777, 20.0)]
    run = class_run(THREE, lists, 10)
    plain = simulate(STAR, lists[kind], 10)
    np.testing.assert_allclose(run.times(kind)[:3], plain.fct[:3], rtol=1e-5)


@pytest.mark.parametrize(("a", "b"), [(400, 400), (500, 400), (500, 200), (150, 900)])
def test_completion_times_of_two_classes(a, b):
    """Weights 1 and 2.5, a KB and b KB at line rate: fluid shares until one of them is through."""
    run = class_run(THREE, [[(1, 0, a * 1000, 0.0)], [(2, 0, b * 1000, 0.0)], []], 10)
    size = np.array([wire(a * 1000), wire(b * 1000)]) / LINE
    part = np.array([1, 2.5]) / 3.5
    first = np.argmin(size / part)
    want = np.full(2, size.sum())
    want[first] = size[first] / part[first]
    tail = alone_us(1000, [25]) - wire(1000) / LINE
    times = [run.times(0)[0], run.times(1)[0]]
    np.testing.assert_allclose(times, want + tail, atol=1.5)


def test_the_wait_follows_a_class_that_comes_later():
    """400 KB of two senders; then comes a heavy class, which waits for nobody."""
    lists = [[(1, 0, 200_000, 0.0), (2, 0, 200_000, 0.0)], [], [(3, 0, 100_000, 80.0)]]
    run = class_run(THREE, lists, 10)
    tail = alone_us(1000, [25]) - wire(1000) / LINE
    heavy = wire(100_000) / LINE * 101 / 100
    light = (2 * wire(200_000) + wire(100_000)) / LINE
    assert run.times(2)[0] == pytest.approx(heavy + tail, abs=1.5)
    np.testing.assert_allclose(run.times(0)[:2], light + tail, atol=1.5)


def test_thresholds_of_each_class():
    """Both classes queue; only the one whose own threshold is low is marked, and slows down."""
    lists = [[(1, 0, LONG, 0.0), (2, 0, LONG, 0.0)], [(3, 0, LONG, 0.0), (4, 0, LONG, 0.0)], []]
    low = (20 * KB, 40 * KB, 0.2)
    for marked in range(2):
        settings = [NEVER] * 3
        settings[marked] = low
        run = class_run(THREE, lists, 20, thresholds(THREE, *settings))
        rate = np.asarray(run.state.flows.transport.rate)
        kind, busy = np.asarray(run.state.flows.kind), np.asarray(run.state.flows.stage) > 0
        assert (rate[busy & (kind == marked)] < 0.5 * LINE).all()
        assert (rate[busy & (kind != marked)] == LINE).all()
        total = np.asarray(run.stats.marked_bytes)[:, 0]
        own = np.asarray(run.stats.class_tx_bytes)[:, 0, marked]
        assert (total[0] > 0) and (total <= own * (1 + 1e-5)).all()
        assert (np.asarray(run.stats.marked_bytes)[:, 1:] == 0).all()
    quiet = class_run(THREE, lists, 20)
    assert (np.asarray(quiet.stats.marked_bytes) == 0).all()


def test_thresholds_of_ports_hold_for_all_their_classes():
    lists = [[(1, 0, LONG, 0.0), (2, 0, LONG, 0.0)], [(3, 0, LONG, 0.0)], []]
    low = (20 * KB, 40 * KB, 0.2)
    per_class = class_run(THREE, lists, 10, thresholds(THREE, low, low, low))
    ports = Ecn(*(jnp.full(9, x) for x in low))
    per_port = class_run(THREE, lists, 10, ports)
    np.testing.assert_array_equal(per_class.stats.queue, per_port.stats.queue)
    with pytest.raises(ValueError, match=r"shape of ecn = \(3, 9\) is not allowed"):
        class_run(THREE, lists, 10, jax.tree.map(lambda x: np.asarray(x).T, per_class.ecn))


# --- lossy beside lossless ------------------------------------------------------------------------

CROWD = [
    [(1 + i, 0, 500_000, 7.0 * i) for i in range(3)],
    [(4 + i, 0, 500_000, 3.0 * i) for i in range(5)],
]


def lost_by_class(run):
    """Bytes dropped of each class; every flow had a slot of its own."""
    lost, kind = np.asarray(run.state.echo.acks.arrived)[2], np.asarray(run.state.flows.kind)
    return [float(lost[kind == k].sum()) / FINE for k in range(2)]


@pytest.mark.parametrize(
    ("sim", "ecn"),
    [
        (LOSSY, None),
        pytest.param(PAIR, None, marks=pytest.mark.thorough),
        pytest.param(PAIR, (20 * KB, 80 * KB, 0.2), marks=pytest.mark.thorough),
        (LOSSY, (20 * KB, 80 * KB, 0.2)),
    ],
    ids=["reno", "dctcp", "dctcp, marks", "reno, marks"],
)
def test_rdma_beside_tcp_in_a_small_buffer(sim, ecn):
    """TCP loses bytes and sends them again, RDMA is paused and loses none; every flow finishes."""
    ecn = ecn and thresholds(sim, ecn, ecn)
    run = class_run(sim, CROWD, 60, ecn, buffer=0.75 * MIB)
    assert int(run.state.totals.finished.sum()) == 8
    assert np.isfinite(run.times(0)[:3]).all()
    assert np.isfinite(run.times(1)[:5]).all()
    rdma, tcp = lost_by_class(run)
    assert rdma == 0
    if ecn is None:
        assert int(run.state.totals.pauses) > 0
        assert run.dropped() > 10_000
    # Senders hear of whole bytes, substep by substep.
    assert tcp == pytest.approx(run.dropped(), rel=0.01, abs=200)
    parts = balance(run.state)
    assert parts["delivered"] == pytest.approx(8 * wire(500_000), rel=1e-6)
    assert parts["offered"] == pytest.approx(8 * wire(500_000) + run.dropped(), rel=1e-6)
    assert (parts["queued"], parts["waiting"]) == (0, 0)


def filled(*kinds):
    """Three senders of each of some classes into one port, for 2 ms; a 2 MiB buffer."""
    lists = [[], [], []]
    for i, k in enumerate(kinds):
        lists[k] = [(1 + 3 * i + j, 0, LONG, 0.0) for j in range(3)]
    return class_run(THREE, lists, 20, buffer=2 * MIB, pfc_alpha=0.5)


def test_the_lossy_limit_follows_the_free_buffer():
    """q = alpha (shared - used): alone alpha / (1 + alpha) of it, less beside another queue."""
    alone, beside = filled(2), filled(2, 0)
    net = alone.params.net
    shared = 2 * MIB - 2 * float((net.headroom[:9] + net.reserve).sum())
    near = 3 * LINE * THREE.tick_us + LINE  # arrivals until the next decision
    for run in (alone, beside):
        mean = np.asarray(run.stats.class_queue_mean)[10:20, 0]
        np.testing.assert_allclose(mean[:, 2], 0.25 * (shared - mean.sum(1)), atol=near)
        assert run.dropped() > 1e6
    lossy = [np.asarray(r.stats.class_queue_mean)[10:20, 0, 2].mean() for r in (alone, beside)]
    assert lossy[0] == pytest.approx(0.2 * shared, abs=near)
    assert lossy[1] < 0.8 * lossy[0]


def test_pauses_are_for_lossless_classes():
    """Links pause one class and not the other; a lossy class alone pauses nobody."""
    assert int(filled(2).state.totals.pauses) == 0
    run = filled(2, 0)
    paused = np.zeros((len(run.state.paused) // 3, 3), bool)
    for _ in range(5):
        run = run.on(CHUNKS)
        paused |= np.asarray(run.state.paused).reshape(-1, 3)
    assert int(run.state.totals.pauses) > 0
    assert paused[4:7, 0].any(), "hosts 4 to 6 send the lossless class"
    assert not paused[:, 1:].any()
    used = np.asarray(run.state.queue).reshape(-1, 3).sum()
    assert used < 2 * MIB


# --- statistics -----------------------------------------------------------------------------------


def check_class_sums(run):
    """Statistics per class have shape `[T, P, C]` and add up to the ports'."""
    stats, c = run.stats, run.sim.n_classes
    ports = np.asarray(stats.queue).shape
    for name in ("queue_mean", "tx_bytes"):
        split = np.asarray(getattr(stats, f"class_{name}"))
        assert split.shape == (*ports, c)
        np.testing.assert_allclose(split.sum(-1), getattr(stats, name), rtol=1e-5, atol=1e-2)


def test_statistics_of_classes_add_up():
    """Each class is in its own column."""
    run = class_run(THREE, [[(1, 0, LONG, 0.0), (2, 0, LONG, 0.0)], [(3, 4, LONG, 0.0)], []], 10)
    check_class_sums(run)
    sent = np.asarray(run.stats.class_tx_bytes)
    assert (sent[1:, 0, 0] > 100 * LINE * 0.99).all()
    assert (sent[1:, 4, 1] > 100 * LINE * 0.99).all()
    # Acknowledgements ride in the queues of their class.
    ack = 60 / 1048 * 100 * LINE
    np.testing.assert_allclose(sent[2:, 3, 1], ack, rtol=0.01)
    assert (sent[:, 4, [0, 2]] == 0).all()
    assert simulate(STAR, [(1, 0, 10, 0.0)], 10).stats.class_tx_bytes is None


# --- one class, and what is refused ---------------------------------------------------------------


def test_one_class_is_no_class():
    """The same bits: flows, marks, pauses."""
    single = replace(STAR, classes=(TrafficClass("all", STAR.transport, 7.0),))
    rows = [(s, 0, 300_000, 1.7 * s) for s in range(1, 9)]
    a, b = (simulate(x, rows, 20, ecn=(20, 80, 0.2), buffer=MIB) for x in (STAR, single))
    assert int(a.totals.pauses) > 0
    assert np.asarray(a.stats.marked_bytes).sum() > 0
    for x, y in zip(
        jax.tree.leaves((a.state, a.stats)), jax.tree.leaves((b.state, b.stats)), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_senders_of_classes():
    """Equal senders are not mixed; the classes' replace the simulator's."""
    assert THREE.transport == RDMA
    assert PAIR.transport == Mixed((RDMA, TCP))
    assert PAIR.transport.needs == RDMA.needs | TCP.needs
    assert (PAIR.n_classes, PAIR.n_queues, PAIR.weights) == (2, 18, (1.0, 3.0))
    assert PAIR.lossless == (True, False)
    assert hash(PAIR) != hash(LOSSY)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(PAIR, class_of=(0,)), r"class_of = \(0,\) .* one class for each of the 2"),
        (
            lambda: replace(PAIR, class_of=(0, 2)),
            r"class_of = \(0, 2\) .* numbers of classes, 0 to 1",
        ),
        (lambda: replace(PAIR, class_of=(-1, 0)), r"class_of = \(-1, 0\)"),
        (lambda: replace(STAR, class_of=(1,)), r"class_of = \(1,\) .* numbers of classes, 0 to 0"),
        (
            lambda: TrafficClass("x", RDMA, 0.0),
            "weight = 0.0 is not allowed: expected a number > 0",
        ),
        (lambda: TrafficClass("x", RDMA, -1.0), "weight = -1.0"),
        (lambda: TrafficClass("x", RDMA, math.inf), "weight = inf"),
        (lambda: TrafficClass("x", RDMA, math.nan), "weight = nan"),
        (lambda: TrafficClass("x", RDMA, alpha=0.0), "alpha = 0.0 is not allowed"),
    ],
)
def test_bad_classes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
