"""Which loops over elements skip idle ones, by what `idle_analysis` knows of each element.

A loop may skip if everything that it stores for idle elements is unread, unchanged, or adds
nothing. Whether a value is unread depends on which other loops skip. So all loops are assumed to
skip, and those that may not are taken out, until none is left to take out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ecn_marl.lanes.graph import Map, Node, Operand, Write, tables
from ecn_marl.lanes.idle_analysis import IdleAnalysis, within
from ecn_marl.lanes.primitives import is_skippable, same
from ecn_marl.lanes.steps import Group, Step, Turns


class LoopSkipping:
    """Which loops over elements skip idle ones, for one flag.

    Attributes:
        analysis: values where the flag is False.
        skipping: loops that are still thought to skip, and by which flags. All flags share it: a
            loop that goes by one may rely on a reader that goes by another.
        classes: nodes that share a place with each.
        starts: step that first writes each node.
        readers: for each node, the loops that read it and at which elements; None where all of it
            may be needed.
        writers: for each node, the loops that write it.
    """

    def __init__(
        self,
        analysis: IdleAnalysis,
        skipping: dict[Group, Map],
        steps: list[Step],
        results: set[Node],
        classes: dict[Node, list[Node]],
        starts: dict[Node, int],
    ) -> None:
        """Collect the readers and writers of all nodes."""
        self.analysis, self.skipping = analysis, skipping
        self.classes, self.starts = classes, starts
        self._lazy = set(analysis.lazy)
        self._flag_at = next(g.at for g in _groups(steps) if analysis.flag in g.items)
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
            for operand in self.analysis.used(item):
                self.readers[operand.node].append((group, operand.where))
            self.writers[item if isinstance(item, Map) else item.store].add(group)
            if isinstance(item, Map):
                for node in tables(item):
                    self.readers[node].append((None, None))

    def take_out(self, stored: set[Node], others: Sequence[LoopSkipping]) -> bool:
        """Take out the loops of this flag that may not skip; whether there were any.

        A loop may still go by another flag. A value made for *new* slots, say, may be read in all
        slots *in use*: then its loop cannot skip slots that are not new, but those not in use.

        Args:
            stored: nodes kept in memory.
            others: the flags to try next, in order.
        """
        own = [group for group, flag in self.skipping.items() if flag is self.analysis.flag]
        any_taken_out = False
        # In the order of the program, and at once: a place that an early loop writes whole is then
        # one that later loops may leave as it is.
        for group in sorted(own, key=lambda group: group.at):
            group.prevents = [i for i in group.items if not self._has_no_effect(i, group, stored)]
            if not group.prevents:
                continue
            any_taken_out = True
            other = next((o for o in others if o._may_guard(group)), None)
            del self.skipping[group]
            if other is not None:
                self.skipping[group] = other.analysis.flag
        return any_taken_out

    def _may_guard(self, group: Group) -> bool:
        """Whether a loop comes after this flag, and has nothing to do where it is False."""
        return group.at > self._flag_at and self._lazy.issuperset(group.items)

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
        """Whether a loop skips idle elements, by this flag or by one that is then False, too."""
        flag = self.skipping.get(group)
        if flag is None or flag.size != self.analysis.n:
            return False
        known = self.analysis.whole(flag)
        return flag is self.analysis.flag or (not isinstance(known, Operand) and not known.any())

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
        # The first of them has to be written whole: before it, the place held something else.
        first = min(inside, key=self.starts.__getitem__)
        return not any(group in self.skipping for group in self.writers[first])


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
        analyses: the analysis of each flag.
        steps: all steps.
        results: nodes that are read after them.
        stored: nodes kept in memory.
        classes: nodes that share a place with each.
        starts: step that first writes each.

    Returns:
        The flags that are used.
    """
    flags = [analysis.flag for analysis in analyses]
    skipping = {g: g.key for g in _groups(steps) if g.key is not None and g.key in flags}
    proofs = [LoopSkipping(a, skipping, steps, results, classes, starts) for a in analyses]
    # Start from all, and take out until nothing changes: whether one loop may skip depends on
    # others. A list, not a generator: `any` would stop at the first flag, and all are settled
    # together.
    while any([proof.take_out(stored, proofs[k + 1 :]) for k, proof in enumerate(proofs)]):
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
