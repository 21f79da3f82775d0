"""Action distributions against enumeration and scipy."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.envs.actions import action_codec


def test_factored_categorical_is_a_distribution():
    head = Head(sizes=(2, 3))
    out = jax.random.normal(jax.random.key(0), (5,))
    every = jnp.array(list(itertools.product(range(2), range(3))))
    log_prob = head.log_prob(jnp.broadcast_to(out, (6, 5)), every)
    p = np.exp(np.asarray(log_prob, np.float64))
    assert p.sum() == pytest.approx(1.0, abs=1e-6)
    assert float(head.entropy(out)) == pytest.approx(stats.entropy(p), rel=1e-5)
    assert every[p.argmax()].tolist() == head.mode(out).tolist()


def test_samples_follow_the_probabilities():
    head = Head(sizes=(4,), scalar=True)
    out = jnp.array([0.0, 1.0, 2.0, -1.0])
    draws = jax.vmap(head.sample, (0, None))(jax.random.split(jax.random.key(0), 20000), out)
    p = np.exp([0.0, 1.0, 2.0, -1.0])
    expected = 20000 * p / p.sum()
    assert stats.chisquare(np.bincount(draws, minlength=4), expected).pvalue > 1e-4


def test_gaussian_samples_follow_the_density():
    head = Head(dim=1)
    out = jnp.array([0.7, 0.4])
    draws = jax.vmap(head.sample, (0, None))(jax.random.split(jax.random.key(1), 20000), out)
    normal = stats.norm(np.tanh(0.7), np.exp(0.4 - 0.5))
    assert stats.kstest(np.asarray(draws[:, 0], np.float64), normal.cdf).pvalue > 1e-4


def test_gaussian_density_and_entropy():
    head = Head(dim=3)
    out = jnp.array([0.3, -0.2, 2.0, 0.1, -1.0, 0.4])
    mean, std = np.tanh([0.3, -0.2, 2.0]), np.exp(np.array([0.1, -1.0, 0.4]) - 0.5)
    action = np.array([0.5, -0.9, 0.1])
    expected = stats.norm.logpdf(action, mean, std).sum()
    assert float(head.log_prob(out, jnp.asarray(action))) == pytest.approx(expected, rel=1e-5)
    assert float(head.entropy(out)) == pytest.approx(stats.norm.entropy(mean, std).sum(), rel=1e-5)


@pytest.mark.parametrize("name", ["multidiscrete", "discrete", "box"])
def test_fits_the_codecs(name):
    codec = action_codec(name)
    head = head_for(codec)
    out = jnp.zeros((2, 7, head.outputs))
    action = head.sample(jax.random.key(0), out)
    assert action.shape == (2, 7, *codec.shape)
    assert head.log_prob(out, action).shape == (2, 7)
    if name != "box":
        codec.check(np.asarray(action[0]), 7)
