"""Thresholds for each queue of a port: against ports whose queues share them, and by numpy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

import ecn_marl
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.rl.distributions import Head, head_for
from ecn_marl.envs.actions import action_codec
from ecn_marl.envs.features import flatten
from ecn_marl.envs.queues import PerQueue
from ecn_marl.sim.network.topology import star
from ecn_marl.sim.traffic.incast import Incast

STEPS, PORTS, QUEUES = 3, 5, 2
OPTIONS: dict[str, Any] = {
    "topology": star(PORTS),
    "traffic": tuple(
        Incast(load=0.5, n_min=3, n_max=3, flow_kb=size, width=3) for size in (300.0, 200.0)
    ),
    "classes": ({"name": "first"}, {"name": "second"}),
    "class_of": (0, 1),
    "slots": 24,
    "max_steps": STEPS,
    "features": "pet",
    "reward": "pet",
}


def make(**options: Any) -> Any:
    return ecn_marl.make("incast-v0", **OPTIONS, **options)


def played(env: Any, actions: list[Any]) -> tuple[list[Any], Any]:
    params = env.default_params
    obs, state = jax.jit(env.reset)(jax.random.key(5), params)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(state, action):
        obs, state, reward, _, _, info = env.step(jax.random.key(0), state, action, params)
        return state, (obs, reward, info, state.sim.queue)

    rows = [np.asarray(obs)]
    for action in actions:
        state, row = step(state, action)
        rows.append(jax.device_get(row))
    return rows, jax.device_get(state)


SHALLOW, DEEP = (2, 0, 20), (8, 8, 0)
"""Indices of (20, 40, 1) and of (1280, 2560, .01)."""


@pytest.fixture(scope="module")
def episodes() -> Any:
    """Both queues of all ports deep, with and without the option; then the first one shallow."""
    env, plain = make(per_queue=True), make()
    both = jnp.tile(jnp.array([*DEEP, *DEEP]), (PORTS, 1))
    first = jnp.tile(jnp.array([*SHALLOW, *DEEP]), (PORTS, 1))
    alike, apart = (played(env, [action] * STEPS) for action in (both, first))
    return env, alike, apart, played(plain, [both[:, :3]] * STEPS)


def test_equal_settings_are_those_of_a_port(episodes):
    """The network, the rewards and the infos of ports, bit for bit.

    But for a wait of 1e-5 µs that is computed once and used twice: the compiler rounds it as it
    fuses it.
    """
    _, (alike, state), _, (plain, plain_state) = episodes
    waits = [x.sim.flows.back_wait for x in (state, plain_state)]
    np.testing.assert_allclose(*waits, rtol=1e-5)
    flows = replace(state.sim.flows, back_wait=waits[1])
    jax.tree.map(np.testing.assert_array_equal, replace(state.sim, flows=flows), plain_state.sim)
    for (_, reward, info, _), (_, plain_reward, plain_info, _) in zip(
        alike[1:], plain[1:], strict=True
    ):
        np.testing.assert_array_equal(reward, plain_reward)
        for name, x in plain_info.items():
            np.testing.assert_array_equal(info[name], x, err_msg=name)
        assert info.keys() - plain_info.keys() == {"class_kmin", "class_kmax", "class_pmax"}


def test_every_queue_is_marked_by_its_own_thresholds(episodes):
    _, (alike, _), (apart, state), _ = episodes
    marked = np.sum([row[2]["class_marked_bytes"] for row in apart[1:]], 0)
    assert marked[:, 0].sum() > 1e5 and marked[:, 1].sum() == 0
    # Deep queues are marked by 1 % above 1280 KB, which one of them reaches in the end.
    assert np.sum([row[2]["marked_bytes"] for row in alike[1:]]) < 1e-3 * marked.sum()
    np.testing.assert_allclose(state.ecn.kmin, np.tile([20e3, 1280e3], (PORTS, 1)))
    info = apart[-1][2]
    np.testing.assert_allclose(info["class_kmin"], state.ecn.kmin)
    np.testing.assert_allclose(info["kmin"], state.ecn.kmin.mean(1))
    np.testing.assert_allclose(info["class_marked_bytes"].sum(1), info["marked_bytes"], rtol=1e-5)


def test_an_agent_sees_a_row_for_each_queue(episodes):
    env, _, (apart, _), _ = episodes
    names, last = env.feature.names, apart[-1]
    assert env.obs_dim == 3 * QUEUES * len(names) == 48
    assert env.observation_space().shape == last[0].shape == (PORTS, 48)
    rows = last[0].reshape(PORTS, 3, QUEUES, len(names))[:, -1]
    by_name = dict(zip(names, np.moveaxis(rows, -1, 0), strict=True))
    info, queue = last[2], last[3].reshape(PORTS, QUEUES)
    kb = np.log1p(queue / 1e3) / np.log1p(10240)
    np.testing.assert_allclose(by_name["queue"], kb, atol=1e-5)
    assert (queue > 0).any(0).all(), "a queue is empty at all ports: nothing is compared"
    np.testing.assert_array_equal(info["class_queue"], queue)
    sent = info["class_tx_bytes"] / (25e9 / 8e6 * 100)
    np.testing.assert_allclose(by_name["tx_rate"], sent, atol=1e-4)
    share = info["class_marked_bytes"] / np.maximum(info["class_tx_bytes"], 1.0)
    np.testing.assert_allclose(by_name["marked_rate"], sent * share, atol=1e-4)
    settings = np.log1p(np.array([20.0, 1280.0])) / np.log1p(10240)
    np.testing.assert_allclose(by_name["kmin"], np.tile(settings, (PORTS, 1)), atol=1e-5)
    assert (by_name["incast_degree"][:, 0] == by_name["incast_degree"][:, 1]).all()


@pytest.mark.parametrize("kind", ["multidiscrete", "discrete", "box"])
def test_actions_are_those_of_every_queue(kind):
    one = action_codec(kind)
    codec = PerQueue(one, 3)
    scale = jnp.array([1.0, 4.0])
    action = codec.sample(jax.random.key(0), 2)
    assert action.shape == (2, *codec.shape)
    assert codec.gymnasium_space().contains(np.asarray(action[0]).astype(codec.dtype))
    codec.check(np.asarray(action), 2)
    ecn = codec.decode(action, scale)
    rows = action.reshape(2, 3, *one.shape)
    for q in range(3):
        own = one.decode(rows[:, q], scale)
        for name in ("kmin", "kmax", "pmax"):
            np.testing.assert_array_equal(getattr(ecn, name)[:, q], getattr(own, name))
    near = codec.encode(20.0, 80.0, 0.2)
    assert codec.describe(near) == one.describe(one.encode(20.0, 80.0, 0.2))
    wrong = np.asarray(action).copy()
    wrong[1, -1] = 10_000
    with pytest.raises(ValueError, match=r"action of port_1, \w+ of queue 2"):
        codec.check(wrong, 2)


class Echo:
    """A policy with a memory, whose two queues get different settings."""

    def start(self, num_agents: int) -> Any:
        return jnp.zeros(num_agents)

    def decide(self, actor: Any, memory: Any, obs: Any) -> Any:
        return memory, jnp.tile(jnp.array([*SHALLOW, *DEEP]), (obs.shape[0], 1))

    def watch(self, memory: Any, reward: Any, info: Any) -> Any:
        return info["queue"] - info["kmin"]

    def costs(self, memory: Any) -> Any:
        return {}


@pytest.mark.thorough
def test_policies_with_a_memory_see_the_rows():
    env = make(per_queue=True, agents="switch")
    params, policy = env.default_params, StatefulPolicy(Echo(), (), env)
    obs, state = jax.jit(env.reset)(jax.random.key(5), params)
    memory = policy.init()
    step = jax.jit(env.step_ecn, compiler_options={"xla_backend_optimization_level": 0})
    for _ in range(2):
        assert obs.shape == (env.num_agents, 48)
        np.testing.assert_allclose(flatten(memory.history), obs, atol=1e-6)
        ecn = policy(jax.random.key(0), obs, memory)
        obs, state, *_, info = step(jax.random.key(0), state, ecn, params)
        memory = policy.observe(memory, info)


def test_rules_set_all_queues_of_a_port():
    env = make(per_queue=True)
    params = env.default_params
    _, state = jax.jit(env.reset)(jax.random.key(5), params)
    ecn, _ = env.in_force(state, env.static_ecn("secn2", params), params)
    np.testing.assert_array_equal(ecn.kmin, np.full((PORTS, QUEUES), 100e3, np.float32))


def test_faces_and_learners_heads_take_it():
    face = ecn_marl.parallel_env("incast-v0", "ansi", per_queue=True, **OPTIONS)
    assert face.action_space("port_0") == gymnasium.spaces.MultiDiscrete([9, 9, 21, 9, 9, 21])
    parallel_api_test(face, num_cycles=3)
    face.reset(seed=0)
    assert "port_4" in face.render()
    envs = ecn_marl.vector_env("incast-v0", 3, per_queue=True, **OPTIONS)
    envs.reset(seed=0)
    *_, infos = envs.step(envs.action_space.sample())
    assert infos["class_kmin"].shape == (3, PORTS, QUEUES)
    assert head_for(face.core.action) == Head(sizes=(9, 9, 21, 9, 9, 21))


def test_the_papers_scenario_has_two_queues():
    env = ecn_marl.make("pet-two-queues-small-v0", per_queue=True)
    assert (env.num_agents, env.obs_dim, env.action.nvec) == (24, 48, (9, 9, 21) * 2)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: ecn_marl.make("incast-v0", per_queue=True), "per_queue.*no traffic classes"),
        (
            lambda: export_policy(
                make(per_queue=True), Head(sizes=(9, 9, 21)), [], algorithm="ippo"
            ),
            "per_queue.*False for a policy to be exported",
        ),
    ],
)
def test_what_cannot_be_is_refused(refused, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        refused()
