"""Errors of the package: all are `EcnMarlError`, and also the built-in error of their kind.

    EcnMarlError
    ├── InvalidInput (ValueError)        unusable input; the message says why
    │   ├── InvalidValue                 a value that is not allowed: field, value, what is allowed
    │   │   └── TooLarge                 a size that needs too much memory or time
    │   └── UnknownName                  an unknown name, with the nearest known ones
    ├── DamagedFile (ValueError)         a file that differs from what was written
    │   └── DamagedCheckpoint            a checkpoint; says which is the last good one
    ├── FolderInUse (OSError)            a run, benchmark or search that another process works on
    ├── ForkedProcess (RuntimeError)     JAX cannot compute in this process: it was forked
    ├── TrainingDiverged (RuntimeError)  a metric or the state of training is not finite
    └── BrokenInvariant (RuntimeError)   a simulation broke a law of networks: our fault

Code that catches `ValueError` or `OSError` catches these as well. The command line prints each in
one line and exits with code 2 (1 for training that diverged); `ecn-marl --debug` shows the
traceback. Any other error is a fault of the package: exit code 70, and its traceback is written to
a file.

This module imports nothing, so that it is cheap to import for an `except`.
"""

from __future__ import annotations

LONGEST = 300
"""Characters of a value that a message shows."""


class EcnMarlError(Exception):
    """Base of all errors that the package raises on purpose."""


class InvalidInput(EcnMarlError, ValueError):
    """Unusable input: a file, a topology, a combination of values."""


class InvalidValue(InvalidInput):
    """A value that is not allowed.

    Attributes:
        field: name of the field.
        value: what was given.
        allowed: what is allowed.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        """The message in one line; long values are cut and line breaks are removed."""
        value = repr(_plain(self.value))
        if "\n" in value:
            value = " ".join(value.split())
        if len(value) > LONGEST:
            value = f"{value[:LONGEST]}…"
        return f"{self.field} = {value} is not allowed: expected {self.allowed}"


def _plain(value: object) -> object:
    """A value whose numpy and JAX scalars are numbers of Python: `0.0`, not `np.float64(0.0)`."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):  # no named tuples
        parts = [_plain(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if type(value) is dict:
        return {_plain(name): _plain(part) for name, part in value.items()}
    item = getattr(value, "item", None)
    if callable(item) and hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        try:
            return item()
        except (TypeError, AttributeError):  # traced numbers, which are not known yet, and keys
            return value
    return value


class TooLarge(InvalidValue):
    """A size that needs too much memory or time; raised before anything is allocated."""


class UnknownName(InvalidInput):
    """An unknown name; the message has the nearest known ones."""


class DamagedFile(EcnMarlError, ValueError):
    """A file that differs from what was written: truncated, changed, or of another kind."""


class DamagedCheckpoint(DamagedFile):
    """A checkpoint that differs from what was saved; the message names the last good one."""


class FolderInUse(EcnMarlError, OSError):
    """Another process works on the same run, benchmark or search."""


class ForkedProcess(EcnMarlError, RuntimeError):
    """A process that was forked after JAX was used; it would hang. Use `spawn`."""


class TrainingDiverged(EcnMarlError, RuntimeError):
    """A metric or the state of training is not finite."""


class BrokenInvariant(EcnMarlError, RuntimeError):
    """A simulation broke a law that holds in every network: a fault of the package."""


class VersionWarning(UserWarning):
    """The loaded file was made with other versions of jax or of this package."""
