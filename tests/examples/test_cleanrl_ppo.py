"""The single-file PPO of `examples`: its arithmetic, and that it learns."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import TINY

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


NAMES = ("PPO", "random", "SECN1", "SECN2")


@pytest.mark.slow
@pytest.mark.thorough
def test_it_learns_and_prints_the_table(example, capsys):
    result = example.main(["--updates", "30", "--episodes", "16"])
    reward = {row["name"]: row["reward"] for row in result["policies"]}
    ppo = reward.pop("PPO")
    for other in reward.values():
        assert ppo["mean"] - ppo["ci95"] > other["mean"] + other["ci95"], reward
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)


@pytest.mark.slow
def test_it_runs_and_prints_the_table(example, tiny_scenario, capsys):
    options = "--networks 2 --steps 8 --updates 2 --episodes 2"
    result = example.main(["--scenario", TINY, *options.split()])
    assert [row["name"] for row in result["policies"]] == list(NAMES)
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES) and "nan" not in out


class Guessing:
    """Sixteen sub-environments that show 0 or 1 and pay for choice 1 or 3; they end by turns."""

    num_envs = 16
    single_observation_space = SimpleNamespace(shape=(1,))
    single_action_space = SimpleNamespace(nvec=[5])

    def _show(self):
        self.shown = self.rng.integers(0, 2, (self.num_envs, 1)).astype(np.float32)
        return self.shown

    def reset(self, seed):
        self.rng, self.step_number = np.random.default_rng(seed), 0
        return self._show(), {}

    def step(self, action):
        self.step_number += 1
        reward = 1.0 - np.abs(action[:, 0] - (1 + 2 * self.shown[:, 0])) / 4
        truncated = (np.arange(self.num_envs) + self.step_number) % 4 == 0
        infos = {"final_obs": np.array([*self.shown, None], object)[:-1]}
        return self._show(), reward, np.zeros_like(truncated), truncated, infos


def test_it_learns_what_pays(example):
    args = example.parse(["--updates", "25", "--steps", "16", "--lr", "1e-2"])
    agent, params = example.train(args, Guessing())
    best = agent.greedy(params, jnp.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(best, [[1], [3]])
