"""PQN and VDN: returns by their recursion, known best actions, what agents of a team learn from."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.pqn import PQN, Batch, PQNConfig, Steps
from ecn_marl.baselines.rl.recurrent import sequences
from ecn_marl.baselines.training.loop import initial_state, train

PARAMS = ToyParams(max_steps=10)
SMALL = PQNConfig(envs=16, rollout=16, minibatches=4, lr=3e-3, gamma=0.5, epsilon_decay=0.9)


def steps_of(seed: int, terminates: bool) -> Steps:
    """Six steps of two environments with three agents; an episode ends after the third."""
    rng = np.random.default_rng(seed)
    ends = np.zeros((6, 2, 3), bool)
    ends[2] = True
    obs, after = rng.uniform(size=(2, 6, 2, 3, 2)).astype(np.float32)
    after[:2], after[3:5] = obs[1:3], obs[4:]
    return Steps(
        jnp.asarray(obs),
        jnp.asarray(rng.integers(0, 5, (6, 2, 3))),
        jnp.asarray(rng.normal(size=(6, 2, 3)).astype(np.float32)),
        jnp.asarray(ends & terminates),
        jnp.asarray(ends & ~np.bool_(terminates)),
        jnp.asarray(after),
    )


@pytest.mark.parametrize(
    ("lam", "terminates", "team"),
    tiers(
        product((0.0, 0.7, 1.0), (False, True), (False, True)),
        *((0.0, True, False), (0.7, False, True), (0.7, True, False), (1.0, True, True)),
    ),
)
def test_returns_are_those_of_the_recursion(lam: float, terminates: bool, team: bool) -> None:
    """In float64, backwards, as the paper writes them."""
    trainer = PQN(ToyEnv(), replace(SMALL, gamma=0.9, gae_lambda=lam, team=team, reward_scale=2.0))
    actor = initial_state(trainer, PARAMS, 1).actor
    steps = steps_of(0, terminates)
    best = np.asarray(trainer.values(actor, steps.final_obs), np.float64).max(-1)
    reward = 2.0 * np.asarray(steps.reward, np.float64)
    if team:
        best, reward = best.mean(-1), reward.mean(-1)
    expected = np.zeros_like(reward)
    for t in reversed(range(6)):
        later = best[t]
        if t not in (2, 5):
            later = lam * expected[t + 1] + (1 - lam) * best[t]
        expected[t] = reward[t] + 0.9 * (0.0 if terminates and t == 2 else later)
    returns = jax.jit(lambda *of: trainer.returns(*trainer.both_values(*of), of[1]))(actor, steps)
    np.testing.assert_allclose(returns, expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module", params=[False, True], ids=["own", "team"])
def trained(request: pytest.FixtureRequest):
    trainer = PQN(ToyEnv(), replace(SMALL, team=request.param))
    return trainer, train(trainer, PARAMS, steps=60 * 256, seed=3)


def test_finds_the_best_action_of_every_agent(trained) -> None:
    trainer, result = trained
    assert result.metrics[0]["reward"] < 0.8
    shown, progress = np.meshgrid([0.0, 1.0], np.arange(10) / 10)
    obs = np.stack([shown, progress], -1).reshape(-1, 1, 2).repeat(3, 1).astype(np.float32)
    action = trainer.act(result.state.actor, jax.random.key(0), jnp.asarray(obs), greedy=True)
    np.testing.assert_array_equal(action, 1 + 2 * obs[..., 0])


def test_exploration_decays_and_the_loss_falls(trained) -> None:
    rows = trained[1].metrics
    expected = np.maximum(0.9 ** np.arange(60), 0.02)
    np.testing.assert_allclose([row["epsilon"] for row in rows], expected, rtol=1e-5)
    assert rows[-1]["loss"] < 0.2 * rows[0]["loss"]


def test_agents_of_a_team_learn_from_the_error_of_the_team() -> None:
    """An agent whose own value is right still moves, if the team's is wrong; else it does not."""
    obs = jnp.asarray(np.random.default_rng(2).uniform(size=(4, 3, 2)).astype(np.float32))
    action = jnp.ones((4, 3), jnp.int32)

    def moves(team: bool) -> np.ndarray:
        trainer = PQN(ToyEnv(), replace(SMALL, shared=False, team=team))
        actor = initial_state(trainer, PARAMS, 1).actor
        alone = PQN(ToyEnv(), replace(SMALL, shared=False))
        each = alone.chosen(alone.values(actor, obs), action)
        wrong = each + jnp.asarray([0.0, 1.0, 2.0])
        target = wrong.mean(-1) if team else wrong
        batch = Batch(obs, action, target)
        gradient = jax.jit(jax.grad(lambda p: trainer.loss(p, batch)[0]))(actor)
        last = gradient["params"]["Dense_2"]["bias"]
        return np.asarray(last[:, 1])  # of the action taken, by agent

    own, team = moves(False), moves(True)
    np.testing.assert_allclose(own, [0.0, -1.0, -2.0], atol=1e-5)
    np.testing.assert_allclose(team, [-1 / 3] * 3, atol=1e-5)  # error 1, a third of it each


@pytest.mark.parametrize("team", [False, True])
def test_sequences_have_the_values_of_the_rollout(team: bool) -> None:
    """Values of whole sequences, recomputed for the loss, are those that targets were made of."""
    trainer = PQN(ToyEnv(), replace(SMALL, memory=8, team=team))
    state = jax.jit(trainer.init)(jax.random.key(0), PARAMS)
    roll_out, values = jax.jit(trainer.roll_out), jax.jit(trainer.both_values)
    evaluated = jax.jit(trainer.loss)
    for seed in (1, 2):  # the second rollout begins in the middle of an episode
        memory = state.memory
        state, steps, _ = roll_out(state, jax.random.key(seed), PARAMS)
        q, next_q = values(state.actor, steps, memory)
        goes_on = ~np.asarray(steps.ended)[:-1]
        later, after = np.asarray(q)[1:], np.asarray(next_q)[:-1]
        np.testing.assert_allclose(after[goes_on], later[goes_on], rtol=1e-4, atol=1e-5)
        value = trainer.chosen(q, steps.action)
        rows = sequences(Batch(steps.obs, steps.action, value), memory, steps.ended)
        loss, metrics = evaluated(state.actor, jax.tree.map(lambda x: x[:, 0], rows))
        assert float(loss) < 1e-9
        assert float(metrics["q_mean"]) == pytest.approx(float(value.mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gae_lambda", 1.5),
        ("memory", -1),
        ("epsilon_decay", 0.0),
        ("minibatches", 7),
        ("envs", 0),
        ("lr", 0.0),
    ],
)
def test_wrong_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(SMALL, **{name: value})


def test_continuous_actions_are_refused() -> None:
    from ecn_marl.envs.registry import make

    with pytest.raises(ValueError, match="actions"):
        PQN(make("websearch-star-v0", actions="box"), PQNConfig())
