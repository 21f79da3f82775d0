"""The single-file PPO of `examples`: its arithmetic, and that it learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.gae import gae

FILE = Path(__file__).parents[2] / "examples" / "cleanrl_ppo.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("cleanrl_ppo", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_advantages_are_those_of_the_trainers(example):
    rng = np.random.default_rng(0)
    reward, value, ahead = rng.normal(size=(3, 7, 2)).astype(np.float32)
    terminated, truncated = rng.random((2, 7, 2)) < 0.3
    want, _ = gae(*map(jnp.asarray, (reward, value, ahead, terminated, truncated)), 0.9, 0.7)
    delta = reward + np.float32(0.9) * ahead * ~terminated - value
    got = example.advantages(delta, terminated | truncated, 0.9 * 0.7)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_policy_is_that_of_the_trainers(example):
    agent = example.Agent(4, (3, 2, 5), 1e-3)
    params, _ = agent.init(jax.random.key(0))
    # Away from the start, where all choices are alike.
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(1), x.shape), params)
    obs = jax.random.normal(jax.random.key(2), (6, 4))
    head, out = Head(sizes=(3, 2, 5)), example.forward(params["actor"], obs)
    action, log_prob = agent.act(params, jax.random.key(3), obs)
    np.testing.assert_allclose(log_prob, head.log_prob(out, action), rtol=1e-5)
    np.testing.assert_array_equal(agent.greedy(params, obs), head.mode(out))
    many = jnp.broadcast_to(obs[:1], (4000, 4))
    drawn = np.asarray(agent.act(params, jax.random.key(4), many)[0])
    want = jax.nn.softmax(out[0, 5:])
    np.testing.assert_allclose(np.bincount(drawn[:, 2], minlength=5) / 4000, want, atol=0.04)


@pytest.mark.slow
def test_it_learns_and_prints_the_table(example, capsys):
    result = example.main(["--updates", "30", "--episodes", "16"])
    reward = {row["name"]: row["reward"] for row in result["policies"]}
    ppo = reward.pop("PPO")
    for other in reward.values():
        assert ppo["mean"] - ppo["ci95"] > other["mean"] + other["ci95"], reward
    out = capsys.readouterr().out
    assert all(name in out for name in ("PPO", "random", "SECN1", "SECN2"))
