"""Messages between ports: who hears whom, at what cost, in other networks, what they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.evaluation.episodes import roll_out
from ecn_marl.baselines.gnn import GNN, GNNConfig, MessagePassing, Neighbours
from ecn_marl.baselines.ippo import IPPO
from ecn_marl.baselines.training.loop import train
from ecn_marl.envs.registry import make
from ecn_marl.sim import dumbbell, leaf_spine, star

PARAMS = ToyParams(max_steps=10)
FABRIC = leaf_spine(2, 3, 2)


def network(topology, hidden=(6, 5), key=0):
    """An untrained network with no parameter of zero, and its parameters."""
    net = MessagePassing(hidden, 4, Neighbours.of(topology), message=3, standardised=True)
    obs = jnp.zeros((topology.n_ports, 2))
    params = jax.tree.map(
        lambda x: x + 0.1, jax.jit(net.init)(jax.random.key(key), obs)
    )  # biases, too
    return net, params


def neighbours(topology):
    """Whom every port hears in a round, by the names of switches: `[of port, by port]`."""
    ports = topology.ports
    return np.array(
        [
            [b.switch == a.switch or b.peer == a.switch or b.switch == a.peer for b in ports]
            for a in ports
        ]
    )


@pytest.mark.parametrize("hidden", [(6, 5), (6, 6, 5)], ids=["one round", "two rounds"])
def test_ports_hear_their_neighbours_and_nobody_else(hidden):
    """Derivatives of a port's outputs for every port's observation, in a leaf-spine network."""
    net, params = network(FABRIC, hidden)
    obs = jax.random.normal(jax.random.key(1), (FABRIC.n_ports, 2))
    jacobian = jax.jit(jax.jacobian(lambda x: net.apply(params, x)))(obs)
    depends = np.abs(jacobian).max((1, 3)) > 1e-8
    once = neighbours(FABRIC)
    expected = once if len(hidden) == 2 else (once.astype(int) @ once) > 0
    np.testing.assert_array_equal(depends, expected)
    assert not once.all() and once.diagonal().all()


@pytest.mark.parametrize(("topology", "exchanged"), [(FABRIC, 16), (star(3), 0)])
def test_messages_are_averaged(topology, exchanged):
    """By hand, for a port to a host and for one to a switch; and where there is one switch."""
    net = Neighbours.of(topology)
    message = jax.random.normal(jax.random.key(0), (2, topology.n_ports, 3))
    heard = np.asarray(net.heard(message)).reshape(2, topology.n_ports, 3, 3)
    ports, rows = topology.ports, np.asarray(message)

    def mean(chosen):
        return rows[:, chosen].mean(1) if any(chosen) else np.zeros((2, 3))

    for i, port in enumerate(ports):
        expected = (
            mean([x.switch == port.switch for x in ports]),
            mean([x.peer == port.switch for x in ports]),
            mean([x.switch == port.peer for x in ports]),
        )
        np.testing.assert_allclose(heard[:, i], np.stack(expected, 1), rtol=1e-5)
    between = [port for port in ports if port.peer in topology.switches]
    assert net.exchanged == 2 * len(between) == exchanged


def test_numbers_of_ports_mean_nothing():
    """Ports in another order get the same outputs, in that order."""
    net, params = network(FABRIC)
    order = np.random.default_rng(0).permutation(FABRIC.n_ports)
    obs = jax.random.normal(jax.random.key(1), (FABRIC.n_ports, 2))
    known = Neighbours.of(FABRIC)
    moved = Neighbours(
        *(tuple(np.array(x)[order].tolist()) for x in (known.switch, known.leads_to))
    )
    other = MessagePassing(net.hidden, 4, moved, message=3, standardised=True)
    np.testing.assert_allclose(
        other.apply(params, obs[order]), net.apply(params, obs)[order], rtol=1e-4, atol=1e-5
    )


def test_cost_is_linear_in_ports():
    """XLA's count of operations, of 16 ports and of PET's 432."""
    small, large = leaf_spine(2, 4, 2), leaf_spine(12, 24, 6)

    def operations(topology):
        net, params = network(topology)
        obs = jnp.zeros((topology.n_ports, 2))
        return jax.jit(net.apply).lower(params, obs).compile().cost_analysis()["flops"]

    per_port = [operations(x) / x.n_ports for x in (small, large)]
    assert per_port[1] < 1.5 * per_port[0]


def test_flops_are_those_of_the_products():
    """By hand: layers 2-6 and 15-5, a message 6-3 with 10 operations each, the output 5-5."""
    env = Relayed()
    trainer = GNN(env, GNNConfig(hidden=(6, 5), message=3))
    by_hand = (2 * 2 * 6 + 6 + 6) + (2 * 6 * 3 + 3 + 30) + (2 * 15 * 5 + 5 + 5) + (2 * 5 * 5 + 5)
    assert trainer.flops == by_hand


@dataclass(frozen=True)
class Relayed(ToyEnv):
    """A port's right action is what the port that leads to its switch sees: half know nothing."""

    num_agents: int = 6
    sim: Any = field(default_factory=lambda: SimpleNamespace(topology=dumbbell(2, 2)), hash=False)

    def step(self, key, state, action, params):
        ports = self.sim.topology.ports
        leading = [next(i for i, b in enumerate(ports) if b.peer == a.switch) for a in ports]
        wanted = state.replace(target=state.target[jnp.array(leading)])
        obs, new, _, *rest = super().step(key, state, action, params)
        reward = 1.0 - jnp.abs(action - (1 + 2 * wanted.target)) / 4
        return obs, new.replace(total=state.total + reward.mean()), reward, *rest


@pytest.mark.parametrize("kind", tiers([GNN, IPPO], GNN))
def test_learns_what_neighbours_know(kind):
    """Ports alone earn 3/4 at best, that of the action between the two that can be right."""
    env = Relayed()
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "gamma": 0.1, "hidden": (16, 16)}
    common = {**rates, "envs": 16, "rollout": 16, "minibatches": 2, "epochs": 4}
    trainer = kind(env, kind.config_class(**common))
    actor = train(trainer, PARAMS, steps=40 * 256, seed=0).state.actor
    controller = trainer.controller(actor, env)
    keys = jax.random.split(jax.random.key(9), 64)
    play = jax.jit(jax.vmap(lambda k: roll_out(env, PARAMS, controller, k)[1]))
    earned = float(play(keys).mean())
    assert earned > 0.95 if kind is GNN else earned < 0.78


def test_acts_in_networks_of_any_size():
    """Trained on 16 ports; on PET's 432, what a network made for these gives."""
    options = {"features": "flows-memory", "history": 1, "actions": "discrete"}
    small = make("websearch-v0", **options)
    large = make("pet-websearch-v0", **options)
    trainer = GNN(small, GNNConfig(hidden=(8, 8)))
    actor = trainer.init_agents(trainer.net, jax.random.key(0))
    obs = jax.random.uniform(jax.random.key(1), (large.num_agents, large.obs_dim))
    action = trainer.controller(actor, large)(jax.random.key(2), obs)
    theirs = GNN(large, GNNConfig(hidden=(8, 8)))
    np.testing.assert_array_equal(action, theirs.act(actor, jax.random.key(2), obs, greedy=True))
    assert action.shape == (432,)
    links = sum(
        port.peer.startswith("leaf") or port.peer.startswith("spine")
        for port in large.sim.topology.ports
    )
    assert theirs.exchanged_bytes(large, []) == 2 * links * 16 * 4 * 1e6 / large.interval_us


def test_wrong_settings():
    with pytest.raises(ValueError, match=r"shared = False .* weights that fit every network"):
        GNNConfig(shared=False)
    with pytest.raises(ValueError, match=r"memory = 8 .* messages have none"):
        GNNConfig(memory=8)
    with pytest.raises(ValueError, match="message = 0"):
        GNNConfig(message=0)
    with pytest.raises(ValueError, match="hidden"):
        GNNConfig(hidden=(8,))
    with pytest.raises(ValueError, match=r"agents = 'switch' .* messages between ports"):
        GNN(make("websearch-v0", agents="switch"), GNNConfig())
