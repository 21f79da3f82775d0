"""Tables in Markdown, and what they read of docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in r) + " |" for r in lines)


def fields_of(docstring: str) -> dict[str, str]:
    """Names and descriptions of the `Attributes` of a docstring."""
    text = inspect.cleandoc(docstring)
    part = text.split("Attributes:\n", 1)[1]
    described: dict[str, str] = {}
    name = ""
    for line in part.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            described[name] = start[2]
        elif line.startswith(" " * 8) and name:
            described[name] += " " + line.strip()
    return described
