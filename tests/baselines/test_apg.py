"""APG: its gradient against finite differences, and where it is zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from ecn_marl.baselines.apg import APG, APGConfig, mean_of_finite


@pytest.fixture(scope="module")
def compiled():
    """Trainer, fresh training state, and compiled: gradients of a window, its loss."""
    trainer = APG(APGConfig(senders=(2,), envs=2, rollout=32, horizon=32, share=1.0))
    env, params = trainer.envs[0], trainer.default_params[0]
    state = jax.jit(trainer.init)(jax.random.key(0), trainer.default_params)
    gradients = jax.jit(lambda actor, envs: trainer.gradients(env, actor, envs, params))
    loss = jax.jit(lambda actor, env_state: trainer.loss(env, actor, env_state, params)[0])
    return trainer, state, gradients, loss


def first(tree):
    """Of a batch of environments, the first."""
    return jax.tree.map(lambda x: x[0], tree)


@pytest.mark.slow
def test_the_gradient_is_that_of_the_simulated_reward(compiled):
    """Central differences along random directions, while the queue builds up."""
    _, state, gradients, loss = compiled
    flat, unravel = ravel_pytree(state.actor)
    envs = state.env[0]
    for _ in range(2):
        grads, (envs_after, _) = gradients(state.actor, envs)
        slope = ravel_pytree(first(grads))[0]
        assert float(jnp.linalg.norm(slope)) > 0.1
        for seed in range(4):
            along = jax.random.normal(jax.random.key(seed), flat.shape)
            along = along / jnp.linalg.norm(along)
            up, down = (float(loss(unravel(flat + h * along), first(envs))) for h in (1e-3, -1e-3))
            assert float(slope @ along) == pytest.approx((up - down) / 2e-3, rel=0.03, abs=0.01)
        envs = envs_after


def test_rates_clipped_to_the_line_rate_have_no_gradient(compiled):
    """Both flows are at line rate and the policy raises them: all gradients are zero."""
    _, state, gradients, loss = compiled
    for seed in range(20):
        actor = jax.tree.map(
            lambda x, seed=seed: jax.random.normal(jax.random.key(seed), x.shape), state.actor
        )
        envs = state.env[0]
        for _ in range(6):  # the first rollouts raise the rates to the line rate
            grads, (envs, events) = gradients(actor, envs)
        if float(jnp.min(jnp.where(events.valid, events.action, 2.0))) > 1.001:
            break
    else:
        pytest.fail("no policy that only raises rates")
    np.testing.assert_allclose(envs.sim.flows.transport.rate, 12500.0)
    assert not any(np.asarray(g).any() for g in jax.tree.leaves(grads))
    assert float(loss(actor, first(envs))) > 1.0


def test_gradients_that_are_not_finite_are_left_out_and_counted():
    grads = {"a": jnp.array([1.0, jnp.nan, 3.0]), "b": jnp.array([[1.0], [5.0], [3.0]])}
    mean, lost = mean_of_finite(grads)
    assert float(mean["a"]) == 2.0
    np.testing.assert_array_equal(mean["b"], [2.0])
    assert int(lost) == 1
    _, lost = mean_of_finite(jax.tree.map(lambda x: x * jnp.nan, grads))
    assert int(lost) == 3


def test_its_gradient_reduces_the_loss(compiled):
    """Short steps against the gradient reduce the loss of its window by the predicted amount."""
    _, state, gradients, loss = compiled
    _, (envs, _) = gradients(state.actor, state.env[0])
    actor, length, promised = state.actor, 0.004, 0.0
    first_loss = float(loss(state.actor, first(envs)))
    for _ in range(5):
        grads, _ = gradients(actor, envs)
        norm = jnp.linalg.norm(ravel_pytree(first(grads))[0])
        actor = jax.tree.map(lambda a, g, n=norm: a - length * g[0] / n, actor, grads)
        promised += length * float(norm)
    won = first_loss - float(loss(actor, first(envs)))
    assert won == pytest.approx(promised, rel=0.3) and promised > 0.005


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 100}, "horizon = 100"),
        ({"horizon": 0}, "horizon = 0"),
        ({"share": 1.5}, r"share = 1\.5"),
        ({"share": 0.0}, r"share = 0\.0"),
        ({"lr": 0.0}, "lr"),
    ],
)
def test_bad_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        APGConfig(**change)
