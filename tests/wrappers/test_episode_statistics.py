"""EpisodeStatistics: its log equals the environment's metrics of the finished episode."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import AGENTS, HORIZON, functions, tiny
from toy import ToyEnv, ToyParams

from ecn_marl.wrappers import AutoReset, EpisodeStatistics


def test_the_network_s_metrics_survive_the_reset():
    core = tiny()
    params = core.default_params
    env = EpisodeStatistics(AutoReset(core))
    step, measured = jax.jit(env.step), jax.jit(core.episode_metrics)
    reset, plain = functions(core)
    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    _, plain_state = reset(jax.random.key(0), params)
    empty = state.last
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(empty))
    paid = np.zeros(AGENTS)
    for i in range(HORIZON + 1):
        action = core.action.sample(jax.random.key(i), AGENTS)
        before = state
        _, state, reward, _, _, info = step(jax.random.key(9), state, action, params)
        chex.assert_trees_all_equal_shapes_and_dtypes(before, state)
        if i < HORIZON:
            _, plain_state, reward, *_ = plain(jax.random.key(9), plain_state, action, params)
            paid += np.asarray(reward)
        if i < HORIZON - 1:
            chex.assert_trees_all_equal(info["episode"], empty)
            continue
        expected = measured(plain_state, params)
        episode = dict(info["episode"])
        np.testing.assert_allclose(episode.pop("return"), paid, rtol=1e-6)
        assert int(episode.pop("length")) == HORIZON
        chex.assert_trees_all_close(episode, expected, rtol=1e-5)
        assert float(episode["queue_mean"]) > 0 and int(episode["flows_started"]) > 0
        assert bool(info["episode_done"]) == (i == HORIZON - 1)
        assert int(state.finished) == 1


def test_episodes_are_counted_and_the_last_one_is_shown_under_scan():
    env = EpisodeStatistics(AutoReset(ToyEnv()))
    params = ToyParams(max_steps=4)
    _, state = env.reset(jax.random.key(0), params)

    def best(obs):
        return 1 + 2 * obs[:, 0]

    def step(carry, key):
        obs, state = carry
        # Right in the first episode, never in the second.
        action = jnp.where(state.finished == 0, best(obs), 4 - best(obs))
        obs, state, reward, *_, info = env.step(key, state, action, params)
        return (obs, state), (reward, info["episode"], state.finished)

    obs, state = env.reset(jax.random.key(0), params)
    keys = jax.random.split(jax.random.key(1), 9)
    _, (reward, episode, finished) = jax.lax.scan(step, (obs, state), keys)
    np.testing.assert_array_equal(finished, [0] * 3 + [1] * 4 + [2] * 2)
    np.testing.assert_allclose(episode["reward"], [0] * 3 + [1] * 4 + [0.5] * 2)
    np.testing.assert_allclose(episode["return"][-1], reward[4:8].sum(0))
    np.testing.assert_array_equal(episode["length"][3:], 4)


def test_it_wraps_auto_reset_only_and_passes_attributes_through():
    assert EpisodeStatistics(AutoReset(ToyEnv())).obs_dim == 2
    with pytest.raises(ValueError, match="AutoReset"):
        EpisodeStatistics(ToyEnv())
