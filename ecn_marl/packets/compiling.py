"""How functions of this package are compiled: by Numba, once, and kept in its cache."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from inspect import unwrap
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

HERE = Path(__file__).parent

CONSTANTS = tuple(
    HERE.parent / "sim" / name
    for name in (
        *("core/lifecycle.py", "core/queues.py", "traffic/sizes.py"),
        *("transports/dctcp.py", "transports/swift.py"),
    )
)
"""Files of the simulator whose numbers are compiled in."""

SOURCES = sha256(b"".join(p.read_bytes() for p in (*sorted(HERE.glob("*.py")), *CONSTANTS)))
"""Changes with every change of this package, and of those files."""

# Tables come from Python, which holds them: to count references to them as well would take half of
# the time. Nothing here makes an array.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}

# Only what Python calls is kept in the cache. The rest is compiled with it: one kept by itself
# would hold code of other files as they were.


# `unwrap`: tests wrap every function of the package to check types, which Numba cannot compile.


def compiled(function: F) -> F:
    """Compile a function that Python calls.

    Numba keeps it until its own file changes, though most of what it does is in others. Its key
    includes values that a function closes over, so each is given the hash of all sources.
    """
    function = unwrap(function)
    code = function.__code__.replace(co_freevars=("sources",))
    cells = (CellType(SOURCES.hexdigest()),)
    keyed = FunctionType(code, function.__globals__, function.__name__, None, cells)
    keyed.__doc__, keyed.__qualname__ = function.__doc__, function.__qualname__
    keyed.__module__ = function.__module__
    made: F = njit(**OPTIONS, cache=True)(keyed)
    return made


def called(function: F) -> F:
    """Compile a function that compiled ones call with a few arguments."""
    made: F = njit(**OPTIONS)(unwrap(function))
    return made


def inlined(function: F) -> F:
    """Compile a function into its callers.

    A call that hands a `Network` on copies the addresses and sizes of all its tables, which takes
    longer than most of what is called. So the loop over events is one function after all.
    """
    made: F = njit(**OPTIONS, forceinline=True)(unwrap(function))
    return made
