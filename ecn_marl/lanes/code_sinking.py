"""Code sinking: values move to the only loop that needs them, so that fewer pass through memory.

A value that one loop computes and a later one needs is stored and loaded. It moves to the later
loop if that takes fewer loads and stores, for example if the later loop loads its operands anyway.
"""

from __future__ import annotations

from collections import defaultdict

from ecn_marl.lanes.graph import (
    Carry,
    Constant,
    Final,
    Map,
    Node,
    Write,
    is_identity,
    reads,
    tables,
)
from ecn_marl.lanes.primitives import is_movable
from ecn_marl.lanes.steps import Group, Step, Turns

PASSES = 4
"""Passes over all values: moving one value can make it worthwhile to move another."""

STORE_AND_LOAD = 2
"""Cost of leaving a value where it is: it is stored once and loaded once."""

SECOND_PLACE = 4
"""Cost of reading a carried value after its next one is computed: both then need a place of their
own, the whole array is copied in every turn, and loops that change it cannot skip idle elements."""


class _Readers:
    """Readers of all nodes within one list of steps.

    Attributes:
        pinned: nodes that stay where they are: read from outside, inside loops of the program, or
            at other elements than the reader's own.
        by: items that read each node.
        at: step of each item.
        loads: nodes that each step reads element by element.
    """

    def __init__(self, steps: list[Step], kept: set[Node]) -> None:
        """Go through all steps, those of loops included; `kept` is read from outside."""
        self.pinned = set(kept)
        self.by: dict[Node, set[Map | Write]] = defaultdict(set)
        self.at: dict[Map | Write, int] = {}
        self.loads: dict[int, set[Node]] = defaultdict(set)
        for k, step in enumerate(steps):
            if isinstance(step, Turns):
                self._pin_inner(step)
                continue
            for item in step.items:
                self.at[item] = k
                for operand in reads(item):
                    self.by[operand.node].add(item)
                    if is_identity(operand, step.size):
                        self.loads[k].add(operand.node)
                    else:
                        self.pinned.add(operand.node)
                self._pin_tables(item)

    def _pin_tables(self, item: Map | Write) -> None:
        if isinstance(item, Map):
            self.pinned |= set(tables(item))

    def _pin_inner(self, turns: Turns) -> None:
        """Pin what a loop of the program reads: inside it, each turn would compute it again."""
        for _, operand in (
            *turns.carried(turns.loop.initial),
            *turns.carried(turns.loop.following),
        ):
            self.pinned.add(operand.node)
        for step in turns.steps:
            if isinstance(step, Turns):
                self._pin_inner(step)
                continue
            for item in step.items:
                self.pinned |= {o.node for o in reads(item)}
                self._pin_tables(item)

    def groups(self, node: Node) -> set[int]:
        """Steps that read a node."""
        return {self.at[i] for i in self.by[node]}


def sink(steps: list[Step], kept: set[Node], following: dict[Node, Node]) -> None:
    """Move values to the steps that need them.

    Args:
        steps: steps of one block, in order; changed in place.
        kept: nodes that are read after them.
        following: what each carried value, or result of an inner loop, becomes at the end of the
            turn.
    """
    for _ in range(PASSES):
        readers, moved = _Readers(steps, kept), False
        # Backwards: readers move first, and their operands may then follow them.
        for k in range(len(steps) - 1, -1, -1):
            step = steps[k]
            if isinstance(step, Turns):
                continue
            for item in reversed(list(step.items)):
                # It may have moved already, with a value that it is computed for.
                if item not in step.items or not isinstance(item, Map):
                    continue
                to = _target(item, k, step, steps, readers)
                if to is None:
                    continue
                cone = _cone(item, k, readers)
                if _cost(cone, k, to, steps, readers, following) >= STORE_AND_LOAD:
                    continue
                chosen = [i for i in step.items if i in cone]
                step.items = [i for i in step.items if i not in cone]
                target = steps[to]
                assert isinstance(target, Group)
                target.items = [*chosen, *target.items]
                for i in chosen:
                    readers.at[i] = to
                    readers.loads[to] |= {o.node for o in reads(i)}
                moved = True
        if not moved:
            break
    steps[:] = [s for s in steps if isinstance(s, Turns) or s.items]


def _target(item: Map, k: int, step: Group, steps: list[Step], readers: _Readers) -> int | None:
    """The one later step that needs an item; None if there is no such."""
    if not is_movable(item) or item in readers.pinned:
        return None
    where = readers.groups(item)
    if len(where) != 1:
        return None
    (to,) = where
    target = steps[to]
    if to <= k or not isinstance(target, Group):
        return None
    # Loops that skip by different flags do not compute the same elements.
    if target.size != step.size or target.key is not step.key:
        return None
    return to


def _cone(item: Map, k: int, readers: _Readers) -> set[Map | Write]:
    """An item and what only serves to compute it, within its step."""
    cone: set[Map | Write] = {item}
    waiting = [item]
    while waiting:
        for operand in waiting.pop().operands:
            node = operand.node
            if not isinstance(node, Map) or node in cone or readers.at.get(node) != k:
                continue
            # What others read, too, would have to be computed twice.
            alone = node not in readers.pinned and readers.by[node] <= cone
            if alone and is_movable(node):
                cone.add(node)
                waiting.append(node)
    return cone


def _cost(
    cone: set[Map | Write],
    k: int,
    to: int,
    steps: list[Step],
    readers: _Readers,
    following: dict[Node, Node],
) -> int:
    """Loads and stores that computing a cone in another step adds."""
    cost = 0
    for node in {o.node for i in cone for o in reads(i)} - cone:
        if isinstance(node, Constant) or node in readers.loads[to]:
            continue
        here = isinstance(node, Map) and readers.at.get(node) == k
        stored = node in readers.pinned or any(g != k for g in readers.groups(node))
        # A node that lived in a register until now has to be stored as well as loaded.
        cost += 2 if here and not stored else 1
    for node in {o.node for i in cone for o in reads(i)}:
        if isinstance(node, Carry | Final) and node in following:
            after = following[node]
            when = readers.at.get(after) if isinstance(after, Map) else None
            writes = getattr(after, "writes", [])
            when = max([readers.at.get(w, -1) for w in writes], default=when)
            if when is not None and when < to and not any(g >= to for g in readers.groups(node)):
                cost += SECOND_PLACE
    return cost
