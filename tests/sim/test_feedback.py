"""ACKs and CNPs that reach the senders: how many, and when."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from netcases import STAR, STAR_PRIORITY, alone_us, simulate, wire

from ecn_marl.sim import Ecn
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.feedback.cnp import set_bit
from ecn_marl.sim.transports import preset

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

STEADY = replace(preset("hpcc-paper"), min_rate=LINE)
"""Senders whom no CNP slows down."""

# --- ACKs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sim", [STAR, STAR_PRIORITY], ids=["in the queues", "in a class apart"])
def test_acks_load_the_way_back(sim):
    """60 B for each packet of 1048 B, through the port back to the sender."""
    run = simulate(sim, [(1, 0, 2_000_000, 0.0)], 10)
    sent = np.asarray(run.stats.tx_bytes).sum(0)
    assert sent[0] == pytest.approx(wire(2_000_000), rel=1e-5)
    assert sent[1] == pytest.approx(2000 * 60, rel=1e-3)
    assert (sent[2:] == 0).all()


def reverse_congestion(sim):
    """A packet from 1 to 0 while six hosts fill the port back to 1."""
    rows = [(s, 1, 500_000, 0.0) for s in range(2, 8)] + [(1, 0, 1000, 150.25)]
    run = simulate(sim, rows, 20)
    return run.fct[6], run


def test_acks_wait_in_the_queues_of_the_way_back():
    fct, run = reverse_congestion(STAR)
    # The packet meets no queue. Its ACK is at the switch some 3 µs later, where five line rates
    # have piled up for 153 µs or so.
    queue = 5 * LINE * 153
    assert fct == pytest.approx(alone_us(1000, [25]) + queue / LINE, rel=0.02)
    assert run.stats.queue_max[:, 1].max() > queue


def test_acks_of_their_own_class_do_not_wait():
    fct, run = reverse_congestion(STAR_PRIORITY)
    assert run.stats.queue_max[:, 1].max() > 5 * LINE * 153
    # Only the NIC is slower, by the ACKs that its host sends for a line rate of data.
    nic = LINE * (1 - 60 / 1048)
    assert fct == pytest.approx(alone_us(1000, [25]) + 1048 / nic - 1048 / LINE, abs=1e-3)


# --- marks ----------------------------------------------------------------------------------------


def peak_run(kmin_kb):
    """Two flows of 52.4 KB on the wire pile up to about that much."""
    rows = [(1, 0, 50_000, 0.0), (2, 0, 50_000, 0.0)]
    return simulate(STAR, rows, 10, ecn=(kmin_kb, kmin_kb + 1, 1.0))


def test_marks_start_above_kmin():
    peak = float(peak_run(1000).stats.queue_max.max())
    assert peak == pytest.approx(wire(50_000), rel=0.03)
    quiet = peak_run(peak / 1e3 + 0.1)
    assert float(quiet.stats.marked_bytes.sum()) == 0
    marked = peak_run(peak / 1e3 - 5)
    assert float(marked.stats.marked_bytes.sum()) > 1000


def test_without_marks_senders_stay_at_line_rate():
    rows = [(s, 0, 10**7, 0.0) for s in range(1, 4)]
    run = simulate(STAR, rows, 10, ecn=(10_000, 20_000, 1.0))
    busy = np.asarray(run.state.flows.stage) == life.SENDING
    assert busy.sum() == 3
    assert (np.asarray(run.state.flows.transport.rate)[busy] == LINE).all()
    run = simulate(STAR, rows, 10, ecn=(10, 20, 1.0))
    rates = np.asarray(run.state.flows.transport.rate)[np.asarray(run.state.flows.stage) == 1]
    assert (rates < LINE / 2).all()


@pytest.mark.parametrize("start", [500.0, 503.4])
def test_no_cnp_before_the_first_byte_has_crossed_the_queues(start):
    """Into a queue that marks everything: the first CNP is back when a FIFO would have sent it."""
    rows = [(s, 0, 10**7, 0.0) for s in range(1, 4)] + [(4, 0, 10**7, start)]
    run = simulate(STAR, rows, 10, ecn=(1, 2, 1.0), transport=STEADY, buffer=1e9)
    queue = 2 * LINE * start
    assert 1010 < start + queue / LINE + alone_us(1000, [25]) < 1990
    assert not has_seen_a_cnp(run, flow=3)
    assert all(has_seen_a_cnp(run, flow) for flow in range(3))
    assert has_seen_a_cnp(run.on(10), flow=3)


def has_seen_a_cnp(run, flow):
    return bool(run.state.flows.transport.has_had_cnp[run.slot(flow)])


# --- when CNPs arrive -----------------------------------------------------------------------------

SLOW = preset("hpcc-paper", min_rate=LINE, decrease_us=1e6)
"""Steady senders that show when their first CNP came: the decrease timer has run since."""


def first_cnp(run, flow):
    """Time of a flow's first CNP, µs."""
    state = run.state.flows.transport
    slot = run.slot(flow)
    assert state.has_had_cnp[slot]
    return float(run.state.step) - (1e6 - float(state.to_decrease[slot]))


def one_port(kmin, kmax, port=0):
    """Thresholds (bytes) on one port of the star, none on the others."""
    values = np.full((3, 9), 1e9, np.float32)
    values[2] = 1.0
    values[:2, port] = kmin, kmax
    return Ecn(*values)


@pytest.mark.parametrize("delay_us", [0.0, 0.7, 2.0, 6.0, 9.5, 20.0, 50.0, 130.0])
def test_cnps_come_back_after_a_round_trip(delay_us):
    """Four propagation delays, a packet at the port, an ACK; coarser where that is long."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)]
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    run = simulate(STAR, rows, 10, ecn=one_port(1, 2), transport=SLOW, **delays)
    round_trip = 4 * delay_us + (1048 + 2 * 60) / LINE
    # Marked within the first substep, in which a packet of each is through.
    near = 1.0 if round_trip < 31 else 1 + STAR.tick_us + STAR.coarse / 2
    for flow in (0, 1):
        assert first_cnp(run, flow) == pytest.approx(round_trip + 0.5, abs=near)


@pytest.mark.parametrize(("sim", "waits"), [(STAR, True), (STAR_PRIORITY, False)])
def test_cnps_wait_with_the_acks_that_carry_them(sim, waits):
    """Three hosts fill the port back to host 1 for 120 µs before it starts to send."""
    rows = [(s, 1, 10**7, 0.0) for s in (2, 3, 4)]
    rows += [(1, 0, 10**7, 120.0), (8, 0, 10**7, 120.0)]
    run = simulate(sim, rows, 10, ecn=one_port(1, 2), transport=SLOW, buffer=1e9)
    queue = 2 * LINE * 120
    back = queue / LINE if waits else 0.0
    near = 20.0 if waits else 1.5
    assert first_cnp(run, 3) - 120 == pytest.approx(4.4 + 0.5 + back, abs=near)
    assert first_cnp(run, 4) - 120 == pytest.approx(4.4 + 0.5, abs=1.5)


# --- how many -------------------------------------------------------------------------------------


def test_cnps_are_as_frequent_as_marked_packets():
    """A queue that stands where one packet in ten is marked; 2.98 packets per µs.

    One burst piles it up, a flow at line rate then keeps it. Alpha, updated every µs, averages
    whether at least one of the packets was marked.
    """
    queue = wire(400_000)
    probability = 0.1
    kmin, kmax = 100e3, 1000e3
    values = np.array([kmin, kmax, probability * (kmax - kmin) / (queue - kmin)])
    ecn = Ecn(*np.broadcast_to(values[:, None], (3, 9)).astype(np.float32))
    senders = preset("hpcc-run", min_rate=LINE, g=1 / 4096)
    rows = [(1, 0, 10**9, 0.0), (2, 0, 400_000, 0.0)]
    run = simulate(STAR, rows, 300, ecn=ecn, transport=senders)
    last = {k: np.asarray(getattr(run.stats, k))[100:, 0] for k in ("queue", "tx_bytes")}
    np.testing.assert_allclose(last["queue"], queue, rtol=0.02)
    marked = np.asarray(run.stats.marked_bytes)[100:, 0].sum() / last["tx_bytes"].sum()
    assert marked == pytest.approx(probability, rel=0.03)
    alpha = float(run.state.flows.transport.alpha[run.slot(0)])
    assert alpha == pytest.approx(1 - (1 - probability) ** (LINE / 1048), abs=0.02)


def test_shift_register():
    """A mark reaches the front after as many shifts as its position says."""
    register = jnp.zeros(4, jnp.uint32)
    hit = jnp.array([True, True, False, True])
    register = set_bit(register, hit, jnp.array([0, 5, 5, 31]))
    register = set_bit(register, hit, jnp.array([2, 5, 5, 40]))
    fronts = []
    for _ in range(32):
        fronts.append(np.asarray(register & 1))
        register = register >> 1
    arrivals = [np.flatnonzero(x).tolist() for x in np.array(fronts).T]
    assert arrivals == [[0, 2], [5], [], [31]]
