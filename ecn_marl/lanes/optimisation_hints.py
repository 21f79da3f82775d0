"""Hints in a program that make it faster; results are the same without them."""

from __future__ import annotations

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool

BUSY = "lanes: busy"
"""Name that marks a flag in a jaxpr."""


def busy(flag: Bool[Array, "*n"]) -> Bool[Array, "*n"]:
    """Mark a flag: where it is False, there is mostly nothing to do.

    Loops over `n` elements, or over several rows of `n`, skip the elements whose flag is False in
    all environments of a vector, if it can be proved that this changes nothing (`idle_analysis`).
    Where a flag without axes is False in all of them, whole loops are skipped. Results are the same
    with and without the mark. Code that is not compiled for lanes ignores it.

    Args:
        flag: which elements are busy, `[n]` or `[]`.

    Returns:
        The same flag. Use it in place of the argument: the mark is on the result, and unused
        results are not compiled.
    """
    # JAX's own name for values: a primitive that XLA, `vmap` and derivatives know already.
    return checkpoint_name(flag, BUSY)
