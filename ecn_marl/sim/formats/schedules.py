"""Schedules of sends, receives and computations of ranks, as graphs of flows.

What GOAL and Chakra have in common. A send becomes a flow. A computation becomes the delay of the
flows that wait for it. A receive is over when its flow has finished, whose last ACK arrives half a
round trip after its last byte. A send is over when its flow has finished. Sends and receives of two
ranks are matched by tag, in the order of the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ecn_marl.errors import InvalidInput
from ecn_marl.sim.traffic.graphs import Node, check_nodes
from ecn_marl.sim.traffic.trace import Place

KINDS = ("send", "recv", "calc")


class Schedule(NamedTuple):
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
class Op:
    """An operation of a rank.

    Attributes:
        place: where it is in the file.
        kind: of `KINDS`.
        rank: its rank.
        amount: bytes, or ns of time.
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
    after: list[Op] = field(default_factory=list)
    beside: list[Op] = field(default_factory=list)
    flow: str = ""


def scheduled(path: Path, ranks: int, ops: list[Op]) -> Schedule:
    """The graph of the flows of a schedule.

    Args:
        path: the file, for messages.
        ranks: number of ranks.
        ops: operations of all ranks; those of a rank in the order of the file.

    Raises:
        InvalidInput: a receive without its send or of another size, a cycle, or no send.
    """
    _match(ops)
    begins: dict[int, dict[str, float]] = {}
    ends: dict[int, dict[str, float]] = {}
    uneven, nodes = 0, []
    for op in _in_order(ops):
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
    return Schedule(tuple(nodes), ranks, tuple(notes))


START = ""
"""Stands for the start of the schedule among what an operation waits for."""


def _latest(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What has to be over before, and the time from then on, µs: the longest of each."""
    merged: dict[str, float] = {} if parts else {START: 0.0}
    for part in parts:
        for flow, delay in part.items():
            merged[flow] = max(delay, merged.get(flow, 0.0))
    return merged


def _match(ops: list[Op]) -> None:
    """Give sends the ids of their flows, and receives those of the flows that they wait for."""
    sent: dict[tuple[int, int, int], deque[Op]] = {}
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


def _in_order(ops: list[Op]) -> list[Op]:
    """Operations such that each comes after what it waits for in its rank."""
    unmet = {id(op): len(op.after) + len(op.beside) for op in ops}
    waiting: dict[int, list[Op]] = {id(op): [] for op in ops}
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
