"""Advantages against sums written out step by step in float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from roundoff import U

from ecn_marl.baselines.rl.gae import gae


def by_definition(reward, value, next_value, terminated, truncated, gamma, lam):
    """Eq. 16 of the GAE paper: a weighted sum of one-step errors up to the end of the episode."""
    steps = len(reward)
    delta = [
        reward[t] + (0.0 if terminated[t] else gamma * next_value[t]) - value[t]
        for t in range(steps)
    ]
    advantages = []
    for t in range(steps):
        total, weight = 0.0, 1.0
        for k in range(t, steps):
            total += weight * delta[k]
            if terminated[k] or truncated[k]:
                break
            weight *= gamma * lam
        advantages.append(total)
    return np.array(advantages)


@given(
    seed=st.integers(0, 2**31),
    gamma=st.floats(0.0, 1.0),
    lam=st.floats(0.0, 1.0),
    ends=st.lists(st.sampled_from(["go", "terminated", "truncated"]), min_size=12, max_size=12),
)
def test_matches_the_definition(seed, gamma, lam, ends):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, 12))
    terminated = np.array([e == "terminated" for e in ends])
    truncated = np.array([e == "truncated" for e in ends])
    expected = by_definition(reward, value, next_value, terminated, truncated, gamma, lam)
    advantage, target = gae(
        *(jnp.asarray(x, jnp.float32)[:, None] for x in (reward, value, next_value)),
        jnp.asarray(terminated)[:, None],
        jnp.asarray(truncated)[:, None],
        gamma,
        lam,
    )
    # No sum exceeds all that goes into it. Float32 rounds the three inputs, four operations a step
    # and both discounts, each at most once a step.
    near = 9 * len(reward) * U * np.abs([reward, value, next_value]).sum()
    np.testing.assert_allclose(advantage[:, 0], expected, rtol=0, atol=near)
    np.testing.assert_allclose(target[:, 0], expected + value, rtol=0, atol=near)


def test_truncation_bootstraps_and_termination_does_not():
    ones, no, yes = jnp.ones((1, 1)), jnp.zeros((1, 1), bool), jnp.ones((1, 1), bool)
    cut, _ = gae(ones, 0 * ones, 10 * ones, no, yes, 0.5, 1.0)
    ended, _ = gae(ones, 0 * ones, 10 * ones, yes, no, 0.5, 1.0)
    assert float(cut[0, 0]) == 6.0
    assert float(ended[0, 0]) == 1.0
