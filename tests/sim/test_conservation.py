"""Random networks: no byte is lost, nothing is negative, the same seed gives the same bits.

And the slowdown that accrues in every interval adds up to the slowdowns of all flows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from netcases import (
    CHUNKS,
    RANDOM,
    RANDOM_CASES,
    class_rounding,
    imbalance,
    program,
    random_params,
    random_run,
    rounding,
    start,
)
from roundoff import U64, U
from tiers import tiers

from ecn_marl.sim.metrics import counted
from ecn_marl.sim.traffic.sizes import CHUNK, SIZE_CLASSES, SLOWDOWN_UNIT


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), RANDOM_CASES)
@given(seed=st.integers(0, 2**31 - 1))
@example(seed=2147483646)  # constant drops: what flows had left to send rounded the same each time
@example(seed=1376488)
@settings(max_examples=12)
def test_bytes_are_conserved(name, bits, seed):
    """Offered = delivered + queued + waiting + dropped, to rounding; and all numbers are sane."""
    run = random_run(name, seed, bits)
    queue_sum = run.stats.queue_mean.sum(dtype=float) * run.sim.interval_steps
    error, _ = imbalance(run.state)
    sent = run.stats.tx_bytes.sum(dtype=float)
    assert abs(error) <= rounding(run.sim, run.state, queue_sum, sent)
    sane(run, REALS[bits])


REALS = {32: (np.float32, U), 64: (np.float64, U64)}
"""Type and unit roundoff of reals of so many bits."""


def sane(run, reals):
    """Every number is a sane one."""
    real, u = reals
    assert run.state.queue.dtype == real
    flows = run.state.flows
    for part in (flows.backlog, flows.rest_low, flows.rest_high, run.state.pool, run.state.queue):
        assert (np.asarray(part) >= 0).all()
    numbers = [x for x in jax.tree.leaves((run.state, run.stats)) if x.dtype == real]
    timers = flows.transport.to_increase, flows.transport.to_count  # infinite when off
    timer_ids = [id(x) for x in timers]
    assert all(np.isfinite(x).all() for x in numbers if id(x) not in timer_ids)
    stats, steps = run.stats, run.sim.interval_steps
    # Means and sums over the substeps: each is off by u for every one of them.
    assert (stats.queue_max >= stats.queue_mean * (1 - steps * u)).all()
    assert (stats.queue_sq >= stats.queue_mean**2 * (1 - 4 * steps * u)).all()
    assert ((stats.utilisation >= 0) & (stats.utilisation <= 1)).all()
    assert (stats.marked_bytes <= stats.tx_bytes * (1 + 2 * steps * u)).all()
    assert (stats.flows_seen == stats.n_mice + stats.n_elephants).all()
    assert (stats.n_senders <= stats.flows_seen).all()
    if run.sim.load_balancing == "flowlet":  # flows end at other ports than they began at
        assert (stats.n_flows.sum(1) <= stats.flows_seen.sum(1)).all()
    else:
        assert (stats.n_flows <= stats.flows_seen).all()
    assert (stats.flows_begun <= stats.flows_seen).all()
    excess = stats.class_bytes.sum(-1, dtype=float) - stats.tx_bytes - stats.queue_max
    queue_sum = stats.queue_mean.sum(-1, dtype=float) * steps
    assert (excess <= class_rounding(run.sim, queue_sum[:, None], stats.tx_bytes)).all()
    capacity = run.params.net.port_rate * run.sim.interval_us
    assert (stats.tx_bytes <= capacity * (1 + (steps + 2) * u)).all()


@pytest.mark.parametrize(("name", "bits"), RANDOM_CASES)
def test_random_networks_drop_pause_defer_mark_and_redraw_paths(name, bits):
    """A few of them show drops, pauses, deferred, open and finished flows, marks and flowlets."""
    runs = [random_run(name, seed, bits) for seed in range(12)]
    drops = sum(r.dropped() > 0 for r in runs)
    assert drops >= 3 if "drops" in name else drops < 6
    assert sum(int(r.totals.pauses) > 0 for r in runs) >= (0 if "drops" in name else 3)
    assert sum(int(r.totals.deferred) > 0 for r in runs) >= 3
    assert sum(int(r.totals.finished.sum()) > 5 for r in runs) >= 6
    assert sum(inside(r.state.flows).any() for r in runs) >= 6
    assert sum(float(r.stats.marked_bytes.sum()) > 0 for r in runs) >= 6
    # Flows of a few packets at line rate have no pause long enough to end a flowlet.
    if "flowlets" in name:
        assert sum(int(r.totals.flowlets[0]) > 0 for r in runs) >= 6


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_same_seed_same_bits():
    first, repeated, other = (random_run("leaf-spine, PFC", seed) for seed in (5, 5, 6))
    same_bits((first.state, first.stats), (repeated.state, repeated.stats))
    assert (first.stats.queue_mean != other.stats.queue_mean).any()


@pytest.mark.parametrize("name", tiers(("star, drops", "leaf-spine, PFC"), "leaf-spine, PFC"))
def test_a_batch_gives_the_bits_of_single_runs(name):
    """Different seeds, parameters and thresholds side by side."""
    sim, seeds = RANDOM[name], range(4)
    cases = [random_params(sim, np.random.default_rng(seed)) for seed in seeds]
    params, ecn = jax.tree.map(lambda *x: np.stack(x), *cases)
    keys = jax.vmap(jax.random.key)(jnp.arange(len(seeds)))
    state = jax.jit(jax.vmap(sim.init))(keys, params)
    state, stats = jax.jit(jax.vmap(program(sim)))(state, params, ecn)
    assert stats.queue.shape == (len(seeds), CHUNKS, sim.topology.n_ports)
    for i, (single_params, single_ecn) in enumerate(cases):
        alone = start(sim)(jax.random.key(i), single_params)
        alone = program(sim)(alone, single_params, single_ecn)
        same_bits(jax.tree.map(lambda x, i=i: x[i], (state, stats)), alone)


# --- slowdown as it accrues -----------------------------------------------------------------------


def inside(flows):
    """Which slots hold flows that have not finished."""
    return (flows.stage > 0) & (flows.stage < 4)


def sums_of(state, dt):
    """Slowdown of all flows so far, finished or at their age, by size class, float64."""
    flows, totals = jax.device_get((state.flows, state.totals))
    age = (float(state.step) - flows.start_step.astype(float)) * dt - flows.start_rest
    kind = np.searchsorted(SIZE_CLASSES, flows.payload)
    at_age = np.where(inside(flows), age / flows.ideal, 0.0)
    open_ = np.bincount(kind, at_age, 3)
    return counted(totals.slowdown, SLOWDOWN_UNIT) + open_


def delivered_share(state):
    """Finished flows, and the delivered shares of the others, by size class, float64."""
    flows, totals = jax.device_get((state.flows, state.totals))
    wire = flows.payload + 48.0 * np.ceil(flows.payload.astype(float) / 1000.0)
    left = flows.rest_low.astype(float) + flows.rest_high * CHUNK + flows.backlog.sum(0)
    share = np.where(inside(flows), 1.0 - left / np.maximum(wire, 1.0), 0.0)
    kind = np.searchsorted(SIZE_CLASSES, flows.payload)
    return np.asarray(totals.finished, float) + np.bincount(kind, share, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), RANDOM_CASES)
@given(seed=st.integers(0, 2**31 - 1))
@settings(max_examples=8)
def test_intervals_add_up_to_the_slowdowns_of_all_flows(name, bits, seed):
    """Exact up to rounding: over drops, pauses, deferred flows, any rates and delays."""
    run, (real, u) = random_run(name, seed, bits), REALS[bits]
    sim, state, stats = run.sim, run.state, run.stats
    assert stats.accrued.dtype == real
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
