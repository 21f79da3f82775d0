"""DDQN (ACC) and C-ACC: known best actions, memories, idle gating, determinism."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import tiny
from counted_costs import count_costs
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.c_acc import CentralACC
from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.evaluation.episodes import evaluate
from ecn_marl.baselines.training.loop import compiled_update, initial_state, train
from ecn_marl.envs.registry import make

PARAMS = ToyParams(max_steps=10)
SMALL = DDQNConfig(
    envs=16,
    rollout=16,
    lr=3e-3,
    gamma=0.5,
    target_every=20,
    epsilon_decay=0.93,
    local_capacity=1024,
    global_capacity=2048,
    exchange_every=3,
)


@dataclass(frozen=True)
class TieredToy(ToyEnv):
    """The toy in two tiers: one action for the ports of a tier."""

    tiers: tuple[int, ...] = (0, 0, 1)


@dataclass(frozen=True)
class QueueToy(ToyEnv):
    """The toy with queues above and below their thresholds, by turns."""

    def step(self, key, state, action, params):
        obs, new, *rest, info = super().step(key, state, action, params)
        kmin = jnp.full((self.num_agents,), 5.0)
        return obs, new, *rest, info | {"kmin": kmin, "queue": kmin + 1 - 2 * (new.steps % 2)}


@dataclass(frozen=True)
class GenerousToy(ToyEnv):
    """The toy with 8 more for every action (a float32 sum without rounding)."""

    def step(self, key, state, action, params):
        obs, new, reward, *rest = super().step(key, state, action, params)
        return obs, new, reward + 8.0, *rest


def by_time(column, algorithm):
    """A column of a rollout's rows as `[agents, time, envs]`."""
    config = algorithm.config
    return np.asarray(column).reshape(-1, config.rollout, config.envs)


def steps_of(rows, algorithm):
    """Steps of the toy's episodes at which rows begin, `[agents, time, envs]`."""
    return np.round(10 * by_time(rows.obs[..., 1], algorithm))


@pytest.fixture(scope="module")
def trained():
    """Agents with a network each, trained on the toy."""
    algorithm = DDQN(ToyEnv(), replace(SMALL, shared=False, n_step=2))
    return algorithm, train(algorithm, PARAMS, steps=60 * 256, seed=3)


def test_finds_the_best_action_of_every_agent(trained):
    algorithm, result = trained
    assert result.metrics[0]["reward"] < 0.8
    costs = count_costs(ToyEnv(), PARAMS, algorithm, result.state.actor, episodes=32)
    assert costs["reward"] >= 0.95  # the optimum, seeing the target, is 1


def test_memories_agree_with_the_metrics(trained):
    result = trained[1]
    local, shared = result.state.local, result.state.shared
    origin = np.asarray(local.rows.origin)
    agents = np.arange(3)[:, None]
    last = result.metrics[-1]
    assert last["foreign"] == pytest.approx(np.mean(origin != agents))
    assert 0.02 < last["foreign"] < 0.5
    assert set(np.asarray(shared.rows.origin)) == {0, 1, 2}
    row_bytes = 2 * 2 * 4 + 6 * 4 + 1  # two observations of two numbers, six scalars, a flag
    assert last["local_replay_bytes"] == 3 * 1024 * row_bytes
    assert last["global_replay_bytes"] == 2048 * row_bytes
    fraction = round(0.05 * 1024) * 3 * row_bytes
    for row in result.metrics:
        due = fraction if row["update"] % 3 == 0 else 0
        assert (row["exchanged_up_bytes"], row["exchanged_down_bytes"]) == (due, due)
    # rows pushed out: 256 per agent and update once full, and what the exchange pushes out
    assert result.metrics[-2]["overwritten"] == 3 * 256
    assert last["overwritten"] == 3 * 256 + 2 * 3 * round(0.05 * 1024)


def test_exploration_decays(trained):
    epsilons = [row["epsilon"] for row in trained[1].metrics]
    np.testing.assert_allclose(epsilons, np.maximum(0.93 ** np.arange(60), 0.02), rtol=1e-5)


def test_rows_of_a_rollout_agree_with_the_environment(trained):
    """The toy's reward follows from observation and action: every remembered row must agree."""
    rows = jax.device_get(trained[1].state.local.rows)
    target, progress = rows.obs[..., 0], rows.obs[..., 1]
    score = 1.0 - np.abs(rows.action - (1 + 2 * target)) / 4
    np.testing.assert_allclose(rows.score, score, atol=1e-6)
    # windows of two steps, one where the episode or the rollout ends; truncation is bootstrapped
    steps = np.round(np.log(rows.discount) / np.log(0.5)).astype(int)
    assert set(steps.ravel()) == {1, 2}
    np.testing.assert_allclose(rows.next_obs[..., 1], progress + steps / 10, atol=1e-6)
    assert np.all(steps[progress > 0.85] == 1) and np.any(progress > 0.85)
    assert np.mean(steps == 2) > 0.7


def test_an_offset_cancels_a_constant_reward():
    """Bit for bit the same learner."""

    def learnt(env, offset):
        algorithm = DDQN(env, replace(SMALL, rollout=8, n_step=2, reward_offset=offset))
        state = initial_state(algorithm, PARAMS, 0)
        return jax.device_get(compiled_update(algorithm, 3)(state, PARAMS)[0])

    plain, undone = learnt(ToyEnv(), 0.0), learnt(GenerousToy(), 8.0)
    jax.tree.map(np.testing.assert_array_equal, plain.q, undone.q)
    jax.tree.map(np.testing.assert_array_equal, plain.local, undone.local)


def test_the_level_of_rewards_is_measured_with_random_actions():
    """The toy with 8 more for every action has an offset 8 higher, and learns from the same."""

    def start(env):
        return initial_state(DDQN(env, replace(SMALL, centre=16)), PARAMS, 0)

    plain, generous = start(ToyEnv()), start(GenerousToy())
    assert float(generous.offset - plain.offset) == pytest.approx(8.0, abs=1e-5)
    assert float(plain.offset) != 0.0
    assert float(initial_state(DDQN(ToyEnv(), SMALL), PARAMS, 0).offset) == 0.0
    algorithm = DDQN(ToyEnv(), replace(SMALL, centre=16))
    before = jax.tree.map(jnp.copy, plain)
    after = jax.device_get(compiled_update(algorithm, 1)(before, PARAMS)[0])
    assert float(after.offset) == float(plain.offset), "measured once, so that values stay"
    rows = after.local.rows.score[after.local.rows.score != 0.0]
    given = DDQN(ToyEnv(), replace(SMALL, reward_offset=float(plain.offset)))
    assert rows.size
    moments, offset = given.config.use(None)
    assert moments is None and float(offset) == float(plain.offset)


def test_a_measured_and_a_given_level_exclude_each_other():
    with pytest.raises(ValueError, match=r"reward_offset = 0\.5 is not allowed"):
        replace(SMALL, centre=16, reward_offset=0.5)


@pytest.mark.slow
def test_c_acc_finds_the_best_joint_action_of_the_tiers():
    env = TieredToy()
    algorithm = CentralACC(env, replace(SMALL, epsilon_decay=0.95))
    state = train(algorithm, PARAMS, steps=80 * 256, seed=0).state
    acting = algorithm.controller(state.actor, env)
    # every target of the three ports, and the best of all 25 joint actions for each
    targets = np.array(list(itertools.product((0, 1), repeat=3)))
    obs = np.stack([targets, np.full_like(targets, 0.5, float)], -1).astype(np.float32)
    action = np.asarray(jax.jit(jax.vmap(acting, (None, 0)))(jax.random.key(0), obs))
    assert np.all(action[:, 0] == action[:, 1])

    def earned(action):
        return (1 - np.abs(action - (1 + 2 * targets)) / 4).mean(-1)

    joint = [(a, a, b) for a in range(5) for b in range(5)]
    best = np.max([earned(np.array(setting)) for setting in joint], 0)
    assert earned(action).mean() >= 0.95 * best.mean()
    assert best.mean() < 1.0, "one setting per tier must cost something here"


def test_c_acc_standardises_its_features_over_random_settings():
    """Random play reaches every setting of both tiers; features are centred by its moments."""
    algorithm = CentralACC(TieredToy(), replace(SMALL, standardise=8))
    actions = algorithm.env.action.sample(jax.random.key(0), 1000)
    assert actions.shape == (1000, 2)
    assert {tuple(pair) for pair in np.asarray(actions).tolist()} == set(
        itertools.product(range(5), repeat=2)
    )
    state = initial_state(algorithm, PARAMS, 0)
    assert np.asarray(state.actor["params"]["centre"]).any()


def test_idle_ports_keep_their_action_and_the_share_is_reported():
    # ports must be idle for their queue alone: the toy's reward stays the same by chance
    config = replace(SMALL, epsilon=0.0, epsilon_min=0.0, idle_intervals=1000)
    algorithm = DDQN(QueueToy(), config)
    state = initial_state(algorithm, PARAMS, 0)
    _, rows, metrics = jax.jit(algorithm._collect)(state, jax.random.key(1), PARAMS)

    action, step = by_time(rows.action, algorithm), steps_of(rows, algorithm)
    start = (step == 0) | (np.arange(16)[:, None] == 0)  # of an episode, or of training
    idle = (step % 2 == 1) & ~start
    assert idle.any() and float(metrics["inferences_saved"]) == pytest.approx(idle.mean())
    same_as_before = action[:, 1:] == action[:, :-1]
    assert np.all(same_as_before[idle[:, 1:]]) and not np.all(same_as_before)
    # a row says whether the agent is idle next, before an episode ends also
    later = slice(1, None)  # training's first episodes start in the middle, unseen by the agents
    np.testing.assert_array_equal(by_time(rows.kept, algorithm)[:, later], step[:, later] % 2 == 0)
    np.testing.assert_array_equal(rows.last_action, rows.action)
    share = 1 - float(metrics["inferences_saved"])
    assert float(metrics["flops_per_decision"]) == pytest.approx(algorithm.flops * share)

    costs = count_costs(QueueToy(), PARAMS, algorithm, state.actor, episodes=4)
    assert costs["inferences_per_decision"] == pytest.approx(0.5)  # every other interval


def test_settings_last_while_training():
    """Random ones too; a row says whether its setting had to be kept next."""
    config = replace(SMALL, epsilon=1.0, idle_gating=False, persistence=0.75, envs=64)
    algorithm = DDQN(ToyEnv(), config)
    state = initial_state(algorithm, PARAMS, 0)
    state, rows, _ = jax.jit(algorithm._collect)(state, jax.random.key(1), PARAMS)

    action, step = by_time(rows.action, algorithm), steps_of(rows, algorithm)
    kept = by_time(rows.kept, algorithm)
    assert kept.mean() == pytest.approx(0.75, abs=0.03)
    # Kept or not, an episode that begins has its own first choice.
    within = step[:, 1:] != 0
    same = action[:, 1:] == action[:, :-1]
    assert same[kept[:, :-1] & within].all()
    n = len(np.unique(action))
    chosen = same[~kept[:, :-1] | ~within]
    assert chosen.mean() == pytest.approx(1 / n, abs=0.06), "drawn anew"
    costs = count_costs(ToyEnv(), PARAMS, algorithm, state.actor, episodes=2)
    assert costs["inferences_per_decision"] == 1.0, "the policy itself chooses every time"


@pytest.mark.slow
def test_controller_computes_the_observations_of_the_environment():
    """Decisions from reported statistics are those from the environment's own observations."""
    env = make(tiny(), actions="discrete", max_steps=30, bins=0)
    params = env.default_params
    algorithm = DDQN(env, replace(SMALL, envs=2, rollout=2, batch=4, hidden=(8,)))
    actor = algorithm.learner.init(jax.random.key(1), env.obs_dim, env.num_agents).params
    actor = jax.tree.map(lambda x: 10 * x, actor)  # a policy that moves a lot
    direct = count_costs(env, params, algorithm, actor, episodes=2)
    assert 0.0 < direct["inferences_per_decision"] < 0.9
    evaluation = evaluate(env, params, algorithm.controller(actor, env), name="", episodes=2)
    assert evaluation.episodes["reward"].mean() == pytest.approx(direct["reward"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_same_seed_same_bits():
    """As `test_ippo` has it in every run."""
    algorithm = DDQN(ToyEnv(), SMALL)
    run = compiled_update(algorithm, updates=4)
    states = [run(initial_state(algorithm, PARAMS, seed), PARAMS)[0] for seed in (5, 5, 6)]
    first, again, other_seed = ([np.asarray(x) for x in jax.tree.leaves(s.actor)] for s in states)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other_seed, strict=True))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("envs", 0), ("gamma", 1.5), ("lr", 0.0), ("to_local", 2.0)),
        *(("epsilon_decay", 0.0), ("epsilon_min", 1.5)),
        *(("persistence", 1.0), ("persistence", 0.5)),  # the second beside `idle_gating`
    ],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        DDQNConfig(**{field: value})
