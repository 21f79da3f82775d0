"""Probes: round trip times against propagation and the queues of the moment."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ear import LINE, PACKET, STAR, listen, round_trip
from netcases import wire

from ecn_marl.sim import feedback as fb
from ecn_marl.sim.core import lifecycle as life


@pytest.mark.parametrize(("delay_us", "share"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.02), (31.7, 0.4)])
def test_probes_time_an_empty_network(delay_us, share):
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    heard = listen(STAR, [(1, 0, 10**7, 1.2)], 100, net=delays, share=share)
    base = round_trip(delay_us)
    rtt = heard.of(0, "rtt")
    back = np.flatnonzero(heard.of(0, "returned"))
    np.testing.assert_allclose(rtt[back], base, rtol=1e-5)
    np.testing.assert_allclose(heard.of(0, "base_rtt")[50:], base, rtol=1e-5)
    # The next probe is the first packet to leave after the last one is back.
    spacing = PACKET / (share * LINE)
    cycle = max(math.ceil(base / spacing) * spacing, 1.0)
    assert np.diff(back).mean() == pytest.approx(cycle, rel=0.02)
    # It is sent in the second substep, and noticed in the third at the earliest.
    assert back[0] + 1 == pytest.approx(max(1.2 + base, 3.0), abs=1)


def test_probes_wait_in_standing_queues():
    """209 KB of a flow that is over stand before one at line rate, for as long as it lasts."""
    heard = listen(STAR, [(2, 0, 200_000, 0.0), (1, 0, 10**7, 0.0)], 200)
    queue = heard.queue[30:, 0]
    assert queue.min() == pytest.approx(wire(200_000), rel=0.01)
    back = heard.of(1, "returned")[400:] > 0
    assert back.sum() >= 6
    rtt = heard.of(1, "rtt")[400:][back]
    np.testing.assert_allclose(rtt, round_trip() + queue.mean() / LINE, rtol=1e-3)


def test_probes_find_the_queues_of_the_moment_they_leave():
    """Queues that grow and drain, on both ways: RTT = base + what waits when it is sent."""
    rows = [(1, 0, 10**7, 0.0), (2, 0, 150_000, 20.0), (3, 0, 250_000, 60.0)]
    rows += [(4, 1, 200_000, 90.0), (5, 1, 200_000, 95.0)]
    heard = listen(STAR, rows, 200, share=0.7)
    rtt, back = heard.of(0, "rtt"), np.flatnonzero(heard.of(0, "returned"))
    assert len(back) > 15
    times = np.arange(1001)
    tick_ends = np.append(0, np.arange(4, 1000, 5) + 1)
    ahead, behind = (np.interp(times, tick_ends, np.append(0, heard.queue[:, p])) for p in (0, 1))
    sent = back + 0.5 - rtt[back]
    want = round_trip() + (np.interp(sent, times, ahead) + np.interp(sent, times, behind)) / LINE
    # A substep of the time it left, and a tick of the queue on the way back.
    assert np.abs(rtt[back] - want).max() < 6
    assert np.abs(rtt[back] - want).mean() < 1.5
    assert rtt.max() > 60


def test_pauses_are_in_the_round_trip_time():
    """A probe held up by a pause comes back later, with a longer RTT."""
    zero, n = jnp.zeros(1), 1
    flows = life.empty_flows(n, 1, 1, None, jnp.float32)
    flows = replace(flows, stage=jnp.ones(n, jnp.int32), rtt=zero + 5.25)
    observed = fb.Observed(
        flows, zero + 500, zero + 500, zero, zero, zero, zero, zero, zero, zero > -1
    )
    needs = frozenset((fb.PROBE,))
    hear = jax.jit(fb.listen, static_argnums=(4, 5))

    def returns(pause_steps):
        echo = fb.restart(
            fb.empty_echo(needs, n, 1, 1, jnp.float32), zero == 0, jnp.float32(PACKET)
        )
        returned = []
        for step in range(40):
            stalled = jnp.full(n, 2 <= step < 2 + pause_steps)
            zeros = jnp.zeros(n, jnp.int32)
            rate = zero[None] + LINE
            line = fb.Line(zeros, zeros, zero, stalled, zeros[None], rate, jnp.float32(PACKET))
            echo, _, heard = hear(echo, observed, line, jnp.int32(step), needs, 1.0)
            if heard.returned[0]:
                returned.append((step, float(heard.rtt[0])))
        return returned

    assert returns(0)[0] == (5, 5.25)
    assert returns(11)[0] == (16, 16.25)
    assert returns(11)[1][1] == 5.25


def test_first_round_trips_of_flows_that_start_together_differ():
    """N first packets reach a port at once: their RTTs differ by whole packets, up to N - 1."""
    rows = [(s, 0, 5_000, 0.0) for s in range(1, 9)]
    waits = []
    for seed in range(4):
        heard = listen(STAR, rows, 100, seed=seed, share=0.1)
        first = [heard.of(f, "rtt")[np.flatnonzero(heard.of(f, "returned"))[0]] for f in range(8)]
        waits += [(x - round_trip()) * LINE / PACKET for x in first]
    np.testing.assert_allclose(waits, np.round(waits), atol=0.02)
    assert min(waits) >= -0.02
    assert max(waits) <= 7.02
    assert len(set(np.round(waits))) >= 5
