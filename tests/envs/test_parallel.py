"""The PettingZoo faces: determinism over episodes, values, spaces, copies."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import jax
import numpy as np
import pytest
from playing import CASES, Options, bits, play, sampled, script

import ecn_marl
from ecn_marl.envs.features import FEATURES, Feature, feature_set
from ecn_marl.envs.parallel import PROGRAMS, EcnParallelEnv
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.incast import Incast

# Episodes.


@pytest.mark.parametrize("options", CASES)
def test_seed_fixes_all_episodes_that_follow(options: Options):
    def episodes(seed: int, unseeded: int = 2, steps: int = 12) -> list[Any]:
        env = ecn_marl.parallel_env(max_cycles=steps, **options)
        actions = script(env, steps)
        records = [bits(env.reset(seed=seed)) + play(env, actions)]
        for _ in range(unseeded):
            assert env.agents == []
            records.append(bits(env.reset()) + play(env, actions))
        return records

    first, again, other = episodes(3), episodes(3), episodes(4)
    assert first == again
    assert len({*first, *other}) == 6, "two episodes are the same"


def test_reseeding_starts_the_stream_anew(small: EcnParallelEnv):
    actions = script(small, 6)
    runs = []
    for _ in range(2):
        small.reset(seed=11)
        play(small, actions[:2])  # left in the middle
        small.reset()
        runs.append(play(small, actions))
    assert runs[0] == runs[1]


def test_never_seeded_environments_differ(small: EcnParallelEnv):
    other = copy.deepcopy(small)
    actions = script(small, 6)
    small.reset()
    other.reset()
    assert play(small, actions) != play(other, actions)


def test_numpy_and_python_values(small: EcnParallelEnv):
    obs, infos = small.reset(seed=0, options={})
    assert infos == {agent: {} for agent in small.possible_agents}
    for step in range(1, 7):
        values = small.step(sampled(small))
        obs, rewards, terminated, truncated, infos = values
        for part in values:
            assert list(part) == small.possible_agents
        for agent in small.possible_agents:
            agent_obs = obs[agent]
            assert (
                type(agent_obs) is np.ndarray
                and agent_obs.dtype == np.float32
                and agent_obs.flags.writeable
            )
            assert small.observation_space(agent).contains(agent_obs)
            assert type(rewards[agent]) is float
            assert terminated[agent] is False
            assert truncated[agent] is (step == 6)
            assert {type(value) for value in infos[agent].values()} == {float}
            assert infos[agent]["kmin"] < infos[agent]["kmax"]
            assert 0 <= infos[agent]["utilisation"] <= 1
    assert small.agents == []
    assert any(info["queue_mean"] > 0 for info in infos.values())


def test_infos_tell_the_thresholds_that_were_set(small: EcnParallelEnv):
    small.reset(seed=0)
    action = np.asarray([2, 1, 4])
    actions = dict.fromkeys(small.agents, action)
    *_, infos = small.step(actions)
    setting = small.core.action.describe(action)
    for agent in small.agents:
        scale = small.port_info(agent)["rate_gbps"] / 25
        thresholds = [infos[agent][name] for name in ("kmin", "kmax", "pmax")]
        expected = [setting.kmin_kb * 1e3 * scale, setting.kmax_kb * 1e3 * scale, setting.pmax]
        np.testing.assert_allclose(thresholds, expected, rtol=1e-6)


def test_dicts_hold_the_arrays_of_the_functional_environment(small: EcnParallelEnv):
    core = ecn_marl.make("incast-v0", features="pet", reward="pet")
    reset, step, global_state = PROGRAMS.of(core.program)
    key, params = jax.random.key(9), core.default_params.replace(max_steps=np.int32(6))
    small.reset(seed=5)
    _, state = reset(small._key, params)
    for actions in script(small, 6):
        stacked = np.stack([*actions.values()]).astype(np.int32)
        obs, state, reward, _, truncated, info = step(key, state, stacked, params)
        face_obs, rewards, _, truncations, infos = small.step(actions)
        np.testing.assert_array_equal(np.stack([*face_obs.values()]), obs)
        np.testing.assert_array_equal([*rewards.values()], np.asarray(reward, np.float64))
        assert [*truncations.values()] == truncated.tolist()
        assert set(infos["port_0"]) == set(info)
        for name, column in info.items():
            assert [agent_info[name] for agent_info in infos.values()] == column.tolist()
        np.testing.assert_array_equal(small.state(), global_state(state, params))


def test_what_is_returned_belongs_to_the_caller(small: EcnParallelEnv):
    actions = script(small, 6)
    small.reset(seed=1)
    expected = play(small, actions)
    small.reset(seed=1)[0]["port_0"][:] = np.nan
    records = []
    for joint_action in actions:
        values = small.step(joint_action)
        records.append(bits((values, small.agents, small.state())))
        values[0]["port_0"][:] = np.nan
        values[4]["port_0"].clear()
        for part in values:
            part["__all__"] = True  # as RLlib does
        small.state()[:] = np.nan
    assert tuple(records) == expected


def test_max_cycles_holds_from_the_next_reset(small: EcnParallelEnv):
    def length() -> int:
        steps = 0
        while small.agents:
            small.step(sampled(small))
            steps += 1
        return steps

    small.reset(seed=0)
    small.max_cycles = 3
    assert length() == 6
    small.reset()
    assert length() == 3
    small.max_cycles = np.int64(4)
    assert type(small.max_cycles) is int
    small.reset()
    assert length() == 4
    assert ecn_marl.parallel_env("incast-v0").max_cycles == ecn_marl.make("incast-v0").horizon


def test_ports(small: EcnParallelEnv):
    assert small.possible_agents == [f"port_{i}" for i in range(17)]
    info = small.port_info("port_3")
    assert info == small.core.port_info(3)
    assert {"switch", "peer", "rate_gbps"} <= set(info)
    with pytest.raises(ValueError, match=r"agent = 'port_17' .* port_0 … port_16"):
        small.port_info("port_17")


# Spaces.


@pytest.mark.parametrize(
    ("kind", "space"),
    [
        ("multidiscrete", gymnasium.spaces.MultiDiscrete),
        ("discrete", gymnasium.spaces.Discrete),
        ("box", gymnasium.spaces.Box),
    ],
)
def test_spaces(kind: str, space: type):
    env = ecn_marl.parallel_env(actions=kind)
    first, second = env.action_space("port_0"), env.action_space("port_1")
    assert isinstance(first, space) and first == second
    assert first is env.action_space("port_0")
    assert env.observation_space("port_0") is env.observation_space("port_0")
    first.seed(1)
    draws = [first.sample() for _ in range(4)]
    first.seed(1)
    second.seed(2)  # the spaces of two agents do not share a stream
    repeated = [(first.sample(), second.sample())[0] for _ in range(4)]
    np.testing.assert_array_equal(draws, repeated)


def test_a_table_shows_all_queues_of_a_port():
    sizes = (300.0, 200.0)
    env = ecn_marl.parallel_env(
        "incast-v0",
        "ansi",
        topology=star(3),
        traffic=tuple(Incast(load=0.9, n_min=2, n_max=2, flow_kb=x, width=2) for x in sizes),
        classes=({"name": "first"}, {"name": "second"}),
        class_of=(0, 1),
        slots=16,
        max_steps=4,
    )
    env.reset(seed=0)
    longest = 0.0
    while env.agents:
        *_, infos = env.step(sampled(env))
        queues = [infos[agent]["queue"] / 1e3 for agent in env.possible_agents]
        shown = [float(line.split()[2]) for line in env.render().splitlines()[1:]]
        assert shown == pytest.approx(queues, abs=0.051)
        longest = max(longest, *queues)
    assert longest > 1.0


def test_bounds_are_those_of_the_features():
    custom_features = feature_set(
        ("acc", ("five", Feature(lambda *a: 5 * FEATURES["paused"].compute(*a)))), 2
    )
    named, custom = (
        ecn_marl.parallel_env(features=features) for features in ("acc", custom_features)
    )
    assert named.observation_space("port_0") == gymnasium.spaces.Box(0, 1, (18,), np.float32)
    assert named.state_space == gymnasium.spaces.Box(0, 1, (96,), np.float32)
    assert not custom.observation_space("port_0").is_bounded()
    assert custom.observation_space("port_0").shape == (14,)


# Copies.


@pytest.mark.parametrize(
    "clone",
    [
        pytest.param(lambda env: cloudpickle.loads(cloudpickle.dumps(env)), id="cloudpickle"),
        pytest.param(lambda env: pickle.loads(pickle.dumps(env)), id="pickle"),
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(copy.copy, id="copy"),
    ],
)
@pytest.mark.parametrize("done", [0, 3, 6])
def test_copies_continue_alike(
    small: EcnParallelEnv, clone: Callable[[EcnParallelEnv], EcnParallelEnv], done: int
):
    actions = script(small, 6)
    small.reset(seed=2)
    play(small, actions[:done])
    twin = clone(small)
    assert twin.agents == small.agents
    remaining = play(small, actions[done:])
    small.reset()
    after = play(small, actions)
    assert play(twin, actions[done:]) == remaining
    twin.reset()
    assert play(twin, actions) == after


def test_environments_of_one_scenario_share_their_compiled_functions(small: EcnParallelEnv):
    twin = ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=9)
    clone = cloudpickle.loads(cloudpickle.dumps(small))
    assert (
        PROGRAMS.of(small.core.program)
        is PROGRAMS.of(twin.core.program)
        is PROGRAMS.of(clone.core.program)
    )
    assert PROGRAMS.of(small.core.program) is not PROGRAMS.of(ecn_marl.make("incast-v0").program)


def test_jax_starts_at_the_first_reset():
    code = """
import cloudpickle, jax, ecn_marl
env = cloudpickle.loads(cloudpickle.dumps(ecn_marl.parallel_env("websearch-v0", actions="box")))
env.observation_space("port_0").sample(), env.action_space("port_0").sample()
env.port_info("port_1")
ecn_marl.env("incast-v0", render_mode="human").close()
jax.config.update("jax_num_cpu_devices", 2)  # raises once a backend has started
env.reset(seed=0)
assert jax.device_count() == 2
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
