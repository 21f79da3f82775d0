"""The vector environments against gymnasium's own `SyncVectorEnv` of single networks.

The reference steps one PettingZoo environment per network in a Python loop; gymnasium does its
resets and batches its infos.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics
from tiny import AGENTS, HORIZON, OPTIONS, SCENARIO, tiny

import ecn_marl
from ecn_marl.envs.parallel import EcnParallelEnv
from ecn_marl.envs.reward_reference import RewardReference
from ecn_marl.errors import InvalidValue
from ecn_marl.wrappers import (
    AgentVectorEnv,
    Checked,
    EcnVectorEnv,
    NetworkEnv,
    rllib_vector_env,
    vector_env,
)
from ecn_marl.wrappers.bridges.registries import batched_env

LENGTHS = (2, HORIZON)
CORE = tiny()


class OneNetwork(gymnasium.Env):
    """A PettingZoo environment as a single gymnasium environment."""

    def __init__(self, max_cycles):
        self.face = EcnParallelEnv(CORE, max_cycles=max_cycles)
        spaces = (self.face.observation_space("port_0"), self.face.action_space("port_0"))
        self.observation_space, self.action_space = (batch_space(s, AGENTS) for s in spaces)

    def reset(self, *, seed=None, options=None):
        obs, _ = self.face.reset(seed)
        return np.stack(list(obs.values())), {}

    def step(self, action):
        joint = dict(zip(self.face.possible_agents, action, strict=True))
        obs, reward, terminated, truncated, info = self.face.step(joint)
        paid = np.array(list(reward.values()), np.float32)
        names = info["port_0"]
        facts = {k: np.array([info[a][k] for a in info], np.float32) for k in names}
        return (
            np.stack(list(obs.values())),
            float(np.mean(paid, dtype=np.float64)),
            all(terminated.values()),
            all(truncated.values()),
            {"reward": paid, **facts},
        )


def assert_same(a, b):
    """Equal up to the rounding of batched arithmetic; keys, masks, shapes and dtypes exactly."""
    if isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif a is None or b is None:
        assert a is b
    elif getattr(a, "dtype", None) == np.dtype(object):
        assert_same(tuple(a), tuple(b))
    else:
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.fixture(scope="module")
def env():
    """Two networks whose episodes have two and three steps."""
    return EcnVectorEnv(CORE, 2, max_steps=LENGTHS)


def modes(env, mode):
    """The same environment in another mode; compiled functions are shared anyway."""
    return type(env)(CORE, 2, autoreset_mode=mode, max_steps=LENGTHS)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_every_step_is_what_gymnasium_makes_of_single_networks(env, mode):
    vector = modes(env, mode)
    reference = SyncVectorEnv(
        [lambda n=n: OneNetwork(n) for n in LENGTHS], autoreset_mode=mode, observation_mode="same"
    )
    assert vector.observation_space == reference.observation_space
    assert vector.action_space == reference.action_space
    assert vector.single_observation_space == reference.single_observation_space
    assert vector.single_action_space == reference.single_action_space
    assert vector.metadata["autoreset_mode"] is reference.metadata["autoreset_mode"] is mode
    assert_same(vector.reset(seed=5), reference.reset(seed=5))
    vector.action_space.seed(1)
    ended = np.zeros(2, int)
    for _ in range(9):
        actions = vector.action_space.sample()
        returned, expected = vector.step(actions), reference.step(actions)
        assert_same(returned, expected)
        assert vector.observation_space.contains(returned[0])
        ended += returned[3]
    assert (ended >= 2).all()
    arrays = returned[4]["queue_mean"], vector._obs
    assert all(np.ptp(x) > 0 for x in arrays), "nothing happened in the network"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_first_steps_tell_the_phase(mode):
    core = ecn_marl.make(SCENARIO, counts=("phase",), **OPTIONS)
    vector = EcnVectorEnv(core, 2, autoreset_mode=mode, max_steps=LENGTHS)
    reference = SyncVectorEnv(
        [lambda n=n: NetworkEnv(EcnParallelEnv(core, max_cycles=n)) for n in LENGTHS],
        autoreset_mode=mode,
        observation_mode="same",
    )
    first = vector.reset(seed=5)
    assert first[1]["phase"].shape == (2, AGENTS) and first[1]["_phase"].all()
    assert_same(first, reference.reset(seed=5))
    for _ in range(HORIZON + 1):
        actions = vector.action_space.sample()
        assert_same(vector.step(actions), reference.step(actions))


def test_same_step_keeps_what_ended(env):
    ours, plain = modes(env, "SameStep"), modes(env, "Disabled")
    ours.reset(seed=3)
    plain.reset(seed=3)
    action = np.stack([ours.single_action_space.sample()] * 2)
    for _ in range(2):
        obs, _, _, truncated, infos = ours.step(action)
        last, _, _, also, facts = plain.step(action)
    assert truncated.tolist() == also.tolist() == infos["_final_obs"].tolist() == [True, False]
    np.testing.assert_array_equal(infos["final_obs"][0], last[0])
    assert infos["final_obs"][1] is None
    assert not np.array_equal(obs[0], last[0])
    np.testing.assert_array_equal(obs[1], last[1])
    final_queue = infos["final_info"]["queue_mean"]
    np.testing.assert_array_equal(final_queue[0], facts["queue_mean"][0])
    assert not final_queue[1].any()


def test_without_autoreset_those_that_ended_are_reset_by_a_mask(env):
    ours = modes(env, AutoresetMode.DISABLED)
    with pytest.raises(ResetNeeded):
        ours.step(ours.action_space.sample())
    with pytest.raises(ResetNeeded):
        ours.reset(options={"reset_mask": np.array([True, False])})
    ours.reset(seed=0)
    action = ours.action_space.sample()
    for _ in range(2):
        obs, _, _, truncated, _ = ours.step(action)
    assert truncated.tolist() == [True, False]
    with pytest.raises(ResetNeeded):
        ours.step(action)
    fresh_obs, _ = ours.reset(options={"reset_mask": truncated})
    assert not np.array_equal(fresh_obs[0], obs[0])
    np.testing.assert_array_equal(fresh_obs[1], obs[1])
    assert ours.step(action)[3].tolist() == [False, True]
    for wrong in (np.array([1, 0]), np.array([True]), np.zeros(2, bool)):
        with pytest.raises(ValueError, match="reset_mask"):
            ours.reset(options={"reset_mask": wrong})


def rollout(env, seed, steps=5):
    env.reset(seed=seed)
    env.action_space.seed(0)
    return [env.step(env.action_space.sample()) for _ in range(steps)]


def test_seeds_fix_everything(env):
    first, repeated = rollout(env, 7), rollout(env, np.int64(7))
    for a, b in zip(first, repeated, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    from_list = rollout(env, [7, 8])
    np.testing.assert_array_equal(first[-1][0], from_list[-1][0])
    other = rollout(env, [7, 9])
    np.testing.assert_array_equal(first[-1][4]["tx_bytes"][0], other[-1][4]["tx_bytes"][0])
    assert any((a[0][1] != b[0][1]).any() for a, b in zip(first, other, strict=True))
    for wrong in (-1, [1], [1, -2], True, [True, 2]):
        with pytest.raises(InvalidValue, match="seed"):
            env.reset(seed=wrong)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [EcnVectorEnv, AgentVectorEnv])
def test_copies_continue_alike(kind, clone):
    """Through several episodes: they share neither states nor streams of episodes."""
    env = kind(CORE, 2, autoreset_mode="SameStep", max_steps=LENGTHS)
    env.reset(seed=3)
    env.action_space.seed(3)
    actions = [env.action_space.sample() for _ in range(7)]
    env.step(actions[0])
    twin = clone(env)
    expected = [env.step(action)[:2] for action in actions]
    for action, (obs, reward) in zip(actions, expected, strict=True):
        twin_obs, twin_reward, *_ = twin.step(action)
        np.testing.assert_array_equal(obs, twin_obs)
        np.testing.assert_array_equal(reward, twin_reward)


def test_agents_apart_are_the_same_networks():
    joint = EcnVectorEnv(CORE, 2, autoreset_mode="SameStep", max_steps=LENGTHS)
    apart = AgentVectorEnv(CORE, 2, autoreset_mode="SameStep", max_steps=LENGTHS)
    assert apart.num_envs == 2 * AGENTS
    assert apart.single_action_space == CORE.action.gymnasium_space()
    assert apart.single_observation_space.shape == (CORE.obs_dim,)

    def flat(x):
        return x.reshape(2 * AGENTS, *x.shape[2:])

    np.testing.assert_array_equal(apart.reset(seed=4)[0], flat(joint.reset(seed=4)[0]))
    joint.action_space.seed(2)
    for _ in range(5):
        actions = joint.action_space.sample()
        obs, reward, terminated, truncated, infos = apart.step(flat(actions))
        want = joint.step(actions)
        np.testing.assert_array_equal(obs, flat(want[0]))
        np.testing.assert_allclose(reward.reshape(2, AGENTS).mean(1), want[1], rtol=1e-12)
        np.testing.assert_array_equal(terminated, np.repeat(want[2], AGENTS))
        np.testing.assert_array_equal(truncated, np.repeat(want[3], AGENTS))
        assert apart.observation_space.contains(obs)
        if "queue_mean" in want[4]:
            np.testing.assert_array_equal(infos["queue_mean"], flat(want[4]["queue_mean"]))
        if truncated.any():
            ended = [x for x in infos["final_obs"] if x is not None]
            joined = [x for x in want[4]["final_obs"] if x is not None]
            np.testing.assert_array_equal(np.stack(ended), np.concatenate(joined))
    mask = np.repeat([True, False], AGENTS)
    apart.reset(options={"reset_mask": mask})
    mask[0] = False
    with pytest.raises(ValueError, match="all agents"):
        apart.reset(options={"reset_mask": mask})


def test_gymnasium_wrappers_take_it(env):
    wrapped = RecordEpisodeStatistics(NormalizeObservation(env))
    assert isinstance(wrapped.unwrapped, VectorEnv)
    wrapped.reset(seed=1)
    paid = np.zeros(2)
    for _ in range(HORIZON):
        _, reward, _, truncated, infos = wrapped.step(wrapped.action_space.sample())
        paid[1] += reward[1]
    assert truncated[1]
    assert infos["episode"]["l"][1] == HORIZON
    np.testing.assert_allclose(infos["episode"]["r"][1], paid[1])
    wrapped.close()


def test_what_is_not_allowed_is_named(env):
    for options, name in (
        ({"num_networks": 0}, "num_networks"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": (1, 2, 3)}, "max_steps"),
        ({"max_steps": 2**31}, "max_steps = 2147483648"),  # int32 would wrap to -2147483648
        ({"max_steps": (5, 2**31)}, "max_steps"),
        ({"max_steps": 2**70}, "max_steps"),
        ({"autoreset_mode": "SameStop"}, "SameStep"),
    ):
        with pytest.raises(ValueError, match=name):
            EcnVectorEnv(CORE, **{"num_networks": 2, **options})
    with pytest.raises(ValueError, match=r"backend = 'packets' .* fluid for batches"):
        vector_env(SCENARIO, 2, backend="packets", **OPTIONS)
    with pytest.raises(ValueError, match="first observation within the episode of 2 intervals"):
        vector_env(SCENARIO, 2, telemetry={"period_us": 300.0}, **OPTIONS | {"max_steps": LENGTHS})
    env.reset(seed=0)
    actions = env.action_space.sample()
    with pytest.raises(ValueError, match="shape"):
        env.step(actions[0])
    actions[1, 2, 0] = 99
    with pytest.raises(ValueError, match="network 1: action of port_2, kmin = 99"):
        env.step(actions)


def test_messages_name_switches_that_act():
    core = ecn_marl.make(SCENARIO, agents="switch", actions="discrete", **OPTIONS)
    env = EcnVectorEnv(core, 2)
    with pytest.raises(ValueError, match="network 1: action of switch_0 = 99"):
        env._check(np.array([[0], [99]]))
    with pytest.raises(ValueError, match="action of switch_0 = 99"):
        key, action = jax.random.key(0), jax.numpy.array([99])
        Checked(core).step(key, None, action, core.default_params)


def test_the_longest_episode_is_that_of_the_other_faces():
    env = EcnVectorEnv(CORE, 2, max_steps=2**31 - 1)
    assert env._steps.tolist() == [2**31 - 1] * 2


def test_options_are_checked_against_episodes_of_max_steps():
    late = {"telemetry": {"action_delay": 300}, "max_steps": (400, 500)}
    for options in ({"interval_us": 300.0, "max_steps": 50}, late):
        longest = np.max(options["max_steps"])
        assert vector_env("incast-v0", 2, **options).core.horizon == longest
        assert batched_env(2, "incast-v0", **options).core.horizon == longest
    options = {"interval_us": 300.0, "max_steps": 50, "scenario": "incast-v0"}
    assert rllib_vector_env(options).core.horizon == 50


def test_rewards_relative_to_a_reference_hold_for_its_length_only():
    reference = RewardReference("static:secn1", (1.0,) * AGENTS, 0.5)
    core = replace(CORE, reward_reference=reference)
    for steps in (HORIZON - 1, (HORIZON, HORIZON + 1)):
        with pytest.raises(ValueError, match=rf"max_steps = .* {HORIZON}, the steps that its rew"):
            EcnVectorEnv(core, 2, max_steps=steps)
    assert EcnVectorEnv(core, 2, max_steps=HORIZON).num_envs == 2


def test_vector_env_makes_either():
    env = vector_env("incast-v0", 2, actions="box", max_steps=7)
    assert type(env) is EcnVectorEnv
    assert env.action_space.shape == (2, env.core.num_agents, 3)
    apart = vector_env("incast-v0", 2, per_agent=True, actions="discrete")
    assert type(apart) is AgentVectorEnv
    assert apart.num_envs == 2 * apart.core.num_agents
    assert apart.single_action_space == gymnasium.spaces.Discrete(apart.core.action.n)
    with pytest.raises(ValueError, match="incast-v0"):
        vector_env("incst-v0")
