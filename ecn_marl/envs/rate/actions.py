"""Actions of a flow's agent: the factor by which its rate is multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ecn_marl._errors import bad_value, unknown_name

if TYPE_CHECKING:
    import gymnasium

FACTORS = (0.8, 0.95, 1.0, 1.05, 1.1, 1.2)
"""Factors to choose from. The text of the paper lost its list; ours spans the same range."""


@dataclass(frozen=True)
class ContinuousFactor:
    """The factor itself, float32 (Tessler et al., §5.1: from 0.8 to 1.2).

    Attributes:
        low: smallest factor.
        high: largest factor.
    """

    name: ClassVar[str] = "continuous"
    dtype: ClassVar[type[np.generic]] = np.float32
    shape: ClassVar[tuple[int, ...]] = ()

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0.0 < self.low < 1.0 < self.high < np.inf:
            raise bad_value("low, high", (self.low, self.high), "0 < low < 1 < high")

    def factor(self, action: Float[Array, " flows"]) -> Float[Array, " flows"]:
        """Factors of all flows; values out of range are clipped, NaN counts as 1 (no change)."""
        valid = jnp.where(jnp.isnan(action), 1.0, action)
        return jnp.clip(valid, self.low, self.high)

    def sample(self, key: jax.Array, flows: int) -> Float[Array, " flows"]:
        """Uniformly random actions."""
        return jax.random.uniform(key, (flows,), jnp.float32, self.low, self.high)

    def gymnasium_space(self) -> gymnasium.spaces.Box:
        """A new space of one agent's actions."""
        from gymnasium import spaces

        return spaces.Box(self.low, self.high, (), np.float32)

    def check(self, agent: str, action: object) -> float:
        """An action from outside.

        Raises:
            ValueError: it is no number in the range.
        """
        value = np.asarray(action)
        # Limits are rounded as actions are: the float32 nearest to 1.2 is above 1.2.
        low, high = np.float32(self.low), np.float32(self.high)
        fine = value.shape == () and value.dtype.kind in "fiu"
        if not (fine and low <= value.astype(np.float32) <= high):
            raise bad_value(f"action of {agent}", action, f"a factor in [{self.low}, {self.high}]")
        return float(value)


@dataclass(frozen=True)
class DiscreteFactor:
    """The number of a factor in a list, int32.

    Attributes:
        factors: the factors to choose from, increasing.
    """

    name: ClassVar[str] = "discrete"
    dtype: ClassVar[type[np.generic]] = np.int32
    shape: ClassVar[tuple[int, ...]] = ()

    factors: tuple[float, ...] = FACTORS

    def __post_init__(self) -> None:
        """Check the list."""
        factors = tuple(float(f) for f in self.factors)
        if len(factors) < 2 or not all(a < b for a, b in pairwise((0.0, *factors, np.inf))):
            raise bad_value("factors", self.factors, "two or more increasing factors > 0")
        object.__setattr__(self, "factors", factors)

    def factor(self, action: Int[Array, " flows"]) -> Float[Array, " flows"]:
        """Factors of all flows; numbers out of range are clipped."""
        table = jnp.asarray(self.factors, jnp.float32)
        return table[jnp.clip(action, 0, len(self.factors) - 1)]

    def sample(self, key: jax.Array, flows: int) -> Int[Array, " flows"]:
        """Uniformly random actions."""
        return jax.random.randint(key, (flows,), 0, len(self.factors), jnp.int32)

    def gymnasium_space(self) -> gymnasium.spaces.Discrete:
        """A new space of one agent's actions."""
        from gymnasium import spaces

        return spaces.Discrete(len(self.factors))

    def check(self, agent: str, action: object) -> int:
        """An action from outside.

        Raises:
            ValueError: it is no integer of the list.
        """
        value = np.asarray(action)
        n = len(self.factors)
        if value.shape != () or value.dtype.kind not in "iu" or not 0 <= value < n:
            raise bad_value(f"action of {agent}", action, f"an integer in [0, {n - 1}]")
        return int(value)


Factor = ContinuousFactor | DiscreteFactor
"""Kinds of actions."""

ACTIONS: dict[str, type[Factor]] = {kind.name: kind for kind in (ContinuousFactor, DiscreteFactor)}


def factor_codec(actions: str | Factor) -> Factor:
    """Actions by name, or as they are.

    Raises:
        ValueError: an unknown name.
    """
    if not isinstance(actions, str):
        return actions
    if actions not in ACTIONS:
        raise unknown_name("actions", actions, ACTIONS)
    return ACTIONS[actions]()
