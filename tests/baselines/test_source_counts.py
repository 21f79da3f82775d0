"""Counters of traffic sources are in the evaluation, its summary and its tables."""

from __future__ import annotations

import io

import jax
import pytest
from rich.console import Console

import ecn_marl
from ecn_marl.baselines.evaluation.episodes import evaluate, evaluation_keys
from ecn_marl.baselines.static import Static
from ecn_marl.render.tables import evaluation_tables
from ecn_marl.sim import ClosedLoop, Graph, ring_all_reduce, star
from ecn_marl.sim.metrics import source_metrics
from ecn_marl.sim.traffic.poisson import Poisson


def test_operations_and_steps_are_evaluated():
    storage = ClosedLoop(clients=(0,), servers=(1, 2), depth=4, response=16.0)
    training = Graph(ring_all_reduce((3, 4, 5), 300_000))
    scenario = ecn_marl.Scenario(star(6), (Poisson(load=0.05), storage, training), max_steps=10)
    env = ecn_marl.make(scenario)
    params = env.default_params
    secn1 = Static(env, params, "secn1")
    row = evaluate(env, params, secn1, name="secn1", episodes=2).summary()
    sources = row["sources"]
    assert set(sources) == {"1", "2"}

    # The same episodes, interval by interval.
    reset, interval, counted = jax.jit(env.reset), jax.jit(env.sim.interval), []
    for key in evaluation_keys(0, 2):
        state = reset(jax.random.split(key)[0], params)[1].sim
        for _ in range(10):
            state, _ = interval(state, params.sim, env.static_ecn("secn1", params))
        counted.append(source_metrics(env.sim, state))
    for number in (1, 2):
        for name, value in sources[str(number)].items():
            mean = sum(float(episode_counts[number][name]) for episode_counts in counted) / 2
            assert value == (None if mean != mean else pytest.approx(mean, rel=1e-5)), name
    assert sources["1"]["operations"] > 20 and sources["2"]["steps"] >= 2

    result = {"scenario": "own", "episodes": 2, "seed": 0, "policies": [row]}
    file = io.StringIO()
    for table in evaluation_tables(result, str):
        Console(file=file, width=100).print(table)
    text = file.getvalue()
    assert "Traffic source 1" in text and "iops" in text
    assert "Traffic source 2" in text and "step_us" in text
