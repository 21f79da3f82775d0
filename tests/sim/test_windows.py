"""Windows: never more packets on the way than they cover, and as many as that if they limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ear import LINE, PACKET, STAR, listen, round_trip


def in_flight(heard, flow):
    """Packets begun by the end of each substep, less ACKs heard by the end of the one before."""
    begun = np.ceil(heard.cumulated(flow, "sent") / PACKET - 2e-3)
    return begun - np.append(0, heard.cumulated(flow, "acked")[:-1])


@pytest.mark.parametrize("window", [1.0, 999.0, 1000.0, 1010.0, 2500.0, 14_500.0, 60_000.0])
@pytest.mark.parametrize("delay_us", [1.0, 10.2])
def test_windows_are_kept(window, delay_us):
    """Never more packets on the way than the window covers; all of them if it limits."""
    delays = {"nic_delay": delay_us, "port_delay": delay_us}
    rows = [(1, 0, 10**7, 0.0), (2, 0, 10**7, 0.0), (3, 4, 77_777, 33.3)]
    heard = listen(STAR, rows, 100, net=delays, window=window)
    cap = math.ceil(window / 1000)
    for flow in range(3):
        assert in_flight(heard, flow).max() <= cap
    assert in_flight(heard, 0).max() == cap


@pytest.mark.parametrize("window", [1000.0, 7000.0, 20_000.0])
def test_a_window_is_sent_per_round_trip(window):
    """Throughput of a flow alone is its window per round trip (to a substep), or the line rate."""
    delays = {"nic_delay": 12.0, "port_delay": 12.0}
    heard = listen(STAR, [(1, 0, 10**7, 0.0)], 200, net=delays, window=window)
    acked = heard.cumulated(0, "acked")
    ends = np.searchsorted(acked, np.arange(1, 10) * window / 1000)
    np.testing.assert_allclose(np.diff(ends), round_trip(12.0), atol=1.0)


@pytest.mark.parametrize("window", [15_000.0, 40_000.0])
def test_windows_beyond_the_way_fill_the_queue(window):
    """N windows less the bytes in propagation; a packet counts when half of it has arrived."""
    rows = [(s, 0, 10**7, 0.0) for s in range(1, 5)]
    heard = listen(STAR, rows, 100, window=window)
    packets = 4 * (window / 1000 + 0.5)
    queue = heard.queue[50:, 0].mean()
    in_transit = (packets * PACKET - queue) / LINE
    assert in_transit == pytest.approx(round_trip(), abs=1.0)
