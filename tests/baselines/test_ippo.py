"""IPPO: its loss by hand, its determinism, and that it finds known best actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers
from toy import ToyEnv, ToyParams

from ecn_marl import lanes
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.rl import ppo
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.rl.ppo_rollout import Rollout
from ecn_marl.baselines.training.loop import compiled_update, initial_state, train
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

PARAMS = ToyParams(max_steps=10)
SMALL = IPPOConfig(envs=16, rollout=16, epochs=4, minibatches=2, actor_lr=3e-3, critic_lr=3e-3)


def test_policy_loss_by_hand():
    algorithm = IPPO(ToyEnv(), IPPOConfig())
    actor = jax.eval_shape(algorithm.init, jax.random.key(0), PARAMS).actor
    zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), actor)  # uniform over five choices
    old = np.log([[0.1, 0.2, 0.4]])
    batch = Batch(
        obs=jnp.zeros((1, 3, 2)),
        action=jnp.array([[0, 1, 2]]),
        log_prob=jnp.asarray(old, jnp.float32),
        advantage=jnp.array([[1.0, -2.0, 4.0]]),
        target=jnp.zeros((1, 3)),
    )
    ratio = 0.2 / np.exp(old)  # 2, 1, 0.5
    advantage = (np.array([[1.0, -2.0, 4.0]]) - 1.0) / np.std([1.0, -2.0, 4.0])
    gain = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage).mean()
    loss, metrics = jax.jit(algorithm.policy_loss, static_argnums=(2, 3))(zero, batch, 0.2, 0.5)
    assert float(loss) == pytest.approx(-gain - 0.5 * np.log(5), rel=1e-5)
    assert float(metrics["clipped"]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("change", [-300.0, 300.0])
def test_a_ratio_beyond_float32_leaves_the_gradient_finite(change, advantage):
    """A Gaussian that has narrowed makes some actions e^300 times as likely, or as unlikely."""
    head, old = Head(dim=1), jnp.zeros((4, 1))
    out = jnp.tile(jnp.array([0.1, -1.0]), (4, 1, 1))
    action = jnp.array([0.1, 0.2, -0.1, 0.0])[:, None, None]
    log_prob = head.log_prob(out, action)
    log_prob = log_prob.at[0].add(-change)
    sign = jnp.array([advantage, -0.5, 0.5, 0.2])[:, None]
    batch = Batch(old, action, log_prob, sign, old)

    def loss(out):
        return ppo.policy_loss(head, out, batch, 0.2, 1e-3)[0]

    value, grad = jax.device_get(jax.jit(jax.value_and_grad(loss))(out))
    assert np.isfinite(value) and np.isfinite(grad).all()
    assert (grad[1:] != 0.0).any()


def test_clip_decays_as_in_eq_13():
    config = IPPOConfig(envs=2, rollout=2, epochs=1, minibatches=1, clip_decay_updates=2)
    algorithm = IPPO(ToyEnv(), config)
    run = compiled_update(algorithm, updates=5)
    _, metrics = run(initial_state(algorithm, PARAMS, 0), PARAMS)
    t = np.arange(5)  # T = 2: no decay while t <= T
    np.testing.assert_allclose(
        metrics["clip"], 0.2 * np.where(t > 2, 0.99 ** (t / 2), 1.0), rtol=1e-6
    )


class Paid(ToyEnv):
    """The first agent earns ten times as much."""

    def step(self, *args):
        obs, state, reward, *rest = super().step(*args)
        return obs, state, reward.at[0].mul(10.0), *rest


def test_agents_with_their_own_parameters_are_independent():
    config = IPPOConfig(
        envs=4, rollout=8, epochs=2, minibatches=1, hidden=(4,), shared=False, max_grad_norm=1e-3
    )

    def learnt(env):
        state = train(IPPO(env, config), PARAMS, steps=2 * 32, seed=1).state
        return jax.tree.leaves((state.actor, state.critic))

    plain, paid = learnt(ToyEnv()), learnt(Paid())
    for a, b in zip(plain, paid, strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])
    assert any((a[0] != b[0]).any() for a, b in zip(plain, paid, strict=True))


def test_hybrid_training_starts_every_port_from_the_shared_model():
    offline = IPPOConfig(**{**SMALL.__dict__, "hidden": (8,), "actor_lr": 1e-2})
    first = train(IPPO(ToyEnv(), offline), PARAMS, steps=30 * 256, seed=3)
    start = (first.state.actor, first.state.critic)
    online = IPPOConfig(**{**offline.__dict__, "shared": False, "actor_lr": 1e-4})
    wider = ToyEnv(num_agents=5)  # another network than the one it was trained on
    algorithm = IPPO(wider, online, start=start)
    shapes = jax.eval_shape(algorithm.init, jax.random.key(9), PARAMS).actor
    for new, old in zip(jax.tree.leaves(shapes), jax.tree.leaves(start[0]), strict=True):
        assert new.shape == (5, *old.shape)
    result = train(algorithm, PARAMS, steps=256, seed=9)
    offline_reward = np.mean([row["reward"] for row in first.metrics[-3:]])
    assert offline_reward > 0.9
    # Its first rollout is played by the shared model: an untrained one earns 0.7 at most.
    assert result.metrics[0]["reward"] == pytest.approx(offline_reward, abs=0.05)
    kernel = jax.tree.leaves(result.state.actor)[1]
    assert not np.array_equal(kernel[0], kernel[1])  # copies go their own ways
    for copy in kernel:
        np.testing.assert_allclose(copy, jax.tree.leaves(start[0])[1], atol=0.01)


@pytest.mark.parametrize("shared", tiers([True, False], True))
def test_finds_the_best_action_of_every_agent(shared):
    config = IPPOConfig(**{**SMALL.__dict__, "shared": shared})
    result = train(IPPO(ToyEnv(), config), PARAMS, steps=60 * 256, seed=3)
    assert result.metrics[0]["reward"] < 0.8
    assert np.mean([row["reward"] for row in result.metrics[-3:]]) > 0.95


def test_the_same_seed_gives_the_same_bits_alone_or_among_others():
    algorithm = IPPO(ToyEnv(), SMALL)

    def actor(seed, seeds=1):
        return train(algorithm, PARAMS, steps=3 * 256, seed=seed, seeds=seeds).state.actor

    first, again, other_seed = actor(5), actor(5), actor(6)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(other_seed), strict=True)
    )
    two_seeds = actor(5, seeds=2)
    for a, b, c in zip(*map(jax.tree.leaves, (two_seeds, first, other_seed)), strict=True):
        np.testing.assert_allclose(a[0], b, atol=1e-4)
        np.testing.assert_allclose(a[1], c, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"), [("envs", 0), ("gamma", 1.5), ("actor_lr", 0.0), ("minibatches", 3)]
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        IPPOConfig(**{"envs": 2, "rollout": 2, "minibatches": 1, field: value})


@pytest.mark.slow
@pytest.mark.thorough
def test_solves_a_port_whose_best_setting_is_known():
    """Four hosts keep one port busy; the best of 24 settings is found by trying them all."""
    env = make(
        Scenario(
            topology=star(5),
            traffic=(Incast(load=0.95, n_min=4, n_max=4, flow_kb=20_000.0, width=4),),
            slots=32,
            max_steps=50,
            bins=0,
        ),
        actions="discrete",
    )
    params = env.default_params

    def earned(choose):
        """Mean reward of the busy port over an episode."""

        def run(key):
            def step(carry, key):
                obs, state = carry
                obs, state, reward, *_ = env.step(key, state, choose(key, obs), params)
                return (obs, state), reward[0]

            start = env.reset(key, params)
            return jax.lax.scan(step, start, jax.random.split(key, 50))[1].mean()

        return run

    keys = jax.random.split(jax.random.key(100), 16)
    n = env.action.n

    def fixed(key, setting):
        return earned(lambda _, obs: jnp.full((env.num_agents,), setting))(key)

    def uniform(key, obs):
        return jax.random.randint(key, (env.num_agents,), 0, n)

    all_fixed = jax.vmap(jax.vmap(lanes.mapped(fixed), (0, None)), (None, 0))
    tried = jax.jit(all_fixed)(keys, jnp.arange(n)).mean(1)
    best = float(tried.max())
    chance = float(jax.jit(jax.vmap(lanes.mapped(earned(uniform))))(keys).mean())
    assert chance < 0.9 * best, "the case must tell a good policy from a random one"

    config = IPPOConfig(envs=16, rollout=25, actor_lr=2e-3, critic_lr=2e-3)
    algorithm = IPPO(env, config)
    state = train(algorithm, params, steps=40 * config.steps_per_update, seed=0).state
    learned = earned(lambda key, obs: algorithm.act(state.actor, key, obs, greedy=True))
    assert float(jax.jit(jax.vmap(lanes.mapped(learned)))(keys).mean()) >= 0.95 * best


def test_a_critic_can_be_fitted_to_all_later_rewards():
    """PET, Eq. 12: with `critic_lambda=1` the target is the discounted sum, whatever lambda is."""
    rng = np.random.default_rng(1)
    steps, gamma = 9, 0.9
    shape = (steps, 2, 3)
    reward, value, last = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3))
    never = jnp.zeros(shape, bool)
    rollout = Rollout(None, None, None, reward, never, never, None)
    config = IPPOConfig(gamma=gamma, gae_lambda=0.01, critic_lambda=1.0, reward_scale=0.5)
    next_value = jnp.concatenate([value[1:], last[-1:]])
    advantage, target = IPPO(ToyEnv(), config).advantages(rollout, value, next_value)
    want = np.asarray(last[-1], np.float64)
    for t in reversed(range(steps)):
        want = 0.5 * reward[t] + gamma * want
        np.testing.assert_allclose(target[t], want, rtol=1e-5, atol=1e-5)
    plain, _ = IPPO(
        ToyEnv(), IPPOConfig(gamma=gamma, gae_lambda=0.01, reward_scale=0.5)
    ).advantages(rollout, value, next_value)
    np.testing.assert_array_equal(advantage, plain)
