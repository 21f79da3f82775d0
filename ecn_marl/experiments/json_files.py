"""JSON files of results and the requests that they answer; every file is written whole or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ecn_marl._files import json_text, write_all


def json_types(
    facts: Mapping[str, object], default: Callable[[object], str] | None = None
) -> dict[str, Any]:
    """Facts with the types that JSON has, as they will be read back from a file.

    A request in memory has tuples where the stored one has lists, and would never equal it.

    Args:
        facts: the facts.
        default: makes a text of what JSON does not have.

    Raises:
        TypeError: without `default`, something that JSON does not have.
    """
    plain: dict[str, Any] = json.loads(json.dumps(facts, default=default))
    return plain


def save_json(file: Path, tree: object) -> None:
    """Write a tree of dicts and lists; numbers that are not finite become null."""
    write_all({file: json_text(tree) + "\n"})
