"""Policies as ONNX models: the same actions, thresholds and memory, by onnx's own evaluator."""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from commands import failure, run
from onnx.reference import ReferenceEvaluator

from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.files import read_policy
from ecn_marl.baselines.exporting.onnx import onnx_model, save_onnx
from ecn_marl.baselines.gnn import MessagePassing, Neighbours
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.distributions import head_for
from ecn_marl.baselines.rl.networks import Mlp, init_network, standardise
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, dumbbell, star


def policy_of(actions, shared=True, units=0, normalised=False, message=0):
    """An untrained policy of three ports (six if they speak), and observations of 40 intervals."""
    net = dumbbell(2, 2, gbps=100.0) if message else star(3, gbps=100.0)
    scenario = Scenario(topology=net, traffic=(Incast(n_max=2, width=2),), slots=4)
    env = make(scenario, actions=actions, features="pet")
    head, key = head_for(env.action), jax.random.key(4)
    shape = (key, env.obs_dim, env.num_agents, shared)
    if message:
        net = MessagePassing((16, 8, 8), head.outputs, Neighbours.of(net), message, 1.0, True)
        params = jax.jit(net.init)(key, jnp.zeros((env.num_agents, env.obs_dim)))
        params = standardise(params, jnp.full((env.obs_dim,), 0.4), jnp.full((env.obs_dim,), 0.2))
    elif units:
        net = rc.Recurrent((16,), units, head.outputs, 1.0, True, normalised)
        params = rc.init_recurrent(net, *shape)
        params = standardise(params, jnp.full((env.obs_dim,), 0.4), jnp.full((env.obs_dim,), 0.2))
    else:
        params = init_network(Mlp((16, 8), head.outputs, normalised=normalised), *shape)
    if normalised:
        params = jax.tree.map(lambda x: x + 0.3, params)
    rng = np.random.default_rng(0)
    obs = rng.uniform(size=(40, env.num_agents, env.obs_dim)).astype(np.float32)
    policy = export_policy(env, head, params, algorithm="ippo", message=message, seed=4)
    if message:
        by_jax = head.mode(net.apply(params, jnp.asarray(obs)))
        np.testing.assert_allclose(policy(obs), by_jax, atol=1e-5)
    return policy, obs


@pytest.mark.parametrize(
    ("actions", "normalised", "shared", "units", "message"),
    [
        ("multidiscrete", False, True, 0, 0),
        ("multidiscrete", False, False, 5, 0),
        ("discrete", True, True, 5, 0),
        ("discrete", True, False, 0, 0),
        ("box", False, True, 5, 0),
        ("box", False, True, 0, 3),
        ("discrete", False, True, 0, 3),
    ],
)
def test_the_model_is_the_policy(actions, normalised, shared, units, message):
    policy, obs = policy_of(actions, shared, units, normalised, message)
    model = onnx_model(policy)
    onnx.checker.check_model(model, full_check=True)
    session, memory = ReferenceEvaluator(model), None
    names = [x.name for x in model.graph.output]
    state = {"memory": np.zeros((3, units), np.float32)} if units else {}
    for rows in obs:
        out = dict(zip(names, session.run(None, {"obs": rows, **state}), strict=True))
        action, memory = policy.step(rows, memory)
        np.testing.assert_allclose(out["action"], action, atol=1e-5)
        if units:
            np.testing.assert_allclose(out["next_memory"], memory, rtol=1e-4, atol=1e-5)
            state = {"memory": out["next_memory"]}
        thresholds = np.stack(policy.thresholds_of(action), -1)
        np.testing.assert_allclose(out["thresholds"], thresholds, rtol=2e-5)
    header = {x.key: x.value for x in model.metadata_props}["ecn_marl"]
    assert json.loads(header) == json.loads(json.dumps(policy.header))


def _rows(model):
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    return dim.dim_param or dim.dim_value


def test_shapes_are_declared():
    """Any number of rows for one network, the ports' number for a network each."""
    assert _rows(onnx_model(policy_of("discrete", message=3)[0])) == 6, "ports hear each other"
    for shared, rows in ((True, "rows"), (False, 3)):
        model = onnx_model(policy_of("discrete", shared, 5)[0])
        shapes = {
            x.name: [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim]
            for x in (*model.graph.input, *model.graph.output)
        }
        assert shapes == {
            "obs": [rows, 24],
            "memory": [rows, 5],
            "next_memory": [rows, 5],
            "action": [rows],
            "thresholds": [rows, 3],
        }


def test_written_by_the_command(tmp_path):
    out = tmp_path / "policy.onnx"
    result = run("export", "pretrained:restore-serve-ippo", "--out", out)
    assert f"{out}: ippo of update" in result.stdout
    policy = read_policy("pretrained:restore-serve-ippo")
    obs = np.random.default_rng(1).uniform(size=(9, policy.obs_dim)).astype(np.float32)
    names = ["action", "thresholds"]
    action, thresholds = ReferenceEvaluator(str(out)).run(names, {"obs": obs})
    np.testing.assert_array_equal(action, policy(obs))
    np.testing.assert_allclose(thresholds[:, 1], policy.thresholds(obs).kmax_kb, rtol=1e-5)


def test_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    policy, _ = policy_of("discrete")
    with pytest.raises(ValueError, match=r"onnx = 'not installed' .* 'ecn-marl\[onnx\]'"):
        save_onnx(policy, tmp_path / "p.onnx")
    message = failure("export", "pretrained:generalist", "--out", tmp_path / "p.onnx")
    assert "pip install 'ecn-marl[onnx]'" in message and not list(tmp_path.iterdir())
