"""The JaxMARL face: against the functional environment, a replica of a rollout as JaxMARL's
scripts write it, and JaxMARL's own wrappers where it is installed."""

from __future__ import annotations

import sys

import chex
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import AGENTS, HORIZON, OPTIONS, SCENARIO, functions, tiny

import ecn_marl
from ecn_marl.envs.spaces import Box, Discrete, MultiDiscrete
from ecn_marl.wrappers import EcnJaxMARL, jaxmarl_env

ENVS = 2


@pytest.fixture(scope="module")
def env():
    return EcnJaxMARL(tiny("discrete"), with_world_state=True)


@pytest.fixture(scope="module")
def episode(env):
    """Observations, states, rewards, dones, infos of four steps of the wrapper."""
    key = jax.random.key(3)
    obs, state = env.reset(key)
    rows = [(obs, state)]
    for i in range(HORIZON + 1):
        actions = {a: jnp.int32(5 * i + j) for j, a in enumerate(env.agents)}
        obs, state, *rest = env.step(jax.random.fold_in(key, i), state, actions)
        rows.append((obs, state, *rest))
    return rows


def test_steps_are_those_of_the_functional_environment(env, episode):
    core, params = env.core, env.core.default_params
    key = jax.random.key(3)
    reset, step = functions(core)
    obs, state = reset(key, params)
    for i, row in enumerate(episode[: HORIZON + 1]):
        if i:
            action = jnp.arange(AGENTS, dtype=jnp.int32) + 5 * (i - 1)
            obs, state, reward, _, truncated, info = step(key, state, action, params)
            paid = [row[2][a] for a in env.agents]
            np.testing.assert_allclose(paid, reward, rtol=1e-5)
            done = {**dict.fromkeys(env.agents, i == HORIZON), "__all__": i == HORIZON}
            assert {k: bool(v) for k, v in row[3].items()} == done
            assert bool(truncated.all()) == done["__all__"]
            assert row[4].keys() == info.keys()
            chex.assert_trees_all_close(row[4], info, rtol=1e-4)
        if i < HORIZON:
            stacked = np.stack([row[0][a] for a in env.agents])
            np.testing.assert_allclose(stacked, obs, rtol=1e-5, atol=1e-6)
            world = core.global_state(state, params)
            chex.assert_shape(row[0]["world_state"], (AGENTS, env.world_state_size()))
            for row_state in row[0]["world_state"]:
                np.testing.assert_allclose(row_state, world, rtol=1e-5, atol=1e-6)


def test_a_step_that_ends_an_episode_returns_the_next_one_s_first(env, episode):
    last = episode[HORIZON]
    _, fresh_key = jax.random.split(jax.random.fold_in(jax.random.key(3), HORIZON - 1))
    obs, state = env.reset(fresh_key)
    chex.assert_trees_all_equal(last[0], obs)
    chex.assert_trees_all_equal(jax.tree.leaves(last[1].steps), jax.tree.leaves(state.steps))
    assert int(episode[HORIZON + 1][1].steps) == 1
    assert not bool(episode[HORIZON + 1][3]["__all__"])
    chex.assert_trees_all_equal(env.get_obs(episode[1][1]), episode[1][0])


def test_agents_that_are_switches_see_what_a_step_returned():
    core = ecn_marl.make(SCENARIO, agents="switch", actions="discrete", **OPTIONS)
    env = EcnJaxMARL(core)
    _, state = env.reset(jax.random.key(3))
    obs, state, *_ = env.step_env(jax.random.key(0), state, {"switch_0": jnp.int32(3)})
    chex.assert_trees_all_close(env.get_obs(state), obs, rtol=1e-6)


def test_an_episode_can_start_from_a_given_state(env, episode):
    before, start = episode[HORIZON - 1][1], episode[1][1]
    actions = dict.fromkeys(env.agents, jnp.int32(0))
    obs, state, *_ = env.step(jax.random.key(0), before, actions, start)
    chex.assert_trees_all_equal(obs, episode[1][0])
    assert int(state.steps) == int(start.steps) == 1


def ippo_rollout(env, steps):
    """The rollout of JaxMARL's feed-forward IPPO without learning: actors are agents times
    environments, actions `[envs, 1]` per agent, every info a number per actor."""
    actors = ENVS * env.num_agents
    n = env.action_space(env.agents[0]).n

    def stack(rows):
        return jnp.stack([rows[a] for a in env.agents]).reshape(actors, -1)

    def step(carry, _):
        state, obs, key = carry
        key, act_key, env_key = jax.random.split(key, 3)
        actor_obs = stack(obs)
        action = jax.random.randint(act_key, (actors,), 0, n)
        split = action.reshape(env.num_agents, ENVS, -1)
        joint = {a: split[i] for i, a in enumerate(env.agents)}
        keys = jax.random.split(env_key, ENVS)
        obs, state, reward, done, info = jax.vmap(env.step)(keys, state, joint)
        info = jax.tree.map(lambda x: x.reshape(actors), info)
        return (state, obs, key), (actor_obs, stack(done), stack(reward), info)

    key = jax.random.PRNGKey(0)  # the kind of key that JaxMARL's scripts use
    obs, state = jax.vmap(env.reset)(jax.random.split(key, ENVS))
    _, rows = jax.lax.scan(step, (state, obs, key), None, steps)
    return rows


def test_a_script_like_jaxmarl_s_ippo_runs(env):
    plain = EcnJaxMARL(env.core)
    actor_obs, done, reward, info = jax.jit(lambda: ippo_rollout(plain, HORIZON + 1))()
    chex.assert_shape(actor_obs, (HORIZON + 1, ENVS * AGENTS, env.core.obs_dim))
    np.testing.assert_array_equal(done[..., 0].all(1), [False] * (HORIZON - 1) + [True, False])
    assert done[..., 0].any(1).tolist() == done[..., 0].all(1).tolist()
    assert np.isfinite(reward).all() and np.ptp(reward) > 0
    assert info["queue_mean"].shape == (HORIZON + 1, ENVS * AGENTS)


@pytest.mark.parametrize("actions", ["discrete", "multidiscrete", "box", "thresholds"])
def test_spaces_are_those_of_the_other_faces(actions, episode):
    env = EcnJaxMARL(tiny(actions))
    act = env.action_space("port_0")
    gym_space = env.core.action.gymnasium_space()
    samples = np.asarray(jax.vmap(act.sample)(jax.random.split(jax.random.key(0), 300)))
    assert act.shape == gym_space.shape
    assert all(gym_space.contains(x.astype(gym_space.dtype)) for x in samples)
    assert env.core.action.check(samples[:AGENTS], AGENTS) is not None
    assert bool(act.contains(samples[0])) and not bool(act.contains(samples[0] + 1000))
    low, high = samples.min(0), samples.max(0)
    if isinstance(gym_space, gymnasium.spaces.Box):
        margin = 0.05 * (gym_space.high - gym_space.low)
        assert (low < gym_space.low + margin).all() and (high > gym_space.high - margin).all()
    else:
        assert (low == 0).all()
        assert np.all(high == (gym_space.n if actions == "discrete" else gym_space.nvec) - 1)
    assert env.observation_space("port_0").shape == (env.core.obs_dim,)
    if actions == "discrete":
        masks = env.get_avail_actions(episode[0][1])
        assert masks.keys() == set(env.agents) and masks["port_0"].tolist() == [1.0] * act.n
    else:
        with pytest.raises(ValueError, match="discrete"):
            env.get_avail_actions(episode[0][1])


def test_names_that_jaxmarl_s_wrappers_read(env):
    assert env.agents == ["port_0", "port_1", "port_2"]
    assert env.num_agents == AGENTS == len(env.action_spaces) == len(env.observation_spaces)
    assert not any(name in env.name for name in ("smax", "overcooked", "hanabi"))
    assert env.agent_classes == {"port": env.agents}
    assert jaxmarl_env("incast-v0", actions="discrete").name == "ecn_marl_incast-v0"


def test_environments_that_cannot_be_traced_are_refused():
    with pytest.raises(ValueError, match=r"backend = 'packets' .* fluid for batches"):
        jaxmarl_env(SCENARIO, backend="packets", **OPTIONS)


def test_without_jaxmarl_spaces_are_our_own(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxmarl.environments.spaces", None)
    kinds = {"discrete": Discrete, "multidiscrete": MultiDiscrete, "box": Box}
    for actions, kind in kinds.items():
        assert type(EcnJaxMARL(tiny(actions)).action_space("port_0")) is kind
    space = Box(-np.inf, np.inf, (500,))
    assert np.asarray(space.sample(jax.random.key(0))).std() == pytest.approx(1.0, abs=0.1)


def test_jaxmarl_s_own_log_wrapper(env):
    baselines = pytest.importorskip("jaxmarl.wrappers.baselines")
    log = baselines.LogWrapper(EcnJaxMARL(env.core))
    _, _, reward, info = jax.jit(lambda: ippo_rollout(log, HORIZON + 1))()
    # Actors are laid out [agents, envs] by the script for rewards, [envs, agents] for infos.
    ended = info["returned_episode"].reshape(-1, ENVS, AGENTS)
    assert ended.all((1, 2)).tolist() == [False] * (HORIZON - 1) + [True, False]
    total = reward.reshape(-1, AGENTS, ENVS)[:HORIZON].sum(0).T
    logged = info["returned_episode_returns"].reshape(-1, ENVS, AGENTS)
    np.testing.assert_allclose(logged[HORIZON - 1], total, rtol=1e-5)
    assert (info["returned_episode_lengths"][HORIZON - 1] == HORIZON).all()


def test_jaxmarl_s_own_rollout_manager(env):
    baselines = pytest.importorskip("jaxmarl.wrappers.baselines")
    core = env.core
    batch = baselines.CTRolloutManager(EcnJaxMARL(core), batch_size=ENVS)
    assert (batch.max_action_space, batch.obs_size) == (core.action.n, core.obs_dim + AGENTS)
    obs, state = batch.batch_reset(jax.random.PRNGKey(0))
    keys = jax.random.split(jax.random.PRNGKey(1), AGENTS)
    actions = {a: batch.batch_sample(k, a) for a, k in zip(batch.agents, keys, strict=True)}
    obs, state, reward, done, _ = batch.batch_step(jax.random.PRNGKey(2), state, actions)
    chex.assert_shape(obs["__all__"], (ENVS, AGENTS * core.obs_dim))
    np.testing.assert_allclose(reward["__all__"], sum(reward[a] for a in batch.agents), rtol=1e-6)
    assert not done["__all__"].any()
    assert batch.get_valid_actions(state)["port_0"].shape == (ENVS, core.action.n)
