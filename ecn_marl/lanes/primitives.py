"""The table of primitives: one record says all that is known of an operation.

A record is made by a decorator where its rule stands: `primitive` for JAX primitives that become
views, stores or loops (`shape_ops`, `indexing`, `arithmetic`, `control_flow`, `random_numbers`),
`elementwise.operation` for those that are computed element by element, `inner` for operations that
only the lowering makes (`inner_ops`). A primitive without a record is left to XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ecn_marl.lanes.graph import Map, Operand, View

Known = np.ndarray | Operand
"""What every element of an array is where a flag is False: a number, or an element of an array."""

Lower = Callable[..., list[View]]
"""`(lowering, equation, *views)`: the results of an equation."""

Fold = Callable[..., Any]
"""`(dtype, *numbers)`: the result as numpy computes it; None if that is left to the processor."""

Idle = Callable[..., Known | None]
"""`(item, *known)`: what the result is where a flag is False; None if that is not known."""

Emit = Callable[[Any, str, Sequence[str], Sequence[str], Mapping[str, Any]], str]
"""`(writer, dtype, kinds, args, params)`: writes instructions; the name of the result."""

Codegen = Callable[[Any, Map], str]
"""`(loop, item)`: writes what an item needs of the loop around it, too; the name of the result."""


@dataclass(frozen=True)
class Primitive:
    """All that is known of an operation.

    Attributes:
        name: of the JAX primitive, or of the operation of a `Map`.
        group: heading in the documentation.
        lower: makes nodes of an equation; None for operations that only the lowering makes.
        kinds: types that it takes: `f` float32, `i` int32, `u` uint32, `b` bool, `k` typed keys.
        limits: parameters that are left to XLA, for the documentation.
        fold: computes the result when the program is compiled, if all operands are known then.
        idle: follows values of elements for which a flag is False, see `idle_analysis`.
        emit: instructions of one element.
        codegen: the same for what needs more than its operands.
        movable: whether each element depends on the same element of its operands only, and costs
            little: then it may be computed in a later loop (`code_sinking`), and its values can be
            followed (`idle_analysis`).
        skippable: whether a loop may leave out single elements: no other element needs them.
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
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def is_movable(item: Map) -> bool:
    """Whether an item may be computed in another loop, and its values be followed."""
    return PRIMITIVES[item.op].movable


def is_skippable(item: Map) -> bool:
    """Whether a loop may leave out single elements of an item."""
    return PRIMITIVES[item.op].skippable
