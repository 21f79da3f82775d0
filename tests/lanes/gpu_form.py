"""GPU code without a GPU: the same text compiled for this processor, thread after thread.

What a kernel asks the GPU for is replaced: its number is an argument, it votes with its own flag
only (or for everything), and it waits for nobody, as there is nobody else.
"""

from __future__ import annotations

from typing import Any

import pytest
from jax.extend import core

from ecn_marl.lanes import mapping, native
from ecn_marl.lanes.kernel import BLOCK, WARP, write_kernel
from ecn_marl.lanes.lower import lower
from ecn_marl.lanes.schedule import make_plan

MACHINE = """
define internal void @gpu.bar.warp.sync(i32 %mask) {{
  ret void
}}
define internal i1 @gpu.vote.any.sync(i32 %mask, i1 %mine) {{
  ret i1 {vote}
}}
define void @run(ptr %args, ptr %rets, i64 %batch) {{
entry:
{loads}
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %thread = urem i32 %i, {block}
  %number = udiv i32 %i, {block}
  call void @step({given}, i64 %batch, i32 %thread, i32 %number, i32 {blocks})
  %next = add i32 %i, 1
  %over = icmp eq i32 %next, {threads}
  br i1 %over, label %done, label %loop
done:
  ret void
}}
"""

NUMBERS = "i64 %batch, i32 %gpu0, i32 %gpu1, i32 %gpu2) #1"


def kernel_of(
    jaxpr: core.ClosedJaxpr, own: list[bool], ordered: bool = False
) -> tuple[str, int, int, int]:
    """Text of a kernel, bytes per warp, and how many arguments and results it has."""
    program = lower(jaxpr, own)
    plan = make_plan(program.top, program.results, program.flags, WARP, threads=True)
    text, size = write_kernel(plan, program.arguments, program.results, ordered)
    return text, size, len(program.arguments) + ordered, len(program.results)


def emulated(text: str, arguments: int, results: int, warps: int, vote: str) -> str:
    """A module for `native` that runs a kernel with so many warps."""
    loads, given = [], []
    for table, count in (("args", arguments), ("rets", results + 1)):
        for k in range(count):
            loads += [
                f"  %{table}{k}.at = getelementptr ptr, ptr %{table}, i64 {k}",
                f"  %{table}{k} = load ptr addrspace(1), ptr %{table}{k}.at",
            ]
            given.append(f"ptr addrspace(1) %{table}{k}")
    lines = [x for x in text.splitlines() if not x.startswith("declare") or "@llvm.nvvm" not in x]
    text = "\n".join(lines).replace("ptx_kernel ", "").replace("i64 %batch) #1", NUMBERS)
    for k, number in enumerate(("tid", "ctaid", "nctaid")):
        text = text.replace(
            f"call i32 @llvm.nvvm.read.ptx.sreg.{number}.x()", f"add i32 %gpu{k}, 0"
        )
    blocks = -(-warps * WARP // BLOCK)
    machine = MACHINE.format(
        vote=vote,
        loads="\n".join(loads),
        given=", ".join(given),
        blocks=blocks,
        block=BLOCK,
        threads=blocks * BLOCK,
    )
    text = text.replace("llvm.nvvm", "gpu").replace("alwaysinline", "noinline")  # quick to compile
    return text + machine


def emulate(patch: pytest.MonkeyPatch, most: int = 1000, vote: str = "%mine") -> list[str]:
    """Run batches through emulated kernels of at most so many warps from now on; their texts."""
    texts = []

    def build(jaxpr: Any, own: list[bool], size: int, ordered: bool) -> tuple[str, int]:
        text, memory, arguments, results = kernel_of(jaxpr, own, ordered)
        texts.append(text)
        warps = min(-(-size // WARP), most)
        name = native.register(emulated(text, arguments, results, warps, vote))
        return name, memory * warps

    patch.setattr(mapping, "_for_cpu", build)
    return texts
