"""Slowdown as it accrues: every interval's parts add up to the slowdowns of all flows."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import netcases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netcases import CHUNKS, RANDOM, STAR, flow_list, program, random_params, start
from roundoff import U64, U

from ecn_marl.sim import Ecn, Schedule, Simulator, leaf_spine, schedule
from ecn_marl.sim.metrics import counted, histogram_quantile
from ecn_marl.sim.paths import find_paths
from ecn_marl.sim.random import hash_bits
from ecn_marl.sim.sizes import CHUNK, SIZE_CLASSES, SLOWDOWN_UNIT
from ecn_marl.sim.transports import Dcqcn

ACCRUING = {name: replace(sim, accrue=True) for name, sim in RANDOM.items()}


def sums_of(state, dt):
    """Slowdown of all flows so far, finished or at their age, by size class, float64."""
    flows, totals = jax.device_get((state.flows, state.totals))
    inside = (flows.stage > 0) & (flows.stage < 4)
    age = (float(state.step) - flows.start_step.astype(float)) * dt - flows.start_rest
    kind = np.searchsorted(SIZE_CLASSES, flows.payload)
    at_age = np.where(inside, age / flows.ideal, 0.0)
    open_ = np.bincount(kind, at_age, 3)
    return counted(totals.slowdown, SLOWDOWN_UNIT) + open_


def delivered_share(state):
    """Finished flows, and the delivered shares of the others, by size class, float64."""
    flows, totals = jax.device_get((state.flows, state.totals))
    inside = (flows.stage > 0) & (flows.stage < 4)
    wire = flows.payload + 48.0 * np.ceil(flows.payload.astype(float) / 1000.0)
    left = flows.rest_low.astype(float) + flows.rest_high * CHUNK + flows.backlog.sum(0)
    share = np.where(inside, 1.0 - left / np.maximum(wire, 1.0), 0.0)
    kind = np.searchsorted(SIZE_CLASSES, flows.payload)
    return np.asarray(totals.finished, float) + np.bincount(kind, share, 3)


@pytest.mark.parametrize("name", ACCRUING)
@given(seed=st.integers(0, 2**31 - 1))
@settings(max_examples=20)
def test_intervals_add_up_to_the_slowdowns_of_all_flows(name, seed):
    """Exact up to rounding: over drops, pauses, deferred flows, any rates and delays."""
    sim = ACCRUING[name]
    check_sums(sim, seed, U)
    with jax.enable_x64(True):
        check_sums(sim, seed, U64)


def check_sums(sim, seed, u):
    """Run it where the unit roundoff is `u`, and compare the sums."""
    params, ecn = random_params(sim, np.random.default_rng(seed))
    state = start(sim, quick=True)(jax.random.key(seed), params)
    state, stats = program(sim, quick=True)(state, params, ecn)
    assert jnp.finfo(stats.accrued.dtype).eps == 2 * u
    assert stats.accrued.shape == (CHUNKS, sim.topology.n_ports, 3)
    assert (np.asarray(stats.accrued) >= 0).all()
    total = np.asarray(stats.accrued, np.float64).sum((0, 1))
    # Sums over slots, ticks of an interval and flows; the parts of a flow are some ten operations.
    flows, ticks = int(state.totals.started), sim.interval_steps // sim.tick_steps
    terms = sim.slots + ticks + flows + 16
    np.testing.assert_allclose(total, sums_of(state, sim.dt_us), rtol=terms * u)
    progress = np.asarray(stats.progress, np.float64).sum((0, 1))
    # Every substep rounds the bytes of a flow three times at most: two queues change, and the rest.
    # Sizes are drawn in float32 in any case, and XLA may draw one twice, one byte apart.
    near = 3 * int(state.step) * U * flows
    np.testing.assert_allclose(progress, delivered_share(state), rtol=terms * u, atol=near)


def test_some_of_these_networks_defer_drop_and_leave_flows_open():
    counts = {"deferred": 0, "dropped": 0, "open": 0, "finished": 0}
    for name, sim in ACCRUING.items():
        for seed in range(6):
            params, ecn = random_params(sim, np.random.default_rng(seed))
            state, _ = program(sim)(start(sim)(jax.random.key(seed), params), params, ecn)
            counts["deferred"] += int(state.totals.deferred)
            counts["dropped"] += float(state.totals.dropped[1]) > 0
            counts["open"] += int(((state.flows.stage > 0) & (state.flows.stage < 4)).sum())
            counts["finished"] += int(state.totals.finished.sum())
        assert all(counts.values()), (name, counts)


ROWS = [(0, 4, 300_000, 0.0), (1, 4, 300_000, 0.0), (0, 1, 900_000, 5.0), (2, 5, 40_000, 20.0)]


def spine():
    """A leaf-spine network with four flows, of which one stays within its leaf."""
    columns = flow_list(ROWS)
    sim = Simulator(
        leaf_spine(2, 4, 2),
        (Schedule(1.0, netcases.ROWS),),
        Dcqcn.of("hpcc-paper"),
        slots=16,
        scheduled=netcases.ROWS,
        accrue=True,
    )
    return sim, sim.default_params(traffic=(schedule(columns, 1.0),))


def test_only_ports_on_the_way_account_for_a_flow():
    sim, params = spine()
    n = sim.topology.n_ports
    ecn = Ecn(jnp.full((n,), 5e3), jnp.full((n,), 2e5), jnp.full((n,), 0.01))
    state, stats = program(sim)(start(sim)(jax.random.key(1), params), params, ecn)
    accrued = np.asarray(stats.accrued, np.float64).sum(0)
    plan, net = params.traffic[0], jax.tree.map(jnp.asarray, params.net)
    source = Schedule(1.0, netcases.ROWS)
    offer = source.offer(source.init(jax.random.key(0), plan, net.nic_rate), plan, net.nic_rate)
    paths = find_paths(net, offer, hash_bits(state.seed, jnp.arange(netcases.ROWS), 17))
    used = np.zeros((3, n + 1), bool)
    for row, (_, _, size, _) in enumerate(ROWS):
        used[np.searchsorted(SIZE_CLASSES, size), np.asarray(paths.forward[row])] = True
    np.testing.assert_array_equal(accrued.T > 0, used[:, :n])
    fct, ideal = np.asarray(state.fct_log)[: len(ROWS)], np.asarray(paths.ideal)[: len(ROWS)]
    assert np.isfinite(fct).all(), "all have finished"
    kinds = np.searchsorted(SIZE_CLASSES, [row[2] for row in ROWS])
    np.testing.assert_allclose(accrued.sum(0), np.bincount(kinds, fct / ideal, 3), rtol=1e-4)
    into = [i for i, p in enumerate(sim.topology.ports) if p.peer in ("host4",)]
    others = [i for i in np.flatnonzero(used[1, :n]) if i not in into]
    assert accrued[into, 1].sum() > accrued[others, 1].sum(), "most of the wait is at the receiver"


def test_the_window_decides_what_is_measured():
    rows = [(1, 0, 20_000, 10.0), (3, 0, 9_000_000, 400.0), (2, 0, 50_000, 405.0), (4, 5, 1, 900.0)]
    params = STAR.default_params(traffic=(schedule(flow_list(rows), 1.0),))
    n = STAR.topology.n_ports
    ecn = Ecn(jnp.full((n,), 1e9), jnp.full((n,), 2e9), jnp.full((n,), 0.01))

    def measured(first, last):
        window = (np.int32(first), np.int32(last))
        windowed = replace(params, window=window)
        state = program(STAR)(start(STAR)(jax.random.key(0), windowed), windowed, ecn)[0]
        return state, jax.device_get(STAR.completion(state, windowed))

    state, everything = measured(0, 2**31 - 1)
    np.testing.assert_array_equal(everything.begun, [3, 0, 1])
    np.testing.assert_array_equal(everything.unfinished, [0, 0, 1])
    np.testing.assert_array_equal(everything.histogram.sum(1), [3, 0, 1])
    age = 1000.0 - 400.0
    ideal = netcases.alone_us(9_000_000, [25.0])
    np.testing.assert_allclose(everything.total[2], max(age / ideal, 1.0), rtol=1e-3)
    middle = measured(11, 900)[1]
    np.testing.assert_array_equal(middle.begun, [1, 0, 1])
    fct = np.asarray(state.fct_log)[2]
    np.testing.assert_allclose(middle.total[0], fct / netcases.alone_us(50_000, [25.0]), rtol=1e-3)
    logs = np.log(max(middle.total[0], 1.0))
    np.testing.assert_allclose(middle.log_total[0], logs, rtol=1e-4)
    median = histogram_quantile(middle.histogram[0], 0.5)
    assert abs(median / middle.total[0] - 1.0) < 0.06, "one bin of the histogram"
    assert measured(901, 902)[1].begun.sum() == 0
