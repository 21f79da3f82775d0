"""`flow.txt` of the HPCC simulator and ConWeave's.

    COUNT
    SRC DST PG PORT SIZE START         one line per flow; ConWeave's has no PORT

`SRC` and `DST` are nodes of the topology, `SIZE` is in bytes, `START` in seconds. Lines beyond the
last flow are not read, as that simulator does not.

Flows usually start at 2 s there. Here time 0 is the last whole millisecond before the first start.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.hpcc_topology import node_ids
from ecn_marl.sim.formats.lines import (
    FLOWS,
    MOST_SECONDS,
    check_kind,
    number,
    ordinal,
    text_lines,
    whole,
)
from ecn_marl.sim.network.topology import Topology
from ecn_marl.sim.traffic.flow_checks import check_flows
from ecn_marl.sim.traffic.trace import FlowList, Place

FORMS = {6: "SRC DST PG PORT SIZE START", 5: "SRC DST PG SIZE START"}
"""Lines of HPCC's and of ConWeave's files, by their number of words."""

PORT = 100
"""Port of flows whose file has none; that simulator's scripts evaluate flows to this port."""

GROUP = 3
"""Priority group of flows whose file has none."""

ORIGIN_NS = 2_000_000_000
"""Time 0 of flows whose file counts from 0, as that simulator has it, ns."""

NS, MS = Decimal(10**9), 10**6


@dataclass(frozen=True)
class HpccFlows:
    """A flow list with what only that simulator's files say; arrays are `[N]`.

    Attributes:
        flows: the flows, their starts counted from `origin_ns`.
        origin_ns: time 0 in that simulator, ns.
        group: priority group of each flow.
        port: port of each flow at its destination.
        unread: lines of the file beyond the last flow.
    """

    flows: FlowList
    origin_ns: int
    group: Int64[np.ndarray, " n"]
    port: Int64[np.ndarray, " n"]
    unread: int = 0

    @staticmethod
    def of(flows: FlowList) -> HpccFlows:
        """Flows of another file, with the usual origin, group and port."""
        n = len(flows)
        return HpccFlows(flows, ORIGIN_NS, np.full(n, GROUP), np.full(n, PORT))


class _Lines(NamedTuple):
    """Where the flows are, see `flow_checks.Place`."""

    places: list[Place]

    def error(self, column: str, row: int, value: object, allowed: str) -> InvalidInput:
        name = {"size_B": "SIZE", "start_ns": "START"}.get(column, column)
        return self.places[row].error(name, value, allowed)

    def row(self, row: int) -> str:
        return f"line {self.places[row].line}"


def read_flows(path: str | Path, topology: Topology, origin_ns: int | None = None) -> HpccFlows:
    """Read a `flow.txt` and check it against a network.

    Args:
        path: the file, plain or gzipped.
        topology: the network; its hosts have the numbers that `node_ids` gives.
        origin_ns: time 0, ns; None for the last whole millisecond before the first start.

    Raises:
        InvalidInput: a file of another kind, a line that is no flow, a node that is no host, or
            fewer flows than the first line says; the message names the file, the line, and what is
            expected.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    check_kind(path, FLOWS, "the number of flows alone")
    lines = text_lines(path)
    first, words = next(lines)
    count = whole(first, "number of flows", words[0], 1)
    hosts = {node: i for i, node in enumerate(node_ids(topology))}
    rows: list[tuple[int, int, int, int, int]] = []
    starts: list[Decimal] = []
    places: list[Place] = []
    width = unread = 0
    for place, words in lines:
        if len(rows) == count:
            unread += 1
            continue
        width = width or len(words)
        if len(words) != width or width not in FORMS:
            forms = FORMS.get(width, f"{FORMS[6]}, or {FORMS[5]} as ConWeave has it")
            raise place.error("flow", " ".join(words), f"{forms}: flow {len(rows) + 1} of {count}")
        values = dict(zip(FORMS[width].split(), words, strict=True))
        src, dst = (_host(place, name, values[name], hosts, topology) for name in ("SRC", "DST"))
        if src == dst:
            raise place.error("DST", values["DST"], "a host other than SRC")
        group = whole(place, "PG", values["PG"])
        port = whole(place, "PORT", values.get("PORT", str(PORT)))
        rows.append((src, dst, group, port, whole(place, "SIZE", values["SIZE"], 1)))
        starts.append(_start(place, values["START"]))
        places.append(place)
    if len(rows) < count:
        raise first.error("number of flows", count, f"at most the {len(rows)} flows below it")
    return _flows(rows, starts, places, topology, origin_ns, unread)


def _host(place: Place, column: str, word: str, hosts: dict[int, int], topology: Topology) -> int:
    """Position of the host with the number that a word has."""
    node = ordinal(word)
    if node not in hosts:
        switch = f"; {node} is a switch" if f"switch{node}" in topology.switches else ""
        allowed = f"a host of {topology.name}, {min(hosts)} to {max(hosts)}{switch}"
        raise place.error(column, word, allowed)
    return hosts[node]


def _start(place: Place, word: str) -> Decimal:
    """A word as a time, ns."""
    allowed = f"seconds from 0 to {MOST_SECONDS:f}"
    start = number(place, "START", word, allowed)
    if start > MOST_SECONDS:
        raise place.error("START", word, allowed)
    return start * NS


def _flows(
    rows: list[tuple[int, int, int, int, int]],
    starts: list[Decimal],
    places: list[Place],
    topology: Topology,
    origin_ns: int | None,
    unread: int,
) -> HpccFlows:
    """The list of these flows."""
    origin = int(min(starts) // MS * MS) if origin_ns is None else origin_ns
    n = len(rows)
    src, dst, group, port, size = np.array(rows, np.int64).T
    columns = {
        "flow_id": np.arange(n),
        "src": src,
        "dst": dst,
        "size_B": size,
        "start_ns": np.array([float(start - origin) for start in starts]),
        "spine_data": np.full(n, -1),
        "spine_ack": np.full(n, -1),
    }
    checked = check_flows(columns, topology, _Lines(places))
    flows = FlowList(size=checked.pop("size_B"), **checked)
    return HpccFlows(flows, origin, group, port, unread)


def write_flows(flows: HpccFlows | FlowList, topology: Topology, file: io.TextIOBase) -> None:
    """Write a `flow.txt`, in the order of the list; that simulator wants it sorted by starts.

    Args:
        flows: the flows; those of a `FlowList` get the usual origin, group and port.
        topology: the network that they are for.
        file: a text file.
    """
    rows = flows if isinstance(flows, HpccFlows) else HpccFlows.of(flows)
    ids, own = node_ids(topology), rows.flows
    file.write(f"{len(own)}\n")
    columns = (own.src, own.dst, rows.group, rows.port, own.size, own.start_ns)
    for src, dst, group, port, size, start in zip(*columns, strict=True):
        seconds = (Decimal(float(start)) + rows.origin_ns) / NS
        file.write(f"{ids[src]} {ids[dst]} {group} {port} {size} {seconds:f}\n")
