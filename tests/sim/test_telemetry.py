"""Telemetry and fields: the state of ports as it was one feedback delay ago."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ear import LINE, PACKET, SPINE, STAR, listen, round_trip


def test_telemetry_is_the_port_one_return_delay_ago():
    """On three hops between leaves, and on one within a leaf."""
    rows = [(0, 2, 10**6, 0.0), (1, 2, 10**6, 3.0), (3, 2, 10**6, 7.0), (1, 0, 50_000, 40.0)]
    heard = listen(SPINE, rows, share=0.8)
    bounds = SPINE.topology.level_bounds
    hops = np.asarray(heard.state.flows.hop) + np.array(bounds[:-1])[:, None]
    has_hop = hops < np.array(bounds[1:])[:, None]
    np.testing.assert_array_equal(has_hop.sum(0)[[0, 1, 2, 3]], [3, 3, 1, 1])
    np.testing.assert_array_equal(heard.n_hops[100, :4], [3, 3, 1, 1])
    rates = np.array([p.gbps for p in SPINE.topology.ports]) * 125
    expected = np.where(has_hop, rates[np.minimum(hops, len(rates) - 1)], np.inf)
    np.testing.assert_array_equal(heard.hop_rate[100, :, :3], expected[:, :3])
    checked = 0
    for flow in (0, 2):
        for step in range(60, 300):
            read = heard.hop_step[step, flow]
            if read % 5 != 4:  # the state is known at the ends of ticks
                continue
            queue = np.append(heard.queue[read // 5], 0)[
                np.where(has_hop, hops, bounds[-1])[:, flow]
            ]
            np.testing.assert_allclose(heard.hop_queue[step, :, flow], queue, rtol=1e-6)
            checked += queue.max() > 50e3
    assert checked > 40
    delay = np.arange(500) - heard.hop_step[:, 0]
    # Four links there and back; three packets stored, the middle hop four times as fast.
    base = 8 + (PACKET + 60) * (1 / LINE + 1 / rates.max()) + (PACKET + 2 * 60) / LINE
    assert delay[60:300].mean() == pytest.approx(base - 0.5, abs=1.5)


def test_telemetry_counts_what_ports_have_sent():
    """Modulo 2^32, and to the byte: a port that never idles sends its rate."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)]

    def near_the_end(state):
        ports = state.echo.telemetry
        count, rest = ports.sent
        ports = replace(ports, sent=(count - np.uint32(10**6), rest))
        return replace(state, echo=replace(state.echo, telemetry=ports))

    heard = listen(STAR, rows, 200, change=near_the_end)
    sent = heard.hop_sent[10:, 0, 0].astype(np.int64)
    assert sent.max() > 2**31 > sent.min(), "it has wrapped around"
    added = np.diff(sent) % 2**32
    steps = np.diff(heard.hop_step[10:, 0])
    np.testing.assert_allclose(added, LINE * steps, atol=1)


def test_fields_are_one_feedback_delay_old():
    """Marking probability of the queue then, and nothing before the first mark can be back.

    Feedback by the end of a substep of 1 us was marked one round trip earlier: between two
    substeps, each marked by the queue in its middle. A tick is one substep, so every queue is
    recorded.
    """
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0)]
    ear = replace(STAR.transport, steps=1)
    sim = replace(STAR, tick_steps=1, interval_steps=1, transport=ear)
    heard = listen(sim, rows, 300, ecn=(50, 150, 0.5), share=0.75)
    mark = heard.of(0, "mark")
    queue = np.append(0.0, heard.queue[:, 0])
    middle = (queue[1:] + queue[:-1]) / 2
    ramp = np.where(middle > 150e3, 1.0, 0.5 * np.clip((middle - 50e3) / 100e3, 0, 1))
    lag, part = divmod(round_trip() - 0.5, 1.0)
    assert (mark[: int(lag) + 1] == 0).all()
    steps = np.arange(int(lag) + 1, len(mark))
    expected = (1 - part) * ramp[steps - int(lag)] + part * ramp[steps - int(lag) - 1]
    np.testing.assert_allclose(mark[steps], expected, atol=2e-5)
    assert (mark > 0.99).any()
    assert ((mark > 0.1) & (mark < 0.4)).any()
    assert (heard.of(0, "past_rate")[10:] == 0.75 * LINE).all()
