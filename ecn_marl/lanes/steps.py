"""Steps of a plan: loops over elements (`Group`), and loops of the program (`Turns`)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ecn_marl.lanes.graph import Carry, Final, Loop, Map, Operand, Write


@dataclass(eq=False, repr=False)
class Group:
    """Items computed in one loop over `size` elements, in order.

    Attributes:
        size: turns of the loop.
        items: what each turn computes.
        at: place in the order of all steps.
        key: its items have nothing to do where this flag is False, see `idle_analysis`. Items with
            different keys do not share a loop, so that each loop can skip.
        flag: the loop skips elements where this flag is False in all lanes; None if it skips none.
        prevents: items that had something to do where a flag was False, when skipping was last
            tried.
    """

    size: int
    items: list[Map | Write] = field(default_factory=list)
    at: int = -1
    key: Map | None = None
    flag: Map | None = None
    prevents: list[Map | Write] = field(default_factory=list)

    @property
    def is_matmul(self) -> bool:
        """Whether it is a product of matrices, whose loops are written by `matmul`."""
        return any(isinstance(i, Map) and i.factors for i in self.items)


@dataclass(eq=False, repr=False)
class Turns:
    """A loop of the program and the steps of its body; `at` and `end` are places in the order."""

    loop: Loop
    steps: list[Step]
    needed: list[bool]
    at: int = -1
    end: int = -1

    def carried(self, values: list[Operand]) -> list[tuple[Carry, Operand]]:
        """Carries that are needed, each with its value."""
        return [
            x
            for x, n in zip(zip(self.loop.carries, values, strict=True), self.needed, strict=True)
            if n
        ]

    @property
    def finals(self) -> list[Final]:
        """Values of the needed carries after the loop."""
        return list(itertools.compress(self.loop.finals, self.needed))


Step = Group | Turns
