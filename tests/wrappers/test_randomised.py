"""Domain randomisation: an episode's parameters are the scenario's times the drawn factors."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY

from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.trained import run_actors
from ecn_marl.envs.registry import make
from ecn_marl.experiments.jobs import parse_ranges
from ecn_marl.wrappers import AutoReset
from ecn_marl.wrappers.randomised import Randomised, draw, randomised, ranges_of, scaled

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
    after = leaves(randomised(env.default_params, jax.random.key(0), ranges))
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
    episode_params = scaled(params, state.factors, RANGES)
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
    metrics = env.episode_metrics(state, params)
    for name, x in plain.episode_metrics(plain_state, episode_params).items():
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
    env = Randomised(make(TINY), RANGES)
    algorithm = IPPO(env, IPPOConfig(envs=8, rollout=2, epochs=1, minibatches=1, hidden=(4,)))
    state = jax.jit(algorithm.init)(jax.random.key(0), env.default_params)
    steps = np.asarray(state.env.env.steps)
    assert steps.max() > 0
    state, metrics = jax.jit(algorithm.update)(state, env.default_params)
    assert np.isfinite(float(metrics["reward"]))
    ended = steps + 2 >= env.horizon
    after = np.asarray(state.env.env.steps)
    np.testing.assert_array_equal(after[~ended], steps[~ended] + 2)


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
    assert "merit" in result.metrics[-1]
    algorithm, actors = run_actors(tmp_path / "r")
    assert isinstance(algorithm.env.env, Randomised) and len(actors) == 1
    assert algorithm.env.env.ranges == ranges_of(ranges)


def test_bad_ranges_are_named():
    for wrong, message in (
        ({"rtt": 2.0}, "unknown what to randomise 'rtt'"),
        ({"load": 0.5}, "range of load = 0.5"),
        ({"load": (2.0, 1.0)}, "range of load"),
        ({"delay": 2.0}, "up to 1"),
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
