"""Links that fail and are repaired, links of different rates, feedback that jitters."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from netcases import (
    OFF,
    ROWS,
    Run,
    alone_us,
    balance,
    flow_list,
    imbalance,
    network,
    simulate,
    start,
    wire,
)
from tiers import tiers

from ecn_marl.sim import (
    Link,
    Schedule,
    Simulator,
    from_links,
    leaf_spine,
    scaled_ecn,
    schedule,
    star,
)
from ecn_marl.sim.core import lifecycle as life
from ecn_marl.sim.core.failures import NEVER, fail_links, links_up
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.core.tick import prepare
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.traffic.base import Offer
from ecn_marl.sim.transports import RateAgent

LINE = 3125.0
"""25 Gb/s in bytes/µs."""

FOUR = network(leaf_spine(2, 4, 4, uplink_gbps=25.0), failures=True)
"""Two leaves of four hosts, four spines, all links at 25 Gb/s: no queue between the leaves unless
flows share a path."""

TWO = network(leaf_spine(2, 2, 2), failures=True)
WITH_SPINES = {2: TWO, 4: FOUR}
SPINES = pytest.mark.parametrize("n_spines", tiers(WITH_SPINES, 4))


def number(sim, *names):
    """Port numbers of `switch->peer`."""
    return [sim.topology.port_names.index(name) for name in names]


def down(params, ports, at_us, repair_us=None):
    """Parameters under which some ports fail and are repaired (`dt` is 1 µs)."""
    fail, repair = (np.array(x) for x in (params.net.fail_step, params.net.repair_step))
    fail[ports] = at_us
    repair[ports] = NEVER if repair_us is None else repair_us
    return replace(params, net=replace(params.net, fail_step=fail, repair_step=repair))


def run(sim, rows, intervals, spines=None, broken=(), at_us=0, repair_us=None, **changes):
    """Run a flow list, some ports failing; `spines` are the first flows' paths."""
    columns = flow_list(rows)
    path = np.full(ROWS, -1)
    path[: len(spines or ())] = spines or ()
    traffic = (schedule(columns | {"spine_data": path}, 1.0),)
    params = down(sim.default_params(traffic=traffic), list(broken), at_us, repair_us)
    params = replace(params, net=replace(params.net, **changes))
    state = start(sim)(jax.random.key(0), params)
    return Run(sim, state, params, scaled_ecn(params.net, *OFF)).on(intervals)


def uplinks(state, n=None):
    """Queue of every slot at the first level; leaf 0 has the first ones."""
    return np.asarray(state.flows.hop)[0][:n]


BIG = 20_000_000
ACROSS = [(h, 4 + h, BIG, 0.0) for h in range(4)]
"""One elephant per host of leaf 0."""

# --- dead links -----------------------------------------------------------------------------------


def test_nothing_crosses_a_dead_link():
    """Two uplinks of leaf 0 fail from 0.5 to 1.5 ms; two flows leave them for the other two."""
    dead = number(FOUR, "leaf0->spine1", "leaf0->spine3")
    living = number(FOUR, "leaf0->spine0", "leaf0->spine2")
    r = run(FOUR, ACROSS, 20, [0, 1, 2, 3], dead, 500, 1500)
    sent = np.asarray(r.stats.tx_bytes)
    np.testing.assert_allclose(sent[1:5, dead + living], 100 * LINE, rtol=1e-4)
    assert (sent[5:15, dead] == 0).all()
    # All that the leaf can send is what is left of its uplinks.
    np.testing.assert_allclose(sent[5:15, living], 100 * LINE, rtol=1e-4)
    hosts = number(FOUR, *(f"leaf1->host{h}" for h in range(4, 8)))
    assert sent[6:15, hosts].sum() == pytest.approx(9 * 100 * 2 * LINE, rel=1e-3)
    assert set(uplinks(r.state, 4)) <= {0, 2}, "flows stay where they are after the repair"


def test_flows_on_living_paths_stay():
    before = run(FOUR, ACROSS, 10, [0, 1, 2, 3])
    dead = number(FOUR, "leaf0->spine1")
    after = run(FOUR, ACROSS, 10, [0, 1, 2, 3], dead, 500)
    old, new = uplinks(before.state, 4), uplinks(after.state, 4)
    np.testing.assert_array_equal(old, [0, 1, 2, 3])
    np.testing.assert_array_equal(new[[0, 2, 3]], [0, 2, 3])
    assert new[1] != 1


@SPINES
def test_new_flows_avoid_dead_links_and_use_repaired_ones(n_spines):
    """The given path is taken if it works."""
    sim = WITH_SPINES[n_spines]
    far_host = n_spines
    rows = [(0, far_host, 1000, 100.0 + i) for i in range(10)]
    rows += [(0, far_host, 1000, 900.0 + i) for i in range(10)]
    dead = number(sim, "leaf0->spine1")
    r = run(sim, rows, 20, [1] * 20, dead, 0, 500)
    crossed = np.asarray(r.stats.tx_bytes)[
        :, number(sim, *(f"leaf0->spine{s}" for s in range(n_spines)))
    ]
    assert (crossed[:5, 1] == 0).all()
    assert crossed[:5].sum() == pytest.approx(10 * 1048)
    assert crossed[5:, 1].sum() == pytest.approx(10 * 1048)
    np.testing.assert_array_equal(r.totals.finished, [20, 0, 0])


def test_a_new_hash_spreads_evenly_over_living_paths():
    """3000 flows, two of four spines: half each, ways there and back independent."""
    n, net = 3000, FOUR.default_params(traffic=(None,)).net
    net = jax.tree.map(jnp.asarray, net)
    dead = number(FOUR, "leaf0->spine1", "spine2->leaf1", "leaf1->spine0")
    up = jnp.ones(FOUR.topology.n_ports, bool).at[np.array(dead)].set(False)
    zero, none = jnp.zeros(n), jnp.full(n, -1, jnp.int32)
    offer = Offer(
        start=zero,
        src=jnp.zeros(n, jnp.int32),
        dst=jnp.full(n, 5, jnp.int32),
        payload=zero + 1000,
        wire_high=none + 1,
        wire_low=zero + 1048,
        path=none,
        path_back=none,
        flow_id=none,
        valid=zero == 0,
    )
    bits = jax.random.bits(jax.random.key(2), (n,), jnp.uint32)
    paths = jax.jit(find_paths)(net, offer, bits, up)
    names = np.array([*FOUR.topology.port_names, "none"])
    forth, back = names[np.asarray(paths.forward)[:, 0]], names[np.asarray(paths.back)[:, 0]]
    for way, allowed in ((forth, (0, 3)), (back, (1, 2, 3))):
        spines, counts = np.unique([w[-1] for w in way], return_counts=True)
        assert spines.tolist() == [str(a) for a in allowed]
        deviation = np.sqrt(n / len(allowed))
        np.testing.assert_allclose(counts, n / len(allowed), atol=4 * deviation)
    share = np.mean((forth == "leaf0->spine3") & (back == "leaf1->spine3"))
    assert share == pytest.approx(1 / 6, abs=4 * np.sqrt(5 / 36 / n))


# --- bytes in flight ------------------------------------------------------------------------------


def test_bytes_in_flight_are_lost_and_sent_again():
    """Two hosts on one uplink queue 3125 B every µs; at 300 µs it fails."""
    size = 2_000_000
    rows = [(0, 4, size, 0.0), (1, 5, size, 0.0)]
    dead = number(FOUR, "leaf0->spine0")
    r = run(FOUR, rows, 10, [0, 0], dead, 300)
    assert r.dropped() == pytest.approx(300 * LINE, rel=1e-3)
    parts = balance(r.state)
    assert parts["offered"] == pytest.approx(2 * wire(size) + r.dropped(), rel=1e-7)
    assert abs(imbalance(r.state)[0]) <= 1e-6 * parts["offered"]
    done = r.on(20)
    parts = balance(done.state)
    np.testing.assert_array_equal(done.totals.finished, [0, 0, 2])
    assert parts["delivered"] == pytest.approx(2 * wire(size), rel=1e-6)
    assert (parts["queued"], parts["waiting"]) == (0, 0)
    # Half of each was sent in 300 µs, and half of that lost. What is left goes over one path, or
    # two: the later one ends when all is through.
    left = 2 * wire(size) - 300 * LINE
    same = len(set(uplinks(r.state, 2))) == 1
    last = 300 + left / LINE / (1 if same else 2)
    tail = alone_us(1000, [25] * 3) - wire(1000) / LINE
    assert np.nanmax(done.fct) == pytest.approx(last + tail, rel=0.01)


@SPINES
def test_a_flow_without_a_path_waits_for_a_repair(n_spines):
    """All uplinks down for 700 µs: it ends that much later; flows within a leaf do not."""
    sim = WITH_SPINES[n_spines]
    size, last_host = 1_000_000, sim.topology.n_hosts - 1
    rows = [(0, last_host, size, 0.0), (1, 0, 10_000, 400.0), (1, last_host, 1000, 500.0)]
    ups = sim.topology.ports_of_kind("leaf-up")
    intact = run(sim, rows, 20)
    r = run(sim, rows, 20, None, ups, 200, 900)
    np.testing.assert_allclose(r.fct[0] - intact.fct[0], 700, atol=sim.tick_us)
    assert r.fct[1] == pytest.approx(intact.fct[1], rel=1e-5)
    # It came while there was no path: from its start on.
    assert r.fct[2] - intact.fct[2] == pytest.approx(400, abs=2 * sim.tick_us)
    assert r.dropped() == 0


@pytest.mark.parametrize("spine", [1, 2])
def test_a_failed_way_of_acks_loses_no_data(spine):
    """Links back fail: nothing is lost, and data stay in the queues where they were."""
    back = number(FOUR, "leaf1->spine0", "leaf1->spine1", "leaf1->spine2")
    # Two on one uplink: a queue grows there, which must not follow a flow to another port.
    rows, spines = ACROSS[:3], [spine, spine, 3]
    before, after = (run(FOUR, rows, 4, spines, dead, 300) for dead in ((), back))
    assert after.dropped() == 0
    np.testing.assert_array_equal(uplinks(after.state, 3), spines)
    ways = np.asarray(after.state.flows.back)[:, [after.slot(i) for i in range(3)]]
    assert (ways == number(FOUR, "leaf1->spine3")[0]).any(0).all()
    queues = (np.asarray(r.state.flows.backlog).sum(1) for r in (before, after))
    np.testing.assert_allclose(*queues, rtol=1e-6)


def test_a_failed_way_of_data_leaves_the_acks():
    dead = number(FOUR, "leaf0->spine1")
    before, after = (run(FOUR, ACROSS, 4, [0, 1, 2, 3], x, 300) for x in ((), dead))
    slots = [after.slot(i) for i in range(4)]
    ways = (np.asarray(r.state.flows.back)[:, slots] for r in (before, after))
    np.testing.assert_array_equal(*ways)


def test_a_last_byte_in_a_dead_queue_is_sent_again():
    """Sent at 168 µs, behind 500 KB at a slow uplink, lost at 200 µs."""
    rates = np.array([125 * p.gbps for p in FOUR.topology.ports], np.float32)
    dead = number(FOUR, "leaf0->spine0")
    rates[dead] = 312.5
    r = run(FOUR, [(0, 4, 500_000, 0.0)], 10, [0], dead, 200, port_rate=rates)
    lost = wire(500_000) - 200 * 312.5
    assert r.dropped() == pytest.approx(lost, rel=1e-3)
    tail = alone_us(1000, [25] * 3) - wire(1000) / LINE
    assert r.fct[0] == pytest.approx(200 + lost / LINE + tail, abs=FOUR.tick_us)


def test_links_that_hold_change_nothing():
    """Failures allowed, none happens: the same bits."""
    rows = [(h % 2, 4, 150_000, 3.3 * h) for h in range(8)]
    never = replace(FOUR, failures=False)
    a, b = (simulate(x, rows, 10, ecn=(5, 50, 0.2)) for x in (never, FOUR))
    assert np.asarray(a.stats.marked_bytes).sum() > 0
    for x, y in zip(
        jax.tree.leaves((a.state, a.stats)), jax.tree.leaves((b.state, b.stats)), strict=True
    ):
        np.testing.assert_array_equal(x, y)


# --- fail_links -----------------------------------------------------------------------------------


@given(
    st.floats(0.01, 1.0),
    st.integers(0, 10**6),
    st.integers(0, 5000),
    st.one_of(st.none(), st.integers(5001, 9000)),
)
def test_fail_links_takes_whole_links(share, seed, at, repair):
    """Both directions of `round(share * links)` links between switches, at least one."""
    topology, dt = FOUR.topology, 0.5
    params = FOUR.default_params(traffic=(None,))
    failed = fail_links(
        params,
        topology,
        dt,
        share=share,
        at_us=at * dt,
        repair_us=repair and repair * dt,
        seed=seed,
    )
    fails = np.asarray(failed.net.fail_step) != NEVER
    broken = {(p.switch, p.peer) for p, f in zip(topology.ports, fails, strict=True) if f}
    assert len(broken) == 2 * max(1, round(share * 8))
    assert broken == {ends[::-1] for ends in broken}
    assert all(p.kind != "host" for p, f in zip(topology.ports, fails, strict=True) if f)
    assert (np.asarray(failed.net.fail_step)[fails] == at).all()
    assert (np.asarray(failed.net.repair_step)[fails] == (repair or NEVER)).all()
    for step in (at - 1, at, (repair or NEVER) - 1, repair or NEVER):
        up = np.asarray(links_up(failed.net, jnp.int32(step)))
        assert up[~fails].all()
        assert (up[fails] == (not at <= step < (repair or NEVER))).all()
    again = fail_links(params, topology, dt, share=share, at_us=at * dt, seed=seed)
    np.testing.assert_array_equal(again.net.fail_step, failed.net.fail_step)


def test_other_seeds_fail_other_links():
    params = FOUR.default_params(traffic=(None,))
    steps = {
        tuple(fail_links(params, FOUR.topology, 1.0, share=0.5, at_us=7.0, seed=s).net.fail_step)
        for s in range(20)
    }
    assert len(steps) > 10


@pytest.mark.parametrize(
    ("topology", "options", "message"),
    [
        (FOUR.topology, {"share": 0.0, "at_us": 0}, r"share = 0.0 .* > 0 and <= 1"),
        (FOUR.topology, {"share": 1.1, "at_us": 0}, "share = 1.1 is not allowed"),
        (FOUR.topology, {"share": 0.5, "at_us": -1.0}, "at_us"),
        (FOUR.topology, {"share": 0.5, "at_us": 5.0, "repair_us": 5.0}, "0 <= at_us < repair_us"),
        (FOUR.topology, {"share": 0.5, "at_us": 5.1, "repair_us": 5.4}, "nothing would fail"),
        (star(3), {"share": 0.5, "at_us": 5.0}, "a network with links between switches"),
    ],
)
def test_bad_failures(topology, options, message):
    sim = replace(FOUR, topology=topology)
    with pytest.raises(ValueError, match=message):
        fail_links(sim.default_params(traffic=(None,)), topology, 1.0, **options)


def test_links_cannot_fail_where_failures_are_not_simulated():
    sim = replace(FOUR, failures=False)
    with pytest.raises(ValueError, match="failures = False is not allowed: expected True"):
        fail_links(sim.default_params(traffic=(None,)), FOUR.topology, 1.0, share=0.5, at_us=5.0)


# --- links of different rates ---------------------------------------------------------------------

RATES = {"a": 10.0, "b": 40.0, "c": 100.0, "d": 2.5}
CHAIN = network(
    from_links(
        "chain",
        list(RATES),
        ["s0", "s1", "s2"],
        [
            Link("a", "s0", 10.0, 0.5),
            Link("b", "s0", 40.0, 0.5),
            Link("s0", "s1", 25.0, 0.5),
            Link("c", "s1", 100.0, 0.5),
            Link("s1", "s2", 5.0, 0.5),
            Link("d", "s2", 2.5, 0.5),
        ],
    )
)


@pytest.mark.parametrize(
    ("src", "dst", "hops"),
    [
        ("a", "b", [40]),
        ("a", "c", [25, 100]),
        ("b", "c", [25, 100]),
        ("b", "d", [25, 5, 2.5]),
        ("c", "d", [5, 2.5]),
        ("c", "a", [25, 10]),
        ("d", "b", [5, 25, 40]),
    ],
)
def test_the_slowest_link_decides(src, dst, hops):
    """Every pair has another bottleneck, before, between or behind faster links."""
    index = list(RATES).index
    rows = [
        (index(src), index(dst), size, 3000.0 * i + 0.3) for i, size in enumerate((1000, 300_000))
    ]
    r = simulate(CHAIN, rows, 50)
    for got, (_, _, size, _) in zip(r.fct, rows, strict=False):
        want = alone_us(size, hops, RATES[src], 0.5)
        assert got == pytest.approx(want, abs=1.0 + 1048 / 125 * (1 / 2.5 if dst == "d" else 0))


# --- jitter ---------------------------------------------------------------------------------------

JITTER = 8.0
AGENTS = Simulator(
    star(9),
    (Schedule(1.0, ROWS),),
    RateAgent.of("line-rate"),
    slots=16,
    scheduled=ROWS,
    jitter_us=JITTER,
)


def delays(jitter, seed, ticks=400):
    """Feedback delays of a flow alone, tick after tick, substeps."""
    sim = replace(AGENTS, jitter_us=jitter)
    params = sim.default_params(traffic=(schedule(flow_list([(1, 0, BIG, 0.0)]), 1.0),))
    state = jax.jit(sim.init)(jax.random.key(seed), params)
    flows = replace(state.flows, stage=jnp.full(16, life.SENDING), rtt=jnp.full(16, 20.5))
    params, ecn = jax.tree.map(jnp.asarray, params), scaled_ecn(params.net, *OFF)

    def delay_at(step):
        tick, _ = prepare(sim, replace(state, step=step, flows=flows), params, ecn)
        return tick.line.delay

    return np.asarray(jax.jit(jax.vmap(delay_at))(5 * jnp.arange(ticks)))


def test_feedback_jitters():
    """Uniform over 0 to 8 µs on top of 20.5: mean 24, deviation 2.3 (delays are whole substeps)."""
    still, moved = delays(0.0, 0), delays(JITTER, 0)
    assert (still == 20).all()
    assert moved.min() >= 20
    assert moved.max() <= 28
    n = moved.size
    assert moved.mean() == pytest.approx(24, abs=4 * np.sqrt((64 + 1) / 12 / n))
    assert moved.std() == pytest.approx(np.sqrt((64 + 1) / 12), rel=0.05)
    # Drawn anew for every flow and tick, from the seed.
    assert abs(np.corrcoef(moved[1:].ravel(), moved[:-1].ravel())[0, 1]) < 0.06
    assert abs(np.corrcoef(moved[:, 1], moved[:, 2])[0, 1]) < 0.2
    np.testing.assert_array_equal(moved, delays(JITTER, 0))
    assert (moved != delays(JITTER, 1)).mean() > 0.5


def test_probes_feel_the_jitter():
    """A flow alone at line rate: its RTT is that of empty queues and 0 to 8 µs."""
    rows = [(1, 0, BIG, 0.0), (2, 3, BIG, 0.0), (4, 5, BIG, 0.0)]
    r, extras = simulate(AGENTS, rows, 10), []
    for _ in range(12):
        r = r.on(10)
        extra = np.asarray((r.state.flows.transport.inflation - 1) * r.state.flows.rtt)
        extras.append(extra[[r.slot(i) for i in range(3)]])
    extras = np.array(extras)
    assert (extras >= -1e-3).all()
    assert (extras <= JITTER + 1e-3).all()
    assert extras.mean() == pytest.approx(JITTER / 2, abs=4 * JITTER / np.sqrt(12 * extras.size))
    again = simulate(AGENTS, rows, 130)
    last = np.asarray((again.state.flows.transport.inflation - 1) * again.state.flows.rtt)
    np.testing.assert_array_equal(extras[-1], last[[again.slot(i) for i in range(3)]])
    assert counter_bytes(again.totals.late_feedback) == 0
