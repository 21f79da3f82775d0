"""Loops of a warp that keeps its environment's numbers near its threads (`residence`).

Turns are written out: a thread computes one element in each round. All rounds are computed before
any number in memory is changed. Numbers in registers need no waiting. A loop that goes by a flag
skips the rounds in which no element has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ecn_marl.lanes.assembly import SCALAR, Module, literal
from ecn_marl.lanes.builder import neutral
from ecn_marl.lanes.dealing import (
    WAIT,
    Change,
    added,
    exchanged_totals,
    guarded,
    in_turn,
    shared_changes,
)
from ecn_marl.lanes.graph import Map, Node, Operand, Store, Write
from ecn_marl.lanes.handover import columns_of, handed_over
from ecn_marl.lanes.loop_codegen import LoopBody
from ecn_marl.lanes.residence import WARP, Residence, changes_alone, rounds
from ecn_marl.lanes.steps import Group

Terms = dict[tuple[Store, str], str]
"""What a thread has summed so far, by store and element."""


class Round(LoopBody):
    """The elements that the threads of a warp compute in one round."""

    def __init__(self, module: Module, group: Group, turn: int, first: int, starts: Terms) -> None:
        """Nothing computed yet.

        Args:
            module: the module that it is part of.
            group: the items to compute.
            turn: number of the round.
            first: number of local names in use.
            starts: sums of the rounds before.
        """
        index = "0" if group.size == 1 else f"%i{turn}"
        super().__init__(module, group, index, first, turn)
        whole = group.size == 1 or (turn + 1) * WARP <= group.size
        self.active = "true" if whole else f"%on{turn}"
        self.ops = {i.store: i.op for i in group.items if isinstance(i, Write)}
        self._starts = starts
        if group.size == 1:
            return
        self.do(f"%number{turn} = add i64 %sub, {turn * WARP}")
        if whole:
            self.do(f"%i{turn} = add i64 %number{turn}, 0")
            return
        # Threads past the end compute the last element once more, and keep it as theirs.
        self.do(f"%on{turn} = icmp ult i64 %number{turn}, {group.size}")
        last = group.size - 1
        self.do(f"%i{turn} = select i1 %on{turn}, i64 %number{turn}, i64 {last}")

    def start(self, store: Store, element: str) -> str:
        """A sum before this round."""
        zero = literal(neutral(self.ops[store], store.dtype), store.dtype)
        return self._starts.get((store, element), zero)

    def _sum(self, store: Store, element: str) -> str:
        if store not in self._in_registers:
            return self.load(store, element)
        return self.terms.setdefault((store, element), self.start(store, element))

    def kept(self, node: Node) -> bool:
        """Whether a node is in registers."""
        return self._place(node)[0] == "words"

    def stores(self) -> tuple[list[str], list[str]]:
        """Lines that store what this round computed: in registers, and in memory."""
        lines: dict[bool, list[str]] = {True: [], False: []}
        known = dict(self.values)
        for update in self.apart:
            self.update(update)
            lines[self.kept(update.item.store)] += self.drain()
        for node, at, value in self._stores_at_end:
            self.save(node, at, value)
            lines[self.kept(node)] += self.drain()
        self.values = known
        return lines[True], lines[False]

    def summed(self) -> tuple[Terms, list[str]]:
        """Sums after this round, and lines that leave out threads past the end."""
        if self.active == "true":
            return dict(self.terms), []
        found = {}
        for key, last in self.terms.items():
            kind, start = SCALAR[key[0].dtype], self.start(*key)
            found[key] = self.emit(f"select i1 {self.active}, {kind} {last}, {kind} {start}")
        return found, self.drain()

    def has(self, flag: Map) -> str:
        """Whether a thread's element is active and has a flag: without it, nothing changes."""
        if self.kept(flag):
            word = self._place(flag)[1] + self.turn % rounds(flag.size)
            at = self.emit(f"getelementptr inbounds i32, ptr %words, i64 {word}")
            number = self.emit(f"load i32, ptr {at}, align 4")
            value = self.emit(f"icmp ne i32 {number}, 0")
        else:
            whole = self.group.size == flag.size
            value = self.load(
                flag, self.index if whole else self.emit(f"urem i64 {self.index}, {flag.size}")
            )
        return self.emit(f"and i1 {value}, {self.active}")


@dataclass
class _Lines:
    """Lines of a round.

    Attributes:
        turn: what is computed.
        kept: stores into registers.
        changes: changes of elements that other threads may change, too.
        stores: stores into memory.
        sums: what the sums are after the round.
    """

    turn: list[str]
    kept: list[str]
    changes: list[str]
    stores: list[str]
    sums: list[str] = field(default_factory=list)

    @property
    def waits(self) -> list[str]:
        """A line for waiting, if memory changes."""
        return [WAIT] if self.changes or self.stores else []


def resident_loop(
    module: Module, group: Group, copy: tuple[Node, Operand] | None = None
) -> list[str]:
    """The lines of a loop whose turns are written out.

    Args:
        module: the module that it is part of.
        group: the loop.
        copy: instead of items: an array and what it is copied from.
    """
    skip = _words_of_rounds(_home(module), group)
    found: list[tuple[Round, _Lines]] = []
    terms: Terms = {}
    named = places = 0
    lines: list[str] = []
    for turn in range(rounds(group.size)):
        body = Round(module, group, turn, named, terms)
        if copy is not None:
            body.copy(*copy)
        for item in group.items:
            if isinstance(item, Map):
                body.compute(item)
            else:
                body.write(item)
        part, count = _lines_of(body, places)
        after, part.sums = body.summed()
        if skip:
            after, joined = _skipped(body, part, skip[turn % len(skip)], after)
            lines += joined
        terms, named, places = after, body.named, places + count
        found.append((body, part))
    if not skip:
        lines = _all_rounds(module, group, [part for _, part in found])
    return lines + (_totals(module, found[-1][0].ops, terms, named) if terms else [])


def _home(module: Module) -> Residence:
    home = module.plan.residence
    assert home is not None, "only kernels of one environment in a warp have such loops"
    return home


def _words_of_rounds(home: Residence, group: Group) -> list[int]:
    """For each round of a flag's elements, the word that tells whether one has the flag.

    None if the loop skips nothing, or its rows do not begin with a round.
    """
    flag = group.flag
    if flag is None or flag not in home.skips:
        return []
    if flag.size % WARP and group.size > flag.size:
        return []
    return [home.skips[flag] + turn for turn in range(rounds(flag.size))]


def _lines_of(body: Round, places: int) -> tuple[_Lines, int]:
    """Lines of a round, and how many places where threads change the same elements it has.

    `places` are those of the rounds before.
    """
    turn = body.drain()
    shared = shared_changes(body)
    changing = body.active
    if shared and body.group.flag is not None:
        changing = body.has(body.group.flag)
        turn += body.drain()
    changes = [
        line
        for k, change in enumerate(shared, places)
        for line in _changed(body, k, change, changing)
    ]
    kept, stores = body.stores()
    stores = guarded(body.active, f"store{body.turn}", stores)
    return _Lines(turn, kept, changes, stores), len(shared)


def _changed(body: Round, k: int, change: Change, active: str) -> list[str]:
    """Lines that change what several threads may change, the `k`-th of a loop."""
    if body.group.size == 1:
        # All threads compute this turn, and one of them changes memory.
        head = [f"  %p{k}.first = icmp eq i64 %sub, 0"]
        head += [f"  %p{k}.on = and i1 %p{k}.first, {change.inside or 'true'}"]
        return [*head, *guarded(f"%p{k}.on", f"p{k}.change", change.lines), WAIT]
    columns = columns_of(change)
    if columns is not None:
        return handed_over(body, _home(body.module).stage, k, change, columns, active)
    return in_turn(body.module, k, change, active)


def _skipped(body: Round, part: _Lines, word: int, terms: Terms) -> tuple[Terms, list[str]]:
    """A round that is skipped if no element has the loop's flag: its sums, and its lines."""
    t = body.turn
    joins, after = [], {}
    for k, (key, value) in enumerate(terms.items()):
        after[key] = f"%join{t}.{k}"
        joins.append(
            f"  %join{t}.{k} = phi {SCALAR[key[0].dtype]} [{value}, %end{t}],"
            f" [{body.start(*key)}, %ask{t}]"
        )
    return after, [
        f"  br label %ask{t}",
        f"ask{t}:",
        f"  %some{t}.at = getelementptr inbounds i32, ptr %words, i64 {word}",
        f"  %some{t} = load i32, ptr %some{t}.at, align 4",
        f"  %any{t} = icmp ne i32 %some{t}, 0",
        f"  br i1 %any{t}, label %turn{t}, label %over{t}",
        f"turn{t}:",
        *part.turn,
        *part.kept,
        *part.waits,
        *part.changes,
        *part.stores,
        *part.sums,
        *part.waits,
        f"  br label %end{t}",
        f"end{t}:",
        f"  br label %over{t}",
        f"over{t}:",
        *joins,
    ]


def _all_rounds(module: Module, group: Group, parts: list[_Lines]) -> list[str]:
    """Lines of a loop that skips nothing: what all rounds compute, then what they change."""
    computed = [line for p in parts for line in (*p.turn, *p.sums)]
    kept = [line for p in parts for line in p.kept]
    in_memory: set[Node] = {i if isinstance(i, Map) else i.store for i in group.items}
    in_memory = {n for n in in_memory if (module.plan.place(n) or ("words", 0))[0] != "words"}
    if changes_alone(group, in_memory):
        assert not kept, "what one thread stores, no other thread keeps"
        (part,) = parts
        first = "  %leads = icmp eq i64 %sub, 0"
        # Changes pick their thread themselves. They wait, so no branch may be around them.
        stores = guarded("%leads", "alone", part.stores)
        return [*computed, WAIT, *part.changes, first, *stores, WAIT]
    stores = [line for p in parts for line in (*p.changes, *p.stores)]
    wait = [WAIT] if stores else []
    return [*computed, *kept, *wait, *stores, *wait]


def _totals(module: Module, ops: dict[Store, str], terms: Terms, named: int) -> list[str]:
    """Lines that add up the terms of all threads, and add the totals to where they are kept."""
    code = LoopBody(module, Group(0), "%i", named)
    code.stem = "%total"
    totals = exchanged_totals(code, ops, terms)
    exchange = code.drain()
    mine, memory = added(code, ops, dict(zip(terms, totals, strict=True)))
    if memory:
        first = "  %first = icmp eq i64 %sub, 0"
        memory = [WAIT, first, *guarded("%first", "total", memory), WAIT]
    return [*exchange, *mine, *memory]


def rounds_with(module: Module, flag: Map) -> list[str]:
    """Lines that tell for every round of a flag's elements whether one has it."""
    ballot = "llvm.nvvm.vote.ballot.sync"
    module.declared[ballot] = f"declare i32 @{ballot}(i32, i1) convergent"
    lines: list[str] = []
    named = 0
    for turn in range(rounds(flag.size)):
        body = Round(module, Group(flag.size), turn, named, {})
        votes = body.emit(f"call i32 @{ballot}(i32 -1, i1 {body.load(flag, body.index)})")
        word = _home(module).skips[flag] + turn
        at = body.emit(f"getelementptr inbounds i32, ptr %words, i64 {word}")
        body.do(f"store i32 {votes}, ptr {at}, align 4")
        lines += body.drain()
        named = body.named
    return lines
