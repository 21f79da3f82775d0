"""Moves arrays between the caller's layout and where a GPU's warp keeps them.

The threads that share an environment deal its elements among them.
"""

from __future__ import annotations

from ecn_marl.lanes.assembly import Code, Module
from ecn_marl.lanes.emit import GLOBAL, NEAR
from ecn_marl.lanes.graph import BOOL, Node
from ecn_marl.lanes.residence import WARP, rounds
from ecn_marl.lanes.transfer import counted

AT_ONCE = 8
"""Elements that are loaded before the first is stored: they wait for memory together."""


def write_movers(module: Module) -> None:
    """Write the functions that move arrays in memory."""
    spaces = (GLOBAL,) if module.plan.residence is None else (GLOBAL, NEAR)
    for flags in (False, True):
        for inward in (True, False):
            for space in spaces:
                _write_mover(module, flags, inward, space)


def taken(module: Module, arguments: list[tuple[Node, str]]) -> list[str]:
    """Lines that take arguments over; each is a node and its pointer."""
    return [x for k, pair in enumerate(arguments) for x in _moved(module, k, *pair, inward=True)]


def given(module: Module, results: list[tuple[Node, str]]) -> list[str]:
    """Lines that give results back; each is a node and its pointer."""
    return [x for k, pair in enumerate(results) for x in _moved(module, k, *pair, inward=False)]


def _moved(module: Module, k: int, node: Node, pointer: str, inward: bool) -> list[str]:
    if not node.size:
        return []
    name, place = f"%{'take' if inward else 'give'}{k}", module.plan.place(node)
    assert place is not None, "arguments that are read, and results, have a place"
    kind, offset = place
    row = f"  {name}.row = mul i64 %row, {node.size}"
    if kind == "words":
        move = _taken_by_threads if inward else _given_by_threads
        return [
            row,
            *(x for t in range(rounds(node.size)) for x in move(node, pointer, name, offset, t)),
        ]
    space, count = (NEAR if kind == "near" else GLOBAL), str(node.size)
    lines = [row, f"  {name} = getelementptr i8, {space} %{kind}.g, i64 {offset}"]
    if not inward:  # environments past the end of the batch are not stored
        count = f"{name}.count"
        lines.append(f"  {count} = select i1 %inside, i64 {node.size}, i64 0")
    mover = _mover(node.dtype == BOOL, inward, space)
    return [
        *lines,
        f"  call void {mover}({GLOBAL} {pointer}, {space} {name}, i64 {count},"
        f" i64 {name}.row, i64 %sub)",
    ]


def _own(node: Node, pointer: str, name: str, word: int, turn: int) -> list[str]:
    """Addresses of the element that a thread keeps of an array, outside and in its registers."""
    n, last = f"{name}.{turn}", node.size - 1
    kind = "i8" if node.dtype == BOOL else "i32"
    return [
        f"  {n}.number = add i64 %sub, {turn * WARP}",
        f"  {n}.on = icmp ule i64 {n}.number, {last}",
        f"  {n}.i = select i1 {n}.on, i64 {n}.number, i64 {last}",
        f"  {n}.at = add i64 {name}.row, {n}.i",
        f"  {n}.far = getelementptr {kind}, {GLOBAL} {pointer}, i64 {n}.at",
        f"  {n}.word = getelementptr inbounds i32, ptr %words, i64 {word + turn}",
    ]


def _taken_by_threads(node: Node, pointer: str, name: str, word: int, turn: int) -> list[str]:
    n, lines = f"{name}.{turn}", _own(node, pointer, name, word, turn)
    if node.dtype != BOOL:
        lines.append(f"  {n}.value = load i32, {GLOBAL} {n}.far, align 4")
    else:
        lines += [
            f"  {n}.flag = load i8, {GLOBAL} {n}.far, align 1",
            f"  {n}.set = icmp ne i8 {n}.flag, 0",
            f"  {n}.value = zext i1 {n}.set to i32",
        ]
    return [*lines, f"  store i32 {n}.value, ptr {n}.word, align 4"]


def _given_by_threads(node: Node, pointer: str, name: str, word: int, turn: int) -> list[str]:
    n, lines = f"{name}.{turn}", _own(node, pointer, name, word, turn)
    store = f"store i32 {n}.value, {GLOBAL} {n}.far, align 4"
    lines.append(f"  {n}.value = load i32, ptr {n}.word, align 4")
    if node.dtype == BOOL:
        lines.append(f"  {n}.flag = trunc i32 {n}.value to i8")
        store = f"store i8 {n}.flag, {GLOBAL} {n}.far, align 1"
    return [
        *lines,
        f"  {n}.may = and i1 {n}.on, %inside",
        f"  br i1 {n}.may, label {n}.store, label {n}.next",
        f"{n[1:]}.store:",
        f"  {store}",
        f"  br label {n}.next",
        f"{n[1:]}.next:",
    ]


def _mover(flags: bool, inward: bool, space: str) -> str:
    """Name of the function that moves an array between the GPU's memory and `space`."""
    kind, way = "flags" if flags else "words", "take" if inward else "give"
    return f"@{way}_{'near_' * (space == NEAR)}{kind}"


def _write_mover(module: Module, flags: bool, inward: bool, space: str) -> None:
    """Write a function that moves one environment's array: `(base, near, size, first, sub)`."""
    share = module.share
    head = f"define internal void {_mover(flags, inward, space)}"
    lines = [
        f"{head}({GLOBAL} noalias %base, {space} noalias %near, i64 %size,"
        " i64 %first, i64 %sub) #2 {",
        "entry:",
        f"  %far = getelementptr {'i8' if flags else 'i32'}, {GLOBAL} %base, i64 %first",
        # The elements of this thread: `sub`, `sub + share` and so on, below `size`.
        f"  %whole = and i64 %size, {-AT_ONCE * share}",
        "  %rest = add i64 %whole, %sub",
    ]
    before, named = "entry", 0
    for stem, start, end, step in (
        ("block", "%sub", "%whole", AT_ONCE * share),
        ("remainder", "%rest", "%size", share),
    ):
        code = Code(module, named)
        _move(code, flags, f"%i{stem}", step // share, inward, space)
        named = code.named
        lines += counted(stem, before, start, end, step, code.lines)
        before = f"{stem}done"
    module.functions.append("\n".join([*lines, "  ret void", "}"]))


def _move(code: Code, flags: bool, i: str, count: int, inward: bool, space: str) -> None:
    """Move `count` elements; flags are bytes outside and numbers inside."""
    kind, size = ("i8", 1) if flags else ("i32", 4)
    lanes, share = code.module.lanes, code.module.share
    far = code.emit(f"getelementptr {kind}, {GLOBAL} %far, i64 {i}")
    near = code.emit(f"getelementptr [{lanes} x i32], {space} %near, i64 {i}")
    outer, inner = (
        [code.emit(f"getelementptr {t}, {s} {p}, i64 {k * share}") for k in range(count)]
        for t, s, p in ((kind, GLOBAL, far), (f"[{lanes} x i32]", space, near))
    )
    if inward:
        values = [code.emit(f"load {kind}, {GLOBAL} {p}, align {size}") for p in outer]
        if flags:
            values = [code.emit(f"icmp ne i8 {v}, 0") for v in values]
            values = [code.emit(f"zext i1 {v} to i32") for v in values]
        for v, p in zip(values, inner, strict=True):
            code.do(f"store i32 {v}, {space} {p}, align 4")
        return
    values = [code.emit(f"load i32, {space} {p}, align 4") for p in inner]
    if flags:
        values = [code.emit(f"trunc i32 {v} to i8") for v in values]
    for v, p in zip(values, outer, strict=True):
        code.do(f"store {kind} {v}, {GLOBAL} {p}, align {size}")
