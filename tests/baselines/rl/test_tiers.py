"""The central view: tiers of known networks, its observation, and its actions on ports."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from toy import ToyEnv

from ecn_marl.baselines.rl.tiers import TierAction, Tiers, port_tiers
from ecn_marl.envs.actions import action_codec
from ecn_marl.sim.network.topology import Link, from_links, leaf_spine, star


def four_ports(actions):
    """Four ports that observe two numbers each."""
    return ToyEnv(num_agents=4, action=action_codec(actions))


def test_tiers_of_known_networks():
    assert set(port_tiers(star(5))) == {0}
    leaves = leaf_spine(2, 4, 2)
    expected = tuple(1 if p.kind == "spine-down" else 0 for p in leaves.ports)
    assert port_tiers(leaves) == expected and set(expected) == {0, 1}


def test_three_tiers():
    links = [Link(a, b, 25.0, 1.0) for a, b in (("e0", "a"), ("a", "c"), ("c", "b"), ("b", "e1"))]
    links += [Link(f"h{i}", f"e{i}", 25.0, 1.0) for i in range(2)]
    net = from_links("chain", ["h0", "h1"], ["e0", "a", "c", "b", "e1"], links)
    tier = {"e0": 0, "e1": 0, "a": 1, "b": 1, "c": 2}
    assert port_tiers(net) == tuple(tier[p.switch] for p in net.ports)


def test_summary_is_mean_and_largest_of_each_tier():
    view = Tiers(four_ports("discrete"), (0, 1, 0, 1))
    obs = np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32)
    low, high = obs[:, [0, 2]], obs[:, [1, 3]]
    expected = np.concatenate([low.mean(1), low.max(1), high.mean(1), high.max(1)], -1)
    summary = view.summary(jnp.asarray(obs))
    assert summary.shape == (3, 1, view.obs_dim)
    np.testing.assert_allclose(summary[:, 0], expected, rtol=1e-6)


def test_actions_reach_every_port_of_their_tier():
    single = Tiers(four_ports("discrete"), (0, 1, 0, 1))
    assert single.action == TierAction((24,), 2) and single.action.nvec == (24, 24)
    np.testing.assert_array_equal(single.to_ports(jnp.array([[7, 9]])), [7, 9, 7, 9])
    triple = Tiers(four_ports("multidiscrete"), (0, 1, 1, 1))
    port_actions = triple.to_ports(jnp.arange(12).reshape(2, 1, 6))
    np.testing.assert_array_equal(
        port_actions[1], [[6, 7, 8], [9, 10, 11], [9, 10, 11], [9, 10, 11]]
    )
