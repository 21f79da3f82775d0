"""Where the elements lie that one turn of a loop reads and writes.

In the workspace, an element of a node that varies between environments is a vector: a number per
environment, or a bit per environment for flags. On a GPU several threads share an environment and
deal its elements among them. There values are scalars, `%own` points to the environment's column of
the vectors, and a flag is a number.
"""

from __future__ import annotations

import numpy as np

from ecn_marl.lanes.assembly import SCALAR, Code, Module
from ecn_marl.lanes.graph import BOOL, I32, Argument, Blocks, Constant, Node, blocks_of
from ecn_marl.lanes.places import element_bytes


def _kind(node: Node) -> str:
    """LLVM's type of an element in an environment's column of the workspace."""
    return "i32" if node.dtype == BOOL else SCALAR[node.dtype]


class Addresses(Code):
    """The body of a turn that knows where elements lie."""

    def __init__(self, module: Module, index: str, first: int, turn: int) -> None:
        """Nothing computed yet; see `LoopBody`."""
        super().__init__(module, first)
        self.index, self.turn = index, turn
        self.values: dict[object, str] = {}
        self._distance = {index: 0}

    def element(self, where: np.ndarray) -> str:
        """Number of the element that this turn needs, an i64.

        Where elements lie at equal steps, it is computed from the turn's number. Elsewhere it is
        read from a table.
        """
        key = ("at", where.tobytes())
        if key in self.values:
            return self.values[key]
        first = int(where[0])
        step = int(where[1]) - first if len(where) > 1 else 0
        if np.array_equal(where, first + step * np.arange(len(where))):
            number = self.index if self.index.lstrip("-").isdigit() else None
            if number is not None:
                number = str(first + step * int(number))
            elif step == 0:
                number = str(first)
            else:
                scaled = self.index if step == 1 else self.emit(f"mul i64 {self.index}, {step}")
                number = scaled if first == 0 else self.emit(f"add i64 {scaled}, {first}")
                if step == 1:
                    self._distance[number] = first
        elif self.index.isdigit():
            number = str(int(where[int(self.index)]))
        else:
            number = self._looked_up_or_computed(where)
        self.values[key] = number
        return number

    def _looked_up_or_computed(self, where: np.ndarray) -> str:
        """Number of this turn's element, where elements do not lie at equal steps."""
        blocks = blocks_of(where) if self.module.threads else None
        if blocks is not None:
            return self._in_blocks(blocks)
        # 32 bits an entry: half the memory of the i64 that addresses are computed in.
        table = self.module.table(where, I32)
        place = self.emit(f"getelementptr i32, ptr {table}, i64 {self.index}")
        short = self.emit(f"load i32, ptr {place}, align 4")
        return self.emit(f"sext i32 {short} to i64")

    def _in_blocks(self, blocks: Blocks) -> str:
        """Number of this turn's element of blocks at equal steps."""
        number = str(blocks.first)
        for factor, op, operand in (
            (blocks.step, "and", blocks.width - 1),
            (blocks.jump, "lshr", blocks.width.bit_length() - 1),
        ):
            if factor:
                part = self.emit(f"{op} i64 {self.index}, {operand}")
                part = self.emit(f"mul i64 {part}, {factor}") if factor != 1 else part
                number = self.emit(f"add i64 {part}, {number}")
        return number

    def base(self, node: Node) -> str:
        """Address of a node."""
        key = ("base", node)
        if key not in self.values:
            home = self.module.plan.residence
            if isinstance(node, Argument) and not node.varies and home is not None:
                self.values[key] = self.emit(f"addrspacecast ptr addrspace(1) %a{node.slot} to ptr")
            elif isinstance(node, Argument) and not node.varies:
                place = self.emit(f"getelementptr ptr, ptr %args, i64 {node.slot}")
                if self.module.threads:
                    # The address space says: global memory, for which there are quicker loads.
                    far = self.emit(f"load ptr addrspace(1), ptr {place}, align 8")
                    self.values[key] = self.emit(f"addrspacecast ptr addrspace(1) {far} to ptr")
                else:
                    self.values[key] = self.emit(f"load ptr, ptr {place}, align 8")
            elif isinstance(node, Constant):
                self.values[key] = self.module.table(node.data, node.dtype)
            else:
                space, offset = self._place(node)
                self.values[key] = self.emit(f"getelementptr i8, ptr %{space}, i64 {offset}")
        return self.values[key]

    def pointer(self, node: Node, element: str) -> str:
        """Address of an element."""
        size = element_bytes(node, self.module.lanes, self.module.threads)
        if self.module.threads and node.varies and not isinstance(node, Constant):
            space, place = self._place(node)
            if space == "words":
                assert node.size == 1 or element == self.index, "a thread keeps its own elements"
                word = place + (self.turn if node.size > 1 else 0)
                return self.emit(f"getelementptr inbounds i32, ptr %words, i64 {word}")
            if element in self._distance and not element.isdigit():
                base, fixed = self._at_turn(space), place + self._distance[element] * size
                return self.emit(f"getelementptr inbounds i8, ptr {base}, i64 {fixed}")
        if element.isdigit():
            offset = str(int(element) * size)
        else:
            offset = self.emit(f"mul nsw i64 {element}, {size}")
        return self.emit(f"getelementptr inbounds i8, ptr {self.base(node)}, i64 {offset}")

    def _place(self, node: Node) -> tuple[str, int]:
        """Kind of memory that a node lies in, and its place there."""
        place = self.module.plan.place(node)
        assert place is not None, "what a loop reads or writes has a place"
        return place

    def _at_turn(self, space: str) -> str:
        """An address at a fixed distance from this turn's element of every array in a memory.

        On a GPU one register then serves all loads: each instruction holds its own distance.
        """
        key = ("turn", space)
        if key not in self.values:
            offset = self.emit(f"mul nsw i64 {self.index}, {4 * self.module.lanes}")
            self.values[key] = self.emit(f"getelementptr inbounds i8, ptr %{space}, i64 {offset}")
        return self.values[key]

    def load(self, node: Node, element: str) -> str:
        """Load an element: a vector or a scalar, as the node is."""
        place = self.pointer(node, element)
        n = self.module.lanes
        if self.module.threads and node.varies:
            value = self.emit(f"load {_kind(node)}, ptr {place}, align 4")
            return self.emit(f"icmp ne i32 {value}, 0") if node.dtype == BOOL else value
        if node.dtype == BOOL:
            if node.varies:
                # A flag takes a bit per lane, as in the processor's mask registers.
                bits = self.emit(f"load i{n}, ptr {place}, align {max(n // 8, 1)}")
                return self.emit(f"bitcast i{n} {bits} to {self.vector('i1')}")
            byte = self.emit(f"load i8, ptr {place}, align 1")
            return self.emit(f"icmp ne i8 {byte}, 0")
        kind = SCALAR[node.dtype]
        if node.varies:
            return self.emit(f"load {self.vector(kind)}, ptr {place}, align {4 * n}")
        same = isinstance(node, Argument) and self.module.plan.residence is not None
        return self.emit(f"load {kind}, ptr {place}, align 4{', !invariant.load !0' * same}")

    def save(self, node: Node, element: str, value: str) -> None:
        """Store an element; `value` is a vector or a scalar as the node is."""
        place, n = self.pointer(node, element), self.module.lanes
        if self.module.threads and node.varies:
            kind = SCALAR[node.dtype]
            if node.dtype == BOOL:
                value, kind = self.emit(f"zext i1 {value} to i32"), "i32"
            self.do(f"store {kind} {value}, ptr {place}, align 4")
            return
        if node.dtype == BOOL:
            if node.varies:
                bits = self.emit(f"bitcast {self.vector('i1')} {value} to i{n}")
                self.do(f"store i{n} {bits}, ptr {place}, align {max(n // 8, 1)}")
                return
            byte = self.emit(f"zext i1 {value} to i8")
            self.do(f"store i8 {byte}, ptr {place}, align 1")
            return
        kind = SCALAR[node.dtype]
        if node.varies:
            self.do(f"store {self.vector(kind)} {value}, ptr {place}, align {4 * n}")
        else:
            self.do(f"store {kind} {value}, ptr {place}, align 4")
