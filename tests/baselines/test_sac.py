"""SAC: density of its actions, target and steps by hand, and that it finds known best actions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.sac import SAC, Row, SACConfig, squashed
from ecn_marl.baselines.training.loop import initial_state, train
from ecn_marl.envs.registry import make

PARAMS = ToyParams(max_steps=10)
SMALL = SACConfig(envs=8, rollout=8, batch=64, gradient_steps=16, lr=3e-3, gamma=0.3)


@dataclass(frozen=True)
class Interval:
    """One number in [-1, 1]."""

    name: str = "box"
    shape: tuple[int, ...] = (1,)

    def sample(self, key, num_agents):
        return jax.random.uniform(key, (num_agents, 1), minval=-1.0)


@dataclass(frozen=True)
class Aim(ToyEnv):
    """Agents see a target of 0 or 1 and earn most for -0.5 or 0.5."""

    action: Interval = Interval()

    def step(self, key, state, action, params):
        off = jnp.abs(action[..., 0] - (state.target - 0.5))
        obs, new, _, *rest = super().step(key, state, 1 + 2 * state.target, params)
        return obs, new, 1.0 - off, *rest


def test_the_density_is_that_of_the_tanh():
    """It integrates to 1, and equal shares of draws lie below its quantiles."""
    out = jnp.array([0.8, 0.3])  # mean, raw deviation
    std = np.exp(0.3 - 0.5)

    def density(a):
        x = np.arctanh(a)
        return np.exp(-0.5 * ((x - 0.8) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / (1 - a**2)

    action, log_prob = squashed(jax.random.key(0), jnp.tile(out, (4000, 1)))
    action = np.asarray(action, np.float64)[:, 0]
    inner = np.abs(action) < 0.999  # float32 cannot invert tanh closer to 1
    np.testing.assert_allclose(np.exp(log_prob)[inner], density(action[inner]), rtol=5e-3)
    assert integrate.quad(density, -1, 1)[0] == pytest.approx(1.0, abs=1e-6)
    below = integrate.quad(density, -1, 0.5)[0]
    assert abs((action < 0.5).mean() - below) < 4 * np.sqrt(below * (1 - below) / 4000)


def test_large_draws_have_a_finite_density():
    action, log_prob = squashed(jax.random.key(0), jnp.array([[40.0, 0.0], [-40.0, 0.0]]))
    assert np.abs(action).max() == 1.0 and np.isfinite(log_prob).all()


@pytest.fixture(scope="module")
def fresh():
    trainer = SAC(Aim(), replace(SMALL, standardise=4, temperature=0.7))
    state = initial_state(trainer, PARAMS, 1)
    rng = np.random.default_rng(0)
    rows = Row(
        *(jnp.asarray(rng.normal(size=(16, n)), jnp.float32) for n in (2, 1)),
        jnp.asarray(rng.normal(size=16), jnp.float32),
        jnp.asarray(rng.choice([0.0, 0.9], 16), jnp.float32),
        jnp.asarray(rng.normal(size=(16, 2)), jnp.float32),
    )
    return trainer, state, rows


def test_the_target_by_hand(fresh):
    trainer, state, rows = fresh
    key = jax.random.key(3)

    @jax.jit
    def by_parts():
        action, log_prob = squashed(key, trainer.net.apply(state.actor, rows.next_obs))
        both = jnp.concatenate((rows.next_obs, action), -1)
        q = [
            trainer.critic.apply(jax.tree.map(lambda x, i=i: x[i], state.targets), both)[:, 0]
            for i in range(2)
        ]
        return log_prob, q

    target = jax.jit(trainer.target)(state, key, rows)
    log_prob, q = by_parts()
    assert np.abs(q[0] - q[1]).max() > 0.01
    soft = np.minimum(*q) - 0.7 * np.asarray(log_prob)
    np.testing.assert_allclose(target, rows.reward + rows.discount * soft, rtol=1e-4, atol=1e-5)
    over = np.asarray(rows.discount) == 0.0
    np.testing.assert_array_equal(np.asarray(target)[over], np.asarray(rows.reward)[over])


def test_a_step_by_its_effects(fresh):
    """Targets follow by tau, the temperature rises where the entropy is too low."""
    trainer, state, rows = fresh
    after, metrics = jax.jit(trainer.gradient_step)(state, jax.random.key(1), rows)
    expected = jax.tree.map(
        lambda old, new: 0.995 * old + 0.005 * new, state.targets, after.critics
    )
    for a, b in zip(jax.tree.leaves(after.targets), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    low = float(metrics["entropy"]) < -1.0  # that of one component
    assert (float(after.log_temperature) > float(state.log_temperature)) == low
    assert float(metrics["temperature"]) == pytest.approx(0.7)


def test_rows_are_what_the_ports_saw():
    """Every port's interval once, with the observation that followed it."""
    trainer = SAC(Aim(), SMALL)
    state = initial_state(trainer, PARAMS, 1)
    after, rows, _ = jax.jit(trainer.collect)(state, jax.random.key(1), PARAMS)
    by_step = jax.tree.map(lambda x: np.asarray(x).reshape(8, 8, 3, *x.shape[1:]), rows)
    np.testing.assert_array_equal(by_step.obs[0], state.obs)
    step = np.round(10 * by_step.obs[1:, ..., 1])  # before, episodes are put at other steps
    np.testing.assert_allclose(by_step.next_obs[1:, ..., 1], (step + 1) / 10, atol=1e-6)
    np.testing.assert_allclose(
        by_step.reward, 1 - np.abs(by_step.action[..., 0] - (by_step.obs[..., 0] - 0.5)), rtol=1e-5
    )
    np.testing.assert_allclose(rows.discount, 0.3)  # truncated, not terminated
    assert np.abs(after.obs - state.obs).max() > 0


def test_finds_the_best_action():
    trainer = SAC(Aim(), replace(SMALL, temperature=0.02, entropy=-2.0))
    result = train(trainer, PARAMS, steps=80 * SMALL.steps_per_update, seed=1)
    shown, progress = np.meshgrid([0.0, 1.0], np.arange(10) / 10)
    obs = np.stack([shown, progress], -1).reshape(-1, 1, 2).repeat(3, 1).astype(np.float32)
    action = trainer.act(result.state.actor, jax.random.key(0), jnp.asarray(obs), greedy=True)
    assert np.abs(action[..., 0] - (obs[..., 0] - 0.5)).max() < 0.1
    assert result.metrics[0]["reward"] < 0.6 and result.metrics[-1]["reward"] > 0.85


def test_wrong_settings():
    for name, value in (("tau", 0.0), ("capacity", 0), ("gamma", 1.5), ("entropy", np.inf)):
        with pytest.raises(ValueError, match=name):
            replace(SMALL, **{name: value})
    with pytest.raises(ValueError, match=r"actions = 'discrete' is not allowed: expected box"):
        SAC(make("websearch-star-v0", actions="discrete"), SACConfig())
