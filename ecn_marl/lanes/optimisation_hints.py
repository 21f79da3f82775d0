"""What a program may say about itself so that it runs faster; results are the same without."""

from __future__ import annotations

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool

BUSY = "lanes: busy"
"""Name that marks a flag in a jaxpr."""


def busy(flag: Bool[Array, "*n"]) -> Bool[Array, "*n"]:
    """The same flag; says that where it is False there is mostly nothing to do.

    Loops over `n` elements (or over several rows of `n`) skip those that are False in all
    environments of a vector, wherever it can be proved that this changes nothing (see
    `idle_analysis`). A flag without axes stands for everything that only serves when it is True.
    Results are the same with and without it. Outside lanes nothing happens.

    Args:
        flag: which elements are busy, `[n]` or `[]`. Use the result, not the argument: the mark is
            on the result, and what nothing uses is not compiled.
    """
    return checkpoint_name(flag, BUSY)
