"""Which loops over elements pass over idle ones, see `idle_analysis`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ecn_marl.lanes.graph import Map, Node, Operand, Write, tables
from ecn_marl.lanes.idle_analysis import Idle, within
from ecn_marl.lanes.primitives import is_skippable, same
from ecn_marl.lanes.steps import Group, Step, Turns


class Passing:
    """Which loops over elements pass over what is idle."""

    def __init__(
        self,
        idle: Idle,
        steps: list[Step],
        classes: dict[Node, list[Node]],
        starts: dict[Node, int],
    ) -> None:
        """Start from all that come after the flag, and leave out those that may not."""
        self.idle, self.classes, self.starts = idle, classes, starts
        self.readers: dict[Node, list[tuple[Group | None, np.ndarray | None]]] = defaultdict(list)
        self.writers: dict[Node, set[Group]] = defaultdict(set)
        for group in _groups(steps):
            self._note(group)
        for turns in _turns(steps):
            for value in (*turns.loop.initial, *turns.loop.following):
                self.readers[value.node].append((None, None))
        self.groups = {g for g in _groups(steps) if g.key is idle.flag}

    def _note(self, group: Group) -> None:
        for item in group.items:
            for operand in self.idle.used(item):
                self.readers[operand.node].append((group, operand.where))
            self.writers[item if isinstance(item, Map) else item.store].add(group)
            if isinstance(item, Map):
                for node in tables(item):
                    self.readers[node].append((None, None))

    def settle(self, results: set[Node], stored: set[Node]) -> set[Group]:
        """Leave out groups until all that are left may pass."""
        for node in results:
            self.readers[node].append((None, None))
        while True:
            wrong = {g for g in self.groups if not all(self._free(i, g, stored) for i in g.items)}
            if not wrong:
                return self.groups
            self.groups -= wrong

    def _free(self, item: Map | Write, group: Group, stored: set[Node]) -> bool:
        """Whether an item has no effect where it is idle."""
        if isinstance(item, Map):
            if not is_skippable(item):
                return False
            return item not in stored or self._unread(item) or self._lies_there(item)
        if self.idle.adds_nothing(item):
            return True
        if item.fixed is None or not self.idle.aligned(item.fixed):
            return False
        return self._unread(item.store) or (item.op == "set" and self._lies_there(item.store))

    def _unread(self, node: Node) -> bool:
        """Whether only groups that pass read a node, each only its own elements."""
        return node.size % self.idle.n == 0 and all(
            g is not None and where is not None and self._passes(g) and self.idle.aligned(where)
            for g, where in self.readers[node]
        )

    def _passes(self, group: Group) -> bool:
        """Whether a group passes over what is idle, because of this flag or one that follows."""
        if group in self.groups:
            return True
        if group.flag is None or group.flag.size != self.idle.n:
            return False
        known = self.idle.whole(group.flag)
        return not isinstance(known, Operand) and not known.any()

    def _lies_there(self, node: Node) -> bool:
        """Whether the place of a node holds its idle elements already."""
        value, block = self.idle.whole(node), self.idle.block
        if node.size % self.idle.n or (isinstance(value, Operand) and value.node is node):
            return False
        inside = [n for n in self.classes[node] if n.block is not None and within(n.block, block)]
        if node.block is block:  # of interest is what is written from the old value to the new one
            inside = [n for n in inside if self.starts[n] <= self.starts[node]]
            if isinstance(value, Operand) and value.node in inside:
                inside = [n for n in inside if self.starts[n] >= self.starts[value.node]]
        if not all(same(self.idle.whole(n), value) for n in inside):
            return False
        # What is written first is written whole.
        first = min(inside, key=self.starts.__getitem__)
        return not self.writers[first] & self.groups


def find_passing(
    idles: list[Idle],
    steps: list[Step],
    results: set[Node],
    stored: set[Node],
    classes: dict[Node, list[Node]],
    starts: dict[Node, int],
) -> list[Map]:
    """Set the flag of all groups that may pass over idle elements.

    Args:
        idles: what is known of each flag.
        steps: all steps.
        results: nodes that are read after them.
        stored: nodes kept in memory.
        classes: nodes that share a place with each.
        starts: step that first writes each.

    Returns:
        The flags that are used.
    """
    used = []
    for idle in idles:
        groups = Passing(idle, steps, classes, starts).settle(results, stored)
        for group in groups:
            group.flag = idle.flag
        used += [idle.flag] if groups else []
    return used


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
