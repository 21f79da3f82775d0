"""Spaces that JAX can sample from, as JaxMARL has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


@dataclass(frozen=True)
class Discrete:
    """Integers from 0 to n - 1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: Any = jnp.int32

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element."""
        return jax.random.randint(key, self.shape, 0, self.n, self.dtype)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.logical_and(x >= 0, x < self.n)


class MultiDiscrete:
    """Vectors of integers, entry i from 0 to `num_categories[i]` - 1."""

    dtype: Any = jnp.int32

    def __init__(self, num_categories: Sequence[int]) -> None:
        """Take the number of choices of every entry."""
        self.num_categories = np.asarray(num_categories, np.int32)
        self.shape = self.num_categories.shape

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element."""
        return jax.random.randint(key, self.shape, 0, self.num_categories, self.dtype)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.all(jnp.logical_and(x >= 0, x < self.num_categories))


@dataclass(frozen=True)
class Box:
    """Arrays of reals between two bounds."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: Any = jnp.float32

    def sample(self, key: jax.Array) -> Array:
        """A uniformly random element; standard normal if there are no bounds."""
        if not np.isfinite(self.low):
            return jax.random.normal(key, self.shape, self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: Any) -> Array:
        """Whether `x` is an element."""
        return jnp.logical_and(jnp.all(x >= self.low), jnp.all(x <= self.high))


def _space_classes() -> tuple[Any, Any, Any]:
    """JaxMARL's classes if it is installed: `CTRolloutManager` checks for these types."""
    try:
        spaces = import_module("jaxmarl.environments.spaces")
    except ImportError:
        return Discrete, MultiDiscrete, Box
    return spaces.Discrete, spaces.MultiDiscrete, spaces.Box


def translate(space: Any) -> Any:
    """A `Box`, `Discrete` or `MultiDiscrete` of gymnasium as one that JAX can sample from."""
    discrete, multi_discrete, box = _space_classes()
    if hasattr(space, "nvec"):
        return multi_discrete([int(n) for n in space.nvec])
    if hasattr(space, "n"):
        return discrete(int(space.n))
    return box(float(space.low.min()), float(space.high.max()), space.shape)
