"""Reports what a program is compiled to: its loops, which of them skip, and why others do not.

explanation = lanes.explain(env.step, key, state, action, params, shared=(3,))
print(explanation)
assert explanation.skipped > 0.9
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ecn_marl.lanes import compat
from ecn_marl.lanes.assembly import Module
from ecn_marl.lanes.cuda import H100_BYTES, ptx
from ecn_marl.lanes.emit import copied, write_group
from ecn_marl.lanes.graph import Map, Write
from ecn_marl.lanes.kernel import Launch, planned, write_kernel
from ecn_marl.lanes.lower import Program, lower
from ecn_marl.lanes.mapping import traced, widest
from ecn_marl.lanes.schedule import Plan, make_plan
from ecn_marl.lanes.steps import Group, Step, Turns

BRANCHES = re.compile(r"^\s*(br |phi |\S+ = phi )")
"""Instructions that are not counted: they cost next to nothing."""

BY_LANE = re.compile(r"@llvm\.masked\.(gather|scatter)\.")
"""Instructions that access memory once per lane."""


@dataclass(frozen=True)
class LoopReport:
    """One loop over elements.

    Attributes:
        turns: lengths of the program's loops around it, outermost first.
        size: elements that it goes through if it skips none.
        operations: how often each operation occurs in it.
        sources: lines of the program that most of these come from, `file:line`.
        instructions: estimated instructions of a call of the program for one vector of
            environments, if no element is skipped.
        flag_size: elements of the flag by which it skips, or could skip; 0 if there is none.
        skips: whether it skips elements whose flag is False in all lanes.
        prevented_by: if it does not skip: operations that have something to do there, with their
            lines.
    """

    turns: tuple[int, ...]
    size: int
    operations: Counter[str]
    sources: tuple[str, ...]
    instructions: int
    flag_size: int
    skips: bool
    prevented_by: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """What a program is compiled to.

    Attributes:
        lanes: environments in a vector.
        loops: loops over elements and copies of carried values, the most expensive one first.
            Loops that need no instructions are left out.
        state_bytes: workspace of a vector of environments.
        shared_bytes: workspace of values that all environments share.
    """

    lanes: int
    loops: tuple[LoopReport, ...]
    state_bytes: int
    shared_bytes: int

    @property
    def instructions(self) -> int:
        """Estimated instructions of a call for one vector, if nothing is skipped."""
        return sum(loop.instructions for loop in self.loops)

    @property
    def skipped(self) -> float:
        """Share of the work over flagged elements that skips idle ones, 0 to 1; NaN without flags.

        Such loops have as many elements as a flag, or several rows of as many.
        """
        flagged = [loop for loop in self.loops if loop.flag_size > 1]
        work = sum(loop.instructions for loop in flagged)
        skipping = sum(loop.instructions for loop in flagged if loop.skips)
        return skipping / work if work else float("nan")

    def __str__(self) -> str:
        """A table with a row for each of the most expensive loops."""
        return "\n".join([self.heading(), *("  ".join(row) for row in self.rows())])

    def heading(self) -> str:
        """Totals, in one line."""
        flagged = "no flags" if np.isnan(self.skipped) else f"{self.skipped:.0%} of flagged work"
        return (
            f"{len(self.loops)} loops, about {self.instructions:,} instructions for {self.lanes} "
            f"environments; skipped where idle: {flagged}; {self.state_bytes:,} bytes of state, "
            f"{self.shared_bytes:,} shared"
        )

    def rows(self, count: int = 20) -> list[tuple[str, ...]]:
        """Cells of a table, the most expensive loops first.

        They are: share of the instructions, lengths of the loops around it and elements,
        operations, whether it skips idle elements, and its lines in the program or what prevents
        skipping.

        Args:
            count: rows at most.
        """
        whole = max(self.instructions, 1)
        return [
            (
                f"{loop.instructions / whole:.1%}",
                " x ".join(map(str, (*loop.turns, loop.size))),
                str(loop.operations.total()),
                "skips" if loop.skips else ("no" if loop.flag_size else "-"),
                ", ".join(loop.prevented_by or loop.sources),
            )
            for loop in self.loops[:count]
        ]


def explain(
    fun: Callable[..., Any],
    *args: object,
    shared: Sequence[int] = (),
    lanes: int | None = None,
) -> Explanation:
    """What a batch of `fun` is compiled to for lanes; nothing is run.

    Args:
        fun: a function of one environment.
        *args: its arguments for one environment: trees of arrays or of `jax.ShapeDtypeStruct`.
        shared: numbers of the arguments that all environments share (`in_axes` None).
        lanes: environments in a vector; those of a large batch on this processor if None.

    Raises:
        Unsupported: `fun` uses something that cannot be compiled.
    """
    program = _lowered(fun, args, shared)
    lanes = lanes or widest()
    plan = make_plan(program.top, program.results, program.flags, lanes)
    module = Module(plan, lanes)
    sizes = {f.size for f in program.flags if f.varies and f.size > 1}
    loops = [
        loop
        for steps in (plan.shared, plan.steps)
        for loop in _reports(module, program, plan, steps, (), sizes)
        if loop.instructions
    ]
    loops.sort(key=lambda loop: -loop.instructions)
    return Explanation(lanes, tuple(loops), plan.own_bytes, plan.shared_bytes)


def explain_kernel(
    fun: Callable[..., Any], *args: object, shared: Sequence[int] = (), envs: int
) -> tuple[str, Launch]:
    """The kernel of a batch of `fun` for an H100, in PTX, and how it is launched.

    Args:
        fun: a function of one environment.
        *args: see `explain`.
        shared: see `explain`.
        envs: environments of the batch.

    Raises:
        Unsupported: `fun` uses something that cannot be compiled.
    """
    program = _lowered(fun, args, shared)
    launch, plan = planned(program, envs, H100_BYTES)
    return ptx(write_kernel(plan, program.arguments, program.results, launch)[0]), launch


def _lowered(fun: Callable[..., Any], args: tuple[object, ...], shared: Sequence[int]) -> Program:
    """A function of one environment, lowered for arguments of these shapes."""
    shapes, own = [], []
    for k, arg in enumerate(args):
        for leaf in jax.tree.leaves(arg):
            shapes.append(jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf)))
            own.append(k not in shared)
    jaxpr, _ = traced(fun, jax.tree.structure(args), tuple(shapes))
    return lower(jaxpr, own)


def _reports(
    module: Module,
    program: Program,
    plan: Plan,
    steps: Sequence[Step],
    turns: tuple[int, ...],
    sizes: set[int],
) -> Iterator[LoopReport]:
    """Reports of all loops among steps."""
    for step in steps:
        if isinstance(step, Turns):
            inside = (*turns, step.loop.length)
            yield from _reports(module, program, plan, step.steps, inside, sizes)
            for around, values in ((turns, step.loop.initial), (inside, step.loop.following)):
                for carry, _ in copied(plan, step, values):
                    yield _copy(around, carry.size, sizes)
        else:
            yield _report(module, program, step, turns, sizes)


def _report(
    module: Module, program: Program, group: Group, turns: tuple[int, ...], sizes: set[int]
) -> LoopReport:
    """Report of a loop over elements."""
    write_group(module, group)
    # Written only to be counted: the module is never compiled.
    body = module.functions.pop()
    skips = group.flag is not None and group.flag.size > 1
    size = group.flag.size if skips and group.flag is not None else _flag_size(group.size, sizes)
    prevents = () if skips or not size else _prevents(program, group)
    return LoopReport(
        turns=turns,
        size=group.size,
        operations=Counter(item.op for item in group.items),
        sources=_lines(program, group.items),
        instructions=_per_element(body, module.lanes) * group.size * int(np.prod(turns, initial=1)),
        flag_size=size,
        skips=skips,
        prevented_by=prevents,
    )


def _copy(turns: tuple[int, ...], size: int, sizes: set[int]) -> LoopReport:
    """Report of a copy of what a loop carries: a load and a store for every element."""
    return LoopReport(
        turns=turns,
        size=size,
        operations=Counter(copy=1),
        sources=("what a loop carries",),
        instructions=2 * size * int(np.prod(turns, initial=1)),
        flag_size=_flag_size(size, sizes),
        skips=False,
        prevented_by=("what a loop carries has no place of its own",),
    )


def _flag_size(size: int, sizes: set[int]) -> int:
    """Size of the largest flag of which `size` elements are whole rows; 0 if there is none."""
    return max((n for n in sizes if size and size % n == 0), default=0)


def _per_element(function: str, lanes: int) -> int:
    """Instructions for one element: those of the loop, a gather or scatter as one per lane.

    A loop that stores nothing, as its values are in their places already, has none.
    """
    lines = function.split("\n")[1:-2]
    loop = lines[lines.index("loop:") + 1 :] if "loop:" in lines else lines
    if "done:" in loop:
        loop = loop[: loop.index("done:")]
    # LLVM removes a loop without an effect.
    if not any("store" in line or "scatter" in line for line in function.split("\n")):
        return 0
    return sum(
        lanes if BY_LANE.search(line) else 1
        for line in loop
        if not line.endswith(":") and not BRANCHES.search(line)
    )


def _prevents(program: Program, group: Group) -> tuple[str, ...]:
    """Items that keep a loop from skipping: they have something to do where a flag is False."""
    items = group.prevents or [i for i in group.items if isinstance(i, Write)] or group.items
    return tuple(f"{item.op} at {line}" for item, line in _lined(program, items)[:3])


def _lines(program: Program, items: Sequence[Map | Write]) -> tuple[str, ...]:
    """The lines of the program that most items come from."""
    return tuple(line for line, _ in Counter(x for _, x in _lined(program, items)).most_common(3))


def _lined(program: Program, items: Sequence[Map | Write]) -> list[tuple[Map | Write, str]]:
    """Items with the lines they come from; items that the compiler added are left out."""
    pairs = ((item, program.origins.get(item)) for item in items)
    return [(item, line) for item, eqn in pairs if eqn is not None and (line := compat.origin(eqn))]
