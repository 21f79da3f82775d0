"""Products of matrices by blocks whose sums stay in registers while the inner index runs.

Each term takes one fused multiply-add, so loads limit the speed. A block of r rows and c columns
loads r + c numbers for r * c terms.
"""

from __future__ import annotations

from ecn_marl.lanes.assembly import Module
from ecn_marl.lanes.graph import F32, Axes, Map
from ecn_marl.lanes.loop_codegen import LoopBody
from ecn_marl.lanes.steps import Group

SUMS = 24
"""Elements of a block. Their sums stay in registers; a processor has 32 of 512 bits, and the others
hold the factors."""

ROWS = 6
"""Rows of a block, where the matrix has more than one row."""

THREADS_SUMS, THREADS_ROWS = 16, 4
"""The same where every environment has a thread of its own."""


def write_matmul(module: Module, item: Map, dealt: bool = False) -> list[str]:
    """Lines of the function that computes a product, block by block.

    Args:
        module: the module that it is part of.
        dealt: whether the threads of a GPU that share an environment deal the blocks.
        item: a `matmul` with the parameters `shape` (batch, rows, columns, depth), `left` and
            `right` (`Axes`), and the factors.
    """
    _, rows, columns, _ = item.params["shape"]
    tall, most = (THREADS_ROWS, THREADS_SUMS) if module.threads else (ROWS, SUMS)
    # Fewer rows leave registers for more columns.
    height = min(rows, tall)
    width = min(columns, most // height)
    lines: list[str] = []
    before = "0"
    # A loop for each size of block: the number of sums in registers is fixed in the code.
    for m, block_height in _parts(rows, height):
        for n, block_width in _parts(columns, width):
            stem = f"b{m[0]}x{n[0]}"
            block = _Block(module, item, stem, before, block_height, block_width, dealt)
            lines += block.lines(m, n)
            before = block.end
    return lines


def _parts(size: int, most: int) -> list[tuple[tuple[int, int], int]]:
    """Ranges (start, end), each with the size of its blocks: whole ones, and the remainder."""
    whole = size - size % most
    ranges = [((0, whole), most)] if whole else []
    return [*ranges, ((whole, size), size - whole)] if size > whole else ranges


class _Block:
    """A loop over the blocks of one size."""

    def __init__(
        self,
        module: Module,
        item: Map,
        stem: str,
        before: str,
        height: int,
        width: int,
        dealt: bool,
    ) -> None:
        """It comes from the basic block `before` and leads to `end`."""
        self.first, self.step = ("%sub", module.share) if dealt else ("0", 1)
        self.item, self.stem, self.before = item, stem, before
        self.height, self.width = height, width
        self.end = f"{stem}done"
        self.code = LoopBody(module, Group(item.size), f"%{stem}t")
        self.code.stem = f"%{stem}v"
        self.code.wide = item.varies and not module.threads

    def lines(self, m: tuple[int, int], n: tuple[int, int]) -> list[str]:
        """The loop over blocks of rows `m` and columns `n`."""
        s, item, code = self.stem, self.item, self.code
        batch, rows, columns, depth = item.params["shape"]
        across, down = (n[1] - n[0]) // self.width, (m[1] - m[0]) // self.height
        # Before the loops: addresses that are first computed in one block are not known in others.
        bases = [code.base(node) for node in item.factors]
        assert all(bases)
        code.base(item)
        head, code.lines = code.lines, []

        def number(op: str, a: str, b: int) -> str:
            return code.emit(f"{op} i64 {a}, {b}")

        t = f"%{s}t"
        column = number("add", number("mul", number("urem", t, across), self.width), n[0])
        remaining = number("udiv", t, across)
        row = number("add", number("mul", number("urem", remaining, down), self.height), m[0])
        part = number("udiv", remaining, down)

        def start(axes: Axes, outer: str) -> str:
            moved = code.emit(
                f"add i64 {number('mul', part, axes.batch)}, {number('mul', outer, axes.outer)}"
            )
            return number("add", moved, axes.first)

        lefts, rights = start(item.params["left"], row), start(item.params["right"], column)
        out = number("add", number("mul", part, rows), 0)
        out = number("mul", code.emit(f"add i64 {out}, {row}"), columns)
        out = code.emit(f"add i64 {out}, {column}")
        setup, code.lines = code.lines, []
        inner, sums = self._turn(lefts, rights)
        code.lines = []
        for i in range(self.height):
            for j in range(self.width):
                at = number("add", out, i * columns + j)
                code.save(item, at, sums[i * self.width + j])
        return [
            *head,
            f"  %{s}some = icmp ult i64 {self.first}, {batch * across * down}",
            f"  br i1 %{s}some, label %{s}, label %{self.end}",
            f"{s}:",
            f"  {t} = phi i64 [{self.first}, %{self.before}], [%{s}tn, %{s}kdone]",
            *setup,
            f"  br label %{s}k",
            f"{s}k:",
            *inner,
            f"  %{s}kover = icmp eq i64 %{s}kn, {depth}",
            f"  br i1 %{s}kover, label %{s}kdone, label %{s}k",
            f"{s}kdone:",
            *code.lines,
            f"  %{s}tn = add nuw i64 {t}, {self.step}",
            f"  %{s}tmore = icmp ult i64 %{s}tn, {batch * across * down}",
            f"  br i1 %{s}tmore, label %{s}, label %{self.end}",
            f"{self.end}:",
        ]

    def _turn(self, lefts: str, rights: str) -> tuple[list[str], list[str]]:
        """Lines of one turn of the inner index, and the names of the sums after it."""
        s, item, code = self.stem, self.item, self.code
        k, kind = f"%{s}ki", code.type(F32)
        zero = "zeroinitializer" if code.wide else code.number(0.0, F32)

        def line(node_at: int, first: str, axes: Axes, count: int) -> list[str]:
            node = item.factors[node_at]
            moved = code.emit(f"mul i64 {k}, {axes.inner}")
            at = code.emit(f"add i64 {first}, {moved}")
            values = []
            # Elements of a factor next to each other lie at fixed steps: no table of positions.
            for i in range(count):
                place = code.emit(f"add i64 {at}, {i * axes.outer}")
                values.append(code.widened(code.load(node, place), node))
            return values

        a = line(0, lefts, item.params["left"], self.height)
        b = line(1, rights, item.params["right"], self.width)
        phis, sums = [], []
        for x in range(self.height * self.width):
            before = f"%{s}s{x}"
            # `llvm.fma` is always fused; `contract` would only allow it.
            after = code.call("llvm.fma", F32, a[x // self.width], b[x % self.width], before)
            phis.append(f"  {before} = phi {kind} [{zero}, %{s}], [{after}, %{s}k]")
            sums.append(after)
        head = f"  {k} = phi i64 [0, %{s}], [%{s}kn, %{s}k]"
        return [head, *phis, *code.lines, f"  %{s}kn = add nuw i64 {k}, 1"], sums
