"""Auto-reset: start a new episode where one ended, and keep the final observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl._types import Leaf
from ecn_marl.envs.interface import Environment
from ecn_marl.wrappers.forwarding import Forwarding


@struct.dataclass
class AutoResetState:
    """State of `AutoReset`.

    Attributes:
        env: state of the wrapped environment.
        episode_return: sum of rewards so far, `[A]`.
        episode_length: steps so far, scalar.
    """

    env: PyTree
    episode_return: Leaf
    episode_length: Leaf


@dataclass(frozen=True)
class AutoReset(Forwarding):
    """The wrapped environment, restarted within the step that ends an episode.

    `step` then returns the first observation and state of the next episode, and `info["final_obs"]`
    has the last observation of the episode that ended. At any other step it equals `obs`. Bootstrap
    a truncated return from it. The pytree is the same at every step.

    The wrapper has every attribute of the wrapped environment.

    Attributes:
        env: a functional environment with `reset(key, params)` and
            `step(key, state, action, params)`.
    """

    env: Environment

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, AutoResetState]:
        """Start the first episode; see the wrapped environment."""
        obs, state = self.env.reset(key, params)
        return obs, self._fresh(state)

    @property
    def load(self) -> Callable[[AutoResetState], Array] | None:
        """How busy an environment is; None if the wrapped one has no `load`. See `EcnEnv.load`."""
        load = getattr(self.env, "load", None)
        return None if load is None else lambda state: load(state.env)

    def _fresh(self, state: PyTree) -> AutoResetState:
        zero = jnp.zeros((self.env.num_agents,), jnp.float32)
        return AutoResetState(state, zero, jnp.zeros((), jnp.int32))

    def step(
        self, key: jax.Array, state: AutoResetState, action: Array, params: PyTree
    ) -> tuple[Array, AutoResetState, Array, Array, Array, dict[str, Array]]:
        """One step, and a reset if it ended the episode.

        Args:
            key: PRNG key; fixes the next episode, if one starts.
            state: state.
            action: actions of all agents.
            params: parameters of the environment.

        Returns:
            As the wrapped environment. `info` also has `final_obs` `[A, obs_dim]`,
            `episode_return` `[A]`, `episode_length` (both of the episode up to this step) and
            `episode_done`.
        """
        last_obs, inner, reward, terminated, truncated, info = self.env.step(
            key, state.env, action, params
        )
        # Every step computes a reset. Lanes skip it while none of a vector's episodes ends.
        done = lanes.busy(jnp.all(terminated | truncated))
        episode_return = state.episode_return + reward
        length = state.episode_length + 1
        first_obs, next_env_state = self.env.reset(key, params)
        running = AutoResetState(inner, episode_return, length)
        after = jax.tree.map(lambda a, b: _choose(done, a, b), self._fresh(next_env_state), running)
        info = info | {
            "final_obs": last_obs,
            "episode_return": episode_return,
            "episode_length": length,
            "episode_done": done,
        }
        return jnp.where(done, first_obs, last_obs), after, reward, terminated, truncated, info


def _choose(done: Array, new: Array, old: Array) -> Array:
    """`new` where an episode starts; also for typed keys."""
    return jax.lax.select(jnp.broadcast_to(done, jnp.shape(old)), new, old)
