"""Objectives of parts: J, its columns and tables, and the reward that follows from it."""

from __future__ import annotations

from dataclasses import fields, replace

import jax
import numpy as np
import pytest
from tiers import tiers

import ecn_marl
from ecn_marl import _parts
from ecn_marl.baselines.evaluation.completion import summarise
from ecn_marl.baselines.evaluation.episodes import Evaluation
from ecn_marl.baselines.evaluation.objective import episode_objective
from ecn_marl.envs.objectives import Part, objective_metrics
from ecn_marl.envs.registry import lookup
from ecn_marl.envs.rewards import Reward
from ecn_marl.envs.scenario import Scenario
from ecn_marl.envs.scenarios import ai_network as ai
from ecn_marl.envs.scenarios import (
    all_reduce,
    decode_cache,
    hot_experts,
    storage_train,
    two_jobs,
    wide_restore,
)
from ecn_marl.sim import Incast, Poisson, star
from ecn_marl.sim.traffic.collectives import ring_all_reduce, stripe_read
from ecn_marl.sim.traffic.graphs import Graph
from ecn_marl.sim.traffic.tickets import TIME_UNIT

RING_BYTES, STRIPE = 400_000, 600_000
RING = Graph(ring_all_reduce((0, 1, 2, 3), RING_BYTES), pause_us=150.0, pause_jitter=0.5)
READ = Graph(stripe_read((2, 3, 4), 0, STRIPE, 6), pause_us=40.0, start_us=100.0)
IDEAL = {"ring": 6 * (1.048 * RING_BYTES / 4 / 3125.0 + 4.0), "read": 1.048 * STRIPE / 3125.0 + 4.0}
PARTS = (
    Part("ring", 1.0, (0,), IDEAL["ring"], reward=2.0, par=1.5),
    Part("read", 2.0, (1,), IDEAL["read"], reward=0.5),
    Part("short_mean", 1.0),
)
SMALL = Scenario(
    topology=star(5),
    traffic=(RING, READ, Poisson(load=0.2)),
    dt_us=1.0,
    tick_steps=4,
    slots=96,
    max_steps=30,
    reward="slowdown",
    slowdown_weights=(0.02, 0.0, 0.0),
    objective=PARTS,
    phased_by=0,
)
STEPS = 30


class OfSteps(Reward):
    """What steps of jobs change: the reward less that without them."""

    def __call__(self, *of, **by):
        return super().__call__(*of, **by) - super().__call__(*of[:4])


@pytest.fixture(scope="module")
def episode():
    """States and `OfSteps` of an episode under SECN1, the environment and its parameters."""
    env = ecn_marl.make(SMALL)
    own = {f.name: getattr(env.reward, f.name) for f in fields(Reward)}
    env = replace(env, reward=OfSteps(**own))
    params = env.default_params
    ecn = env.static_ecn("secn1", params)
    step = jax.jit(env.step_ecn)
    key = jax.random.key(3)
    _, state = jax.jit(env.reset)(key, params)
    states, rewards = [state], []
    for _ in range(STEPS):
        _, state, reward, *_ = step(key, state, ecn, params)
        states.append(state)
        rewards.append(np.asarray(reward))
    return env, params, states, np.array(rewards)


def time_in_steps(env, state):
    """Time in steps over the ideal, and steps done, by part."""
    found = {}
    for part in PARTS[:2]:
        (number,) = part.sources
        source, own = env.sim.traffic[number], state.sim.traffic[number]
        _, spent = source.in_steps(own, env.sim.tick_us)
        found[part.name] = float(spent) / IDEAL[part.name], float(source.progress(own))
    return found


def test_rewards_add_up_to_time_in_steps_less_what_is_done(episode):
    """Exactly, at the end of every interval; flows' slowdowns are the rest."""
    env, _, states, rewards = episode
    of_steps = rewards.cumsum(0)
    assert np.ptp(of_steps, axis=1).max() < 1e-3, "the whole team earns it"
    for i, state in enumerate(states[1:]):
        found = time_in_steps(env, state)
        expected = sum(
            part.reward * (spent - part.par * done)
            for part, (spent, done) in zip(PARTS, found.values(), strict=False)
        )
        assert of_steps[i, 0] == pytest.approx(-expected, abs=2e-3)
    assert time_in_steps(env, states[-1])["ring"][1] >= 2.0, "several steps, or this shows little"


def test_j_is_the_weighted_geometric_mean_of_the_parts(episode):
    env, params, states, _ = episode
    names: list[str] = []  # in the order of the environment, which `jit` does not keep

    @jax.jit
    def measured(state):
        metrics = env.episode_metrics(state, params)
        names.extend(metrics)
        return list(metrics.values())

    values = jax.device_get(measured(states[-1]))
    metrics = {name: value[None] for name, value in zip(names, values, strict=True)}
    columns = Evaluation("x", metrics).columns
    for part in PARTS[:2]:
        (number,) = part.sources
        source, own = env.sim.traffic[number], states[-1].sim.traffic[number]
        begun, spent = source.in_steps(own, env.sim.tick_us)
        expected = float(spent) / float(begun) / IDEAL[part.name]
        assert columns[f"part:{part.name}"][0] == pytest.approx(expected, rel=1e-5)
        assert expected > 0.99, "no step is faster than alone"
    ring, read = (columns[f"part:{name}"] for name in ("ring", "read"))
    expected = ring**0.25 * read**0.5 * columns["short_mean"] ** 0.25
    np.testing.assert_allclose(columns["J"], expected, rtol=1e-6)
    found = episode_objective(metrics)
    np.testing.assert_allclose(found["J"], columns["J"], rtol=1e-6)
    assert set(found) == {"J", "ring", "read", "short_mean"}
    summary = summarise("x", {k: v[None] for k, v in columns.items()}, allow_flagged=True)
    assert list(summary["parts"]) == ["ring", "read", "short_mean"]
    assert summary["weights"] == {"ring": 0.25, "read": 0.5, "short_mean": 0.25}
    assert _parts.formula(summary["weights"]) == "J = ring^0.25 · read^0.5 · short_mean^0.25"


def test_the_longest_step_is_that_of_the_steps_one_by_one(episode):
    """The times of steps as they end; a step that is on counts with its age."""
    env, _, states, _ = episode
    tail = (Part("worst", 1.0, (0, 1), 10.0, longest=True),)
    worst, last_steps = 0.0, [0, 0]
    for state in states[1:]:
        for i in (0, 1):
            own = state.sim.traffic[i]
            if int(own.steps) > last_steps[i]:
                assert int(own.steps) == last_steps[i] + 1, "one at a time, or some are missed"
                worst, last_steps[i] = max(worst, float(own.last)), int(own.steps)
        found = objective_metrics(tail, env.sim.traffic, state.sim.traffic, env.sim.tick_us)
        value = 10.0 * float(found["part:worst"])
        begun = [env.sim.traffic[i].in_steps(state.sim.traffic[i], env.sim.tick_us) for i in (0, 1)]
        ages = [
            float(spent) - float(own.total[0] * TIME_UNIT + own.total[1])
            for (_, spent), own in zip(begun, state.sim.traffic, strict=False)
        ]
        assert value == pytest.approx(max(worst, *ages), rel=1e-5)
    assert min(last_steps) >= 2


def test_the_oracle_is_told_whether_the_job_is_in_a_step(episode):
    env, params, states, _ = episode
    assert env.phase_names == ("between steps", "in a step")
    phases = [int(env.phase(state, params)[0]) for state in states]
    assert phases[0] == 0 and {0, 1} == set(phases)
    for before, state, phase in zip(states, states[1:], phases[1:], strict=False):
        grew = time_in_steps(env, state)["ring"][0] - time_in_steps(env, before)["ring"][0]
        if not phase:  # the step that was on has ended, or none was
            assert grew * IDEAL["ring"] < env.interval_us + 1e-2
    assert len(set(phases)) == 2


def test_rewards_of_the_papers_have_no_part_of_steps(episode):
    _, _, states, _ = episode
    env = ecn_marl.make(SMALL, reward="pet")
    params = env.default_params
    ecn = env.static_ecn("secn1", params)
    *_, info = jax.jit(env.step_ecn)(jax.random.key(0), states[20], ecn, params)
    assert ((np.asarray(info["reward"]) >= 0.0) & (np.asarray(info["reward"]) <= 1.0)).all()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: Part("speed"), "unknown part without sources 'speed'"),
        (lambda: Part("ring", 1.0, (0,)), "ideal_us above 0"),
        (lambda: Part("a:b", 1.0, (0,), 5.0), "without a colon"),
        (lambda: Part("short_mean", reward=1.0), "flows have slowdown_weights"),
        (lambda: Part("ring", 0.0, (0,), 5.0), "weight = 0"),
        (lambda: Part("ring", 1.0, (0,), 5.0, reward=1.0, longest=True), "longest = True"),
        (lambda: Part("short_mean", longest=True), "longest = True"),
        (lambda: ecn_marl.make(replace(SMALL, objective=PARTS[:1] * 2)), "each part once"),
        (
            lambda: ecn_marl.make(replace(SMALL, objective=(Part("x", 1.0, (2,), 5.0),))),
            r"sources = 2 is not allowed: expected Graphs, of \[0, 1\]",
        ),
        (lambda: ecn_marl.make(replace(SMALL, phased_by=2)), "phased_by = 2"),
        (
            lambda: ecn_marl.make(replace(SMALL, traffic=(Incast(width=2),))),
            "part 'ring': sources = 0",
        ),
    ],
)
def test_parts_that_cannot_be_are_refused(part, message):
    with pytest.raises(ValueError, match=message):
        part()


IDEAL_TIMES = {
    ("storage-train-v0", 0): ai.ring_us(8, storage_train.GRADIENTS),
    ("storage-train-v0", 1): ai.fill_us(storage_train.STRIPE),
    ("storage-train-full-v0", 35): ai.ring_us(8, storage_train.GRADIENTS),
    ("all-reduce-v0", 0): ai.ring_us(12, all_reduce.GRADIENTS),
    ("two-jobs-v0", 0): two_jobs.exchange_us(two_jobs.LARGE_BYTES),
    ("wide-restore-v0", 0): ai.fill_us(wide_restore.STRIPE),
    ("decode-cache-v0", 1): ai.fill_us(decode_cache.CACHE),
    ("hot-experts-v0", 1): ai.fill_us(hot_experts.FILE),
}


@pytest.mark.parametrize(("name", "number"), tiers(IDEAL_TIMES, ("storage-train-v0", 0)))
def test_ideal_times_are_those_of_a_job_alone(name, number):
    """One job in the network, deep thresholds: its steps take the ideal time or a little more."""
    ideal_us = IDEAL_TIMES[name, number]
    spec = lookup(name)
    source = replace(spec.traffic[number], start_us=0.0, size_jitter=0.0)
    part = Part("own", 1.0, (0,), ideal_us)
    alone = replace(
        spec, traffic=(source,), objective=(part,), phased_by=None, failing={}, max_steps=60
    )
    env = ecn_marl.make(alone)
    params, key = env.default_params, jax.random.key(1)
    ecn, step = env.static_ecn("1e5,2e5,0.01", params), jax.jit(env.step_ecn)
    _, state = jax.jit(env.reset)(key, params)
    for _ in range(60):
        _, state, *_ = step(key, state, ecn, params)
    steps = float(state.sim.traffic[0].steps)
    value = float(jax.jit(env.episode_metrics)(state, params)["source:0:step_us"]) / ideal_us
    assert steps >= 1 and 0.98 < value < 1.2
