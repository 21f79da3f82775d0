"""Errors for bad input; the message has the field, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from ecn_marl.errors import InvalidValue, UnknownName

MANY = 40
"""Names above which a message that has near ones does not list all."""


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> UnknownName:
    """Error for a name that is not registered, with the nearest ones.

    Args:
        kind: what is named, e.g. `scenario`.
        name: the unknown name.
        choices: the known names.
    """
    names = sorted(choices)
    near = get_close_matches(name, names, n=3, cutoff=0.4) if isinstance(name, str) else []
    if near and len(names) > MANY:
        known = f"{len(names)} are known"
    else:
        known = f"known: {', '.join(names)}"
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return UnknownName(f"unknown {kind} {name!r}: {hint}{known}")


def bad_value(field: str, value: object, allowed: str) -> InvalidValue:
    """Error for a value out of range.

    Args:
        field: name of the field.
        value: what was given.
        allowed: what is allowed.
    """
    return InvalidValue(field, value, allowed)


def error_with_line(error: Exception, file: str) -> str:
    """An error, and the line of the file that raised it."""
    position, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            position = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{position}"
