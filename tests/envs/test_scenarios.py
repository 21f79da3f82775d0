"""Built-in scenarios: the benchmark, counts of flows, and weights of rewards."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ecn_marl
from ecn_marl import lanes
from ecn_marl.baselines.evaluation.episodes import evaluation_keys, roll_out
from ecn_marl.envs import privileged, registry
from ecn_marl.envs.registry import benchmark, lookup, make, scenarios
from ecn_marl.envs.rewards import REWARDS, Reward, RewardParams
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import fabric, mixed_rtt
from ecn_marl.sim import Poisson, star
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB
from ecn_marl.sim.state import PortStats

SETTINGS = ((5, 200, 0.01), (100, 400, 0.2), (640, 5120, 0.01), (5, 10, 1.0))
"""SECN1, SECN2, a deep and a shallow setting."""

LARGE = "pet-fabric-v0"
QUICK = "restore-serve-v0"
"""The scenario of the benchmark that every run of the suite plays; the others are `thorough`."""

PLAYED = [
    pytest.param(name, marks=() if name == QUICK else pytest.mark.thorough)
    for name in (*benchmark(), "near-far-v0", "websearch-load-v0", LARGE)
]
SUPERSEDED = {"incast-v0"}


def test_the_benchmark_leaves_out_what_is_superseded_and_plain_traffic():
    names = set(benchmark())
    assert {"restore-serve-v0", "moving-tenants-v0", "shuffle-serve-v0"} < names
    assert {"mixed-rtt-v0", "fabric-v0", "restore-files-v0"} < names
    assert not names & {"websearch-v0", "websearch-star-v0", "pet-websearch-v0", LARGE}
    assert {name for name in scenarios() if lookup(name).superseded} == SUPERSEDED
    assert not names & SUPERSEDED


def test_a_built_in_name_is_refused_before_the_first_make_too():
    """In a separate process: the first `make` registers the built-in names."""
    code = """
import ecn_marl
try:
    ecn_marl.register("websearch-v0", lambda: None)
except ValueError as error:
    print(error)
print(len(ecn_marl.scenarios()), ecn_marl.make("websearch-v0").name)
"""
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert output[0].startswith("scenario name = 'websearch-v0' is not allowed")
    assert output[1] == f"{len(registry._BUILTIN)} websearch-v0"


def test_what_cannot_be_registered_is_named():
    with pytest.raises(ValueError, match="scenario name = ''"):
        ecn_marl.register("", lookup)


def test_a_superseded_scenario_is_still_made():
    assert make("incast-v0").num_agents == 17


def test_what_was_taken_out_names_its_successor():
    with pytest.raises(ValueError, match=r"'rpc-shuffle-v0' .* expected shuffle-serve-v0"):
        make("rpc-shuffle-v0")


def test_nothing_superseded_is_part_of_the_benchmark():
    with pytest.raises(ValueError, match="benchmark"):
        Scenario(star(3), (Poisson(load=0.1),), benchmark=True, superseded="it is old")


def by_class(
    counted: PortStats, params: RewardParams, port_scale: jax.Array, interval_us: float
) -> jax.Array:
    """The slowdown reward of each size class, in the places of the first three ports.

    The reward is a sum over classes, so that of one class is the reward with the other weights at
    0.
    """
    rewards = jnp.zeros(len(port_scale))
    for i in range(3):
        weights = jnp.where(jnp.arange(3) == i, params.slowdown_weights, 0.0)
        only = replace(params, slowdown_weights=weights)
        earned = REWARDS["slowdown"](counted, only, port_scale, interval_us).mean()
        rewards = jnp.where(jnp.arange(len(rewards)) == i, earned, rewards)
    return rewards


@functools.cache
def played(name: str) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Whole episodes under all `SETTINGS`, most under the first, SECN1; compiled once.

    Returns:
        Of every episode: the index of its setting; the metrics; what each size class earned per
        interval, `[episodes, 3]`.
    """
    env = replace(make(name, reward="slowdown"), reward=Reward("by class", by_class, accrues=True))
    params = env.default_params
    scale = env.port_scale(params.sim)
    first, others = (8, 1) if name == LARGE else (24, 8)
    which = np.repeat(np.arange(len(SETTINGS)), [first] + [others] * (len(SETTINGS) - 1))
    keys = [evaluation_keys(12, first)] + [evaluation_keys(11, others)] * (len(SETTINGS) - 1)

    @lanes.mapped
    def episode(key: jax.Array, setting: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        kmin, kmax = setting[0] * KB * scale, setting[1] * KB * scale
        ecn = Ecn(kmin, kmax, jnp.broadcast_to(setting[2], kmin.shape))
        state, _, _ = roll_out(env, params, lambda key, obs: ecn, key)
        return env.episode_metrics(state, params), state.sums.reward[:3] / params.max_steps

    settings = jnp.asarray(SETTINGS, jnp.float32)[which]
    metrics, earned = jax.device_get(jax.jit(jax.vmap(episode))(jnp.concatenate(keys), settings))
    return which, metrics, earned


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_no_setting_makes_flows_wait(name):
    """In whole episodes at most 0.1 % of flows wait; no byte is dropped, no feedback cut."""
    which, metrics, _ = played(name)
    for i in range(len(SETTINGS)):
        own_metrics = {metric: value[which == i] for metric, value in metrics.items()}
        started = own_metrics["flows_started"].sum()
        assert started > 1000
        assert (own_metrics["deferred"] + own_metrics["flows_waiting"]).sum() <= 1e-3 * started
        assert (own_metrics["bytes_dropped"] == 0).all()
        assert (own_metrics["feedback_cut"] == 0).all()


def test_no_setting_makes_flows_of_plain_traffic_wait():
    """Deep thresholds (the third) make queues of more than 1 ms: CNPs are cut and counted."""
    name = "websearch-star-v0"
    which, metrics, _ = played(name)
    assert metrics["flows_started"].sum() > 1000
    assert (metrics["deferred"] + metrics["flows_waiting"]).sum() <= 1e-3 * metrics[
        "flows_started"
    ].sum()
    assert (metrics["bytes_dropped"] == 0).all()
    cut = metrics["feedback_cut"]
    assert (cut[which != 2] == 0).all() and (cut[which == 2] > 0).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
def test_classes_count_alike_under_secn1(name):
    """Each class of the traffic earns its share of -1 per interval, within the error of the mean.

    The mean over fresh episodes has its own error and that of the weights, which were measured on
    at least as many episodes: hence the root of 2. 0.5 % are for rounding. The quantile gives one
    false alarm in 1,000 such means.
    """
    which, _, every = played(name)
    earned = every[which == 0]
    episodes = len(earned)
    present = earned.mean(0) < 0.0
    share = -1.0 / present.sum()
    error = earned.std(0, ddof=1) * np.sqrt(2.0 / episodes) * stats.t.ppf(0.9995, episodes - 1)
    assert present[0] and present[2]
    off = np.abs(earned.mean(0) - share)[present]
    assert (off <= error[present] - 0.005 * share).all()
    assert (error[present] < 0.5).all()  # else the test could not fail


def test_mixed_rtt_has_three_round_trips():
    """4 µs within the rack, 42 to storage, 80 from storage to storage: all are used."""
    net = mixed_rtt.network()
    scenario = mixed_rtt.scenario()
    delay = np.array(net.nic_delay_us)
    trips = {
        round(2.0 * (delay[a] + delay[b]), 6)
        for source in scenario.traffic
        if hasattr(source, "pairs")
        for a, b in source.pairs
    }
    assert trips == {4.0, 42.0, 80.0}


@pytest.mark.parametrize("scenario", [mixed_rtt.scenario, fabric.scenario])
def test_every_host_loads_and_serves_at_other_times_than_its_neighbour(scenario):
    """Every host has large flows in both phases, and both shifts occur."""
    spec = scenario()
    large = [s for s in spec.traffic if hasattr(s, "pairs")]
    for host in range(16 if scenario is fabric.scenario else 8):
        phases = {(s.phase, s.shift) for s in large for _, d in s.pairs if d == host}
        assert {phase for phase, _ in phases} == {0, 1}
        assert len({shift for _, shift in phases}) == 1
    assert {s.shift for s in spec.traffic} == {0, 1}
    assert all(a != b for s in large for a, b in s.pairs)


def test_jobs_of_the_fabric_share_racks_and_stay_apart():
    a, b = (fabric.Job(i) for i in (0, 1))
    assert sorted(a.hosts + b.hosts) == list(range(16))
    leaf = np.arange(16) // 4
    for job in (a, b):
        fetches, exchanges = job.fetches(4), job.exchanges(6)
        assert all(leaf[s] != leaf[d] for s, d in fetches)
        assert all(leaf[s] == leaf[d] for s, d in exchanges)
        for pairs, count in ((fetches, 4), (exchanges, 6)):
            assert {h for pair in pairs for h in pair} == set(job.hosts)
            for side in range(2):  # every host sends and receives as much as the others
                assert set(np.bincount([p[side] for p in pairs])[list(job.hosts)]) == {count}


def test_fetches_cross_three_queues():
    net = fabric.network()
    hops = [net.paths(s, d)[0] for s, d in fabric.Job(0).fetches(4)]
    assert all((path < net.n_ports).sum() == 3 for path in hops)


@pytest.mark.thorough
def test_flows_that_begin_do_not_tell_the_phases_of_restore_files():
    """Their mean per interval in both phases at a host's port; in `restore-serve-v0` it does."""

    def per_phase(name):
        env = make(name, features="flows_begun")
        params = env.default_params
        ecn = env.static_ecn("secn1", params)

        @lanes.mapped
        def episode(key):
            def interval(state, key):
                _, state, *_, info = env.step_ecn(key, state, ecn, params)
                return state, (env.phase(state, params), info["flows_begun"])

            _, state = env.reset(key, params)
            return jax.lax.scan(interval, state, jax.random.split(key, params.max_steps))[1]

        phase, begun = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 4))
        hosts = np.array(env.port_groups) == "rack"
        phase, begun = np.asarray(phase)[..., hosts], np.asarray(begun)[..., hosts]
        return begun[phase == 0].mean(), begun[phase == 1].mean()

    restore, serve = per_phase("restore-files-v0")
    assert restore == pytest.approx(serve, rel=0.05) and restore == pytest.approx(5.0, rel=0.1)
    restore, serve = per_phase("restore-serve-v0")
    assert serve > 5 * restore


def test_phases_of_ports_follow_their_hosts():
    env = ecn_marl.make("fabric-v0", reward="slowdown")
    params = env.default_params
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    phase, groups = np.asarray(env.phase(state, params)), np.array(env.port_groups)
    assert env.phase_names == ("load", "serve")
    assert (phase[groups == "job A"] == 0).all() and (phase[groups == "job B"] == 1).all()
    assert (groups == "fabric").sum() == 16
    # What a critic may know besides: the phase of every port, and the timeline's clock, which
    # `test_telemetry_options` watches.
    known = np.asarray(privileged.privileged(env, state, params))
    assert privileged.names(env) == ("load", "serve", "spent_ms", "left_ms")
    np.testing.assert_array_equal(known[:, :2].argmax(1), phase)
    assert 4.0 <= known[0, 2:].sum() <= 12.0
