"""Checks that the settings of trainers have in common."""

from __future__ import annotations

from ecn_marl._checks import Each, Real, Rule, Whole, check_value
from ecn_marl._errors import bad_value

WIDEST = 2**16
"""Largest number of units of a layer."""


def _all(settings: object, names: tuple[str, ...], rule: Rule) -> None:
    for name in names:
        check_value(name, getattr(settings, name), rule)


def at_least_one(settings: object, *names: str) -> None:
    """Check counts.

    Raises:
        ValueError: one of the settings named is no integer, or below 1.
    """
    _all(settings, names, Whole(low=1, high=2**53))


def shares(settings: object, *names: str) -> None:
    """Check probabilities, discounts and the like.

    Raises:
        ValueError: one of the settings named is not in [0, 1].
    """
    for name in names:
        if not Real(low=0.0, high=1.0).fits(getattr(settings, name)):
            raise bad_value(name, getattr(settings, name), "a number in [0, 1]")


def positive(settings: object, *names: str, infinite: bool = False) -> None:
    """Check rates and bounds.

    Raises:
        ValueError: one of the settings named is not above 0; or infinite, unless that is allowed.
    """
    _all(settings, names, Real(above=0.0, infinite=infinite))


def not_negative(settings: object, *names: str) -> None:
    """Check weights and tolerances.

    Raises:
        ValueError: one of the settings named is below 0, or infinite.
    """
    _all(settings, names, Real(low=0.0))


def widths(settings: object, *names: str, least: int = 0) -> None:
    """Check widths of hidden layers.

    Raises:
        ValueError: one is no integer from 1 to `WIDEST`, or there are fewer layers than `least`.
    """
    _all(settings, names, Each(Whole(low=1, high=WIDEST), least=least))
