"""Sums that a loop over elements keeps in registers, and writes once at its end.

A sum in memory would be loaded and stored in every turn, and each turn would wait for the one
before.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ecn_marl.lanes.graph import BOOL, Map, Node, Place, Store, Write, reads, tables
from ecn_marl.lanes.steps import Group

DENSE = 16
"""Tables of at most this many rows are read and written by comparing with every row.

A substep of `websearch-v0` took 37 k cycles with it, and 47 k with gathers and scatters.
"""

MAX_SUMS = 20
"""Largest number of sums in registers; a processor with vectors of 512 bits has 32 of them."""


def is_dense(place: Place) -> bool:
    """Whether a data-dependent position is one of a few rows."""
    return len(place.indices) == 1 and place.indices[0].node.varies and place.limits[0] < DENSE


def sums_in_registers(group: Group, dense: bool) -> set[Store]:
    """Stores of which a loop only adds to a few elements, the same in every turn.

    Args:
        group: the loop.
        dense: whether it is for vectors: short tables are added to by going through their rows
            (`is_dense`).
    """
    terms: dict[Store, list[Write]] = defaultdict(list)
    used: set[Node] = set()
    for item in group.items:
        used |= {o.node for o in reads(item)}
        if isinstance(item, Map):
            used |= set(tables(item))
        else:
            terms[item.store].append(item)
    kept, count = set(), 0
    for store, writes in terms.items():
        rows = [_rows(w, dense) for w in writes]
        # A loop that reads its sum needs it in memory. Flags of vectors are bits, without sums.
        bits = dense and store.dtype == BOOL
        if store in used or not store.varies or bits or None in rows:
            continue
        if len({w.op for w in writes}) > 1:
            continue
        count += len(set().union(*(r for r in rows if r is not None)))
        if count > MAX_SUMS:
            break
        kept.add(store)
    return kept


def _rows(write: Write, dense: bool) -> set[int] | None:
    """Elements that a term may be added to; None if these are many, or differ between turns."""
    fixed = write.fixed if write.place is None else write.place.fixed
    if write.op == "set" or fixed is None or (fixed != fixed[0]).any():
        return None
    if write.place is None:
        return {int(fixed[0])}
    if not dense or not is_dense(write.place):
        return None
    rows = np.arange(write.place.limits[0] + 1) * write.place.strides[0]
    return set((fixed[0] + rows).tolist())
