"""Tuners as controllers: the loop written out, equal static settings, names, the command line."""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from commands import TINY
from typer.testing import CliRunner

from ecn_marl.baselines.dynamic import Dynamic
from ecn_marl.baselines.evaluation.episodes import evaluate, evaluation_keys, with_memory
from ecn_marl.baselines.static import Static
from ecn_marl.cli import app
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.experiments import policies as po
from ecn_marl.sim import Incast, leaf_spine, star
from ecn_marl.sim.state import PortStats
from ecn_marl.sim.tuners import parse_tuner

STEPS = 8


@pytest.fixture(scope="module")
def env():
    return make(
        Scenario(
            topology=star(5),
            traffic=(Incast(load=0.8, n_min=2, n_max=4, flow_kb=400.0, width=4, receiver=0),),
            slots=16,
            max_steps=STEPS,
        )
    )


@pytest.fixture(scope="module")
def compiled(env):
    """`reset`, `step_ecn` and the simulator's `interval`."""
    return jax.jit(env.reset), jax.jit(env.step_ecn), jax.jit(env.sim.interval)


def evaluated(env, setting, **options):
    params = env.default_params
    kind, _, text = setting.partition(":")
    controller = {"static": Static, "dynamic": Dynamic}[kind](env, params, text)
    return evaluate(env, params, controller, name=setting, **options).episodes


def test_evaluation_is_the_loop_written_out(env, compiled):
    """Thresholds of an interval follow from the statistics of those before it, as for agents."""
    tuner, params = parse_tuner("pi:qref_kb=1000"), env.default_params
    reset, step, interval = compiled
    update = jax.jit(lambda *of: tuner.update(*of, params.sim.net, env.interval_us))
    measure = jax.jit(env.episode_metrics)
    results, chosen = [], []
    for key in evaluation_keys(3, 2):
        _, sim_key = jax.random.split(key)
        _, state = reset(jax.random.split(key)[0], params)
        memory = tuner.init(params.sim.net)
        zero = jax.numpy.zeros(env.num_agents)
        stats = PortStats(**{f.name: zero for f in fields(PortStats)})
        for _ in range(STEPS):
            memory, ecn = update(memory, stats)
            chosen.append(float(ecn.kmax[0]))
            network, stats = interval(state.sim, params.sim, ecn)
            _, state, *_ = step(sim_key, state, ecn, params)
            np.testing.assert_allclose(network.queue, state.sim.queue, rtol=1e-4, atol=1)
        results.append(measure(state, params))
    assert len(set(chosen)) > STEPS  # the rule did act
    got = evaluated(env, "dynamic:pi:qref_kb=1000", episodes=2, seed=3)
    for name in ("reward", "queue_mean", "utilisation", "flows_finished"):
        expected = np.stack([row[name] for row in results])
        np.testing.assert_allclose(got[name], expected, rtol=1e-4)
    assert got["queue_mean"].min() > 1e3


def test_info_has_all_statistics_of_the_interval(env, compiled):
    params = env.default_params
    reset, step, interval = compiled
    _, state = reset(jax.random.key(0), params)
    ecn = env.static_ecn("secn1", params)
    _, stats = interval(state.sim, params.sim, ecn)
    *_, info = step(jax.random.key(1), state, ecn, params)
    # What is told per traffic class is None with a single one.
    names = {f.name for f in fields(PortStats) if getattr(stats, f.name) is not None}
    for name in names:
        np.testing.assert_allclose(info[name], getattr(stats, name), rtol=1e-5)
    assert float(info["tx_bytes"].sum()) > 0
    assert len(names) >= 9
    accounts = env.accounts(state.sim, params)
    assert set(info) == names | {"kmin", "kmax", "pmax", "reward"} | set(accounts)


def test_a_tuner_at_rest_is_a_static_setting(env):
    """Buffer-coupled thresholds on their floor are SECN2, to the last bit of every metric."""
    at_rest = "dynamic:buffer:alpha=1e-9,floor_kb=400,kmax_over_kmin=4,pmax=0.2"
    rule = evaluated(env, at_rest, episodes=3)
    static = evaluated(env, "static:secn2", episodes=3)
    for name, values in static.items():
        np.testing.assert_array_equal(rule[name], values, err_msg=name)
    assert static["queue_mean"].min() > 1e3


def test_every_episode_starts_afresh(env):
    """Memory does not leak from batch to batch."""
    together = evaluated(env, "dynamic:ecn-sharp", episodes=3)
    apart = evaluated(env, "dynamic:ecn-sharp", episodes=3, batch=1)
    for name in ("reward", "queue_mean"):
        np.testing.assert_allclose(apart[name], together[name], rtol=1e-5)


def test_only_controllers_with_memory_get_one(env):
    params = env.default_params
    dynamic, static = Dynamic(env, params, "pi"), Static(env, params, "secn1")
    assert with_memory(dynamic) is dynamic
    plain = with_memory(static)
    assert plain.init() == plain.observe((), {}) == ()
    assert plain(jax.random.key(0), jax.numpy.zeros(()), ()) is static.ecn


def test_the_parameters_of_the_episode_are_used(env):
    """Thresholds follow the parameters of the controller, not the scenario's."""
    params = env.default_params
    net = replace(params.sim.net, port_rate=2 * params.sim.net.port_rate)
    faster = replace(params, sim=replace(params.sim, net=net))
    slow, fast = (Dynamic(env, p, "ecn-sharp").init()[1] for p in (params, faster))
    np.testing.assert_allclose(fast.kmax, 2 * np.asarray(slow.kmax))


def test_tuners_know_the_switches_of_the_network():
    env = make(Scenario(topology=leaf_spine(2, 2, 2), traffic=(Incast(n_max=2, width=2),)))
    tuner = Dynamic(env, env.default_params, "buffer").tuner
    assert tuner.port_switch == tuple(env.sim.topology.port_switch())


def test_names():
    assert po.resolve("dynamic:pi:qref_kb=60").members == ["dynamic:pi:qref_kb=60"]
    assert po.resolve("dynamic:ecn-sharp").label == "ECN#"
    assert po.resolve("dynamic:pi:qref_kb=60").label == "PI (qref_kb=60)"
    assert po.arena(["dynamic:pi"], None).scenario == "restore-serve-v0"
    with pytest.raises(ValueError, match="unknown tuner 'ecnsharp': did you mean 'ecn-sharp'"):
        po.resolve("dynamic:ecnsharp").members


@pytest.mark.usefixtures("tiny_scenario")
def test_command_line():
    args = ["eval", "dynamic:pi", "static:secn1", "--scenario", TINY, "--episodes", "2"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0
    assert " PI " in result.stdout and "SECN1" in result.stdout
    bad = CliRunner().invoke(app, ["eval", "dynamic:pi:qref=1"])
    assert bad.exit_code == 2
    assert "unknown constant of pi 'qref': did you mean 'qref_kb'" in bad.stderr
