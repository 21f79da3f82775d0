"""Normalisation of value targets by their running mean and standard deviation.

Yu et al. ("The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", NeurIPS'22,
section 5.1) find that it never hurts and often decides. The critic predicts `(V - mean) / std`; its
outputs are denormalised before advantages are estimated. The averages decay exponentially and are
corrected for their start at 0, as Adam's are.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from ecn_marl._types import Leaf

STD_MIN = 1e-2
"""Smallest standard deviation, for rewards in [0, 1]. Where all returns are equal, dividing by less
would magnify rounding errors."""


@struct.dataclass
class ValueNorm:
    """Decaying averages of the targets so far; scalars.

    Attributes:
        first: average of the targets.
        second: average of their squares.
        weight: average of 1, which corrects both.
    """

    first: Leaf
    second: Leaf
    weight: Leaf

    @classmethod
    def create(cls) -> ValueNorm:
        """No targets yet: normalises by mean 0 and standard deviation 1."""
        zero = jnp.zeros((), jnp.float32)
        return cls(zero, zero, zero)

    def updated(self, target: Float[Array, "*b"], decay: float) -> ValueNorm:
        """After a batch of targets, of which earlier ones count `decay` times as much."""
        return ValueNorm(
            decay * self.first + (1.0 - decay) * target.mean(),
            decay * self.second + (1.0 - decay) * (target**2).mean(),
            decay * self.weight + (1.0 - decay),
        )

    def _moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation."""
        any_target = self.weight > 0.0
        # Before the first targets all averages are 0: 0 / 0.
        weight = jnp.where(any_target, self.weight, 1.0)
        mean = self.first / weight
        # For nearly equal targets the difference cancels, and rounding can make it negative.
        variance = jnp.maximum(self.second / weight - mean**2, STD_MIN**2)
        return mean, jnp.where(any_target, jnp.sqrt(variance), 1.0)

    def normalise(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Values or targets in units of the standard deviation."""
        mean, std = self._moments()
        return (x - mean) / std

    def restore(self, x: Float[Array, "*b"]) -> Float[Array, "*b"]:
        """Outputs of the critic as values."""
        mean, std = self._moments()
        return x * std + mean
