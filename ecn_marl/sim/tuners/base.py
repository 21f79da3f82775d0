"""What all tuners share: checks of their constants, the port's rate as a scale, ramps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ecn_marl._errors import bad_value
from ecn_marl.sim.core.queues import Ecn
from ecn_marl.sim.state import NetParams, PortStats
from ecn_marl.sim.units import GBPS

BASE_GBPS = 25.0
"""Rate of the port that sizes in KB are for, Gb/s."""

SMALL, LARGE = 1e-9, 1e9
"""Bounds of every constant; values derived from them stay finite and distinct in float32."""


def port_scale(net: NetParams) -> Float[Array, " ports"]:
    """Link rate of every port over 25 Gb/s, `[P]`."""
    return jnp.asarray(net.port_rate) / (BASE_GBPS * GBPS)


@dataclass(frozen=True)
class Tuner(ABC):
    """Base class of tuners; constants are fields, all of them positive numbers.

    Raises:
        ValueError: a constant out of range.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the constants."""
        for name in self.constants():
            value = getattr(self, name)
            # The negation refuses NaN, too.
            if not SMALL <= value <= LARGE:
                raise bad_value(f"{self.name}: {name}", value, f"{SMALL:g} to {LARGE:g}")

    @classmethod
    def constants(cls) -> tuple[str, ...]:
        """Names of the constants."""
        # Annotations of tuners are strings (PEP 563).
        return tuple(f.name for f in fields(cls) if f.type == "float")

    @abstractmethod
    def init(self, net: NetParams) -> PyTree:
        """State at the start of an episode, a pytree of `[P]` arrays."""

    @abstractmethod
    def update(
        self, state: PyTree, stats: PortStats, net: NetParams, interval_us: float
    ) -> tuple[PyTree, Ecn]:
        """Thresholds for the next interval.

        Args:
            state: the tuner's state.
            stats: statistics of the interval that has ended, `[P]`; all zero at the start.
            net: the network.
            interval_us: length of the interval, µs.

        Returns:
            The new state, and thresholds in bytes, `[P]`.
        """

    def _at_most(self, low: str, high: str, share: float = 0.99) -> None:
        """Check that one constant is below another."""
        if not getattr(self, low) <= share * getattr(self, high):
            text = f"less than {high} = {getattr(self, high):g}"
            raise bad_value(f"{self.name}: {low}", getattr(self, low), text)

    def _probability(self, name: str) -> None:
        if not getattr(self, name) <= 1:
            raise bad_value(f"{self.name}: {name}", getattr(self, name), "a probability in (0, 1]")


@dataclass(frozen=True)
class Ramped(Tuner):
    """A tuner that keeps the slope of the ramp, by default that of SECN2.

    Attributes:
        kmax_over_kmin: `kmax / kmin`.
        pmax: marking probability at `kmax`.
    """

    kmax_over_kmin: float = 4.0
    pmax: float = 0.2

    def __post_init__(self) -> None:
        """Check the constants."""
        super().__post_init__()
        self._probability("pmax")
        if self.kmax_over_kmin < 1.01:
            name = f"{self.name}: kmax_over_kmin"
            raise bad_value(name, self.kmax_over_kmin, "Kmax / Kmin >= 1.01")

    def ramp(self, kmin: Float[Array, " ports"]) -> Ecn:
        """Thresholds for a `kmin` in bytes, `[P]`."""
        return Ecn(kmin, self.kmax_over_kmin * kmin, jnp.full_like(kmin, self.pmax))
