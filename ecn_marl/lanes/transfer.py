"""Moves arrays between the caller's layout, one environment after the other, and vectors.

Square blocks are transposed in registers, which made transfers four times as fast. One
function moves all arrays: with a loop for each array, LLVM took three times as long.
"""

from __future__ import annotations

from ecn_marl.lanes.assembly import Code, Module
from ecn_marl.lanes.graph import BOOL, Node


def transfer(
    module: Module, name: str, pairs: list[tuple[Node, int]], inward: bool, ordered: bool
) -> None:
    """Write a function that moves arrays between the caller's layout and vectors.

    The caller's arrays hold one environment after the other. Numbers move as square blocks, as many
    elements as there are lanes, that are transposed in registers. Lanes past the end of the batch
    compute its last environment again, and write the same results. Where they are `ordered`, the
    number of each lane's environment is read from `%order`.
    """
    for flags in (False, True):
        _mover(module, f"{name}_{'flags' if flags else 'words'}", flags, inward, ordered)
    code = Code(module)
    for node, slot in pairs:
        if not node.size:
            continue
        at = code.emit(f"getelementptr ptr, ptr %buffers, i64 {slot}")
        base = code.emit(f"load ptr, ptr {at}, align 8")
        near = code.emit(f"getelementptr i8, ptr %own, i64 {module.plan.offsets[node]}")
        kind = "flags" if node.dtype == BOOL else "words"
        code.do(
            f"call void {name}_{kind}(ptr {base}, ptr {near}, i64 {node.size}, ptr %order,"
            " i64 %first, i64 %batch)"
        )
    head = (
        f"define internal void {name}(ptr %buffers, ptr %own, ptr %order, i64 %first, i64 %batch)"
        " #0 {"
    )
    module.functions.append("\n".join([head, *code.lines, "  ret void", "}"]))


def _mover(module: Module, name: str, flags: bool, inward: bool, ordered: bool) -> None:
    """Write a function that moves one array: `(base, near, size, order, first, batch)`."""
    n, code, size = module.lanes, Code(module), 1 if flags else 4
    last = code.emit("sub i64 %batch, 1")
    far = []
    for k in range(n):
        row = code.emit(f"add i64 %first, {k}")
        beyond = code.emit(f"icmp ugt i64 {row}, {last}")
        # Past the end of the batch, lanes repeat its last environment: the same numbers are written
        # twice, and no lane is masked.
        row = code.emit(f"select i1 {beyond}, i64 {last}, i64 {row}")
        if ordered:
            at = code.emit(f"getelementptr i32, ptr %order, i64 {row}")
            short = code.emit(f"load i32, ptr {at}, align 4")
            row = code.emit(f"zext i32 {short} to i64")
        place = code.emit(f"mul i64 {row}, %size")
        bytes_ = code.emit(f"mul i64 {place}, {size}")
        far.append(code.emit(f"getelementptr i8, ptr %base, i64 {bytes_}"))
    # Flags are bytes outside and bits inside: there is no square block to transpose.
    whole = "0" if flags else code.emit(f"and i64 %size, {-n}")
    lines = [
        f"define internal void {name}(ptr %base, ptr %near, i64 %size, ptr %order, i64 %first,"
        " i64 %batch) #0 {",
        "entry:",
        *code.lines,
    ]
    before = "entry"
    for stem, start, end, step in (("block", "0", whole, n), ("remainder", whole, "%size", 1)):
        if flags and stem == "block":
            continue
        code.lines, i = [], f"%i{stem}"
        if step == n:
            _move_block(code, far, i, inward)
        else:
            _move_element(code, flags, far, i, inward)
        lines += counted(stem, before, start, end, step, code.lines)
        before = f"{stem}done"
    module.functions.append("\n".join([*lines, "  ret void", "}"]))


def counted(stem: str, before: str, start: str, end: str, step: int, body: list[str]) -> list[str]:
    """A loop from `start` while below `end`; it comes from block `before`, and ends in `STEMdone`.

    Args:
        stem: start of its names; the count is `%iSTEM`.
        before: block that leads to it.
        start: first count, an i64.
        end: end, an i64.
        step: added to the count in every turn.
        body: lines of a turn.
    """
    i = f"%i{stem}"
    return [
        f"  br label %{stem}",
        f"{stem}:",
        f"  {i} = phi i64 [{start}, %{before}], [{i}n, %{stem}body]",
        f"  {i}more = icmp ult i64 {i}, {end}",
        f"  br i1 {i}more, label %{stem}body, label %{stem}done",
        f"{stem}body:",
        *body,
        f"  {i}n = add nuw i64 {i}, {step}",
        f"  br label %{stem}",
        f"{stem}done:",
    ]


def _transposed(code: Code, rows: list[str], kind: str) -> list[str]:
    """Columns of a square block: of ever smaller blocks, halves off the diagonal are exchanged."""
    n, vector = len(rows), code.vector(kind)
    # Steps of log2(n): n log2(n) shuffles move n^2 elements.
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
    # The caller's rows begin anywhere; the workspace is aligned to whole vectors.
    align = (4, 4 * n) if inward else (4 * n, 4)
    rows = [code.emit(f"load {vector}, ptr {p}, align {align[0]}") for p in source]
    for row, p in zip(_transposed(code, rows, kind), target, strict=True):
        code.do(f"store {vector} {row}, ptr {p}, align {align[1]}")


def _move_element(code: Code, flag: bool, far: list[str], i: str, inward: bool) -> None:
    """One element of every environment."""
    n, kind = code.module.lanes, "i8" if flag else "i32"
    vector, size = code.vector(kind), 1 if flag else 4
    offset = code.emit(f"mul i64 {i}, {max(n // 8, 1) if flag else 4 * n}")
    inside = code.emit(f"getelementptr i8, ptr %near, i64 {offset}")
    places = [code.emit(f"getelementptr {kind}, ptr {row}, i64 {i}") for row in far]
    if inward:
        values = "poison"
        for k, p in enumerate(places):
            value = code.emit(f"load {kind}, ptr {p}, align {size}")
            values = code.emit(f"insertelement {vector} {values}, {kind} {value}, i32 {k}")
        if flag:
            flags = code.emit(f"icmp ne {vector} {values}, zeroinitializer")
            bits = code.emit(f"bitcast {code.vector('i1')} {flags} to i{n}")
            code.do(f"store i{n} {bits}, ptr {inside}, align {max(n // 8, 1)}")
        else:
            code.do(f"store {vector} {values}, ptr {inside}, align {4 * n}")
        return
    if flag:
        bits = code.emit(f"load i{n}, ptr {inside}, align {max(n // 8, 1)}")
        flags = code.emit(f"bitcast i{n} {bits} to {code.vector('i1')}")
        values = code.emit(f"zext {code.vector('i1')} {flags} to {vector}")
    else:
        values = code.emit(f"load {vector}, ptr {inside}, align {4 * n}")
    for k, p in enumerate(places):
        value = code.emit(f"extractelement {vector} {values}, i32 {k}")
        code.do(f"store {kind} {value}, ptr {p}, align {size}")
