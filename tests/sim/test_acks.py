"""ACKs and losses that senders learn of, against what was sent, and when."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from ear import ALL, LINE, PACKET, STAR, STAR_DROPS, listen, network, round_trip
from netcases import wire

from ecn_marl.sim import feedback as fb
from ecn_marl.sim import leaf_spine
from ecn_marl.sim.core import lifecycle as life

SPINE_FAILS = network(leaf_spine(2, 2, 2), failures=True)

APART = [
    (1, 0, 1, 0.0),
    (2, 3, 999, 3.7),
    (3, 2, 1000, 12.0),
    (4, 5, 1001, 20.0),
    (5, 6, 20_000, 20.9),
    (6, 4, 20_500, 31.2),
    (7, 8, 150_000, 44.4),
    (1, 0, 100_000, 50.0),
    (2, 3, 2_000, 70.3),
    (8, 7, 64_017, 123.4),
    (1, 0, 12_345, 211.0),
]
"""Flows that do not meet, more of them than there are slots."""


@pytest.mark.parametrize("share", [1.0, 0.31])
def test_every_packet_is_acknowledged_once(share):
    heard = listen(STAR, APART, 200, ecn=ALL, share=share)
    for flow, (_, _, size, begin) in enumerate(APART):
        packets = math.ceil(size / 1000)
        assert heard.of(flow, "acked").sum() == packets
        assert heard.of(flow, "marked").sum() == packets
        assert heard.of(flow, "sent").sum() == pytest.approx(wire(size), abs=0.5)
        assert np.flatnonzero(heard.of(flow, "acked"))[0] + 1 >= begin + round_trip() - 1
    assert heard.lost.sum() == 0
    assert (heard.stage[-1] == life.FREE).all()


@pytest.mark.parametrize("delay_us", [0.0, 1.0, 7.3, 55.0])
@pytest.mark.parametrize("begin", [0.0, 2.6])
def test_acks_come_after_a_round_trip(delay_us, begin):
    """Packet k leaves k spacings after the start; its ACK acts a round trip later, to a substep."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    heard = listen(STAR, [(1, 0, 1_000_000, begin)], 100, net=delays, share=0.17)
    leave = begin + np.arange(1000) * PACKET / (0.17 * LINE)
    now = np.arange(1, 501)
    back = leave + round_trip(delay_us)
    acked = heard.cumulated(0, "acked")
    for slack, side in ((1.01, np.less_equal), (-1.01, np.greater_equal)):
        assert side(acked, (back[:, None] <= now + slack).sum(0)).all()
    assert acked[-1] > 100


def test_acks_wait_in_the_queues_back():
    """A slow port sends without a break; its ACKs come back through another queue.

    While that queue grows by 1 µs per µs, no ACK arrives; while it drains, they come twice as fast.
    """
    rows = [(1, 0, 10**7, 0.0), (3, 1, 300_000, 60.0), (4, 1, 300_000, 60.0)]
    rates = np.array([1000.0] + 8 * [LINE])
    heard = listen(STAR, rows, 100, net={"port_rate": rates})
    acked = heard.cumulated(0, "acked")
    waits = np.repeat(np.append(0, heard.queue[:-1, 1]), 5) / LINE
    assert waits.max() > 90
    base = 4 + PACKET / 1000 + 2 * 60 / LINE
    sent_at = np.arange(1, 501) - base - waits
    expected = np.maximum.accumulate(np.maximum(sent_at, 0) * 1000 / PACKET)
    # The packet begun counts, and the delay is renewed once per tick.
    assert np.abs(acked - expected).max() < 1 + 5 + 1
    assert (np.diff(acked[80:150:10]) < 3).all()


def test_bytes_on_the_way_add_up():
    """Sent = acknowledged + lost + in the queues + sent, or out, but not yet heard of."""
    rows = [(s, 0, 2_000_000, 10.0 * s) for s in range(1, 5)]
    heard = listen(STAR_DROPS, rows, 200, net={"buffer": 120e3}, share=0.6)
    assert heard.dropped[-1] > 1e6
    longest = math.ceil(round_trip() + 130e3 / LINE) + 5
    for flow in range(4):
        sent = heard.cumulated(flow, "sent")[4::5]
        acked = heard.cumulated(flow, "acked")[4::5] * PACKET
        lost = heard.cumulated(flow, "lost")[4::5]
        queued = np.where(heard.flow_id == flow, heard.backlog[:, 0], 0).sum(-1)
        unheard = sent - acked - lost - queued
        assert (unheard >= -PACKET - 1).all()
        # At most what was sent since the time that feedback takes at the very most.
        recent = sent - np.interp(np.arange(len(sent)) - longest / 5, np.arange(len(sent)), sent)
        assert (unheard <= recent + PACKET).all()


def test_senders_learn_of_losses_a_round_trip_and_a_queue_later():
    """The ACK that shows a loss belongs to the packet behind, at the end of a full queue."""
    rows = [(s, 0, 3_000_000, 0.0) for s in range(1, 4)]
    heard = listen(STAR_DROPS, rows, 100, net={"buffer": 120e3})
    lost = np.cumsum(heard.lost.sum(-1, dtype=float))[4::5]
    full = heard.queue[20:, 0]
    assert full.min() > 100e3
    # Drops happen in whole ticks, and when a tick was full the next one is.
    times = np.arange(1, 101) * 5.0
    delays = [
        t - np.interp(x, heard.dropped, times) for t, x in zip(times, lost, strict=True) if x > 0
    ]
    expected = round_trip() + full.mean() / LINE
    assert np.mean(delays) == pytest.approx(expected, abs=5)
    assert np.abs(np.array(delays) - expected).max() < 12


def test_dropped_bytes_are_sent_again():
    rows = [(s, 0, 300_000, 1.3 * s) for s in range(1, 9)]
    heard = listen(STAR_DROPS, rows, 400, net={"buffer": 60e3}, window=30e3)
    assert np.isfinite(np.asarray(heard.state.fct_log)[:8]).all()
    assert heard.dropped[-1] > 50e3
    sent = sum(heard.of(flow, "sent").sum() for flow in range(8))
    assert sent == pytest.approx(8 * wire(300_000) + heard.dropped[-1], rel=1e-5)


@pytest.mark.parametrize("window", [1.0, 1000.0])
def test_the_smallest_window_never_locks(window):
    """One packet at a time, most of them dropped, and still every flow finishes."""
    rows = [(s, 0, 20_000, 0.0) for s in range(1, 9)]
    heard = listen(STAR_DROPS, rows, 400, net={"buffer": 2e3, "port_rate": 300}, window=window)
    assert np.isfinite(np.asarray(heard.state.fct_log)[:8]).all()
    assert heard.dropped[-1] > 20e3


def test_senders_learn_of_what_a_failed_link_loses():
    """An uplink of two flows that queue fails at 250 µs: they learn of all that is lost, once."""
    never = np.full(SPINE_FAILS.topology.n_ports, 1e9)
    never[SPINE_FAILS.topology.port_names.index("leaf0->spine0")] = 250.0
    rows = [(source, 2, 10**7, 0.0) for source in (0, 1)]
    heard = listen(SPINE_FAILS, rows, net={"fail_step": never}, share=0.8)
    assert heard.dropped[-1] > 100e3
    assert heard.lost.sum() == pytest.approx(heard.dropped[-1], rel=1e-3)
    for flow in range(2):
        (slot,) = np.flatnonzero(np.asarray(heard.state.flows.flow_id) == flow)
        lost = heard.of(flow, "lost").sum()
        left = heard.of(flow, "sent").sum() - lost - PACKET * heard.of(flow, "acked").sum()
        unacked = np.asarray(heard.state.echo.out.unacked)[slot]
        assert unacked == pytest.approx(left / PACKET, abs=2.0)


def test_losses_that_a_count_cannot_hold_are_off_the_way_at_once():
    """10 MB: senders learn of 4 MiB, and the rest does not fill their windows for ever."""
    echo = fb.empty_echo(frozenset((fb.ACKS,)), 1, 1, 4, jnp.float32)
    echo = replace(echo, out=replace(echo.out, unacked=jnp.full(1, 10_000.0)))
    after = fb.lose(echo, jnp.full(1, 10e6), jnp.float32(PACKET))
    assert int(after.acks.arrived[2, 0]) == 2**22 * 256
    assert float(after.out.unacked[0]) == pytest.approx(10_000 - (10e6 - 2**22) / PACKET)
