"""Switches as agents: means over ports by numpy, and the network that ports as agents have."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pettingzoo.test import api_test, parallel_api_test

import ecn_marl
from ecn_marl.baselines.c_acc import CentralACC, DDQNConfig
from ecn_marl.baselines.ddqn import DDQN
from ecn_marl.baselines.dynamic import Dynamic
from ecn_marl.baselines.evaluation.cost import decision_delay_us
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.evaluation.stateful_policy import StatefulPolicy
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.haecn import HAECN, HAECNConfig
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.mappo import MAPPO, MAPPOConfig
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.static import Static
from ecn_marl.baselines.training.loop import train
from ecn_marl.envs.agents import Agents, agents_of
from ecn_marl.envs.episode import SAME
from ecn_marl.envs.features import flatten
from ecn_marl.experiments import policies
from ecn_marl.sim.network.topology import leaf_spine
from ecn_marl.sim.traffic.incast import Incast

STEPS = 3
OPTIONS: dict[str, Any] = {
    # Two leaves with three ports, one spine with two: a mean over ports cannot take all at once.
    "topology": leaf_spine(2, 2, 1, gbps=25.0, uplink_gbps=100.0),
    "traffic": (Incast(load=0.9, n_min=3, n_max=3, flow_kb=300.0, width=3),),
    "slots": 16,
    "max_steps": STEPS,
    "features": "pet",
    "reward": "pet",
}


def make(agents: str = "switch", **options: Any) -> Any:
    return ecn_marl.make("incast-v0", agents=agents, **OPTIONS, **options)


class Episode(NamedTuple):
    """All that an episode shows: a row of obs, reward, info and global state for every step."""

    first: Any
    rows: list[Any]
    state: Any
    metrics: Any


def played(env: Any, actions: list[Any]) -> Episode:
    params = env.default_params
    obs, state = jax.jit(env.reset)(jax.random.key(3), params)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(state, action):
        obs, state, reward, _, _, info = env.step(jax.random.key(0), state, action, params)
        return state, (obs, reward, info, env.global_state(state, params))

    rows, first = [], np.asarray(obs)
    for action in actions:
        state, row = step(state, action)
        rows.append(jax.device_get(row))
    metrics = jax.jit(env.episode_metrics)(state, params)
    return Episode(first, rows, *jax.device_get((state, metrics)))


@pytest.fixture(scope="module")
def actions() -> tuple[list[Any], list[Any]]:
    """Actions of an episode: those of switches, and those of all their ports."""
    env = make()
    keys = jax.random.split(jax.random.key(1), STEPS)
    of_switch = [env.action.sample(key, env.num_agents) for key in keys]
    return of_switch, [a[np.array(env.grouping.of_port)] for a in of_switch]


@pytest.fixture(scope="module")
def both(actions) -> tuple[Any, Episode, Episode]:
    """An episode of switches, and that of ports which take the actions of their switches."""
    switches = make()
    return switches, played(switches, actions[0]), played(make("port"), actions[1])


def by_numpy(env: Any, x: np.ndarray) -> np.ndarray:
    """Means over the ports of every switch, from the topology alone."""
    names = [p.switch for p in env.sim.topology.ports]
    rows = [[x[i] for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]
    return np.stack([np.mean(np.asarray(row, np.float64), axis=0) for row in rows])


def test_switches_see_and_earn_the_means_of_their_ports(both):
    env, switches, ports = both
    assert env.num_agents == len(env.agents) == 3
    assert [len(env.grouping.ports(i)) for i in range(3)] == [3, 3, 2]
    np.testing.assert_allclose(switches.first, by_numpy(env, ports.first), atol=1e-6)
    for (obs, reward, info, joint), (*of_ports, port_joint) in zip(
        switches.rows, ports.rows, strict=True
    ):
        np.testing.assert_allclose(obs, by_numpy(env, of_ports[0]), atol=1e-6)
        np.testing.assert_allclose(reward, by_numpy(env, of_ports[1]), atol=1e-6)
        assert info.keys() == of_ports[2].keys()
        for name, x in info.items():
            np.testing.assert_allclose(x, by_numpy(env, of_ports[2][name]), rtol=1e-6, err_msg=name)
        for name in set(SAME) & info.keys():
            np.testing.assert_array_equal(info[name], of_ports[2][name][:3])
        wide = port_joint.reshape(8, -1)
        np.testing.assert_allclose(joint, by_numpy(env, wide).reshape(-1), atol=1e-6)
    queues = [row[2]["queue_mean"] for row in ports.rows]
    assert np.max(queues) > 1e4 and np.ptp(queues[-1]) > 0, "nothing queued: nothing is compared"


def test_the_network_does_not_know_who_acts(both):
    _, switches, ports = both
    jax.tree.map(np.testing.assert_array_equal, switches.state, ports.state)
    jax.tree.map(np.testing.assert_array_equal, switches.metrics, ports.metrics)


def test_all_ports_of_a_switch_get_its_setting(both):
    env, switches, _ = both
    scale = np.asarray(env.port_scale(env.default_params.sim))
    for agent in range(3):
        ports = list(env.grouping.ports(agent))
        assert len(np.unique((np.asarray(switches.state.ecn.kmin) / scale)[ports])) == 1
    assert len(np.unique(np.asarray(switches.state.ecn.kmin) / scale)) > 1


@pytest.mark.thorough
def test_switches_of_one_port_are_ports(both, actions):
    lone = make()
    lone.__dict__["grouping"] = Agents("switch", tuple(range(8)))
    jax.tree.map(np.testing.assert_array_equal, played(lone, actions[1]), both[2])


def test_the_order_of_ports_does_not_matter():
    of_port = np.array(agents_of("switch", OPTIONS["topology"]).of_port)
    assert len(set(of_port)) == 3
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(8, 3, 2)).astype(np.float32)
    mean = Agents("switch", tuple(of_port.tolist())).mean(jnp.asarray(x))
    for _ in range(5):
        order = rng.permutation(8)
        again = Agents("switch", tuple(of_port[order].tolist())).mean(jnp.asarray(x[order]))
        np.testing.assert_allclose(again, mean, rtol=1e-6)


def test_a_missing_port_is_not_counted():
    """The row of the smaller switch is filled up with a port that must not enter its mean."""
    agents = Agents("switch", (0, 1, 1))
    x = jnp.array([jnp.nan, 1.0, 2.0])
    np.testing.assert_array_equal(agents.mean(x), [np.nan, 1.5])
    np.testing.assert_array_equal(agents.spread(jnp.array([7, 8])), [7, 8, 8])


def test_a_mean_over_one_port_is_that_port():
    alone, x = Agents("switch", tuple(range(8))), jnp.linspace(0.1, 0.9, 24).reshape(8, 3)
    np.testing.assert_array_equal(alone.mean(x), x)
    np.testing.assert_array_equal(alone.spread(x), x)


def test_pettingzoo_conformance():
    face = ecn_marl.parallel_env("incast-v0", agents="switch", **OPTIONS)
    assert face.possible_agents == ["switch_0", "switch_1", "switch_2"]
    parallel_api_test(face, num_cycles=5)
    assert "switch_2" in repr(face)
    api_test(ecn_marl.env("incast-v0", agents="switch", **OPTIONS), num_cycles=5)


def test_a_table_names_the_switch_of_every_port():
    face = ecn_marl.parallel_env("incast-v0", "ansi", agents="switch", **OPTIONS)
    face.reset(seed=0)
    lines = face.render().splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        f"switch_{i}" for i in face.core.grouping.of_port
    ]


@pytest.mark.parametrize("per_agent", [False, True])
def test_vector_environments(per_agent):
    envs = ecn_marl.vector_env("incast-v0", 2, per_agent=per_agent, agents="switch", **OPTIONS)
    obs, _ = envs.reset(seed=0)
    assert obs.shape == ((6, 24) if per_agent else (2, 3, 24))
    obs, reward, *_, infos = envs.step(envs.action_space.sample())
    assert obs.shape == envs.observation_space.shape
    assert reward.shape == (envs.num_envs,)
    assert infos["queue_mean"].size == 6


def test_rules_set_every_port_whoever_acts():
    results = []
    for env in (make(), make("port")):
        rule = Dynamic(env, env.default_params, "pi")
        assert Static(env, env.default_params, "secn1").ecn.kmin.shape == (8,)
        episodes = evaluate(env, env.default_params, rule, name="pi", episodes=2).episodes
        results.append(episodes)
    jax.tree.map(np.testing.assert_array_equal, *results)


class Echo:
    """A policy with a memory whose actions follow from what it sees, and what it was shown."""

    def start(self, num_agents: int) -> Any:
        return jnp.zeros(num_agents), jnp.zeros(num_agents)

    def decide(self, actor: Any, memory: Any, obs: Any) -> Any:
        return memory, jnp.round(obs[:, -8:-5] * 5).astype(jnp.int32)

    def watch(self, memory: Any, reward: Any, info: Any) -> Any:
        return reward, info["queue"]

    def costs(self, memory: Any) -> Any:
        return {}


def test_policies_with_a_memory_see_what_their_switch_sees(both):
    """Told what happened at all ports in the episode of switches."""
    env, switches, ports = both
    policy, scale = StatefulPolicy(Echo(), (), env), env.port_scale(env.default_params.sim)
    memory, obs = policy.init(), switches.first
    decide, observe = jax.jit(policy), jax.jit(policy.observe)
    for (later, reward, *_), (_, _, info, _) in zip(switches.rows, ports.rows, strict=True):
        np.testing.assert_allclose(flatten(memory.history), obs, atol=1e-6)
        ecn = decide(jax.random.key(0), obs, memory)
        chosen = Echo().decide((), (), obs)[1]
        for name in ("kmin", "kmax", "pmax"):
            of_port = getattr(
                env.action.decode(chosen[np.array(env.grouping.of_port)], scale), name
            )
            np.testing.assert_allclose(getattr(ecn, name), of_port, rtol=1e-6)
        memory, obs = observe(memory, info), later
        np.testing.assert_allclose(memory.policy[0], reward, rtol=1e-6)
        np.testing.assert_allclose(memory.policy[1], by_numpy(env, info["queue"]), rtol=1e-6)


LEARNERS = {
    IPPO: IPPOConfig(envs=2, rollout=2, epochs=1, minibatches=1, hidden=(4,)),
    MAPPO: MAPPOConfig(envs=2, rollout=2, epochs=1, minibatches=1, hidden=(4,)),
    DDQN: DDQNConfig(envs=2, rollout=2, batch=4, hidden=(4,)),
    HAECN: HAECNConfig(envs=2, rollout=2, batch=4, hidden=(4,)),
}


@pytest.mark.parametrize(
    "kind",
    # IPPO is trained below; MAPPO and HAECN take their agents as these two do.
    [pytest.param(x, marks=() if x is DDQN else pytest.mark.thorough) for x in LEARNERS],
)
def test_learners_take_switches_for_agents(kind):
    """An update is traced: shapes of its state stay, and every switch has networks of its own."""
    env = make()
    algorithm = kind(env, replace(LEARNERS[kind], shared=False))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), env.default_params)
    after, _ = jax.eval_shape(algorithm.update, state, env.default_params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert all(x.shape[0] == 3 for x in jax.tree.leaves(after.actor))


def test_a_short_training_runs():
    env = make()
    learner = IPPO(env, replace(LEARNERS[IPPO], shared=False))
    result = train(learner, env.default_params, steps=8, seed=0)
    assert all(x.shape[0] == 3 for x in jax.tree.leaves(result.state.actor))
    assert len(result.metrics) == 2
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.state.actor))
    assert 0.0 < result.metrics[-1]["reward"] < 1.0


def test_a_decision_for_a_switch_is_one():
    assert decision_delay_us(make(), 10.0) == 10.0
    assert decision_delay_us(make("port"), 10.0) == 30.0  # a leaf has three ports


def test_rules_of_an_arena_act_on_ports():
    arena = policies.arena(["static:secn1"], "incast-v0", **OPTIONS, agents="switch")
    assert arena.env("static:secn1").agent_kind == "port"
    assert arena.env("random").agent_kind == "switch"
    assert arena.env(policies.own_policy(lambda obs: {})).agent_kind == "switch"


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda: make("router"), "unknown kind of agents 'router'.*port, switch"),
        (lambda: make(counts=("phase",)), "counts.*phase.*switch"),
        (lambda: CentralACC(make(), DDQNConfig()), "agents.*'port' for c-acc"),
        (
            lambda: export_policy(make(), Head(sizes=(9, 9, 21)), [], algorithm="ippo"),
            "agents.*'port' for a policy to be exported",
        ),
        (
            lambda: ecn_marl.parallel_env("incast-v0", "rgb_array", agents="switch", **OPTIONS),
            "agents.*'port' for render_mode='rgb_array'",
        ),
        (
            lambda: ecn_marl.parallel_env("incast-v0", agents="switch", **OPTIONS).port_info("x"),
            "agents.*'port' for port_info",
        ),
    ],
)
def test_what_needs_ports_says_so(refused, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        refused()
