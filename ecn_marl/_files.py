"""Atomic writing of files, and JSON that every reader accepts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ecn_marl._errors import bad_value


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of writing, e.g. to "No space left on device"."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


class Output(NamedTuple):
    """Content that is written in parts: `write` gets the file opened in `mode` (`w` or `wb`)."""

    mode: str
    write: Callable[[Any], object]


def check_output(option: str, path: Path) -> None:
    """Raise a ValueError if no file can be written at `path`; for use before long computations."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise bad_value(option, str(path), "a file in a directory that exists")
    if not os.access(path.resolve().parent, os.W_OK):
        raise bad_value(option, str(path), "a file in a directory that may be written to")


def check_output_folder(option: str, path: Path) -> None:
    """Raise a ValueError if `path` is not a folder and none can be created there."""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise bad_value(option, str(path), f"a folder, old or new ({place} is a file)")
    if not os.access(place, os.W_OK):
        raise bad_value(option, str(path), f"a folder that may be written to ({place} may not)")


def write_all(outputs: Mapping[Path, str | bytes | Output]) -> None:
    """Write files under temporary names beside their places, then rename them all.

    Args:
        outputs: the files, and the content of each.

    Raises:
        OSError: a file cannot be written. Then no file has been created or changed.
    """
    ready: list[tuple[Path, Path]] = []
    try:
        for path, content in outputs.items():
            mode, write = content if isinstance(content, Output) else output(content)
            # In the same folder, because renaming is atomic only within one file system.
            draft = path.with_name(f".{path.name}.{os.getpid()}.part")
            ready.append((draft, path))  # before it is opened, so that a partial file is removed
            encoding = None if "b" in mode else "utf-8"
            with naming(path), open(draft, mode, encoding=encoding) as file:
                write(file)
        for draft, path in ready:
            os.replace(draft, path)
    finally:
        for draft, _ in ready:
            draft.unlink(missing_ok=True)  # after an error; renamed ones are gone


def output(content: str | bytes) -> Output:
    """A text or binary file with this content."""
    return Output("w" if isinstance(content, str) else "wb", lambda file: file.write(content))


def json_text(tree: object, compact: bool = False) -> str:
    """A tree of dicts and lists as JSON, `null` for numbers that JSON does not have.

    Args:
        tree: the tree.
        compact: in one line without spaces, for large files, instead of one value per line.
    """
    form: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    return json.dumps(without_nan(tree), allow_nan=False, **form)


def with_lists(tree: object) -> Any:
    """The same tree as it is read back from JSON, with lists for tuples."""
    if isinstance(tree, Mapping):
        return {name: with_lists(x) for name, x in tree.items()}
    return [with_lists(x) for x in tree] if isinstance(tree, list | tuple) else tree


def without_nan(tree: object) -> Any:
    """The same tree with `None` for numbers that are not finite."""
    if isinstance(tree, dict):
        return {key: without_nan(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nan(value) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
