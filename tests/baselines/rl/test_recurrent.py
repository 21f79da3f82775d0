"""Policies with a memory: the GRU against Flax's, resets, training, and what it is for."""

from __future__ import annotations

from dataclasses import dataclass, fields

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import tiers
from toy import ToyEnv, ToyParams

from ecn_marl.baselines.evaluation.episodes import roll_out
from ecn_marl.baselines.ippo import IPPO, IPPOConfig
from ecn_marl.baselines.mappo import MAPPO, MAPPOConfig
from ecn_marl.baselines.pqn import PQN, PQNConfig
from ecn_marl.baselines.rl import recurrent as rc
from ecn_marl.baselines.rl.networks import standardise
from ecn_marl.baselines.rl.ppo import Batch
from ecn_marl.baselines.training.loop import train

PARAMS = ToyParams(max_steps=10)
NET = rc.Recurrent(hidden=(5,), units=4, outputs=3, standardised=True)
SMALL = {"envs": 8, "rollout": 16, "epochs": 2, "minibatches": 2, "hidden": (16,), "memory": 8}


def filled(net, agents, shared, features=2):
    """Parameters without a zero, so that no part can go unseen."""
    shapes = jax.eval_shape(
        lambda key: rc.init_recurrent(net, key, features, agents, shared), jax.random.key(0)
    )
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(x.dtype), shapes)


unroll = jax.jit(rc.unroll, static_argnums=(0, 5))


def inputs(agents=3, time=7, envs=2):
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(time, envs, agents, 2)).astype(np.float32)
    memory = rng.normal(size=(envs, agents, NET.units)).astype(np.float32)
    ended = rng.random((time, envs, agents)) < 0.3
    assert ended[:-1].any() and not ended.all()
    return jnp.asarray(obs), jnp.asarray(memory), jnp.asarray(ended)


def test_the_unit_is_flaxs():
    """Our products of three gates at once against six layers of `flax.linen.GRUCell`."""
    params = filled(NET, 3, True)["params"]
    weights = np.split(params["recurrent"], 3, -1)
    given = {name: np.split(params["Dense_1"][name], 3, -1) for name in ("kernel", "bias")}
    theirs = {}
    for i, gate in enumerate("rzn"):
        theirs[f"i{gate}"] = {name: x[i] for name, x in given.items()}
        theirs[f"h{gate}"] = {"kernel": weights[i]}
    theirs["hn"]["bias"] = params["recurrent_bias"]
    rng = np.random.default_rng(5)
    x, memory = (rng.normal(size=(6, n)).astype(np.float32) for n in (5, 4))
    expected, _ = jax.jit(nn.GRUCell(4).apply)({"params": theirs}, memory, x)
    ours = jax.jit(rc.gru)(
        x @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"],
        memory,
        params["recurrent"],
        params["recurrent_bias"],
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_a_stretch_is_its_intervals_one_by_one(shared):
    """With resets where episodes end, and gradients as of the loop that is written out."""
    params, (obs, memory, ended) = filled(NET, 3, shared), inputs()

    def stretch(params, memory):
        out, memories = rc.unroll(NET, params, obs, memory, ended, shared)
        return (out**2).sum(), (out, memories)

    def loop(params, memory):
        rows = []
        for x, end in zip(obs, ended, strict=True):
            out, memory = rc.respond(NET, params, x, memory, shared)
            rows.append((out, memory))
            memory = rc.after_end(memory, end)
        out, memories = (jnp.stack(x) for x in zip(*rows, strict=True))
        return (out**2).sum(), (out, memories)

    ours = jax.jit(jax.value_and_grad(stretch, (0, 1), has_aux=True))(params, memory)
    theirs = jax.jit(jax.value_and_grad(loop, (0, 1), has_aux=True))(params, memory)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_nothing_is_remembered_across_episodes():
    """After an end, outputs are those of an episode that begins there."""
    params, (obs, memory, _) = filled(NET, 3, True), inputs()
    ended = np.zeros(obs.shape[:-1], bool)
    longer, _ = unroll(NET, params, obs, memory, ended, True)
    fresh, _ = unroll(NET, params, obs[4:], np.zeros_like(memory), ended[4:], True)
    ended[3] = True
    out, _ = unroll(NET, params, obs, memory, ended, True)
    np.testing.assert_allclose(out[4:], fresh, rtol=1e-5, atol=1e-6)
    assert np.abs(longer[4:] - fresh).max() > 1e-2


def test_features_are_standardised_as_those_of_other_networks():
    params = filled(NET, 3, True)
    mean, std = jnp.array([0.5, -1.0]), jnp.array([2.0, 0.1])
    obs, memory, ended = inputs()
    scaled = unroll(NET, standardise(params, mean, std), obs, memory, ended, True)
    plain = rc.Recurrent(hidden=(5,), units=4, outputs=3)
    inner = {k: x for k, x in params["params"].items() if k not in ("centre", "gain")}
    expected = unroll(plain, {"params": inner}, (obs - mean) / std, memory, ended, True)
    np.testing.assert_allclose(scaled[0], expected[0], rtol=1e-4, atol=1e-5)


def test_sequences_keep_every_step_in_its_place():
    time, envs, agents = 4, 3, 2
    code = np.arange(time * envs * agents).reshape(time, envs, agents)
    steps = (code[..., None], code, code + 0.5, code, code, code)
    memory = rc.Memories(np.arange(envs)[:, None, None].repeat(agents, 1), None)
    rows = rc.sequences(Batch(*map(jnp.asarray, steps)), memory, jnp.asarray(code % 2 == 0))
    assert {x.shape[:2] for x in jax.tree.leaves(rows)} == {(envs, 1)}
    chosen = jax.tree.map(lambda x: x.reshape(envs, *x.shape[2:])[jnp.array([2, 0])], rows)
    back = rc.by_time(chosen)
    np.testing.assert_array_equal(back.action, code[:, [2, 0]])
    np.testing.assert_array_equal(back.memory.actor[:, 0, 0], [2, 0])
    np.testing.assert_array_equal(rc.steps_of(back).action, code[:, [2, 0]].reshape(-1, agents))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((IPPO, True), marks=pytest.mark.thorough, id="ippo"),
        pytest.param((IPPO, False), id="ippo-own"),
        pytest.param((MAPPO, True), id="mappo"),
    ],
)
def learner(request):
    kind, shared = request.param
    config = (IPPOConfig if kind is IPPO else MAPPOConfig)(**SMALL, shared=shared)
    trainer = kind(ToyEnv(), config)
    state = jax.jit(trainer.init)(jax.random.key(0), PARAMS)
    return trainer, state, jax.jit(trainer.experience)


def test_the_update_sees_what_the_rollout_saw(learner):
    """Probabilities and values of whole sequences, recomputed, are those of the rollout.

    Episodes of ten intervals end within rollouts of sixteen, and the second rollout begins in the
    middle of one.
    """
    trainer, state, experience = learner
    loss, values = jax.jit(trainer.policy_loss, static_argnums=(2, 3)), jax.jit(trainer.values)
    for seed in (1, 2):
        state, batch, _ = experience(state, jax.random.key(seed), PARAMS)
        rows = jax.tree.map(lambda x: x[:, 0], batch)
        _, metrics = loss(state.actor, rows, 1e-3, 0.0)
        assert float(metrics["clipped"]) == 0.0 and float(metrics["kl"]) < 1e-8
        value = values(state.critic, rows)
        flat = rc.steps_of(rc.by_time(rows))
        np.testing.assert_allclose(value, flat.value, rtol=1e-4, atol=1e-5)
        assert bool(rows.ended.any())


def test_values_after_an_interval_are_those_of_the_next(learner):
    """Within an episode; `judge` computes both on their own."""
    trainer, state, _ = learner
    _, rollout, _ = jax.jit(trainer.roll_out)(state, jax.random.key(3), PARAMS)
    value, after, memory = jax.jit(trainer.judge)(state.critic, rollout, state.memory)
    goes_on = ~np.asarray(rollout.ended)[:-1]
    np.testing.assert_allclose(
        np.asarray(after)[:-1][goes_on], np.asarray(value)[1:][goes_on], rtol=1e-4, atol=1e-5
    )
    if trainer.critic_units():
        assert memory.critic.shape == (8, 3, 8)
    else:
        assert memory.critic is None


@dataclass(frozen=True)
class Recall(ToyEnv):
    """The target of an episode is shown in its first interval alone."""

    def reset(self, key, params):
        _, state = super().reset(key, params)
        return self._obs(state), state

    def _obs(self, state):
        shown = jnp.where(state.steps == 0, 2.0 * state.target - 1.0, 0.0)
        return jnp.stack([shown, jnp.zeros_like(shown)], -1)

    def step(self, key, state, action, params):
        _, new, reward, terminated, truncated, info = super().step(key, state, action, params)
        new = new.replace(target=state.target)
        return self._obs(new), new, reward, terminated, truncated, info


def score(trainer, env, actor):
    keys = jax.random.split(jax.random.key(9), 64)
    controller = trainer.controller(actor, env)
    return float(jax.jit(jax.vmap(lambda k: roll_out(env, PARAMS, controller, k)[1]))(keys).mean())


@pytest.mark.parametrize(
    ("kind", "config", "memory"),
    tiers(
        [
            (IPPO, IPPOConfig, 0),
            (IPPO, IPPOConfig, 16),
            (MAPPO, MAPPOConfig, 16),
            (PQN, PQNConfig, 16),
        ],
        (IPPO, IPPOConfig, 16),
    ),
)
def test_remembers_what_was_shown_once(kind, config, memory):
    """Without a memory the best answer earns 3/4 from the second interval on; with one, 1."""
    names = {field.name for field in fields(config)}
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "lr": 3e-3, "gamma": 0.5, "epsilon_decay": 0.9}
    settings = {name: x for name, x in rates.items() if name in names}
    settings |= {**SMALL, "envs": 32, "rollout": 20, "epochs": 4, "memory": memory}
    settings["minibatches"] = 8
    env, trainer = Recall(), kind(Recall(), config(**settings))
    steps = 40 * trainer.config.steps_per_update
    actor = train(trainer, PARAMS, steps=steps, seed=0).state.actor
    earned = score(trainer, env, actor)
    assert earned > 0.97 if memory else earned < 0.8


def test_act_is_refused():
    for trainer in (IPPO(ToyEnv(), IPPOConfig(**SMALL)), PQN(ToyEnv(), PQNConfig(**SMALL))):
        with pytest.raises(ValueError, match=r"memory = 8 is not allowed: expected 0 for act\(\)"):
            trainer.act(None, jax.random.key(0), jnp.zeros((3, 2)))


def test_wrong_settings():
    with pytest.raises(
        ValueError, match="minibatches = 4 is not allowed: expected a divisor of envs = 6"
    ):
        IPPOConfig(envs=6, rollout=2, minibatches=4, memory=8)
    with pytest.raises(
        ValueError, match=r"hidden = \(\) is not allowed: expected at least one layer"
    ):
        IPPOConfig(hidden=(), memory=8)
    with pytest.raises(ValueError, match="memory = -1"):
        IPPOConfig(memory=-1)
