"""Which loops over elements pass over idle ones, see `idle_analysis`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ecn_marl.lanes.graph import Map, Node, Operand, Write, tables
from ecn_marl.lanes.idle_analysis import Idle, within
from ecn_marl.lanes.primitives import is_skippable, same
from ecn_marl.lanes.steps import Group, Step, Turns


class Passing:
    """Which loops over elements pass over what is idle.

    Attributes:
        skipping: loops that may still pass over elements, and the flags they go by. All flags share
            it: a loop that goes by one may rely on a reader that goes by another.
    """

    def __init__(
        self,
        idle: Idle,
        skipping: dict[Group, Map],
        steps: list[Step],
        results: set[Node],
        classes: dict[Node, list[Node]],
        starts: dict[Node, int],
    ) -> None:
        """Find who reads and who writes what."""
        self.idle, self.skipping, self.classes, self.starts = idle, skipping, classes, starts
        self.lazy = set(idle.lazy)
        self.flag_at = next(g.at for g in _groups(steps) if idle.flag in g.items)
        self.readers: dict[Node, list[tuple[Group | None, np.ndarray | None]]] = defaultdict(list)
        self.writers: dict[Node, set[Group]] = defaultdict(set)
        for group in _groups(steps):
            self._note(group)
        for turns in _turns(steps):
            for value in (*turns.loop.initial, *turns.loop.following):
                self.readers[value.node].append((None, None))
        for node in results:
            self.readers[node].append((None, None))

    def _note(self, group: Group) -> None:
        for item in group.items:
            for operand in self.idle.used(item):
                self.readers[operand.node].append((group, operand.where))
            self.writers[item if isinstance(item, Map) else item.store].add(group)
            if isinstance(item, Map):
                for node in tables(item):
                    self.readers[node].append((None, None))

    def leave_out(self, stored: set[Node], others: Sequence[Passing]) -> bool:
        """Leave out the loops of this flag that may not pass; whether there were any.

        A loop may still go by another flag, of which less is asked: values that do not serve where
        a slot is not *new* may be read wherever it is *in use*.

        Args:
            stored: nodes kept in memory.
            others: the flags to try then, in their order.
        """
        wrong = [
            group
            for group, flag in self.skipping.items()
            if flag is self.idle.flag and not all(self._free(i, group, stored) for i in group.items)
        ]
        for group in wrong:
            group.prevents = [i for i in group.items if not self._free(i, group, stored)]
        for group in wrong:
            del self.skipping[group]
            follows = next((o for o in others if o.may_guard(group)), None)
            if follows is not None:
                self.skipping[group] = follows.idle.flag
        return bool(wrong)

    def may_guard(self, group: Group) -> bool:
        """Whether a loop comes after this flag, and has nothing to do where it is False."""
        return group.at > self.flag_at and self.lazy.issuperset(group.items)

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
        """Whether a loop passes over what is idle, by this flag or one that is False then too."""
        flag = self.skipping.get(group)
        if flag is None or flag.size != self.idle.n:
            return False
        known = self.idle.whole(flag)
        return flag is self.idle.flag or (not isinstance(known, Operand) and not known.any())

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
        return not any(group in self.skipping for group in self.writers[first])


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
    flags = [idle.flag for idle in idles]
    skipping = {g: g.key for g in _groups(steps) if g.key is not None and g.key in flags}
    proofs = [Passing(idle, skipping, steps, results, classes, starts) for idle in idles]
    # Start from all, and leave out until nothing changes: what one loop may do hangs on the others.
    while any([proof.leave_out(stored, proofs[k + 1 :]) for k, proof in enumerate(proofs)]):
        pass
    for group, flag in skipping.items():
        group.flag = flag
    used = set(skipping.values())
    return [flag for flag in flags if flag in used]


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
