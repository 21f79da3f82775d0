"""What learners of rates share, and the rivals of ADPG: PPO, REINFORCE, Aurora, DQN."""

from __future__ import annotations

import inspect
import json
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import run

from ecn_marl.baselines.algorithms import RATE_ALGORITHMS
from ecn_marl.baselines.aurora import INPUTS, REWARD_TERMS, Aurora, AuroraConfig
from ecn_marl.baselines.rate_dqn import RateDQN, RateDQNConfig
from ecn_marl.baselines.rate_ppo import RatePPO, RatePPOConfig
from ecn_marl.baselines.rate_reinforce import Reinforce, ReinforceConfig
from ecn_marl.baselines.rl import rate_learning as rl
from ecn_marl.baselines.rl.rate_rollout import Events, keyed
from ecn_marl.baselines.rl.stochastic_rates import StochasticRates, draw_batch
from ecn_marl.experiments import rate

TINY = ("senders=4", "envs=4", "rollout=64", "events=16", "rows=64")


def sorted_events() -> tuple[Events, list[list[np.ndarray]]]:
    """Events by flow, and the errors of each flow's events as plain lists."""
    rng = np.random.default_rng(1)
    valid = rng.random((30, 2, 3)) < 0.3
    obs, action, error = rng.normal(size=(3, 30, 2, 3)).astype(np.float32)
    events, _ = keyed(Events(*map(jnp.asarray, (valid, obs[..., None], action, error))), 12)
    errors = [[error[valid[:, e, f], e, f][:12] for f in range(3)] for e in range(2)]
    return events, errors


def test_credit_is_the_discounted_sum_of_later_rewards_of_the_same_flow():
    events, errors = sorted_events()
    trainer = Reinforce(ReinforceConfig(senders=(4,), rows=64, gamma=0.9, error_limit=1.0))
    steps = rl.transitions(events, rl.limited_reward(events.error, 1.0))
    credit, _ = trainer.credit(steps)
    flow_rewards = [-(np.minimum(x, 1.0).astype(float) ** 2) for env in errors for x in env]
    mean = np.concatenate([x[1:] for x in flow_rewards]).mean()
    assert float(steps.mean_reward) == pytest.approx(mean, rel=1e-5)
    for i, rewards in enumerate(flow_rewards):
        later = rewards[1:] - mean
        flow_credit = np.asarray(credit)[:, i // 3, i % 3]
        for t in range(len(later)):
            expected = sum(0.9**k * x for k, x in enumerate(later[t:]))
            assert flow_credit[t] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert not flow_credit[len(later) :].any()
    assert int(steps.valid.sum()) == sum(len(x) - 1 for x in flow_rewards)


def test_the_end_of_a_rollout_is_bootstrapped():
    """With lambda 0 an advantage is r + gamma V' - V everywhere, the last transition included."""
    events, _ = sorted_events()
    steps = rl.transitions(events, events.error)
    value, next_value = jnp.sin(steps.obs[..., 0]), jnp.sin(steps.next_obs[..., 0])
    advantage, _ = rl.advantages(steps, value, next_value, 0.5, 0.0)
    expected = steps.reward + 0.5 * next_value - value
    np.testing.assert_allclose(advantage[steps.valid], expected[steps.valid], rtol=1e-5)


def test_drawn_rows_are_valid_and_equally_frequent():
    valid = jnp.asarray(np.random.default_rng(2).random((7, 3, 2)) < 0.4)
    n = int(valid.sum())
    for rows in (n // 2, 3 * n, 3 * n + 1):
        drawn = np.asarray(rl.draw_valid(jax.random.key(0), valid, rows))
        counts = np.bincount(drawn, minlength=valid.size)
        assert not counts[~np.asarray(valid).reshape(-1)].any()
        of_valid = counts[np.asarray(valid).reshape(-1)]
        assert set(of_valid) <= {rows // n, -(-rows // n)}
        assert counts.sum() == rows


@pytest.mark.parametrize("actions", ["continuous", "discrete"])
def test_batches_hold_actions_and_their_log_probability(actions):
    policy = StochasticRates(actions, (8,))
    actor = policy.init(jax.random.key(0), 1)
    actor = jax.tree.map(lambda x: x + 0.3, actor)
    events, _ = sorted_events()
    action = policy.sample(actor, jax.random.key(1), events.obs)
    steps = rl.transitions(events._replace(action=action), events.error)
    batch = draw_batch(
        jax.random.key(2), policy, actor, [steps, steps], lambda s: (s.reward, s.obs[..., 0]), 40
    )
    np.testing.assert_array_equal(batch.target, batch.obs[..., 0])
    assert batch.target.shape == (40, 1, 1)
    out = np.asarray(policy.outputs(actor, batch.obs), float)
    if actions == "discrete":
        p = np.exp(out) / np.exp(out).sum(-1, keepdims=True)
        expected = np.log(np.take_along_axis(p, np.asarray(batch.action)[..., None], -1))[..., 0]
    else:
        mean, std = np.tanh(out[..., 0]), np.exp(out[..., 1] - 0.5)
        z = (np.asarray(batch.action)[..., 0] - mean) / std
        expected = -0.5 * z**2 - np.log(std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(batch.log_prob, expected, atol=2e-5)


def test_a_limit_keeps_the_best_point_and_cuts_the_tail():
    error = jnp.array([-1.0, 0.0, 2.0, 150.0])
    np.testing.assert_array_equal(rl.limited_reward(error, 3.0), [-1, 0, -4, -9])
    np.testing.assert_array_equal(rl.limited_reward(error, 0.0), [-1, 0, -4, -22500])


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        pytest.param("ppo", ("actions=discrete",), marks=pytest.mark.thorough),
        pytest.param("reinforce", ("actions=discrete",), marks=pytest.mark.thorough),
        pytest.param("aurora", (), marks=pytest.mark.thorough),
        ("dqn", ("memory=200", "batch=16")),
    ],
)
@pytest.mark.slow
def test_train_resume_and_eval(tmp_path, name, extra):
    """A run that is stopped and goes on ends where one that was not stopped ends."""
    sets = [word for text in (*TINY, *extra) for word in ("--set", text)]
    steps = 4 * 64 * 20
    uninterrupted, resumed = tmp_path / "whole", tmp_path / "parts"
    for folder, n in ((uninterrupted, 2 * steps), (resumed, steps)):
        result = run("train", name, "--out", folder, "--steps", n, *sets)
        assert result.exit_code == 0, result.output
    result = run("train", "--resume", resumed, "--steps", 2 * steps, "--json")
    assert result.exit_code == 0, result.output
    last = [
        json.loads((f / "metrics.jsonl").read_text().splitlines()[-1])
        for f in (uninterrupted, resumed)
    ]
    times = ("seconds", "steps_per_second")
    a, b = ({k: v for k, v in row.items() if k not in times} for row in last)
    assert a == b
    assert a["update"] == 40
    short = ["--env", "duration_us=6e3", "--env", "warm_up_us=3e3"]
    scenario = ["--scenario", "many-to-one-4-v0", "--episodes", "1", "--json", *short]
    result = run("eval", uninterrupted, resumed, *scenario)
    assert result.exit_code == 0, result.output
    policies = json.loads(result.stdout)["policies"]
    assert policies[str(uninterrupted)] == policies[str(resumed)]
    assert 0.0 <= policies[str(uninterrupted)]["utilisation"][0] <= 1.0


@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        "reinforce",
        pytest.param("dqn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_it_raises_its_own_reward(name):
    """Two senders, discrete factors: from a full buffer to a quarter of its error, or less.

    Not every seed does. 17 of 150 of PPO and 17 of 100 of REINFORCE missed the quarter when this
    was written, some of them with a full buffer to the end. Which seeds do depends on the
    processor's rounding, so one seed proves nothing: the median of nine is judged. DQN needs twice
    the steps; all of its seeds come down, to between a twentieth and two fifths, so its mean is.
    """
    kind = RATE_ALGORITHMS[name]
    extra = {} if name == "dqn" else {"actions": "discrete"}
    trainer = kind(kind.config_class(senders=(2,), envs=16, rows=2048, **extra))
    from ecn_marl.baselines.training.loop import compiled_update, initial_state

    seeds, updates, middle = (4, 240, np.mean) if name == "dqn" else (9, 120, np.median)
    update, errors = compiled_update(trainer, updates), []
    for seed in range(seeds):
        state = initial_state(trainer, trainer.default_params, seed)
        _, metrics = update(state, trainer.default_params)
        rewards = np.asarray(metrics["reward"])  # negative
        errors.append(rewards[-30:].mean() / rewards[:10].mean())
    assert middle(errors) < 0.25, errors


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (RatePPOConfig, {"rows": 100}, "rows = 100"),
        (RatePPOConfig, {"minibatches": 7}, "rows = 6144"),
        (RatePPOConfig, {"actions": "discret"}, "discret"),
        (RatePPOConfig, {"error_limit": -1.0}, "error_limit"),
        (RatePPOConfig, {"gae_lambda": 1.5}, "gae_lambda"),
        (ReinforceConfig, {"rows": 100}, "rows = 100"),
        (AuroraConfig, {"actions": "discrete"}, "actions = 'discrete'"),
        (AuroraConfig, {"error_limit": 3.0}, "error_limit"),
        (AuroraConfig, {"alpha": 0.0}, "alpha"),
        (RateDQNConfig, {"rows": 100}, "rows = 100"),
        (RateDQNConfig, {"epsilon_min": 2.0}, "epsilon_min"),
        (ReinforceConfig, {"hidden": ()}, "hidden"),
        (ReinforceConfig, {"lr": 0.0}, "lr"),
    ],
)
def test_bad_settings_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        config(**change)


def test_gaussian_actions_and_choices_are_inverse():
    trainer = RatePPO(RatePPOConfig(senders=(2,), rows=64))
    choice = jnp.linspace(-3, 3, 13)[:, None]
    action = trainer.policy.action(choice)
    np.testing.assert_allclose(action, 1 + 0.2 * choice[:, 0], rtol=1e-6)
    np.testing.assert_allclose(trainer.policy.choice(action), choice, atol=2e-6)


def test_aurora_observes_three_columns_and_its_reward_uses_three_others():
    trainer = Aurora(AuroraConfig(senders=(2,), rows=64, intervals=3))
    assert trainer.view["columns"] == INPUTS + REWARD_TERMS
    row = np.array([0.5, 1.5, 2.0, 0.25, 4.0, 0.1])
    obs = jnp.asarray(np.concatenate([np.zeros(6), row, 2 * row]), jnp.float32)
    expected = [0, 0, 0, 0.5, 0.5, 1.0, 1.0, 2.0, 3.0]
    np.testing.assert_allclose(trainer.policy.features(obs), expected, rtol=1e-6)
    events = Events(*(jnp.zeros((1, 1, 1)),) * 4)._replace(obs=obs[None, None, None])
    expected = 0.5 - 0.02 * 8.0 - 0.7 * 0.2
    np.testing.assert_allclose(trainer.reward(events), [[[expected]]], rtol=1e-6)
    a = jnp.array([[-2.0], [0.0], [4.0]])
    factor = trainer.policy.action(a)
    np.testing.assert_allclose(factor, [1 / 1.05, 1.0, 1.1], rtol=1e-6)
    np.testing.assert_allclose(trainer.policy.choice(factor), a, atol=2e-5)


def test_dqn_stores_pairs_of_events():
    """Q has the scale of a reward; a transition leads to the same flow's next event."""
    trainer = RateDQN(RateDQNConfig(senders=(4,), rows=500, gamma=0.9, error_limit=1.0))
    events, errors = sorted_events()
    rows = trainer._rows(jax.random.key(0), [events])
    pairs = set()
    for env in errors:
        for x in env:
            pairs |= {round(0.1 * -(min(float(v), 1.0) ** 2), 4) for v in x[1:]}
    assert {round(float(r), 4) for r in rows.reward} == pairs
    next_error = {}
    obs, valid = np.asarray(rl.squash(events.obs))[..., 0], np.asarray(events.valid)
    for e in range(2):
        for f in range(3):
            line = obs[valid[:, e, f], e, f]
            next_error |= dict(pairwise(line))
    for a, b in zip(np.asarray(rows.obs)[:, 0], np.asarray(rows.next_obs)[:, 0], strict=True):
        assert next_error[a] == b
    np.testing.assert_array_equal(rows.discount, np.float32(0.9))


@pytest.mark.parametrize("name", ["ppo", "aurora", "reinforce", "dqn", "adpg"])
def test_a_single_event_leads_to_no_next_one(name):
    config = RATE_ALGORITHMS[name].config_class
    if name == "adpg":  # it needs no later event
        assert config(events=1).events == 1
    else:
        with pytest.raises(ValueError, match=r"events = 1 .*>= 2"):
            config(events=1)


@pytest.mark.parametrize("widths", [8, (4.5,), ("a",), (), (0,)])
def test_tuples_of_other_things_are_named(widths):
    with pytest.raises(ValueError, match=r"hidden = .* a tuple of at least 1 value"):
        rl.count_tuples(SimpleNamespace(hidden=widths), "hidden")


def test_steps_are_whole_numbers(tmp_path):
    """A run of 1e3 steps could not be read again."""
    train = inspect.unwrap(rate.train_rate)  # as users call it, without the suite's type checks
    with pytest.raises(ValueError, match=r"steps = 1000\.0 .*an integer"):
        train("adpg", tmp_path / "run", steps=1e3)
    assert not (tmp_path / "run").exists()
