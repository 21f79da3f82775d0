"""Search spaces: distributions from which `ecn-marl tune` draws the settings of a trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ecn_marl._errors import bad_value


@dataclass(frozen=True)
class LogUniform:
    """A number between two ends, uniform in its logarithm.

    Attributes:
        low: smallest, above 0.
        high: largest.
        digits: significant digits that are kept.
    """

    low: float
    high: float
    digits: int = 2

    def __post_init__(self) -> None:
        """Check the ends."""
        if not 0.0 < self.low <= self.high < math.inf:
            raise bad_value("LogUniform", (self.low, self.high), "0 < low <= high")

    def draw(self, rng: np.random.Generator) -> float:
        """A number."""
        drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return float(f"{drawn:.{self.digits}g}")


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Attributes:
        values: the values, at least one.
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Check that there is something to choose from."""
        if not isinstance(self.values, tuple) or not self.values:
            raise bad_value("Choice", self.values, "a tuple of at least one value")

    def draw(self, rng: np.random.Generator) -> Any:
        """A value."""
        return self.values[int(rng.integers(len(self.values)))]


Space = Mapping[str, LogUniform | Choice]
"""Distribution of each setting."""
