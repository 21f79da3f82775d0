"""Domain randomisation: an episode's parameters are the scenario's times the drawn factors."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY
from tiny import tiny

from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.trained import run_actors
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments.jobs import parse_ranges
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.simulator import TrafficClass
from ecn_marl.sim.traffic.incast import Incast
from ecn_marl.sim.traffic.jobs import Timeline
from ecn_marl.sim.traffic.phased_incast import PhasedIncast
from ecn_marl.sim.traffic.poisson import Poisson
from ecn_marl.sim.transports import Dcqcn, parse_transport
from ecn_marl.wrappers import AutoReset, EcnVectorEnv
from ecn_marl.wrappers.randomised import Randomised, draw, ranges_of, scaled

pytestmark = pytest.mark.usefixtures("tiny_scenario")

RANGES = ranges_of({"rate": 4.0, "delay": (0.25, 1.0), "ai": (0.5, 1.0)})


def leaves(params):
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(x) for path, x in paths
    }


def test_only_what_is_named_changes():
    env = make("websearch-star-v0")
    before = leaves(env.default_params)
    factors = {"rate": 2.0, "delay": 0.5, "load": 1.5, "g": 3.0}
    ranges = tuple((kind, x, x) for kind, x in factors.items())
    net = env.sim.topology
    drawn = draw(jax.random.key(0), ranges)
    after = leaves(scaled(env.default_params, drawn, ranges, net))
    expected_factors = {
        "sim.net.port_rate": 2.0,
        "sim.net.nic_rate": 2.0,
        "sim.transport.ai": 2.0,
        "sim.transport.hai": 2.0,
        "scale.port_scale": 2.0,
        "sim.net.port_delay": 0.5,
        "sim.net.nic_delay": 0.5,
        "sim.net.base_rtt": 0.5,
        "sim.traffic.0.load": 1.5,
        "sim.transport.g": 3.0,
    }
    assert set(expected_factors) <= set(before) == set(after)
    for name, x in before.items():
        np.testing.assert_allclose(
            after[name], x * expected_factors.get(name, 1.0), rtol=1e-6, err_msg=name
        )


def phased(load):
    """Bursts of two phases."""
    bursts = tuple(Incast(load=x * load, n_max=3) for x in (0.5, 1.0))
    return PhasedIncast(Timeline((1000.0, 1000.0)), bursts)


def test_the_load_of_every_phase_changes():
    """The draw is the scenario that was built with this load, in all of its sources."""
    envs = [
        make(Scenario(star(8), traffic=(Poisson(load=0.1 * x), phased(0.3 * x)))) for x in (1, 2)
    ]
    ranges = (("load", 2.0, 2.0),)
    drawn = scaled(envs[0].default_params, jnp.array([2.0]), ranges, envs[0].sim.topology)
    expected = leaves(envs[1].default_params.sim.traffic)
    for name, x in leaves(drawn.sim.traffic).items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-6, err_msg=name)
    only = Randomised(make(Scenario(star(8), traffic=(phased(0.4),))), ranges)
    assert only.ranges == ranges


def test_senders_of_every_class_change():
    dctcp = parse_transport("dctcp:sigcomm10")
    classes = (TrafficClass("a", Dcqcn()), TrafficClass("b", dctcp))
    poisson = (Poisson(load=0.3), Poisson(load=0.1))
    env = make(Scenario(star(4), traffic=poisson, classes=classes, class_of=(0, 1)))
    ranges = tuple((kind, x, x) for kind, x in {"rate": 2.0, "g": 3.0}.items())
    wrapped = Randomised(env, ranges)
    before = env.default_params.sim.transport
    after = scaled(env.default_params, jnp.array([2.0, 3.0]), ranges, env.sim.topology)
    for old, new in zip(before, after.sim.transport, strict=True):
        for name, x in leaves(old).items():
            factor = {"ai": 2.0, "hai": 2.0, "g": 3.0}.get(name, 1.0)
            np.testing.assert_allclose(leaves(new)[name], x * factor, rtol=1e-6, err_msg=name)
    # Both classes have a g; only DCQCN's timers bound the substep.
    assert {"g"} <= leaves(before[0]).keys() & leaves(before[1]).keys()
    assert wrapped.ranges == ranges
    with pytest.raises(ValueError, match=r"dt_us = .* at most .* us at the ends of the ranges"):
        Randomised(env, (("decrease_us", 0.01, 1.0),))


@pytest.mark.parametrize("factors", [{"rate": 2.0}, {"delay": 0.25}, {"rate": 0.5, "delay": 0.5}])
def test_the_network_is_the_one_of_links_with_other_rates_and_delays(factors):
    """Two delays of half the base round trip, or more: hosts at 1 us, and packets to store."""
    name, rate, delay = "websearch-v0", factors.get("rate", 1.0), factors.get("delay", 1.0)
    plain = make(name, delay_us=2.0, link_gbps=25.0, uplink_gbps=100.0)
    other = make(name, delay_us=2.0 * delay, link_gbps=25.0 * rate, uplink_gbps=100.0 * rate)
    ranges = ranges_of({kind: (x, x) for kind, x in factors.items()})
    factors = draw(jax.random.key(0), ranges)
    drawn = scaled(plain.default_params, factors, ranges, plain.sim.topology)
    expected = leaves(other.default_params.sim.net)
    for field, x in leaves(drawn.sim.net).items():
        np.testing.assert_allclose(x, expected[field], rtol=1e-6, err_msg=field)


def test_a_headroom_that_fills_the_buffer_is_refused():
    small = make("websearch-v0", buffer_mib=0.5)
    Randomised(small, ranges_of({"rate": 2.0}))
    with pytest.raises(ValueError, match=r"buffer_mib = 0.5 .* PFC headroom"):
        Randomised(small, ranges_of({"rate": 50.0}))


@pytest.mark.usefixtures("unchecked")
def test_faces_compile_the_draws_too():
    """A quarter of the rate has a quarter of the thresholds."""
    plain = tiny()
    drawn = Randomised(plain, ranges_of({"rate": (0.25, 0.26)}))
    batch = EcnVectorEnv(drawn, 2)
    batch.reset(seed=0)
    seen = batch.step(np.zeros((2, drawn.num_agents, 3), np.int32))[-1]["kmin"]
    scale = plain.port_scale(plain.default_params.sim)
    share = seen / plain.action.decode(jnp.zeros((len(scale), 3), jnp.int32), scale).kmin
    assert (share >= 0.2499).all() and (share <= 0.2601).all()
    assert np.ptp(share, 0).min() > 0 and np.ptp(share, 1).max() < 1e-6
    face = EcnParallelEnv(drawn, "ansi")
    face.reset(seed=0)  # the episode of the batch's first network
    *_, infos = face.step(dict.fromkeys(face.agents, np.zeros(3, np.int32)))
    assert infos["port_0"]["kmin"] == pytest.approx(seen[0, 0], rel=1e-6)
    assert f"{infos['port_0']['kmin'] / 1e3:.1f}" in face.render()


def test_draws_fill_the_ranges():
    keys = jax.random.split(jax.random.key(0), 2000)
    factors = np.asarray(jax.vmap(lambda key: draw(key, RANGES))(keys))
    for column, (_, low, high) in zip(factors.T, RANGES, strict=True):
        assert column.min() >= low * 0.999 and column.max() <= high * 1.001
        share = (column < (low * high) ** 0.5).mean()
        assert share == pytest.approx(0.5, abs=4 * 0.5 / 2000**0.5)


def test_an_episode_is_that_of_the_scenario_with_these_parameters():
    plain = make(TINY)
    env, key = Randomised(plain, RANGES), jax.random.key(5)
    params = plain.default_params
    obs, state = jax.jit(env.reset)(key, params)
    step, plain_step = jax.jit(env.step), jax.jit(plain.step)
    episode_params = scaled(params, state.factors, RANGES, plain.sim.topology)
    expected_obs, plain_state = jax.jit(plain.reset)(jax.random.split(key)[1], episode_params)
    np.testing.assert_array_equal(obs, expected_obs)
    action = jnp.zeros((plain.num_agents, 3), jnp.int32)
    for _ in range(plain.horizon):
        obs, state, reward, _, truncated, _ = step(key, state, action, params)
        expected_obs, plain_state, expected_reward, *_ = plain_step(
            key, plain_state, action, episode_params
        )
        np.testing.assert_allclose(obs, expected_obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, expected_reward, rtol=1e-5)
    assert bool(truncated.all())
    metrics = jax.jit(env.episode_metrics)(state, params)
    for name, x in jax.jit(plain.episode_metrics)(plain_state, episode_params).items():
        np.testing.assert_allclose(metrics[name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_episode_draws_anew():
    env = AutoReset(Randomised(make(TINY), RANGES))
    params = env.default_params
    keys = jax.random.split(jax.random.key(0), 3)
    _, state = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)
    first_factors = np.asarray(state.env.factors)
    assert len({tuple(row) for row in first_factors.tolist()}) == 3
    action = jnp.zeros((3, env.num_agents, 3), jnp.int32)
    step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    for i in range(env.horizon):
        before = np.asarray(state.env.factors)
        keys = jax.random.split(jax.random.key(i + 1), 3)
        _, state, *_ = step(keys, state, action, params)
        unchanged = np.asarray(state.env.factors) == before
        assert unchanged.all() if i + 1 < env.horizon else not unchanged.any()


def test_training_can_start_amid_an_episode():
    """The run below goes on from there."""
    env = Randomised(make(TINY), RANGES)
    algorithm = IPPO(env, IPPOConfig(envs=8, rollout=2, epochs=1, minibatches=1, hidden=(4,)))
    state = jax.jit(algorithm.init)(jax.random.key(0), env.default_params)
    steps = np.asarray(state.env.env.steps)
    assert 0 < steps.max() < env.horizon and np.ptp(steps) > 0


@pytest.mark.slow
def test_a_run_is_trained_and_scored(tmp_path):
    settings = {"envs": 2, "rollout": 4, "epochs": 1, "minibatches": 1, "hidden": (4,)}
    ranges = parse_ranges(["rate=2", "delay=0.5:1"])
    result = train_run(
        "ippo",
        TINY,
        steps=16,
        settings=settings,
        out=tmp_path / "r",
        eval_every=1,
        randomise=ranges,
        allow_flagged=True,  # four slots are too few
    )
    assert "merit" in result.metrics[-1] and np.isfinite(result.metrics[-1]["reward"])
    algorithm, actors = run_actors(tmp_path / "r")
    assert isinstance(algorithm.env.env, Randomised) and len(actors) == 1
    assert algorithm.env.env.ranges == ranges_of(ranges)


def test_bad_ranges_are_named():
    for wrong, message in (
        ({"rtt": 2.0}, "unknown what to randomise 'rtt'"),
        ({"load": 0.5}, "range of load = 0.5"),
        ({"load": (2.0, 1.0)}, "range of load"),
        ({"delay": 2.0}, "up to 1"),
        ({"load": 0}, "range of load = 0 "),
        ({"load": (1, 2, 3)}, r"range of load = \(1, 2, 3\) .* 0 < lowest <= highest"),
        ({"load": "2"}, "range of load = '2'"),
        ({"load": True}, "range of load = True"),
    ):
        with pytest.raises(ValueError, match=message):
            ranges_of(wrong)
    silent = replace(make(TINY), sim=replace(make(TINY).sim, traffic=()))
    with pytest.raises(ValueError, match="'load' is not allowed: expected something that tiny-v0"):
        Randomised(silent, ranges_of({"load": 2.0}))
    with pytest.raises(ValueError, match="at least one range"):
        Randomised(make(TINY), ())
    quick = make(TINY, transport="dcqcn:hpcc-run", dt_us=2.0)
    with pytest.raises(ValueError, match=r"dt_us = 2.0 .* at most 1 us .* \(half of decrease_us\)"):
        Randomised(quick, ranges_of({"decrease_us": 2.0}))
    Randomised(quick, ranges_of({"decrease_us": (1.0, 2.0), "rate": 2.0}))
    with pytest.raises(ValueError, match="randomise = 'load'"):
        parse_ranges(["load"])
