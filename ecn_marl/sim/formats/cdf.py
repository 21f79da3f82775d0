"""Distributions of flow sizes: `BYTES PERCENT` or `BYTES,FRACTION`, a point per line.

Traffic generators have percent from 0 to 100 and spaces; this package's tables have fractions and
commas. Both separators and both scales are read; the last line, 100 or 1, says which scale it is.
Lines that begin with `#` are left out, as is what follows a `#`, and a first line of names.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.lines import plain
from ecn_marl.sim.traffic.trace import Place

CLOSE = 1e-9
"""How close to 1 (or 100) the last probability has to be, relative."""


def read_points(
    lines: Iterable[str], path: Path
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Points of a distribution.

    Args:
        lines: the file.
        path: its name, for messages.

    Returns:
        Sizes in bytes, and their cumulative probabilities from 0 to 1.

    Raises:
        InvalidInput: a line that is not two numbers or decreases, or a last probability other than
            1 and 100; the message names the file, the line, and what is expected.
    """
    size: list[float] = []
    cdf: list[float] = []
    place, header = Place(path, 1), False
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        place = Place(path, number)
        point = _numbers(words)
        if point is None:
            if size or header:
                raise place.error("line", " ".join(words), "two numbers, BYTES and CDF")
            header = True
            continue
        for name, value, column in zip(("BYTES", "CDF"), point, (size, cdf), strict=True):
            low = column[-1] if column else 0.0
            if not low <= value < float("inf"):
                raise place.error(name, value, f"a number >= {low:g}, as in the line before")
            column.append(value)
    if len(size) < 2:
        raise InvalidInput(f"{path}: {len(size)} points; expected at least two lines BYTES CDF")
    whole = next((x for x in (1.0, 100.0) if abs(cdf[-1] - x) <= CLOSE * x), None)
    if whole is None:
        allowed = "1 (fractions) or 100 (percent) in the last line"
        raise place.error("CDF", cdf[-1], allowed)
    return np.array(size), np.array(cdf) / whole


def _numbers(words: list[str]) -> tuple[float, float] | None:
    """Two words as numbers; None if they are not."""
    try:
        size, cdf = (float(word) for word in words)
    except ValueError:
        return None
    return size, cdf


def write_points(
    size: Float64[np.ndarray, " n"], cdf: Float64[np.ndarray, " n"], file: io.TextIOBase
) -> None:
    """Write `BYTES FRACTION`, a point per line.

    Args:
        size: bytes, `[N]`.
        cdf: cumulative probabilities from 0 to 1, `[N]`.
        file: a text file.
    """
    for x, y in zip(size, cdf, strict=True):
        file.write(f"{plain(float(x))} {plain(float(y))}\n")
