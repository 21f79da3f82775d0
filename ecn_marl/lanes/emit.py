"""From a plan (`schedule`) to LLVM's assembly language.

Every loop over elements is a function of its own. In the workspace, element `e` of a node that differs
between environments is a vector, one number per environment, or one bit per environment for flags.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ecn_marl.lanes.graph import (
    BOOL,
    F32,
    I32,
    U32,
    Argument,
    Constant,
    Map,
    Node,
    Operand,
    Place,
    View,
    Write,
    is_identity,
)
from ecn_marl.lanes.operations import apply, combine, select, threefry
from ecn_marl.lanes.schedule import Plan, element_bytes
from ecn_marl.lanes.schedule_types import Group, Step, Turns

SCALAR = {F32: "float", I32: "i32", U32: "i32", BOOL: "i1", "f64": "double"}
MANGLED = {F32: "f32", I32: "i32", U32: "i32", BOOL: "i1"}
DENSE = 16
"""Tables of so many rows are read and written by comparing with every row: cheaper than addressing."""

UNROLLED = 2
"""Loops over at most so many elements are written out."""


class Module:
    """The text of a module: functions, tables and declarations.

    Attributes:
        lanes: environments in a vector.
    """

    def __init__(self, plan: Plan, lanes: int) -> None:
        """An empty module for a plan."""
        self.plan, self.lanes = plan, lanes
        self.functions: list[str] = []
        self.declared: dict[str, str] = {}
        self._tables: dict[tuple[str, bytes], str] = {}
        self._globals: list[str] = []
        self._count = 0

    def name(self, stem: str) -> str:
        """A new name."""
        self._count += 1
        return f"{stem}{self._count}"

    def table(self, data: np.ndarray, dtype: str) -> str:
        """A constant array; equal ones are kept once."""
        kinds = {F32: np.float32, I32: np.int32, U32: np.uint32, BOOL: np.uint8}
        data = np.ascontiguousarray(data, kinds[dtype])
        key = (dtype, data.tobytes())
        if key not in self._tables:
            name = self.name("@t")
            self._tables[key] = name
            kind = "i8" if dtype == BOOL else SCALAR[dtype]
            numbers = ", ".join(f"{kind} {literal(x, dtype)}" for x in data)
            self._globals.append(
                f"{name} = private unnamed_addr constant [{len(data)} x {kind}] [{numbers}], align 64"
            )
        return self._tables[key]

    def text(self) -> str:
        """The whole module."""
        return "\n".join([*self._globals, *self.declared.values(), *self.functions])

    def steps(self, steps: list[Step]) -> list[str]:
        """Write functions for steps; their names, in order."""
        return [
            _group(self, step) if isinstance(step, Group) else _turns(self, step) for step in steps
        ]


def literal(x: Any, dtype: str) -> str:
    """A scalar as LLVM writes it."""
    if dtype == F32:
        bits = struct.unpack("<Q", struct.pack("<d", float(np.float32(x))))[0]
        return f"0x{bits:016X}"
    if dtype == BOOL:
        return "1" if x else "0"
    return str(int(x))


class Code:
    """The body of one function.

    Attributes:
        wide: whether values are vectors, at the moment.
    """

    def __init__(self, module: Module) -> None:
        """An empty body."""
        self.module, self.wide = module, True
        self.lines: list[str] = []
        self._next = 0

    def fresh(self) -> str:
        """A new local name."""
        self._next += 1
        return f"%v{self._next}"

    def emit(self, text: str) -> str:
        """Append an instruction; the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def vector(self, scalar: str) -> str:
        """A vector type."""
        return f"<{self.module.lanes} x {scalar}>"

    def type(self, dtype: str) -> str:
        """LLVM's name of a type."""
        return self.vector(SCALAR[dtype]) if self.wide else SCALAR[dtype]

    def number(self, value: Any, dtype: str) -> str:
        """A constant."""
        one = literal(value, dtype)
        if not self.wide:
            return one if dtype != BOOL else ("true" if value else "false")
        return f"splat ({SCALAR[dtype]} {one})"

    def spread(self, scalar: str, dtype: str) -> str:
        """A vector of one number."""
        kind, vector = SCALAR[dtype], self.vector(SCALAR[dtype])
        first = self.emit(f"insertelement {vector} poison, {kind} {scalar}, i32 0")
        zeros = f"<{self.module.lanes} x i32> zeroinitializer"
        return self.emit(f"shufflevector {vector} {first}, {vector} poison, {zeros}")

    def call(self, name: str, dtype: str, *args: str) -> str:
        """Call an intrinsic whose arguments are all of type `dtype`."""
        kind = self.type(dtype)
        width = f"v{self.module.lanes}" if self.wide else ""
        full = f"{name}.{width}{MANGLED[dtype]}"
        source = kind
        if ".fpto" in name:
            full += f".{width}f32"
            source = self.type(F32)
        self.module.declared[full] = f"declare {kind} @{full}({', '.join([source] * len(args))})"
        return self.emit(f"call {kind} @{full}({', '.join(f'{source} {a}' for a in args)})")

    def gather(
        self, pointers: str, dtype: str, mask: str | None, other: str = "zeroinitializer"
    ) -> str:
        """Load one element per lane; `other` where the mask is not set."""
        kind, n = self.vector(SCALAR[dtype]), self.module.lanes
        full = f"llvm.masked.gather.v{n}{MANGLED[dtype]}.v{n}p0"
        flags = self.vector("i1")
        self.module.declared[full] = (
            f"declare {kind} @{full}({self.vector('ptr')}, i32, {flags}, {kind})"
        )
        mask = mask or "splat (i1 true)"
        return self.emit(
            f"call {kind} @{full}({self.vector('ptr')} {pointers}, i32 4, {flags} {mask},"
            f" {kind} {other})"
        )

    def scatter(self, value: str, pointers: str, dtype: str, mask: str | None) -> None:
        """Store one element per lane."""
        kind, n = self.vector(SCALAR[dtype]), self.module.lanes
        full = f"llvm.masked.scatter.v{n}{MANGLED[dtype]}.v{n}p0"
        flags = self.vector("i1")
        self.module.declared[full] = (
            f"declare void @{full}({kind}, {self.vector('ptr')}, i32, {flags})"
        )
        mask = mask or "splat (i1 true)"
        self.do(
            f"call void @{full}({kind} {value}, {self.vector('ptr')} {pointers}, i32 4,"
            f" {flags} {mask})"
        )


class Body(Code):
    """One turn of the loop over the elements of a group."""

    def __init__(self, module: Module, group: Group, index: str) -> None:
        """Nothing computed yet; `index` is the number of the element, an i64."""
        super().__init__(module)
        self.group, self.index = group, index
        self.mine = {i: None for i in group.items if isinstance(i, Map)}
        self.values: dict[object, str] = {}
        self._vectors: dict[str, str] = {}
        self._late: list[tuple[Node, str, str]] = []

    # --- addresses --------------------------------------------------------------------------------

    def element(self, where: np.ndarray) -> str:
        """Number of the element that this turn needs, an i64."""
        key = ("at", where.tobytes())
        if key in self.values:
            return self.values[key]
        first = int(where[0])
        step = int(where[1]) - first if len(where) > 1 else 0
        if np.array_equal(where, first + step * np.arange(len(where))):
            found = self.index if self.index.lstrip("-").isdigit() else None
            if found is not None:
                found = str(first + step * int(found))
            elif step == 0:
                found = str(first)
            else:
                scaled = self.index if step == 1 else self.emit(f"mul i64 {self.index}, {step}")
                found = scaled if first == 0 else self.emit(f"add i64 {scaled}, {first}")
        elif self.index.isdigit():
            found = str(int(where[int(self.index)]))
        else:
            table = self.module.table(where, I32)
            place = self.emit(f"getelementptr i32, ptr {table}, i64 {self.index}")
            short = self.emit(f"load i32, ptr {place}, align 4")
            found = self.emit(f"sext i32 {short} to i64")
        self.values[key] = found
        return found

    def base(self, node: Node) -> str:
        """Where a node lies."""
        key = ("base", node)
        if key not in self.values:
            if isinstance(node, Argument) and not node.lanes:
                place = self.emit(f"getelementptr ptr, ptr %args, i64 {node.slot}")
                self.values[key] = self.emit(f"load ptr, ptr {place}, align 8")
            elif isinstance(node, Constant):
                self.values[key] = self.module.table(node.data, node.dtype)
            else:
                space = "%own" if node.lanes else "%shared"
                offset = self.module.plan.offsets[node]
                self.values[key] = self.emit(f"getelementptr i8, ptr {space}, i64 {offset}")
        return self.values[key]

    def pointer(self, node: Node, element: str) -> str:
        """Where an element lies."""
        size = element_bytes(node, self.module.lanes)
        if element.isdigit():
            offset = str(int(element) * size)
        else:
            offset = self.emit(f"mul nsw i64 {element}, {size}")
        return self.emit(f"getelementptr inbounds i8, ptr {self.base(node)}, i64 {offset}")

    def load(self, node: Node, element: str) -> str:
        """An element as it lies: a vector or a scalar."""
        place = self.pointer(node, element)
        n = self.module.lanes
        if node.dtype == BOOL:
            if node.lanes:
                bits = self.emit(f"load i{n}, ptr {place}, align {n // 8}")
                return self.emit(f"bitcast i{n} {bits} to {self.vector('i1')}")
            byte = self.emit(f"load i8, ptr {place}, align 1")
            return self.emit(f"icmp ne i8 {byte}, 0")
        kind = SCALAR[node.dtype]
        if node.lanes:
            return self.emit(f"load {self.vector(kind)}, ptr {place}, align {4 * n}")
        return self.emit(f"load {kind}, ptr {place}, align 4")

    def save(self, node: Node, element: str, value: str) -> None:
        """Store an element; `value` is a vector or a scalar as the node is."""
        place, n = self.pointer(node, element), self.module.lanes
        if node.dtype == BOOL:
            if node.lanes:
                bits = self.emit(f"bitcast {self.vector('i1')} {value} to i{n}")
                self.do(f"store i{n} {bits}, ptr {place}, align {n // 8}")
                return
            byte = self.emit(f"zext i1 {value} to i8")
            self.do(f"store i8 {byte}, ptr {place}, align 1")
            return
        kind = SCALAR[node.dtype]
        if node.lanes:
            self.do(f"store {self.vector(kind)} {value}, ptr {place}, align {4 * n}")
        else:
            self.do(f"store {kind} {value}, ptr {place}, align 4")

    # --- operands ---------------------------------------------------------------------------------

    def operand(self, operand: Operand) -> str:
        """What this turn needs of an operand, a vector or a scalar as `wide` says."""
        node, where = operand
        if isinstance(node, Constant):
            numbers = node.data[where]
            if (numbers == numbers[0]).all() or self.index.isdigit():
                at = int(self.index) if self.index.isdigit() else 0
                return self.number(numbers[at], node.dtype)
            key: Any = ("constant", node.dtype, numbers.tobytes())
            if key not in self.values:
                table = self.module.table(numbers, node.dtype)
                kind = "i8" if node.dtype == BOOL else SCALAR[node.dtype]
                place = self.emit(f"getelementptr {kind}, ptr {table}, i64 {self.index}")
                found = self.emit(f"load {kind}, ptr {place}, align 1")
                if node.dtype == BOOL:
                    found = self.emit(f"icmp ne i8 {found}, 0")
                self.values[key] = found
            return self.widened(self.values[key], node)
        if node in self.mine and is_identity(operand, self.group.size):
            return self.widened(self.values[node], node)
        element = self.element(where)
        key = ("element", node, element)
        if key not in self.values:
            self.values[key] = self.load(node, element)
        return self.widened(self.values[key], node)

    def widened(self, value: str, node: Node) -> str:
        """The value as a vector, if vectors are being computed."""
        if node.lanes or not self.wide:
            return value
        if value not in self._vectors:
            self._vectors[value] = self.spread(value, node.dtype)
        return self._vectors[value]

    # --- data-dependent positions -----------------------------------------------------------------

    def position(self, place: Place) -> tuple[str, str | None]:
        """Element number (i32), and whether it is in bounds, where that matters."""
        found, inside = None, None
        t = self.type(I32)
        for index, stride, limit in zip(place.indices, place.strides, place.limits, strict=True):
            at = self.operand(index)
            if place.mode in ("fill", "drop"):
                fits = self.emit(f"icmp ule {t} {at}, {self.number(limit, U32)}")
                inside = (
                    fits if inside is None else self.emit(f"and {self.type(BOOL)} {inside}, {fits}")
                )
                at = select(self, I32, fits, at, self.number(0, I32))
            elif place.mode == "clip":
                at = self.call("llvm.smax", I32, at, self.number(0, I32))
                at = self.call("llvm.smin", I32, at, self.number(limit, I32))
            if stride != 1:
                at = self.emit(f"mul {t} {at}, {self.number(stride, I32)}")
            found = at if found is None else self.emit(f"add {t} {found}, {at}")
        fixed = self.element(place.fixed)
        if fixed.isdigit():
            start = self.number(int(fixed), I32)
        else:
            short = self.emit(f"trunc i64 {fixed} to i32")
            start = self.spread(short, I32) if self.wide else short
        if found is None:
            return start, inside
        if fixed == "0":
            return found, inside
        return self.emit(f"add {t} {found}, {start}"), inside

    def rows(self, place: Place) -> list[tuple[str, str]] | None:
        """For a short table: where each row is meant, and its element; None for longer ones."""
        if not self.wide or len(place.indices) != 1 or not place.indices[0].node.lanes:
            return None
        (index,), (stride,), (limit,) = place.indices, place.strides, place.limits
        if limit >= DENSE:
            return None
        at = self.operand(index)
        if place.mode == "clip":
            at = self.call("llvm.smax", I32, at, self.number(0, I32))
            at = self.call("llvm.smin", I32, at, self.number(limit, I32))
        found = []
        for row in range(limit + 1):
            key = ("row", at, row)
            if key not in self.values:
                self.values[key] = self.emit(
                    f"icmp eq {self.type(I32)} {at}, {self.number(row, I32)}"
                )
            found.append((self.values[key], self.element(place.fixed + row * stride)))
        return found

    def addresses(self, node: Node, at: str) -> str:
        """Where one element per lane lies."""
        n = self.module.lanes
        if node.lanes:
            at = self.emit(f"mul {self.vector('i32')} {at}, splat (i32 {n})")
            lane = ", ".join(f"i32 {k}" for k in range(n))
            at = self.emit(f"add {self.vector('i32')} {at}, <{lane}>")
        kind = SCALAR[node.dtype]
        return self.emit(f"getelementptr {kind}, ptr {self.base(node)}, {self.vector('i32')} {at}")

    def look_up(self, item: Map) -> str:
        """An element of a table at a data-dependent position."""
        assert item.place is not None
        assert item.table is not None
        rows = self.rows(item.place)
        if rows is not None:
            return self._dense_look_up(item, rows)
        at, inside = self.position(item.place)
        if self.wide:
            other = "zeroinitializer"
            if inside is not None:
                other = self.number(item.params["fill"], item.dtype)
            return self.gather(self.addresses(item.table, at), item.dtype, inside, other)
        wide = self.emit(f"sext i32 {at} to i64")
        found = self.load(item.table, wide)
        return (
            found
            if inside is None
            else select(self, item.dtype, inside, found, self.number(item.params["fill"], item.dtype))
        )

    def _dense_look_up(self, item: Map, rows: list[tuple[str, str]]) -> str:
        """Go through the rows; where none is meant, the first, or 0 with `fill`."""
        assert item.table is not None
        assert item.place is not None
        entries = [self.operand_at(item.table, element) for _, element in rows]
        found, others = entries[0], list(zip(rows, entries, strict=True))[1:]
        if item.place.mode == "fill":
            found = self.number(item.params["fill"], item.dtype)
            others = list(zip(rows, entries, strict=True))
        for (mine, _), entry in others:
            found = select(self, item.dtype, mine, entry, found)
        return found

    def operand_at(self, node: Node, element: str) -> str:
        """An element of a node, as a vector if vectors are being computed."""
        key = ("element", node, element)
        if key not in self.values:
            self.values[key] = self.load(node, element)
        return self.widened(self.values[key], node)

    # --- items ------------------------------------------------------------------------------------

    def compute(self, item: Map) -> None:
        """Compute an item's element; store it if it is kept."""
        self.wide = item.lanes
        if item.op == "look_up":
            value = self.look_up(item)
        elif item.op == "threefry":
            args = [self.operand(o) for o in item.operands]
            key = ("threefry", *args)
            if key not in self.values:
                self.values[key] = threefry(self, *args)  # type: ignore[assignment]
            value = self.values[key][item.params["word"]]
        elif item.op == "running":
            held, at = item.params["held"], self.element(item.params["slots"])
            before = self.load(held, at)
            value = combine(
                self, item.params["combine"], item.dtype, before, self.operand(item.operands[0])
            )
            self.save(held, at, value)
        else:
            args = [self.operand(o) for o in item.operands]
            kinds = [o.node.dtype for o in item.operands]
            value = apply(self, item.op, item.dtype, kinds, args, item.params)
            if item.op == "copy" and not value.startswith("%"):
                value = self.emit(
                    f"select i1 true, {self.type(item.dtype)} {value}, {self.type(item.dtype)} {value}"
                )
        self.values[item] = value
        if item in self.module.plan.stored:
            self._late.append((item, self.index, value))

    def write(self, item: Write) -> None:
        """Write an element into a store."""
        self.wide = item.store.lanes
        store, dtype = item.store, item.store.dtype
        if item.place is None:
            assert item.fixed is not None
            if self._lies_there(item):
                return
            value, at = self.operand(item.value), self.element(item.fixed)
            if item.op == "set":
                self._late.append((store, at, value))
                return
            self.save(store, at, combine(self, item.op, dtype, self.load(store, at), value))
            return
        value = self.operand(item.value)
        rows = self.rows(item.place)
        if rows is not None:
            for mine, element in rows:
                before = self.load(store, element)
                after = value if item.op == "set" else combine(self, item.op, dtype, before, value)
                self.save(store, element, select(self, dtype, mine, after, before))
            return
        at, inside = self.position(item.place)
        if self.wide:
            places = self.addresses(store, at)
            if item.op != "set":
                value = combine(self, item.op, dtype, self.gather(places, dtype, inside), value)
            self.scatter(value, places, dtype, inside)
            return
        at = self.emit(f"sext i32 {at} to i64")
        before = self.load(store, at)
        if item.op != "set":
            value = combine(self, item.op, dtype, before, value)
        if inside is not None:
            value = select(self, dtype, inside, value, before)
        self.save(store, at, value)

    def _lies_there(self, item: Write) -> bool:
        """Whether a value is in its place already, as both share it."""
        offsets, node = self.module.plan.offsets, item.value.node
        together = (
            not isinstance(node, Constant)
            and node in offsets
            and node.lanes == item.store.lanes
            and offsets[node] == offsets[item.store]
            and node.dtype == item.store.dtype
            and node not in self.mine
        )
        return together and np.array_equal(item.value.where, item.fixed)

    def finish(self) -> None:
        """Store what is kept, after all that this turn reads."""
        for node, at, value in self._late:
            self.save(node, at, value)


def _group(module: Module, group: Group) -> str:
    """Write the function of a group."""
    name = module.name("@group")
    head = f"define internal void {name}(ptr noalias %args, ptr %own, ptr %shared) #0 {{"
    if group.size <= UNROLLED:
        lines = []
        code = Code(module)
        for i in range(group.size):
            body = _body(module, group, str(i), code._next)
            code._next = body._next
            lines += body.lines
        module.functions.append("\n".join([head, *lines, "  ret void", "}"]))
        return name
    body = _body(module, group, "%i", 0)
    module.functions.append(
        "\n".join(
            [
                head,
                "  br label %loop",
                "loop:",
                "  %i = phi i64 [0, %0], [%next, %loop]",
                *body.lines,
                "  %next = add nuw i64 %i, 1",
                f"  %over = icmp eq i64 %next, {group.size}",
                "  br i1 %over, label %done, label %loop",
                "done:",
                "  ret void",
                "}",
            ]
        )
    )
    return name


def _body(module: Module, group: Group, index: str, first: int) -> Body:
    body = Body(module, group, index)
    body._next = first
    for item in group.items:
        if isinstance(item, Map):
            body.compute(item)
        else:
            body.write(item)
    body.finish()
    return body


def _copies(module: Module, pairs: list[tuple[Node, Operand]]) -> list[str]:
    """Functions that copy values to where loops carry them, unless they lie there already."""
    names, offsets = [], module.plan.offsets
    for target, source in pairs:
        if not target.size:
            continue
        if source.node in offsets and offsets[source.node] == offsets[target]:
            if is_identity(source, target.size) and source.node.lanes:
                continue
        group = Group(target.size)
        name = module.name("@copy")
        body = Body(module, group, "%i")
        value = body.operand(source)
        body.save(target, "%i", value)
        module.functions.append(
            "\n".join(
                [
                    f"define internal void {name}(ptr noalias %args, ptr %own, ptr %shared) #0 {{",
                    "  br label %loop",
                    "loop:",
                    "  %i = phi i64 [0, %0], [%next, %loop]",
                    *body.lines,
                    "  %next = add nuw i64 %i, 1",
                    f"  %over = icmp eq i64 %next, {target.size}",
                    "  br i1 %over, label %done, label %loop",
                    "done:",
                    "  ret void",
                    "}",
                ]
            )
        )
        names.append(name)
    return names


def _calls(names: list[str]) -> list[str]:
    return [f"  call void {n}(ptr %args, ptr %own, ptr %shared)" for n in names]


def _turns(module: Module, turns: Turns) -> str:
    """Write the function of a loop."""
    before = _copies(module, turns.carried(turns.loop.initial))  # type: ignore[arg-type]
    inner = module.steps(turns.steps)
    after = _copies(module, turns.carried(turns.loop.following))  # type: ignore[arg-type]
    name = module.name("@turns")
    module.functions.append(
        "\n".join(
            [
                f"define internal void {name}(ptr noalias %args, ptr %own, ptr %shared) #0 {{",
                *_calls(before),
                "  br label %loop",
                "loop:",
                "  %k = phi i32 [0, %0], [%next, %loop]",
                *_calls(inner),
                *_calls(after),
                "  %next = add i32 %k, 1",
                f"  %over = icmp eq i32 %next, {turns.loop.length}",
                "  br i1 %over, label %done, label %loop",
                "done:",
                "  ret void",
                "}",
            ]
        )
    )
    return name


def _transfer(module: Module, name: str, pairs: list[tuple[Node, int]], inward: bool) -> None:
    """Write a function that moves arrays between the caller's layout and vectors.

    The caller's arrays hold one environment after the other. Numbers move as square blocks, as many
    elements as there are lanes, that are transposed in registers. Lanes past the end of the batch work
    on its last environment again, and write the same results.
    """
    for flags in (False, True):
        _mover(module, f"{name}_{'flags' if flags else 'words'}", flags, inward)
    code = Code(module)
    for node, slot in pairs:
        if not node.size:
            continue
        at = code.emit(f"getelementptr ptr, ptr %buffers, i64 {slot}")
        base = code.emit(f"load ptr, ptr {at}, align 8")
        near = code.emit(f"getelementptr i8, ptr %own, i64 {module.plan.offsets[node]}")
        kind = "flags" if node.dtype == BOOL else "words"
        code.do(
            f"call void {name}_{kind}(ptr {base}, ptr {near}, i64 {node.size}, i64 %first,"
            " i64 %batch)"
        )
    head = f"define internal void {name}(ptr %buffers, ptr %own, i64 %first, i64 %batch) #0 {{"
    module.functions.append("\n".join([head, *code.lines, "  ret void", "}"]))


def _mover(module: Module, name: str, flags: bool, inward: bool) -> None:
    """Write a function that moves one array: `(base, near, size, first, batch)`."""
    n, code, size = module.lanes, Code(module), 1 if flags else 4
    last = code.emit("sub i64 %batch, 1")
    far = []
    for k in range(n):
        row = code.emit(f"add i64 %first, {k}")
        beyond = code.emit(f"icmp ugt i64 {row}, {last}")
        row = code.emit(f"select i1 {beyond}, i64 {last}, i64 {row}")
        place = code.emit(f"mul i64 {row}, %size")
        bytes_ = code.emit(f"mul i64 {place}, {size}")
        far.append(code.emit(f"getelementptr i8, ptr %base, i64 {bytes_}"))
    whole = "0" if flags else code.emit(f"and i64 %size, {-n}")
    lines = [
        f"define internal void {name}(ptr %base, ptr %near, i64 %size, i64 %first, i64 %batch)"
        " #0 {",
        "entry:",
        *code.lines,
    ]
    before = "entry"
    for stem, start, end, step in (("block", "0", whole, n), ("rest", whole, "%size", 1)):
        if flags and stem == "block":
            continue
        code.lines, i = [], f"%i{stem}"
        if step == n:
            _move_block(code, far, i, inward)
        else:
            _move_element(code, flags, far, i, inward)
        lines += [
            f"  br label %{stem}",
            f"{stem}:",
            f"  {i} = phi i64 [{start}, %{before}], [{i}n, %{stem}body]",
            f"  {i}more = icmp ult i64 {i}, {end}",
            f"  br i1 {i}more, label %{stem}body, label %{stem}done",
            f"{stem}body:",
            *code.lines,
            f"  {i}n = add nuw i64 {i}, {step}",
            f"  br label %{stem}",
            f"{stem}done:",
        ]
        before = f"{stem}done"
    module.functions.append("\n".join([*lines, "  ret void", "}"]))


def _transposed(code: Code, rows: list[str], kind: str) -> list[str]:
    """The columns of a square block: halves of ever smaller blocks change places."""
    n, vector = len(rows), code.vector(kind)
    half = n // 2
    while half:
        for a in range(n):
            if a & half:
                continue
            b = a | half
            left = [k if not k & half else n + (k ^ half) for k in range(n)]
            right = [k | half if not k & half else n + k for k in range(n)]
            pair = (rows[a], rows[b])
            rows[a], rows[b] = (
                code.emit(
                    f"shufflevector {vector} {pair[0]}, {vector} {pair[1]}, <{n} x i32>"
                    f" <{', '.join(f'i32 {k}' for k in order)}>"
                )
                for order in (left, right)
            )
        half //= 2
    return rows


def _move_block(code: Code, far: list[str], i: str, inward: bool) -> None:
    """As many elements of every environment as there are lanes."""
    n, kind = code.module.lanes, "i32"
    vector = code.vector(kind)
    outer = [code.emit(f"getelementptr {kind}, ptr {row}, i64 {i}") for row in far]
    first = code.emit(f"getelementptr {vector}, ptr %near, i64 {i}")
    inner = [code.emit(f"getelementptr {vector}, ptr {first}, i64 {k}") for k in range(n)]
    source, target = (outer, inner) if inward else (inner, outer)
    align = (4, 4 * n) if inward else (4 * n, 4)
    rows = [code.emit(f"load {vector}, ptr {p}, align {align[0]}") for p in source]
    for row, p in zip(_transposed(code, rows, kind), target, strict=True):
        code.do(f"store {vector} {row}, ptr {p}, align {align[1]}")


def _move_element(code: Code, flag: bool, far: list[str], i: str, inward: bool) -> None:
    """One element of every environment."""
    n, kind = code.module.lanes, "i8" if flag else "i32"
    vector, size = code.vector(kind), 1 if flag else 4
    offset = code.emit(f"mul i64 {i}, {n // 8 if flag else 4 * n}")
    mine = code.emit(f"getelementptr i8, ptr %near, i64 {offset}")
    places = [code.emit(f"getelementptr {kind}, ptr {row}, i64 {i}") for row in far]
    if inward:
        found = "poison"
        for k, p in enumerate(places):
            value = code.emit(f"load {kind}, ptr {p}, align {size}")
            found = code.emit(f"insertelement {vector} {found}, {kind} {value}, i32 {k}")
        if flag:
            flags = code.emit(f"icmp ne {vector} {found}, zeroinitializer")
            bits = code.emit(f"bitcast {code.vector('i1')} {flags} to i{n}")
            code.do(f"store i{n} {bits}, ptr {mine}, align {n // 8}")
        else:
            code.do(f"store {vector} {found}, ptr {mine}, align {4 * n}")
        return
    if flag:
        bits = code.emit(f"load i{n}, ptr {mine}, align {n // 8}")
        flags = code.emit(f"bitcast i{n} {bits} to {code.vector('i1')}")
        found = code.emit(f"zext {code.vector('i1')} {flags} to {vector}")
    else:
        found = code.emit(f"load {vector}, ptr {mine}, align {4 * n}")
    for k, p in enumerate(places):
        value = code.emit(f"extractelement {vector} {found}, i32 {k}")
        code.do(f"store {kind} {value}, ptr {p}, align {size}")


def write_module(
    plan: Plan, arguments: list[Argument], results: list[View], lanes: int, threads: int
) -> tuple[str, int]:
    """A module with a function `run(args, rets, batch)`.

    `args` and `rets` point to the buffers of arguments and results; those that differ between
    environments have a leading axis of `batch`. The last result is memory to work in: its size is
    returned with the text, bytes.

    Args:
        plan: what to do.
        arguments: the program's arguments.
        results: its results, whole nodes.
        lanes: environments in a vector.
        threads: threads that share a batch, at most.
    """
    module = Module(plan, lanes)
    shared, steps = module.steps(plan.shared), module.steps(plan.steps)
    own = [(a, a.slot) for a in arguments if a.lanes and a in plan.offsets]
    _transfer(module, "@take", own, True)
    _transfer(module, "@give", [(r.node, k) for k, r in enumerate(results)], False)
    size = -(-(plan.own_bytes + plan.shared_bytes + 64) // 64) * 64
    text = RUN.format(
        lanes=lanes,
        bits=32 * lanes,
        last=lanes - 1,
        threads=threads,
        bytes=size,
        work=len(results),
        shared_at=plan.own_bytes,
        once="\n".join(_calls(shared)),
        each="\n".join(_calls(steps)),
    )
    return module.text() + text, size * threads


RUN = """
; Environments %from to %to of the batch, a vector of them at a time.
define internal void @span(ptr %args, ptr %rets, i64 %thread, i64 %from, i64 %to, i64 %batch) #1 {{
  %work.at = getelementptr ptr, ptr %rets, i64 {work}
  %work = load ptr, ptr %work.at, align 8
  %begin = mul i64 %thread, {bytes}
  %own = getelementptr i8, ptr %work, i64 %begin
  %shared = getelementptr i8, ptr %own, i64 {shared_at}
{once}
  br label %loop
loop:
  %first = phi i64 [%from, %0], [%next, %loop]
  call void @take(ptr %args, ptr %own, i64 %first, i64 %batch)
{each}
  call void @give(ptr %rets, ptr %own, i64 %first, i64 %batch)
  %next = add i64 %first, {lanes}
  %more = icmp ult i64 %next, %to
  br i1 %more, label %loop, label %done
done:
  ret void
}}

%job = type {{ ptr, ptr, i64, i64, i64, i64, i64 }}

define internal ptr @work(ptr %j) #1 {{
  %job = load %job, ptr %j, align 8
  %args = extractvalue %job %job, 0
  %rets = extractvalue %job %job, 1
  %from = extractvalue %job %job, 2
  %to = extractvalue %job %job, 3
  %batch = extractvalue %job %job, 4
  %thread = extractvalue %job %job, 6
  call void @span(ptr %args, ptr %rets, i64 %thread, i64 %from, i64 %to, i64 %batch)
  ret ptr null
}}

; The batch in spans of whole vectors, each but the first in a thread of its own.
define void @run(ptr %args, ptr %rets, i64 %batch) #1 {{
entry:
  %jobs = alloca [{threads} x %job], align 8
  %padded = add i64 %batch, {last}
  %vectors = udiv i64 %padded, {lanes}
  %rounded = add i64 %vectors, {threads}
  %less = sub i64 %rounded, 1
  %each = udiv i64 %less, {threads}
  %share = mul i64 %each, {lanes}
  br label %start
start:
  %k = phi i64 [1, %entry], [%k1, %next]
  %from = mul i64 %k, %share
  %job = getelementptr %job, ptr %jobs, i64 %k
  %some = icmp ult i64 %from, %batch
  %in = icmp ult i64 %k, {threads}
  %go = and i1 %some, %in
  br i1 %go, label %spawn, label %mine
spawn:
  %end = add i64 %from, %share
  %to = call i64 @llvm.umin.i64(i64 %end, i64 %batch)
  %a = insertvalue %job poison, ptr %args, 0
  %b = insertvalue %job %a, ptr %rets, 1
  %c = insertvalue %job %b, i64 %from, 2
  %d = insertvalue %job %c, i64 %to, 3
  %e = insertvalue %job %d, i64 %batch, 4
  %f = insertvalue %job %e, i64 0, 5
  %g = insertvalue %job %f, i64 %k, 6
  store %job %g, ptr %job, align 8
  %thread = getelementptr %job, ptr %job, i64 0, i32 5
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @work, ptr %job)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %next, label %alone
alone: ; no thread to be had
  store i64 0, ptr %thread, align 8
  call ptr @work(ptr %job)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %start
mine:
  %to0 = call i64 @llvm.umin.i64(i64 %share, i64 %batch)
  call void @span(ptr %args, ptr %rets, i64 0, i64 0, i64 %to0, i64 %batch)
  br label %join
join:
  %n = phi i64 [1, %mine], [%n1, %joined]
  %waiting = icmp ult i64 %n, %k
  br i1 %waiting, label %one, label %done
one:
  %id.at = getelementptr %job, ptr %jobs, i64 %n, i32 5
  %id = load i64, ptr %id.at, align 8
  %ran = icmp eq i64 %id, 0
  br i1 %ran, label %joined, label %wait
wait:
  call i32 @pthread_join(i64 %id, ptr null)
  br label %joined
joined:
  %n1 = add i64 %n, 1
  br label %join
done:
  ret void
}}

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i64 @llvm.umin.i64(i64, i64)
attributes #0 = {{ noinline nounwind "prefer-vector-width"="{bits}" }}
attributes #1 = {{ nounwind "prefer-vector-width"="{bits}" }}
"""
