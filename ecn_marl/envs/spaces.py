"""Spaces that JAX can sample from: of all agents of a network, and of one.

Methods are those of gymnax and JaxMARL: `sample(key)`, `contains(x)`, `shape`, `dtype`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class Discrete:
    """Integers from 0 to n - 1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: DTypeLike = jnp.int32

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element."""
        return jax.random.randint(key, self.shape, 0, self.n, self.dtype)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.all(jnp.logical_and(x >= 0, x < self.n))


class MultiDiscrete:
    """Arrays of integers, entry i from 0 to `num_categories[i]` - 1."""

    dtype: DTypeLike = jnp.int32

    def __init__(self, num_categories: Sequence[int] | np.ndarray) -> None:
        """Take the number of choices of every entry."""
        self.num_categories = np.asarray(num_categories, np.int32)
        self.shape = self.num_categories.shape

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element."""
        return jax.random.randint(key, self.shape, 0, self.num_categories, self.dtype)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.all(jnp.logical_and(x >= 0, x < self.num_categories))


@dataclass(frozen=True, eq=False)  # arrays have no truth value to compare
class Box:
    """Arrays of reals between two bounds, or two for every entry."""

    low: float | np.ndarray
    high: float | np.ndarray
    shape: tuple[int, ...]
    dtype: DTypeLike = jnp.float32

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element; standard normal if there are no bounds."""
        if not np.isfinite(self.low).all():
            return jax.random.normal(key, self.shape, self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.logical_and(jnp.all(x >= self.low), jnp.all(x <= self.high))


Space: TypeAlias = Discrete | MultiDiscrete | Box


def of_agents(space: gymnasium.Space[Any], agents: int) -> Space:
    """The space of arrays that hold an element of `space` for every agent, `[A, *shape]`.

    Args:
        space: a `Box`, a `Discrete` or a `MultiDiscrete` of gymnasium: that of one agent.
        agents: number of agents A.
    """
    one: Any = space
    if hasattr(one, "nvec"):
        return MultiDiscrete(np.broadcast_to(one.nvec, (agents, *one.nvec.shape)))
    if hasattr(one, "n"):
        return Discrete(int(one.n), (agents,))
    return Box(*bounds(one), (agents, *one.shape))


def bounds(box: gymnasium.spaces.Box) -> tuple[float | np.ndarray, float | np.ndarray]:
    """Bounds of a `Box` of gymnasium: two numbers if all entries have the same, else arrays."""
    low, high = np.asarray(box.low), np.asarray(box.high)
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return float(low.flat[0]), float(high.flat[0])
    return low, high
