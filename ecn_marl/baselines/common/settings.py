"""Checks that the settings of trainers have in common."""

from __future__ import annotations

from typing import Any

from ecn_marl._errors import bad_value


def at_least_one(settings: Any, *names: str) -> None:
    """Check counts.

    Raises:
        ValueError: one of the settings named is below 1.
    """
    for name in names:
        if getattr(settings, name) < 1:
            raise bad_value(name, getattr(settings, name), "an integer >= 1")


def shares(settings: Any, *names: str) -> None:
    """Check probabilities, discounts and the like.

    Raises:
        ValueError: one of the settings named is not in [0, 1].
    """
    for name in names:
        if not 0.0 <= getattr(settings, name) <= 1.0:
            raise bad_value(name, getattr(settings, name), "a number in [0, 1]")


def positive(settings: Any, *names: str) -> None:
    """Check rates and bounds.

    Raises:
        ValueError: one of the settings named is not above 0.
    """
    for name in names:
        if not getattr(settings, name) > 0.0:
            raise bad_value(name, getattr(settings, name), "a number > 0")


def not_negative(settings: Any, *names: str) -> None:
    """Check weights and tolerances.

    Raises:
        ValueError: one of the settings named is below 0.
    """
    for name in names:
        if not getattr(settings, name) >= 0.0:
            raise bad_value(name, getattr(settings, name), "a number >= 0")
