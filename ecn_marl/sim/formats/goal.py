"""GOAL schedules (Hoefler, Siebert, Lumsdaine, ICPP'09) as graphs of flows.

A schedule is what LogGOPSim and its generators write: of every rank its sends, receives and
computations, and which of them wait for which.

    num_ranks 2
    rank 0 {
      l1: calc 500
      l2: send 100000b to 1 tag 3
      l2 requires l1
    }
    rank 1 {
      l1: recv 100000b from 0 tag 3
    }

A send becomes a flow from host RANK. A computation becomes the delay of the flows that wait for it,
1 ns a unit as in LogGOPSim. A receive is over when its flow has finished, whose last ACK arrives
half a round trip after its last byte. A send is over when its flow has finished. Sends and receives
of two ranks are matched by tag, in the order of the file.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.lines import whole
from ecn_marl.sim.graphs import Node, check_nodes
from ecn_marl.sim.trace import Place, opened

LABEL = re.compile(r"([A-Za-z][A-Za-z0-9_]*):")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

KINDS = ("send", "recv", "calc")
ORDERS = ("requires", "irequires")


class Goal(NamedTuple):
    """A schedule that was read.

    Attributes:
        nodes: the graph, for `Graph(nodes)`; a node's id is `RANK:NUMBER`, its send counted in the
            rank from 0.
        ranks: number of ranks; rank i is host i.
        notes: what the graph does not have, in words; empty if it is the schedule as it is.
    """

    nodes: tuple[Node, ...]
    ranks: int
    notes: tuple[str, ...]


@dataclass
class _Op:
    """An operation of a rank.

    Attributes:
        place: where it is in the file.
        kind: of `KINDS`.
        rank: its rank.
        amount: bytes, or units of time.
        peer: the other rank of a send or receive.
        tag: of a send or receive.
        after: operations that have to be over before.
        beside: operations that have to have begun before.
        flow: id of the flow of a send, and of what a receive waits for.
    """

    place: Place
    kind: str
    rank: int
    amount: int
    peer: int = -1
    tag: int = 0
    after: list[_Op] = field(default_factory=list)
    beside: list[_Op] = field(default_factory=list)
    flow: str = ""


def read_goal(path: str | Path) -> Goal:
    """Read a schedule.

    Args:
        path: the file, plain or gzipped.

    Raises:
        InvalidInput: a line that is no GOAL, a label that is not known or there twice, a receive
            without its send or of another size, receives from any source, or a cycle; the file and
            line are named, and what was expected.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    ranks, ops = _parsed(path)
    _match(ops)
    order = _in_order(path, ops)
    begins: dict[int, dict[str, float]] = {}
    ends: dict[int, dict[str, float]] = {}
    uneven, nodes = 0, []
    for op in order:
        begin = _latest([ends[id(x)] for x in op.after] + [begins[id(x)] for x in op.beside])
        begins[id(op)] = begin
        if op.kind == "calc":
            ends[id(op)] = {flow: delay + op.amount / 1e3 for flow, delay in begin.items()}
        elif op.kind == "recv":
            ends[id(op)] = _latest([begin, {op.flow: 0.0}])
        else:
            ends[id(op)] = {op.flow: 0.0}
            waits = {flow: delay for flow, delay in begin.items() if flow != START}
            delays = set((waits or begin).values()) or {0.0}
            # A flow ends after the start, so a shorter time from the start on decides nothing.
            uneven += len(delays) > 1 or begin.get(START, 0.0) > max(delays)
            after = tuple(waits)
            nodes.append(Node(op.flow, op.rank, op.peer, op.amount, max(delays), after))
    if not nodes:
        raise InvalidInput(f"{path}: no send: a schedule without flows")
    check_nodes(nodes, str(path))
    notes = []
    if uneven:
        notes.append(
            f"{uneven} flows wait for several others with different times of computation after "
            "each; the longest of these follows on the last one"
        )
    return Goal(tuple(nodes), ranks, tuple(notes))


def goal_text(nodes: Sequence[Node], ranks: int) -> str:
    """A graph of flows as a schedule that `read_goal` and LogGOPSim read; rank i is host i.

    Args:
        nodes: the graph.
        ranks: number of ranks.

    Raises:
        ValueError: no graph, hosts beyond the ranks, or a flow that waits for one between two other
            hosts, which no rank of a schedule can know of.
    """
    check_nodes(nodes)
    lines: list[list[str]] = [[] for _ in range(ranks)]
    by_id = {node.id: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        for host in (node.src, node.dst):
            if host >= ranks:
                raise bad_value(f"node {node.id!r}: host", host, f"below the {ranks} ranks")
        lines[node.src].append(f"s{i}: send {node.bytes}b to {node.dst} tag {i}")
        lines[node.dst].append(f"r{i}: recv {node.bytes}b from {node.src} tag {i}")
    for i, node in enumerate(nodes):
        own, waits = lines[node.src], f"s{i}"
        if node.delay_us:
            own.append(f"c{i}: calc {round(1e3 * node.delay_us)}")
            own.append(f"s{i} requires c{i}")
            waits = f"c{i}"
        for needed in node.after:
            other = nodes[by_id[needed]]
            if node.src not in (other.src, other.dst):
                allowed = f"flows from or to host {node.src}"
                raise bad_value(f"node {node.id!r}: after", needed, allowed)
            mark = "s" if other.src == node.src else "r"
            own.append(f"{waits} requires {mark}{by_id[needed]}")
    blocks = (
        f"rank {i} {{\n" + "".join(f"{x}\n" for x in own) + "}" for i, own in enumerate(lines)
    )
    return f"num_ranks {ranks}\n\n" + "\n\n".join(blocks) + "\n"


START = ""
"""Stands for the start of the schedule among what an operation waits for."""


def _latest(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What has to be over before, and the time from then on, µs: the longest of each."""
    merged: dict[str, float] = {} if parts else {START: 0.0}
    for part in parts:
        for flow, delay in part.items():
            merged[flow] = max(delay, merged.get(flow, 0.0))
    return merged


def _lines(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Words of every line, comments apart."""
    try:
        with opened(path) as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: not readable as text: {error}") from None

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    for number, line in enumerate(COMMENT.sub(blank, text).splitlines(), start=1):
        if words := line.replace("{", " { ").replace("}", " } ").split():
            yield Place(path, number), words


def _parsed(path: Path) -> tuple[int, list[_Op]]:
    """Number of ranks, and all operations."""
    ranks, rank, ops = 0, -1, []
    seen: set[int] = set()
    labels: dict[str, _Op] = {}
    place = Place(path, 1)
    for place, words in _lines(path):
        if words[0] == "num_ranks" and len(words) == 2 and not ranks:
            ranks = whole(place, "num_ranks", words[1], low=1)
        elif not ranks:
            raise place.error("line", " ".join(words), "num_ranks N first")
        elif words[0] == "rank" and len(words) == 3 and words[2] == "{" and rank < 0:
            rank, labels = _rank(place, words[1], ranks), {}
            if rank in seen:
                raise place.error("rank", words[1], "each rank once")
            seen.add(rank)
        elif rank < 0:
            raise place.error("line", " ".join(words), "rank N {")
        elif words == ["}"]:
            rank = -1
        elif len(words) == 3 and words[1] in ORDERS:
            first, second = (_labelled(place, labels, words[i]) for i in (0, 2))
            (first.after if words[1] == "requires" else first.beside).append(second)
        else:
            label = LABEL.fullmatch(words[0])
            op = _operation(place, words[1:] if label else words, rank, ranks)
            if label:
                if label[1] in labels:
                    raise place.error("label", label[1], "a label of its own in its rank")
                labels[label[1]] = op
            ops.append(op)
    if rank >= 0:
        raise place.error("line", "end of the file", "} at the end of a rank")
    if not ranks:
        raise InvalidInput(f"{path}: empty: expected num_ranks N first")
    return ranks, ops


def _rank(place: Place, word: str, ranks: int) -> int:
    rank = whole(place, "rank", word)
    if rank >= ranks:
        raise place.error("rank", word, f"below num_ranks, {ranks}")
    return rank


def _labelled(place: Place, labels: Mapping[str, _Op], label: str) -> _Op:
    if label not in labels:
        raise place.error("label", label, "a label of this rank, above")
    return labels[label]


def _operation(place: Place, words: list[str], rank: int, ranks: int) -> _Op:
    """`send|recv SIZEb to|from RANK [tag T] [cpu C] [nic N]`, `calc TIME [cpu C]`."""
    if len(words) < 2 or words[0] not in KINDS:
        allowed = "send, recv or calc, LABEL requires LABEL, LABEL irequires LABEL, or }"
        raise place.error("line", " ".join(words), allowed)
    kind = words[0]
    if kind == "calc":
        _options(place, words[2:], ("cpu",))
        return _Op(place, kind, rank, whole(place, "calc", words[1]))
    word = "to" if kind == "send" else "from"
    if len(words) < 4 or words[2] != word or not words[1].endswith("b"):
        raise place.error(kind, " ".join(words), f"{kind} SIZEb {word} RANK")
    if words[3] == "-1":
        raise place.error("from", "-1", "a rank: receives from any source have no place here")
    peer, size = _rank(place, words[3], ranks), whole(place, "size", words[1][:-1], low=1)
    if peer == rank:
        raise place.error(word, words[3], "another rank")
    options = _options(place, words[4:], ("tag", "cpu", "nic"))
    return _Op(place, kind, rank, size, peer, options.get("tag", 0))


def _options(place: Place, words: list[str], known: tuple[str, ...]) -> dict[str, int]:
    """Pairs of a word and a number."""
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or any(name not in known for name in pairs):
        raise place.error("line", " ".join(words), " ".join(f"[{name} N]" for name in known))
    return {name: whole(place, name, word) for name, word in pairs.items()}


def _match(ops: list[_Op]) -> None:
    """Give sends the ids of their flows, and receives those of the flows that they wait for."""
    sent: dict[tuple[int, int, int], deque[_Op]] = {}
    counts: dict[int, int] = {}
    for op in ops:
        if op.kind == "send":
            number = counts.get(op.rank, 0)
            counts[op.rank], op.flow = number + 1, f"{op.rank}:{number}"
            sent.setdefault((op.rank, op.peer, op.tag), deque()).append(op)
    for op in ops:
        if op.kind != "recv":
            continue
        waiting = sent.get((op.peer, op.rank, op.tag))
        if not waiting:
            raise op.place.error("recv", f"from {op.peer} tag {op.tag}", "a send of its own")
        send = waiting.popleft()
        if send.amount != op.amount:
            raise op.place.error("size", op.amount, f"{send.amount}, that of its send")
        op.flow = send.flow


def _in_order(path: Path, ops: list[_Op]) -> list[_Op]:
    """Operations such that each comes after what it waits for in its rank."""
    unmet = {id(op): len(op.after) + len(op.beside) for op in ops}
    waiting: dict[int, list[_Op]] = {id(op): [] for op in ops}
    for op in ops:
        for other in (*op.after, *op.beside):
            waiting[id(other)].append(op)
    ready = [op for op in ops if not unmet[id(op)]]
    for op in ready:  # the loop appends to it
        for other in waiting[id(op)]:
            unmet[id(other)] -= 1
            if not unmet[id(other)]:
                ready.append(other)
    if len(ready) < len(ops):
        stuck = next(op for op in ops if unmet[id(op)])
        raise stuck.place.error("operation", stuck.kind, "no cycle: it waits for itself")
    return ready
