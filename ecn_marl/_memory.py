"""Memory: what sizes need, checked before anything is allocated; what arrays have."""

from __future__ import annotations

import os
from functools import cache

import jax
from jaxtyping import PyTree

from ecn_marl.errors import TooLarge

GIB = 2.0**30

UNKNOWN = 64 * GIB
"""Memory that is assumed if the system does not report it."""


@cache
def machine_bytes() -> float:
    """Memory of this machine, bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * float(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows; names the system does not have
        return UNKNOWN


def check_memory(field: str, value: object, needed: float, contents: str) -> None:
    """Check that this machine has enough memory.

    Args:
        field: name of the field, or fields, that the size follows from.
        value: what was given.
        needed: an estimate from below of the memory, bytes.
        contents: what needs the memory.

    Raises:
        TooLarge: it is more than the machine has.
    """
    if needed > machine_bytes():
        allowed = f"less: {contents} would take about {in_words(needed)}"
        raise TooLarge(field, value, f"{allowed}, and this machine has {in_words(machine_bytes())}")


def in_words(size: float) -> str:
    """A number of bytes, e.g. `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024.0:
            return f"{size:.3g} {unit}"
        size /= 1024.0
    return f"{size:.3g} EiB"


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all arrays of a tree, or of their shapes."""
    return sum(int(leaf.size) * int(leaf.dtype.itemsize) for leaf in jax.tree.leaves(tree))
