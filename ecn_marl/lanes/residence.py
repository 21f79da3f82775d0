"""Where arrays of one environment lie while a warp of a GPU computes it.

A warp of 32 threads has one environment. Thread `t` computes elements `t`, `t + 32`, ... of every
array. An array that is only ever read and written by the thread of each element stays in that
thread's registers. So does a single number, of which every thread has a copy. The other arrays
that are read most often lie in the processor's shared memory, the rest in the GPU's memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ecn_marl.lanes.graph import Constant, Map, Node, Operand, Write, is_identity, reads, tables
from ecn_marl.lanes.register_sums import sums_in_registers
from ecn_marl.lanes.steps import Group, Step, Turns

WARP = 32
"""Threads of a warp."""

ROUNDS = 2
"""Loops of at most so many elements per thread are written out; longer ones stay loops."""

STAGE_BYTES = 1024
"""Shared memory of a warp for values that its threads hand over (`handover`), bytes."""


@dataclass(eq=False, repr=False)
class Residence:
    """Places of arrays of one environment.

    Attributes:
        words: first word, of those that each thread keeps, of every array in registers.
        count: how many words each thread keeps.
        skips: first word that tells, for every round of a flag's elements, whether one is set.
        listed: flags by whose list a loop goes.
        arguments: slots of arguments that environments share; kernels have their addresses.
        near: places of arrays in shared memory, bytes.
        near_bytes: shared memory of a warp, bytes.
        stage: where values lie there that threads hand over.
    """

    words: dict[Node, int] = field(default_factory=dict)
    count: int = 0
    skips: dict[Map, int] = field(default_factory=dict)
    listed: set[Map] = field(default_factory=set)
    arguments: list[int] = field(default_factory=list)
    near: dict[Node, int] = field(default_factory=dict)
    near_bytes: int = 0
    stage: int = 0

    def take(self, size: int) -> int:
        """Words for an array of this size in every thread; the first."""
        first, self.count = self.count, self.count + rounds(size)
        return first


Allocate = Callable[[dict[Node, list[Node]]], tuple[dict[Node, int], int]]
"""Places of classes of nodes, and the bytes of all of them."""


def residence(
    steps: Sequence[Step],
    classes: dict[Node, list[Node]],
    flags: Iterable[Map],
    near_bytes: int,
    allocate: Allocate,
) -> Residence:
    """What stays in registers and in shared memory.

    Args:
        steps: the program.
        classes: nodes that share a place.
        flags: flags by which loops skip.
        near_bytes: shared memory that a warp may have, bytes.
        allocate: gives classes places in one memory.
    """
    found = Residence()
    for members in in_registers(steps, classes):
        found.words |= dict.fromkeys(members, found.take(members[0].size))
    groups = [s for s in every(steps) if isinstance(s, Group)]
    found.listed = {g.flag for g in groups if g.flag is not None and not is_unrolled(g)}
    found.skips = {f: found.take(f.size) for f in flags if rounds(f.size) <= ROUNDS}
    often = uses(steps)
    rest = {id(c): c for n, c in classes.items() if n not in found.words and n.varies}.values()
    # Most used first, for every byte that they take.
    order = sorted(rest, key=lambda c: -sum(often[n] for n in c) / max(c[0].size, 16))

    def placed(count: int) -> tuple[dict[Node, int], int]:
        return allocate({n: c for c in order[:count] for n in c})

    # The most that fit: arrays of other times share a place, so their bytes do not add up.
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        fits = placed(middle)[1] + STAGE_BYTES <= near_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    found.near, found.stage = placed(low)
    found.near_bytes = found.stage + STAGE_BYTES
    return found


def rounds(size: int) -> int:
    """Elements of each thread."""
    return -(-size // WARP)


def is_unrolled(group: Group) -> bool:
    """Whether the turns of a loop are written out, and every thread's numbers can be registers."""
    return rounds(group.size) <= ROUNDS and not _in_one(group)


def is_whole(write: Write) -> bool:
    """Whether a write concerns each element of its store in that element's own turn."""
    fixed, size = write.fixed, write.store.size
    return (
        write.place is None
        and fixed is not None
        and len(fixed) == size
        and np.array_equal(fixed, np.arange(size))
    )


def in_registers(steps: Sequence[Step], classes: dict[Node, list[Node]]) -> list[list[Node]]:
    """Classes of nodes that stay in registers.

    Args:
        steps: the program.
        classes: nodes that share a place.
    """
    outside: set[Node] = set()
    for step in every(steps):
        if isinstance(step, Turns):
            for values in (step.loop.initial, step.loop.following):
                for carry, value in step.carried(values):
                    outside |= _elsewhere(value, carry.size)
        else:
            outside |= _in_memory(step)
    # One thread computes what it changes in memory, and knows no other thread's numbers.
    before = -1
    while before != len(outside):
        before = len(outside)
        for step in every(steps):
            if isinstance(step, Group) and changes_alone(step, outside):
                outside |= {i if isinstance(i, Map) else i.store for i in step.items}
        outside |= {n for c in classes.values() if not outside.isdisjoint(c) for n in c}
    groups = {id(c): c for c in classes.values()}.values()
    return [
        c for c in groups if c[0].varies and rounds(c[0].size) <= ROUNDS and c[0] not in outside
    ]


def _elsewhere(operand: Operand, size: int) -> set[Node]:
    """The operand's node, if a loop of this size reads other elements of it than its own."""
    node = operand.node
    if isinstance(node, Constant) or node.size == 1:
        return set()
    own = is_identity(operand, size) and rounds(size) <= ROUNDS
    return set() if own else {node}


def _in_memory(group: Group) -> set[Node]:
    """Nodes that a loop needs in memory."""
    found: set[Node] = set()
    written_out = is_unrolled(group)
    sums = sums_in_registers(group, False) if group.size > 1 else set()
    if group.flag is not None and not written_out:
        found.add(group.flag)
    for item in group.items:
        for operand in reads(item):
            found |= _elsewhere(operand, group.size if written_out else 0)
        if isinstance(item, Map):
            found.update(tables(item))
            if not written_out:
                found.add(item)
            continue
        store = item.store
        # Every thread adds the total of all to its own copy.
        total = store.size == 1 and item.place is None and store in sums and not _in_one(group)
        if not (total or (written_out and group.size == store.size and is_whole(item))):
            found.add(store)
    return found


def _in_one(group: Group) -> bool:
    """Whether one thread computes a loop for all, or deals with whole blocks of a matrix."""
    return group.is_matmul or any(isinstance(i, Map) and i.op == "running" for i in group.items)


def changes_alone(group: Group, outside: set[Node]) -> bool:
    """Whether one thread has to compute a single turn, as it changes numbers in memory."""
    return group.size == 1 and any(
        isinstance(i, Write) and i.store in outside and i.op != "set" for i in group.items
    )


def every(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps, also those in loops."""
    for step in steps:
        yield step
        if isinstance(step, Turns):
            yield from every(step.steps)


def uses(steps: Sequence[Step]) -> Counter[Node]:
    """How often a warp reads or writes each array in an interval."""
    found: Counter[Node] = Counter()

    def count(steps: Sequence[Step], times: int) -> None:
        for step in steps:
            if isinstance(step, Turns):
                count(step.steps, times * step.loop.length)
                for carry, value in step.carried(step.loop.following):
                    found[carry] += times * step.loop.length * rounds(carry.size)
                    found[value.node] += times * step.loop.length * rounds(carry.size)
                continue
            weight = times * rounds(step.size)
            for item in step.items:
                for operand in reads(item):
                    found[operand.node] += weight
                if isinstance(item, Map):
                    found.update(dict.fromkeys(tables(item), weight))
                    found[item] += weight
                else:
                    found[item.store] += weight

    count(steps, 1)
    return found
