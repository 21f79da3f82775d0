"""Copies of environments that go on by themselves."""

from __future__ import annotations

import copy
from typing import TypeVar

Env = TypeVar("Env", bound="OwnCopies")


class OwnCopies:
    """For environments with a state: `copy.copy` copies the state, too, like `copy.deepcopy`.

    A shallow copy would share the stream of episodes, so a reset of one would change what the other
    meets next.
    """

    def __copy__(self: Env) -> Env:
        """A copy that shares nothing that changes."""
        return copy.deepcopy(self)
