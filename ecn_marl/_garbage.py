"""How often Python looks for garbage while programs are traced and compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (50_000, 10, 10)
"""Thresholds of `gc`. Programs that are traced are a million objects that stay: to look through
them again and again takes an eighth of the time until a command begins to work."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage less often within; also a decorator of functions."""
    before = gc.get_threshold()
    # Whoever has switched collection off, or made it rarer still, knows why.
    gc.set_threshold(max(before[0], SELDOM[0]) if before[0] else 0, *SELDOM[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
