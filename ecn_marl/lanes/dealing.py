"""Loops on a GPU: the threads that share an environment deal its elements among them.

A warp is 32 threads that run in step. Where `n` threads share an environment, each computes every
n-th element. They wait for each other after what is computed and before anything is stored, and
again at the end of a loop. So within a round of `n` elements all are read before one is
overwritten, as in a loop over one element after the other. Where several threads change the same
element, they do it one after the other, in the order of their own elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ecn_marl.lanes.assembly import SCALAR, Module, literal
from ecn_marl.lanes.builder import neutral
from ecn_marl.lanes.elementwise import combine
from ecn_marl.lanes.graph import BOOL, Map, Node, Store, Write
from ecn_marl.lanes.loop_codegen import LoopBody, Update
from ecn_marl.lanes.steps import Group

WAIT = "  call void @llvm.nvvm.bar.warp.sync(i32 -1)"
"""The threads of a warp wait for each other; then each sees what the others have stored."""


def in_one_thread(lines: list[str]) -> list[str]:
    """Lines for the first of the threads that share an environment; the others wait."""
    return [
        WAIT,  # others may still read what is changed here
        "  %leads = icmp eq i64 %sub, 0",
        "  br i1 %leads, label %alone, label %together",
        "alone:",
        *lines,
        "  br label %together",
        "together:",
        WAIT,
    ]


def dealt_loop(module: Module, group: Group, body: LoopBody) -> list[str]:
    """The lines of a loop over elements, or over those in a flag's list in every row."""
    before, values, element, following, after = _rounds(module, group)
    phis, exchange, totals = _sums(module, body)
    turn, shared = body.taken("turn"), shared_changes(body)
    changing = "%active"
    if shared and group.flag is not None:
        # What has no flag changes nothing, and would only make others wait for their turn.
        changing = "%flagged"
        turn += [
            *_at(module, group.flag, "%flagged.at", "%wide"),
            "  %flagged.number = load i32, ptr %flagged.at, align 4",
            "  %flagged.set = icmp ne i32 %flagged.number, 0",
            "  %flagged = and i1 %flagged.set, %active",
        ]
    changes = [x for k, part in enumerate(shared) for x in in_turn(module, k, part, changing)]
    stores = guarded("%active", "store", body.taken("stores"))
    if totals:
        first = "  %first = icmp eq i64 %sub, 0"
        totals = [first, *guarded("%first", "total", totals)]
    after = [*exchange, *totals, *after]
    return [
        *before,
        "start:",
        "  br label %loop",
        "loop:",
        *values,
        *phis,
        "  %number = add nuw i64 %from, %sub",
        *element,
        *turn,
        # Without changes of memory, no thread has to wait for another before the end.
        *([WAIT] if changes or stores else []),
        *changes,
        *stores,
        "  br label %turn.end",
        "turn.end:",
        *following,
        "  br i1 %more, label %loop, label %done",
        "done:",
        *after,
    ]


def _at(module: Module, node: Node, name: str, element: str) -> list[str]:
    """Address of an element of a node in memory."""
    place = module.plan.place(node)
    assert place is not None
    return [
        f"  {name}.base = getelementptr i8, ptr %{place[0]}, i64 {place[1]}",
        f"  {name} = getelementptr [{module.lanes} x i32], ptr {name}.base, i64 {element}",
    ]


def _rounds(module: Module, group: Group) -> tuple[list[str], ...]:
    """Lines before a loop, at the start of a round, of a thread's element, at a round's end, after.

    `%from` is the first place of the round, and `%number` that of the thread's element `%i`.
    """
    flag, share = group.flag, module.share
    step = f"  %next = add nuw i64 %from, {share}"
    if flag is None:
        return (
            ["  br label %start"],
            ["  %from = phi i64 [0, %start], [%next, %turn.end]"],
            _within(group.size, share),
            [step, f"  %more = icmp ult i64 %next, {group.size}"],
            [WAIT],
        )
    return (
        [
            *list_of(module, flag),
            "  %some = icmp ne i64 %count, 0",
            "  br i1 %some, label %start, label %none",
        ],
        [
            "  %from = phi i64 [0, %start], [%again, %turn.end]",
            "  %row = phi i64 [0, %start], [%next.row, %turn.end]",
        ],
        [
            "  %active = icmp ult i64 %number, %count",
            "  %end = sub i64 %count, 1",
            "  %j = select i1 %active, i64 %number, i64 %end",
            *listed_element("%i", "%j", "%row"),
        ],
        [
            step,
            "  %in.row = icmp ult i64 %next, %count",
            "  %again = select i1 %in.row, i64 %next, i64 0",
            f"  %below = add nuw i64 %row, {flag.size}",
            "  %next.row = select i1 %in.row, i64 %row, i64 %below",
            f"  %more = icmp ult i64 %next.row, {group.size}",
        ],
        [WAIT, "  br label %none", "none:"],
    )


def _sums(module: Module, body: LoopBody) -> tuple[list[str], list[str], list[str]]:
    """Lines at the start of each turn, after the loop, and in one thread, for sums.

    Every thread sums its own terms. After the loop, the threads of an environment add up theirs by
    exchanging them over ever larger distances. One thread adds the total to memory.
    """
    ops = {i.store: i.op for i in body.group.items if isinstance(i, Write)}
    phis: list[str] = []
    for k, ((store, _), last) in enumerate(body.terms.items()):
        kind = SCALAR[store.dtype]
        start = literal(neutral(ops[store], store.dtype), store.dtype)
        phis.append(f"  %sum{k} = phi {kind} [{start}, %start], [%term{k}, %turn.end]")
        body.do(f"%term{k} = select i1 %active, {kind} {last}, {kind} %sum{k}")
    # Names continue those of the turn, as all are in one function.
    code = LoopBody(module, Group(0), "%i", body.named)
    code.stem = "%total"
    terms = {key: f"%term{k}" for k, key in enumerate(body.terms)}
    totals = exchanged_totals(code, ops, terms)
    exchange, code.lines = code.lines, []
    mine, memory = added(code, ops, dict(zip(body.terms, totals, strict=True)))
    return phis, [*exchange, *mine], memory


def added(
    code: LoopBody, ops: dict[Store, str], totals: Mapping[tuple[Store, str], str]
) -> tuple[list[str], list[str]]:
    """Lines that add totals to where they are kept: in every thread's registers, and in memory."""
    mine: list[str] = []
    memory: list[str] = []
    for (store, element), total in totals.items():
        before = code.load(store, element)
        code.save(store, element, combine(code, ops[store], store.dtype, before, total))
        place = code.module.plan.place(store)
        (mine if place is not None and place[0] == "words" else memory).extend(code.lines)
        # Each is in a block of its own, and knows nothing of the others.
        code.lines, code.values = [], {}
    return mine, memory


def exchanged_totals(
    code: LoopBody, ops: dict[Store, str], terms: Mapping[tuple[Store, str], str]
) -> list[str]:
    """Names of the totals of all threads' terms, in order; each thread knows them."""
    totals = []
    for (store, _), total in terms.items():
        for distance in code.module.distances:
            other = _exchanged(code, total, store.dtype, distance)
            total = combine(code, ops[store], store.dtype, total, other)
        totals.append(total)
    return totals


def _exchanged(code: LoopBody, value: str, dtype: str, distance: int) -> str:
    """The same value of the thread of this environment whose number differs by a bit."""
    name = "llvm.nvvm.shfl.sync.bfly.i32"
    code.module.declared[name] = f"declare i32 @{name}(i32, i32, i32, i32) convergent"
    kind = SCALAR[dtype]
    there, back = ("zext", "trunc") if dtype == BOOL else ("bitcast", "bitcast")
    bits = value if kind == "i32" else code.emit(f"{there} {kind} {value} to i32")
    other = code.emit(f"call i32 @{name}(i32 -1, i32 {bits}, i32 {distance}, i32 31)")
    return other if kind == "i32" else code.emit(f"{back} i32 {other} to {kind}")


class Change(NamedTuple):
    """Changes of one element, or of a row of elements, that other threads may change, too.

    Attributes:
        key: number of the element or row, an i64 (name).
        inside: whether it is in bounds, an i1 (name); None for always.
        lines: lines that change what lies there.
        updates: the changes.
    """

    key: str
    inside: str | None
    lines: list[str]
    updates: list[Update]


def shared_changes(body: LoopBody) -> list[Change]:
    """Changes of elements that other threads may change, too, in the order of a turn.

    Columns of a row are changed together: the threads of a row wait for each other once.
    """
    found: dict[object, list[Update]] = {}
    for update in body.in_order:
        found.setdefault(_row(body, update), []).append(update)
    changes = []
    for updates in found.values():
        known = dict(body.values)  # what a block computes is not known after it
        for update in updates:
            body.update(update._replace(inside=None))
        body.values = known
        changes.append(Change(updates[0].at, updates[0].inside, body.drain(), updates))
    return changes


def _row(body: LoopBody, update: Update) -> object:
    """What changes have in common that concern different columns of the same row.

    Two threads with the same position in it change the same elements, and others change others.
    """
    item, place = update.item, update.item.place
    if place is None or len(place.indices) != 1 or (place.fixed != place.fixed[0]).any():
        return update.at, update.inside
    row, (stride,) = body.operand(place.indices[0]), place.strides
    block = int(place.fixed[0]) // stride
    return item.store, row, stride, place.limits, place.mode, block, update.inside


def _within(size: int, share: int) -> list[str]:
    """Number of this thread's element; threads past the end compute the last one once more."""
    if size % share == 0:
        return ["  %active = icmp eq i64 0, 0", "  %i = add i64 %number, 0"]
    return [
        f"  %active = icmp ult i64 %number, {size}",
        f"  %i = select i1 %active, i64 %number, i64 {size - 1}",
    ]


def guarded(flag: str, stem: str, lines: list[str]) -> list[str]:
    """Lines that only threads with a flag run; the others would not wait with them."""
    if not lines or flag == "true":
        return lines
    assert WAIT not in lines, "all threads of a warp have to wait"
    return [
        f"  br i1 {flag}, label %{stem}, label %{stem}.over",
        f"{stem}:",
        *lines,
        f"  br label %{stem}.over",
        f"{stem}.over:",
    ]


def in_turn(module: Module, k: int, change: Change, active: str) -> list[str]:
    """Lines that change an element; threads that change the same one run them in turn.

    A thread's rank is the number of threads before it with the same element of the same
    environment. There are as many rounds as there are ranks.

    Args:
        module: the module that they are part of.
        k: a number that no other change of this loop has.
        change: the change.
        active: whether a thread changes something (name).
    """
    for name, types, kind in (
        ("llvm.nvvm.match.any.sync.i32", "i32, i32", " convergent"),
        ("llvm.nvvm.redux.sync.umax", "i32, i32", " convergent"),
        ("llvm.nvvm.read.ptx.sreg.laneid", "", ""),
        ("llvm.nvvm.read.ptx.sreg.lanemask.lt", "", ""),
        ("llvm.ctpop.i32", "i32", ""),
    ):
        module.declared[name] = f"declare i32 @{name}({types}){kind}"
    n, lanes = f"%p{k}", module.lanes
    fits = [f"  {n}.on = and i1 {active}, {change.inside or 'true'}"]
    return [
        *fits,
        f"  {n}.short = trunc i64 {change.key} to i32",
        f"  {n}.lane = call i32 @llvm.nvvm.read.ptx.sreg.laneid()",
        f"  {n}.env = and i32 {n}.lane, {lanes - 1}",
        f"  {n}.first = mul i32 {n}.short, {lanes}",
        f"  {n}.place = add i32 {n}.first, {n}.env",
        # Threads that change nothing have places of their own, below zero.
        f"  {n}.none = xor i32 {n}.lane, -1",
        f"  {n}.key = select i1 {n}.on, i32 {n}.place, i32 {n}.none",
        f"  {n}.same = call i32 @llvm.nvvm.match.any.sync.i32(i32 -1, i32 {n}.key)",
        f"  {n}.under = call i32 @llvm.nvvm.read.ptx.sreg.lanemask.lt()",
        f"  {n}.before = and i32 {n}.same, {n}.under",
        f"  {n}.rank = call i32 @llvm.ctpop.i32(i32 {n}.before)",
        f"  {n}.most = call i32 @llvm.nvvm.redux.sync.umax(i32 {n}.rank, i32 -1)",
        f"  br label %{n[1:]}.from",
        f"{n[1:]}.from:",
        f"  br label %{n[1:]}.round",
        f"{n[1:]}.round:",
        f"  {n}.now = phi i32 [0, {n}.from], [{n}.next, {n}.change.over]",
        f"  {n}.turn = icmp eq i32 {n}.now, {n}.rank",
        f"  {n}.its = and i1 {n}.turn, {n}.on",
        *guarded(f"{n}.its", f"{n[1:]}.change", change.lines),
        WAIT,
        f"  {n}.next = add nuw i32 {n}.now, 1",
        f"  {n}.over = icmp ugt i32 {n}.next, {n}.most",
        f"  br i1 {n}.over, label {n}.done, label {n}.round",
        f"{n[1:]}.done:",
    ]


def listed_element(name: str, place: str, row: str) -> list[str]:
    """Number of the element at a place of the list, in a row."""
    return [
        f"  %element = getelementptr i32, ptr %list, i64 {place}",
        "  %slot = load i32, ptr %element, align 4",
        "  %wide = zext i32 %slot to i64",
        f"  {name} = add nuw i64 %wide, {row}",
    ]


def list_of(module: Module, flag: Map) -> list[str]:
    """Address of a flag's list, which the threads of a warp share, and its number of entries."""
    space = "%shared" if module.threads else "%own"
    return [
        f"  %list = getelementptr i8, ptr {space}, i64 {module.plan.lists[flag]}",
        f"  %count.at = getelementptr i32, ptr %list, i64 {flag.size}",
        "  %short = load i32, ptr %count.at, align 4",
        "  %count = zext i32 %short to i64",
    ]


def dealt_list(module: Module, flag: Map) -> list[str]:
    """The lines that list the elements where a flag is set in any environment of the warp.

    In every round, the threads look at a flag each. Votes tell every thread which elements are
    listed, and so the places of its own.
    """
    n, lanes, share = flag.size, module.lanes, module.share
    place = module.plan.place(flag)
    assert place is not None
    space, offset = place
    ballot = "llvm.nvvm.vote.ballot.sync"
    module.declared[ballot] = f"declare i32 @{ballot}(i32, i1) convergent"
    module.declared["llvm.ctpop.i32"] = "declare i32 @llvm.ctpop.i32(i32)"
    # Threads of one element are neighbours: bits `lanes * sub` and up of a vote.
    group = (1 << lanes) - 1
    firsts = sum(1 << (lanes * k) for k in range(share))
    return [
        f"  %flags = getelementptr i8, ptr %{space}, i64 {offset}",
        f"  %list = getelementptr i8, ptr %shared, i64 {module.plan.lists[flag]}",
        "  %sub.short = trunc i64 %sub to i32",
        f"  %at = mul i32 %sub.short, {lanes}",
        "  %bit = shl i32 1, %at",
        "  %under = sub i32 %bit, 1",
        f"  %mine = shl i32 {_signed(group)}, %at",
        "  br label %loop",
        "loop:",
        "  %from = phi i64 [0, %0], [%next, %kept]",
        "  %count = phi i32 [0, %0], [%count.next, %kept]",
        "  %number = add nuw i64 %from, %sub",
        *_within(n, share),
        f"  %flag.at = getelementptr [{lanes} x i32], ptr %flags, i64 %i",
        "  %flag = load i32, ptr %flag.at, align 4",
        "  %raised = icmp ne i32 %flag, 0",
        "  %set = and i1 %raised, %active",
        f"  %votes = call i32 @{ballot}(i32 -1, i1 %set)",
        "  %of.mine = and i32 %votes, %mine",
        "  %listed = icmp ne i32 %of.mine, 0",
        f"  %all = call i32 @{ballot}(i32 -1, i1 %listed)",
        # One bit for each element: that of its first thread.
        f"  %elements = and i32 %all, {_signed(firsts)}",
        "  %before = and i32 %elements, %under",
        "  %rank = call i32 @llvm.ctpop.i32(i32 %before)",
        "  %more.listed = call i32 @llvm.ctpop.i32(i32 %elements)",
        "  %place.short = add i32 %count, %rank",
        "  %place = zext i32 %place.short to i64",
        "  %short = trunc i64 %i to i32",
        # All threads of an element store the same number.
        "  br i1 %listed, label %keep, label %kept",
        "keep:",
        "  %place.at = getelementptr i32, ptr %list, i64 %place",
        "  store i32 %short, ptr %place.at, align 4",
        "  br label %kept",
        "kept:",
        "  %count.next = add i32 %count, %more.listed",
        f"  %next = add nuw i64 %from, {share}",
        f"  %again = icmp ult i64 %next, {n}",
        "  br i1 %again, label %loop, label %done",
        "done:",
        f"  %end = getelementptr i32, ptr %list, i64 {n}",
        "  store i32 %count.next, ptr %end, align 4",
        WAIT,
    ]


def _signed(word: int) -> int:
    """A word as LLVM writes an i32."""
    return word - (1 << 32) if word >= 1 << 31 else word
