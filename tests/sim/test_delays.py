"""Slowdown as it accrues: which ports account for it, and in which window it is measured."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import netcases
import numpy as np
from netcases import flow_list, program, start

from ecn_marl.sim import Ecn, Schedule, Simulator, leaf_spine, schedule
from ecn_marl.sim.core.paths import find_paths
from ecn_marl.sim.metrics import histogram_quantile
from ecn_marl.sim.random import hash_bits
from ecn_marl.sim.traffic.sizes import SIZE_CLASSES
from ecn_marl.sim.transports import Dcqcn

ROWS = [(0, 4, 300_000, 0.0), (1, 4, 300_000, 0.0), (0, 1, 900_000, 5.0), (2, 5, 40_000, 20.0)]
"""Four flows, of which one stays within its leaf."""

SPINE = Simulator(
    leaf_spine(2, 4, 2),
    (Schedule(1.0, netcases.ROWS),),
    Dcqcn.of("hpcc-paper"),
    slots=16,
    scheduled=netcases.ROWS,
    accrue=True,
)


def params_of(rows):
    """Parameters of a flow list."""
    return SPINE.default_params(traffic=(schedule(flow_list(rows), 1.0),))


def run(sim, params):
    """A run under SECN1: last state, statistics of all intervals, and the paths of the flows."""
    n = sim.topology.n_ports
    ecn = Ecn(jnp.full((n,), 5e3), jnp.full((n,), 2e5), jnp.full((n,), 0.01))
    state, stats = program(sim)(start(sim)(jax.random.key(1), params), params, ecn)
    return state, stats, paths_of(params.traffic[0], params.net, state.seed)


@jax.jit
def paths_of(plan, net, seed):
    """The paths of a flow list."""
    source = Schedule(1.0, netcases.ROWS)
    offer = source.offer(source.init(jax.random.key(0), plan, net.nic_rate), plan, net.nic_rate)
    return find_paths(net, offer, hash_bits(seed, jnp.arange(netcases.ROWS), 17))


def test_only_ports_on_the_way_account_for_a_flow():
    sim, params = SPINE, params_of(ROWS)
    n = sim.topology.n_ports
    state, stats, paths = run(sim, params)
    accrued = np.asarray(stats.accrued, np.float64).sum(0)
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


def test_with_whole_credit_a_port_accounts_for_all_of_its_flows():
    """Every flow's slowdown at every port that it crosses, and all of its progress."""
    sim, params = replace(SPINE, accrue_whole=True), params_of(ROWS)
    n = sim.topology.n_ports
    state, stats, paths = run(sim, params)
    slowdown, flows = np.zeros((3, n + 1)), np.zeros((3, n + 1))
    for row, (_, _, size, _) in enumerate(ROWS):
        way = np.unique(np.asarray(paths.forward[row]))
        kind = np.searchsorted(SIZE_CLASSES, size)
        slowdown[kind, way] += np.asarray(state.fct_log)[row] / np.asarray(paths.ideal)[row]
        flows[kind, way] += 1
    accrued, progress = (
        np.asarray(x, np.float64).sum(0).T for x in (stats.accrued, stats.progress)
    )
    np.testing.assert_allclose(accrued, slowdown[:, :n], rtol=1e-4)
    np.testing.assert_allclose(progress, flows[:, :n], rtol=1e-4)


def test_bent_costs_add_up_to_the_cost_of_the_slowdown_at_the_end():
    """Box and Cox' curve of each flow's completion time, whatever the ticks in between."""
    rows = [*ROWS, (3, 4, 1_100_000, 22.0), (1, 5, 9_000, 40.0)]
    sim, params = replace(SPINE, accrue_powers=(2.0, 1.0, 0.0)), params_of(rows)
    state, stats, paths = run(sim, params)
    s = (np.asarray(state.fct_log) / np.asarray(paths.ideal))[: len(rows)].astype(np.float64)
    assert np.isfinite(s).all() and (s > 1.0).all(), "all have finished, none before its time"
    cost = {0: (1.0 + s**2) / 2.0, 1: s, 2: 1.0 + np.log(s)}
    kinds = np.searchsorted(SIZE_CLASSES, [row[2] for row in rows])
    expected = [cost[k][kinds == k].sum() for k in range(3)]
    accrued = np.asarray(stats.accrued, np.float64).sum((0, 1))
    assert not np.allclose(expected, np.bincount(kinds, s, 3), rtol=1e-2), "the curve matters"
    np.testing.assert_allclose(accrued, expected, rtol=1e-3)


def test_the_window_decides_what_is_measured():
    rows = [(1, 0, 20_000, 10.0), (3, 0, 9_000_000, 400.0), (2, 0, 50_000, 405.0), (4, 5, 1, 900.0)]
    sim, params = SPINE, params_of(rows)
    n = sim.topology.n_ports
    ecn = Ecn(jnp.full((n,), 1e9), jnp.full((n,), 2e9), jnp.full((n,), 0.01))

    def measured(first, last):
        window = (np.int32(first), np.int32(last))
        windowed = replace(params, window=window)
        state = program(sim)(start(sim)(jax.random.key(0), windowed), windowed, ecn)[0]
        return state, jax.device_get(sim.completion(state, windowed))

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
