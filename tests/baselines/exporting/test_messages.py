"""Exported policies whose ports exchange messages: as trained, in other networks, refusals."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY

from ecn_marl.baselines.exported import exported_controller
from ecn_marl.baselines.exporting.export import export_policy, ports_header
from ecn_marl.baselines.exporting.files import read_policy, save_policy
from ecn_marl.baselines.gnn import GNN, GNNConfig
from ecn_marl.baselines.rl.networks import standardise
from ecn_marl.baselines.runs import train_run
from ecn_marl.baselines.trained import run_controller, run_policy
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, dumbbell, leaf_spine

OPTIONS = {"features": "ports", "history": 2, "actions": "discrete", "max_steps": 4}


def scenario_of(topology):
    return Scenario(topology=topology, traffic=(Incast(n_max=2, width=2),), slots=4, max_steps=4)


@pytest.fixture(scope="module")
def small():
    return make(scenario_of(dumbbell(2, 2)), **OPTIONS)


@pytest.fixture(scope="module")
def learner(small):
    """An untrained trainer and the parameters of its policy, none of them zero."""
    trainer = GNN(small, GNNConfig(hidden=(8, 6), message=3, standardise=4))
    actor = jax.tree.map(
        lambda x: x + 0.1,
        jax.jit(lambda k: trainer.init_agents(trainer.net, k))(jax.random.key(0)),
    )
    dim = small.obs_dim
    return trainer, standardise(actor, jnp.full((dim,), 0.3), jnp.full((dim,), 0.5))


@pytest.fixture(scope="module")
def policy(small, learner, tmp_path_factory):
    """The policy through a file."""
    trainer, actor = learner
    file = tmp_path_factory.mktemp("policies") / "gnn.npz"
    save_policy(export_policy(small, trainer.head, actor, algorithm="gnn", message=3), file)
    return read_policy(file)


def observations(env, n=50):
    rng = np.random.default_rng(1)
    return rng.uniform(size=(n, env.num_agents, env.obs_dim)).astype(np.float32)


def test_numpy_and_jax_act_as_the_trainer(small, learner, policy):
    trainer, actor = learner
    obs = observations(small)
    expected = np.asarray(trainer.net.apply(actor, jnp.asarray(obs)))
    np.testing.assert_allclose(policy.outputs(obs), expected, rtol=1e-4, atol=1e-5)
    ours = exported_controller(small, policy)
    np.testing.assert_allclose(ours.outputs(jnp.asarray(obs)), expected, rtol=1e-4, atol=1e-5)
    action = policy(obs)
    np.testing.assert_array_equal(action, ours(jax.random.key(0), jnp.asarray(obs)))
    assert len(np.unique(action)) > 1
    assert ours.costs()["flops_per_decision"] == trainer.flops
    assert "exchange messages" in repr(policy)


def test_another_network_is_a_matter_of_its_ports(learner, policy):
    """What a trainer made for that network gives; numpy needs only names of switches and peers."""
    large = make(scenario_of(leaf_spine(2, 3, 2)), **OPTIONS)
    obs = observations(large)
    expected = GNN(large, learner[0].config).net.apply(learner[1], jnp.asarray(obs))
    moved = policy.among(ports_header(large, neighbours=True))
    np.testing.assert_allclose(moved.outputs(obs), expected, rtol=1e-4, atol=1e-5)
    ours = exported_controller(large, policy)
    np.testing.assert_allclose(ours.outputs(jnp.asarray(obs)), expected, rtol=1e-4, atol=1e-5)


def test_dicts_have_all_ports(small, policy):
    obs = observations(small, 1)[0]
    agents = [f"port_{i}" for i in range(small.num_agents)]
    chosen = policy(dict(zip(agents, obs, strict=True)))
    assert list(chosen.values()) == list(policy(obs)) and list(chosen) == agents
    assert policy(dict(zip(agents[::-1], obs[::-1], strict=True))) == chosen
    with pytest.raises(ValueError, match=r"agents .* ports hear each other"):
        policy({"port_0": obs[0]})
    with pytest.raises(ValueError, match=r"port = 0 .* ports exchange messages"):
        policy(obs, port=0)
    with pytest.raises(ValueError, match="obs shape"):
        policy(obs[0])


def test_switches_as_agents_are_refused(policy):
    switches = make(scenario_of(dumbbell(2, 2)), agents="switch", **OPTIONS)
    with pytest.raises(ValueError, match="messages between ports"):
        exported_controller(switches, policy)


def test_a_header_without_neighbours_is_refused(policy, tmp_path):
    ports = [{name: port[name] for name in ("name", "gbps")} for port in policy.header["ports"]]
    save_policy(replace(policy, header={**policy.header, "ports": ports}), tmp_path / "p.npz")
    with pytest.raises(ValueError, match=r"p\.npz"):
        read_policy(tmp_path / "p.npz")
    with pytest.raises(ValueError, match=r"ports\[0\] .* also switch, peer"):
        policy.among(ports)


@pytest.mark.usefixtures("tiny_scenario")
def test_the_file_of_a_run_acts_as_the_run(tmp_path):
    settings = {"envs": 2, "rollout": 4, "minibatches": 1, "epochs": 4, "hidden": (8, 8)}
    settings |= {"actor_lr": 0.05, "max_grad_norm": 100.0}
    folder, file = tmp_path / "run", tmp_path / "p.npz"
    train_run("gnn", TINY, steps=16, options=OPTIONS, settings=settings, out=folder, eval_every=0)
    save_policy(run_policy(folder), file)
    env, key = make(TINY, **OPTIONS), jax.random.key(0)
    obs = jnp.asarray(8.0 * (observations(env) - 0.5))  # far apart: it has hardly learnt
    theirs = run_controller(folder, env)(key, obs)
    np.testing.assert_array_equal(read_policy(file)(np.asarray(obs)), theirs)
    assert len(np.unique(theirs)) > 1
