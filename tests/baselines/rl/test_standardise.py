"""Standardised features are centred, stay so in training and in a file; rewards are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import ToyAction, ToyEnv, ToyParams

from ecn_marl.baselines.ddqn import DDQN, DDQNConfig
from ecn_marl.baselines.exporting.export import export_policy
from ecn_marl.baselines.exporting.files import read_policy, save_policy
from ecn_marl.baselines.haecn import HAECN, HAECNConfig
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.mappo import MAPPO, MAPPOConfig
from ecn_marl.baselines.rl.distributions import head_for
from ecn_marl.baselines.rl.networks import (
    FEATURE_STD_MIN,
    Mlp,
    apply_network,
    init_network,
    standardise,
)
from ecn_marl.baselines.training import environments
from ecn_marl.baselines.training.environments import (
    run_randomly,
    start_environments,
    start_measured,
)
from ecn_marl.baselines.training.loop import train
from ecn_marl.envs.registry import make
from ecn_marl.envs.scenario import Scenario
from ecn_marl.sim import Incast, star
from ecn_marl.wrappers import AutoReset

PARAMS = ToyParams(max_steps=10)
SMALL = {"envs": 4, "rollout": 4, "epochs": 1, "minibatches": 1, "hidden": (4,)}
STEP = 16
"""Environment steps of an update."""


@dataclass(frozen=True)
class Sampled(ToyAction):
    """The five choices, with random ones."""

    def sample(self, key, num_agents):
        return jax.random.randint(key, (num_agents,), 0, self.n)


@dataclass(frozen=True)
class Toy(ToyEnv):
    """Rewards are `pay` times those of `ToyEnv`."""

    action: Sampled = Sampled()
    pay: float = 1.0

    def step(self, *args):
        obs, state, reward, *rest = super().step(*args)
        return obs, state, self.pay * reward, *rest


class Recorder:
    """An auto-resetting environment that keeps every observation it returns."""

    def __init__(self, env):
        self.env, self.recorded = AutoReset(env), []
        self.action, self.num_agents = env.action, env.num_agents

    def reset(self, *args):
        return self.env.reset(*args)

    def step(self, *args):
        out = self.env.step(*args)
        jax.debug.callback(lambda x: self.recorded.append(np.array(x)), out[0])
        return out


def centred_part(params):
    return params["params"]["centre"], params["params"]["gain"]


def test_random_observations_are_standard_at_the_first_layer():
    env = Recorder(Toy())
    keys = jax.random.split(jax.random.key(0), 3)
    obs, state = start_environments(env.env, keys[0], keys[1], PARAMS, 6)
    _, ((mean, std), _) = run_randomly(env, keys[2], PARAMS, (state, obs), 8)
    jax.block_until_ready(std)
    jax.effects_barrier()
    observations = np.concatenate([x.reshape(-1, 2) for x in env.recorded])
    assert observations.shape == (6 * 8 * 3, 2)
    net = Mlp((4,), 5, standardised=True)
    params = standardise(net.init(jax.random.key(1), jnp.zeros(2)), mean, std)
    centre, gain = map(np.asarray, centred_part(params))
    x = (observations - centre) * gain
    np.testing.assert_allclose(x.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(x.std(0), 1.0, atol=1e-5)
    first, last = (params["params"][f"Dense_{i}"] for i in range(2))
    hidden = np.tanh(x @ first["kernel"] + first["bias"])
    out = hidden @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(net.apply(params, jnp.asarray(observations)), out, atol=1e-5)


def test_random_play_has_a_key_of_its_own(monkeypatch):
    """Neither that of a first episode nor that of the steps that they start at."""
    used = []

    class Env(Toy):
        def reset(self, key, params):
            jax.debug.callback(
                lambda x: used.append(tuple(np.array(x).tolist())), jax.random.key_data(key)
            )
            return super().reset(key, params)

    def play(env, key, params, carry, steps):
        used.append(tuple(np.array(jax.random.key_data(key)).tolist()))
        return carry, environments.Measured((jnp.zeros(2), jnp.ones(2)), jnp.zeros(()))

    monkeypatch.setattr(environments, "run_randomly", play)
    start_measured(AutoReset(Env()), jax.random.key(3), jax.random.key(4), PARAMS, 6, 8)
    jax.effects_barrier()
    assert len(used) == len(set(used)) == 7
    assert not {(0, 3), (0, 4)} & set(used)


def test_features_that_hardly_differ_are_not_magnified():
    params = Mlp((4,), 5, standardised=True).init(jax.random.key(1), jnp.zeros(2))
    params = standardise(params, jnp.array([0.5, 0.5]), jnp.array([0.0, 2 * FEATURE_STD_MIN]))
    np.testing.assert_allclose(centred_part(params)[1], [50.0, 25.0])


@pytest.mark.parametrize(
    ("kind", "config"), [(IPPO, IPPOConfig), (MAPPO, MAPPOConfig)], ids=["ippo", "mappo"]
)
def test_moments_are_not_learnt(kind, config):
    algorithm = kind(Toy(), config(**SMALL, standardise=8))
    first = jax.jit(algorithm.init)(jax.random.key(2), PARAMS)
    state, update = first, jax.jit(algorithm.update)
    for _ in range(2):
        state, _ = update(state, PARAMS)
    for old, new in ((first.actor, state.actor), (first.critic, state.critic)):
        assert (np.abs(centred_part(old)[0]) > 0.2).all()
        assert (np.asarray(centred_part(old)[1]) > 1.5).all()
        for a, b in zip(centred_part(old), centred_part(new), strict=True):
            np.testing.assert_array_equal(a, b)
        weights = [x["params"]["Dense_0"]["kernel"] for x in (old, new)]
        assert not np.array_equal(*weights)


@pytest.mark.parametrize(
    ("kind", "config", "size", "shared"),
    [
        pytest.param(DDQN, DDQNConfig, "local_capacity", True, id="ddqn-shared"),
        pytest.param(HAECN, HAECNConfig, "capacity", False, id="haecn-own"),
        pytest.param(
            DDQN, DDQNConfig, "local_capacity", False, id="ddqn-own", marks=pytest.mark.thorough
        ),
        pytest.param(
            HAECN, HAECNConfig, "capacity", True, id="haecn-shared", marks=pytest.mark.thorough
        ),
    ],
)
def test_q_networks_and_their_targets_are_standardised(kind, config, size, shared):
    small = {"envs": 4, "rollout": 4, "batch": 4, "gradient_steps": 1, "hidden": (4,), size: 16}
    algorithm = kind(Toy(), config(**small, standardise=8, shared=shared))
    first = jax.jit(algorithm.init)(jax.random.key(2), PARAMS)
    state, _ = jax.jit(algorithm.update)(first, PARAMS)
    for name in ("q",) if kind is DDQN else ("decision", "policy"):
        old, new = getattr(first, name), getattr(state, name)
        centre, gain = centred_part(old.params)
        assert (np.abs(centre) > 0.2).all() and (np.asarray(gain) > 1.5).all()
        width = algorithm.env.obs_dim * (2 if name == "decision" else 1)
        assert centre.shape[-1] == width, "the decision sees what is, and what was"
        if name == "decision":
            np.testing.assert_array_equal(centre[..., : width // 2], centre[..., width // 2 :])
        for x in (old.target, new.params, new.target):
            for a, b in zip(centred_part(old.params), centred_part(x), strict=True):
                np.testing.assert_array_equal(a, b)
        weights = [x.params["params"]["Dense_0"]["kernel"] for x in (old, new)]
        assert not np.array_equal(*weights)


def test_scaling_equals_an_environment_with_scaled_rewards():
    def learnt(pay, scale):
        algorithm = IPPO(Toy(pay=pay), IPPOConfig(**SMALL, reward_scale=scale))
        state = train(algorithm, PARAMS, steps=STEP, seed=1).state
        return jax.tree.leaves((state.actor, state.critic))

    plain, halved = learnt(1.0, 1.0), learnt(2.0, 0.5)
    for a, b in zip(plain, halved, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("config", [IPPOConfig, MAPPOConfig])
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_reward_scale_must_be_positive(config, scale):
    with pytest.raises(ValueError, match=f"reward_scale = {scale} is not allowed"):
        config(reward_scale=scale)


@pytest.mark.parametrize("shared", [True, False])
def test_exported_networks_fold_standardisation_into_their_first_layer(shared, tmp_path):
    scenario = Scenario(topology=star(3), traffic=(Incast(n_max=2, width=2),), slots=4)
    env = make(scenario, actions="discrete")
    head, rng = head_for(env.action), np.random.default_rng(0)
    net = Mlp((8, 4), head.outputs, standardised=True)
    params = init_network(net, jax.random.key(4), env.obs_dim, env.num_agents, shared)
    moments = rng.uniform(0.05, 0.5, (2, env.obs_dim)).astype(np.float32)
    params = standardise(params, *map(jnp.asarray, moments))
    save_policy(export_policy(env, head, params, algorithm="ippo"), tmp_path / "p.npz")
    policy = read_policy(tmp_path / "p.npz")
    assert len(policy.layers) == 3
    obs = rng.uniform(size=(20, env.num_agents, env.obs_dim)).astype(np.float32)
    out = apply_network(net, params, jnp.asarray(obs), shared)
    np.testing.assert_allclose(policy.outputs(obs), out, atol=2e-5)
    plain = replace(net, standardised=False)
    bare = {k: v for k, v in params["params"].items() if k.startswith("Dense")}
    raw = apply_network(plain, {"params": bare}, jnp.asarray(obs), shared)
    assert np.abs(raw - out).max() > 0.1
