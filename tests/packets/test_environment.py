"""Environments on packets: the same faces, observations and accounts as in the fluid."""

from __future__ import annotations

import copy
import pickle
import sys

import jax
import numpy as np
import pytest
from packetcases import runner
from pettingzoo.test import parallel_api_test
from tiny import OPTIONS, SCENARIO

import ecn_marl
import ecn_marl.packets
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.static import Static
from ecn_marl.sim import ClosedLoop
from ecn_marl.sim.state import COUNTS

KEY = jax.random.key(0)

assert runner  # importing it skips these tests where Numba is missing


def small(backend="packets", **options):
    """Three ports, two senders, six intervals."""
    given = {**OPTIONS, "max_steps": 6, "history": 2, "counts": COUNTS, **options}
    return ecn_marl.make(SCENARIO, backend=backend, **given)


def functions(env):
    """Reset, step and metrics; those of the fluid compiled."""
    found = env.reset, env.step_ecn, env.episode_metrics
    return found if env.sim.on_host else tuple(map(jax.jit, found))


@pytest.fixture(scope="module")
def episodes():
    """Infos `[6, A]` and last state of an episode under the same seed, by backend."""
    runs = {}
    for backend in ("fluid", "packets"):
        env = small(backend)
        params, rows = env.default_params, []
        reset, step, last = functions(env)
        obs, state = reset(jax.random.key(3), params)
        ecn = env.static_ecn("20,80,0.5", params)
        for _ in range(6):
            obs, state, *_, info = step(KEY, state, ecn, params)
            rows.append(info)
        metrics = last(state, params)
        infos = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        runs[backend] = infos, metrics, np.asarray(obs)
    return runs


def test_both_backends_report_the_same_things(episodes):
    fluid, packets = episodes["fluid"], episodes["packets"]
    for one, other in zip(fluid[:2], packets[:2], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert np.shape(one[name]) == np.shape(other[name]), name
    assert fluid[2].shape == packets[2].shape and np.isfinite(packets[2]).all()


def test_traffic_is_the_same_and_what_it_does_nearly(episodes):
    """Senders and coins differ by chance; flows do not."""
    fluid, packets = episodes["fluid"][0], episodes["packets"][0]
    assert (fluid["flows_begun"] == packets["flows_begun"]).all()
    assert (fluid["offered"] == packets["offered"]).all()
    assert (fluid["n_senders"] == packets["n_senders"]).all()
    assert packets["tx_bytes"].sum() == pytest.approx(fluid["tx_bytes"].sum(), rel=0.03)
    busy = fluid["utilisation"] > 0.2
    assert np.allclose(packets["utilisation"][busy], fluid["utilisation"][busy], atol=0.1)
    assert packets["reward"].sum() == pytest.approx(fluid["reward"].sum(), rel=0.1)


def test_counters_are_whole_packets(episodes):
    packets = episodes["packets"][0]
    marked = packets["marked_packets"]
    assert (marked == np.round(marked)).all() and marked.sum() > 10
    assert np.allclose(packets["marked_bytes"], 1048 * marked)
    by_size = sum(packets[f"{s}_bytes"] for s in ("small", "medium", "large"))
    assert (by_size <= packets["tx_bytes"]).all()
    assert (packets["flows_seen"] == packets["n_mice"] + packets["n_elephants"]).all()


def test_the_pettingzoo_face():
    env = ecn_marl.parallel_env(SCENARIO, backend="packets", **OPTIONS)
    parallel_api_test(env, num_cycles=8)
    env.reset(seed=5)
    actions = {a: env.action_space(a).sample() for a in env.agents}
    env.step(actions)
    ends = [face.step(actions) for face in (copy.copy(env), pickle.loads(pickle.dumps(env)), env)]
    for obs, rewards, *_ in ends[1:]:
        assert rewards == ends[0][1]
        assert all((obs[a] == ends[0][0][a]).all() for a in obs)


def test_evaluation_runs_the_episodes_one_by_one():
    env = small(max_steps=4)
    params = env.default_params
    result = evaluate(env, params, Static(env, params, "secn1"), name="x", episodes=3, windows=2)
    assert result.columns["J"].shape == (3,) and result.columns["offered"].min() > 0
    one = evaluate(env, params, Static(env, params, "secn1"), name="x", episodes=3)
    assert (one.columns["finished"] == result.columns["finished"]).all()


def after_four(env):
    """Metrics after four intervals under SECN1."""
    params = env.default_params
    reset, step, last = functions(env)
    _, state = reset(jax.random.key(0), params)
    ecn = env.static_ecn("secn1", params)
    for _ in range(4):
        _, state, *_ = step(KEY, state, ecn, params)
    return {name: np.asarray(x) for name, x in last(state, params).items()}


def closed_loop(backend):
    """Metrics of two clients of one server."""
    loop = ClosedLoop((0, 1), (2,), depth=2, request=1.0, response=20.0)
    return after_four(small(backend, traffic=(loop,), slots=8))


def test_closed_loops_run():
    """Clients wait for responses, so sources are told of every flow that has finished."""
    found = closed_loop("packets")
    assert float(found["source:0:operations"]) > 15
    # Of every operation two flows have ended, and of the four in progress at most one each.
    ended = found["finished"] - 2 * found["source:0:operations"]
    assert 0 <= ended <= 4
    assert 0 < found["started"] - found["finished"] <= 4


@pytest.mark.thorough
def test_closed_loops_are_as_fast_as_in_the_fluid():
    fluid, packets = closed_loop("fluid"), closed_loop("packets")
    for name in ("source:0:operations", "source:0:latency_us", "started", "finished"):
        assert packets[name] == pytest.approx(fluid[name], rel=0.15), name


def test_unknown_backends_and_missing_numba_are_told(monkeypatch):
    with pytest.raises(ValueError, match="unknown backend 'ns3'"):
        small("ns3")
    monkeypatch.setattr(ecn_marl.packets, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'ecn-marl\[packets\]'"):
        small()
    assert "numba" in sys.modules
