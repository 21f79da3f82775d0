"""What flows may be: one set of rules for files, `FlowList`, `schedule`, graphs and sources.

Columns have the names that they have in files, see `trace`. An array of floats may hold
whole numbers, e.g. 1000.0; a list or a field has to hold integers, and `True` is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike

from ecn_marl._checks import Each, Real, Whole
from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.network.topology import Topology

MAX_SIZE = 10**12
"""Largest flow, bytes."""

MAX_TOTAL = 10**14
"""Largest sum of all flows, bytes; the simulator's counters reach five times as far."""

MAX_START_NS = 1e15
"""Latest start of a flow, ns: eleven days."""

INT64 = Whole(low=-(2**63), high=2**63 - 1)
"""Whole numbers that columns hold."""

HUGE = 1e300
"""Largest number that is converted; those above are no times anyway."""

HOST = Whole(low=0)
"""Numbers of hosts where the network is not known yet."""

Allowed = str | Callable[[int], str]
"""What is allowed in a column, or in a row of it."""


@runtime_checkable
class Place(Protocol):
    """Where flows come from, for messages."""

    def error(self, column: str, row: int, value: object, allowed: str) -> InvalidInput:
        """The error for a value of a column and row that is not allowed."""

    def row(self, row: int) -> str:
        """A row in words, e.g. `line 3`."""


@dataclass(frozen=True)
class Rows:
    """Columns in Python: a value is `NAME[ROW]`, rows from 0.

    Attributes:
        owner: goes before the names, e.g. `schedule.`.
        names: names of those columns that are called otherwise than in files.
    """

    owner: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    def name(self, column: str) -> str:
        """What a column is called here."""
        return self.owner + self.names.get(column, column)

    def error(self, column: str, row: int, value: object, allowed: str) -> InvalidInput:
        """The error for a value that is not allowed there."""
        return bad_value(f"{self.name(column)}[{row}]", value, allowed)

    def row(self, row: int) -> str:
        """A row in words."""
        return f"row {row}"

    def check_lengths(self, columns: Mapping[str, ArrayLike]) -> None:
        """Refuse columns of unequal length, and lists without a flow.

        Raises:
            InvalidValue: there are such; the message names the column.
        """
        first, n = "", 0
        for name, column in columns.items():
            shape = as_column(column).shape
            if len(shape) != 1:
                raise bad_value(f"shape of {self.name(name)}", shape, "a column")
            first, n = (first, n) if first else (name, shape[0])
            if shape[0] != n:
                allowed = f"{n}, as many as {self.name(first)} has"
                raise bad_value(f"number of rows of {self.name(name)}", shape[0], allowed)
        if not n:
            raise bad_value(f"number of rows of {self.name(first)}", 0, "at least one flow")


def check_flows(
    columns: Mapping[str, ArrayLike], topology: Topology | None, place: Place
) -> dict[str, np.ndarray]:
    """Check flows. Of several faults the one in the first row is reported.

    Args:
        columns: some of `flow_id`, `src` and `dst`, `size_B`, `start_ns`, `spine_data` and
            `spine_ack`, `[N]` each.
        topology: their network; None if it is not known yet.
        place: names rows in messages.

    Returns:
        The columns as int64, `start_ns` as float64.

    Raises:
        InvalidInput: a value that is not allowed: source and destination on one server, a host or
            path that is not there, a size that is no whole number from 1 to 10^12 B, a start that
            is no time, an identifier twice, or too many bytes in all.
    """
    rules = _Rules(columns, topology, place)
    rules.whole("flow_id", 0, 2**63 - 1, "an integer from 0 to 2^63 - 1")
    if "src" in columns:
        rules.hosts()
    rules.whole("size_B", 1, MAX_SIZE, f"an integer from 1 to {MAX_SIZE}")
    if "start_ns" in columns:
        rules.starts()
    rules.paths("spine_data", "src", "dst")
    rules.paths("spine_ack", "dst", "src")
    if "flow_id" in columns:
        rules.identifiers()
    if "size_B" in columns:
        total = np.cumsum(rules.checked["size_B"], dtype=np.float64)
        rules.keep("size_B", total <= MAX_TOTAL, f"at most {MAX_TOTAL} bytes in all flows")
    rules.report()
    return rules.checked


class _Rules:
    """Columns and what was found in them so far.

    Attributes:
        columns, topology, place: as in `check_flows`.
        checked: columns as numbers; 0 in the rows of faults, so that they can be used as indices.
        faults: for each broken rule its first row, its number, its column, and what is allowed.
    """

    def __init__(
        self, columns: Mapping[str, ArrayLike], topology: Topology | None, place: Place
    ) -> None:
        self.columns = {name: as_column(column) for name, column in columns.items()}
        self.topology, self.place = topology, place
        self.checked: dict[str, np.ndarray] = {}
        self.faults: list[tuple[int, int, str, Allowed]] = []

    def keep(self, name: str, fits: Bool[np.ndarray, " n"], allowed: Allowed) -> None:
        """A rule: all rows of a column fit."""
        rows = np.flatnonzero(~fits)
        if rows.size:
            self.faults.append((int(rows[0]), len(self.faults), name, allowed))

    def whole(
        self, name: str, low: int, high: int | Int64[np.ndarray, " n"], allowed: Allowed
    ) -> None:
        """A column, if there is such, holds whole numbers within limits."""
        if name in self.columns:
            values, fits = _integers(self.columns[name])
            fits &= (low <= values) & (values <= high)
            self.checked[name] = np.where(fits, values, 0)
            self.keep(name, fits, allowed)

    def hosts(self) -> None:
        """Hosts are those of the network, and no server sends to itself."""
        net, last = self.topology, int(HOST.high)
        host, other = f"the number of a host, 0 to {last}", "other than src"
        if net is not None:
            last = net.n_hosts - 1
            host = f"a host of {net.name}, 0 to {last}"
            other = "of another server than src" if net.bonds else other
        self.whole("src", 0, last, host)
        self.whole("dst", 0, last, f"{host}, {other}")
        ends = [self.checked["src"], self.checked["dst"]]
        if net is not None:
            ends = [np.array(net.server)[end] for end in ends]
        self.keep("dst", ends[0] != ends[1], f"{host}, {other}")

    def starts(self) -> None:
        """Starts are times."""
        start = self.checked["start_ns"] = _reals(self.columns["start_ns"])
        fits = (start >= 0.0) & (start <= MAX_START_NS)
        self.keep("start_ns", fits, f"a time >= 0 in ns, at most {MAX_START_NS:g}")

    def paths(self, name: str, source: str, sink: str) -> None:
        """Paths, if they are given, exist between the hosts."""
        if name not in self.columns:
            return
        net, by_hash = self.topology, "-1 or empty (choose by hash), or"
        if net is None:
            self.whole(name, -1, int(HOST.high), f"{by_hash} the number of a path, from 0")
            return
        edge = np.array(net.edge)
        n = net.n_paths[edge[self.checked[source]], edge[self.checked[sink]]].astype(np.int64)
        self.whole(
            name, -1, n - 1, lambda row: f"{by_hash} one of the {n[row]} equal-cost path(s), from 0"
        )

    def identifiers(self) -> None:
        """No two flows have the same identifier."""
        ids = self.checked["flow_id"]
        _, first_rows, number = np.unique(ids, return_index=True, return_inverse=True)
        first_row = first_rows[number]

        def allowed(row: int) -> str:
            first = self.place.row(int(first_row[row]))
            return f"an identifier of its own ({first} has it already)"

        self.keep("flow_id", first_row == np.arange(len(first_row)), allowed)

    def report(self) -> None:
        """Raise the error of the first fault."""
        if self.faults:
            row, _, name, allowed = min(self.faults, key=lambda fault: fault[:2])
            words = allowed if isinstance(allowed, str) else allowed(row)
            raise self.place.error(name, row, self.columns[name][row], words)


def as_column(values: ArrayLike) -> np.ndarray:
    """Values as an array; those of lists keep their types."""
    return np.asarray(values, None if hasattr(values, "dtype") else object)


def _integers(column: np.ndarray) -> tuple[Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """A column as int64, and which of its rows hold whole numbers of that range."""
    if column.dtype.kind in "iu":
        fits = column <= np.iinfo(np.int64).max
    elif column.dtype.kind == "f":
        # The largest float64 below 2^63; NaN is not equal to anything.
        fits = (np.floor(column) == column) & (np.abs(column) < 2.0**63)
    else:
        fits = np.array([INT64.fits(x) for x in column], bool)
    return np.where(fits, column, 0).astype(np.int64), fits


def _reals(column: np.ndarray) -> Float64[np.ndarray, " n"]:
    """A column as float64, NaN where it holds no number."""
    if column.dtype.kind in "iuf":
        return column.astype(np.float64)
    rule = Real(low=-HUGE, high=HUGE)  # float64 holds no larger integers
    return np.array([x if rule.fits(x) else np.nan for x in column], np.float64)


def host_group(field: str, hosts: Iterable[int], least: int = 1) -> tuple[int, ...]:
    """Numbers of hosts, all different.

    Args:
        field: their name, for the error.
        hosts: the numbers.
        least: how many there are at least.

    Raises:
        InvalidValue: there are others.
    """
    group = tuple(hosts) if isinstance(hosts, Iterable) else ()
    if not Each(HOST, least=least).fits(group) or len(set(group)) != len(group):
        raise bad_value(field, hosts, f"different numbers of hosts, at least {least}")
    return tuple(int(host) for host in group)
