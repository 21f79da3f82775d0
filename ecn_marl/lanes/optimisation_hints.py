"""What a program may say about itself."""

from __future__ import annotations

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool

BUSY = "lanes: busy"


def busy(flag: Bool[Array, "*n"]) -> Bool[Array, "*n"]:
    """The same flag; says that where it is False there is mostly nothing to do.

    Loops over `n` elements (or over several rows of `n`) pass over those that are False in all
    environments of a vector, wherever it can be proved that this changes nothing (`idle`). A flag
    without axes is for all that only serves when it is True. Results are the same with and without;
    outside lanes nothing happens.

    Args:
        flag: which elements are busy, `[n]` or `[]`. Use the result, not the argument: what is not
            needed is not looked at.
    """
    return checkpoint_name(flag, BUSY)
