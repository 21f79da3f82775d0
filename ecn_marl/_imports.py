"""Import of a user's files and modules that register something; runs record them.

    ecn-marl train my-algorithm --import my_file.py

`config.json` of a run has the origin of its registered names (`needed_imports`). So another process
can import the same (`restore_imports`), or say in one line what is missing.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ecn_marl._errors import bad_value, error_with_line
from ecn_marl._registry import GROUPS, IMPORTING, REGISTRIES, SCRIPT
from ecn_marl.errors import EcnMarlError, UnknownName

OPTION = "--import"

ALLOWED = "a module, or a file NAME.py, that can be imported"

_DONE: dict[str, ModuleType] = {}
"""Imported modules, by module name or absolute path."""


def import_extension(name: str) -> ModuleType:
    """Import a module or a file that registers something; once per process.

    Args:
        name: `my_package.my_module`, or `my_file.py`, which may import from its folder. A module of
            that name in the working folder is imported as a file.

    Raises:
        ValueError: it does not exist, or it raises an error when it is imported.
    """
    key = _key(name)
    if key in _DONE:
        return _DONE[key]
    IMPORTING.append(key)
    try:
        _DONE[key] = (
            _import_file(Path(key)) if key.endswith(".py") else importlib.import_module(key)
        )
    except EcnMarlError:  # its message already says what cannot be registered
        raise
    except Exception as error:  # whatever the user's own module may raise
        raise bad_value(OPTION, name, f"{ALLOWED} ({error_with_line(error, key)})") from error
    finally:
        IMPORTING.pop()
    return _DONE[key]


def imported() -> tuple[str, ...]:
    """Names of what `import_extension` has imported, for other processes to import."""
    return tuple(_DONE)


def _key(name: str) -> str:
    """The absolute path of a file, or the name of a module."""
    file = Path(name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
    if name.endswith(".py") or (not _is_module(name) and file.is_file()):
        if not file.is_file():
            raise bad_value(OPTION, name, f"{ALLOWED}: there is no such file")
        return str(file.resolve())
    return name


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _import_file(path: Path) -> ModuleType:
    """Import a file as a module, under a name that no other module has."""
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # true for any file that ends in .py
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: a file beside it must not hide a package
    module = module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def needed_imports(*facts: object) -> dict[str, list[str]]:
    """Origins of the registered names that some objects mention.

    Args:
        *facts: configuration of a run, a scenario; names in their `repr` count.

    Returns:
        By module, file or `SCRIPT`, the names that were registered there, as `KIND NAME`. Names of
        the package and of entry points are left out, because every process has them.
    """
    words = set(re.findall(r"[\w.+-]+", " ".join(map(repr, facts))))
    needed: dict[str, list[str]] = {}
    for kind, registry in REGISTRIES.items():
        for name, origin in registry.origin.items():
            if name in words:
                needed.setdefault(origin, []).append(f"{kind} {name}")
    return needed


def restore_imports(needed: Mapping[str, Sequence[str]], who: str, trusted: bool = True) -> None:
    """Import the modules and files that a run was made with, unless they are registered already.

    Args:
        needed: what `needed_imports` returned.
        who: name of the run in error messages.
        trusted: whether the modules and files that `needed` names may be imported. The file of a
            policy may come from anywhere, so what it needs must be registered already.

    Raises:
        UnknownName: something cannot be imported, or does not register what is needed.
    """
    for origin, names in needed.items():
        if not _unknown(names):  # another file or an entry point may have registered them
            continue
        reason = "it is no module" if origin.startswith(SCRIPT) else ""
        if not trusted:
            reason = "a file of a policy imports nothing by itself"
        if not reason:
            try:
                import_extension(origin)
            except ValueError as error:
                reason = str(error)
        missing = _unknown(names)
        if missing:
            script = origin.partition(":")[2] or "a notebook or an interactive session"
            place = script if origin.startswith(SCRIPT) else origin
            raise UnknownName(
                f"{who} needs {', '.join(missing)}, which {place} registered"
                f"{f' ({reason})' if reason else ''}: give {OPTION} MODULE_OR_FILE.py that does"
            )


def _unknown(names: Iterable[str]) -> list[str]:
    """Those of `KIND NAME` that are not registered."""
    pairs = [(text, *text.rpartition(" ")[::2]) for text in names]
    return [t for t, kind, name in pairs if kind not in REGISTRIES or name not in REGISTRIES[kind]]


def source_digests(needed: Iterable[str]) -> dict[str, str]:
    """Hashes of the files that registered something; an origin without a file has none."""
    digests = {}
    for origin in needed:
        path = origin.partition(":")[2] if origin.startswith(SCRIPT) else origin
        if not path.endswith(".py"):
            path = getattr(sys.modules.get(origin), "__file__", None) or ""
        if path and Path(path).is_file():
            digests[origin] = sha256(Path(path).read_bytes()).hexdigest()
    return digests


def added_names() -> dict[str, list[str]]:
    """Names that are not the package's, by kind; nothing is imported."""
    names: dict[str, list[str]] = {}
    for kind, group in GROUPS.items():
        registered = REGISTRIES[kind].registered if kind in REGISTRIES else ()
        installed = (point.name for point in entry_points(group=group))
        names[kind] = list(dict.fromkeys((*registered, *installed)))
    return {kind: entries for kind, entries in names.items() if entries}
