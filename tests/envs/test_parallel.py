"""The PettingZoo faces: PettingZoo's own tests, determinism over episodes, copies, errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import gymnasium
import jax
import matplotlib
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from pettingzoo.test import (
    api_test,
    max_cycles_test,
    parallel_api_test,
    parallel_seed_test,
    render_test,
    seed_test,
    state_test,
)

import ecn_marl
from ecn_marl.envs.features import FEATURE_SETS, FeatureSet
from ecn_marl.envs.parallel import RENDER_MODES, EcnParallelEnv, _compiled

Options = dict[str, Any]

KINDS = ("multidiscrete", "discrete", "box")
CASES = [
    *(pytest.param({"scenario": "websearch-v0", "actions": kind}, id=kind) for kind in KINDS),
    pytest.param({"scenario": "incast-v0", "features": "pet", "reward": "pet"}, id="incast"),
]
LARGE = {"scenario": "pet-websearch-v0", "features": "haecn", "reward": "haecn", "slots": 64}


def sampled(env: EcnParallelEnv) -> dict[str, Any]:
    return {agent: env.action_space(agent).sample() for agent in env.agents}


def bits(values: Any) -> Any:
    """Values as nested tuples that are equal only if every bit is, and can be hashed."""
    if isinstance(values, np.ndarray):
        return values.dtype.str, values.shape, values.tobytes()
    if isinstance(values, dict):
        return tuple((key, bits(value)) for key, value in values.items())
    if isinstance(values, list | tuple):
        return tuple(map(bits, values))
    return repr(values)


def play(env: EcnParallelEnv, actions: list[dict[str, Any]]) -> tuple[Any, ...]:
    """All that the steps return, bit by bit."""
    return tuple(bits((env.step(each), env.agents, env.state())) for each in actions)


def script(env: EcnParallelEnv, steps: int, seed: int = 7) -> list[dict[str, Any]]:
    for agent in env.possible_agents:
        env.action_space(agent).seed(seed + int(agent[5:]))
    return [
        {agent: env.action_space(agent).sample() for agent in env.possible_agents}
        for _ in range(steps)
    ]


def faces(options: Options) -> types.SimpleNamespace:
    """What PettingZoo takes for an environment's module."""
    return types.SimpleNamespace(
        parallel_env=partial(ecn_marl.parallel_env, **options),
        env=partial(ecn_marl.env, **options),
    )


@pytest.fixture
def small() -> EcnParallelEnv:
    return ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=6)


# What PettingZoo demands. Its warnings are errors but for the one about spaces it has not heard of.
strict = pytest.mark.filterwarnings(
    "error::UserWarning", "ignore:Action space for each agent probably should be:UserWarning"
)


@strict
@pytest.mark.parametrize("options", CASES)
def test_pettingzoo_parallel(options: Options):
    parallel_api_test(ecn_marl.parallel_env(**options), num_cycles=20)
    parallel_seed_test(faces(options).parallel_env)


@strict
@pytest.mark.parametrize("options", CASES)
def test_pettingzoo_aec(options: Options):
    api_test(ecn_marl.env(max_cycles=5, **options), num_cycles=12)
    seed_test(partial(ecn_marl.env, max_cycles=5, **options))


@strict
@pytest.mark.parametrize("options", CASES)
def test_pettingzoo_max_cycles_and_state(options: Options):
    module = faces(options)
    max_cycles_test(module)
    state_test(module.env(max_cycles=5), module.parallel_env(), num_cycles=5)


@pytest.mark.slow
@strict
def test_pettingzoo_432_agents():
    assert set(ecn_marl.scenarios()) >= {"websearch-v0", "incast-v0", "pet-websearch-v0"}
    env = ecn_marl.parallel_env(**LARGE)
    assert len(env.possible_agents) == 432
    parallel_api_test(env, num_cycles=4)
    parallel_seed_test(faces(LARGE).parallel_env)
    api_test(ecn_marl.env(max_cycles=3, **LARGE), num_cycles=4)
    max_cycles_test(faces(LARGE))


# Episodes.


@pytest.mark.parametrize("options", CASES)
def test_seed_fixes_all_episodes_that_follow(options: Options):
    def episodes(seed: int, unseeded: int = 2, steps: int = 12) -> list[Any]:
        env = ecn_marl.parallel_env(max_cycles=steps, **options)
        actions = script(env, steps)
        seen = [bits(env.reset(seed=seed)) + play(env, actions)]
        for _ in range(unseeded):
            assert env.agents == []
            seen.append(bits(env.reset()) + play(env, actions))
        return seen

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
    obs, infos = small.reset(seed=0, options={"nobody": "knows"})
    assert infos == {agent: {} for agent in small.possible_agents}
    for step in range(1, 7):
        values = small.step(sampled(small))
        obs, rewards, terminated, truncated, infos = values
        for part in values:
            assert list(part) == small.possible_agents
        for agent in small.possible_agents:
            seen = obs[agent]
            assert type(seen) is np.ndarray and seen.dtype == np.float32 and seen.flags.writeable
            assert small.observation_space(agent).contains(seen)
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
    chosen = np.asarray([2, 1, 4])
    actions = dict.fromkeys(small.agents, chosen)
    *_, infos = small.step(actions)
    setting = small.core.action.describe(chosen)
    for agent in small.agents:
        scale = small.port_info(agent)["rate_gbps"] / 25
        got = [infos[agent][name] for name in ("kmin", "kmax", "pmax")]
        want = [setting.kmin_kb * 1e3 * scale, setting.kmax_kb * 1e3 * scale, setting.pmax]
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_dicts_hold_the_arrays_of_the_functional_environment(small: EcnParallelEnv):
    core = ecn_marl.make("incast-v0", features="pet", reward="pet")
    reset, step, global_state = _compiled(core)
    key, params = jax.random.key(9), core.default_params.replace(max_steps=np.int32(6))
    small.reset(seed=5)
    _, state = reset(small._key, params)
    for actions in script(small, 6):
        stacked = np.stack([*actions.values()]).astype(np.int32)
        obs, state, reward, _, truncated, info = step(key, state, stacked, params)
        seen, rewards, _, truncations, infos = small.step(actions)
        np.testing.assert_array_equal(np.stack([*seen.values()]), obs)
        np.testing.assert_array_equal([*rewards.values()], np.asarray(reward, np.float64))
        assert [*truncations.values()] == truncated.tolist()
        assert set(infos["port_0"]) == set(info)
        for name, column in info.items():
            assert [each[name] for each in infos.values()] == column.tolist()
        np.testing.assert_array_equal(small.state(), global_state(state, params))


def test_what_is_returned_belongs_to_the_caller(small: EcnParallelEnv):
    actions = script(small, 6)
    small.reset(seed=1)
    expected = play(small, actions)
    small.reset(seed=1)[0]["port_0"][:] = np.nan
    seen = []
    for each in actions:
        values = small.step(each)
        seen.append(bits((values, small.agents, small.state())))
        values[0]["port_0"][:] = np.nan
        values[4]["port_0"].clear()
        for part in values:
            part["__all__"] = True  # as RLlib does
        small.state()[:] = np.nan
    assert tuple(seen) == expected


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
    one, two = env.action_space("port_0"), env.action_space("port_1")
    assert isinstance(one, space) and one == two
    assert one is env.action_space("port_0")
    assert env.observation_space("port_0") is env.observation_space("port_0")
    one.seed(1)
    draws = [one.sample() for _ in range(4)]
    one.seed(1)
    two.seed(2)  # the spaces of two agents do not share a stream
    again = [(one.sample(), two.sample())[0] for _ in range(4)]
    np.testing.assert_array_equal(draws, again)


def test_bounds_are_those_of_the_features():
    own = FeatureSet(
        "acc", 2, FEATURE_SETS["acc"].names, lambda *a: 5 * FEATURE_SETS["acc"].compute(*a)
    )
    named, custom = (ecn_marl.parallel_env(features=each) for each in ("acc", own))
    assert named.observation_space("port_0") == gymnasium.spaces.Box(0, 1, (18,), np.float32)
    assert named.state_space == gymnasium.spaces.Box(0, 1, (96,), np.float32)
    assert not custom.observation_space("port_0").is_bounded()
    assert custom.observation_space("port_0").shape == (12,)


# Copies.


@pytest.mark.parametrize(
    "clone",
    [
        pytest.param(lambda env: cloudpickle.loads(cloudpickle.dumps(env)), id="cloudpickle"),
        pytest.param(lambda env: pickle.loads(pickle.dumps(env)), id="pickle"),
        pytest.param(copy.deepcopy, id="deepcopy"),
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
    rest = play(small, actions[done:])
    small.reset()
    after = play(small, actions)
    assert play(twin, actions[done:]) == rest
    twin.reset()
    assert play(twin, actions) == after


def test_environments_of_one_scenario_share_their_compiled_functions(small: EcnParallelEnv):
    twin = ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=9)
    clone = cloudpickle.loads(cloudpickle.dumps(small))
    assert _compiled(small.core) is _compiled(twin.core) is _compiled(clone.core)
    assert _compiled(small.core) is not _compiled(ecn_marl.make("incast-v0"))


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


def test_supersuit_vector_environment():
    supersuit = pytest.importorskip("supersuit")
    env = ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=4)
    env.reset(seed=0)  # copied after JAX has started
    vector = supersuit.pettingzoo_env_to_vec_env_v1(env)
    vector = supersuit.concat_vec_envs_v1(vector, 2, num_cpus=0, base_class="gymnasium")
    assert vector.num_envs == 34
    actions = np.stack([env.action_space("port_0").sample() for _ in range(34)])

    def run() -> list[np.ndarray]:
        seen = [vector.reset(seed=3)[0]]
        for step in range(1, 10):
            obs, reward, terminated, truncated, infos = vector.step(actions)
            assert obs.shape == (34, *env.observation_space("port_0").shape)
            assert reward.shape == (34,) and np.isfinite(reward).all()
            assert not terminated.any()
            assert truncated.all() == truncated.any() == (step % 4 == 0)
            assert all(("terminal_observation" in info) == (step % 4 == 0) for info in infos)
            seen += [obs, reward]
        return seen

    first, again = run(), run()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    third, seventh = first[5], first[13]  # observations of step 3 in episodes 1 and 2
    assert not np.array_equal(third[:17], third[17:]), "the two copies play the same episode"
    assert not np.array_equal(third, seventh), "the same episode is played again"


# Pictures.


@pytest.fixture
def headless():
    backend = matplotlib.get_backend()
    matplotlib.use("Agg")
    yield
    matplotlib.use(backend)


def test_pettingzoo_render(headless: None):
    render_test(partial(ecn_marl.env, "incast-v0", features="pet", reward="pet"))


def test_render_shows_queues_and_thresholds(headless: None):
    drawn = {}
    for mode in RENDER_MODES:
        env = ecn_marl.parallel_env("incast-v0", mode, 6, features="pet", reward="pet")
        env.reset(seed=0)
        before = env.render()
        for _ in range(3):
            *_, infos = env.step(dict.fromkeys(env.agents, np.asarray([3, 2, 5])))
        drawn[mode] = before, env.render()
        env.close()
    before, after = drawn["rgb_array"]
    assert after.shape == before.shape and after.dtype == np.uint8 and (after != before).any()
    lines = drawn["ansi"][1].splitlines()
    assert len(lines) == 1 + 17
    row = next(line for line in lines if line.split()[0] == "port_0").split()
    want = [infos["port_0"][name] for name in ("queue", "kmin", "kmax")]
    np.testing.assert_allclose([float(x) * 1e3 for x in row[2:5]], want, atol=51)
    assert drawn["human"] == (None, None)


def test_human_mode_shows_every_step(headless: None, monkeypatch: pytest.MonkeyPatch):
    frames = []
    monkeypatch.setattr("ecn_marl.envs.rendering.show", lambda frame, title: frames.append(frame))
    env = ecn_marl.parallel_env("incast-v0", "human", 3, features="pet", reward="pet")
    env.reset(seed=0)
    env.step(sampled(env))
    assert len(frames) == 2


def test_render_without_a_mode_warns(small: EcnParallelEnv):
    small.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert small.render() is None


# Errors.


def test_steps_outside_an_episode(small: EcnParallelEnv):
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        small.step({})
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        small.state()
    small.reset(seed=0)
    actions = script(small, 7)
    play(small, actions[:6])
    with pytest.raises(ResetNeeded, match="no episode is running"):
        small.step(actions[6])
    assert small.state().shape == small.state_space.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("port_4"), r"none for port_4.*one action for every agent"),
        (lambda a: a.update(port_99=a["port_0"]), r"one for 'port_99'"),
        (lambda a: a.update(port_4=np.zeros(2, int)), r"shape of port_4 = \(2,\).*expected \(3,\)"),
        (lambda a: a.update(port_4=[[1], [1, 2]]), r"shape of port_4 = 'ragged'"),
        (lambda a: a.update(port_4=None), r"shape of port_4 = \(\)"),
        (lambda a: a.update(port_4=np.zeros(3)), r"action dtype = 'float64'.*integer"),
        (lambda a: a.update(port_4=np.asarray([0, 9, 0])), r"port_4, gap = 9 .*\[0, 8\]"),
        (lambda a: a.update(port_4=np.asarray([-1, 0, 0])), r"port_4, kmin = -1 .*\[0, 8\]"),
    ],
)
def test_wrong_actions_change_nothing(
    small: EcnParallelEnv, change: Callable[[dict[str, Any]], Any], message: str
):
    actions = script(small, 3)
    small.reset(seed=0)
    expected = play(small, actions)
    small.reset(seed=0)
    first = play(small, actions[:1])
    wrong = copy.deepcopy(actions[1])
    change(wrong)
    with pytest.raises(ValueError, match=message):
        small.step(wrong)
    rest = play(small, actions[1:])
    assert first + rest == expected


def test_wrong_reals():
    env = ecn_marl.parallel_env(actions="box")
    env.reset(seed=0)
    for bad, message in ((np.nan, "nan"), (1.5, "1.5")):
        actions = sampled(env)
        actions["port_2"] = np.asarray([0.0, bad, 0.0], np.float32)
        with pytest.raises(ValueError, match=rf"port_2, ratio = {message} .*\[-1.0, 1.0\]"):
            env.step(actions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "websaerch-v0"}, "did you mean 'websearch-v0'"),
        ({"render_mode": "video"}, "render_mode = 'video' .* human, rgb_array, ansi or None"),
        ({"max_cycles": 0}, r"max_cycles = 0 .* \[1, "),
        ({"max_cycles": 2**31}, "max_cycles = 2147483648"),
        ({"laod": 0.5}, "did you mean 'load'"),
    ],
)
def test_wrong_options(options: Options, message: str):
    with pytest.raises(ValueError, match=message):
        ecn_marl.parallel_env(**options)


def test_wrong_attributes(small: EcnParallelEnv):
    with pytest.raises(ValueError, match=r"seed = -1 .* >= 0"):
        small.reset(seed=-1)
    small.max_cycles = 5
    with pytest.raises(ValueError, match="max_cycles = 0"):
        small.max_cycles = 0
    with pytest.raises(ValueError, match=r"max_cycles = '5'"):
        small.max_cycles = "5"
    assert small.max_cycles == 5
