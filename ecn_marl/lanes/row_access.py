"""Access to rows of tables whose position all lanes mostly share, such as the row of a history.

Environments that started together write the same row of their histories. This row is a vector in
memory: one load or store serves all lanes. A gather or scatter accesses each lane by itself, and is
some ten times slower. Only at run time is it known whether lanes agree. So functions with both
cases are inlined into the loops, and LLVM moves the test out of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ecn_marl.lanes.assembly import MANGLED, SCALAR, Module
from ecn_marl.lanes.graph import BOOL, Map, Node, Place, Write

if TYPE_CHECKING:
    from ecn_marl.lanes.loop_codegen import LoopBody

SAME_ROW = """  %first = extractelement <{n} x i32> %at, i32 0
  %head = insertelement <{n} x i32> poison, i32 %first, i32 0
  %all = shufflevector <{n} x i32> %head, <{n} x i32> poison, <{n} x i32> zeroinitializer
  %equal = icmp eq <{n} x i32> %at, %all
  %same = call i1 @llvm.vector.reduce.and.v{n}i1(<{n} x i1> %equal)
  %place = sext i32 %first to i64
  %row = getelementptr <{n} x {kind}>, ptr %base, i64 %place
"""
"""Whether all lanes access the same row, and its address."""

EACH = """  %scaled = mul <{n} x i32> %at, splat (i32 {n})
  %own = add <{n} x i32> %scaled, <{lanes}>
  %each = getelementptr {kind}, ptr %base, <{n} x i32> %own
"""
"""Addresses of each lane's element."""

LOAD = (
    """define internal <{n} x {kind}> {name}(
    ptr %base, <{n} x i32> %at, <{n} x i1> %inside, <{n} x {kind}> %other) #2 {{
"""
    + SAME_ROW
    + """  br i1 %same, label %together, label %apart
together: ; `LoopBody.position` sends lanes out of bounds to row 0, so this address exists
  %whole = load <{n} x {kind}>, ptr %row, align {align}
  %near = select <{n} x i1> %inside, <{n} x {kind}> %whole, <{n} x {kind}> %other
  br label %done
apart:
"""
    + EACH
    + """  %far = call <{n} x {kind}> @llvm.masked.gather.v{n}{short}.v{n}p0(
    <{n} x ptr> %each, i32 4, <{n} x i1> %inside, <{n} x {kind}> %other)
  br label %done
done:
  %value = phi <{n} x {kind}> [%near, %together], [%far, %apart]
  ret <{n} x {kind}> %value
}}"""
)

STORE = (
    """define internal void {name}(
    ptr %base, <{n} x i32> %at, <{n} x i1> %inside, <{n} x {kind}> %value) #2 {{
"""
    + SAME_ROW
    + """  ; A row is stored whole only if every lane is in bounds: other lanes' numbers must stay.
  %everywhere = call i1 @llvm.vector.reduce.and.v{n}i1(<{n} x i1> %inside)
  %simple = and i1 %same, %everywhere
  br i1 %simple, label %together, label %apart
together:
  store <{n} x {kind}> %value, ptr %row, align {align}
  br label %done
apart:
"""
    + EACH
    + """  call void @llvm.masked.scatter.v{n}{short}.v{n}p0(
    <{n} x {kind}> %value, <{n} x ptr> %each, i32 4, <{n} x i1> %inside)
  br label %done
done:
  ret void
}}"""
)


def is_row(node: Node, place: Place) -> bool:
    """Whether a position is the same for all elements of a loop, but for a fixed part.

    Lanes often agree in such a position. In positions that differ from element to element they
    seldom do.
    """
    return (
        node.varies
        and node.dtype != BOOL
        and bool(place.indices)
        and all(np.unique(index.where).size == 1 for index in place.indices)
    )


def load_row(loop: LoopBody, item: Map, place: Place, table: Node) -> str:
    """Write a load of an element of a row for every lane, and return the name of its value.

    Args:
        loop: the loop around it.
        item: the look-up.
        place: where it reads.
        table: the array that it reads.
    """
    gather = "declare {v} @llvm.masked.gather.v{n}{short}.v{n}p0(<{n} x ptr>, i32, <{n} x i1>, {v})"
    load = _function(loop.module, "row.load", LOAD, gather, item.dtype)
    other = "zeroinitializer"
    if place.mode == "fill":
        other = loop.number(item.params["fill"], item.dtype)
    kind = loop.type(item.dtype)
    return loop.emit(f"call {kind} {load}({_row(loop, place, table)}, {kind} {other})")


def store_row(loop: LoopBody, item: Write, place: Place, value: str) -> None:
    """Write a store of an element of a row for every lane.

    Args:
        loop: the loop around it.
        item: the write.
        place: where it writes.
        value: name of the value that it writes.
    """
    scatter = (
        "declare void @llvm.masked.scatter.v{n}{short}.v{n}p0({v}, <{n} x ptr>, i32, <{n} x i1>)"
    )
    store = _function(loop.module, "row.store", STORE, scatter, item.store.dtype)
    kind = loop.type(item.store.dtype)
    loop.do(f"call void {store}({_row(loop, place, item.store)}, {kind} {value})")


def _row(loop: LoopBody, place: Place, node: Node) -> str:
    """The first arguments of both functions: base, position and mask.

    The fixed part goes into the base. The test whether lanes agree is then the same in every turn,
    and can be moved out of the loop.
    """
    at, inside = loop.position(place._replace(fixed=np.zeros_like(place.fixed)))
    base, n = loop.pointer(node, loop.element(place.fixed)), loop.module.lanes
    return f"ptr {base}, <{n} x i32> {at}, <{n} x i1> {inside or 'splat (i1 true)'}"


def _function(module: Module, stem: str, text: str, far: str, dtype: str) -> str:
    """Write a function, once for each type, and return its name."""
    n, short, kind = module.lanes, MANGLED[dtype], SCALAR[dtype]
    name = f"@{stem}.v{n}{short}"
    parts = {
        "n": n,
        "short": short,
        "kind": kind,
        "name": name,
        # A row of the workspace is one aligned vector.
        "align": 4 * n,
        "lanes": ", ".join(f"i32 {k}" for k in range(n)),
    }
    declaration = far.format(**parts, v=f"<{n} x {kind}>")
    module.declared[declaration.split("@")[1].split("(")[0]] = declaration
    reduce = f"llvm.vector.reduce.and.v{n}i1"
    module.declared[reduce] = f"declare i1 @{reduce}(<{n} x i1>)"
    module.declared[name] = text.format(**parts)
    return name
