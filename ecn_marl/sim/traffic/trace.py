"""Flow lists: reading and checking the CSV files that are replayed.

One flow per line under a header that names the columns:

    flow_id,src,dst,size_B,start_ns[,spine_data][,spine_ack]

in any order; other columns are ignored, as are empty lines and lines that start with `#`. Hosts are
numbered from 0. `spine_data` and `spine_ack` fix which of the equal-cost paths the data and the
ACKs take (on a leaf-spine network: which spine); -1 or an empty field leaves it to ECMP.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.flow_checks import Rows, check_flows

REQUIRED = ("flow_id", "src", "dst", "size_B", "start_ns")
"""Columns that a flow list must have."""

OPTIONAL = ("spine_data", "spine_ack")
"""Columns that it may have: index of the equal-cost path of the data and of the ACKs."""

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class FlowList:
    """A list of flows in the order of its file; every array is `[N]`.

    Attributes:
        flow_id: identifiers, all different.
        src: sending hosts.
        dst: receiving hosts.
        size: payloads, bytes.
        start_ns: start times, ns.
        spine_data: equal-cost path of the data, -1 to choose by hash.
        spine_ack: the same for the ACKs.
    """

    flow_id: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    size: np.ndarray
    start_ns: np.ndarray
    spine_data: np.ndarray
    spine_ack: np.ndarray

    def __len__(self) -> int:
        """Number of flows."""
        return len(self.flow_id)

    def checked(self, topology: Topology) -> FlowList:
        """The list as int64 and float64, checked like a file.

        Args:
            topology: the network it is for.

        Raises:
            ValueError: a value that is not allowed, see `flow_checks.check_flows`, columns of
                unequal length, or no flow; names the column, the row, and what is allowed.
        """
        place = Rows("flows.", {"size_B": "size"})
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        columns["size_B"] = columns.pop("size")
        place.check_lengths(columns)
        return _list_of(check_flows(columns, topology, place))

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Some of the flows, as the columns that `schedules.schedule` takes."""
        return {
            "src": self.src[rows],
            "dst": self.dst[rows],
            "size_B": self.size[rows],
            "start_ns": self.start_ns[rows],
            "spine_data": self.spine_data[rows],
            "spine_ack": self.spine_ack[rows],
        }


class Place(NamedTuple):
    """Position of a value in a file."""

    path: Path
    line: int

    def error(self, column: str, value: object, allowed: str) -> InvalidInput:
        """The error for a value that is not allowed there."""
        return InvalidInput(f"{self.path}, line {self.line}: {bad_value(column, value, allowed)}")


class _Lines(NamedTuple):
    """Where the flows of a file are, see `flow_checks.Place`: a place for each."""

    places: Sequence[Place]

    def error(self, column: str, row: int, value: object, allowed: str) -> InvalidInput:
        return self.places[row].error(column, value, allowed)

    def row(self, row: int) -> str:
        return f"line {self.places[row].line}"


def read_flows(path: str | Path, topology: Topology) -> FlowList:
    """Read a flow list and check it against a network.

    Args:
        path: CSV file, plain or gzipped (recognised by content).
        topology: the network it is for.

    Raises:
        ValueError: a missing column, a line with too few or too many fields, or a field that is not
            allowed; names the file, the line, the column, and what is allowed.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    rows: list[list[str]] = []
    places: list[Place] = []
    with opened(path) as file:
        lines = _lines(file, path)
        place, header = next(lines, (Place(path, 1), []))
        position = _columns(header, place)
        for place, row in lines:
            if len(row) != len(header):
                allowed = f"{len(header)}, as many as the header has"
                raise place.error("number of fields", len(row), allowed)
            rows.append(row)
            places.append(place)
    if not rows:
        raise InvalidInput(f"{path}: no flows, only a header; expected at least one line below it")
    columns: dict[str, np.ndarray] = {}
    for name in (*REQUIRED, *OPTIONAL):
        unset = "-1" if name in OPTIONAL else ""
        at = position.get(name)
        text = [unset if at is None else row[at] or unset for row in rows]
        columns[name] = _numbers(text, float if name == "start_ns" else int)
    return _list_of(check_flows(columns, topology, _Lines(places)))


def _list_of(columns: dict[str, np.ndarray]) -> FlowList:
    """The list with these columns."""
    return FlowList(size=columns.pop("size_B"), **columns)


def _numbers(text: list[str], kind: type[int | float]) -> np.ndarray:
    """Fields as numbers; text that is none stays, and the checks refuse it."""

    def number(field: str) -> int | float | str:
        try:
            return kind(field)
        except ValueError:
            return field

    try:
        return np.array([kind(field) for field in text], np.dtype(kind))
    except (ValueError, OverflowError):  # numbers beyond int64 are not allowed either
        return np.array([number(field) for field in text], object)


@contextmanager
def opened(path: Path) -> Iterator[TextIOWrapper]:
    """Open a text file that may be gzipped."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == GZIP_MAGIC
    function = gzip.open if zipped else open
    # Spreadsheets write a byte order mark; `csv` splits lines itself.
    with function(path, "rt", encoding="utf-8-sig", newline="") as file:
        yield file


def _lines(file: TextIOWrapper, path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Fields of every line that is neither empty nor a comment, and its position."""
    reader = csv.reader(file, strict=True)
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
            # `csv` has counted a line that it fails to parse, but not one that cannot be decoded.
            line = reader.line_num + (not isinstance(error, csv.Error))
            raise InvalidInput(f"{path}, line {line}: not readable as CSV: {error}") from None
        fields = [field.strip() for field in fields]
        if fields not in ([], [""]) and not fields[0].startswith("#"):
            yield Place(path, reader.line_num), fields


def _columns(header: list[str], place: Place) -> dict[str, int]:
    """Position of every column that is used."""
    form = ",".join(REQUIRED) + "".join(f"[,{name}]" for name in OPTIONAL)
    for name in (*REQUIRED, *OPTIONAL):
        if header.count(name) > 1:
            raise place.error("header", ",".join(header), f"column {name} only once")
    for name in REQUIRED:
        if name not in header:
            columns = ",".join(header)
            raise place.error("header", columns, f"a column {name}; the columns are {form}")
    return {name: header.index(name) for name in (*REQUIRED, *OPTIONAL) if name in header}
