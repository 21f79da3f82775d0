"""Environments whose batches run in compiled lanes on a CPU (`ecn_marl.lanes`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
from jaxtyping import Array, PyTree

from ecn_marl import lanes
from ecn_marl.envs.interface import Environment, PortEnvironment
from ecn_marl.wrappers.forwarding import Forwarding


@dataclass(frozen=True)
class Lanes(Forwarding):
    """The wrapped environment; `jax.vmap` over its steps runs several times as fast on a CPU.

    A batch of steps is compiled with one environment in each lane of the processor's vectors.
    Results are those of the wrapped environment within rounding. A rounding difference can change a
    random mark, so single episodes differ, but their statistics do not. Steps that are not mapped
    run as without the wrapper, and so do accelerators without `ecn_marl.lanes.available`. Batches
    cannot be differentiated: do not use this wrapper for gradients.

    The wrapper has every attribute of the wrapped environment.

    Attributes:
        env: a functional environment, `AutoReset` included.
    """

    env: Environment

    def reset(self, key: jax.Array, params: PyTree) -> tuple[Array, PyTree]:
        """Start an episode; see the wrapped environment."""
        return self.env.reset(key, params)

    @property
    def step(self) -> Callable[..., Any]:
        """`step(key, state, action, params)` of the wrapped environment."""
        # The next state, result 1, overwrites argument 1.
        return lanes.mapped(self.env.step, {1: 1}, self._load())

    @property
    def step_ecn(self) -> Callable[..., Any]:
        """`step_ecn(key, state, ecn, params)` of the wrapped environment."""
        return lanes.mapped(cast(PortEnvironment, self.env).step_ecn, {1: 1}, self._load())

    def _load(self) -> Callable[..., Any] | None:
        """The environment's `load` as a function of a step's arguments; None if it has none."""
        load = getattr(self.env, "load", None)
        return None if load is None else lambda key, state, action, params: load(state)
