"""Random networks: no byte is lost, nothing is negative, the same seed gives the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from netcases import (
    CHUNKS,
    DETERMINISTIC,
    RANDOM,
    STAR,
    class_rounding,
    imbalance,
    program,
    random_params,
    random_run,
    rounding,
    simulate,
    start,
)
from roundoff import U


@pytest.mark.parametrize("name", RANDOM)
@given(seed=st.integers(0, 2**31 - 1))
@example(seed=2147483646)  # constant drops: what flows had left to send rounded the same each time
@example(seed=1376488)
@settings(max_examples=30)
def test_bytes_are_conserved(name, seed):
    """Offered = delivered + queued + waiting + dropped, to rounding in float32 and in float64."""
    sane(random_run(name, seed))
    with jax.enable_x64(True):
        closes(random_run(name, seed, quick=True), np.float64)


def closes(run, real):
    """No byte is lost but to rounding."""
    assert run.state.queue.dtype == real
    queue_sum = run.stats.queue_mean.sum(dtype=float) * run.sim.interval_steps
    sent = run.stats.tx_bytes.sum(dtype=float)
    error, _ = imbalance(run.state)
    assert abs(error) <= rounding(run.sim, run.state, queue_sum, sent)


def sane(run):
    """The account closes, and every number is a sane one."""
    closes(run, np.float32)
    flows = run.state.flows
    for part in (flows.backlog, flows.rest_low, flows.rest_high, run.state.pool, run.state.queue):
        assert (np.asarray(part) >= 0).all()
    numbers = [x for x in jax.tree.leaves((run.state, run.stats)) if x.dtype == np.float32]
    timers = flows.transport.to_increase, flows.transport.to_count  # infinite when off
    timer_ids = [id(x) for x in timers]
    assert all(np.isfinite(x).all() for x in numbers if id(x) not in timer_ids)
    stats, steps = run.stats, run.sim.interval_steps
    # Means and sums over the substeps: each is off by u for every one of them.
    assert (stats.queue_max >= stats.queue_mean * (1 - steps * U)).all()
    assert (stats.queue_sq >= stats.queue_mean**2 * (1 - 4 * steps * U)).all()
    assert ((stats.utilisation >= 0) & (stats.utilisation <= 1)).all()
    assert (stats.marked_bytes <= stats.tx_bytes * (1 + 2 * steps * U)).all()
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
    assert (stats.tx_bytes <= capacity * (1 + (steps + 2) * U)).all()


def test_random_networks_drop_pause_defer_mark_and_redraw_paths():
    """A few of them show drops, pauses, deferred and finished flows, marks and flowlets."""
    runs = {name: [random_run(name, seed) for seed in range(12)] for name in RANDOM}
    for name, samples in runs.items():
        drops = sum(r.dropped() > 0 for r in samples)
        assert drops >= 3 if "drops" in name else drops < 6
        assert sum(int(r.totals.pauses) > 0 for r in samples) >= (0 if "drops" in name else 3)
        assert sum(int(r.totals.deferred) > 0 for r in samples) >= 3
        assert sum(int(r.totals.finished.sum()) > 5 for r in samples) >= 6
        assert sum(float(r.stats.marked_bytes.sum()) > 0 for r in samples) >= 6
        # Flows of a few packets at line rate have no pause long enough to end a flowlet.
        if "flowlets" in name:
            assert sum(int(r.totals.flowlets[0]) > 0 for r in samples) >= 6


def same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_same_seed_same_bits():
    first, repeated, other = (random_run("leaf-spine, PFC", seed) for seed in (5, 5, 6))
    same_bits((first.state, first.stats), (repeated.state, repeated.stats))
    assert (first.stats.queue_mean != other.stats.queue_mean).any()


def test_a_batch_gives_the_bits_of_single_runs():
    """Different seeds, parameters and thresholds side by side."""
    name = "leaf-spine, PFC"
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


def test_float64_twin():
    """Float32 times flows to five digits."""
    single = simulate(STAR, DETERMINISTIC, 20)
    with jax.enable_x64(True):
        twin = simulate(STAR, DETERMINISTIC, 20)
        assert twin.state.fct_log.dtype == np.float64
    n = len(DETERMINISTIC)
    assert np.isfinite(twin.fct[:n]).all()
    np.testing.assert_allclose(single.fct[:n], twin.fct[:n], rtol=1e-5)
