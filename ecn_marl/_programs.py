"""Compiled functions: shared by all users of the same key, and freed with the last user.

A compiled environment takes some 15 MB. Its users are weakly referenced, and the functions stay as
long as a user lives. The latest few programs without users stay as well, since the next environment
is often the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

Key = TypeVar("Key", bound=Hashable)

KEPT = 8
"""Number of programs that stay without users."""


class Program(Generic[Key]):
    """The functions compiled for a key."""

    def __init__(self, key: Key, functions: tuple[Callable[..., Any], ...]) -> None:
        self.key, self.functions = key, functions


class Programs(Generic[Key]):
    """Compiled functions by key."""

    def __init__(
        self, build: Callable[[Key], tuple[Callable[..., Any], ...]], keep: int = KEPT
    ) -> None:
        """Compile nothing yet.

        Args:
            build: makes the functions of a key.
            keep: number of programs that stay without users.
        """
        self._build, self._keep = build, keep
        self._users: WeakKeyDictionary[Any, Program[Key]] = WeakKeyDictionary()
        self._alive: WeakValueDictionary[Key, Program[Key]] = WeakValueDictionary()
        self._latest: OrderedDict[Key, Program[Key]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of programs, with and without users."""
        return len(self._alive)

    def of(self, key: Key, user: object = None) -> tuple[Callable[..., Any], ...]:
        """The functions of a key.

        Args:
            key: key of the functions.
            user: object that keeps them alive until it is deleted or uses another key; None for
                none.
        """
        # Users ask before every step. `is` is faster than `==` of nested dataclasses.
        current = None if user is None else self._users.get(user)
        if current is not None and current.key is key:
            return current.functions
        with self._lock:  # also while building: two threads must not compile the same program
            program = self._alive.get(key)
            if program is None:
                program = self._alive[key] = Program(key, self._build(key))
            self._latest[key] = program
            self._latest.move_to_end(key)
            while len(self._latest) > self._keep:
                self._latest.popitem(last=False)
            if user is not None:
                self._users[user] = program
        return program.functions
