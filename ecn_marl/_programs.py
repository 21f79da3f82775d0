"""Compiled functions: shared by all who need the same ones, and freed with the last of them.

A compiled environment takes some 15 MB. Whoever uses one is known (weakly), so that its functions
stay for as long as it lives; of those that nobody uses any more the latest few stay, since the next
environment is often the same again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

Key = TypeVar("Key", bound=Hashable)

KEPT = 8
"""Programs that stay although nobody uses them."""


class Program(Generic[Key]):
    """What was compiled for a key."""

    def __init__(self, key: Key, functions: tuple[Callable[..., Any], ...]) -> None:
        self.key, self.functions = key, functions


class Programs(Generic[Key]):
    """Compiled functions by what they were compiled for."""

    def __init__(
        self, build: Callable[[Key], tuple[Callable[..., Any], ...]], keep: int = KEPT
    ) -> None:
        """Compile nothing yet.

        Args:
            build: makes the functions of a key.
            keep: programs that stay although nobody uses them.
        """
        self._build, self._keep = build, keep
        self._users: WeakKeyDictionary[Any, Program[Key]] = WeakKeyDictionary()
        self._alive: WeakValueDictionary[Key, Program[Key]] = WeakValueDictionary()
        self._latest: OrderedDict[Key, Program[Key]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Programs that are kept, whether somebody uses them or not."""
        return len(self._alive)

    def of(self, key: Key, user: Any = None) -> tuple[Callable[..., Any], ...]:
        """The functions of a key.

        Args:
            key: what they are for.
            user: object that they stay for as long as it lives, or asks for those of another key;
                None for nobody.
        """
        held = None if user is None else self._users.get(user)
        if held is not None and held.key is key:
            return held.functions
        with self._lock:
            found = self._alive.get(key)
            if found is None:
                found = self._alive[key] = Program(key, self._build(key))
            self._latest[key] = found
            self._latest.move_to_end(key)
            while len(self._latest) > self._keep:
                self._latest.popitem(last=False)
            if user is not None:
                self._users[user] = found
        return found.functions
