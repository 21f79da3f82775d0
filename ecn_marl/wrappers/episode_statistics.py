"""Episode statistics: return, length and the network's metrics of the last finished episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from ecn_marl._errors import bad_value
from ecn_marl._types import Leaf
from ecn_marl.envs.interface import Environment, MeasuredEnvironment, StepResult
from ecn_marl.wrappers.auto_reset import AutoReset, AutoResetState
from ecn_marl.wrappers.forwarding import Forwarding


@struct.dataclass
class EpisodeStatisticsState:
    """State of `EpisodeStatistics`.

    Attributes:
        env: state of the wrapped `AutoReset`.
        last: `return` `[A]`, `length` and the environment's `episode_metrics` of the last episode
            that ended; zeros before there is one.
        finished: episodes that ended so far, scalar.
    """

    env: AutoResetState
    last: dict[str, Leaf]
    finished: Leaf


@dataclass(frozen=True)
class _Metered(Forwarding):
    """An environment whose `info` has the metrics of the episode up to this step."""

    env: MeasuredEnvironment

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        return self.env.reset(key, params)

    def step(self, key: jax.Array, state: PyTree, action: Array, params: PyTree) -> StepResult:
        obs, next_state, reward, terminated, truncated, info = self.env.step(
            key, state, action, params
        )
        info = info | {"metrics": self.env.episode_metrics(next_state, params)}
        return obs, next_state, reward, terminated, truncated, info


@dataclass(frozen=True)
class EpisodeStatistics(Forwarding):
    """`AutoReset`, with a log of the last finished episode.

    `info["episode"]` is that log after every step, so the last step of a rollout has it. Where
    `info["episode_done"]`, the episode ended in this step. The pytree is the same at every step.
    The wrapper has every attribute of the wrapped environment.

    Attributes:
        env: an `AutoReset`, whose environment has `episode_metrics(state, params)`.
    """

    env: Environment

    def __post_init__(self) -> None:
        """Check the wrapped environment.

        Raises:
            ValueError: not an `AutoReset`.
        """
        if not isinstance(self.env, AutoReset):
            raise bad_value("env", self.env, "an AutoReset")

    @property
    def _measured(self) -> MeasuredEnvironment:
        """The environment inside of `AutoReset`."""
        return cast(MeasuredEnvironment, cast(AutoReset, self.env).env)

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, EpisodeStatisticsState]:
        """Start the first episode; see the wrapped environment."""
        obs, state = self.env.reset(key, params)
        # The log has its shapes from the start, because a scan's carry must not change.
        metrics = jax.eval_shape(self._measured.episode_metrics, state.env, params)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)
        last = {"return": state.episode_return, "length": state.episode_length, **empty}
        return obs, EpisodeStatisticsState(state, last, jnp.zeros((), jnp.int32))

    def step(
        self, key: jax.Array, state: EpisodeStatisticsState, action: Array, params: PyTree
    ) -> tuple[Array, EpisodeStatisticsState, Array, Array, Array, dict[str, Any]]:
        """One step; see `AutoReset.step`.

        Returns:
            As `AutoReset`. `info` also has `episode`, `last` of the new state.
        """
        # Inside of `AutoReset`, because a reset replaces the state that the metrics come from.
        resetting = AutoReset(_Metered(self._measured))
        obs, inner, reward, terminated, truncated, info = resetting.step(
            key, state.env, action, params
        )
        done = info["episode_done"]
        log = {"return": info["episode_return"], "length": info["episode_length"]}
        log |= info.pop("metrics")
        last = jax.tree.map(lambda a, b: jnp.where(done, a, b), log, state.last)
        next_state = EpisodeStatisticsState(inner, last, state.finished + done.astype(jnp.int32))
        return obs, next_state, reward, terminated, truncated, info | {"episode": last}
