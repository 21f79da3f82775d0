"""Errors of the package: all are `EcnMarlError`, and also the built-in error of their kind.

    EcnMarlError
    ├── InvalidInput (ValueError)        something given that cannot be used; the message says why
    │   ├── InvalidValue                 a value that is not allowed: field, value, what is allowed
    │   │   └── TooLarge                 a size that memory or time would not bear
    │   └── UnknownName                  a name that there is not, with the nearest ones
    ├── DamagedFile (ValueError)         a file that is not what was written
    │   └── DamagedCheckpoint            a checkpoint; says which is the last good one
    ├── FolderInUse (OSError)            a run, benchmark or search that another process works on
    ├── ForkedProcess (RuntimeError)     JAX cannot compute in this process: it was forked
    └── TrainingDiverged (RuntimeError)  a metric or the state of training is not finite

Whoever caught `ValueError` or `OSError` before still does. The command line prints each in one
line and exits with code 2 (1 for training that diverged); `ecn-marl --debug` shows the traceback.
Any other error is a fault of the package: exit code 70, and its traceback is kept in a file.

This module imports nothing, so that catching an error costs nothing.
"""

from __future__ import annotations

LONGEST = 300
"""Characters of a value that a message shows."""


class EcnMarlError(Exception):
    """Base of all errors that the package raises on purpose."""


class InvalidInput(EcnMarlError, ValueError):
    """Something given that cannot be used: a file, a topology, a combination of values."""


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
        """The message, in one line, of values that are printed in several or at length, too."""
        value = repr(self.value)
        if "\n" in value:
            value = " ".join(value.split())
        if len(value) > LONGEST:
            value = f"{value[:LONGEST]}…"
        return f"{self.field} = {value} is not allowed: expected {self.allowed}"


class TooLarge(InvalidValue):
    """A size that memory or time would not bear; refused before anything is allocated."""


class UnknownName(InvalidInput):
    """A name that there is not; the message has the nearest ones."""


class DamagedFile(EcnMarlError, ValueError):
    """A file that is not what was written: cut short, changed, or of another kind."""


class DamagedCheckpoint(DamagedFile):
    """A checkpoint that is not what was saved; the message says which one is the last good one."""


class FolderInUse(EcnMarlError, OSError):
    """Another process works on the same run, benchmark or search."""


class ForkedProcess(EcnMarlError, RuntimeError):
    """A process that was forked after JAX was used; it would hang. Use `spawn`."""


class TrainingDiverged(EcnMarlError, RuntimeError):
    """A metric or the state of training is not finite."""


class VersionWarning(UserWarning):
    """What is loaded was made with other versions of jax or of this package."""
