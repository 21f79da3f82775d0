# linear.py: a trainer of your own, REINFORCE with a linear policy
from dataclasses import dataclass

import jax
import jax.numpy as jnp

import ecn_marl
from ecn_marl.baselines.training.spaces import LogUniform
from ecn_marl.baselines.training.trainer import Network, TrainingState


@dataclass(frozen=True)
class Settings:
    envs: int = 8
    rollout: int = 32
    lr: float = 0.05
    steps_per_update = property(lambda self: self.envs * self.rollout)


class Linear(ecn_marl.Trainer):
    """REINFORCE with a linear policy that all ports share."""

    config_class = Settings
    space = {"lr": LogUniform(0.01, 0.3)}  # for tune

    def init(self, key, params):
        keys = jax.random.split(key, self.config.envs)
        obs, env = jax.vmap(self.env.reset, (0, None))(keys, params)
        weights = jnp.zeros((obs.shape[-1], self.head.outputs))
        return TrainingState(actor=(weights, weights[0]), env=env, obs=obs, key=key)

    def act(self, actor, key, obs, greedy=False):
        out = obs @ actor[0] + actor[1]
        return self.head.mode(out) if greedy else self.head.sample(key, out)

    def network(self, actor):  # for export
        return Network(self.head, [actor])

    def update(self, state, params):
        def step(carry, key):
            env, obs = carry
            act, *keys = jax.random.split(key, 1 + self.config.envs)
            action = self.act(state.actor, act, obs)
            move = jax.vmap(self.env.step, (0, 0, 0, None))
            after, env, reward, *_ = move(jnp.stack(keys), env, action, params)
            return (env, after), (obs, action, reward)

        def loss(actor, obs, action, reward):
            chance = self.head.log_prob(obs @ actor[0] + actor[1], action)
            return -((reward - reward.mean()) * chance).mean()

        key, *keys = jax.random.split(state.key, 1 + self.config.rollout)
        (env, obs), seen = jax.lax.scan(step, (state.env, state.obs), jnp.stack(keys))
        slope = jax.grad(loss)(state.actor, *seen)
        actor = jax.tree.map(lambda x, g: x - self.config.lr * g, state.actor, slope)
        return TrainingState(actor, env, obs, key), {"reward": seen[2].mean()}


ecn_marl.register_algorithm("linear", Linear)
