"""GPU code without a GPU: the same text compiled for this processor, warp after warp.

What a kernel asks the GPU for is replaced. Its number is an argument. The 32 threads of a warp have
stacks of their own. Where one has to wait for the others, the next one runs. So they vote and
exchange numbers as those of a GPU do. Each runs as far as it can before the next one does, upwards
or downwards: a place where threads should wait for each other and do not shows in one of both.
"""

from __future__ import annotations

from typing import Any

import pytest
from jax.extend import core

from ecn_marl.lanes import mapping, native
from ecn_marl.lanes.calls import Code
from ecn_marl.lanes.emit import HERE
from ecn_marl.lanes.kernel import BLOCK, SHARED, Launch, write_kernel
from ecn_marl.lanes.lower import lower
from ecn_marl.lanes.residence import WARP
from ecn_marl.lanes.schedule import make_plan

CONTEXT, STACK = 8192, 1 << 18
"""Bytes of a thread's registers (`ucontext_t`, a kilobyte on x86) and of its stack."""

KEEPING = 0
"""The form of a kernel whose warps keep their environments' numbers near them."""

NEAR_BYTES = 12_288
"""Shared memory of such a warp: too little for all that it would keep there."""

MACHINE = """
@warp.contexts = internal global [33 x [{context} x i8]] zeroinitializer, align 64
@warp.stacks = internal global [32 x [{stack} x i8]] zeroinitializer, align 64
@warp.words = internal global [32 x i32] zeroinitializer, align 64
@warp.now = internal global i64 0
@warp.number = internal global i32 0
@warp.given = internal global [{count} x ptr addrspace(1)] zeroinitializer
@warp.batch = internal global i64 0

declare i32 @getcontext(ptr)
declare void @makecontext(ptr, ptr, i32, ...)
declare i32 @swapcontext(ptr, ptr)

; The next thread runs until it waits, too. Thread 32 is the machine itself.
define internal void @warp.switch(i64 %to) noinline {{
  %from = load i64, ptr @warp.now
  %a = getelementptr [{context} x i8], ptr @warp.contexts, i64 %from
  %b = getelementptr [{context} x i8], ptr @warp.contexts, i64 %to
  store i64 %to, ptr @warp.now
  call i32 @swapcontext(ptr %a, ptr %b)
  ret void
}}
define internal void @gpu.bar.warp.sync(i32 %mask) noinline {{
  %now = load i64, ptr @warp.now
  %more = add i64 %now, {step}
  %next = and i64 %more, 31
  call void @warp.switch(i64 %next)
  ret void
}}
define internal void @warp.tell(i32 %word) noinline {{
  %now = load i64, ptr @warp.now
  %own = getelementptr i32, ptr @warp.words, i64 %now
  store i32 %word, ptr %own
  call void @gpu.bar.warp.sync(i32 -1)
  ret void
}}
define internal void @gpu.barrier0() noinline {{
  ret void ; one warp after the other: no warp needs another's numbers
}}
define internal float @gpu.rcp.approx.ftz.f(float %x) noinline {{
  %one = fdiv float 1.0, %x
  ret float %one
}}
define internal i32 @gpu.vote.ballot.sync(i32 %mask, i1 %mine) noinline {{
entry:
  %word = zext i1 %mine to i32
  call void @warp.tell(i32 %word)
  br label %loop
loop:
  %k = phi i32 [0, %entry], [%k1, %loop]
  %votes = phi i32 [0, %entry], [%with, %loop]
  %at = getelementptr i32, ptr @warp.words, i32 %k
  %vote = load i32, ptr %at
  %bit = shl i32 %vote, %k
  %with = or i32 %votes, %bit
  %k1 = add i32 %k, 1
  %over = icmp eq i32 %k1, 32
  br i1 %over, label %done, label %loop
done:
  call void @gpu.bar.warp.sync(i32 -1)
  ret i32 %with
}}
define internal i32 @gpu.shfl.sync.bfly.i32(i32 %mask, i32 %word, i32 %by, i32 %c) noinline {{
  call void @warp.tell(i32 %word)
  %now = load i64, ptr @warp.now
  %distance = zext i32 %by to i64
  %other = xor i64 %now, %distance
  %at = getelementptr i32, ptr @warp.words, i64 %other
  %found = load i32, ptr %at
  call void @gpu.bar.warp.sync(i32 -1)
  ret i32 %found
}}
define internal i32 @gpu.read.ptx.sreg.laneid() noinline {{
  %now = load i64, ptr @warp.now
  %lane = trunc i64 %now to i32
  ret i32 %lane
}}
define internal i32 @gpu.read.ptx.sreg.lanemask.lt() noinline {{
  %lane = call i32 @gpu.read.ptx.sreg.laneid()
  %bit = shl i32 1, %lane
  %under = sub i32 %bit, 1
  ret i32 %under
}}
define internal i32 @warp.gather(i32 %word, i1 %most) noinline {{
entry:
  call void @warp.tell(i32 %word)
  br label %loop
loop:
  %k = phi i32 [0, %entry], [%k1, %loop]
  %found = phi i32 [0, %entry], [%with, %loop]
  %at = getelementptr i32, ptr @warp.words, i32 %k
  %other = load i32, ptr %at
  %equal = icmp eq i32 %other, %word
  %one = zext i1 %equal to i32
  %bit = shl i32 %one, %k
  %all = or i32 %found, %bit
  %beats = icmp ugt i32 %other, %found
  %greatest = select i1 %beats, i32 %other, i32 %found
  %with = select i1 %most, i32 %greatest, i32 %all
  %k1 = add i32 %k, 1
  %over = icmp eq i32 %k1, 32
  br i1 %over, label %done, label %loop
done:
  call void @gpu.bar.warp.sync(i32 -1)
  ret i32 %with
}}
define internal i32 @gpu.match.any.sync.i32(i32 %mask, i32 %word) noinline {{
  %same = call i32 @warp.gather(i32 %word, i1 false)
  ret i32 %same
}}
define internal i32 @gpu.redux.sync.umax(i32 %word, i32 %mask) noinline {{
  %most = call i32 @warp.gather(i32 %word, i1 true)
  ret i32 %most
}}
define internal void @warp.thread() noinline {{
  %now = load i64, ptr @warp.now
  %lane = trunc i64 %now to i32
  %warp = load i32, ptr @warp.number
  %in.block = urem i32 %warp, {each}
  %first = mul i32 %in.block, 32
  %thread = add i32 %first, %lane
  %number = udiv i32 %warp, {each}
  %batch = load i64, ptr @warp.batch
{loads}
  call void @step({given}, i64 %batch, i32 %thread, i32 %number, i32 {blocks})
  %done = load i64, ptr @warp.now
  %more = add i64 %done, {step}
  %following = and i64 %more, 31
  %is.last = icmp eq i64 %done, {last}
  %next = select i1 %is.last, i64 32, i64 %following
  call void @warp.switch(i64 %next)
  ret void
}}
define void @run(ptr %args, ptr %rets, i64 %batch) {{
entry:
{stores}
  store i64 %batch, ptr @warp.batch
  br label %warps
warps:
  %w = phi i32 [0, %entry], [%w1, %warp]
  store i32 %w, ptr @warp.number
  br label %threads
threads:
  %k = phi i64 [0, %warps], [%k1, %threads]
  %own = getelementptr [{context} x i8], ptr @warp.contexts, i64 %k
  call i32 @getcontext(ptr %own)
  %stack.at = getelementptr i8, ptr %own, i64 {stack_at}
  %size.at = getelementptr i8, ptr %own, i64 {size_at}
  %stack = getelementptr [{stack} x i8], ptr @warp.stacks, i64 %k
  store ptr %stack, ptr %stack.at
  store i64 {stack}, ptr %size.at
  call void (ptr, ptr, i32, ...) @makecontext(ptr %own, ptr @warp.thread, i32 0)
  %k1 = add i64 %k, 1
  %all = icmp eq i64 %k1, 32
  br i1 %all, label %warp, label %threads
warp:
  store i64 32, ptr @warp.now
  call void @warp.switch(i64 {first})
  %w1 = add i32 %w, 1
  %over = icmp eq i32 %w1, {warps}
  br i1 %over, label %done, label %warps
done:
  ret void
}}
"""

NUMBERS = "i64 %batch, i32 %gpu0, i32 %gpu1, i32 %gpu2) #1"


def kernel_of(
    jaxpr: core.ClosedJaxpr, own: list[bool], ordered: bool = False, lanes: int = 4
) -> tuple[str, int, int, int]:
    """Text of a kernel, bytes per warp, and how many arguments and results it has.

    `lanes` is `KEEPING` for a warp that keeps its environment's numbers.
    """
    program = lower(jaxpr, own)
    near = NEAR_BYTES if lanes == KEEPING else None
    plan = make_plan(program.top, program.results, program.flags, lanes or 1, True, near)
    launch = Launch(lanes or 1)
    text, size = write_kernel(plan, program.arguments, program.results, launch, ordered)
    return text, size, len(program.arguments) + ordered, len(program.results)


def emulated(text: str, arguments: int, results: int, warps: int, downwards: bool) -> str:
    """A module for `native` that runs a kernel with so many warps."""
    stores, loads, given = [], [], []
    for table, count in (("args", arguments), ("rets", results + 1)):
        for k in range(count):
            place = f"getelementptr ptr, ptr @warp.given, i64 {len(given)}"
            stores += [
                f"  %{table}{k}.at = getelementptr ptr, ptr %{table}, i64 {k}",
                f"  %{table}{k} = load ptr addrspace(1), ptr %{table}{k}.at",
                f"  %{table}{k}.kept = {place}",
                f"  store ptr addrspace(1) %{table}{k}, ptr %{table}{k}.kept",
            ]
            loads += [
                f"  %{table}{k}.at = {place}",
                f"  %{table}{k} = load ptr addrspace(1), ptr %{table}{k}.at",
            ]
            given.append(f"ptr addrspace(1) %{table}{k}")
    lines = [x for x in text.splitlines() if not x.startswith("declare") or "@llvm.nvvm" not in x]
    text = "\n".join(lines).replace("ptx_kernel ", "").replace("i64 %batch) #1", NUMBERS)
    for k, number in enumerate(("tid", "ctaid", "nctaid")):
        text = text.replace(
            f"call i32 @llvm.nvvm.read.ptx.sreg.{number}.x()", f"add i32 %gpu{k}, 0"
        )
    each = BLOCK // WARP
    blocks = -(-warps // each)
    machine = MACHINE.format(
        loads="\n".join(loads),
        stores="\n".join(stores),
        given=", ".join(given),
        count=len(given),
        blocks=blocks,
        warps=blocks * each,
        each=each,
        step=31 if downwards else 1,
        first=31 if downwards else 0,
        last=0 if downwards else 31,
        context=CONTEXT,
        stack=STACK,
        # glibc on x86: `uc_flags`, `uc_link`, then `uc_stack` with pointer, flags and size.
        stack_at=16,
        size_at=32,
    )
    for plain, opaque in HERE.items():
        text = text.replace(opaque, plain)
    near = f"internal addrspace(1) global [{2 * NEAR_BYTES} x i8] zeroinitializer"
    text = text.replace(SHARED, f"@near_memory = {near}\n!0 = !{{}}\n")
    text = text.replace("addrspace(3)", "addrspace(1)")
    text = text.replace("llvm.nvvm", "gpu").replace("alwaysinline", "noinline")  # quick to compile
    return text + machine


def emulate(
    patch: pytest.MonkeyPatch, most: int = 1000, lanes: int = 4, downwards: bool = False
) -> list[str]:
    """Run batches through emulated kernels of at most so many warps from now on; their texts."""
    texts = []

    def build(jaxpr: Any, own: list[bool], size: int, ordered: bool) -> Code:
        text, memory, arguments, results = kernel_of(jaxpr, own, ordered, lanes)
        texts.append(text)
        each = BLOCK // WARP
        warps = -(-min(-(-size // (lanes or 1)), most) // each) * each
        name = native.register(emulated(text, arguments, results, warps, downwards))
        return Code(lambda: (name, memory * warps))

    patch.setattr(mapping, "_for_cpu", build)
    # A GPU's code is not made by this processor's passes, and they take longer than to run.
    patch.setattr(native, "optimised", lambda: False)
    return texts
