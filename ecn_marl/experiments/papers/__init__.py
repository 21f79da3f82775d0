"""Suites of papers: their cells, their claims, and our measurements."""

from __future__ import annotations

from collections.abc import Callable

from ecn_marl._errors import unknown_name
from ecn_marl.experiments.papers import acc, haecn, pet, readings
from ecn_marl.experiments.papers.suite import Suite

SUITES: dict[str, Callable[[bool], Suite]] = {
    "pet": pet.suite,
    "acc": acc.suite,
    "haecn": haecn.suite,
    "readings": readings.suite,
}
"""Functions that make the suite of a paper, small or full."""


def suite(name: str, small: bool) -> Suite:
    """The suite of a paper.

    Args:
        name: name in `SUITES`.
        small: whether it is the small one.

    Raises:
        ValueError: unknown name.
    """
    if name not in SUITES:
        raise unknown_name("paper", name, SUITES)
    return SUITES[name](small)
