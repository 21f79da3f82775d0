"""The schedule: in what order, in which loops and where in memory nodes are computed.

*Loops*: items of one size that read each other element by element share a loop (`Group`). Their
values pass from one to the next in registers. *Places*: nodes that have to be stored get a place in
a workspace. A carried value and its next value share a place, if no element is overwritten before
its last use (coalescing). State is then updated in place.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ecn_marl.lanes.code_sinking import sink
from ecn_marl.lanes.graph import (
    BOOL,
    Argument,
    Block,
    Carry,
    Constant,
    Final,
    Loop,
    Map,
    Node,
    Operand,
    Store,
    View,
    Write,
    is_identity,
    reads,
    tables,
)
from ecn_marl.lanes.idle_analysis import IdleAnalysis
from ecn_marl.lanes.loop_skipping import after, mark_skipping
from ecn_marl.lanes.steps import Group, Step, Turns

PADDING = 320
"""Bytes between arrays, so that equally long ones do not all compete for the same cache sets.

On the one machine where it was measured it made no difference.
"""

ITERATIONS = 1 << 32
"""More than any loop over elements has: `step * ITERATIONS + turn` orders all turns of a plan."""


@dataclass(eq=False, repr=False)
class Plan:
    """A program ready to be written out.

    Attributes:
        shared: steps done once for all environments.
        steps: steps done for every vector of environments.
        offsets: place of every stored node, bytes from the start of its workspace.
        own_bytes: workspace of a vector of environments.
        shared_bytes: workspace of shared values.
        stored: nodes kept in memory.
        lists: place of the list of busy elements of every flag by which loops skip: their numbers
            (i32), and how many there are behind the last; in the shared workspace if a vector is
            one of threads.
    """

    shared: list[Step]
    steps: list[Step]
    offsets: dict[Node, int]
    own_bytes: int
    shared_bytes: int
    stored: set[Node]
    lists: dict[Map, int]


def make_plan(
    top: Block, results: list[View], flags: list[Map], lanes: int, threads: bool = False
) -> Plan:
    """Order, loops and places of a lowered program.

    Args:
        top: its outermost block.
        results: its results.
        flags: which elements are busy, see `idle_analysis`.
        lanes: environments in a vector.
        threads: whether each environment of a vector has a thread of its own (`kernel`).
    """
    needed = _needed(results)
    kept: set[Node] = {r.node for r in results}
    flags = [f for f in flags if f in needed and f.varies]
    analyses = [IdleAnalysis(f, kept, needed) for f in flags]
    # An item that could go by several flags goes by one of the innermost loop, where few elements
    # are busy at a time, and of these by the one marked first.
    analyses.sort(key=lambda analysis: -analysis.block.depth)
    # Flags are computed for all elements, in loops that do not skip.
    of_flags = set[Node]().union(*(analysis.before for analysis in analyses))
    keys: dict[Map | Write, list[Map]] = defaultdict(list)
    for analysis in analyses:
        for item in analysis.lazy:
            if item not in of_flags:
                keys[item].append(analysis.flag)
    shared = _steps([i for i in top.items if not _differs(i)], needed, {})
    steps = _steps([i for i in top.items if _differs(i)], needed, keys)
    for program_steps in (shared, steps):
        _sink_all(program_steps, kept | set(flags), {})
    count = itertools.count(1)
    for step in (*shared, *steps):
        _number(step, count)
    end = next(count)
    live = _Liveness(shared + steps, results, flags, end)
    for analysis in analyses:
        live.pairs += analysis.old_places()
    classes = _coalesced(live)
    starts = {n: s.start for n, s in live.lifetimes.items()}
    used = mark_skipping(analyses, steps, kept, live.stored, classes, starts)
    offsets, own, common = _allocated(live, classes, lanes, threads)
    lists = {}
    for flag in used:
        # Whole lines of 64 bytes, so that what comes next stays aligned.
        size = -(-4 * (flag.size + 1) // 64) * 64
        if threads:
            lists[flag], common = common, common + size
        else:
            lists[flag], own = own, own + size
    return Plan(shared, steps, offsets, own, common, live.stored, lists)


def _differs(item: Map | Write | Loop) -> bool:
    """Whether an item differs between environments."""
    # What a loop carries always varies (`control_flow`), so each vector runs its own turns.
    if isinstance(item, Loop):
        return True
    return item.varies if isinstance(item, Map) else item.store.varies


def _needed(results: list[View]) -> set[object]:
    """Nodes, writes and loops that the results depend on."""
    needed: set[object] = set()
    waiting: list[Node] = [r.node for r in results]
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        items: list[Map | Write] = []
        if isinstance(node, Map):
            items = [node]
            waiting += tables(node)
        elif isinstance(node, Store):
            items = list(node.writes)
            needed.update(node.writes)
        elif isinstance(node, Final):
            waiting.append(node.carry)
        elif isinstance(node, Carry):
            k = node.loop.carries.index(node)
            needed.add(node.loop)
            waiting += [node.loop.initial[k].node, node.loop.following[k].node]
        for item in items:
            waiting += [o.node for o in reads(item)]
    return needed


def _steps(
    items: list[Map | Write | Loop],
    needed: set[object],
    keys: Mapping[Map | Write, list[Map]],
    computed_flags: frozenset[Map] = frozenset(),
) -> list[Step]:
    """Put the needed items of a block into loops, each as early as its operands allow.

    Args:
        items: items of a block.
        needed: those that are needed.
        keys: the flags that each item may go by, best first.
        computed_flags: flags that earlier steps compute.
    """
    steps: list[Step] = []
    when: dict[object, int] = {}  # last step that writes a node

    # Stores are cleared before anything else, so that a sum can join the loop of its terms.
    for item in sorted(items, key=lambda i: not _clears(i)):
        if item not in needed or (not isinstance(item, Loop) and not item.size):
            continue
        if isinstance(item, Loop):
            here = computed_flags | {f for flags in keys.values() for f in flags if f in when}
            inner = _steps(item.body.items, needed, keys, here)
            steps.append(Turns(item, inner, [c in needed for c in item.carries]))
            for final in item.finals:
                when[final] = len(steps) - 1
            continue
        # A list of elements does not exist before its flag is computed.
        computed = (f for f in keys.get(item, ()) if f in when or f in computed_flags)
        key = next(computed, None)
        if isinstance(item, Map) and item.factors:  # `matmul` writes its loops
            at, group = len(steps), Group(item.size)
            steps.append(group)
        else:
            first = max(_first_step(item, when), when.get(key, -1) + 1)
            at, group = _loop_for(steps, first, item.size, key)
        group.items.append(item)
        target = item if isinstance(item, Map) else item.store
        when[item] = at
        when[target] = max(at, when.get(target, 0))
    return steps


def _first_step(item: Map | Write, when: dict[object, int]) -> int:
    """The first step in which an item may be computed; `when` is the last that writes a node."""
    first = 0
    for operand in reads(item):
        # An item's own element of a map may come from the same turn of the same loop.
        near = isinstance(operand.node, Map) and is_identity(operand, item.size)
        first = max(first, when.get(operand.node, -1) + (0 if near else 1))
    if isinstance(item, Map):
        return max([first, *(when.get(node, -1) + 1 for node in tables(item))])
    writes = item.store.writes
    # Writes to one store keep their order: where they overlap, the last one wins.
    before = [w for w in writes[: writes.index(item)] if w in when and not _disjoint(w, item)]
    return max([first, *(when[w] + _order(w, item) for w in before)])


def _loop_for(steps: list[Step], first: int, size: int, key: Map | None) -> tuple[int, Group]:
    """The first loop of a size and key from step `first` on; a new one if there is none."""
    for k, step in enumerate(steps[first:], first):
        if isinstance(step, Group) and (step.size, step.key) == (size, key) and not step.is_matmul:
            return k, step
    group = Group(size, key=key)
    steps.append(group)
    return len(steps) - 1, group


def _sink_all(steps: list[Step], kept: set[Node], following: dict[Node, Node]) -> None:
    """Sink in all blocks, inner ones first."""
    for step in steps:
        if isinstance(step, Turns):
            # Values at the end of a turn are copied there; they cannot move into a later step.
            turned: dict[Node, Node] = {c: o.node for c, o in step.carried(step.loop.following)}
            _sink_all(step.steps, kept | set(turned.values()), turned)
    sink(steps, kept, following)


def _disjoint(a: Write, b: Write) -> bool:
    """Whether two writes certainly concern different elements."""
    return a.fixed is not None and b.fixed is not None and not np.isin(a.fixed, b.fixed).any()


def _order(a: Write, b: Write) -> int:
    """Steps that a write has to come after an earlier one: none between terms of one sum."""
    return 0 if a.op == b.op != "set" else 1


def _clears(item: Map | Write | Loop) -> bool:
    """Whether an item sets a store to constants, before anything else is written to it."""
    return (
        isinstance(item, Write)
        and item is item.store.writes[0]
        and item.op == "set"
        and item.place is None
        and isinstance(item.value.node, Constant)
    )


def _number(step: Step, count: Iterator[int]) -> None:
    step.at = next(count)
    if isinstance(step, Turns):
        for inner in step.steps:
            _number(inner, count)
        step.end = next(count)


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


class _Liveness:
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
            self.pairs.append((start.node, carry))
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


def _coalesced(live: _Liveness) -> dict[Node, list[Node]]:
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


def _allocated(
    live: _Liveness, classes: dict[Node, list[Node]], lanes: int, threads: bool
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
        size = -(-node.size * element_bytes(node, lanes, threads) // 64) * 64
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
