"""Places in memory: how long nodes are needed, which share a place, and where places are.

A carried value and its next value share a place, if no element is overwritten before its last use
(coalescing). State is then updated in place.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ecn_marl.lanes.graph import (
    BOOL,
    Argument,
    Carry,
    Constant,
    Map,
    Node,
    Operand,
    View,
    is_identity,
    reads,
    tables,
)
from ecn_marl.lanes.loop_skipping import after
from ecn_marl.lanes.steps import Step, Turns

PADDING = 320
"""Bytes between arrays, so that equally long ones do not all compete for the same cache sets.

On the one machine where it was measured it made no difference.
"""

ITERATIONS = 1 << 32
"""More than any loop over elements has: `step * ITERATIONS + turn` orders all turns of a plan."""


@dataclass(eq=False, repr=False)
class _Lifetime:
    """The steps for which a node needs its place.

    Attributes:
        start: first step that writes it.
        end: last step that reads it.
        read: for every element, when it is last read (step and turn).
        written: for every element, when it is first written.
    """

    start: int
    end: int
    read: np.ndarray
    written: np.ndarray


class Liveness:
    """Which nodes are kept in memory, from when until when, element by element.

    Attributes:
        stored: nodes that are kept in memory.
        pairs: nodes that save a copy if they share a place, in order of preference.
        always: nodes that have to share one.
        conflicts: nodes that must not share one.
        boundaries: steps that copy a loop's values, before and after its turns.
        lifetimes: of every stored node.
    """

    def __init__(self, steps: list[Step], results: list[View], flags: list[Map], end: int) -> None:
        """Go through all steps in order."""
        self.stored: set[Node] = set()
        self.pairs: list[tuple[Node, Node]] = []
        self.boundaries: set[int] = {end}
        self._reads: dict[Node, list[tuple[int, np.ndarray | None]]] = defaultdict(list)
        self._writes: dict[Node, list[tuple[int, np.ndarray | None]]] = defaultdict(list)
        self.conflicts: set[frozenset[Node]] = set()
        self.always: list[tuple[Node, Node]] = []
        self._walk(steps, [])
        for result in results:
            self._read(result.node, end, None, [])
        for flag in flags:
            self.stored.add(flag)
            for step in after(flag, steps):
                last = step.end if isinstance(step, Turns) else step.at
                self._reads[flag].append((last, None))
        self.nodes = [n for n in self._writes if n in self.stored]
        self.lifetimes = {n: self._lifetime(n) for n in self.nodes}

    def _walk(self, steps: list[Step], around: list[Turns]) -> None:
        for step in steps:
            if isinstance(step, Turns):
                self._loop(step, around)
                continue
            inside = {i for i in step.items if isinstance(i, Map)}
            for item in step.items:
                for operand in reads(item):
                    near = operand.node in inside and is_identity(operand, step.size)
                    if not near:
                        self._read(operand.node, step.at, operand.where, around)
                if isinstance(item, Map):
                    self._writes[item].append((step.at, np.arange(item.size)))
                    for node in tables(item):
                        self._read(node, step.at, None, around)
                    # A product is written to memory block by block, and never handed on in
                    # registers.
                    if item.factors:
                        self.stored.add(item)
                else:
                    self.stored.add(item.store)
                    self._writes[item.store].append((step.at, item.fixed))
                    whole = item is item.store.writes[0] and item.op == "set"
                    if whole and is_identity(item.value, item.store.size) and item.place is None:
                        self.pairs.append((item.store, item.value.node))

    def _loop(self, turns: Turns, around: list[Turns]) -> None:
        loop = turns.loop
        self.boundaries |= {turns.at, turns.end}
        for carry, start in turns.carried(loop.initial):
            self.stored.add(carry)
            self._writes[carry].append((turns.at, None))
            self._read(start.node, turns.at, start.where, around)
        self._walk(turns.steps, [*around, turns])
        for carry, value in turns.carried(loop.following):
            self._read(value.node, turns.end, value.where, [*around, turns])
            if value.node is not carry:
                self.pairs.append((value.node, carry))
        for carry, start in turns.carried(loop.initial):
            # Elements that are copied to other positions would overwrite each other in one place.
            if is_identity(start, carry.size):
                self.pairs.append((start.node, carry))
            else:
                self.conflicts.add(frozenset({carry, start.node}))
        for values in (loop.initial, loop.following):
            self._keep_copies_apart(turns.carried(values))
        for final in turns.finals:
            self.stored.add(final)
            self._writes[final].append((turns.end, None))
            self.always.append((final.carry, final))

    def _keep_copies_apart(self, carried: list[tuple[Carry, Operand]]) -> None:
        """Keep all values apart from the places that other values are copied to.

        They are copied one after the other, so an early copy could overwrite a later source.
        """
        for carry, own in carried:
            for _, other in carried:
                if other.node is not own.node:
                    self.conflicts.add(frozenset({carry, other.node}))

    def _read(self, node: Node, at: int, where: np.ndarray | None, around: list[Turns]) -> None:
        if isinstance(node, Constant) or (isinstance(node, Argument) and not node.varies):
            return
        self.stored.add(node)
        if isinstance(node, Argument) and node not in self._writes:
            self._writes[node].append((0, None))
        depth = len(around)
        keep = node.block.depth if node.block is not None else 0
        # An inner loop reads it in each of its turns, so it is needed until that loop ends.
        if depth > keep:
            at, where = around[keep].end, None
        self._reads[node].append((at, where))

    def _lifetime(self, node: Node) -> _Lifetime:
        size, writes, reading = node.size, self._writes[node], self._reads[node]
        start = min(at for at, _ in writes)
        # Step and turn in one integer: comparing two arrays then compares all elements at once.
        read, written = np.zeros(size, np.int64), np.full(size, np.iinfo(np.int64).max)
        for at, where in reading:
            if where is None:
                read = np.maximum(read, at * ITERATIONS + ITERATIONS - 1)
            else:
                # `at`: an element may be read in several turns.
                np.maximum.at(read, where, at * ITERATIONS + np.arange(len(where)))
        for at, where in writes:
            if where is None:
                written = np.minimum(written, at * ITERATIONS)
            else:
                np.minimum.at(written, where, at * ITERATIONS + np.arange(len(where)))
        end = max([start, *(at for at, _ in reading), *(at for at, _ in writes)])
        return _Lifetime(start, end, read, written)

    def apart(self, a: _Lifetime, b: _Lifetime) -> bool:
        """Whether two nodes may share a place: one is last read before the other is written."""
        if a.start > b.start:
            a, b = b, a
        if a.end < b.start or (a.end == b.start and a.end in self.boundaries):
            return True
        # Written by one step, both exist at the same time.
        if a.start == b.start or a.read.size != b.read.size:
            return False
        # Equal is enough: a turn stores after all that it reads (`LoopBody.finish`).
        return bool((a.read <= b.written).all())


def coalesced(live: Liveness) -> dict[Node, list[Node]]:
    """Classes of nodes that share a place: pairs are joined while no lifetimes overlap."""
    classes = {n: [n] for n in live.nodes}
    for a, b in live.always:
        classes[a].append(b)
        classes[b] = classes[a]
    for a, b in live.pairs:
        if a not in classes or b not in classes or classes[a] is classes[b]:
            continue
        if (a.size, a.dtype, a.varies) != (b.size, b.dtype, b.varies):
            continue
        one, two = classes[a], classes[b]
        pairs = list(itertools.product(one, two))
        if any(frozenset(p) in live.conflicts for p in pairs):
            continue
        if all(live.apart(live.lifetimes[x], live.lifetimes[y]) for x, y in pairs):
            one.extend(two)
            for node in two:
                classes[node] = one
    return classes


def element_bytes(node: Node, lanes: int, threads: bool = False) -> int:
    """Bytes of an element in the workspace: numbers are 4 B a lane, flags a bit (threads: 4 B)."""
    if node.varies:
        return max(lanes // 8, 1) if node.dtype == BOOL and not threads else 4 * lanes
    return 1 if node.dtype == BOOL else 4


def allocated(
    live: Liveness, classes: dict[Node, list[Node]], lanes: int, threads: bool
) -> tuple[dict[Node, int], int, int]:
    """Offsets of all stored nodes, and the sizes of the two workspaces, bytes.

    First fit, longest lifetimes first: placed last, they would leave holes.
    """
    offsets: dict[Node, int] = {}
    shared = 0
    ranges: list[tuple[int, int, int, int]] = []  # start, end, low, high
    # Classes are lists, which have no hash, and several nodes lead to the same one.
    groups = {id(c): c for c in classes.values()}.values()
    hull = {
        id(c): (
            min(live.lifetimes[n].start for n in c),
            max(live.lifetimes[n].end for n in c),
        )
        for c in groups
    }
    for group in sorted(groups, key=lambda c: (-(hull[id(c)][1] - hull[id(c)][0]), hull[id(c)])):
        node = group[0]
        line = 16 if threads and lanes == 1 else 64
        size = -(-node.size * element_bytes(node, lanes, threads) // line) * line
        size += 0 if threads else PADDING
        # Shared values are computed before the first vector and read by all: their places are never
        # free.
        if not node.varies:
            for n in group:
                offsets[n] = shared
            shared += size
            continue
        start, end = hull[id(group)]
        low = 0
        busy = sorted((lo, hi) for s, e, lo, hi in ranges if s <= end and start <= e)
        for lo, hi in busy:
            if low + size <= lo:
                break
            low = max(low, hi)
        ranges.append((start, end, low, low + size))
        for n in group:
            offsets[n] = low
    return offsets, max((t[3] for t in ranges), default=0), shared
