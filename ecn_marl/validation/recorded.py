"""Readers of the recorded runs in `data/` (see its README)."""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from importlib import resources

import numpy as np


def _bytes(name: str) -> bytes:
    return resources.files("ecn_marl.validation").joinpath("data", name).read_bytes()


def rows(name: str, **wanted: str | int) -> list[dict[str, str]]:
    """Rows of a table.

    Args:
        name: file name without `.csv`.
        **wanted: columns and the values they must have.
    """
    table = csv.DictReader(io.StringIO(_bytes(f"{name}.csv").decode()))
    return [row for row in table if all(row[key] == str(value) for key, value in wanted.items())]


@cache
def flow_list(name: str) -> dict[str, np.ndarray]:
    """Columns of a flow list, int64 `[N]` each, in order of the starts."""
    table = list(csv.DictReader(io.StringIO(gzip.decompress(_bytes(f"{name}.csv.gz")).decode())))
    return {key: np.array([int(row[key]) for row in table]) for key in table[0]}


@cache
def arrays(name: str) -> dict[str, np.ndarray]:
    """Arrays of an npz file as float64."""
    with np.load(io.BytesIO(_bytes(f"{name}.npz"))) as file:
        return {key: file[key].astype(np.float64) for key in file.files}
