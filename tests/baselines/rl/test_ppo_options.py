"""Options of the PPO trainers: kept actions, class weights that follow J, normalised values."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.rl import class_weights
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.ppo import Batch, policy_loss
from ecn_marl.baselines.rl.ppo_config import entropy_weight, kept_share
from ecn_marl.envs.actions import MultiDiscreteAction

PARAMS = ToyParams(max_steps=10)
KEEPING = IPPOConfig(envs=64, rollout=32, minibatches=2, persistence=0.6)


@pytest.fixture(scope="module")
def rollout():
    """Three agents in 64 environments over 32 steps of episodes of 10, each keeping with 0.6."""
    trainer = IPPO(ToyEnv(), KEEPING)
    state = trainer.init(jax.random.key(0), PARAMS)
    after, rows, _ = jax.jit(trainer.roll_out)(state, jax.random.key(1), PARAMS)
    return jax.tree.map(np.asarray, (after.kept, rows))


def test_actions_are_kept_unless_drawn_anew(rollout):
    kept, rows = rollout
    same = rows.action[1:] == rows.action[:-1]
    assert same[~rows.drawn[1:]].all()
    # Five actions, drawn nearly uniformly at first.
    assert 0.1 < same[rows.drawn[1:]].mean() < 0.35
    np.testing.assert_array_equal(kept.action, rows.action[-1])


def test_nothing_is_kept_across_episodes(rollout):
    kept, rows = rollout
    begins = rows.truncated[:-1]
    assert begins.any()
    assert rows.drawn[0].all() and rows.drawn[1:][begins].all()
    np.testing.assert_array_equal(kept.first, rows.truncated[-1, :, 0])


class Apart(ToyEnv):
    """The toy with three components of an action; the first one acts."""

    def step(self, key, state, action, params):
        return super().step(key, state, action[..., 0], params)


def test_what_is_drawn_does_not_tell_whether_it_is():
    """Drawn actions of every component have the shares that the policy gives them."""
    trainer = IPPO(Apart(action=MultiDiscreteAction(levels=5)), KEEPING)
    state = jax.jit(trainer.init)(jax.random.key(0), PARAMS)
    _, rows, _ = jax.jit(trainer.roll_out)(state, jax.random.key(1), PARAMS)
    drawn = np.asarray(rows.action)[np.asarray(rows.drawn)]
    for i, choices in enumerate(trainer.head.sizes):
        share = np.bincount(drawn[:, i], minlength=choices) / len(drawn)
        assert (share > 0.5 / choices).all(), "nearly uniform at first"


def test_the_share_that_is_kept_is_the_setting(rollout):
    _, rows = rollout
    within = rows.drawn[1:][~rows.truncated[:-1]]
    deviation = np.sqrt(0.6 * 0.4 / within.size)
    assert abs(within.mean() - 0.4) < 4 * deviation


def test_the_share_falls_to_nothing_over_the_run():
    falling = replace(KEEPING, anneal_updates=10)
    share = [float(kept_share(falling, jnp.int32(n))) for n in (0, 5, 10, 20)]
    assert share == pytest.approx([0.6, 0.3, 0.0, 0.0])
    assert float(kept_share(KEEPING, jnp.int32(1000))) == pytest.approx(0.6)


def test_the_entropy_bonus_of_the_start_is_gone_after_half_of_the_run():
    config = IPPOConfig(entropy=0.1, entropy_start=0.4, anneal_updates=20)
    weights = [float(entropy_weight(config, jnp.int32(n))) for n in (0, 5, 10, 20)]
    assert weights == pytest.approx([0.5, 0.3, 0.1, 0.1])
    constant = replace(config, anneal_updates=0)
    assert float(entropy_weight(constant, jnp.int32(1000))) == pytest.approx(0.5)


@pytest.mark.parametrize("shared", [True, False])
def test_kept_actions_are_no_part_of_the_policys_loss(shared):
    """The loss of rows with kept actions is that of the others alone, and so is its gradient."""
    rng, head = np.random.default_rng(0), Head(sizes=(5,), scalar=True)
    out = jnp.asarray(rng.normal(size=(12, 2, 5)), jnp.float32)
    drawn = jnp.asarray(np.arange(12)[:, None] % 3 != 0).repeat(2, 1)
    batch = Batch(
        obs=jnp.zeros((12, 2, 1)),
        action=jnp.asarray(rng.integers(0, 5, (12, 2))),
        log_prob=jnp.asarray(rng.normal(-1.6, 0.3, (12, 2)), jnp.float32),
        advantage=jnp.asarray(rng.normal(size=(12, 2)), jnp.float32),
        target=jnp.zeros((12, 2)),
        drawn=drawn,
    )

    def loss(out, batch):
        return policy_loss(head, out, batch, 0.2, 1e-2, shared)[0]

    some = np.asarray(drawn[:, 0])
    fewer = jax.tree.map(lambda x: x[some], batch._replace(drawn=None))
    differentiate = jax.jit(jax.value_and_grad(loss))
    value, gradient = differentiate(out, batch)
    wanted, wanted_gradient = differentiate(out[some], fewer)
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    np.testing.assert_allclose(gradient[some], wanted_gradient, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(gradient[~some], 0.0)


def test_weights_are_the_change_of_ln_j_by_a_slowdown():
    """Against finite differences of J in float64, short flows of equal slowdown, long ones alike.

    The 99th percentile of short flows moves with their mean, as the weights take it to.
    """
    short, long = np.full(40, 3.0), np.full(5, 7.0)

    def ln_j(short, long):
        return 0.5 * np.log(short.mean()) + 0.5 * np.log(long).mean()

    step = 1e-6
    bumped = [np.concatenate((x[:-1], x[-1:] + step)) for x in (short, long)]
    changes = [ln_j(bumped[0], long), ln_j(short, bumped[1])] - ln_j(short, long)
    sums = [np.array([short.sum(), 0.0, long.sum()]), np.log([3.0**40, 1.0, 7.0**5])]
    weights = class_weights.weights_of_j(*map(jnp.asarray, ([40.0, 0.0, 5.0], *sums)))
    np.testing.assert_allclose(weights[jnp.array([0, 2])], changes / step, rtol=1e-5)
    assert float(weights[1]) == pytest.approx(float(weights[0] + weights[2]) / 2)


def metrics(flows, slowdown):
    """`episode_metrics` of an environment whose flows of a class all have one slowdown."""
    n, x = jnp.asarray(flows, jnp.float32), jnp.asarray(slowdown, jnp.float32)
    sums = {"flows_measured": n, "slowdown_sum": n * x, "slowdown_log_sum": n * jnp.log(x)}
    return lambda state, params: sums


def test_weights_move_towards_those_of_j_and_rewards_keep_their_size():
    start, states = jnp.array([2.0, 1.0, 1.0]), jnp.zeros(4)
    total = jnp.array([400.0, 10.0, 20.0]) * jnp.array([2.0, 4.0, 8.0])
    of_episodes, weights = metrics([400, 10, 20], [2.0, 4.0, 8.0]), start
    for _ in range(200):
        weights = class_weights.followed(of_episodes, states, None, weights)
    share = weights * total
    assert float(share[0]) == pytest.approx(float(share[2]), rel=1e-3)  # half of ln J each
    assert float(share.sum()) == pytest.approx(float((start * total).sum()), rel=1e-3)


def test_weights_stay_where_a_class_of_j_has_no_flow():
    start = jnp.array([2.0, 1.0, 1.0])
    none = metrics([400, 10, 0], [2.0, 4.0, 1.0])
    np.testing.assert_array_equal(class_weights.followed(none, jnp.zeros(4), None, start), start)


def test_a_reward_without_classes_is_refused():
    with pytest.raises(ValueError, match=r"follow_j = True.*completion times"):
        IPPO(ToyEnv(), IPPOConfig(follow_j=True))


@pytest.mark.parametrize("name", ["value_norm", "follow_j"])
def test_agents_that_share_nothing_share_no_average(name):
    with pytest.raises(ValueError, match=f"{name} = True.*shared=False"):
        IPPOConfig(shared=False, **{name: True})


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_probability_is_below_one(value):
    with pytest.raises(ValueError, match="persistence"):
        IPPOConfig(persistence=value)


def test_a_critic_of_normalised_values_gives_the_same_advantages():
    """Returns a thousand times as large change nothing that the policy learns from."""

    def advantages(scale):
        config = replace(KEEPING, persistence=0.0, value_norm=True, reward_scale=scale)
        trainer = IPPO(ToyEnv(), config)
        state = jax.jit(trainer.init)(jax.random.key(0), PARAMS)
        # Before the first update there are no averages, so the first values have to be 0.
        state = replace(state, critic=jax.tree.map(jnp.zeros_like, state.critic))
        state, _ = jax.jit(trainer.update)(state, PARAMS)
        _, rows, _ = jax.jit(trainer.roll_out)(state, jax.random.key(1), PARAMS)
        value = state.norm.restore(trainer.value(state.critic, rows.obs))
        after = state.norm.restore(trainer.value(state.critic, rows.final_obs))
        advantage, target = trainer.advantages(rows, value, after)
        return advantage / scale, state.norm.normalise(target)

    small, large = advantages(1.0), advantages(1000.0)
    for a, b in zip(small, large, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
