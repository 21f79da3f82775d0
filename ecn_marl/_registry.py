"""Objects by name: those of the package, those that a program registers, those of other packages.

Every kind of named object (algorithm, feature, reward, transport, source, size table, scenario) has
one `Registry`. It looks a name up in this order:

* objects of the package; their names cannot be taken;
* objects registered with `ecn_marl.register_…`, by the program or by a file of `--import`;
* entry points of installed packages, in the groups of `GROUPS`. The entry point has the name, and
  its object is what the function `ecn_marl.register_…` of its kind takes.

This module imports only the errors of the package, so that importing it is cheap.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from ecn_marl._errors import bad_value, unknown_name

T = TypeVar("T")

GROUPS = {
    "algorithm": "ecn_marl.algorithms",
    "feature set or feature": "ecn_marl.features",
    "reward": "ecn_marl.rewards",
    "transport": "ecn_marl.transports",
    "traffic source": "ecn_marl.sources",
    "flow-size table": "ecn_marl.size_tables",
    "scenario": "ecn_marl.scenarios",
}
"""Kinds of objects that can be registered, and their groups of entry points."""

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
"""Allowed names: they are parts of command lines, of file names and of lists with commas."""

SCRIPT = "__main__"
"""Origin of objects that a script or notebook registers; a script's path follows after a colon."""

REGISTRIES: dict[str, Registry[Any]] = {}
"""All registries, by kind."""

IMPORTING: list[str] = []
"""Modules and files being imported for `--import`, innermost last: origins of their objects."""


class Registry(Generic[T]):
    """Objects of one kind by name.

    Attributes:
        kind: kind of the objects, a key of `GROUPS`.
        group: group of entry points, e.g. `ecn_marl.rewards`.
        builtin: objects of the package.
        registered: registered objects, in order.
        origin: where each of these was registered: a module, the path of a file, or `SCRIPT`.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T],
        convert: Callable[[str, Any], T],
        reserved: Iterable[str] = (),
    ) -> None:
        """A registry with the objects of the package only.

        Args:
            kind: kind of the objects, a key of `GROUPS`.
            builtin: objects of the package; later additions to this mapping count.
            convert: `(name, object) -> stored object`; raises a ValueError for unusable objects.
            reserved: further names that cannot be taken.
        """
        self.kind, self.group, self.builtin = kind, GROUPS[kind], builtin
        self.registered: dict[str, T] = {}
        self.origin: dict[str, str] = {}
        self._convert, self._reserved = convert, frozenset(reserved)
        self._loaded: dict[str, T] = {}
        REGISTRIES[kind] = self

    def register(self, name: str, obj: object, replace: bool = False) -> None:
        """Register an object; registering it again changes nothing.

        Args:
            name: letters, digits and `. _ + -`.
            obj: what `convert` takes.
            replace: whether to replace another object registered under this name, for notebooks,
                where a cell runs again. Objects of the package cannot be replaced.

        Raises:
            ValueError: the name is taken, or the object cannot be used.
        """
        self.check_name(name)
        converted = self._convert(name, obj)
        if name in self.registered and not replace and self.registered[name] != converted:
            allowed = "a new name, or replace=True: another object is registered under this one"
            raise bad_value(f"{self.kind} name", name, allowed)
        self.registered[name] = converted
        self.origin[name] = _origin()

    def check_name(self, name: object) -> None:
        """Raise a ValueError unless something may be registered under this name."""
        field = f"{self.kind} name"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise bad_value(field, name, "letters, digits and . _ + -, e.g. my-own")
        if name in self.builtin or name in self._reserved:
            raise bad_value(field, name, "a new name: this one belongs to the package")

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """Entry points of the group, by name."""
        points: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            other = points.get(point.name)
            if point.name in self.builtin or point.name in self._reserved or other is not None:
                owner = "the package" if other is None else other.value
                unused = f"entry point {point.value} is not used"
                reason = f"{self.kind} {point.name!r} belongs to {owner}"
                warnings.warn(f"{unused}: {reason}", UserWarning, stacklevel=2)
            else:
                points[point.name] = point
        return points

    def __getitem__(self, name: str) -> T:
        """The object of a name.

        Raises:
            UnknownName: there is none; the message has the nearest names.
        """
        for objects in (self.builtin, self.registered, self._loaded):
            if name in objects:
                return objects[name]
        if not isinstance(name, str) or name not in self._installed:
            raise unknown_name(self.kind, name, self)
        point = self._installed[name]
        try:
            obj = point.load()
        except Exception as error:  # whatever the module of another package may raise
            allowed = f"an entry point that can be loaded ({type(error).__name__}: {error})"
            raise bad_value(f"{self.kind} {name!r}", point.value, allowed) from error
        self._loaded[name] = self._convert(name, obj)  # later uses do not import it again
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is an object of this name; nothing is loaded."""
        return name in self.builtin or name in self.registered or name in self._installed

    def __iter__(self) -> Iterator[str]:
        """All names: those of the package first, in its order."""
        return iter(dict.fromkeys((*self.builtin, *self.added)))

    def __len__(self) -> int:
        """Number of names."""
        return len(tuple(iter(self)))

    @property
    def added(self) -> tuple[str, ...]:
        """Names that are not the package's."""
        return tuple(dict.fromkeys((*self.registered, *self._installed)))


def missing_members(obj: object, names: Iterable[str]) -> tuple[str, ...]:
    """The attributes and methods of `names` that an object or a class lacks."""
    return tuple(name for name in names if not hasattr(obj, name))


def _origin() -> str:
    """The module or file that registers something: the first caller outside of the package."""
    if IMPORTING:
        return IMPORTING[-1]
    frame = sys._getframe(1)  # not `inspect.stack`, which reads the source of every frame
    while frame.f_back is not None and _is_ours(frame.f_globals):
        frame = frame.f_back
    name, file = str(frame.f_globals.get("__name__")), frame.f_globals.get("__file__")
    if name != SCRIPT:
        return name
    return SCRIPT if file is None else f"{SCRIPT}:{Path(file).resolve()}"


def _is_ours(module: Mapping[str, object]) -> bool:
    """Whether a frame's module is of this package or of the type checkers used in its tests."""
    top = str(module.get("__name__", "ecn_marl")).partition(".")[0]
    return top in ("ecn_marl", "beartype", "jaxtyping")
