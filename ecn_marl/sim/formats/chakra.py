"""Chakra execution traces (MLCommons; Sridharan et al., arXiv 2305.14516) as graphs of flows.

A trace has a file for every rank: its sends, receives, collectives and computations, and which of
them wait for which. Read is the JSON that `chakra_jsonizer` makes of a trace, objects one after the
other, or a JSON list of them:

    {"version": "0.0.4"}
    {"id": "1", "name": "fwd", "type": "COMP_NODE", "durationMicros": "500"}
    {"id": "2", "name": "to 1", "type": "COMM_SEND_NODE", "dataDeps": ["1"],
     "attr": [{"name": "comm_size", "int64Val": "100000"}, {"name": "comm_dst", "int32Val": 1}]}

Sizes and dependencies are read, and durations of computations; how long communication took when it
was recorded is not, since that is what is simulated. See `schedules` for sends and receives. Ranks
run a collective together, the k-th of a process group (`pg_name`) at once: on a ring if it is
ALL_REDUCE, ALL_GATHER or REDUCE_SCATTER (`comm_size` is all data of a rank, 1/n of which goes with
a step), from each to each if it is ALL_TO_ALL, and from the first rank down a binary tree if it is
BROADCAST.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.lines import whole_text
from ecn_marl.sim.formats.schedules import Op, Schedule, scheduled
from ecn_marl.sim.traffic.trace import Place

COLLECTIVES = {0: "ALL_REDUCE", 2: "ALL_GATHER", 5: "BROADCAST", 6: "ALL_TO_ALL"}
COLLECTIVES[7] = "REDUCE_SCATTER"
"""Collectives that are known, by their number in Chakra's schema."""

ROUNDS = {"ALL_REDUCE": 2, "ALL_GATHER": 1, "REDUCE_SCATTER": 1}
"""Times that data go around the ring."""

SEND, RECV, COLLECTIVE = "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"

NS_PER_US = 1000

CONTENT = re.compile(r"\S")


@dataclass
class _Item:
    """A node of a trace.

    Attributes:
        place: where it begins.
        rank: its rank.
        kind: its type.
        attributes: values by name.
        first: operations that wait for what the node waits for.
        last: operation that is over when the node is.
        needs: ids of the nodes that it waits for.
    """

    place: Place
    rank: int
    kind: str
    attributes: dict[str, Any]
    needs: list[int]
    first: list[Op] = field(default_factory=list)
    last: Op | None = None


def read_chakra(paths: Sequence[str | Path]) -> Schedule:
    """Read the traces of all ranks.

    Args:
        paths: JSON files, plain or gzipped, that of rank i at position i; rank i is host i.

    Raises:
        InvalidInput: a file that is no such JSON, a node that lacks something, an id that is not
            known or there twice, a receive without its send or of another size, a collective that
            not all ranks of its group run alike, or a cycle; the file and the line where the node
            begins are named, and what was expected.
        OSError: a file cannot be opened.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise bad_value("paths", list(paths), "a file for each rank")
    ranks = [_items(path, rank) for rank, path in enumerate(files)]
    tags = count(-1, -1)  # those of the files are not negative
    ops: list[Op] = []
    for items in ranks:
        for item in items.values():
            if item.kind != COLLECTIVE:
                ops.append(_operation(item, len(ranks)))
    for group in _together(ranks):
        ops += _collective(group, tags)
    for items in ranks:
        for item in items.values():
            for needed in item.needs:
                if needed not in items:
                    raise item.place.error("dependency", needed, "the id of a node of this rank")
                last = items[needed].last
                assert last is not None
                for op in item.first:
                    op.after.append(last)
    return scheduled(files[0], len(ranks), ops)


def _objects(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """JSON objects of a file, and where they begin."""
    text, decoder = whole_text(path), json.JSONDecoder()
    line, at, after = 1, 0, 0
    # Every character is looked at once: traces have hundreds of megabytes.
    while begin := CONTENT.search(text, after):
        line, at = line + text.count("\n", at, begin.start()), begin.start()
        place = Place(path, line)
        try:
            value, after = decoder.raw_decode(text, at)
        except ValueError as error:
            raise place.error("node", text[at : at + 20], f"JSON ({error})") from None
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, dict):
                raise place.error("node", entry, "an object")
            yield place, entry


def _items(path: Path, rank: int) -> dict[int, _Item]:
    """Nodes of a rank by id."""
    items: dict[int, _Item] = {}
    for place, entry in _objects(path):
        if "type" not in entry:  # the metadata of the trace
            continue
        number = _number(place, "id", entry.get("id", 0))
        if number in items:
            raise place.error("id", number, "an id of its own")
        needs: list[int] = []
        for name in ("ctrl_deps", "ctrlDeps", "data_deps", "dataDeps"):
            needs += [_number(place, name, x) for x in _list(place, entry, name)]
        attributes = dict(_attribute(place, x) for x in _list(place, entry, "attr"))
        duration = entry.get("duration_micros", entry.get("durationMicros", 0))
        attributes["duration"] = _number(place, "duration_micros", duration)
        items[number] = _Item(place, rank, str(entry["type"]), attributes, needs)
    if not items:
        raise InvalidInput(f"{path}: no node: expected the JSON of a Chakra trace")
    return items


def _list(place: Place, entry: Mapping[str, Any], name: str) -> list[Any]:
    """A list of an object; empty if it is missing, or null."""
    value = entry.get(name)
    if value is not None and not isinstance(value, list):
        raise place.error(name, value, "a list")
    return value or []


def _attribute(place: Place, entry: object) -> tuple[str, Any]:
    """Name and value of an attribute: the value is under the name of its type."""
    if isinstance(entry, Mapping) and "name" in entry:
        values = [x for n, x in entry.items() if n not in ("name", "docString", "doc_string")]
        if len(values) <= 1:
            return str(entry["name"]), (values or [None])[0]
    raise place.error("attr", entry, "an object with a name and a value")


def _number(place: Place, name: str, value: object, low: int = 0) -> int:
    """A whole number; JSON has those of 64 bits as text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise place.error(name, value, f"a whole number >= {low}")
    try:
        number = int(value)
    except ValueError:
        number = low - 1
    if number < low:
        raise place.error(name, value, f"a whole number >= {low}")
    return number


def _operation(item: _Item, ranks: int) -> Op:
    """The operation of a node that is no collective."""
    if item.kind in (SEND, RECV):
        kind, name = ("send", "comm_dst") if item.kind == SEND else ("recv", "comm_src")
        peer = _given(item, name)
        if peer >= ranks or peer == item.rank:
            raise item.place.error(name, peer, f"another rank, below {ranks}")
        size, tag = _given(item, "comm_size", 1), item.attributes.get("comm_tag", 0)
        op = Op(item.place, kind, item.rank, size, peer, _number(item.place, "comm_tag", tag))
    else:
        duration = NS_PER_US * item.attributes["duration"]
        op = Op(item.place, "calc", item.rank, duration)
    item.first, item.last = [op], op
    return op


def _given(item: _Item, name: str, low: int = 0) -> int:
    """A number that a node has to have."""
    if name not in item.attributes:
        raise item.place.error(name, None, f"an attribute of {item.kind}")
    return _number(item.place, name, item.attributes[name], low)


def _together(ranks: Sequence[Mapping[int, _Item]]) -> Iterator[list[_Item]]:
    """Collectives: the nodes of all ranks of a group."""
    groups: dict[str, dict[int, list[_Item]]] = {}
    for rank, items in enumerate(ranks):
        for item in items.values():
            if item.kind == COLLECTIVE:
                name = str(item.attributes.get("pg_name", ""))
                groups.setdefault(name, {}).setdefault(rank, []).append(item)
    for members in groups.values():
        most = max(members.values(), key=len)
        for rows in members.values():
            if len(rows) < len(most):
                allowed = f"{len(most)} in the group, as rank {most[0].rank} has"
                raise rows[-1].place.error("collectives", len(rows), allowed)
        for step in range(len(most)):
            yield [rows[step] for rows in members.values()]


def _collective(group: list[_Item], tags: Iterator[int]) -> list[Op]:
    """Operations of a collective; every rank begins by itself, and ends when its last flow has."""
    kinds = [_kind(item) for item in group]
    sizes = [_given(item, "comm_size", 1) for item in group]
    for item, kind, size in zip(group, kinds, sizes, strict=True):
        if (kind, size) != (kinds[0], sizes[0]):
            allowed = f"{kinds[0]} of {sizes[0]} bytes, as rank {group[0].rank} has"
            raise item.place.error("collective", f"{kind} of {size} bytes", allowed)
    begin = [Op(item.place, "calc", item.rank, 0) for item in group]
    end = [Op(first.place, "calc", first.rank, 0, after=[first]) for first in begin]
    ops: list[Op] = [*begin, *end]
    n = len(group)

    def move(source: int, target: int, size: int, after: Op) -> Op:
        """Data from one rank to another; returns the receive."""
        src, dst, tag = group[source], group[target], next(tags)
        send = Op(src.place, "send", src.rank, size, dst.rank, tag, after=[after])
        receive = Op(dst.place, "recv", dst.rank, size, src.rank, tag, after=[begin[target]])
        end[source].after.append(send)
        end[target].after.append(receive)
        ops.extend((send, receive))
        return receive

    part = -(-sizes[0] // n)
    if n > 1 and kinds[0] == "ALL_TO_ALL":
        for i in range(n):
            for step in range(1, n):
                move(i, (i + step) % n, part, begin[i])
    elif n > 1 and kinds[0] == "BROADCAST":
        have = {0: begin[0]}
        for i in range(1, n):
            have[i] = move((i - 1) // 2, i, sizes[0], have[(i - 1) // 2])
    elif n > 1:
        ready = list(begin)
        for _ in range(ROUNDS[kinds[0]] * (n - 1)):
            received = [move(i, (i + 1) % n, part, ready[i]) for i in range(n)]
            ready = [received[i - 1] for i in range(n)]
    for item, first, last in zip(group, begin, end, strict=True):
        item.first, item.last = [first], last
    return ops


def _kind(item: _Item) -> str:
    """Name of a collective."""
    value = item.attributes.get("comm_type")
    name = value if value in COLLECTIVES.values() else None
    if name is None and value is not None:
        name = COLLECTIVES.get(_number(item.place, "comm_type", value))
    if name is None:
        raise item.place.error("comm_type", value, f"one of {', '.join(COLLECTIVES.values())}")
    return str(name)
