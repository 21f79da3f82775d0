"""Q-learning's maths against numpy written step by step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ecn_marl.baselines.rl import q_learning as ql
from ecn_marl.baselines.rl.distributions import Head
from ecn_marl.baselines.rl.networks import Mlp, network_flops, plain
from ecn_marl.envs.actions import action_codec

SCALAR, PAIR = Head(sizes=(4,), scalar=True), Head(sizes=(3, 2))


@pytest.mark.parametrize("head", [SCALAR, PAIR])
def test_double_q_target(head):
    rng = np.random.default_rng(0)
    rows = 50
    reward, discount = rng.normal(size=rows), rng.choice([0.0, 0.9], rows)
    online, target = (rng.normal(size=(rows, head.outputs)) for _ in range(2))
    kept, last = rng.random(rows) < 0.3, rng.integers(0, head.sizes, (rows, len(head.sizes)))
    expected = []
    for i in range(rows):
        start, worth = 0, 0.0
        for component, size in enumerate(head.sizes):
            best = max(range(size), key=lambda k, i=i, start=start: online[i, start + k])
            worth += target[i, start + (last[i, component] if kept[i] else best)]
            start += size
        expected.append(reward[i] + discount[i] * worth)
    kept_action = (jnp.asarray(kept), jnp.asarray(last[:, 0] if head.scalar else last))
    real = list(map(jnp.float32, (reward, discount, online, target)))
    target_values = ql.double_q_target(head, *real, *kept_action)
    np.testing.assert_allclose(target_values, expected, rtol=1e-5, atol=1e-6)
    of_dqn = ql.double_q_target(head, *real[:2], real[3], real[3], *kept_action)
    assert np.all(np.asarray(of_dqn) >= np.asarray(target_values) - 1e-6)  # DQN never values less
    assert not np.allclose(of_dqn, target_values)


def test_value_of_an_action_is_the_sum_over_its_components():
    q = jnp.arange(5.0) ** 2
    assert float(ql.action_values(PAIR, q, jnp.array([2, 1]))) == 4 + 16
    assert float(ql.action_values(SCALAR, q[:4], jnp.array(3))) == 9
    every = [ql.action_values(PAIR, q, jnp.array([i, j])) for i in range(3) for j in range(2)]
    assert float(ql.action_values(PAIR, q, PAIR.mode(q))) == float(max(every))


def reference_n_step(reward, terminated, truncated, gamma, n):
    """One trajectory, one step after the other."""
    time = len(reward)
    rows = []
    for t in range(time):
        total, k = 0.0, 0
        while True:
            total += gamma**k * reward[t + k]
            end = terminated[t + k] or truncated[t + k] or t + k == time - 1
            if k == n - 1 or end:
                break
            k += 1
        rows.append((total, 0.0 if terminated[t + k] else gamma ** (k + 1), t + k))
    return np.array(rows).T


@pytest.mark.parametrize("n", [1, 2, 3, 30])
def test_n_step_returns_with_termination_and_truncation(n):
    rng = np.random.default_rng(1)
    shape = (20, 4, 3)
    reward = rng.normal(size=shape).astype(np.float32)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    results = jax.jit(lambda *x: ql.n_step(*x, 0.8, n))(reward, terminated, truncated)
    results = [np.asarray(x) for x in results]
    for i in np.ndindex(shape[1:]):
        pick = (slice(None), *i)
        expected = reference_n_step(reward[pick], terminated[pick], truncated[pick], 0.8, n)
        for a, b in zip(results, expected, strict=True):
            np.testing.assert_allclose(a[pick], b, rtol=1e-4, atol=1e-5)


def test_transitions_belong_to_their_agent_and_cross_no_episode():
    time, envs, agents = 5, 2, 3
    t, e, a = np.meshgrid(np.arange(time), np.arange(envs), np.arange(agents), indexing="ij")
    number = (100 * t + 10 * e + a).astype(np.float32)
    over = np.broadcast_to((t == 1), number.shape)
    steps = (
        number[..., None],
        number.astype(np.int32),
        number,
        np.zeros_like(over),
        over,
        number[..., None] + 0.5,
    )
    steps = (*steps, t == 3)
    rows = jax.jit(lambda *x: ql.transitions(x, 0.5, 2))(*steps)
    assert rows.obs.shape == (agents, time * envs, 1) and rows.reward.shape == (agents, 10)
    np.testing.assert_array_equal(rows.origin, np.repeat(np.arange(agents)[:, None], 10, 1))
    np.testing.assert_array_equal(rows.action, rows.obs[..., 0])
    np.testing.assert_array_equal(rows.score, rows.obs[..., 0])
    # agent 2, environment 1: rows in the order of time; the truncated step 1 stands alone
    agent_rewards = np.asarray(rows.reward)[2].reshape(time, envs)[:, 1]
    first = 100 * np.arange(time) + 12.0
    np.testing.assert_allclose(agent_rewards, first + 0.5 * np.array([112, 0, 312, 412, 0]))
    follows = np.asarray(rows.next_obs)[2, :, 0].reshape(time, envs)[:, 1]
    np.testing.assert_allclose(follows, [112.5, 112.5, 312.5, 412.5, 412.5])
    # what was done last before that, and whether it had to be kept
    np.testing.assert_array_equal(rows.last_action, np.asarray(rows.next_obs)[..., 0] - 0.5)
    np.testing.assert_array_equal(rows.kept, np.asarray(rows.last_action) // 100 == 3)
    ends = np.asarray(rows.discount)[2].reshape(time, envs)[:, 1]
    np.testing.assert_allclose(ends, [0.25, 0.5, 0.25, 0.25, 0.5])


def random_params(seed, agents=None):
    """Parameters of a 3-4-4 network, drawn with numpy: nothing to compile."""
    rng = np.random.default_rng(seed)
    lead = () if agents is None else (agents,)

    def layer(inputs):
        sizes = ((*lead, inputs, 4), (*lead, 4))
        kernel, bias = (jnp.asarray(rng.normal(size=n), jnp.float32) for n in sizes)
        return {"kernel": kernel, "bias": bias}

    return {"params": {"Dense_0": layer(3), "Dense_1": layer(4)}}


def learner(shared=True, double=True, **options):
    settings = {"rate": 0.01, "max_grad_norm": 10.0, "target_every": 3} | options
    return ql.QLearner(Mlp((4,), 4), SCALAR, shared=shared, double=double, **settings)


def batch(rows=6, agents=2):
    rng = np.random.default_rng(3)
    shape = (rows, agents)
    real = [rng.normal(size=size) for size in ((*shape, 3), shape, (*shape, 3))]
    obs, reward, next_obs = (jnp.asarray(x, jnp.float32) for x in real)
    return ql.Transition(
        obs=obs,
        action=jnp.asarray(rng.integers(0, 4, shape), jnp.int32),
        reward=reward,
        discount=jnp.asarray(np.full(shape, 0.9), jnp.float32),
        next_obs=next_obs,
        last_action=jnp.asarray(np.full(shape, 2), jnp.int32),
        kept=jnp.asarray(np.arange(rows)[:, None] < [1] * agents),
        score=reward,
        origin=jnp.asarray(np.zeros(shape), jnp.int32),
    ), jnp.asarray(rng.uniform(size=shape), jnp.float32)


@pytest.mark.parametrize("double", [True, False])
def test_loss_and_gradient_by_hand(double):
    rows, weight = batch()
    q_learner = learner(double=double)
    params, target_params = random_params(1), random_params(2)

    def forward(params, x):
        first, last = params["params"]["Dense_0"], params["params"]["Dense_1"]
        hidden = np.tanh(np.asarray(x) @ np.asarray(first["kernel"]) + np.asarray(first["bias"]))
        return hidden, hidden @ np.asarray(last["kernel"]) + np.asarray(last["bias"])

    _, next_q = forward(params if double else target_params, rows.next_obs)
    _, next_target_q = forward(target_params, rows.next_obs)
    action = np.where(np.asarray(rows.kept), 2, next_q.argmax(-1))
    best = np.take_along_axis(next_target_q, action[..., None], -1)[..., 0]
    _, q = forward(params, rows.obs)
    q = np.take_along_axis(q, np.asarray(rows.action)[..., None], -1)[..., 0]
    error = q - (np.asarray(rows.reward) + 0.9 * best)
    loss = np.mean(np.asarray(weight) * error**2)
    (computed, metrics), grad = jax.jit(jax.value_and_grad(q_learner.loss, has_aux=True))(
        params, target_params, rows, weight
    )
    assert float(computed) == pytest.approx(loss, rel=1e-5)
    assert float(metrics["q_mean"]) == pytest.approx(q.mean(), rel=1e-5)
    # the gradient of the output bias: nothing flows through the target
    bias_grad = np.zeros(4)
    np.add.at(bias_grad, np.asarray(rows.action), 2 * np.asarray(weight) * error / error.size)
    np.testing.assert_allclose(grad["params"]["Dense_1"]["bias"], bias_grad, rtol=1e-4, atol=1e-6)


def test_target_network_is_replaced_every_few_steps():
    q_learner = learner()
    params = random_params(0)
    state = ql.QState(params, params, q_learner.opt.init(params), jnp.int32(0))
    step = jax.jit(q_learner.learn)
    rows, weight = batch()

    def bias(params):
        return np.asarray(params["params"]["Dense_1"]["bias"])

    old_bias = bias(state.target)
    for i in range(1, 7):
        state, _ = step(state, rows, weight)
        if i % 3 == 0:
            np.testing.assert_array_equal(bias(state.target), bias(state.params))
            old_bias = bias(state.target)
        else:
            np.testing.assert_array_equal(bias(state.target), old_bias)
            assert not np.array_equal(bias(state.params), old_bias)


def test_an_averaged_target_follows_and_acts():
    q_learner = learner(target_every=4, polyak=True)
    params = random_params(0)
    opt = q_learner.opt.init(params)
    state = ql.QState(params, params, opt, jnp.int32(0), polyak=True)
    step = jax.jit(q_learner.learn)
    rows, weight = batch()
    average = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    for _ in range(6):
        state, _ = step(state, rows, weight)
        average = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, average, state.params)
    for got, expected in zip(jax.tree.leaves(state.target), jax.tree.leaves(average), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)
    assert state.acting is state.target
    assert ql.QState(params, params, opt, jnp.int32(0)).acting is params


def test_own_networks_learn_from_their_own_rows_only():
    q_learner = learner(shared=False, max_grad_norm=0.01)
    params = random_params(0, agents=2)
    state = ql.QState(params, params, q_learner.opt.init(params), jnp.int32(0))
    step = jax.jit(q_learner.learn)
    rows, weight = batch()
    changed_rows = rows._replace(reward=rows.reward.at[:, 1].mul(100.0))
    a, _ = step(state, rows, weight)
    b, _ = step(state, changed_rows, weight)
    moved = [0.0, 0.0]
    for x, y in zip(jax.tree.leaves(a.opt), jax.tree.leaves(b.opt), strict=True):
        for agent in range(2):
            moved[agent] += float(np.abs(np.asarray(x)[agent] - np.asarray(y)[agent]).sum())
    assert moved[0] == 0.0 and moved[1] > 0.0


def test_exploration_decays_to_its_floor_and_is_uniform():
    chances = jax.vmap(lambda i: ql.epsilon(0.8, 0.95, 0.05, i))(jnp.arange(200))
    np.testing.assert_allclose(chances, np.maximum(0.8 * 0.95 ** np.arange(200), 0.05), rtol=1e-4)
    q = jnp.zeros((20_000, 4)).at[:, 2].set(9.0)
    exploring, random_action = ql.explore(jax.random.key(0), SCALAR, q, 0.3)
    assert float(exploring.mean()) == pytest.approx(0.3, abs=0.02)
    np.testing.assert_allclose(np.bincount(random_action) / 20_000, 0.25, atol=0.02)
    np.testing.assert_array_equal(
        ql.choose(exploring, random_action, SCALAR.mode(q)), np.where(exploring, random_action, 2)
    )


def test_continuous_actions_are_refused_by_name():
    assert ql.discrete_head(action_codec("discrete")).sizes == (24,)
    with pytest.raises(ValueError, match="actions"):
        ql.discrete_head(action_codec("box"))


def test_flops_count_what_the_compiler_counts():
    net = Mlp((16, 8), 5)
    x = jnp.zeros((3,))
    params = net.init(jax.random.key(0), x)
    cost = jax.jit(net.apply).lower(params, x).compile().cost_analysis()
    assert network_flops((16, 8), 3, 5) == 2 * (48 + 128 + 40) + 2 * (16 + 8) + 5
    assert cost["flops"] + cost["transcendentals"] == network_flops((16, 8), 3, 5)


@pytest.mark.parametrize("head", [Head(sizes=(9,), scalar=True), Head(sizes=(5, 3))])
@pytest.mark.parametrize("degree", [1, 2])
def test_ordinal_values_are_polynomials_of_the_place(head, degree):
    """Their differences of order `degree + 1` vanish, and those of order `degree` do not."""
    net = ql.QConfig(hidden=(6,), ordinal=degree).network(head)
    x = jax.random.normal(jax.random.key(0), (4, 3))
    params = net.init(jax.random.key(1), x)
    params = jax.tree.map(lambda w: w + 0.3, params)  # a bias that is not zero
    values = np.asarray(net.apply(params, x), np.float64)
    assert values.shape == (4, head.outputs)
    for part in np.split(values, np.cumsum(head.sizes)[:-1], axis=-1):
        assert np.all(np.abs(np.diff(part, degree)) > 1e-4)
        np.testing.assert_allclose(np.diff(part, degree + 1), 0.0, atol=1e-5)
    # What is exported is an ordinary network of the same values.
    ordinary = Mlp((6,), head.outputs)
    np.testing.assert_allclose(ordinary.apply(plain(net, params), x), values, rtol=1e-5, atol=1e-5)


def test_a_network_of_plain_values_is_exported_as_it_is():
    net = ql.QConfig(hidden=(6,)).network(SCALAR)
    params = net.init(jax.random.key(0), jnp.zeros(3))
    assert plain(net, params) is params
