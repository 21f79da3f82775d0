"""Checked mode: an error names the first number of the parameters that is out of range."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import functions, tiny
from toy import ToyEnv, ToyParams

import ecn_marl
from ecn_marl._checks import check_numbers
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.static import Static
from ecn_marl.envs.ecn import EcnEnv
from ecn_marl.envs.rate.actions import ContinuousFactor
from ecn_marl.errors import InvalidValue
from ecn_marl.wrappers import Checked

EVERYTHING = ("websearch-star-v0", "incast-v0", "acc-offline-small-v0", "restore-serve-v0")


def variants(tree, make, where="params"):
    """`(name, tree)` with one leaf of floats after the other replaced by `make(leaf)`."""
    if isinstance(tree, tuple):
        for i, part in enumerate(tree):
            for name, changed in variants(part, make, f"{where}[{i}]"):
                yield name, (*tree[:i], changed, *tree[i + 1 :])
    elif is_dataclass(tree):
        for field in fields(tree):
            part = getattr(tree, field.name)
            for name, changed in variants(part, make, f"{where}.{field.name}"):
                yield name, replace(tree, **{field.name: changed})
    elif tree is not None and np.asarray(tree).dtype.kind == "f" and np.size(tree):
        yield where, make(np.array(tree))


def with_last(value):
    """A function that sets the last entry of an array to `value`."""

    def change(leaf):
        leaf[(-1,) * leaf.ndim] = value
        return leaf

    return change


@pytest.mark.parametrize("scenario", EVERYTHING)
def test_the_parameters_of_scenarios_pass_and_nan_does_not(scenario):
    params = ecn_marl.make(scenario).default_params
    check_numbers(params)
    check_numbers(jax.device_put(params))
    checked = 0
    for name, nonsense in variants(params, with_last(np.nan)):
        with pytest.raises(InvalidValue) as caught:
            check_numbers(nonsense)
        assert caught.value.field.startswith(name)
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("scenario", EVERYTHING)
def test_negative_numbers_are_refused(scenario):
    for name, nonsense in variants(ecn_marl.make(scenario).default_params, with_last(-2.0)):
        with pytest.raises(InvalidValue, match="expected"):
            check_numbers(nonsense)
            raise AssertionError(name)


@pytest.mark.parametrize("name", ecn_marl.rate_scenarios()[:2])
def test_parameters_of_flows_as_agents(name):
    params = ecn_marl.make_rate(name).default_params
    check_numbers(params)
    with pytest.raises(InvalidValue, match=r"params.target = nan .* a number > 0"):
        check_numbers(replace(params, target=np.float32(np.nan)))


def test_the_message_says_which_entry():
    params = tiny().default_params
    rate = np.array(params.sim.net.port_rate)
    rate[1] = -5.0
    wrong = replace(params, sim=replace(params.sim, net=replace(params.sim.net, port_rate=rate)))
    with pytest.raises(InvalidValue, match=r"^params.sim.net.port_rate\[1\] = -5.0 .* number > 0"):
        Checked(tiny()).check(wrong)
    with pytest.raises(InvalidValue, match=r"params.max_steps = 0 .* an integer >= 1"):
        check_numbers(replace(params, max_steps=np.int32(0)))
    with pytest.raises(InvalidValue, match=r"params.max_steps = 'float32 numbers'"):
        check_numbers(replace(params, max_steps=np.float32(3)))


def test_faces_check_at_reset(monkeypatch):
    core = tiny()
    wrong = replace(core.default_params, max_steps=np.int32(-1))
    monkeypatch.setattr(type(core), "default_params", wrong)
    name = "websearch-star-v0"
    for env in (ecn_marl.parallel_env(name), ecn_marl.vector_env(name, 2)):
        with pytest.raises(InvalidValue, match=r"params.max_steps = -1"):
            env.reset(seed=0)
    with pytest.raises(InvalidValue, match=r"params.max_steps = -1"):
        ecn_marl.wrappers.EcnJaxMARL(core)


def test_checked_mode_is_the_environment_otherwise():
    params = ToyParams(max_steps=np.int32(4))
    env, plain = Checked(ToyEnv()), ToyEnv()
    key, action = jax.random.key(0), jnp.array([1, 3, 0])
    obs, state = env.reset(key, params)
    np.testing.assert_array_equal(obs, plain.reset(key, params)[0])
    returned = jax.jit(env.step)(key, state, action, params)
    np.testing.assert_array_equal(returned[0], plain.step(key, state, action, params)[0])
    assert env.num_agents == plain.num_agents
    assert hash(env) == hash(Checked(ToyEnv()))


def test_checked_mode_refuses_actions_and_thresholds():
    core = tiny("box")
    env, params = Checked(core), core.default_params
    reset, _ = functions(core)
    _, state = reset(jax.random.key(0), params)
    action = np.zeros((3, 3), np.float32)
    action[2, 0] = np.nan
    with pytest.raises(InvalidValue, match=r"action of port_2, kmin = nan"):
        env.step(jax.random.key(0), state, jnp.asarray(action), params)
    ecn = core.static_ecn("secn1", params)
    with pytest.raises(InvalidValue, match=r"ecn.kmax\[0\] = inf"):
        env.step_ecn(jax.random.key(0), state, replace(ecn, kmax=ecn.kmax * np.inf), params)


@pytest.mark.parametrize(("inner", "outer"), [(0, 0), (1, 0), (2, 1), (0, 3)])
def test_actions_of_every_member_of_batches_are_checked(inner, outer, monkeypatch):
    def unstepped(env, key, state, action, params):
        return action, state, action, action, action, {}

    monkeypatch.setattr(EcnEnv, "step", unstepped)
    env = Checked(tiny())
    params = env.default_params

    def step(action):
        return env.step(jax.random.key(0), None, action, params)[0]

    mapped = jax.vmap(jax.vmap(step, inner), outer)
    actions = np.zeros((2, 2, 3, 3), np.int32)  # batches first, then agents and components
    actions[1, 0, 2, 0] = 99
    batch = np.moveaxis(np.moveaxis(actions, 1, 1 + inner), 0, outer)
    with pytest.raises(InvalidValue, match=r"action of port_2, kmin = 99 "):
        mapped(jnp.asarray(batch))
    assert mapped(jnp.zeros_like(batch)).shape == actions.shape
    assert (
        jax.jit(mapped)(jnp.asarray(batch)).shape == actions.shape
    )  # compiled: not checked, as documented


def with_loads(params, loads):
    """Parameters whose first source has these loads."""
    first, *others = params.sim.traffic
    traffic = (replace(first, load=jnp.asarray(loads, jnp.float32)), *others)
    return replace(params, sim=replace(params.sim, traffic=traffic))


def test_nan_in_a_batch_of_loads_is_refused_wherever_parameters_enter():
    core = tiny()
    params = core.default_params
    wrong = with_loads(params, [0.3, np.nan])
    axes = jax.tree.map(lambda _: None, params)
    axes = replace(axes, sim=replace(axes.sim, traffic=(replace(axes.sim.traffic[0], load=0),)))
    keys = jax.random.split(jax.random.key(0), 2)
    for env in (core, Checked(core)):
        with pytest.raises(InvalidValue, match=r"params.sim.traffic\[0\].load\[1\] = nan .* > 0"):
            jax.vmap(env.reset, (0, axes))(keys, wrong)
    one = with_loads(params, np.nan)
    for enter in (
        lambda: core.reset(keys[0], one),
        lambda: core.sim.init(keys[0], one.sim),
        lambda: jax.jit(lambda key: core.reset(key, one))(keys[0]),
        lambda: evaluate(core, one, Static(core, params, "secn1"), name="x", episodes=1),
    ):
        with pytest.raises(InvalidValue, match=r"params.*traffic\[0\].load = nan"):
            enter()


def test_nothing_is_checked_while_a_function_is_traced():
    params = replace(tiny().default_params, max_steps=np.int32(0))
    jax.eval_shape(Checked(tiny()).reset, jax.random.key(0), params)


def test_a_nan_action_is_the_middle_of_the_box():
    core = tiny("box")
    reset, step = functions(core)
    params, key = core.default_params, jax.random.key(0)
    _, state = reset(key, params)
    action = np.full((3, 3), 0.25, np.float32)
    action[0] = np.nan
    action[1, 1:] = np.inf, -np.inf
    returned = step(key, state, action, params)
    assert all(
        np.isfinite(x).all() for x in jax.tree.leaves((returned[0], returned[2], returned[5]))
    )
    middle = core.action.decode(jnp.zeros((1, 3)), jnp.ones(1))
    assert float(returned[5]["kmin"][0]) == pytest.approx(float(middle.kmin[0]))
    edge = core.action.decode(jnp.array([[0.25, 1.0, -1.0]]), jnp.ones(1))
    assert float(returned[5]["kmax"][1]) == pytest.approx(float(edge.kmax[0]))


def test_a_nan_factor_changes_nothing():
    factor = ContinuousFactor().factor(jnp.array([np.nan, np.inf, -np.inf, 0.9]))
    np.testing.assert_allclose(factor, [1.0, 1.2, 0.8, 0.9])
