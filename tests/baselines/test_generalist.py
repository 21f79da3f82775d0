"""The generalist: one policy for several networks."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl.baselines.evaluation.merit import merit_function
from ecn_marl.baselines.generalist import Generalist, GeneralistConfig, _pooled
from ecn_marl.baselines.ippo import IPPO
from ecn_marl.baselines.rl.networks import moments
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.rl.ppo_config import PPOConfig
from ecn_marl.baselines.runs import resume_run, train_run
from ecn_marl.baselines.trained import run_state, trainer_of
from ecn_marl.baselines.training.checkpoint import read_config
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

NAMES = ("three-hosts-v0", "four-hosts-v0")

SIZES = {"envs": 2, "rollout": 4, "minibatches": 2, "epochs": 2, "hidden": (8,), "standardise": 8}

CONFIG = GeneralistConfig(**SIZES, also=NAMES[1:])


def scenario(hosts: int) -> Scenario:
    """Bursts to hosts of a switch; two intervals."""
    bursts = Incast(load=0.6, n_max=2, flow_kb=50.0, width=2)
    return Scenario(topology=star(hosts), traffic=(bursts,), slots=16, max_steps=2, pfc=False)


@pytest.fixture(scope="module")
def envs():
    """Environments with three and four agents."""
    for name, hosts in zip(NAMES, (3, 4), strict=True):
        if name not in ecn_marl.scenarios():
            ecn_marl.register(name, lambda hosts=hosts: scenario(hosts))
    return tuple(ecn_marl.make(name) for name in NAMES)


@pytest.fixture(scope="module")
def trained(envs, tmp_path_factory):
    """A run of two updates with two seeds."""
    out = tmp_path_factory.mktemp("generalist") / "run"
    result = train_run(
        "generalist",
        NAMES[0],
        settings={**SIZES, "also": NAMES[1:]},
        steps=2 * CONFIG.steps_per_update,
        seeds=2,
        eval_every=1,
        eval_episodes=2,
        out=out,
    )
    return out, result


def test_equal_scenarios_are_learnt_from_as_one(envs):
    """Twice the same data: the gradient steps are those of IPPO on it once."""
    first, second = envs
    rng, rows = np.random.default_rng(0), (4, 2, first.num_agents)

    def numbers(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    key = jax.random.key(0)
    batch = Batch(
        obs=numbers(*rows, first.obs_dim),
        action=jax.vmap(lambda k: first.action.sample(k, first.num_agents))(
            jax.random.split(key, 8)
        ).reshape(*rows, -1),
        log_prob=numbers(*rows) - 6.0,
        advantage=numbers(*rows),
        target=numbers(*rows),
        value=numbers(*rows),
    )
    alone = IPPO(first, PPOConfig(**SIZES))
    state = jax.jit(alone.init)(key, first.default_params)
    several = Generalist(first, CONFIG, (second,))
    one, losses = jax.jit(alone.learn)(state, batch, key)
    two, mean = jax.jit(several._learn)(state, (batch, batch), key)
    for a, b in zip(*map(jax.tree.leaves, (one.actor, two.actor)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for name, value in losses.items():
        np.testing.assert_allclose(mean[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_every_scenario_moves_the_policy(envs):
    """Data of one scenario without gain leave it to the other one to move the policy."""
    first, second = envs
    trainer = Generalist(first, CONFIG, (second,))
    key = jax.random.key(1)
    state = jax.jit(trainer.init)(key, first.default_params)
    batches = []
    for i, (env, obs, kept) in enumerate(zip(state.env, state.obs, state.kept, strict=True)):
        part = replace(state, env=env, obs=obs, kept=kept)
        learner, params = trainer._learners[i], envs[i].default_params
        batches.append(jax.jit(learner.experience)(part, key, params)[1])
    learn = jax.jit(trainer._learn)
    moved = []
    for silent in (0, 1):
        given = [
            batch._replace(advantage=jnp.zeros_like(batch.advantage)) if i == silent else batch
            for i, batch in enumerate(batches)
        ]
        moved.append(learn(state, tuple(given), key)[0].actor)
    leaves = [np.concatenate([x.ravel() for x in jax.tree.leaves(actor)]) for actor in moved]
    start = np.concatenate([x.ravel() for x in jax.tree.leaves(state.actor)])
    assert (leaves[0] != start).any() and (leaves[1] != start).any()
    assert (leaves[0] != leaves[1]).any()


def test_observations_of_all_scenarios_are_standardised_together(envs):
    rng = np.random.default_rng(0)
    samples = [rng.normal(m, s, (5000, 3)) for m, s in ((0.2, 0.1), (0.7, 0.3))]
    mean, deviation = _pooled([(jnp.asarray(x.mean(0)), jnp.asarray(x.std(0))) for x in samples])
    both = np.concatenate(samples)
    np.testing.assert_allclose(mean, both.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, both.std(0), rtol=1e-5)
    trainer = Generalist(envs[0], CONFIG, envs[1:])
    state = jax.jit(trainer.init)(jax.random.key(0), envs[0].default_params)
    for name in ("actor", "critic"):
        centre, _ = moments(getattr(state, name))
        np.testing.assert_array_equal(centre, moments(state.actor)[0])


@pytest.mark.thorough
def test_a_run_stops_and_goes_on(trained, tmp_path):
    _, result = trained
    assert [row["steps"] for row in result.metrics] == [16, 32]
    assert all(len(row["merit"]) == 2 for row in result.metrics)
    settings = {**SIZES, "also": NAMES[1:]}
    common = {"settings": settings, "seeds": 2, "eval_every": 1, "eval_episodes": 2}
    train_run("generalist", NAMES[0], steps=16, out=tmp_path / "run", **common)
    resumed = resume_run(tmp_path / "run", steps=32)
    for a, b in zip(*map(jax.tree.leaves, (resumed.state, result.state)), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def test_one_policy_acts_in_every_network(trained):
    out, _ = trained
    for name in NAMES:
        found = ecn_marl.evaluate(str(out), name, episodes=2, records=False, allow_flagged=True)
        assert {row["episodes"] for row in found.summary["policies"]} == {2}
    actor = run_state(out).actor
    assert jax.tree.leaves(actor)[0].ndim < 3  # no axis of agents


def test_merits_are_means_over_scenarios(trained, envs):
    out, result = trained
    trainer = trainer_of(read_config(out))
    each = []
    for env in envs:
        merit = merit_function(trainer, env, env.default_params, episodes=2, seeds=2)
        each.append(merit(result.state).value)
    np.testing.assert_allclose(result.metrics[-1]["merit"], np.mean(each, 0), rtol=1e-5)


def test_what_does_not_fit_is_refused(envs):
    first, _ = envs
    with pytest.raises(ValueError, match=r"others = .*environments of \('four-hosts-v0',\)"):
        Generalist(first, CONFIG)
    with pytest.raises(ValueError, match=r"also = .* look like three-hosts-v0 to a port"):
        Generalist(first, CONFIG, (ecn_marl.make(NAMES[1], features="pet"),))
    for wrong in ({"also": ("a", "a")}, {"shared": False}, {"follow_j": True}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            GeneralistConfig(**SIZES, **wrong)
    with pytest.raises(ValueError, match="unknown"):
        train_run(
            "generalist", NAMES[0], settings={**SIZES, "also": ("no-such-v0",)}, steps=1, out="x"
        )
