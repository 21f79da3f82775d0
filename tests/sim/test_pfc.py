"""Full buffers: PFC by hand; it pauses and drops nothing; without it drops are sent again."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from netcases import (
    SPINE,
    STAR,
    STAR_DROPS,
    alone_us,
    balance,
    imbalance,
    simulate,
    wire,
)

from ecn_marl.sim import Poisson, Simulator, leaf_spine
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.pfc import decide as thresholds

LINE = 3125.0
INCAST = [(s, 0, 1_000_000, 0.0) for s in range(1, 9)]
MIB = 2**20


def last_done():
    """When eight times 1 MB have left one port."""
    return alone_us(1000, [25]) - wire(1000) / LINE + 8 * wire(1_000_000) / LINE


def test_incast_into_a_small_buffer_pauses_and_drops_nothing():
    run = simulate(STAR, INCAST, 40, buffer=MIB)
    assert int(run.totals.pauses) >= 8
    assert run.dropped() == 0
    assert run.stats.queue_max.max() < MIB
    assert (np.asarray(run.stats.paused) == 0).all(), "only NICs are paused in a star"
    assert np.nanmax(run.fct) == pytest.approx(last_done(), rel=0.01)
    assert (run.stats.utilisation[1:25, 0] > 0.999).all(), "and the port never idles"


def test_pauses_keep_to_the_threshold():
    """Eight ingresses, T = (shared - used) / 8: they stand at half an eighth of the shared buffer.

    Ingress use u beyond the reserve, used 8 (u + reserve): u = (shared - 8 u - 8 reserve) / 8.
    """
    run = simulate(STAR, INCAST, 10, buffer=2 * MIB)
    net = run.params.net
    shared = 2 * MIB - float(np.sum(net.headroom[:9] + net.reserve))
    use = (shared - 8 * 4096) / 16
    queue = np.asarray(run.stats.queue_max)[3:10, 0]
    step = STAR.tick_us * LINE  # arrivals over a link until the next decision
    assert (queue > 8 * (use + 4096) - 8 * step).all()
    assert (queue < 8 * (use + 4096) + 8 * step).all()


def test_without_pfc_the_same_incast_drops_and_still_completes():
    run = simulate(STAR_DROPS, INCAST, 40, buffer=MIB)
    assert int(run.totals.pauses) == 0
    dropped = run.dropped()
    assert dropped > 100_000
    np.testing.assert_array_equal(run.totals.finished, [0, 8, 0])
    assert np.nanmax(run.fct) == pytest.approx(last_done(), rel=0.02)
    # What leaves makes room at once: the buffer is full, never more, and the port never idles.
    assert run.stats.queue_max.max() == pytest.approx(MIB, rel=1e-5)
    assert (run.stats.utilisation[1:25, 0] > 0.999).all()
    assert dropped < 7 * 8 * wire(1_000_000), "of eight bytes that arrive one has room"
    parts = balance(run.state)
    assert parts["offered"] == pytest.approx(8 * wire(1_000_000) + dropped, rel=1e-6)
    assert parts["delivered"] == pytest.approx(8 * wire(1_000_000), rel=1e-6)
    assert (parts["queued"], parts["waiting"]) == (0, 0)


def test_drops_are_in_the_balance_while_they_happen():
    run = simulate(STAR_DROPS, INCAST, 10, buffer=MIB / 4)
    parts = balance(run.state)
    assert all(value > 1000 for value in parts.values())
    error, offered = imbalance(run.state)
    assert abs(error) < 1e-6 * offered


def test_a_large_buffer_neither_pauses_nor_drops():
    for sim in (STAR, STAR_DROPS):
        run = simulate(sim, INCAST, 40, buffer=32 * MIB)
        assert int(run.totals.pauses) == 0
        assert run.dropped() == 0
        assert run.stats.queue_max.max() == pytest.approx(7 * wire(1_000_000), rel=0.02)


@pytest.fixture(scope="module")
def blocked():
    """Host 3 receives at 1 byte/µs; pauses spread from its leaf by both spines to the senders.

    The last flow is a mouse to another host; it has been sent when both spines stand still, and
    the senders not yet.
    """
    port_rate = np.array([125 * p.gbps for p in SPINE.topology.ports])
    port_rate[SPINE.topology.port_names.index("leaf1->host3")] = 1.0
    rows = [(src, 3, 10**7, 0.0) for src in (0, 1, 0, 1, 0, 1, 0, 1)] + [(0, 2, 3000, 80.0)]
    return simulate(SPINE, rows, 20, port_rate=port_rate, buffer=MIB)


@pytest.fixture(scope="module")
def recovered(blocked):
    """From 2 ms on host 3 takes all it gets."""
    rates = np.array(blocked.params.net.port_rate)
    rates[SPINE.topology.ports_of_kind("host")] = LINE
    net = replace(blocked.params.net, port_rate=rates)
    return replace(blocked, params=replace(blocked.params, net=net)).on(280)


def ports(*names):
    return [SPINE.topology.port_names.index(name) for name in names]


def test_a_pause_stops_the_port_upstream(blocked):
    stats = blocked.stats
    down = ports("spine0->leaf1", "spine1->leaf1")
    assert (np.asarray(stats.paused)[-10:, down] == 1).all()
    assert (np.asarray(stats.tx_bytes)[-10:, down] == 0).all()
    assert (np.asarray(stats.queue)[-1, down] > 1e5).all()
    free = ports("leaf1->host2", "leaf0->host0")
    assert (np.asarray(stats.paused)[:, free] == 0).all()


def test_pauses_spread_to_the_senders(blocked):
    stats = blocked.stats
    up = ports("leaf0->spine0", "leaf0->spine1")
    assert (np.asarray(stats.paused)[-1, up] == 1).all()
    nics = np.asarray(blocked.state.paused)[: SPINE.topology.n_hosts]
    np.testing.assert_array_equal(nics, [True, True, False, False])
    total = np.asarray(stats.queue).sum(1)
    assert total[-1] == pytest.approx(total[-5], rel=1e-3), "nothing moves any more"
    assert blocked.dropped() == 0


def test_resumed_ports_send_their_backlog(recovered):
    assert (np.asarray(recovered.state.flows.stage) == life.FREE).all()
    np.testing.assert_array_equal(recovered.totals.finished, [1, 0, 8])
    parts = balance(recovered.state)
    assert parts["delivered"] == pytest.approx(parts["offered"], rel=1e-6)
    assert not np.asarray(recovered.state.paused).any()


def test_a_last_byte_waits_out_the_pause(blocked, recovered):
    """Sent at 85 µs or so, held in a spine until 2 ms."""
    assert blocked.state.flows.stage[blocked.slot(8)] == life.DRAINING
    assert np.isnan(blocked.fct[8])
    assert 2000 - 80 < recovered.fct[8] < 2000 - 80 + 60


# --- thresholds -----------------------------------------------------------------------------------


def f32(values):
    return jnp.asarray(np.asarray(values, np.float32))


SHARED, RESERVE, GAP, HEADROOM = 1_000_000.0, 4096.0, 3072.0, 9375.0


def one_link(ingress, used, paused=False, alpha=0.125):
    """One link into one switch; returns (paused, headroom full, pauses started)."""
    links = jnp.array([0, 1], jnp.int32)  # the second leads into a host
    pause = thresholds(
        f32([ingress, 5e5]),
        f32([used]),
        jnp.array([paused, False]),
        links,
        f32([SHARED]),
        f32([alpha, alpha]),
        f32([HEADROOM, HEADROOM]),
        RESERVE,
        GAP,
    )
    assert not pause.paused[1], "links into hosts are never paused"
    assert not pause.full[1]
    return bool(pause.paused[0]), bool(pause.full[0]), int(pause.started)


@pytest.mark.parametrize(
    ("ingress", "used", "alpha", "paused", "want"),
    [
        # T = (1000000 - 200000) / 8 = 100000, so at 104096 with the reserve.
        (104_095, 200_000, 1 / 8, False, (False, False, 0)),
        (104_096, 200_000, 1 / 8, False, (True, False, 1)),
        (104_096, 200_000, 1 / 8, True, (True, False, 0)),
        # Resumed 3072 B below, at 101024; in between it stays as it is.
        (101_025, 200_000, 1 / 8, True, (True, False, 0)),
        (101_024, 200_000, 1 / 8, True, (False, False, 0)),
        (102_000, 200_000, 1 / 8, False, (False, False, 0)),
        # Headroom 9375 B: full beyond 104096 + 9375.
        (113_471, 200_000, 1 / 8, True, (True, False, 0)),
        (113_472, 200_000, 1 / 8, True, (True, True, 0)),
        # A 100 Gb/s link beside 25 Gb/s ones may take half: T = 400000.
        (404_095, 200_000, 1 / 2, False, (False, False, 0)),
        (404_096, 200_000, 1 / 2, False, (True, False, 1)),
        # The threshold falls as the switch fills; with no free buffer all use beyond the reserve
        # is too much, and none at all is not.
        (54_096, 600_000, 1 / 8, False, (True, False, 1)),
        (4_097, 1_200_000, 1 / 8, False, (True, False, 1)),
        (4_096, 1_200_000, 1 / 8, False, (False, False, 0)),
    ],
)
def test_pfc_thresholds(ingress, used, alpha, paused, want):
    assert one_link(ingress, used, paused, alpha) == want


def test_default_pfc_is_the_switch_rule():
    """Alpha 1/8 at NIC speed, doubled per doubling of the rate; headroom and reserve by hand."""
    sim = Simulator(leaf_spine(2, 2, 2), (Poisson(),), dt_us=1.0, tick_steps=5)
    net = sim.default_params().net
    rate = np.concatenate([net.nic_rate, net.port_rate])
    np.testing.assert_array_equal(np.unique(rate), [3125, 12500])
    np.testing.assert_allclose(net.pfc_alpha, np.where(rate == 3125, 1 / 8, 1 / 2))
    # Three delays of 1 µs at line rate.
    np.testing.assert_allclose(net.headroom, np.where(rate == 3125, 9_375, 37_500))
    assert (float(net.reserve), float(net.resume_gap)) == (4096, 3072)
    np.testing.assert_allclose(net.buffer, 32 * 2**20)
    # Uplinks slower than the NICs: it is the NICs that have 1/8, not the slowest links.
    slow = Simulator(leaf_spine(2, 2, 2, uplink_gbps=5.0), (Poisson(),)).default_params().net
    np.testing.assert_array_equal(slow.pfc_alpha, 1 / 8)
