"""Rollouts of many environments against one step after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.rl.distributions import Head, evaluate_actions
from ecn_marl.baselines.rl.rollout import roll
from ecn_marl.lanes import mapping

ENVS, STEPS, SEEDS = 20, 5, 3
ENV, PARAMS = ToyEnv(), ToyParams(max_steps=jnp.int32(10))


def step(key, carry, weight, params):
    """Act by a linear policy with noise."""
    state, obs = carry
    act_key, env_key = jax.random.split(key)
    noise = jax.random.uniform(act_key, (obs.shape[0],))
    action = ((obs @ weight) + noise > 0.5).astype(jnp.int32)
    obs, state, reward, *_ = ENV.step(env_key, state, action, params)
    return (state, obs), (action, reward)


def by_hand(weight, carry, key):
    """The same through XLA, interval after interval."""
    keys = jax.vmap(lambda k: jax.random.split(k, STEPS))(jax.random.split(key, ENVS))
    rows = []
    for t in range(STEPS):
        carry, row = jax.vmap(step, (0, 0, None, None))(keys[:, t], carry, weight, PARAMS)
        rows.append(row)
    return carry, jax.tree.map(lambda *x: jnp.stack(x), *rows)


@pytest.fixture(scope="module")
def start():
    keys = jax.random.split(jax.random.key(1), ENVS)
    obs, state = jax.vmap(ENV.reset, (0, None))(keys, PARAMS)
    weights = jax.random.normal(jax.random.key(2), (SEEDS, obs.shape[-1]))
    return weights, (state, obs)


def assert_same(result, expected):
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_rollouts_are_steps_in_turn(start):
    weights, carry = start
    key = jax.random.key(3)
    result = jax.jit(lambda c: roll(ENV, step, c, key, STEPS, weights[0], PARAMS))(carry)
    assert result[1][0].shape[:2] == (STEPS, ENVS)
    assert_same(result, by_hand(weights[0], carry, key))


def test_every_seed_has_its_own_policy(start, monkeypatch):
    """Seeds go one after the other, so that the environments of each share its networks."""
    weights, carry = start
    carries = jax.tree.map(lambda x: jnp.stack([x] * SEEDS), carry)
    keys = jax.random.split(jax.random.key(4), SEEDS)
    batches, compiled = [], mapping._for_cpu
    monkeypatch.setattr(
        mapping,
        "_for_cpu",
        lambda jaxpr, mapped_args, size, *others: (
            batches.append((mapped_args[-1], size)) or compiled(jaxpr, mapped_args, size, *others)
        ),
    )

    def run_seed(weight, carry, key):
        return roll(ENV, lambda k, c, w: step(k, c, w, PARAMS), carry, key, STEPS, weight)

    results = jax.jit(jax.vmap(run_seed))(weights, carries, keys)
    assert set(batches) == {(False, ENVS)}
    for k in range(SEEDS):
        seed_result = jax.tree.map(lambda x, k=k: x[k], results)
        assert_same(seed_result, by_hand(weights[k], carry, keys[k]))
    assert len({np.asarray(x).tobytes() for x in results[1][0]}) == SEEDS


HEADS = {
    "discrete": (Head(sizes=(3, 2, 5)), lambda u: (u[..., :3] * np.array([3, 2, 5])).astype(int)),
    "scalar": (Head(sizes=(4,), scalar=True), lambda u: (u[..., 0] * 4).astype(int)),
    "gaussian": (Head(dim=2), lambda u: 2.0 * u[..., :2] - 1.0),
}


@pytest.mark.parametrize("name", HEADS)
def test_evaluated_actions_and_their_gradients(name):
    """Log-probability, entropy and the gradient of both against the head's own formulas."""
    head, act = HEADS[name]
    rng = np.random.default_rng(0)
    out = jnp.asarray(rng.normal(size=(7, 3, head.outputs)), jnp.float32)
    action = act(rng.uniform(size=(7, 3, 3)))
    action = jnp.asarray(action, jnp.int32 if head.sizes else jnp.float32)
    weights = jnp.asarray(rng.normal(size=(2, 7, 3)), jnp.float32)

    def loss(out, log_prob, entropy):
        return jnp.sum(weights[0] * log_prob + weights[1] * entropy)

    plain = jax.value_and_grad(lambda o: loss(o, head.log_prob(o, action), head.entropy(o)))(out)
    result = jax.jit(jax.value_and_grad(lambda o: loss(o, *evaluate_actions(head, o, action))))(out)
    for a, b in zip(result, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
