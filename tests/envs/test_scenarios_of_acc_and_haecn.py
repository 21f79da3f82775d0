"""Scenarios of ACC and HAECN: they step without NaN, lose no byte and make no flow wait."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sim.netcases import imbalance

from ecn_marl import lanes
from ecn_marl.baselines.evaluation.completion import invalid_reasons
from ecn_marl.baselines.evaluation.episodes import Evaluation, evaluation_keys, roll_out
from ecn_marl.envs.registry import benchmark, lookup, make, scenarios
from ecn_marl.envs.scenarios import acc_heterogeneous, acc_messages, haecn_fabric
from ecn_marl.envs.scenarios import acc_network as an
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.network.topology import KB

NAMES = tuple(name for name in scenarios() if name.startswith(("acc-", "haecn-")))
SMALL = tuple(name for name in NAMES if "-small-" in name)

QUICK = {
    "acc-tcp-2-small-v0": 20,
    "acc-storage-small-v0": 20,
    "acc-training-small-v0": 300,
}
"""Those with traffic of a kind of their own, and how many intervals they play: senders without
marks, disks that answer, and steps of a training. Whole episodes are `thorough`, and so are senders
without marks: `sim/test_classes.py` has them in a smaller network."""

SETTINGS = ((5, 200, 0.01), (100, 400, 0.2), (5, 10, 1.0))
"""SECN1, SECN2 and a shallow setting."""


KNOWN = {"acc-tcp-7-small-v0": "of bytes dropped"}
"""Why results of scenarios may not count: here TCP, which knows no marks, fills the buffer that it
shares with RDMA, and some .1 % of the bytes are dropped with bytes that PFC protects."""


def play(name: str, **options: Any) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """An episode under each of `SETTINGS`: last states, metrics and observations."""
    env = make(name, **options)
    params = env.default_params
    scale = env.port_scale(params.sim)

    @lanes.mapped
    def episode(key: jax.Array, setting: jax.Array) -> Any:
        kmin, kmax = setting[0] * KB * scale, setting[1] * KB * scale
        ecn = Ecn(kmin, kmax, jnp.broadcast_to(setting[2], kmin.shape))
        state, reward, _ = roll_out(env, params, lambda key, obs: ecn, key)
        return state, env.episode_metrics(state, params), reward

    keys = evaluation_keys(7, len(SETTINGS))
    settings = jnp.asarray(SETTINGS, jnp.float32)
    state, metrics, reward = jax.device_get(jax.jit(jax.vmap(episode))(keys, settings))
    assert np.isfinite(reward).all() and np.isfinite(state.history).all()
    return state, metrics, reward


def check(name: str, **options: Any) -> dict[str, np.ndarray]:
    """Bytes, flows and finite numbers of three episodes; returns the columns of a record."""
    state, metrics, _ = play(name, **options)
    for i in range(len(SETTINGS)):
        lost, offered = imbalance(jax.tree.map(lambda x, i=i: x[i], state.sim))
        assert offered > 1e6
        assert abs(lost) <= 1e-5 * offered
    columns = Evaluation(name, metrics).columns
    reasons = invalid_reasons(columns)
    assert all(name in KNOWN and KNOWN[name] in reason for reason in reasons), reasons
    assert (columns["throughput_gbps"] > 0).all()
    assert (columns["bottleneck_utilisation"] >= columns["utilisation"]).all()
    return columns


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name.startswith("acc-tcp") else ())
        for name in QUICK
    ],
)
def test_small_scenarios_count_and_keep_every_byte(name):
    columns = check(name, max_steps=QUICK[name])
    if name.startswith("acc-tcp"):
        shares = [columns[f"share:{kind}"] for kind in ("rdma", "tcp")]
        np.testing.assert_allclose(sum(shares), 1.0, rtol=1e-5)
        assert (shares[1] > 0.25).all()
    if name.startswith("acc-storage"):
        assert (columns["source:0:iops"] > columns["source:1:iops"]).all()
    if name.startswith("acc-training"):
        assert (columns["source:0:step_us"] > 10_000.0).all()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", SMALL)
def test_whole_episodes_of_small_scenarios(name):
    check(name)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_offline_mix_has_something_to_teach():
    """Static settings differ in ACC's own reward by more than episodes and the paired noise."""
    options = {"features": "acc", "reward": "acc", "reward_options": {"queue_scale_kb": 20.0}}
    env = make("acc-offline-small-v0", **options)
    params, scale = env.default_params, env.port_scale(env.default_params.sim)
    settings = jnp.array([(20, 40, 1.0), (5120, 10240, 0.01)], jnp.float32)

    @lanes.mapped
    def earned(key: jax.Array, setting: jax.Array) -> Any:
        kmin, kmax = setting[0] * KB * scale, setting[1] * KB * scale
        ecn = Ecn(kmin, kmax, jnp.broadcast_to(setting[2], kmin.shape))
        state, reward, _ = roll_out(env, params, lambda key, obs: ecn, key)
        return reward.mean(), env.episode_metrics(state, params)

    episodes = 3
    keys = jnp.repeat(evaluation_keys(7, episodes), len(settings), 0)
    rewards, metrics = jax.jit(jax.vmap(earned))(keys, jnp.tile(settings, (episodes, 1)))
    assert not invalid_reasons(Evaluation("acc-offline", jax.device_get(metrics)).columns)
    rewards = np.asarray(rewards).reshape(episodes, len(settings))
    lead = rewards[:, 0] - rewards[:, 1]
    assert lead.mean() > 4.0 * lead.std(ddof=1) / np.sqrt(episodes)
    # Bursts of 60 MB to one host have .02.
    assert lead.mean() > 0.04


def test_none_is_of_the_benchmark_and_every_one_has_a_small_twin():
    assert not set(NAMES) & set(benchmark())
    twins = {name.replace("-small", "").replace("incast-16", "incast-64") for name in SMALL}
    assert twins == set(NAMES) - set(SMALL)
    assert len(NAMES) == 36


def test_the_testbed_is_the_papers():
    """§5.1: 24 servers with two NICs, four leaves with four uplinks, PFC at 1/9 of the buffer."""
    env = make("acc-incast-8-v0")
    topology, net = env.sim.topology, env.default_params.sim.net
    assert len(an.first_nics(topology)) == 24 and topology.n_hosts == 48
    assert (np.asarray(net.pfc_alpha) == 0.125).all()
    assert make("websearch-v0").default_params.sim.net.pfc_alpha.max() == 0.25
    up = [p for p in topology.ports if p.kind == "leaf-up" and p.switch == "leaf0"]
    assert [p.gbps for p in up] == [100.0] * 4


def test_times_are_the_papers_divided_by_the_factor():
    paper = acc_heterogeneous.scenario(False, 1.0)
    assert paper.max_steps * paper.interval_us == 300e6
    assert lookup("acc-heterogeneous-v0").max_steps * 100.0 == 300e3
    timeline = lookup("haecn-gradual-48-v0").traffic[0].timeline
    assert timeline.lengths_us[0] == 200e3
    timeline = lookup("haecn-gradual-48-small-v0").traffic[0].timeline
    assert timeline.lengths_us[0] == 20e3


@pytest.mark.parametrize("small", [False, True])
def test_the_load_is_that_of_the_receiver(small):
    """20 % of 25 Gb/s on each of its links, from two servers."""
    topology = acc_messages.network(small)
    load = acc_messages.load_of(small, 0.2)
    links = topology.server.count(acc_messages.RECEIVER)
    assert load * sum(topology.nic_gbps) == pytest.approx(0.2 * 25.0 * links)


@pytest.mark.parametrize("links", haecn_fabric.LINKS)
def test_every_fourth_server_sends(links):
    streams, _ = haecn_fabric.bursty(links, False).traffic
    assert len(streams.sources) == 12 * links // 4
    streams, _ = haecn_fabric.gradual(links, False).traffic
    assert streams.senders == ((links, links), (2 * links, 2 * links))
