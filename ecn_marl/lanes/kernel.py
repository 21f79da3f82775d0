"""The same loops as one GPU kernel: the threads of a warp share some environments.

A warp of 32 threads computes `lanes` environments at a time (`LANES`), each with `32 / lanes`
threads. Thread `lanes * k + e` computes elements `k`, `k + 32 / lanes`, ... of environment `e`
(`dealing`). Element `i` of a node lies at `4 * (i * lanes + e)` of the warp's workspace, so that a
warp reads and writes whole lines of memory. The first thread of every warp computes what
environments share.

Few environments in a warp finish an interval sooner, many waste fewer threads on short arrays.
"""

from __future__ import annotations

from ecn_marl.lanes.assembly import Code, Module
from ecn_marl.lanes.dealing import WARP
from ecn_marl.lanes.emit import GLOBAL, calls, write_steps
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import BOOL, Argument, Node, View
from ecn_marl.lanes.schedule import Plan
from ecn_marl.lanes.transfer import counted

BLOCK = 64
"""Threads of a block: few, so that small batches are spread over all of a GPU's processors."""

WARPS = 4224
"""Largest number of warps at a time: what an H100 holds at 64 registers per thread (32 on each of
its 132 processors). Larger batches need no larger workspace.

Nearly all the time is spent waiting for memory, so many warps beat many registers. On an H200,
65,536 environments of `websearch-v0`, 8 in a warp, made 18.0 M agent-steps/s with 64 registers and
16.6 M with 40.
"""

LANES = (8, 4, 2, 1)
"""Numbers of environments of a warp. 16 were slower on an H200 (13 M agent-steps/s; 8: 18 M)."""

FEWEST_WARPS = 1024
"""Warps that a batch is spread over before they take more than one environment each."""

WARP_BYTES = 512_000
"""Largest workspace of a warp of several environments: larger ones fill a warp with one of them."""

POINTERS = 500
"""Largest number of arguments and results: a kernel takes 4096 bytes of parameters."""

AT_ONCE = 8
"""Elements that are loaded before the first is stored: they wait for memory together."""


def lanes_for(size: int) -> int:
    """Environments of a warp for a batch of this size."""
    return next(n for n in LANES if size >= n * FEWEST_WARPS or n == 1)


def write_kernel(
    plan: Plan, arguments: list[Argument], results: list[View], lanes: int, ordered: bool = False
) -> tuple[str, int]:
    """A module with a kernel `step(arguments ..., results ..., work, batch)`.

    It takes pointers to the buffers of arguments and results; those that differ between
    environments have a leading axis of `batch`. It is launched with blocks of `BLOCK` threads, no
    more than `WARPS` warps, which go through the batch `lanes` environments at a time.

    Args:
        plan: what to do, made for threads.
        arguments: the program's arguments.
        results: its results, whole nodes.
        lanes: environments of a warp, a power of two below 32.
        ordered: whether one more argument tells in which order environments fill warps.

    Returns:
        The text, and the bytes of `work` that each warp needs.

    Raises:
        Unsupported: a kernel cannot take so many arguments.
    """
    # Each is a pointer of 8 bytes, beside the workspace, the order and the size of the batch.
    if len(arguments) + len(results) > POINTERS:
        raise Unsupported(f"programs of more than {POINTERS} arguments and results on a GPU")
    module = Module(plan, lanes, WARP // lanes)
    shared, steps = write_steps(module, plan.shared), write_steps(module, plan.steps, dealt=True)
    for flags in (False, True):
        for name, inward in (("take", True), ("give", False)):
            _mover(module, f"@{name}_{'flags' if flags else 'words'}", flags, inward)
    inputs: list[tuple[Node, str]] = [
        (a, f"%a{a.slot}") for a in arguments if a.varies and a in plan.offsets
    ]
    outputs = [(r.node, f"%r{k}") for k, r in enumerate(results)]
    pointers = [f"%a{k}" for k in range(len(arguments))] + ["%order"] * ordered
    pointers += [f"%r{k}" for k in range(len(results))]
    own_bytes, shared_bytes = _lines(plan.own_bytes), _lines(plan.shared_bytes)
    size = own_bytes + shared_bytes + _lines(8 * len(arguments))
    text = KERNEL.format(
        parameters=", ".join(f"{GLOBAL} {p}" for p in [*pointers, "%work"]),
        bytes=size,
        lanes=lanes,
        lanes_less=lanes - 1,
        log_lanes=lanes.bit_length() - 1,
        log_lanes_two=lanes.bit_length(),
        shared_at=own_bytes,
        args_at=own_bytes + shared_bytes,
        pointers="\n".join(_pointers([a for a in arguments if not a.varies])),
        row="\n".join(ORDERED if ordered else UNORDERED),
        once="\n".join(calls(module, shared)),
        take="\n".join(_moves(module, "@take", inputs, "")),
        each="\n".join(calls(module, steps)),
        give="\n".join(_moves(module, "@give", outputs, ".inside")),
    )
    return module.text() + text, size


def _lines(size: int) -> int:
    """Bytes, in whole lines of a GPU's memory."""
    return -(-size // 128) * 128


def _pointers(arguments: list[Argument]) -> list[str]:
    """Lines that store the pointers to shared arguments where `%args` is read, by their slots."""
    lines = []
    for a in arguments:
        lines += [
            f"  %keep{a.slot} = getelementptr {GLOBAL}, {GLOBAL} %args.g, i64 {a.slot}",
            f"  store {GLOBAL} %a{a.slot}, {GLOBAL} %keep{a.slot}, align 8",
        ]
    return lines


def _moves(module: Module, name: str, pairs: list[tuple[Node, str]], suffix: str) -> list[str]:
    """Calls that move arrays between the caller's layout and the workspace."""
    lines = []
    for k, (node, pointer) in enumerate(pairs):
        if not node.size:
            continue
        near, count = f"%{name[1:]}{k}", str(node.size)
        lines.append(
            f"  {near} = getelementptr i8, {GLOBAL} %own.g, i64 {module.plan.offsets[node]}"
        )
        if suffix:  # environments past the end of the batch are not stored
            count = f"{near}.count"
            lines.append(f"  {count} = select i1 %inside, i64 {node.size}, i64 0")
        kind = "flags" if node.dtype == BOOL else "words"
        lines += [
            f"  {near}.row = mul i64 %row, {node.size}",
            f"  call void {name}_{kind}({GLOBAL} {pointer}, {GLOBAL} {near}, i64 {count},"
            f" i64 {near}.row, i64 %sub)",
        ]
    return lines


def _mover(module: Module, name: str, flags: bool, inward: bool) -> None:
    """Write a function that moves one environment's array: `(base, near, size, first, sub)`."""
    share = module.share
    lines = [
        f"define internal void {name}({GLOBAL} noalias %base, {GLOBAL} noalias %near, i64 %size,"
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
        _move(code, flags, f"%i{stem}", step // share, inward)
        named = code.named
        lines += counted(stem, before, start, end, step, code.lines)
        before = f"{stem}done"
    module.functions.append("\n".join([*lines, "  ret void", "}"]))


def _move(code: Code, flags: bool, i: str, count: int, inward: bool) -> None:
    """Move `count` elements; flags are bytes outside and numbers inside."""
    kind, size = ("i8", 1) if flags else ("i32", 4)
    lanes, share = code.module.lanes, code.module.share
    far = code.emit(f"getelementptr {kind}, {GLOBAL} %far, i64 {i}")
    near = code.emit(f"getelementptr [{lanes} x i32], {GLOBAL} %near, i64 {i}")
    outer, inner = (
        [code.emit(f"getelementptr {t}, {GLOBAL} {p}, i64 {k * share}") for k in range(count)]
        for t, p in ((kind, far), (f"[{lanes} x i32]", near))
    )
    if inward:
        values = [code.emit(f"load {kind}, {GLOBAL} {p}, align {size}") for p in outer]
        if flags:
            values = [code.emit(f"icmp ne i8 {v}, 0") for v in values]
            values = [code.emit(f"zext i1 {v} to i32") for v in values]
        for v, p in zip(values, inner, strict=True):
            code.do(f"store i32 {v}, {GLOBAL} {p}, align 4")
        return
    values = [code.emit(f"load i32, {GLOBAL} {p}, align 4") for p in inner]
    if flags:
        values = [code.emit(f"trunc i32 {v} to i8") for v in values]
    for v, p in zip(values, outer, strict=True):
        code.do(f"store {kind} {v}, {GLOBAL} {p}, align {size}")


UNORDERED = ("  %row = add i64 %place, 0",)
"""An environment's number is its place in the batch."""

ORDERED = (
    f"  %row.at = getelementptr i32, {GLOBAL} %order, i64 %place",
    f"  %row.short = load i32, {GLOBAL} %row.at, align 4",
    "  %row = zext i32 %row.short to i64",
)
"""An environment's number is in a table, at its place in the batch."""

KERNEL = """
define ptx_kernel void @step({parameters}, i64 %batch) #1 {{
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %block = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %blocks = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %thread.short = and i32 %tid, 31
  %thread = zext i32 %thread.short to i64
  %lane = and i64 %thread, {lanes_less} ; which of the warp's environments
  %sub = lshr i64 %thread, {log_lanes} ; and which of its threads
  %in.block.short = lshr i32 %tid, 5
  %in.block = zext i32 %in.block.short to i64
  %block.long = zext i32 %block to i64
  %before = shl i64 %block.long, 1
  %warp = add i64 %before, %in.block
  %blocks.long = zext i32 %blocks to i64
  %stride = shl i64 %blocks.long, {log_lanes_two} ; environments of all warps, two in a block
  %last = sub i64 %batch, 1
  %start = shl i64 %warp, {log_lanes}
  %any = icmp ult i64 %start, %batch
  br i1 %any, label %begin, label %done
begin:
  %at = mul i64 %warp, {bytes}
  %space = getelementptr i8, ptr addrspace(1) %work, i64 %at
  %column = shl i64 %lane, 2
  %own.g = getelementptr i8, ptr addrspace(1) %space, i64 %column
  %shared.g = getelementptr i8, ptr addrspace(1) %space, i64 {shared_at}
  %args.g = getelementptr i8, ptr addrspace(1) %space, i64 {args_at}
  %leads = icmp eq i64 %thread, 0
  br i1 %leads, label %once, label %ready ; shared values: one thread writes, then all may read
once:
{pointers}
{once}
  br label %ready
ready:
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  br label %loop
loop:
  %first = phi i64 [%start, %ready], [%next, %loop]
  %number = add i64 %first, %lane
  %inside = icmp ult i64 %number, %batch
  ; Threads past the end repeat the last environment: all threads of a warp have to vote and wait.
  %place = select i1 %inside, i64 %number, i64 %last
{row}
{take}
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
{each}
  ; Results may lie where other threads still read arguments.
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
{give}
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  %next = add i64 %first, %stride
  %more = icmp ult i64 %next, %batch
  br i1 %more, label %loop, label %done
done:
  ret void
}}

declare void @llvm.nvvm.bar.warp.sync(i32) convergent
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
; `convergent`: LLVM may not move votes and waits into branches that only some threads take.
attributes #0 = {{ alwaysinline nounwind convergent }} ; no calls: a third fewer instructions
attributes #2 = {{ noinline nounwind convergent }}
; 16 blocks of 64 threads on a processor leave 64 registers to each thread, see `WARPS`.
attributes #1 = {{ nounwind convergent "nvvm.maxntid"="64" "nvvm.minctasm"="16" }}
"""
