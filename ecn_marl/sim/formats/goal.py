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

A send becomes a flow from host RANK, a unit of computation 1 ns as in LogGOPSim; see `schedules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ecn_marl._errors import bad_value
from ecn_marl.errors import InvalidInput
from ecn_marl.sim.formats.lines import whole, whole_text
from ecn_marl.sim.formats.schedules import KINDS, Op, Schedule, scheduled
from ecn_marl.sim.traffic.graphs import Node, check_nodes
from ecn_marl.sim.traffic.trace import Place

LABEL = re.compile(r"([A-Za-z][A-Za-z0-9_]*):")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

ORDERS = ("requires", "irequires")


def read_goal(path: str | Path) -> Schedule:
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
    return scheduled(path, ranks, ops)


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


def _lines(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Words of every line, comments apart."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    for number, line in enumerate(COMMENT.sub(blank, whole_text(path)).splitlines(), start=1):
        if words := line.replace("{", " { ").replace("}", " } ").split():
            yield Place(path, number), words


def _parsed(path: Path) -> tuple[int, list[Op]]:
    """Number of ranks, and all operations."""
    ranks, rank, ops = 0, -1, []
    seen: set[int] = set()
    labels: dict[str, Op] = {}
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


def _labelled(place: Place, labels: Mapping[str, Op], label: str) -> Op:
    if label not in labels:
        raise place.error("label", label, "a label of this rank, above")
    return labels[label]


def _operation(place: Place, words: list[str], rank: int, ranks: int) -> Op:
    """`send|recv SIZEb to|from RANK [tag T] [cpu C] [nic N]`, `calc TIME [cpu C]`."""
    if len(words) < 2 or words[0] not in KINDS:
        allowed = "send, recv or calc, LABEL requires LABEL, LABEL irequires LABEL, or }"
        raise place.error("line", " ".join(words), allowed)
    kind = words[0]
    if kind == "calc":
        _options(place, words[2:], ("cpu",))
        return Op(place, kind, rank, whole(place, "calc", words[1]))
    word = "to" if kind == "send" else "from"
    if len(words) < 4 or words[2] != word or not words[1].endswith("b"):
        raise place.error(kind, " ".join(words), f"{kind} SIZEb {word} RANK")
    if words[3] == "-1":
        raise place.error("from", "-1", "a rank: receives from any source have no place here")
    peer, size = _rank(place, words[3], ranks), whole(place, "size", words[1][:-1], low=1)
    if peer == rank:
        raise place.error(word, words[3], "another rank")
    options = _options(place, words[4:], ("tag", "cpu", "nic"))
    return Op(place, kind, rank, size, peer, options.get("tag", 0))


def _options(place: Place, words: list[str], known: tuple[str, ...]) -> dict[str, int]:
    """Pairs of a word and a number."""
    pairs = dict(zip(words[::2], words[1::2], strict=False))
    if len(words) % 2 or any(name not in known for name in pairs):
        raise place.error("line", " ".join(words), " ".join(f"[{name} N]" for name in known))
    return {name: whole(place, name, word) for name, word in pairs.items()}
