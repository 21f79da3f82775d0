"""Operations that only the lowering makes; their code depends on the loop around them.

Each reads other elements than its own, or has two results (the block cipher). So none may move to
another loop, and the idle analysis follows no values through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecn_marl.lanes.elementwise import combine
from ecn_marl.lanes.graph import Map
from ecn_marl.lanes.primitives import inner
from ecn_marl.lanes.threefry import threefry

if TYPE_CHECKING:
    from ecn_marl.lanes.loop_codegen import LoopBody


def _look_up(loop: LoopBody, item: Map) -> str:
    """An element of a table at a position that depends on data."""
    return loop.look_up(item)


def _threefry(loop: LoopBody, item: Map) -> str:
    """One word of a block; both are computed at once, and the other is kept for its own item."""
    k0, k1, x0, x1 = (loop.operand(o) for o in item.operands)
    words = loop.computed_once(("threefry", k0, k1, x0, x1), lambda: threefry(loop, k0, k1, x0, x1))
    return words[item.params["word"]]


def _running(loop: LoopBody, item: Map) -> str:
    """An element of a running sum: the sum of its line so far, and one more term."""
    held, at = item.params["held"], loop.element(item.params["slots"])
    before = loop.load(held, at)
    term = loop.operand(item.operands[0])
    value = combine(loop, item.params["combine"], item.dtype, before, term)
    loop.save(held, at, value)
    return value


inner("look_up", _look_up)
inner("threefry", _threefry)
inner("running", _running, skippable=False)  # the next element needs this one
inner("matmul", None, skippable=False)  # has a loop of its own, see `matmul`
