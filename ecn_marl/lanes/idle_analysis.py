"""Proves which loops may skip idle elements: an abstract interpretation where a flag is False.

A program marks a flag (`optimisation_hints.busy`). An element is *idle* where the flag is False.
The analysis follows every value under this assumption. For an idle element, a value is a number, or
an element of some other array, or unknown. A loop may skip the element if, for it, the loop would
only

* add nothing to a sum,
* store the value that is there already, such as a carried value that does not change, or
* store a value that only loops read which skip the same element.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ecn_marl.lanes.builder import neutral
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
    Place,
    Store,
    Write,
    is_identity,
    reads,
    tables,
)
from ecn_marl.lanes.primitives import PRIMITIVES, Known, is_movable, is_skippable, same


class IdleAnalysis:
    """What is known of every array where a flag is False.

    Element `e` of an array belongs to element `e % n` of the flag, where `n` is the flag's size. So
    an array of several rows has one element of the flag in each row.

    Attributes:
        flag: the flag.
        n: its size.
        block: the loop body in which it is computed; outside it nothing is assumed.
        before: what the flag is computed from, within its block, itself included.
        lazy: items that have nothing to do where idle, if their nodes share the old values' places.
    """

    def __init__(self, flag: Map, results: set[Node], needed: set[object]) -> None:
        """Follow all values of the flag's block.

        Args:
            flag: the flag.
            results: nodes that are read after the program.
            needed: nodes, writes and loops that they depend on.
        """
        assert flag.block is not None
        self.flag, self.n, self.block = flag, flag.size, flag.block
        self._known: dict[Node, Known] = {}
        self._assumed: dict[Node, Known] = {}
        self._assume(flag, np.zeros(flag.size, np.bool_))
        self._follow(self.block)
        self.before = self._before()
        self.lazy = self._lazy(results, needed)

    def aligned(self, where: np.ndarray) -> bool:
        """Whether element `i` needs something of its own flag only."""
        n = len(where)
        return n > 0 and n % self.n == 0 and bool((where % self.n == np.arange(n) % self.n).all())

    def value(self, operand: Operand) -> Known:
        """What an operand is where its elements are idle; itself if nothing is known."""
        node, where = operand
        if isinstance(node, Constant):
            return node.data[where]
        # An assumption holds whatever the node is computed from, so it comes first.
        known = self._assumed.get(node, self._known.get(node))
        if known is None or node.size % self.n or not self.aligned(where):
            return operand
        return (
            Operand(known.node, known.where[where]) if isinstance(known, Operand) else known[where]
        )

    def whole(self, node: Node) -> Known:
        """What all elements of an array are."""
        return self.value(Operand(node, np.arange(node.size)))

    def _lazy(self, results: set[Node], needed: set[object]) -> list[Map | Write]:
        """The items of `lazy`: idle elements that are known, unread, or add nothing."""
        before = self.before
        # The flag itself depends on all elements of its sources, idle or not.
        live = self._live([*results, *before], needed)
        lazy: list[Map | Write] = []
        for item in items(self.block):
            if item not in needed or not item.size or item.size % self.n:
                continue
            node = item if isinstance(item, Map) else item.store
            # The flag is not known before these are computed.
            if node in before or (isinstance(item, Map) and not is_skippable(item)):
                continue
            adds_nothing = isinstance(item, Write) and self.adds_nothing(item)
            if adds_nothing or node not in live or self._is_known(node):
                lazy.append(item)
        return lazy

    def old_places(self) -> Iterator[tuple[Node, Node]]:
        """Arrays whose idle elements are those of another one.

        Kept in its place, they are there already, and loops need not write them.
        """
        for item in self.lazy:
            node = item if isinstance(item, Map) else item.store
            value = self.whole(node)
            if self._is_known(node) and isinstance(value, Operand):
                yield node, value.node

    def _before(self) -> set[Node]:
        """What the flag is computed from, within its block."""
        before: set[Node] = set()
        waiting: list[Node] = [self.flag]
        while waiting:
            node = waiting.pop()
            if node in before or node.block is None or not within(node.block, self.block):
                continue
            before.add(node)
            if not (isinstance(node, Carry) and node.loop.body is self.block):
                waiting += sources(node)
        return before

    def _live(self, roots: list[Node], needed: set[object]) -> set[Node]:
        """Nodes whose idle elements something reads."""
        live: set[Node] = set()
        waiting = list(roots)
        for item in items(self.block):
            if item not in needed:
                continue
            waiting += [o.node for o in reads(item) if not self.aligned(o.where)]
            if isinstance(item, Map):
                waiting += item.factors
                # A busy element's look-up may read idle ones. With a flag without axes, all
                # elements are busy or idle together.
                waiting += [item.table] if self.n > 1 and item.table is not None else []
        for carry in needed:
            if isinstance(carry, Carry) and carry.block is self.block:
                waiting.append(carry.loop.following[carry.loop.carries.index(carry)].node)
        while waiting:
            node = waiting.pop()
            if node not in live:
                live.add(node)
                waiting += self._sources(node)
        return live

    def _sources(self, node: Node) -> list[Node]:
        """What idle elements of a node are computed from."""
        if self._is_known(node):
            known = self.whole(node)
            return [known.node] if isinstance(known, Operand) else []
        if isinstance(node, Store):
            writes = [w for w in node.writes if not self.adds_nothing(w)]
            return [o.node for w in writes for o in reads(w)]
        if isinstance(node, Map):
            return [*(o.node for o in self.used(node)), *tables(node)]
        return sources(node)

    def used(self, item: Map | Write) -> list[Operand]:
        """Operands that matter where an item is idle: of a selection, only the case taken."""
        if not isinstance(item, Map) or item.op != "select_n":
            return list(reads(item))
        which, *cases = item.operands
        chosen = self.value(which)
        if isinstance(chosen, Operand) or (chosen != chosen[0]).any() or item.size % self.n:
            return list(item.operands)
        # A case that is not aligned stays: busy elements may read idle ones of it.
        taken = int(chosen[0])
        return [which, *(c for k, c in enumerate(cases) if k == taken or not self.aligned(c.where))]

    def _is_known(self, node: Node) -> bool:
        """Whether all idle elements are numbers, or what was carried to or given to the block."""
        if not node.size or node.size % self.n:
            return False
        value = self.whole(node)
        return not isinstance(value, Operand) or (
            isinstance(value.node, Carry | Argument | Final) and value.node is not node
        )

    def _assume(self, node: Node, value: np.ndarray) -> None:
        """Assume a value, and what follows from it for the node's operands."""
        self._assumed[node] = value
        if not isinstance(node, Map) or not node.operands:
            return
        one = [o.node for o in node.operands if is_identity(o, node.size)]
        # `a or b` is False only if both are.
        if node.op in ("copy", "or") and node.dtype == BOOL and not value.any():
            for operand in one:
                self._assume(operand, value)
        # `a != constant` is False only if a is that constant.
        if node.op == "ne" and not value.any():
            (a, b) = node.operands
            for x, other in ((a, b), (b, a)):
                if isinstance(other.node, Constant) and is_identity(x, node.size):
                    self._assume(x.node, other.node.data[other.where])

    def _follow(self, block: Block) -> None:
        """Values of all items of a block, in order."""
        for item in block.items:
            if isinstance(item, Loop):
                self._turns(item)
                continue
            node = item if isinstance(item, Map) else item.store
            value = self._map(item) if isinstance(item, Map) else self._store(item.store)
            if value is None:
                # The body of a loop is followed more than once: what held in an earlier round need
                # not hold now.
                self._known.pop(node, None)
            else:
                self._known[node] = value

    def _turns(self, loop: Loop) -> None:
        """Which carried values stay what they were at the start; the others are unknown.

        First, all are assumed to stay. Those that do not are made unknown, and the body is followed
        again, until the assumption holds for those that are left.
        """
        unchanged = set()
        for carry, start in zip(loop.carries, loop.initial, strict=True):
            if carry.size % self.n == 0 and carry.size:
                self._known[carry] = self.value(start)
                unchanged.add(carry)
        # Ends: every round but the last makes a carry unknown.
        while True:
            self._follow(loop.body)
            changed = [
                c
                for c, after in zip(loop.carries, loop.following, strict=True)
                if c in unchanged and not same(self.value(after), self._known[c])
            ]
            # The assumption now proves itself, by induction over the turns.
            if not changed:
                break
            for carry in changed:
                unchanged.remove(carry)
                del self._known[carry]
        for carry, final in zip(loop.carries, loop.finals, strict=True):
            if carry in unchanged:
                self._known[final] = self._known[carry]

    def _store(self, store: Store) -> Known | None:
        """A store that is put together of aligned pieces, all numbers or all of one array."""
        if store.size % self.n or not store.size:
            return None
        owner, where = None, np.zeros(store.size, np.int64)
        data: np.ndarray | None = None
        written = np.zeros(store.size, bool)
        for write in store.writes:
            value = self.value(write.value)
            if write.op != "set":
                if not self.adds_nothing(write):
                    return None
                continue
            if write.place is not None or write.fixed is None or not self.aligned(write.fixed):
                return None
            written[write.fixed] = True
            if isinstance(value, Operand):
                if owner is not None and owner is not value.node:
                    return None
                owner, where[write.fixed] = value.node, value.where
            else:
                data = np.zeros(store.size, value.dtype) if data is None else data
                data[write.fixed] = value
        # One value stands for all elements: a mixture of numbers and another array's elements has
        # none.
        if not written.all() or (owner is None) == (data is None):
            return None
        return data if owner is None else Operand(owner, where)

    def adds_nothing(self, write: Write) -> bool:
        """Whether a write changes nothing where its element is idle.

        It is a neutral term of a sum, or its place is out of bounds and so left out, or it stores
        what it read there: `row = where(busy, row, log[at]); log.at[at].set(row)`.
        """
        if self._beyond(write) or self._puts_back(write):
            return True
        value = self.value(write.value)
        if write.op == "set" or isinstance(value, Operand) or len(value) % self.n:
            return False
        return bool((value == neutral(write.op, write.store.dtype)).all())

    def _beyond(self, write: Write) -> bool:
        """Whether a write is dropped where its element is idle."""
        place = write.place
        if place is None or place.mode != "drop" or write.size % self.n:
            return False
        for index, limit in zip(place.indices, place.limits, strict=True):
            at = self.value(index)
            if not isinstance(at, Operand) and ((at < 0) | (at > limit)).all():
                return True
        return False

    def _puts_back(self, write: Write) -> bool:
        """Whether a write stores, where its element is idle, what lay in its place before."""
        place, (first, *more) = write.place, write.store.writes
        value = self.value(write.value)
        if place is None or write.op != "set" or more[:1] != [write]:
            return False
        if not isinstance(value, Operand) or not isinstance(value.node, Map):
            return False
        read = value.node
        if read.table is not first.value.node or read.place is None or not _copies(first):
            return False
        # A dropped write leaves the old value, too. A clipped one has to be clipped where it was
        # read.
        modes_agree = place.mode == "drop" or place.mode == read.place.mode
        return (
            modes_agree
            and is_identity(value, write.size)
            and self.aligned(place.fixed)
            and all(stride % self.n == 0 for stride in place.strides)
            and _same_place(read.place, place)
        )

    def _map(self, item: Map) -> Known | None:
        """By the rule in the operation's record."""
        if not item.size or item.size % self.n or not is_movable(item):
            return None
        idle = PRIMITIVES[item.op].idle
        return None if idle is None else idle(item, *(self.value(o) for o in item.operands))


def _copies(write: Write) -> bool:
    """Whether a write sets a store to a whole array."""
    return (
        write.op == "set"
        and write.place is None
        and is_identity(write.value, write.store.size)
        and write.fixed is not None
        and np.array_equal(write.fixed, np.arange(write.store.size))
    )


def _same_place(a: Place, b: Place) -> bool:
    """Whether two places are the same positions."""
    return (
        np.array_equal(a.fixed, b.fixed)
        and (a.strides, a.limits) == (b.strides, b.limits)
        and len(a.indices) == len(b.indices)
        and all(_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True))
    )


def _equal(a: Operand, b: Operand) -> bool:
    """Whether two operands are computed in the same way from the same values."""
    if not np.array_equal(a.where, b.where):
        return False
    if a.node is b.node:
        return True
    one, two = a.node, b.node
    return (
        isinstance(one, Map)
        and isinstance(two, Map)
        and is_movable(one)
        and (one.op, one.params, one.size) == (two.op, two.params, two.size)
        and len(one.operands) == len(two.operands)
        and all(_equal(x, y) for x, y in zip(one.operands, two.operands, strict=True))
    )


def sources(node: Node) -> list[Node]:
    """What a node is computed from."""
    if isinstance(node, Map):
        return [*(o.node for o in reads(node)), *tables(node)]
    if isinstance(node, Store):
        return [o.node for w in node.writes for o in reads(w)]
    if isinstance(node, Final):
        return [node.carry]
    if isinstance(node, Carry):
        k = node.loop.carries.index(node)
        return [node.loop.initial[k].node, node.loop.following[k].node]
    return []


def items(block: Block) -> Iterator[Map | Write]:
    """All items of a block and its inner ones."""
    for item in block.items:
        if isinstance(item, Loop):
            yield from items(item.body)
        else:
            yield item


def within(block: Block, outer: Block) -> bool:
    """Whether a block is another, or an inner one of it."""
    here: Block | None = block
    while here is not None and here is not outer:
        here = here.parent
    return here is outer
