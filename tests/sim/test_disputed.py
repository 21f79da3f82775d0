"""What people dispute about ECN and DCQCN: the fluid, packets and closed forms; `docs/physics.md`.

Each case returns what a row of the page's tables has. The page is read, and its numbers are held
against those measured here.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq

from ecn_marl import packets
from ecn_marl.sim import star, theory
from ecn_marl.sim.network.topology import Link, from_links, parking_lot
from ecn_marl.sim.replay import Settings, replay
from ecn_marl.sim.traffic.trace import FlowList
from ecn_marl.sim.transports import Dcqcn

pytest.importorskip("numba", reason="extra packets is not installed")
pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "physics.md"
CAPACITY = 25e3 / 8
PACKET = 1048.0
ENDLESS = 10**9
NEVER = 1e9
"""Start of a flow that is only there so that programs have one shape, ns."""

RUNS = {"fluid": replay, "packets": packets.replay}
SECN1, STEP, STEEP = (5, 200, 0.01), (40, 40, 1.0), (5, 200, 1.0)


def flows(*rows) -> FlowList:
    """Rows of source, destination, bytes and start in ns; four of them."""
    rows = (*rows, *[(1, 0, 1000, NEVER)] * (4 - len(rows)))
    src, dst, size, start = (np.array(x) for x in zip(*rows, strict=True))
    paths = np.full(len(rows), -1)
    return FlowList(np.arange(len(rows)), src, dst, size, start.astype(float), paths, paths)


def run(kind, listed, net, seed=0, **options):
    return RUNS[kind](listed, net, Settings(slots=4, seed=seed, **options))


def port(net, switch, peer) -> int:
    return next(i for i, p in enumerate(net.ports) if (p.switch, p.peer) == (switch, peer))


def gbps(result, which, after_us) -> float:
    """Mean rate of a port, bytes of ACKs included, which are below 1 % here."""
    late = result.time_us > after_us
    return result.tx_bytes[late, which].sum() / (result.time_us[-1] - after_us) * 8e-3


@cache
def standing(kind, senders, ecn):
    """Mean queue in KB and utilisation in % of endless flows into a port, from 20 to 40 ms."""
    listed = flows(*[(i + 1, 0, ENDLESS, 0.0) for i in range(senders)])
    rows = []
    for seed in range(4):
        result = run(kind, listed, star(5), seed, ecn=ecn, duration_ms=40.0)
        late = result.time_us > 20e3
        rate = gbps(result, 0, 20e3)
        rows.append((result.queue_bytes[late, 0].mean() / 1e3, 100.0 * rate / 25.0))
    return np.mean(rows, 0)


def fixed_point_kb(senders, ecn) -> float:
    kmin, kmax, pmax = ecn
    params = Dcqcn.of("hpcc-paper").default_params()
    point = theory.dcqcn_fixed_point(
        CAPACITY, senders, kmin * 1e3, kmax * 1e3, pmax, params, PACKET
    )
    return point.queue / 1e3


@cache
def two_bottlenecks(kind):
    """Gb/s of a flow over two full links, and of the flows that each link has besides."""
    net = parking_lot(2)
    listed = flows((0, 4, ENDLESS, 0.0), (1, 2, ENDLESS, 0.0), (3, 5, ENDLESS, 0.0))
    ends = [
        port(net, *x) for x in (("switch2", "host4"), ("switch1", "host2"), ("switch2", "host5"))
    ]
    rates = []
    for seed in range(8):
        result = run(kind, listed, net, seed, ecn=SECN1, duration_ms=100.0)
        rates.append([gbps(result, end, 40e3) for end in ends])
    long, *cross = np.mean(rates, 0)
    return long, np.mean(cross)


def dcqcn_share_gbps() -> float:
    """The long flow's rate where both links mark it alike, and cross flows see one link's marks."""
    model = theory._Dcqcn.of(Dcqcn.of("hpcc-paper").default_params(), PACKET)

    def mark(rate):
        return math.exp(model.log_mark(rate / PACKET))

    def excess(long):
        return mark(long) - (1.0 - (1.0 - mark(CAPACITY - long)) ** 2)

    return brentq(excess, 0.05 * CAPACITY, 0.5 * CAPACITY) * 8e-3


@cache
def two_distances(kind, transport, ecn):
    """Gb/s of a near flow (round trip 4 µs and more) and of a far one (42 µs) into one port."""
    links = [Link(f"host{i}", f"switch{i % 2}", 25.0, 1.0) for i in range(3)]
    net = from_links(
        "two-distances",
        ["host0", "host1", "host2"],
        ["switch0", "switch1"],
        [*links, Link("switch1", "switch0", 25.0, 19.0)],
    )
    listed, rows = flows((0, 2, ENDLESS, 0.0), (1, 2, ENDLESS, 0.0)), []
    listed.src[2:], listed.dst[2:] = 0, 2
    for seed in range(3):
        result = run(kind, listed, net, seed, transport=transport, ecn=ecn, duration_ms=60.0)
        far = gbps(result, port(net, "switch1", "switch0"), 20e3)
        rows.append((gbps(result, port(net, "switch0", "host2"), 20e3) - far, far))
    return np.mean(rows, 0)


@cache
def latecomer(kind):
    """Mean rate in Gb/s, over its life, of 2 MB that start 10 ms after an endless flow."""
    size, rates = 2_000_000, []
    listed = flows((1, 0, ENDLESS, 0.0), (2, 0, size, 10e6))
    for seed in range(8):
        result = run(kind, listed, star(5), seed, ecn=SECN1, duration_ms=40.0)
        rates.append(size / 1000 * PACKET * 8 / result.fct_ns[1])
    return np.mean(rates)


@cache
def burst(kind, mib):
    """Pauses and the time in ms until the last of four bursts of 1 MB is through."""
    listed = flows(*[(i + 1, 0, 1_000_000, 0.0) for i in range(4)])
    result = run(kind, listed, star(5), ecn=(5000, 5000, 1.0), duration_ms=40.0, buffer_mib=mib)
    return result.counts["pauses"], result.fct_ns.max(
        where=~np.isnan(result.fct_ns), initial=0
    ) / 1e6


@cache
def lone(ideal):
    """Slowdown of lone flows of 1 KB, 10 KB, 100 KB and 1 MB."""
    rows = [(1, 0, 10 ** (3 + i), i * 1e6) for i in range(4)]
    return run("fluid", flows(*rows), star(5), ideal=ideal, duration_ms=40.0).slowdown


@pytest.mark.thorough
def test_the_queue_is_not_the_threshold():
    """Under SECN1 the queue is far above Kmin, and twice the mean field's fixed point."""
    for senders in (2, 4):
        fluid, packets_ = (standing(kind, senders, SECN1) for kind in RUNS)
        assert fluid[0] == pytest.approx(packets_[0], rel=0.2)
        assert fluid[1] == pytest.approx(packets_[1], abs=0.5) and fluid[1] > 99.0
        assert 1.5 < packets_[0] / fixed_point_kb(senders, SECN1) < 2.5


@pytest.mark.thorough
def test_a_steep_curve_costs_throughput():
    for ecn in (STEEP, STEP):
        for senders in (2, 4):
            fluid, packets_ = (standing(kind, senders, ecn) for kind in RUNS)
            assert fluid[0] == pytest.approx(packets_[0], abs=1.2)
            assert fluid[1] == pytest.approx(packets_[1], abs=0.8)
            assert 92.0 < packets_[1] < 97.0


@pytest.mark.thorough
def test_two_bottlenecks_cost_a_flow_a_quarter_of_its_share():
    """Neither max-min (12.5) nor proportional fairness (8.3)."""
    fluid, packets_ = two_bottlenecks("fluid"), two_bottlenecks("packets")
    np.testing.assert_allclose(fluid, packets_, atol=0.25)
    assert packets_[0] == pytest.approx(dcqcn_share_gbps(), abs=0.3)
    assert sum(packets_) == pytest.approx(25.0, abs=0.3)


@pytest.mark.thorough
def test_the_round_trip_does_not_matter_to_dcqcn():
    """It reduces by a timer; a window, as DCTCP's, gives a far flow less than its part."""
    near, far = two_distances("packets", "dcqcn:hpcc-paper", SECN1)
    assert near / far == pytest.approx(1.0, abs=0.1)
    np.testing.assert_allclose(
        two_distances("fluid", "dcqcn:hpcc-paper", SECN1), (near, far), atol=0.5
    )
    near, far = two_distances("packets", "dctcp:hpcc", (30, 30, 1.0))
    assert near / far > 4.0
    assert two_distances("fluid", "dctcp:hpcc", (30, 30, 1.0))[0] == pytest.approx(near, abs=0.3)


@cache
def whole_percents(kind, senders):
    """Queue in KB and utilisation in % under SECN1, of a switch with whole percents."""
    listed = flows(*[(i + 1, 0, ENDLESS, 0.0) for i in range(senders)])
    rows = []
    for seed in range(4):
        result = run(kind, listed, star(5), seed, ecn=SECN1, duration_ms=40.0, mark_quantum=0.01)
        late = result.time_us > 20e3
        rate = gbps(result, 0, 20e3)
        rows.append((result.queue_bytes[late, 0].mean() / 1e3, 100.0 * rate / 25.0))
    return np.mean(rows, 0)


@pytest.mark.thorough
def test_whole_percents_make_a_step_of_secn1():
    """Its ramp ends at 1 %, and below that nothing is marked."""
    for senders in (2, 4):
        for kind in RUNS:
            np.testing.assert_array_equal(
                whole_percents(kind, senders), standing(kind, senders, (200, 200, 1.0))
            )
        fluid, packets_ = (whole_percents(kind, senders) for kind in RUNS)
        np.testing.assert_allclose(fluid, packets_, rtol=0.03)
        assert packets_[0] > 1.3 * standing("packets", senders, SECN1)[0]


@pytest.mark.thorough
def test_who_starts_late_gets_its_part():
    """A flow of DCQCN starts at line rate, so it is not the late one that suffers."""
    fluid, packets_ = latecomer("fluid"), latecomer("packets")
    assert fluid == pytest.approx(packets_, rel=0.08)
    assert packets_ == pytest.approx(12.5, rel=0.08)


def test_a_large_buffer_delays_pauses_not_bytes():
    """Without marks 4 MB take the link's time for them, however often senders are paused."""
    wire_ms = 4 * 1000 * PACKET / CAPACITY / 1e3
    for kind in RUNS:
        assert burst(kind, 0.5)[0] > 0 and burst(kind, 32.0)[0] == 0
        for mib in (0.5, 32.0):
            assert burst(kind, mib)[1] == pytest.approx(wire_ms, rel=0.01)


def test_slowdowns_below_one_come_from_the_formula():
    np.testing.assert_allclose(lone("alone"), 1.0, atol=1e-6)
    assert "1.346 ms" in PAGE.read_text() and "11.7 Gb/s" in PAGE.read_text()
    assert all(np.diff(lone("standalone")) > 0) and lone("standalone")[0] < 0.95


def rows(name):
    """Rows of a table of the page: cells by the first one."""
    text = PAGE.read_text().split(f"<!-- measured: {name} -->")[1].split("<!-- end -->")[0]
    lines = [x for x in text.splitlines() if x.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: [float(x) for x in row[1:]] for row in cells}


@pytest.mark.thorough
def test_the_page_has_what_is_measured():
    """Numbers of other machines may differ by their coins."""
    queues = {}
    for ecn in (SECN1, STEEP, STEP):
        for n in (2, 4):
            fluid, packets_ = (standing(kind, n, ecn) for kind in RUNS)
            label = f"({ecn[0]}, {ecn[1]}, {ecn[2]:g}), {n} flows"
            queues[label] = [fluid[0], packets_[0], fluid[1], packets_[1]]
    tables = {
        "queues": queues,
        "bottlenecks": {
            "over both": [two_bottlenecks(kind)[0] for kind in RUNS],
            "over one": [two_bottlenecks(kind)[1] for kind in RUNS],
        },
        "distances": {
            f"{name}, {which}": [two_distances(kind, *how)[i] for kind in RUNS]
            for name, how in (
                ("DCQCN", ("dcqcn:hpcc-paper", SECN1)),
                ("DCTCP", ("dctcp:hpcc", (30, 30, 1.0))),
            )
            for i, which in enumerate(("near", "far"))
        },
        "percents": {f"{n} flows": [whole_percents(kind, n)[0] for kind in RUNS] for n in (2, 4)},
        "slowdowns": {name: lone(name) for name in ("alone", "standalone")},
    }
    for name, wanted in tables.items():
        found = rows(name)
        assert found.keys() == wanted.keys()
        for label, values in wanted.items():
            np.testing.assert_allclose(found[label], values, rtol=0.08, atol=0.3, err_msg=label)
