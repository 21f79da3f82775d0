"""Spaces of the functional environments: what `step` takes, what `reset` returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import AGENTS, tiny

import ecn_marl
from ecn_marl.envs.spaces import Box, of_agents


@pytest.mark.parametrize("actions", ["multidiscrete", "discrete", "box", "thresholds"])
def test_a_sample_is_an_action_of_all_agents(actions):
    env = tiny(actions)
    space, one = env.action_space(env.default_params), env.action.gymnasium_space()
    sample = jax.jit(space.sample)(jax.random.key(0))
    assert sample.shape == space.shape == (AGENTS, *one.shape) and sample.dtype == space.dtype
    assert bool(space.contains(sample))
    assert all(one.contains(np.asarray(row).astype(one.dtype)) for row in sample)
    env.action.check(np.asarray(sample), AGENTS)
    assert not bool(space.contains(sample.at[0].set(10_000)))


@pytest.mark.parametrize("actions", ["multidiscrete", "discrete", "box"])
def test_steps_take_and_return_what_the_spaces_say(actions):
    env = tiny(actions)
    params, key = env.default_params, jax.random.key(0)
    _, state = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(env.action_space(params).sample, key)
    obs, *_ = jax.eval_shape(env.step, key, state, action, params)
    space = env.observation_space(params)
    assert (obs.shape, obs.dtype) == (space.shape, space.dtype)
    assert bool(space.contains(jnp.zeros(obs.shape)))


def test_flows_as_agents_have_them_too():
    env = ecn_marl.make_rate("many-to-one-4-v0")
    params, key = env.default_params, jax.random.key(0)
    obs, state = jax.eval_shape(env.reset, key, params)
    assert obs.shape == env.observation_space(params).shape
    sample = env.action_space(params).sample(key)
    assert sample.shape == (env.num_agents,)
    assert jax.eval_shape(env.step, key, state, sample, params)[0].shape == obs.shape


def test_every_choice_of_a_sample_is_drawn():
    space = of_agents(tiny().action.gymnasium_space(), AGENTS)
    keys = jax.random.split(jax.random.key(0), 500)
    drawn = np.asarray(jax.vmap(space.sample)(keys))
    assert (drawn.min((0, 1)) == 0).all()
    assert (drawn.max((0, 1)) == space.num_categories[0] - 1).all()


def test_a_box_keeps_its_bounds():
    box = Box(-1.0, 1.0, (4, 3))
    assert bool(box.contains(jnp.full((4, 3), 1.0)))
    assert not bool(box.contains(jnp.full((4, 3), 1.01)))
