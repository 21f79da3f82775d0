"""What is computed, element by element: the nodes that a jaxpr is lowered to.

A *node* is a flat array of one environment. An array of the traced program is a `View` of a node:
the flat position of each of its elements. Slices, transpositions, broadcasts and reshapes are
therefore free: they are other positions of the same node.

A `Map` is computed element by element, in any order. A `Store` is an array that `Write`s fill, at
positions that may depend on data. Sums, scatters and concatenations are stores. A `Loop` has nodes
of its own, and a `Carry` for each value that passes from one turn to the next.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

F32, I32, U32, BOOL = "f32", "i32", "u32", "bool"
"""Types of elements."""

NUMPY: dict[str, type[np.generic]] = {
    F32: np.float32,
    I32: np.int32,
    U32: np.uint32,
    BOOL: np.bool_,
}
"""NumPy's types of elements."""

DTYPES = {
    np.dtype(np.float32): F32,
    np.dtype(np.int32): I32,
    np.dtype(np.uint32): U32,
    np.dtype(np.bool_): BOOL,
}


# `eq=False`: nodes are keys of dicts, and compared by identity. `repr=False`: a loop and its
# carries refer to each other.
@dataclass(eq=False, repr=False)
class Node:
    """A flat array of one environment.

    Attributes:
        size: number of its elements.
        dtype: their type.
        varies: whether environments differ in it; otherwise it is computed once for all.
        block: the loop body it belongs to.
    """

    size: int
    dtype: str
    varies: bool
    block: Block | None


@dataclass(eq=False, repr=False)
class Constant(Node):
    """Numbers known when the program is compiled."""

    data: np.ndarray


@dataclass(eq=False, repr=False)
class Argument(Node):
    """An argument of the program; `slot` is its place among the leaves."""

    slot: int


@dataclass(eq=False, repr=False)
class Carry(Node):
    """A value that passes from one turn of a loop to the next."""

    loop: Loop


@dataclass(eq=False, repr=False)
class Final(Node):
    """A carry's value after its loop; it stays in the carry's place."""

    carry: Carry


class Operand(NamedTuple):
    """An array that an item reads: its element `i` needs element `where[i]` of `node`."""

    node: Node
    where: np.ndarray


class Place(NamedTuple):
    """A position that depends on data.

    Attributes:
        fixed: the part that does not, `[n]`.
        indices: index operands; each adds `index * stride`.
        strides: of each index.
        limits: largest value of each index that is in bounds (the smallest is 0).
        mode: `promise`, `clip`, `fill` (elements out of bounds are read as the parameter `fill`)
            or `drop`.
    """

    fixed: np.ndarray
    indices: tuple[Operand, ...]
    strides: tuple[int, ...]
    limits: tuple[int, ...]
    mode: str


@dataclass(eq=False, repr=False)
class Map(Node):
    """Computed element by element.

    Attributes:
        op: name of the operation, see `operations`.
        operands: arrays that it reads, element by element.
        params: parameters of the operation.
        place: for `look_up`: which element of `table` to read.
        table: for `look_up`.
        factors: for `matmul`: both matrices.
    """

    op: str
    operands: tuple[Operand, ...]
    params: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None
    table: Node | None = None
    factors: tuple[Node, ...] = ()


@dataclass(eq=False, repr=False)
class Bundle(Node):
    """Several arrays as one, without a copy; `whole` once a reader needs them side by side.

    Attributes:
        parts: views of the arrays; `starts` are where each begins.
        whole: a node that holds them all, if one was needed.
    """

    parts: list[View]
    starts: np.ndarray
    whole: View | None = None


@dataclass(eq=False, repr=False)
class Store(Node):
    """An array that is written piece by piece; `writes` in order."""

    writes: list[Write] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Write:
    """Elements written to a store, or combined with what is there.

    Attributes:
        store: the array that is written.
        op: `set`, `add`, `mul`, `min`, `max`, `or` or `and`.
        value: the elements.
        place: data-dependent positions, or None.
        fixed: positions, `[n]`, where there are no data-dependent ones.
    """

    store: Store
    op: str
    value: Operand
    place: Place | None = None
    fixed: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Number of elements written."""
        return len(self.value.where)


@dataclass(eq=False, repr=False)
class Loop:
    """A loop of `length` turns.

    Attributes:
        block: the body around it.
        body: its own.
        length: number of turns.
        carries: values that pass from turn to turn.
        finals: their values after the last turn.
        initial: their values at the start.
        following: their values at the end of each turn.
    """

    block: Block
    body: Block
    length: int
    carries: list[Carry] = field(default_factory=list)
    finals: list[Final] = field(default_factory=list)
    initial: list[Operand] = field(default_factory=list)
    following: list[Operand] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Block:
    """The body of a loop, or the whole program: items, each after what it reads."""

    parent: Block | None
    items: list[Map | Write | Loop] = field(default_factory=list)

    @property
    def depth(self) -> int:
        """Number of loops around it."""
        return 0 if self.parent is None else self.parent.depth + 1


class Axes(NamedTuple):
    """Where a factor's elements lie: `first + batch * b + outer * i + inner * k`."""

    first: int
    batch: int
    outer: int
    inner: int


def axes_of(where: np.ndarray) -> Axes | None:
    """Equal steps between a factor's elements `[batch, outer, inner]`; None if they differ."""
    first = int(where.flat[0])
    steps = [
        int(np.take(where, 1, axis).flat[0]) - first if where.shape[axis] > 1 else 0
        for axis in range(3)
    ]
    counts = np.ix_(*(np.arange(n) for n in where.shape))
    line = first + sum(step * count for step, count in zip(steps, counts, strict=True))
    return Axes(first, *steps) if np.array_equal(where, line) else None


class Blocks(NamedTuple):
    """Positions in blocks: `first + step * (i % width) + jump * (i // width)`.

    `width` is a power of two.
    """

    first: int
    width: int
    step: int
    jump: int


def blocks_of(where: np.ndarray) -> Blocks | None:
    """The blocks that positions lie in; None if they do not."""
    width, i = 2, np.arange(len(where))
    while width < len(where):
        found = Blocks(int(where[0]), width, int(where[1] - where[0]), int(where[width] - where[0]))
        line = found.first + found.step * (i % width) + found.jump * (i // width)
        if np.array_equal(where, line):
            return found
        width *= 2
    return None


class View(NamedTuple):
    """An array of the traced program: element `where[...]` of `node` at every index."""

    node: Node
    where: np.ndarray

    @property
    def flat(self) -> Operand:
        """Its elements in order."""
        return Operand(self.node, np.ascontiguousarray(self.where.reshape(-1)))


def reads(item: Map | Write) -> Sequence[Operand]:
    """Operands that an item reads at positions known at compile time; see `tables`."""
    place = item.place
    indices = place.indices if place is not None else ()
    own = item.operands if isinstance(item, Map) else (item.value,)
    return (*own, *indices)


def is_identity(operand: Operand, size: int) -> bool:
    """Whether element `i` is needed at `i`, and nothing else of the node."""
    where = operand.where
    if not operand.node.size == where.size == size:
        return False
    # The ends first: most of those that differ do there.
    if size and (where[0] != 0 or where[-1] != size - 1):
        return False
    return bool((where == _counted(size)).all())


@functools.lru_cache(256)
def _counted(size: int) -> np.ndarray:
    return np.arange(size)


def tables(item: Map) -> list[Node]:
    """Nodes of which an item may read any element, at positions known only at run time."""
    nodes = (item.table, item.params.get("held"))
    return [*(n for n in nodes if n is not None), *item.factors]
