"""Operations that only the lowering makes: they need the loop around them.

Each reads elements other than its own, or (the block cipher) gives two results: none moves to
another loop, and no values are followed through it.
"""

from __future__ import annotations

from typing import Any

from ecn_marl.lanes.elementwise import combine
from ecn_marl.lanes.graph import Map
from ecn_marl.lanes.primitives import inner
from ecn_marl.lanes.threefry import threefry


def _look_up(loop: Any, item: Map) -> str:
    """An element of a table at a position that depends on data."""
    value: str = loop.look_up(item)
    return value


def _threefry(loop: Any, item: Map) -> str:
    """One word of a block; both are computed at once, and the other is kept for its own item."""
    k0, k1, x0, x1 = (loop.operand(o) for o in item.operands)
    words: tuple[str, str] = loop.computed_once(
        ("threefry", k0, k1, x0, x1), lambda: threefry(loop, k0, k1, x0, x1)
    )
    return words[item.params["word"]]


def _running(loop: Any, item: Map) -> str:
    """An element of a running sum: what its line has so far, with one term more."""
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
