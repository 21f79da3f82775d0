"""Lines of text files, numbers with units as ns-3 writes them, and kinds of files."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.traffic.trace import Place, opened

BITS = {"bps": 1, "b/s": 1, "Bps": 8, "B/s": 8}
"""Units of rates, bits/s."""

SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""Prefixes of units of rates."""

SECONDS = {"s": "1", "ms": "1e-3", "us": "1e-6", "ns": "1e-9", "ps": "1e-12"}
"""Units of times, seconds."""

MOST_SECONDS = Decimal(10**6)
"""Latest time that is read, s: eleven days."""

UNREADABLE = (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a file raises that is no text, or cut off."""

RATE = re.compile(rf"([0-9.eE+]+)([{''.join(SCALES)}]?)({'|'.join(BITS)})?")
TIME = re.compile(rf"([0-9.eE+-]+?)({'|'.join(SECONDS)})?")


def text_lines(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Words of every line that is neither empty nor a comment (`#`), and its position.

    Args:
        path: a text file, plain or gzipped.

    Raises:
        InvalidInput: the file is no text.
        OSError: it cannot be opened.
    """
    number = 0
    try:
        with opened(path) as file:
            for number, line in enumerate(file, start=1):
                words = line.partition("#")[0].split()
                if words:
                    yield Place(path, number), words
    except UNREADABLE as error:
        raise InvalidInput(f"{path}, line {number + 1}: not readable as text: {error}") from None


def whole_text(path: Path) -> str:
    """The text of a file, plain or gzipped.

    Raises:
        InvalidInput: the file is no text, or cut off.
        OSError: it cannot be opened.
    """
    try:
        with opened(path) as file:
            return file.read()
    except UNREADABLE as error:
        raise InvalidInput(f"{path}: not readable as text: {error}") from None


def whole(place: Place, column: str, word: str, low: int = 0) -> int:
    """A word as a whole number of at least `low`.

    Raises:
        InvalidInput: it is none.
    """
    if not re.fullmatch(r"[+-]?\d{1,18}", word) or int(word) < low:
        raise place.error(column, word, f"a whole number >= {low}")
    return int(word)


def ordinal(word: str) -> int:
    """A word as the number of a node; -1 if it is none."""
    return int(word) if re.fullmatch(r"\d{1,9}", word) else -1


def number(place: Place, column: str, word: str, allowed: str = "a number >= 0") -> Decimal:
    """A word as a finite number of at least 0.

    Raises:
        InvalidInput: it is none.
    """
    try:
        value = Decimal(word)
    except InvalidOperation:
        raise place.error(column, word, allowed) from None
    if not value.is_finite() or value < 0:
        raise place.error(column, word, allowed)
    return value


def rate(place: Place, column: str, word: str) -> Decimal:
    """A rate with its unit (`100Gbps`, `50Mb/s`; bits/s without one), bits/s.

    Raises:
        InvalidInput: it is none, or 0.
    """
    allowed = "a rate above 0 with its unit, e.g. 100Gbps or 50Mb/s"
    match = RATE.fullmatch(word)
    if match is None:
        raise place.error(column, word, allowed)
    digits, scale, unit = match[1], match[2], match[3] or "bps"
    value = number(place, column, digits, allowed) * SCALES[scale] * BITS[unit]
    if not value:
        raise place.error(column, word, allowed)
    return value


def microseconds(place: Place, column: str, word: str) -> float:
    """A time with its unit (`1000ns`, `0.001ms`; seconds without one), µs.

    Raises:
        InvalidInput: it is none.
    """
    allowed = "a time with its unit, e.g. 1000ns or 0.001ms"
    match = TIME.fullmatch(word)
    if match is None:
        raise place.error(column, word, allowed)
    time = number(place, column, match[1], allowed) * Decimal(SECONDS[match[2] or "s"])
    return float(time * 10**6)


def plain(value: float) -> str:
    """A number without an exponent, with as few digits as it can be read back from."""
    return np.format_float_positional(value, trim="-")


CSV, FLOWS, TOPOLOGY, CONFIG, JSON, UNKNOWN = (
    "a CSV file",
    "a flow list of the HPCC simulator",
    "a topology of the HPCC simulator",
    "a configuration of the HPCC simulator",
    "a JSON file",
    "a file of another kind",
)
"""Kinds of files, in words."""


def kind_of(path: Path) -> str:
    """What kind of file this is, by its first line with content.

    Raises:
        OSError: it cannot be opened.
    """
    try:
        words = next((words for _, words in text_lines(path)), [])
    except InvalidInput:  # no text
        return UNKNOWN
    text = " ".join(words)
    if text.startswith(("{", "[")):
        return JSON
    if "," in text:
        return CSV
    if re.fullmatch(r"\d+", text):
        return FLOWS
    if re.fullmatch(r"\d+ \d+ \d+", text):
        return TOPOLOGY
    return CONFIG if re.match(r"[A-Z][A-Z0-9_]+ \S", text) else UNKNOWN


def check_kind(path: Path, wanted: str, form: str) -> None:
    """Refuse a file of another kind.

    Args:
        path: the file.
        wanted: the kind.
        form: what its first line has, for the message.

    Raises:
        InvalidInput: it is of another kind; the message says which.
    """
    kind = kind_of(path)
    if kind != wanted:
        place, words = next(text_lines(path), (Place(path, 1), []))
        raise place.error("first line", " ".join(words), f"{form}: {wanted}, and this is {kind}")
