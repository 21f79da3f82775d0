"""The code of one turn of a loop over elements: operands, operations, stores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ecn_marl.lanes.addresses import Addresses
from ecn_marl.lanes.assembly import SCALAR, Module
from ecn_marl.lanes.elementwise import apply, combine, select
from ecn_marl.lanes.graph import (
    BOOL,
    I32,
    U32,
    Constant,
    Map,
    Node,
    Operand,
    Place,
    Store,
    Write,
    is_identity,
)
from ecn_marl.lanes.primitives import PRIMITIVES
from ecn_marl.lanes.register_sums import is_dense, sums_in_registers
from ecn_marl.lanes.row_access import is_row, load_row, store_row
from ecn_marl.lanes.steps import Group

T = TypeVar("T")

PARTS = ("turn", "in order", "stores")
"""Parts of a turn, in order: what is computed, changes of elements that other threads may change,
and stores."""


class Update(NamedTuple):
    """A change of an element in memory.

    Attributes:
        item: what is written.
        at: number of the element, an i64 (name).
        inside: whether it is in bounds (name); None for always.
        value: what is written or combined with what is there (name).
    """

    item: Write
    at: str
    inside: str | None
    value: str


def _repeats(positions: np.ndarray) -> bool:
    """Whether several turns write to the same element."""
    return len(np.unique(positions)) < len(positions)


class LoopBody(Addresses):
    """One turn of the loop over the elements of a group."""

    def __init__(
        self, module: Module, group: Group, index: str, first: int = 0, turn: int = 0
    ) -> None:
        """Nothing computed yet.

        Args:
            module: the module that it is part of.
            group: the items to compute.
            index: number of the element, an i64.
            first: number of local names in use.
            turn: which of its elements a thread computes, where these stay in registers.
        """
        super().__init__(module, index, first, turn)
        self.group = group
        # A turn that is written out has no loop, and so no registers that stay from turn to turn.
        self._in_registers = (
            set() if index.isdigit() else sums_in_registers(group, not module.threads)
        )
        self.terms: dict[tuple[Store, str], str] = {}
        self.computed = {i: None for i in group.items if isinstance(i, Map)}
        self._vectors: dict[str, str] = {}
        self._once: dict[tuple[object, ...], Any] = {}
        self._stores_at_end: list[tuple[Node, str, str]] = []
        self.in_order: list[Update] = []
        self.apart: list[Update] = []

    # --- operands ---------------------------------------------------------------------------------

    def operand(self, operand: Operand) -> str:
        """Value of an operand in this turn, a vector or a scalar as `wide` says."""
        node, where = operand
        if isinstance(node, Constant):
            # One number for all turns becomes an operand of the instruction, without a load.
            numbers = node.data[where]
            if (numbers == numbers[0]).all() or self.index.isdigit():
                at = int(self.index) if self.index.isdigit() else 0
                return self.number(numbers[at], node.dtype)
            key: object = ("constant", node.dtype, numbers.tobytes())
            if key not in self.values:
                table = self.module.table(numbers, node.dtype)
                kind = "i8" if node.dtype == BOOL else SCALAR[node.dtype]
                place = self.emit(f"getelementptr {kind}, ptr {table}, i64 {self.index}")
                value = self.emit(f"load {kind}, ptr {place}, align 1")
                if node.dtype == BOOL:
                    value = self.emit(f"icmp ne i8 {value}, 0")
                self.values[key] = value
            return self.widened(self.values[key], node)
        # Computed in this very turn: it is still in a register.
        if node in self.computed and is_identity(operand, self.group.size):
            return self.widened(self.values[node], node)
        element = self.element(where)
        key = ("element", node, element)
        if key not in self.values:
            self.values[key] = self.load(node, element)
        return self.widened(self.values[key], node)

    def widened(self, value: str, node: Node) -> str:
        """The value as a vector, if vectors are being computed."""
        if node.varies or not self.wide:
            return value
        if value not in self._vectors:
            self._vectors[value] = self.broadcast(value, node.dtype)
        return self._vectors[value]

    # --- data-dependent positions -----------------------------------------------------------------

    def position(self, place: Place) -> tuple[str, str | None]:
        """Element number (i32), and whether it is in bounds, where that matters."""
        names = tuple(self.operand(index) for index in place.indices)
        fixed = self.element(place.fixed)
        kinds = tuple(index.node.dtype for index in place.indices)
        key = ("position", self.wide, names, kinds, fixed, *place[2:])
        return self.computed_once(key, lambda: self._position(place))

    def _fits(self, at: str, limit: int) -> str:
        return self.emit(f"icmp ule {self.type(I32)} {at}, {self.number(limit, U32)}")

    def _clipped(self, index: Operand, limit: int) -> str:
        """An index within bounds."""
        at, high = self.operand(index), self.number(limit, I32)
        if index.node.dtype == U32:  # as a signed number, a large one would be negative
            return self.call("llvm.umin", I32, at, high)
        return self.call(
            "llvm.smin", I32, self.call("llvm.smax", I32, at, self.number(0, I32)), high
        )

    def _position(self, place: Place) -> tuple[str, str | None]:
        total, inside = None, None
        t = self.type(I32)
        for index, stride, limit in zip(place.indices, place.strides, place.limits, strict=True):
            at = self.operand(index)
            if place.mode in ("fill", "drop"):
                # Unsigned, a negative index is huge: one comparison checks both bounds.
                fits = self.computed_once(
                    ("fits", at, limit), functools.partial(self._fits, at, limit)
                )
                inside = (
                    fits if inside is None else self.emit(f"and {self.type(BOOL)} {inside}, {fits}")
                )
                # A thread loads first and selects after, so every address has to be valid.
                at = select(self, I32, fits, at, self.number(0, I32))
            elif place.mode == "clip":
                at = self._clipped(index, limit)
            if stride != 1:
                at = self.emit(f"mul {t} {at}, {self.number(stride, I32)}")
            total = at if total is None else self.emit(f"add {t} {total}, {at}")
        fixed = self.element(place.fixed)
        if fixed.isdigit():
            start = self.number(int(fixed), I32)
        else:
            short = self.emit(f"trunc i64 {fixed} to i32")
            start = self.broadcast(short, I32) if self.wide else short
        if total is None:
            return start, inside
        if fixed == "0":
            return total, inside
        return self.emit(f"add {t} {total}, {start}"), inside

    def rows(self, place: Place) -> list[tuple[str, str]] | None:
        """Rows of a short table: which lanes mean it, and its element. None for longer tables.

        Comparing with every row costs less than a gather or scatter (`register_sums.DENSE`).
        """
        if not self.wide or not is_dense(place):
            return None
        (index,), (stride,), (limit,) = place.indices, place.strides, place.limits
        at = self._clipped(index, limit) if place.mode == "clip" else self.operand(index)
        rows = []
        for row in range(limit + 1):
            # Look-ups at the same index share these comparisons.
            key = ("row", at, row)
            if key not in self.values:
                self.values[key] = self.emit(
                    f"icmp eq {self.type(I32)} {at}, {self.number(row, I32)}"
                )
            rows.append((self.values[key], self.element(place.fixed + row * stride)))
        return rows

    def addresses(self, node: Node, at: str) -> str:
        """Addresses of one element per lane."""
        n = self.module.lanes
        # Lane k looks at its own column of the table, so that lanes never meet in a scatter.
        if node.varies:
            at = self.emit(f"mul {self.vector('i32')} {at}, splat (i32 {n})")
            lane = ", ".join(f"i32 {k}" for k in range(n))
            at = self.emit(f"add {self.vector('i32')} {at}, <{lane}>")
        assert node.dtype != BOOL, "flags are a bit per lane: single lanes have no address"
        kind = SCALAR[node.dtype]
        return self.emit(f"getelementptr {kind}, ptr {self.base(node)}, {self.vector('i32')} {at}")

    def look_up(self, item: Map) -> str:
        """An element of a table at a data-dependent position."""
        assert item.place is not None
        assert item.table is not None
        rows = self.rows(item.place)
        if rows is not None:
            return self._dense_look_up(item, rows)
        if self.wide and is_row(item.table, item.place):
            return load_row(self, item, item.place, item.table)
        at, inside = self.position(item.place)
        if self.wide:
            other = "zeroinitializer"
            if inside is not None:
                other = self.number(item.params["fill"], item.dtype)
            return self.gather(self.addresses(item.table, at), item.dtype, inside, other)
        wide = self.emit(f"sext i32 {at} to i64")
        value = self.load(item.table, wide)
        return (
            value
            if inside is None
            else select(
                self, item.dtype, inside, value, self.number(item.params["fill"], item.dtype)
            )
        )

    def _dense_look_up(self, item: Map, rows: list[tuple[str, str]]) -> str:
        """Select among all rows; an index of no row gives the first row, or the filler."""
        assert item.table is not None
        assert item.place is not None
        entries = [self.operand_at(item.table, element) for _, element in rows]
        value, others = entries[0], list(zip(rows, entries, strict=True))[1:]
        if item.place.mode == "fill":
            value = self.number(item.params["fill"], item.dtype)
            others = list(zip(rows, entries, strict=True))
        for (meant, _), entry in others:
            value = select(self, item.dtype, meant, entry, value)
        return value

    def operand_at(self, node: Node, element: str) -> str:
        """An element of a node, as a vector if vectors are being computed."""
        key = ("element", node, element)
        if key not in self.values:
            self.values[key] = self.load(node, element)
        return self.widened(self.values[key], node)

    # --- items ------------------------------------------------------------------------------------

    def compute(self, item: Map) -> None:
        """Compute an item's element; store it if it is kept."""
        self.wide = item.varies and not self.module.threads
        codegen = PRIMITIVES[item.op].codegen
        if codegen is not None:
            value = codegen(self, item)
        else:
            args = [self.operand(o) for o in item.operands]
            kinds = [o.node.dtype for o in item.operands]
            value = apply(self, item.op, item.dtype, kinds, args, item.params)
            if item.op == "copy" and not value.startswith("%"):
                # LLVM has no instruction that only names a constant.
                kind = self.type(item.dtype)
                value = self.emit(f"select i1 true, {kind} {value}, {kind} {value}")
        self.values[item] = value
        if item in self.module.plan.stored:
            self._stores_at_end.append((item, self.index, value))

    def computed_once(self, key: tuple[object, ...], compute: Callable[[], T]) -> T:
        """The result of `compute`, whose instructions are written once per turn for all items."""
        if key not in self._once:
            self._once[key] = compute()
        value: T = self._once[key]
        return value

    def write(self, item: Write) -> None:
        """Write an element into a store."""
        self.wide = item.store.varies and not self.module.threads
        store, dtype = item.store, item.store.dtype
        if item.place is None:
            assert item.fixed is not None
            # Nothing to write: the element is read from the very place that it would be written to.
            if self._lies_there(item):
                return
            value, at = self.operand(item.value), self.element(item.fixed)
            if item.op == "set" and not (self.module.threads and _repeats(item.fixed)):
                self._stores_at_end.append((store, at, value))
            elif self.module.threads and store not in self._in_registers:
                if _repeats(item.fixed):
                    self.in_order.append(Update(item, at, None, value))
                else:
                    self.apart.append(Update(item, at, None, value))
            else:
                self._put(store, at, combine(self, item.op, dtype, self._sum(store, at), value))
            return
        value = self.operand(item.value)
        rows = self.rows(item.place)
        if rows is not None:
            # Every row is written, unchanged where it is not meant: no scatter, and no branch.
            for meant, element in rows:
                before = self._sum(store, element)
                after = value if item.op == "set" else combine(self, item.op, dtype, before, value)
                self._put(store, element, select(self, dtype, meant, after, before))
            return
        if self.wide and item.op == "set" and is_row(store, item.place):
            store_row(self, item, item.place, value)
            return
        at, inside = self.position(item.place)
        if self.wide:
            places = self.addresses(store, at)
            if item.op != "set":
                value = combine(self, item.op, dtype, self.gather(places, dtype, inside), value)
            self.scatter(value, places, dtype, inside)
            return
        wide = self.computed_once(("long", at), lambda: self.emit(f"sext i32 {at} to i64"))
        self.in_order.append(Update(item, wide, inside, value))

    def update(self, change: Update) -> None:
        """Change an element in memory; out of bounds it is stored as it was."""
        item, at, inside, value = change
        store, dtype = item.store, item.store.dtype
        before = self.load(store, at) if item.op != "set" or inside is not None else ""
        if item.op != "set":
            value = combine(self, item.op, dtype, before, value)
        if inside is not None:
            value = select(self, dtype, inside, value, before)
        self.save(store, at, value)

    def taken(self, part: str) -> list[str]:
        """Lines of one of the `PARTS` of the turn; none if it is empty."""
        if part != "turn":
            known = dict(self.values)  # what a block computes is not known after it
            for update in self.in_order if part == "in order" else self.apart:
                self.update(update)
            if part == "stores":
                self.finish()
            self.values = known
        return self.drain()

    def _sum(self, store: Store, element: str) -> str:
        """The value of a sum so far, from its register or from memory."""
        if store not in self._in_registers:
            return self.load(store, element)
        return self.terms.setdefault((store, element), f"%sum{len(self.terms)}")

    def _put(self, store: Store, element: str, value: str) -> None:
        if store in self._in_registers:
            self.terms[store, element] = value
        else:
            self.save(store, element, value)

    def sums(self) -> tuple[list[str], list[str], list[str]]:
        """Lines before the loop, at the start of each turn and after it, for sums in registers."""
        phis: list[str] = []
        # Names continue those of the turn, as both are in one function.
        code = LoopBody(self.module, Group(0), "%i", self.named)
        for k, ((store, element), last) in enumerate(self.terms.items()):
            kind = self.vector(SCALAR[store.dtype])
            start = code.load(store, element)
            phis.append(f"  %sum{k} = phi {kind} [{start}, %start], [{last}, %loop]")
        before, code.lines = code.lines, []
        for (store, element), last in self.terms.items():
            code.save(store, element, last)
        return before, phis, code.lines

    def _lies_there(self, item: Write) -> bool:
        """Whether a value lies in the place it is written to, because both nodes share it."""
        plan, node = self.module.plan, item.value.node
        together = (
            not isinstance(node, Constant)
            and plan.place(node) is not None
            and plan.place(node) == plan.place(item.store)
            and node.dtype == item.store.dtype
            # What this turn computes is in a register, and not in memory yet.
            and node not in self.computed
        )
        return together and bool((item.value.where == item.fixed).all())

    def copy(self, target: Node, source: Operand) -> None:
        """Copy an element of another node."""
        self._stores_at_end.append((target, self.index, self.operand(source)))

    def finish(self) -> None:
        """Store the values that are kept, after everything that this turn reads.

        Nodes may share a place if each element is read before it is overwritten (`schedule`).
        Within a turn this holds only if stores come last.
        """
        for node, at, value in self._stores_at_end:
            self.save(node, at, value)
