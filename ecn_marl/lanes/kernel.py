"""The same loops as one GPU kernel: the threads of a warp share one or more environments.

There are two forms. A warp that has one environment of few flow slots keeps its numbers near its
threads, in registers and in the processor's shared memory, for a whole step (`residence`,
`resident`). Its block's warps wait for each other, so that they fetch the code once for all.

Larger environments lie in the GPU's memory.

There a warp of 32 threads computes `lanes` environments at a time (`LANES`), each with `32 / lanes`
threads. Thread `lanes * k + e` computes elements `k`, `k + 32 / lanes`, ... of environment `e`
(`dealing`). Element `i` of a node lies at `4 * (i * lanes + e)` of the warp's workspace, so that a
warp reads and writes whole lines of memory. The first thread of every warp computes what
environments share.

Few environments in a warp finish an interval sooner, many waste fewer threads on short arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecn_marl.lanes.assembly import Module
from ecn_marl.lanes.emit import GLOBAL, MEET, calls, write_steps
from ecn_marl.lanes.errors import Unsupported
from ecn_marl.lanes.graph import Argument, Map, Node, View
from ecn_marl.lanes.moves import given, taken, write_movers
from ecn_marl.lanes.residence import ROUNDS, WARP
from ecn_marl.lanes.schedule import Plan, make_plan

if TYPE_CHECKING:
    from ecn_marl.lanes.lower import Program

BLOCK = 64
"""Threads of a block: few, so that small batches are spread over all of a GPU's processors."""

PROCESSORS = 132
"""Processors of an H100 or H200."""

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

POINTERS = 4000
"""Largest number of arguments and results: a kernel takes 32,764 bytes of parameters, and 4,096
before CUDA 12.1."""

KEEPING_WARPS = (1, 2, 4, 8, 16)
"""Warps of a block, and so of a processor, that keep their environments' numbers near them.

On an H200, steps of `websearch-v0` made 12.8 M agent-steps/s with 1,024 environments and 8 warps
(255 registers per thread, 19 KB of shared memory per warp), and 8.9 M with 16. With 4,096 and more
they made 13.6 to 14.7 M with 8, and 15.6 to 16.6 M with 16.
"""

MOST_KEPT = ROUNDS * WARP
"""Most flow slots of an environment that a warp keeps; the code of more would be too long."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        lanes: environments of a warp.
        block: threads of a block.
        blocks: blocks that share a processor at least; they share its registers.
        near: shared memory of a block, bytes.
    """

    lanes: int
    block: int = BLOCK
    blocks: int = 16
    near: int = 0

    def warps(self, size: int) -> int:
        """Warps that a batch is dealt to, those of whole blocks."""
        each, warps = self.block // WARP, min(-(-size // self.lanes), WARPS)
        return -(-warps // each) * each


def planned(program: Program, size: int, block_bytes: int) -> tuple[Launch, Plan]:
    """How a program runs on a GPU: its launch and its plan.

    Args:
        program: a lowered program.
        size: environments.
        block_bytes: shared memory that a block may have, bytes.
    """
    make = functools.partial(make_plan, program.top, program.results, program.flags)
    slots = [f.size for f in program.flags if f.varies]
    products = any(isinstance(item, Map) and item.factors for item in program.origins)
    if slots and max(slots) <= MOST_KEPT and not products:
        wanted = size / PROCESSORS
        warps = next((n for n in KEEPING_WARPS if n >= wanted), KEEPING_WARPS[-1])
        plan = make(1, threads=True, near_bytes=block_bytes // warps)
        assert plan.residence is not None
        return Launch(1, WARP * warps, 1, plan.residence.near_bytes * warps), plan
    lanes = lanes_for(size)
    plan = make(lanes, threads=True)
    while lanes > 1 and plan.own_bytes > WARP_BYTES:
        lanes //= 2
        plan = make(lanes, threads=True)
    return Launch(lanes), plan


def lanes_for(size: int) -> int:
    """Environments of a warp for a batch of this size."""
    return next(n for n in LANES if size >= n * FEWEST_WARPS or n == 1)


def write_kernel(
    plan: Plan,
    arguments: list[Argument],
    results: list[View],
    launch: Launch,
    ordered: bool = False,
) -> tuple[str, int]:
    """A module with a kernel `step(arguments ..., results ..., work, batch)`.

    It takes pointers to the buffers of arguments and results; those that differ between
    environments have a leading axis of `batch`. Its warps go through the batch, `launch.lanes`
    environments at a time.

    Args:
        plan: what to do, made for threads.
        arguments: the program's arguments.
        results: its results, whole nodes.
        launch: how it is launched.
        ordered: whether one more argument tells in which order environments fill warps.

    Returns:
        The text, and the bytes of `work` that each warp needs.

    Raises:
        Unsupported: a kernel cannot take so many arguments.
    """
    # Each is a pointer of 8 bytes, beside the workspace, the order and the size of the batch.
    if len(arguments) + len(results) > POINTERS:
        raise Unsupported(f"programs of more than {POINTERS} arguments and results on a GPU")
    home, lanes, each = plan.residence, launch.lanes, launch.block // WARP
    if home is not None:
        home.arguments = [a.slot for a in arguments if not a.varies]
    module = Module(plan, lanes, WARP // lanes)
    shared, steps = write_steps(module, plan.shared), write_steps(module, plan.steps, dealt=True)
    write_movers(module)
    inputs: list[tuple[Node, str]] = [
        (a, f"%a{a.slot}") for a in arguments if a.varies and plan.place(a) is not None
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
        block=launch.block,
        blocks=launch.blocks,
        each=each,
        stride=each * lanes,
        shared_at=own_bytes,
        args_at=own_bytes + shared_bytes,
        pointers="\n".join(_pointers([a for a in arguments if not a.varies])),
        row="\n".join(ORDERED if ordered else UNORDERED),
        once="\n".join(calls(module, shared)),
        take="\n".join(taken(module, inputs)),
        each_step="\n".join(calls(module, steps)),
        give="\n".join(given(module, outputs)),
        near=""
        if home is None
        else KEEPING.format(words=max(home.count, 1), bytes=home.near_bytes),
        taken=MEET if home is not None else "",
        # Warps that wait for each other take as many turns as the first of their block.
        ahead="0" if home is None else "%in.block",
    )
    if home is not None:
        module.declared["llvm.nvvm.barrier0"] = "declare void @llvm.nvvm.barrier0() convergent"
        text = SHARED + text
    return module.text() + "\n" + text, size


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


UNORDERED = ("  %row = add i64 %place, 0",)
"""An environment's number is its place in the batch."""

ORDERED = (
    f"  %row.at = getelementptr i32, {GLOBAL} %order, i64 %place",
    f"  %row.short = load i32, {GLOBAL} %row.at, align 4",
    "  %row = zext i32 %row.short to i64",
)
"""An environment's number is in a table, at its place in the batch."""

SHARED = "@near_memory = external addrspace(3) global [0 x i8], align 16\n!0 = !{}\n"
"""Shared memory of a block; its size is given at the launch."""

KEEPING = """  %words = alloca [{words} x i32], align 4
  %near.start = mul i64 %in.block, {bytes}
  %near.g = getelementptr i8, ptr addrspace(3) @near_memory, i64 %near.start"""
"""What a thread keeps, which LLVM puts into registers, and a warp's part of the shared memory."""

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
  %before = mul i64 %block.long, {each}
  %warp = add i64 %before, %in.block
  %blocks.long = zext i32 %blocks to i64
  %stride = mul i64 %blocks.long, {stride} ; environments of all warps
  %last = sub i64 %batch, 1
  %start = shl i64 %warp, {log_lanes}
  %leader = sub i64 %start, {ahead}
  %any = icmp ult i64 %leader, %batch
{near}
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
  %first = phi i64 [%start, %ready], [%next, %again]
  %number = add i64 %first, %lane
  %inside = icmp ult i64 %number, %batch
  ; Threads past the end repeat the last environment: all threads of a warp have to vote and wait.
  %place = select i1 %inside, i64 %number, i64 %last
{row}
{take}
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
{taken}
{each_step}
  ; Results may lie where other threads still read arguments.
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
{give}
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  br label %again
again:
  %next = add i64 %first, %stride
  %leader.next = sub i64 %next, {ahead}
  %more = icmp ult i64 %leader.next, %batch
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
; How many blocks share a processor tells how many registers each thread may have.
attributes #1 = {{ nounwind convergent "nvvm.maxntid"="{block}" "nvvm.minctasm"="{blocks}" }}
"""
