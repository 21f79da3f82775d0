"""A small multi-agent environment with the functional interface and a known best action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class ToyState:
    """Steps so far, the target shown to every agent, rewards so far; a log with no room."""

    steps: Any
    target: Any
    total: Any
    log: Any


@struct.dataclass
class ToyParams:
    """Length of an episode."""

    max_steps: Any


@dataclass(frozen=True)
class ToyAction:
    """Five choices."""

    n: int = 5
    shape: tuple[int, ...] = ()

    def sample(self, key, num_agents):
        return jax.random.randint(key, (num_agents,), 0, self.n)


@dataclass(frozen=True)
class ToyEnv:
    """Agents see a target in {0, 1} and earn 1 for action 1 + 2 * target, less the further away."""

    num_agents: int = 3
    obs_dim: int = 2
    action: ToyAction = ToyAction()

    def reset(self, key, params):
        target = jax.random.bernoulli(key, 0.5, (self.num_agents,)).astype(jnp.float32)
        state = ToyState(jnp.zeros((), jnp.int32), target, jnp.zeros(()), jnp.zeros((0,)))
        return self._obs(state), state

    def _obs(self, state):
        return jnp.stack([state.target, jnp.full_like(state.target, state.steps / 10)], -1)

    def step(self, key, state, action, params):
        reward = 1.0 - jnp.abs(action - (1 + 2 * state.target)) / 4
        target = jax.random.bernoulli(key, 0.5, (self.num_agents,)).astype(jnp.float32)
        new = ToyState(state.steps + 1, target, state.total + reward.mean(), state.log)
        terminated = jnp.zeros((self.num_agents,), bool)
        truncated = jnp.broadcast_to(new.steps >= params.max_steps, terminated.shape)
        zero = jnp.zeros((self.num_agents,))
        info = {"queue_mean": zero, "utilisation": zero}
        return self._obs(new), new, reward, terminated, truncated, info

    def episode_metrics(self, state, params):
        return {"reward": state.total / state.steps}
