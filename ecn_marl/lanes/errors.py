"""Errors of this package, which imports none of the package around it."""

from __future__ import annotations


class Unsupported(Exception):
    """The program uses something that cannot be compiled for lanes; the message says what.

    Not a ValueError: the program is not at fault, and XLA runs it instead.
    """


class InvalidValue(ValueError):
    """A value that is not allowed.

    Attributes:
        field: name of the field.
        value: the value.
        allowed: the values that are allowed, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(field, value, allowed)
        self.field, self.value, self.allowed = field, value, allowed

    def __str__(self) -> str:
        """The message, in one line."""
        return f"{self.field} = {self.value!r} is not allowed: expected {self.allowed}"
