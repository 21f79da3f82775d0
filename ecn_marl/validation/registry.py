"""All comparisons. A new one is a function that yields cases, listed in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch

from ecn_marl._errors import bad_value
from ecn_marl.validation import (
    closed_loop,
    endurance,
    fat_tree,
    incast,
    leaf_spine,
    messages,
    substeps,
    theory,
)
from ecn_marl.validation.lines import Case

SOURCES: list[Callable[[], Iterable[Case]]] = [
    theory.cases,
    fat_tree.cases,
    incast.cases,
    messages.cases,
    leaf_spine.cases,
    closed_loop.cases,
    substeps.cases,
    endurance.cases,
]


def cases() -> list[Case]:
    """All cases in the order of the table."""
    return [case for source in SOURCES for case in source()]


def select(only: str | None = None, quick: bool = False, long: bool = False) -> list[Case]:
    """Cases to run.

    Args:
        only: part of a case's name, or a pattern with `*`; None for all.
        quick: only those that are quick.
        long: only the long ones, which are left out otherwise.

    Raises:
        ValueError: no case fits.
    """
    if quick and long:
        raise bad_value("--quick", quick, "not used with --long: no case is both")
    everything = [case for case in cases() if case.long == long and (case.quick or not quick)]
    pattern = None if only is None else only.lower()
    selected = [
        case
        for case in everything
        if pattern is None or pattern in case.name or fnmatch(case.name, pattern)
    ]
    if not selected:
        names = ", ".join(case.name for case in everything)
        raise bad_value("--only", only, f"part of one of: {names}")
    return selected
