"""The table of primitives: one record holds everything about an operation.

A decorator of its rule makes a record: `primitive` for JAX primitives that become
views, stores or loops (`shape_ops`, `indexing`, `arithmetic`, `control_flow`, `random_numbers`),
`elementwise.operation` for those that are computed element by element, `inner` for operations that
only the lowering makes (`inner_ops`). A primitive without a record is left to XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ecn_marl.lanes.graph import Map, Operand, View

if TYPE_CHECKING:
    from ecn_marl.lanes.elementwise import Writer
    from ecn_marl.lanes.loop_codegen import LoopBody

Known = np.ndarray | Operand
"""An array's elements where a flag is False: each is a number, or an element of another array."""

Lower = Callable[..., list[View]]
"""`(lowering, equation, *views)`: the results of an equation."""

Fold = Callable[..., Any]
"""`(dtype, *numbers)`: numpy's result; None if the processor has to compute it."""

Idle = Callable[..., Known | None]
"""`(item, *known)`: the result where a flag is False; None if it is not known."""

Emit = Callable[["Writer", str, Sequence[str], Sequence[str], Mapping[str, Any]], str]
"""`(writer, dtype, kinds, args, params)`: writes instructions, returns the result's name."""

Codegen = Callable[["LoopBody", Map], str]
"""`(loop, item)`: writes an item's code with access to its loop; returns the result's name."""


@dataclass(frozen=True)
class Primitive:
    """Everything about an operation.

    Attributes:
        name: of the JAX primitive, or of the operation of a `Map`.
        group: heading in the documentation.
        lower: makes nodes of an equation; None for operations that only the lowering makes.
        kinds: types of its operands: `f` float32, `i` int32, `u` uint32, `b` bool, `k` typed keys.
        limits: parameters that are left to XLA, for the documentation.
        fold: computes the result when the program is compiled, if all operands are known then.
        idle: follows values of elements for which a flag is False, see `idle_analysis`.
        emit: instructions of one element.
        codegen: the same for operations that need the loop around them.
        movable: whether each element depends only on the same element of its operands, and costs
            little. It may then be computed in a later loop (`code_sinking`), and `idle_analysis`
            can follow its values.
        skippable: whether a loop may leave out single elements, as no other element needs them.
    """

    name: str
    group: str
    lower: Lower | None = None
    kinds: str = "fiub"
    limits: str = ""
    fold: Fold | None = None
    idle: Idle | None = None
    emit: Emit | None = None
    codegen: Codegen | None = None
    movable: bool = True
    skippable: bool = True


PRIMITIVES: dict[str, Primitive] = {}
"""All records by name."""


def add(record: Primitive) -> None:
    """Enter a record; there is one for each name."""
    assert record.name not in PRIMITIVES, record.name
    PRIMITIVES[record.name] = record


def primitive(group: str, *names: str, **facts: Any) -> Callable[[Lower], Lower]:
    """Enter records of JAX primitives.

    Args:
        group: heading in the documentation.
        names: names of primitives that share a rule, some of them in other versions of JAX.
        facts: other fields of `Primitive`.
    """

    def enter(rule: Lower) -> Lower:
        for name in names:
            add(Primitive(name, group, rule, **facts))
        return rule

    return enter


def inner(name: str, codegen: Codegen | None, **facts: Any) -> None:
    """Enter the record of an operation that only the lowering makes; it is not movable."""
    add(Primitive(name, "", codegen=codegen, movable=False, **facts))


def same(a: Known, b: Known) -> bool:
    """Whether two known values are equal, to the bit."""
    if isinstance(a, Operand) or isinstance(b, Operand):
        return (
            isinstance(a, Operand)
            and isinstance(b, Operand)
            and a.node is b.node
            and np.array_equal(a.where, b.where)
        )
    # By bits: 0 and -0 differ, and NaN is the same as NaN.
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def is_movable(item: Map) -> bool:
    """Whether an item may be computed in another loop, and its values be followed."""
    return PRIMITIVES[item.op].movable


def is_skippable(item: Map) -> bool:
    """Whether a loop may leave out single elements of an item."""
    return PRIMITIVES[item.op].skippable
