"""Which loops over elements skip idle ones; `idle_analysis` knows what each element is there.

A loop may skip if all that it stores is unread, unchanged, or adds nothing where the flag is False.
Whether something is unread depends on which other loops skip: all are assumed to, and those that
may not are taken out until no more have to be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ecn_marl.lanes.graph import Map, Node, Operand, Write, tables
from ecn_marl.lanes.idle_analysis import IdleAnalysis, within
from ecn_marl.lanes.primitives import is_skippable, same
from ecn_marl.lanes.steps import Group, Step, Turns


class LoopSkipping:
    """Which loops over elements skip what is idle, for one flag.

    Attributes:
        analysis: what is known where the flag is False.
        classes: nodes that share a place with each.
        starts: step that first writes each node.
        readers: for each node, the loops that read it and at which elements; None where all of it
            may be needed.
        writers: for each node, the loops that write it.
        groups: loops that are still thought to skip.
    """

    def __init__(
        self,
        analysis: IdleAnalysis,
        steps: list[Step],
        classes: dict[Node, list[Node]],
        starts: dict[Node, int],
    ) -> None:
        """Start from all loops that wait for the flag."""
        self.analysis, self.classes, self.starts = analysis, classes, starts
        self.readers: dict[Node, list[tuple[Group | None, np.ndarray | None]]] = defaultdict(list)
        self.writers: dict[Node, set[Group]] = defaultdict(set)
        for group in _groups(steps):
            self._note(group)
        for turns in _turns(steps):
            for value in (*turns.loop.initial, *turns.loop.following):
                self.readers[value.node].append((None, None))
        self.groups = {g for g in _groups(steps) if g.key is analysis.flag}

    def _note(self, group: Group) -> None:
        for item in group.items:
            for operand in self.analysis.used(item):
                self.readers[operand.node].append((group, operand.where))
            self.writers[item if isinstance(item, Map) else item.store].add(group)
            if isinstance(item, Map):
                for node in tables(item):
                    self.readers[node].append((None, None))

    def settle(self, results: set[Node], stored: set[Node]) -> set[Group]:
        """Take out loops until all that are left may skip."""
        for node in results:
            self.readers[node].append((None, None))
        while True:
            not_allowed = {
                g
                for g in self.groups
                if not all(self._has_no_effect(i, g, stored) for i in g.items)
            }
            if not not_allowed:
                return self.groups
            self.groups -= not_allowed

    def _has_no_effect(self, item: Map | Write, group: Group, stored: set[Node]) -> bool:
        """Whether an item has no effect where it is idle."""
        if isinstance(item, Map):
            if not is_skippable(item):
                return False
            return item not in stored or self._unread(item) or self._is_unchanged(item)
        if self.analysis.adds_nothing(item):
            return True
        if item.fixed is None or not self.analysis.aligned(item.fixed):
            return False
        return self._unread(item.store) or (item.op == "set" and self._is_unchanged(item.store))

    def _unread(self, node: Node) -> bool:
        """Whether only loops that skip read a node, each only its own elements."""
        return node.size % self.analysis.n == 0 and all(
            g is not None and where is not None and self._skips(g) and self.analysis.aligned(where)
            for g, where in self.readers[node]
        )

    def _skips(self, group: Group) -> bool:
        """Whether a loop skips what is idle, by this flag or by one that follows from it."""
        if group in self.groups:
            return True
        if group.flag is None or group.flag.size != self.analysis.n:
            return False
        known = self.analysis.whole(group.flag)
        return not isinstance(known, Operand) and not known.any()

    def _is_unchanged(self, node: Node) -> bool:
        """Whether the place of a node holds its idle elements already."""
        value, block = self.analysis.whole(node), self.analysis.block
        if node.size % self.analysis.n or (isinstance(value, Operand) and value.node is node):
            return False
        inside = [n for n in self.classes[node] if n.block is not None and within(n.block, block)]
        if node.block is block:
            # What is written before the old value or after the new one is overwritten or unread.
            inside = [n for n in inside if self.starts[n] <= self.starts[node]]
            if isinstance(value, Operand) and value.node in inside:
                inside = [n for n in inside if self.starts[n] >= self.starts[value.node]]
        if not all(same(self.analysis.whole(n), value) for n in inside):
            return False
        # The first of them has to be written whole: before it, something else lay there.
        first = min(inside, key=self.starts.__getitem__)
        return not self.writers[first] & self.groups


def mark_skipping(
    analyses: list[IdleAnalysis],
    steps: list[Step],
    results: set[Node],
    stored: set[Node],
    classes: dict[Node, list[Node]],
    starts: dict[Node, int],
) -> list[Map]:
    """Set `Group.flag` of all loops that may skip idle elements.

    Args:
        analyses: what is known of each flag.
        steps: all steps.
        results: nodes that are read after them.
        stored: nodes kept in memory.
        classes: nodes that share a place with each.
        starts: step that first writes each.

    Returns:
        The flags that are used.
    """
    used_flags = []
    for analysis in analyses:
        groups = LoopSkipping(analysis, steps, classes, starts).settle(results, stored)
        for group in groups:
            group.flag = analysis.flag
        used_flags += [analysis.flag] if groups else []
    return used_flags


def after(flag: Map, steps: list[Step]) -> list[Step]:
    """Steps of a flag's block that come after it."""
    for k, step in enumerate(steps):
        if isinstance(step, Group) and flag in step.items:
            return steps[k + 1 :]
        inner = after(flag, step.steps) if isinstance(step, Turns) else []
        if inner:
            return inner
    return []


def _groups(steps: list[Step]) -> Iterator[Group]:
    for step in steps:
        if isinstance(step, Group):
            yield step
        else:
            yield from _groups(step.steps)


def _turns(steps: list[Step]) -> Iterator[Turns]:
    for step in steps:
        if isinstance(step, Turns):
            yield step
            yield from _turns(step.steps)
