"""MAPPO: value normalisation and loss by hand, the critic's inputs, known best actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.mappo import CRITIC_STATES, MAPPO, JointCritic, MAPPOConfig
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.rl.value_norm import ValueNorm
from ecn_marl.baselines.training.loop import train
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star

PARAMS = ToyParams(max_steps=10)
SMALL = MAPPOConfig(envs=16, rollout=16, actor_lr=3e-3, critic_lr=3e-3)


def test_value_norm_is_the_weighted_mean_and_deviation_of_all_batches():
    """Against weights decay**age written out in float64."""
    rng = np.random.default_rng(0)
    batches = rng.normal(3.0, 2.0, size=(7, 50)) * np.arange(1, 8)[:, None]
    decay, norm = 0.8, ValueNorm.create()
    for batch in batches:
        norm = norm.updated(jnp.asarray(batch, jnp.float32), decay)
    weights = decay ** np.arange(6, -1, -1.0)
    weights /= weights.sum()
    mean = weights @ batches.mean(1)
    std = np.sqrt(weights @ (batches**2).mean(1) - mean**2)
    x = np.array([-1.0, 0.0, 12.5])
    np.testing.assert_allclose(norm.normalise(jnp.asarray(x)), (x - mean) / std, rtol=1e-4)
    np.testing.assert_allclose(norm.restore(norm.normalise(jnp.asarray(x))), x, atol=1e-4)


def test_value_norm_before_and_of_constants():
    x = jnp.array([-2.0, 5.0])
    np.testing.assert_array_equal(ValueNorm.create().normalise(x), x)
    np.testing.assert_array_equal(ValueNorm.create().restore(x), x)
    constant = ValueNorm.create().updated(jnp.full((9,), 4.0), 0.9)
    assert np.isfinite(constant.normalise(x)).all()
    assert float(constant.normalise(jnp.float32(4.0))) == pytest.approx(0.0, abs=1e-3)


def test_value_loss_by_hand():
    """Old output 0, clip 0.2, Huber at 1; outputs are all 0.5."""
    algorithm = MAPPO(ToyEnv(), MAPPOConfig(value_clip=0.2, huber=1.0))
    algorithm.value = lambda critic, obs: jnp.full(obs.shape[:-1], 0.5)
    target = np.array([[0.6, 0.1, -2.0]])
    batch = Batch(
        obs=jnp.zeros((1, 3, 2)),
        action=jnp.zeros((1, 3), jnp.int32),
        log_prob=jnp.zeros((1, 3)),
        advantage=jnp.zeros((1, 3)),
        target=jnp.asarray(target, jnp.float32),
        value=jnp.zeros((1, 3)),
    )
    # Error of 0.5 and of the clipped 0.2; the larger counts, and 2.5 is linear: 2.5 - 0.5.
    expected = np.mean([0.5 * 0.4**2, 0.5 * 0.4**2, 2.0])
    assert float(algorithm.value_loss(None, batch)[0]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("state", CRITIC_STATES)
def test_critic_depends_on_the_global_state_and_its_own_observation(state):
    """Derivatives of one agent's value with respect to every agent's observation."""
    obs = jax.random.normal(jax.random.key(1), (3, 2))
    critic = JointCritic((8, 8), 1, state)
    params = jax.jit(critic.init)(jax.random.key(2), obs)
    jacobian = jax.jit(jax.jacobian(lambda o: critic.apply(params, o)))(obs)
    depends = np.abs(jacobian) > 0  # [of agent, by agent, entry]
    assert depends[:, :, 1].all()  # the last entry is global
    np.testing.assert_array_equal(depends[:, :, 0], np.eye(3, dtype=bool))  # the first is not


def test_the_critic_of_a_mean_does_not_grow_with_the_ports():
    """Numbers that the first layer takes in per port, and that ports side by side would need."""

    def inputs(agents, state):
        critic = JointCritic((8, 8), 6, state)
        shapes = jax.eval_shape(critic.init, jax.random.key(0), jnp.zeros((agents, 24)))
        return shapes["params"]["Dense_0"]["kernel"].shape[0]

    assert [inputs(n, "mean") for n in (3, 432)] == [30, 30]
    assert [inputs(n, "ports") for n in (3, 432)] == [24 + 3 * 6, 24 + 432 * 6]


def test_critic_state_mean_is_that_of_the_ports():
    """A network fed with the mean by hand gives what the critic gives."""
    obs = jax.random.normal(jax.random.key(1), (5, 3, 4))
    critic = JointCritic((8, 8), 2)
    params = critic.init(jax.random.key(2), obs)
    averaged = obs.at[..., 2:].set(obs[..., 2:].mean(-2, keepdims=True))
    shuffled = obs.at[:, 1:, 2:].set(obs[:, :0:-1, 2:])  # other ports change places
    np.testing.assert_allclose(
        critic.apply(params, obs)[:, 0], critic.apply(params, shuffled)[:, 0], rtol=1e-5
    )
    x = np.concatenate((obs, np.broadcast_to(averaged[..., 2:], (5, 3, 2))), -1)
    layers = params["params"]
    dense = layers["Dense_0"]
    y = np.tanh(x @ dense["kernel"] + dense["bias"] + layers["agent"])
    for name in ("Dense_0", "Dense_1"):
        y = y @ layers["Mlp_0"][name]["kernel"] + layers["Mlp_0"][name]["bias"]
        y = np.tanh(y) if name == "Dense_0" else y
    np.testing.assert_allclose(critic.apply(params, obs), y[..., 0], rtol=1e-4, atol=1e-5)


def test_joint_part_is_the_global_state():
    """The critic's part of the observations is `EcnEnv.global_state`."""
    scenario = Scenario(topology=star(3), traffic=(Incast(n_max=2, width=2),), slots=4, bins=0)
    env = make(scenario)
    params = env.default_params
    _, state = env.reset(jax.random.key(0), params)
    history = jax.random.uniform(jax.random.key(1), state.history.shape)
    state = state.replace(history=history)
    obs = history.reshape(env.num_agents, -1)
    width = MAPPO(env, SMALL).critic.width
    np.testing.assert_array_equal(obs[:, -width:].reshape(-1), env.global_state(state, params))


def test_finds_the_best_action_of_every_agent():
    result = train(MAPPO(ToyEnv(), SMALL), PARAMS, steps=60 * 256, seed=3)
    assert result.metrics[0]["reward"] < 0.8
    assert np.mean([row["reward"] for row in result.metrics[-3:]]) > 0.95
    assert result.metrics[-1]["explained_variance"] > 0.0


@pytest.mark.slow
def test_several_seeds_at_once_do_not_deadlock():
    """A critic of two separate products deadlocked the CPU backend at this size."""
    algorithm = MAPPO(ToyEnv(num_agents=8), MAPPOConfig())
    result = train(algorithm, PARAMS, steps=2 * 2048, seeds=3)
    assert np.shape(result.metrics[-1]["reward"]) == (3,)


@pytest.mark.parametrize(
    ("field", "value"),
    [("value_norm_decay", 1.0), ("huber", 0.0), ("gamma", 1.5), ("critic_state", "all")],
)
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=field):
        MAPPOConfig(**{field: value})
