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
    Block,
    Carry,
    Constant,
    Final,
    Loop,
    Map,
    Node,
    Store,
    View,
    Write,
    is_identity,
    reads,
    tables,
)
from ecn_marl.lanes.idle_analysis import IdleAnalysis
from ecn_marl.lanes.loop_skipping import mark_skipping
from ecn_marl.lanes.places import Liveness, allocated, coalesced
from ecn_marl.lanes.residence import Residence, residence
from ecn_marl.lanes.steps import Group, Step, Turns


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
        residence: what a warp keeps near its threads, if it has one environment.
    """

    shared: list[Step]
    steps: list[Step]
    offsets: dict[Node, int]
    own_bytes: int
    shared_bytes: int
    stored: set[Node]
    lists: dict[Map, int]
    residence: Residence | None

    def place(self, node: Node) -> tuple[str, int] | None:
        """Kind of memory and place of a node in it; None if it has none."""
        home = self.residence
        if home is not None and node in home.words:
            return "words", home.words[node]
        if home is not None and node in home.near:
            return "near", home.near[node]
        if node not in self.offsets:
            return None
        return ("own" if node.varies else "shared"), self.offsets[node]


def make_plan(
    top: Block,
    results: list[View],
    flags: list[Map],
    lanes: int,
    threads: bool = False,
    near_bytes: int | None = None,
) -> Plan:
    """Order, loops and places of a lowered program.

    Args:
        top: its outermost block.
        results: its results.
        flags: which elements are busy, see `idle_analysis`.
        lanes: environments in a vector.
        threads: whether it is for a GPU's threads, which share the environments of a vector.
        near_bytes: where a warp has one environment and keeps its numbers: its shared memory.
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
            if (item if isinstance(item, Map) else item.store) not in of_flags:
                keys[item].append(analysis.flag)
    shared = _steps([i for i in top.items if not _differs(i)], needed, {})
    steps = _steps([i for i in top.items if _differs(i)], needed, keys)
    for program_steps in (shared, steps):
        _sink_all(program_steps, kept | set(flags), {})
    count = itertools.count(1)
    for step in (*shared, *steps):
        _number(step, count)
    end = next(count)
    live = Liveness(shared + steps, results, flags, end)
    for analysis in analyses:
        live.pairs += analysis.old_places()
    classes = coalesced(live)
    starts = {n: s.start for n, s in live.lifetimes.items()}
    used = mark_skipping(analyses, steps, kept, live.stored, classes, starts)
    home = None
    if near_bytes is not None:
        home = residence(
            steps, classes, used, near_bytes, lambda some: allocated(live, some, 1, True)[:2]
        )
        kept_near = home.words.keys() | home.near.keys()
        classes = {n: c for n, c in classes.items() if n not in kept_near}
    offsets, own, common = allocated(live, classes, lanes, threads)
    lists = {}
    for flag in used:
        # Whole lines of 64 bytes, so that what comes next stays aligned.
        size = -(-4 * (flag.size + 1) // 64) * 64
        if threads:
            lists[flag], common = common, common + size
        else:
            lists[flag], own = own, own + size
    return Plan(shared, steps, offsets, own, common, live.stored, lists, home)


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
            _sink_all(step.steps, kept | set(turned.values()), turned | _replaced(turned))
    sink(steps, kept, following)


def _replaced(turned: Mapping[Node, Node]) -> dict[Node, Node]:
    """Results of inner loops, and the values that take their places at the end of a turn.

    They are those that a selection keeps where nothing changes: `where(busy, next, result)`.
    """
    return {
        operand.node: after
        for after in turned.values()
        if isinstance(after, Map) and after.op == "select_n"
        for operand in after.operands[1:]
        if isinstance(operand.node, Final) and is_identity(operand, after.size)
    }


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
