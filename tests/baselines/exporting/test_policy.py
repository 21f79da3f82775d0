"""Policies in one file: the same actions and thresholds as the network, with numpy alone."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ecn_marl
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.files import NEEDED, VERSION, read_policy, save_policy
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.distributions import head_for
from ecn_marl.baselines.rl.networks import Mlp, apply_network, init_network, standardise
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.errors import EcnMarlError
from ecn_marl.sim import Incast, star

HIDDEN = (16, 8)


def env_for(actions):
    scenario = Scenario(topology=star(3, gbps=100.0), traffic=(Incast(n_max=2, width=2),), slots=4)
    return make(scenario, actions=actions, features="pet")


def case(actions, shared, tmp_path, normalised=False):
    """An environment, an untrained network, and its policy through a file."""
    env = env_for(actions)
    head = head_for(env.action)
    net = Mlp(HIDDEN, head.outputs, normalised=normalised)
    params = init_network(net, jax.random.key(4), env.obs_dim, env.num_agents, shared)
    if normalised:  # no scale of 1 and no offset of 0
        params = jax.tree.map(
            lambda x: x + 0.3 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), params
        )
    save_policy(export_policy(env, head, params, algorithm="ippo", seed=4), tmp_path / "p.npz")
    return env, head, net, params, read_policy(tmp_path / "p.npz")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("actions", "normalised"),
    [("multidiscrete", False), ("discrete", False), ("discrete", True), ("box", False)],
)
def test_outputs_are_those_of_the_network(actions, shared, normalised, tmp_path):
    env, head, net, params, policy = case(actions, shared, tmp_path, normalised)
    obs = np.random.default_rng(0).uniform(size=(200, env.num_agents, env.obs_dim))
    obs = obs.astype(np.float32)
    out = apply_network(net, params, jnp.asarray(obs), shared)
    np.testing.assert_allclose(policy.outputs(obs), out, atol=2e-6, rtol=1e-5)
    action = np.asarray(head.mode(out))
    if actions == "box":
        np.testing.assert_allclose(policy(obs), action, atol=2e-6)
    else:
        np.testing.assert_array_equal(policy(obs), action)
        assert policy(obs).dtype == np.int32
        assert len(np.unique(action.reshape(-1, *env.action.shape), axis=0)) > 3
    scale = env.port_scale(env.default_params.sim)  # 100 Gb/s: four times the thresholds
    ecn = jax.vmap(env.action.decode, (0, None))(jnp.asarray(action), scale)
    thresholds = policy.thresholds(obs, gbps=100.0)
    for name, unit in (("kmin", 1e3), ("kmax", 1e3), ("pmax", 1.0)):
        exported = getattr(thresholds, name if name == "pmax" else f"{name}_kb")
        np.testing.assert_allclose(exported * unit, getattr(ecn, name), rtol=3e-5)
    for port in range(env.num_agents):
        of_port = policy.thresholds(obs[7, port], port=port)
        np.testing.assert_allclose(of_port.kmax_kb, thresholds.kmax_kb[7, port], rtol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("actions", ["multidiscrete", "discrete", "box"])
def test_takes_dicts_of_agents(actions, shared, tmp_path):
    """As PettingZoo's environments give them, some agents or all, in any order."""
    env, *_, policy = case(actions, shared, tmp_path)
    obs = np.random.default_rng(1).uniform(size=(env.num_agents, env.obs_dim)).astype(np.float32)
    by_agent = {f"port_{i}": obs[i] for i in (2, 0)}
    chosen, rows = policy(by_agent), policy(obs)
    assert list(chosen) == ["port_2", "port_0"] and policy({}) == {}
    space = env.action.gymnasium_space()
    for agent, i in (("port_2", 2), ("port_0", 0)):
        np.testing.assert_allclose(chosen[agent], rows[i], atol=1e-6)
        assert space.contains(np.asarray(chosen[agent])[()])
    with pytest.raises(ValueError, match=r"obs shape of port_1 = \(5,\) .* \(24,\)"):
        policy({"port_1": np.zeros(5)})
    for by_array in (policy.outputs, policy.thresholds):
        with pytest.raises(ValueError, match=r"obs = \['port_2', 'port_0'\] .* an array here"):
            partial(inspect.unwrap(by_array.__func__), policy)(by_agent)
    if not shared:
        with pytest.raises(ValueError, match=r"agent = 'port_3' .* port_0 … port_2"):
            policy({"port_3": obs[0]})


@pytest.mark.parametrize(("shared", "normalised"), [(True, False), (False, False), (True, True)])
def test_a_memory_is_that_of_the_network(shared, normalised, tmp_path):
    """Over five intervals, by array, by dict and port by port."""
    env = env_for("discrete")
    head, agents = head_for(env.action), env.num_agents
    net = rc.Recurrent(HIDDEN, 5, head.outputs, standardised=True, normalised=normalised)
    params = rc.init_recurrent(net, jax.random.key(4), env.obs_dim, agents, shared)
    moments = jnp.full((env.obs_dim,), 0.3), jnp.full((env.obs_dim,), 0.1)
    params = standardise(params, *moments)
    file = tmp_path / "p.npz"
    save_policy(export_policy(env, head, params, algorithm="ippo"), file)
    policy = read_policy(file)
    assert policy.units == 5 and "a memory of 5, 24 outputs" in repr(policy)
    rng = np.random.default_rng(0)
    obs = rng.uniform(size=(5, 20, agents, env.obs_dim)).astype(np.float32)
    ended = jnp.zeros(obs.shape[:-1], bool)
    start = jnp.zeros((20, agents, 5))
    out, memories = rc.unroll(net, params, jnp.asarray(obs), start, ended, shared)
    memory, by_agent, of_port = None, None, None
    for t, rows in enumerate(obs):
        action, memory = policy.step(rows, memory)
        np.testing.assert_array_equal(action, head.mode(out[t]))
        np.testing.assert_allclose(memory, memories[t], rtol=1e-4, atol=1e-5)
        chosen, by_agent = policy.step({"port_2": rows[0, 2], "port_0": rows[0, 0]}, by_agent)
        assert list(chosen.values()) == [action[0, 2], action[0, 0]]
        one, of_port = policy.step(rows[0, 1], of_port, port=1)
        assert one == action[0, 1]
        assert policy.thresholds_of(one, 1).kmin_kb == policy.settings[one, 0] * 4
    with pytest.raises(ValueError, match=r"memory = '5 numbers per port' .* step\(obs, memory\)"):
        policy(obs[0])
    with pytest.raises(ValueError, match=r"memory shape = \(5,\) .* or None as an episode begins"):
        policy.step(obs[0], np.zeros(5))


def test_a_policy_without_a_memory_steps_alike(tmp_path):
    *_, policy = case("discrete", True, tmp_path)
    obs = np.random.default_rng(0).uniform(size=(4, policy.obs_dim))
    action, memory = policy.step(obs)
    np.testing.assert_array_equal(action, policy(obs))
    assert memory is None and policy.units == 0


def test_make_options_are_those_of_its_environment(tmp_path):
    env, *_, policy = case("discrete", True, tmp_path)
    new_env = make("incast-v0", topology=star(3, gbps=100.0), **policy.make_options)
    assert new_env.feature.names == env.feature.names and new_env.action == env.action
    assert (new_env.obs_dim, new_env.interval_us) == (policy.obs_dim, env.interval_us)


def test_networks_per_port_need_a_port(tmp_path):
    *_, policy = case("discrete", False, tmp_path)
    obs = np.zeros(policy.obs_dim)
    assert policy(obs, port=1).shape == ()
    with pytest.raises(ValueError, match=r"obs shape = \(24,\) .* or one observation and its port"):
        policy(obs)
    with pytest.raises(ValueError, match="port = 3 is not allowed: expected 0 to 2"):
        policy(obs, port=3)
    for port in (3, -1):
        with pytest.raises(ValueError, match=f"port = {port} is not allowed: expected 0 to 2"):
            policy.thresholds_of(policy(obs, port=1), port)
        with pytest.raises(ValueError, match=f"port = {port} is not allowed: expected 0 to 2"):
            policy.outputs(obs, port)
    with pytest.raises(ValueError, match=r"obs shape = \(5,\)"):
        policy(np.zeros(5), port=0)


def test_header_has_features_and_actions(tmp_path):
    env, _, _, _, policy = case("discrete", True, tmp_path)
    assert policy.header["features"]["history"] * len(policy.features) == env.obs_dim
    assert policy.features[-2:] == ("incast_degree", "mice_fraction")
    assert policy.header["normalisation"]["queue_top"] == 10.24e6
    assert policy.header["actions"]["codec"] == "discrete"
    assert policy.header["ports"][0] == {"name": "switch0->host0", "gbps": 100.0}
    assert policy.header["network"]["layers"] == [16, 8, 24]
    assert f"{env.obs_dim} inputs, 24 outputs, one network for all" in repr(policy)


def test_needs_numpy_only(tmp_path):
    _, _, _, _, policy = case("multidiscrete", True, tmp_path)
    code = (
        "import sys, json\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('jax', 'jaxlib', 'flax', 'jaxtyping', 'scipy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import ecn_marl, numpy as np\n"
        "policy = ecn_marl.load_policy(sys.argv[1])\n"
        "obs = np.linspace(0, 1, policy.obs_dim)\n"
        "print(json.dumps([policy(obs).tolist(), *map(float, policy.thresholds(obs))]))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "p.npz")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    obs = np.linspace(0, 1, policy.obs_dim)
    action, *settings = json.loads(done.stdout)
    assert action == policy(obs).tolist()
    assert settings == [float(x) for x in policy.thresholds(obs)]


def test_other_files_are_refused(tmp_path):
    text, arrays = tmp_path / "a.txt", tmp_path / "b.npz"
    text.write_text("hello")
    np.savez(arrays, x=np.zeros(2))

    def header_alone(version):
        header = json.dumps({"format": "ecn-marl-policy", "version": version}).encode()
        path = tmp_path / f"version-{version}.npz"
        np.savez(path, header=np.frombuffer(header, np.uint8))
        return path

    later, empty = header_alone(VERSION + 1), header_alone(VERSION)
    for path in (text, arrays, empty):
        with pytest.raises(ValueError, match="expected a file that `ecn-marl export` has written"):
            ecn_marl.load_policy(path)
    with pytest.raises(ValueError, match=rf"version of the policy = {VERSION + 1} .* at most"):
        ecn_marl.load_policy(later)
    with pytest.raises(FileNotFoundError):
        ecn_marl.load_policy(tmp_path / "none.npz")


def test_damaged_policies_are_refused(tmp_path):
    """Fields that are missing or of another kind, weights that are no finite numbers."""
    case("multidiscrete", True, tmp_path)
    with np.load(tmp_path / "p.npz") as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes())
    net = header["network"]
    without = [{k: v for k, v in header.items() if k != name} for name in (*NEEDED, "ports")]
    without += [{**header, "network": {k: v for k, v in net.items() if k != "head"}}]
    without += [{**header, name: None} for name in ("features", "network", "ports")]
    without += [{**header, "features": {**header["features"], "history": 7}}, [header], None]
    damaged = [{"header": np.frombuffer(json.dumps(x).encode(), np.uint8)} for x in without]
    damaged += [{"w0": arrays["w0"] * np.nan}, {"b1": arrays["b1"] + np.inf}]
    damaged += [{"w0": arrays["w0"][:, :-1]}, {"w1": arrays["w1"].astype(str)}]
    damaged += [{"settings": arrays["settings"] * np.nan}, {"settings": arrays["settings"][:2, 0]}]
    for change in damaged:
        np.savez(tmp_path / "d.npz", **{**arrays, **change})
        with pytest.raises(EcnMarlError, match=r"d\.npz"):
            read_policy(tmp_path / "d.npz")
    np.savez(tmp_path / "d.npz", **arrays)
    assert read_policy(tmp_path / "d.npz").header == header


def test_policies_of_several_networks_are_refused():
    env = env_for("discrete")
    with pytest.raises(ValueError, match="algorithm = 'haecn' is not allowed: expected a trainer"):
        export_policy(env, head_for(env.action), {"decision": {}}, algorithm="haecn")
