"""Small scenarios of the papers: no bytes are lost, no flow waits, all numbers are finite.

The full ones differ only in size. They are made but not run: one episode takes minutes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl import lanes
from ecn_marl.envs.registry import PAPERS, benchmark, lookup, make, scenarios
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB
from ecn_marl.sim.traffic.sizes import CHUNK, size_table

SMALL = tuple(name for name in scenarios() if PAPERS.get(name) == "pet" and "-small-" in name)

SETTINGS = ((5, 200, 0.01), (100, 400, 0.2), (640, 5120, 0.01), (5, 10, 1.0))
"""SECN1, SECN2, a deep and a shallow setting, an episode each."""

OPTIONS = {
    "pet-websearch-small-v0": {"load": 0.9, "slots": 320},
    "pet-datamining-small-v0": {"load": 0.9, "slots": 320},
    "pet-switching-small-v0": {"max_steps": 650},
    "pet-failures-small-v0": {"max_steps": 650},
}
"""The highest load where it is an option; a change of traffic; links that fail and are repaired."""

QUICK = {"pet-two-queues-small-v0", "pet-failures-small-v0"}
"""Those with the most options, played in every run of the suite; the others are `thorough`."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in SMALL],
)
def test_no_bytes_are_lost_and_no_flow_waits(name):
    env = make(name, **OPTIONS.get(name, {}))
    params = env.default_params
    scale = env.port_scale(params.sim)

    @lanes.mapped
    def episode(key, setting):
        kmin, kmax = setting[0] * KB * scale, setting[1] * KB * scale
        ecn = Ecn(kmin, kmax, jnp.broadcast_to(setting[2], kmin.shape))
        _, state = env.reset(key, params)

        def step(state, key):
            obs, state, reward, *_ = env.step_ecn(key, state, ecn, params)
            return state, jnp.isfinite(obs).all() & jnp.isfinite(reward).all()

        state, sound = jax.lax.scan(step, state, jax.random.split(key, env.horizon))
        return state, sound.all(), env.episode_metrics(state, params)

    keys = jax.random.split(jax.random.key(5), len(SETTINGS))
    run = jax.jit(jax.vmap(episode))
    state, sound, metrics = jax.device_get(run(keys, jnp.asarray(SETTINGS, jnp.float32)))
    assert sound.all()
    started, waited = metrics["flows_started"].sum(), metrics["deferred"] + metrics["flows_waiting"]
    assert started > 500
    assert waited.sum() <= 1e-3 * started
    assert (metrics["bytes_dropped"] == 0).all() or lookup(name).failing
    np.testing.assert_allclose(_accounted_bytes(state), metrics["bytes_offered"], rtol=1e-5)
    assert (metrics["flows_measured"][:, [0, 2]].sum(0) > 20).all()


def _accounted_bytes(state) -> np.ndarray:
    """Bytes delivered, dropped, waiting at senders and in queues, `[episodes]`."""

    def bytes_of(counter):
        high, low = (np.asarray(x, np.float64) for x in counter)
        return high * CHUNK + low

    totals, flows = state.sim.totals, state.sim.flows
    busy = np.asarray(flows.stage) != 0
    unsent = np.where(busy, bytes_of((flows.rest_high, flows.rest_low)), 0.0).sum(-1)
    queued = np.asarray(flows.backlog, np.float64).sum((-2, -1))
    queued += np.asarray(state.sim.pool, np.float64)[:, 1].sum(-1)
    return bytes_of(totals.delivered) + bytes_of(totals.dropped) + unsent + queued


def test_the_full_scenarios_have_the_papers_size():
    full = [name.replace("-small", "") for name in SMALL if name.startswith("pet-")]
    assert set(full) <= set(scenarios())
    for name in full:
        topology = make(name).sim.topology
        assert (topology.n_hosts, topology.n_ports) == (288, 432)
    assert not set(benchmark()) & {*SMALL, *full}


def test_times_of_the_small_scenarios_are_a_hundredth():
    for name in ("pet-switching", "pet-failures"):
        full, small = lookup(f"{name}-v0"), lookup(f"{name}-small-v0")
        assert full.max_steps * full.interval_us == 10e6
        assert full.max_steps == 100 * small.max_steps
    switch_times = np.cumsum(lookup("pet-switching-v0").traffic[0].timeline.lengths_us)
    np.testing.assert_allclose(switch_times, [4.1e6, 8.1e6, 9.1e6, 10e6])
    small = lookup("pet-failures-small-v0").failing
    assert (small["at_us"], small["repair_us"]) == (31_000.0, 61_000.0)


def test_the_cut_table_is_datamining_up_to_its_end():
    """The same probabilities up to 10 MB, all the rest at 10 MB."""
    full_table, cut_table = size_table("DataMining"), size_table("DataMining_10MB")
    u = np.linspace(0.01, 0.99, 99)
    expected = np.minimum(np.interp(u, full_table.cdf, full_table.size), 1e7)
    np.testing.assert_allclose(np.interp(u, cut_table.cdf, cut_table.size), expected, rtol=1e-4)


def test_switching_offers_the_same_load_in_all_parts():
    """In bytes: WebSearch and DataMining in turns, 60 % of the hosts' capacity."""
    spec = lookup("pet-switching-small-v0")
    rate = sum(spec.topology.nic_gbps) * 125.0
    for source in spec.traffic:
        means = float(size_table(source.table).mean) * np.array(source.per_us) / rate
        assert sorted(np.round(means, 4)) == [0.0, 0.0, 0.6, 0.6]
    first, second = (np.array(source.per_us) > 0 for source in spec.traffic)
    assert (first != second).all() and first[0]
