"""From a jaxpr of one environment to nodes (`graph`).

Calls are inlined, and loop-invariant code moves out of loops. Everything that only rearranges
elements (slices, transpositions, broadcasts, reshapes) becomes a `View`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.extend import core
from jax.extend.core import JaxprEqn

from ecn_marl.lanes import (  # noqa: F401 - importing them fills the table
    arithmetic,
    control_flow,
    indexing,
    inner_ops,
    operations,
    random_numbers,
    shape_ops,
    transcendentals,
)
from ecn_marl.lanes.builder import dtype_of, is_key, raw_shape
from ecn_marl.lanes.graph import U32, Argument, Block, Map, View, Write
from ecn_marl.lanes.lowering import Lowering
from ecn_marl.lanes.primitives import PRIMITIVES, Primitive


def primitives_table() -> dict[str, Primitive]:
    """All records: importing this module fills the table."""
    return PRIMITIVES


class Program(NamedTuple):
    """A lowered program.

    Attributes:
        top: its outermost block.
        arguments: its arguments.
        results: its results.
        flags: flags marked by `busy`.
        origins: the equation of the jaxpr that each item comes from.
    """

    top: Block
    arguments: list[Argument]
    results: list[View]
    flags: list[Map]
    origins: dict[Map | Write, JaxprEqn | None]


def lower(jaxpr: core.ClosedJaxpr, varies: Sequence[bool]) -> Program:
    """Nodes of a program of one environment.

    Args:
        jaxpr: the program.
        varies: for each argument, whether environments differ in it.

    Raises:
        Unsupported: the program uses something that cannot be compiled.
    """
    lowering, arguments, views = Lowering(), [], []
    for slot, (var, own) in enumerate(zip(jaxpr.jaxpr.invars, varies, strict=True)):
        shape = raw_shape(var.aval)
        dtype = U32 if is_key(var.aval) else dtype_of(var.aval.dtype)
        node = Argument(math.prod(shape), dtype, own, lowering.top, slot)
        arguments.append(node)
        views.append(View(node, np.arange(node.size).reshape(shape)))
    results = lowering.run(jaxpr.jaxpr, jaxpr.consts, views)
    owned = [lowering.own(r) for r in results]
    return Program(lowering.top, arguments, owned, lowering.flags, lowering.origins)
