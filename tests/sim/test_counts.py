"""What ports count of their flows, against a recount of the flow list from outside."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import (
    ROWS,
    alone_us,
    class_rounding,
    rounding,
    wire,
    with_net,
)
from roundoff import U
from tiers import tiers

from ecn_marl.sim import Dcqcn, Schedule, Simulator, leaf_spine, scaled_ecn, schedule, star
from ecn_marl.sim.config import counters
from ecn_marl.sim.core.lifecycle import FREE
from ecn_marl.sim.core.stats import from_info, idle, merge, summarise, to_info
from ecn_marl.sim.metrics import counter_bytes
from ecn_marl.sim.state import COUNTS
from ecn_marl.sim.traffic.sizes import CHUNK

US = 100
"""Length of an interval, µs."""

INTERVALS = 12


def network(topology: Any, **options: Any) -> Simulator:
    """A network of a flow list, whose ports count everything."""
    options = {"slots": 24, "counts": COUNTS, "ack_priority": True} | options
    return Simulator(
        topology,
        (Schedule(1.0, ROWS),),
        Dcqcn.of("hpcc-paper"),
        scheduled=ROWS,
        **options,
    )


NETWORKS = {
    "few slots": network(star(5), slots=6),
    "two levels": network(leaf_spine(2, 2, 2), pfc=False),
    "star": network(star(5)),
}


@cache
def compiled(sim: Simulator) -> tuple[Any, ...]:
    """`init`, `collect` and `summarise`, made once."""
    quick = {"xla_backend_optimization_level": 0}
    functions = (sim.init, sim.collect, partial(summarise, sim))
    return tuple(jax.jit(f, compiler_options=quick) for f in functions)


def on_paths(sim: Simulator, rows: list[tuple[int, int, int, float, int]]) -> Any:
    """The rows, on a path that their hosts have."""
    n, edge = sim.topology.n_paths, sim.topology.edge
    return [(*row[:4], min(row[4], int(n[edge[row[0]], edge[row[1]]]) - 1)) for row in rows]


def columns(rows: list[tuple[int, int, int, float, int]]) -> dict[str, np.ndarray]:
    """A flow list (source, destination, bytes, start in µs, path), sorted and filled up."""
    rows = sorted(rows, key=lambda row: row[3])
    rows = [*rows, *[(1, 0, 1, 2e9, 0)] * (ROWS - len(rows))]
    src, dst, size, begin, path = (np.array(x) for x in zip(*rows, strict=True))
    return {
        "src": src,
        "dst": dst,
        "size_B": size,
        "start_ns": begin * 1e3,
        "spine_data": path,
        "spine_ack": path,
    }


def params_of(sim: Simulator, flows: dict[str, np.ndarray]) -> Any:
    """Parameters of a flow list, without ACKs in the queues."""
    params = sim.default_params(traffic=(schedule(flows, sim.dt_us),))
    return replace(params, net=replace(params.net, ack_bytes=np.float32(0)))


def play(sim: Simulator, flows: dict[str, np.ndarray], ecn: Any = (20, 80, 0.2)) -> Any:
    """States at the interval's ends, and statistics, one interval after the other."""
    params = params_of(sim, flows)
    init, collect, summary = compiled(sim)
    state = init(jax.random.key(0), params)
    states, stats = [state], []
    for _ in range(INTERVALS):
        state, sums = collect(state, params, scaled_ecn(params.net, *ecn))
        states.append(state)
        stats.append(summary(state, params, sums))
    return jax.device_get(states), jax.tree.map(lambda *x: np.stack(x), *stats), params


def crossed(sim: Simulator, flows: dict[str, np.ndarray]) -> np.ndarray:
    """Which ports each flow crosses, from the topology's routes, `[N, P]`."""
    t = sim.topology
    ends = zip(flows["src"], flows["dst"], flows["spine_data"], strict=True)
    paths = ((t.paths(src, dst), spine) for src, dst, spine in ends)
    hops = np.stack([candidates[min(spine, len(candidates) - 1)] for candidates, spine in paths])
    return np.stack([(hops == port).any(1) for port in range(t.n_ports)], 1)


def through(sim: Simulator, flows: dict[str, np.ndarray], log: np.ndarray) -> np.ndarray:
    """When each flow's last byte left its last port, µs: its last ACK came a way back later."""
    ports = crossed(sim, flows)
    rates = np.array([p.gbps for p in sim.topology.ports])
    after = []
    for size, row in zip(flows["size_B"], ports, strict=True):
        hops = list(rates[row])
        slowest = min([25.0, *hops]) * 125.0
        # Without ACK bytes: take their serialisation out again.
        ack = 60 / 3125 + sum(60 / (125 * r) for r in hops)
        after.append(alone_us(int(size), hops) - wire(int(size)) / slowest - ack)
    done = flows["start_ns"] / 1e3 + log - np.array(after)
    return np.where(np.isnan(log), np.inf, done)


def sent_so_far(flows: dict[str, np.ndarray], state: Any) -> np.ndarray:
    """Payload bytes that the flows of the list have sent; those in no slot: all or nothing."""
    slots, size = state.flows, flows["size_B"]
    sent = np.where(np.isnan(state.fct_log), 0.0, size)
    for slot in np.flatnonzero(slots.stage != FREE):
        flow = slots.flow_id[slot]
        unsent = float(slots.rest_high[slot]) * CHUNK + float(slots.rest_low[slot])
        sent[flow] = size[flow] * (1 - unsent / wire(int(size[flow])))
    return sent


sizes = st.one_of(
    st.integers(1, 3000), st.integers(20_000, 300_000), st.integers(900_000, 1_600_000)
)
flow_lists = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(1, 3), sizes, st.floats(0, 1100), st.integers(0, 1)
    ).map(lambda r: (r[0], (r[0] + r[1]) % 4, r[2], round(r[3], 2), r[4])),
    min_size=1,
    max_size=ROWS,
)


@pytest.mark.parametrize("name", tiers(("star", "two levels"), "two levels"))
@settings(max_examples=8)
@given(rows=flow_lists)
def test_counts_are_those_of_a_recount(name: str, rows: Any) -> None:
    """Begun, seen, senders, mice and elephants of every port and interval."""
    sim = NETWORKS[name]
    flows = columns(on_paths(sim, rows))
    states, stats, _ = play(sim, flows)
    assert int(states[-1].totals.deferred) == 0
    begin = flows["start_ns"] / 1e3
    ports, end = crossed(sim, flows), through(sim, flows, states[-1].fct_log)
    for i in range(INTERVALS):
        low, high = US * i, US * (i + 1)
        # Float32 cannot tell on which side those are: waits of up to 500 us are counted down
        # substep by substep, each time rounded by u of it, and 1.6 MB by 3 u.
        sent = sent_so_far(flows, states[i + 1])
        sure = (np.abs(end - low) > 500**2 * U) & (np.abs(sent - 1e6) > 5e6 * U)
        begun = (begin >= low) & (begin < high)
        seen = begun | ((begin < low) & (end > low))
        big = seen & (sent > 1e6)
        np.testing.assert_array_equal(stats.flows_begun[i], ports[begun].sum(0))
        if not sure.all():
            continue
        np.testing.assert_array_equal(stats.flows_seen[i], ports[seen].sum(0))
        np.testing.assert_array_equal(stats.n_elephants[i], ports[big].sum(0))
        np.testing.assert_array_equal(stats.n_mice[i], ports[seen & ~big].sum(0))
        sources = [len(set(flows["src"][seen & ports[:, p]])) for p in range(ports.shape[1])]
        np.testing.assert_array_equal(stats.n_senders[i], sources)


@pytest.mark.parametrize("name", tiers(NETWORKS, "few slots"))
@settings(max_examples=8)
@given(rows=flow_lists)
def test_flows_begin_once_and_bytes_add_up(name: str, rows: Any) -> None:
    """Also where flows wait for a slot: what begins and what is sent is what was admitted."""
    sim = NETWORKS[name]
    flows = columns(on_paths(sim, rows))
    states, stats, _ = play(sim, flows)
    last = states[-1]
    admitted = np.arange(ROWS) < int(last.totals.started)
    np.testing.assert_array_equal(stats.flows_begun.sum(0), crossed(sim, flows)[admitted].sum(0))
    assert (stats.flows_begun <= stats.flows_seen).all()
    assert (stats.n_senders <= stats.flows_seen).all()
    np.testing.assert_array_equal(stats.n_mice + stats.n_elephants, stats.flows_seen)
    # Without ACKs all bytes are data. Those of finished flows that still stand in a queue were
    # counted when the flow ended.
    pool = np.asarray(last.pool[1], float)
    by_class = stats.class_bytes.sum((0, 2), dtype=float)
    sent = stats.tx_bytes.sum(0, dtype=float)
    queue_sum = stats.queue_mean.sum(dtype=float) * sim.interval_steps
    near = class_rounding(sim, queue_sum, sent)
    assert (np.abs(by_class - sent - pool) <= near).all()
    hosts = [i for i, p in enumerate(sim.topology.ports) if p.kind == "host"]
    delivered = float(counter_bytes(last.totals.delivered)) + pool[hosts].sum()
    assert abs(by_class[hosts].sum() - delivered) <= near[hosts].sum() + rounding(
        sim, last, queue_sum, sent.sum()
    )


def test_a_flow_that_waits_for_a_slot_begins_when_it_gets_one() -> None:
    """Six slots, eight flows at once: two begin with the first that ends."""
    flows = columns([(1, 0, 100_000, 2.0, 0)] * 8)
    _, stats, _ = play(NETWORKS["few slots"], flows)
    first = 6 * wire(100_000) / 3125
    assert 200 < first < 290
    np.testing.assert_array_equal(stats.flows_begun[:4, 0], [6, 0, 2, 0])
    np.testing.assert_array_equal(stats.flows_seen[:4, 0], [6, 6, 8, 0])


def test_short_flows_are_seen_although_none_is_there_at_the_end() -> None:
    """Snapshots miss these flows: all are over when the interval ends."""
    flows = columns([(1 + i % 3, 0, 1000, 5.0 + 9 * i, 0) for i in range(8)])
    _, stats, _ = play(NETWORKS["few slots"], flows)
    assert stats.n_flows[0, 0] == 0
    assert stats.flows_begun[0, 0] == stats.flows_seen[0, 0] == 8
    assert stats.n_senders[0, 0] == 3
    assert stats.flows_seen[1:].sum() == 0


def test_bytes_move_to_the_next_class_as_a_flow_sends() -> None:
    """One flow of 1.3 MB alone: 100 KB, then 900 KB, then the rest, to a tick's bytes."""
    size = 1_300_000
    _, stats, _ = play(NETWORKS["two levels"], columns([(0, 2, size, 0.0, 1)]))
    ports = np.flatnonzero(stats.tx_bytes.sum(0))
    assert len(ports) == 3
    got = stats.class_bytes.sum(0)[ports]
    tick = 3125 * 5
    want = np.array([100e3, 900e3, 300e3]) * 1.048
    assert np.abs(got - want).max() <= tick
    np.testing.assert_allclose(got.sum(1), wire(size), rtol=1e-5)
    # In the first 100 µs 312.5 KB on the wire.
    first = stats.class_bytes[0, ports[0]]
    np.testing.assert_allclose(first[:2], [104.8e3, 312.5e3 - 104.8e3], atol=tick)
    assert first[2] == 0


def test_marked_packets_are_drawn_around_their_expectation() -> None:
    """Whole numbers, at most the packets sent, and over intervals the expected sum."""
    ecn = (10, 200, 0.3)
    rows = [(1, 0, 10**7, 0.0, 0), (2, 0, 10**7, 0.0, 0)]
    _, stats, params = play(NETWORKS["few slots"], columns(rows), ecn)
    packet = float(params.net.packet_bytes)
    mean, drawn = stats.marked_bytes[:, 0] / packet, stats.marked_packets[:, 0]
    assert mean.sum() > 300
    np.testing.assert_array_equal(drawn, np.round(drawn))
    assert (drawn <= stats.tx_bytes[:, 0] / packet + 1).all()
    assert np.abs(drawn - mean).max() > 3
    assert (drawn[mean < 1e-6] == 0).all()
    assert abs(drawn.sum() - mean.sum()) < 4 * np.sqrt(mean.sum())
    assert (stats.marked_packets[:, 1:] == 0).all()


def test_all_or_nothing_marking_is_counted_without_noise() -> None:
    """A step at 0 bytes marks every packet: no coin is left, only the fraction of a packet."""
    rows = [(1, 0, 10**7, 0.0, 0), (2, 0, 10**7, 0.0, 0)]
    _, stats, params = play(NETWORKS["few slots"], columns(rows), (0, 0.001, 1.0))
    mean = stats.marked_bytes[:, 0] / float(params.net.packet_bytes)
    assert mean.sum() > 500
    assert np.abs(stats.marked_packets[:, 0] - mean).max() < 1.01


# --- the switch -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("counted", tiers(("", "n_senders", "n_elephants"), "n_senders"))
def test_a_counter_alone_is_the_same_and_all_else_too(counted: str) -> None:
    """The others are none, and nothing but counts changes: the same bits."""
    alone = network(star(5), slots=6, counts=(counted,) if counted else ())
    flows = columns([(1, 0, 10**6, 3.0, 0), (2, 0, 40_000, 50.0, 0), (1, 0, 500, 130.0, 0)])
    (states, stats, _), (every_states, every, _) = (
        play(sim, flows) for sim in (alone, NETWORKS["few slots"])
    )
    assert [n for n in COUNTS if getattr(stats, n) is not None] == [counted] * bool(counted)
    others = dict.fromkeys(set(COUNTS) - {counted})
    pairs = zip(
        *map(jax.tree.leaves, ((states, stats), (every_states, replace(every, **others)))),
        strict=True,
    )
    for a, b in pairs:
        np.testing.assert_array_equal(a, b)


def test_nothing_is_carried_where_nothing_is_counted() -> None:
    bare = network(star(5), slots=6, counts=())
    params = params_of(bare, columns([(1, 0, 10**6, 3.0, 0)]))
    state = jax.eval_shape(bare.init, jax.random.key(0), params)
    ecn = scaled_ecn(params.net, 20, 80, 0.2)
    assert jax.eval_shape(bare.collect, state, params, ecn)[1].counts is None


def test_wrong_counters_are_named() -> None:
    with pytest.raises(
        ValueError, match="unknown counter 'flow_begun': did you mean 'flows_begun'"
    ):
        replace(NETWORKS["star"], counts=("flow_begun",))
    with pytest.raises(ValueError, match="counts = 'flows_begun' is not allowed: expected a tuple"):
        counters("counts", "flows_begun")


def test_the_order_of_names_makes_no_other_simulator() -> None:
    sim = replace(NETWORKS["star"], counts=("n_senders", "flows_begun", "n_senders"))
    assert sim == replace(NETWORKS["star"], counts=("flows_begun", "n_senders"))
    assert sim.counts == ("flows_begun", "n_senders")


# --- several intervals, and names -----------------------------------------------------------------


@pytest.mark.slow
def test_merged_sums_are_those_of_one_long_interval() -> None:
    """Under drops: three intervals against one of three times that."""
    short = NETWORKS["two levels"]
    long = replace(short, interval_steps=3 * short.interval_steps)
    init, collect, _ = compiled(short)
    _, long_collect, long_summary = compiled(long)
    merged_summary = jax.jit(partial(summarise, short, intervals=3))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sizes = np.exp(rng.uniform(np.log(1e3), np.log(2e6), ROWS)).astype(int)
        rows = zip(rng.integers(1, 4, ROWS), sizes, rng.uniform(0, 500, ROWS), strict=True)
        rows = [(int(src), 0, int(size), at, 1) for src, size, at in rows]
        flows = columns(on_paths(short, rows))
        params = with_net(params_of(short, flows), buffer=3e4)
        ecn = scaled_ecn(params.net, 20, 80, 0.2)
        state, _ = collect(init(jax.random.key(seed), params), params, ecn)
        long_state, long_sums = long_collect(state, params, ecn)
        want, total = long_summary(long_state, params, long_sums), None
        for _ in range(3):
            state, sums = collect(state, params, ecn)
            total = sums if total is None else merge(total, sums)
        merged = to_info(merged_summary(state, params, total))
        assert float(want.flows_seen.sum()) > 5
        assert float(counter_bytes(state.totals.dropped)) > 0
        for name, value in to_info(want).items():
            np.testing.assert_allclose(merged[name], value, rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(state.flows.backlog, long_state.flows.backlog)


def test_statistics_by_name_and_back() -> None:
    sim = NETWORKS["few slots"]
    _, stats, _ = play(sim, columns([(1, 0, 10**6, 3.0, 0)]))
    info = to_info(stats)
    assert {np.shape(x) for x in info.values()} == {(INTERVALS, 5)}
    assert {"small_bytes", "medium_bytes", "large_bytes"} < set(info)
    for a, b in zip(*map(jax.tree.leaves, (stats, from_info(info))), strict=True):
        np.testing.assert_array_equal(a, b)
    first = jax.tree.map(lambda x: x[0], stats)
    assert jax.tree.map(np.shape, idle(sim)) == jax.tree.map(np.shape, first)
    assert not any(np.any(x) for x in jax.tree.leaves(idle(sim)))
