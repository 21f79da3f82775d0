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
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.topology import Topology

REQUIRED = ("flow_id", "src", "dst", "size_B", "start_ns")
"""Columns that a flow list must have."""

OPTIONAL = ("spine_data", "spine_ack")
"""Columns that it may have: index of the equal-cost path of the data and of the ACKs."""

MAX_SIZE = 10**12
"""Largest flow, bytes."""

MAX_TOTAL = 10**14
"""Largest sum of all flows, bytes; the simulator's counters reach five times as far."""

MAX_START_NS = 1e15
"""Latest start of a flow, ns: eleven days."""

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
    rows: list[tuple[int | float, ...]] = []
    line_of: dict[int, int] = {}
    total = 0
    with _open(path) as file:
        lines = _lines(file, path)
        place, header = next(lines, (Place(path, 1), []))
        column = _columns(header, place)
        for place, fields in lines:
            if len(fields) != len(header):
                raise place.error(
                    "number of fields", len(fields), f"{len(header)}, as many as the header has"
                )
            row = _parse({name: fields[i] for name, i in column.items()}, place, topology)
            first = line_of.setdefault(int(row[0]), place.line)
            if first != place.line:
                allowed = f"an identifier of its own (line {first} has it already)"
                raise place.error("flow_id", row[0], allowed)
            total += int(row[3])
            if total > MAX_TOTAL:
                raise place.error("size_B", row[3], f"at most {MAX_TOTAL} bytes in all flows")
            rows.append(row)
    if not rows:
        raise InvalidInput(f"{path}: no flows, only a header; expected at least one line below it")
    columns = list(zip(*rows, strict=True))
    integers = [np.array(values, np.int64) for values in columns]
    return FlowList(
        flow_id=integers[0],
        src=integers[1],
        dst=integers[2],
        size=integers[3],
        start_ns=np.array(columns[4], np.float64),
        spine_data=integers[5],
        spine_ack=integers[6],
    )


@contextmanager
def _open(path: Path) -> Iterator[TextIOWrapper]:
    """Open a text file that may be gzipped."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == GZIP_MAGIC
    opened = gzip.open if zipped else open
    # Spreadsheets write a byte order mark; `csv` splits lines itself.
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
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


def _parse(text: dict[str, str], place: Place, topology: Topology) -> tuple[int | float, ...]:
    """Values of a line, in the order of `FlowList`'s fields."""
    n = topology.n_hosts
    host = f"a host of {topology.name}, 0 to {n - 1}"

    def integer(name: str, allowed: str, fits: Callable[[int], bool]) -> int:
        try:
            value = int(text[name])
        except ValueError:
            raise place.error(name, text[name], allowed) from None
        if not fits(value):
            raise place.error(name, value, allowed)
        return value

    flow_id = integer("flow_id", "an integer from 0 to 2^63 - 1", lambda v: 0 <= v < 2**63)
    src = integer("src", host, lambda v: 0 <= v < n)
    server = topology.server
    other = f"{host}, of another server than src" if topology.bonds else f"{host}, other than src"
    dst = integer("dst", other, lambda v: 0 <= v < n and server[v] != server[src])
    size = integer("size_B", f"an integer from 1 to {MAX_SIZE}", lambda v: 1 <= v <= MAX_SIZE)
    try:
        start = float(text["start_ns"])
    except ValueError:
        start = math.nan
    if not 0.0 <= start <= MAX_START_NS:
        allowed = f"a time >= 0 in ns, at most {MAX_START_NS:g}"
        raise place.error("start_ns", text["start_ns"], allowed)

    def path(name: str, source: int, sink: int) -> int:
        if not text.get(name):
            return -1
        k = int(topology.n_paths[topology.edge[source], topology.edge[sink]])
        allowed = f"-1 or empty (choose by hash), or one of the {k} equal-cost path(s), from 0"
        return integer(name, allowed, lambda v: -1 <= v < k)

    return (
        *(flow_id, src, dst, size, start),
        *(path("spine_data", src, dst), path("spine_ack", dst, src)),
    )
