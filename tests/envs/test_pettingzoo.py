"""Requirements of PettingZoo and SuperSuit, by their own tests."""

from __future__ import annotations

import types
from functools import partial

import numpy as np
import pytest
from pettingzoo.test import (
    api_test,
    max_cycles_test,
    parallel_api_test,
    parallel_seed_test,
    seed_test,
    state_test,
)
from playing import CASES, Options

import ecn_marl

LARGE = {"scenario": "pet-websearch-v0", "features": "haecn", "reward": "haecn", "slots": 256}


def faces(options: Options) -> types.SimpleNamespace:
    """A substitute for an environment's module, as PettingZoo's tests expect it."""
    return types.SimpleNamespace(
        parallel_env=partial(ecn_marl.parallel_env, **options),
        env=partial(ecn_marl.env, **options),
    )


# PettingZoo's warnings are errors here, except the one about spaces that it does not know.
strict = pytest.mark.filterwarnings(
    "error::UserWarning", "ignore:Action space for each agent probably should be:UserWarning"
)


@strict
@pytest.mark.parametrize("options", CASES)
def test_pettingzoo_parallel(options: Options):
    parallel_api_test(ecn_marl.parallel_env(**options), num_cycles=20)
    parallel_seed_test(faces(options).parallel_env, num_cycles=1)  # as many steps as agents


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
@pytest.mark.thorough
@strict
def test_pettingzoo_432_agents():
    assert set(ecn_marl.scenarios()) >= {"websearch-v0", "incast-v0", "pet-websearch-v0"}
    env = ecn_marl.parallel_env(**LARGE)
    assert len(env.possible_agents) == 432
    parallel_api_test(env, num_cycles=4)
    parallel_seed_test(faces(LARGE).parallel_env, num_cycles=1)
    api_test(ecn_marl.env(max_cycles=3, **LARGE), num_cycles=4)
    max_cycles_test(faces(LARGE))


def test_supersuit_vector_environment():
    supersuit = pytest.importorskip("supersuit")
    env = ecn_marl.parallel_env("incast-v0", features="pet", reward="pet", max_cycles=4)
    env.reset(seed=0)  # copied after JAX has started
    vector = supersuit.pettingzoo_env_to_vec_env_v1(env)
    vector = supersuit.concat_vec_envs_v1(vector, 2, num_cpus=0, base_class="gymnasium")
    assert vector.num_envs == 34
    actions = np.stack([env.action_space("port_0").sample() for _ in range(34)])

    def run() -> list[np.ndarray]:
        records = [vector.reset(seed=3)[0]]
        for step in range(1, 10):
            obs, reward, terminated, truncated, infos = vector.step(actions)
            assert obs.shape == (34, *env.observation_space("port_0").shape)
            assert reward.shape == (34,) and np.isfinite(reward).all()
            assert not terminated.any()
            assert truncated.all() == truncated.any() == (step % 4 == 0)
            assert all(("terminal_observation" in info) == (step % 4 == 0) for info in infos)
            records += [obs, reward]
        return records

    first, again = run(), run()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    third, seventh = first[5], first[13]  # observations of step 3 in episodes 1 and 2
    assert not np.array_equal(third[:17], third[17:]), "the two copies play the same episode"
    assert not np.array_equal(third, seventh), "the same episode is played again"
