"""AutoReset: episodes follow each other, and `final_obs` has the last observation of each."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from toy import ToyEnv, ToyParams

from ecn_marl.wrappers import AutoReset

PARAMS = ToyParams(max_steps=4)


def _roll(steps):
    env = AutoReset(ToyEnv())
    obs, state = env.reset(jax.random.key(0), PARAMS)
    rows = []
    for i in range(steps):
        action = jnp.array([1, 3, 0])
        key = jax.random.fold_in(jax.random.key(1), i)
        before = state
        obs, state, reward, _, truncated, info = jax.jit(env.step)(key, state, action, PARAMS)
        chex.assert_trees_all_equal_shapes_and_dtypes(before, state)
        rows.append((obs, state, reward, truncated, info))
    return rows


def test_episodes_end_every_four_steps_and_start_again():
    rows = _roll(9)
    for i, (obs, state, _, truncated, info) in enumerate(rows):
        last = i % 4 == 3
        assert bool(truncated.all()) == last == bool(info["episode_done"])
        assert int(info["episode_length"]) == i % 4 + 1
        assert int(state.env.steps) == (i + 1) % 4
        assert float(info["final_obs"][0, 1]) == np.float32((i % 4 + 1) / 10)
        assert float(obs[0, 1]) == np.float32(((i + 1) % 4) / 10)
        if not last:
            np.testing.assert_array_equal(obs, info["final_obs"])


def test_return_is_the_sum_of_the_episode():
    rows = _roll(8)
    for end in (3, 7):
        paid = sum(np.asarray(rows[i][2]) for i in range(end - 3, end + 1))
        np.testing.assert_allclose(rows[end][4]["episode_return"], paid, rtol=1e-6)
        assert float(rows[end][1].episode_return.sum()) == 0.0


def test_attributes_pass_through():
    env = AutoReset(ToyEnv())
    assert env.num_agents == 3
    assert env.obs_dim == 2
    assert hash(env) == hash(AutoReset(ToyEnv()))
