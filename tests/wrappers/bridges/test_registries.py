"""Scenarios under their names in the registries of gymnasium and PettingZoo."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import pettingzoo
import pytest
from gymnasium.vector import AutoresetMode
from pettingzoo.test import parallel_api_test
from tiny import HORIZON, OPTIONS

import ecn_marl
from ecn_marl.wrappers import AgentVectorEnv, EcnVectorEnv, NetworkEnv

ID = "ecn_marl/incast-v0"


@pytest.fixture(scope="module", autouse=True)
def ids():
    return ecn_marl.register_envs()


def test_every_scenario_is_there_once(ids):
    assert ids == tuple(f"ecn_marl/{name}" for name in ecn_marl.scenarios())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # both registries warn of a name that is taken
        assert ecn_marl.register_envs() == ids
    assert set(ids) <= set(gymnasium.registry)


def test_gymnasium_makes_networks_and_batches():
    env = gymnasium.make(ID, **OPTIONS)
    assert isinstance(env.unwrapped, NetworkEnv)
    env.reset(seed=0)
    for i in range(HORIZON):
        *_, truncated, _ = env.step(env.action_space.sample())
        assert truncated == (i == HORIZON - 1)
    batch = gymnasium.make_vec(ID, num_envs=2, autoreset_mode="SameStep", **OPTIONS)
    assert type(batch) is EcnVectorEnv and batch.num_envs == 2
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    agents = batch.core.num_agents
    apart = gymnasium.make_vec(ID, num_envs=2 * agents, per_agent=True, actions="box", **OPTIONS)
    assert type(apart) is AgentVectorEnv and apart.num_envs == 2 * agents
    assert apart.num_networks == 2 and apart.single_action_space.shape == (3,)
    assert apart._steps.tolist() == [HORIZON] * 2
    with pytest.raises(ValueError, match=f"num_envs = {agents + 1} .* multiple of the {agents}"):
        gymnasium.make_vec(ID, num_envs=agents + 1, per_agent=True, **OPTIONS)
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        gymnasium.make("ecn_marl/no-such-network-v0")


@pytest.mark.skipif(not hasattr(pettingzoo, "make"), reason="PettingZoo before 1.27")
def test_pettingzoo_makes_both_faces():
    network = {name: value for name, value in OPTIONS.items() if name != "max_steps"}
    face = pettingzoo.make("parallel", ID, max_cycles=5, actions="discrete", **network)
    assert type(face) is type(ecn_marl.parallel_env("incast-v0"))
    assert face.max_cycles == 5
    parallel_api_test(face, num_cycles=7)
    turns = pettingzoo.make("aec", ID, **OPTIONS)
    assert isinstance(turns, pettingzoo.AECEnv) and turns.possible_agents == face.possible_agents


def test_without_a_registry_of_pettingzoo_gymnasium_s_is_filled(monkeypatch):
    if hasattr(pettingzoo, "register"):
        monkeypatch.delattr(pettingzoo, "register")
    gymnasium.registry.pop(ID)
    ecn_marl.register_envs()
    assert ID in gymnasium.registry


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gymnasium_registers_by_itself_when_the_id_names_the_module():
    name = f"ecn_marl.wrappers.bridges.registries:{ID}"
    run(f"import gymnasium; assert gymnasium.make_vec({name!r}, num_envs=3).num_envs == 3")


def test_importing_the_package_imports_neither():
    run("import sys, ecn_marl; assert not {'gymnasium', 'pettingzoo', 'jax'} & set(sys.modules)")


def test_a_user_s_scenario_is_registered_by_the_next_call():
    code = (
        "import ecn_marl, gymnasium\n"
        "from ecn_marl.envs.scenarios import incast\n"
        "ecn_marl.register_envs()\n"
        "ecn_marl.register('mine-v3', incast.scenario)\n"
        "assert 'ecn_marl/mine-v3' in ecn_marl.register_envs()\n"
        "assert gymnasium.spec('ecn_marl/mine-v3').version == 3\n"
    )
    run(code)


def test_a_bridge_without_its_framework_names_the_extra():
    code = (
        "import sys\n"
        "sys.modules['stable_baselines3'] = None\n"
        "from ecn_marl import wrappers\n"
        "assert 'sb3_env' in dir(wrappers)\n"
        "try:\n"
        "    wrappers.sb3_env\n"
        "except ModuleNotFoundError as error:\n"
        "    assert \"pip install 'ecn-marl[sb3]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
    )
    run(code)
