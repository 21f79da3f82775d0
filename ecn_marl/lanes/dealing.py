"""Loops on a GPU: the threads that share an environment deal its elements among them.

A warp is 32 threads that run in step. Where `n` threads share an environment, each computes every
n-th element. They wait for each other after what is computed and before anything is stored, and
again at the end of a loop. So within a round of `n` elements all are read before one is
overwritten, as in a loop over one element after the other. Where several threads change the same
element, they do it one after the other, in the order of their own elements.
"""

from __future__ import annotations

from ecn_marl.lanes.assembly import SCALAR, Module, literal
from ecn_marl.lanes.builder import neutral
from ecn_marl.lanes.elementwise import combine
from ecn_marl.lanes.graph import BOOL, Map, Write
from ecn_marl.lanes.loop_codegen import LoopBody
from ecn_marl.lanes.steps import Group

WARP = 32
"""Threads of a warp."""

WAIT = "  call void @llvm.nvvm.bar.warp.sync(i32 -1)"
"""The threads of a warp wait for each other; then each sees what the others have stored."""


def in_one_thread(lines: list[str]) -> list[str]:
    """Lines for the first of the threads that share an environment; the others wait."""
    return [
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
    turn, shared = body.taken("turn"), _shared_changes(body)
    changes = [x for k, part in enumerate(shared) for x in _in_turn(module, k, *part)]
    stores = _if("%active", "store", body.taken("stores"))
    if totals:
        first = ["  %first = icmp eq i64 %sub, 0"]
        after = [*exchange, *first, *_if("%first", "total", totals), *after]
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
    totals = []
    for k, (store, _) in enumerate(body.terms):
        total = f"%term{k}"
        for distance in module.distances:
            other = _exchanged(code, total, store.dtype, distance)
            total = combine(code, ops[store], store.dtype, total, other)
        totals.append(total)
    exchange, code.lines = code.lines, []
    for (store, element), total in zip(body.terms, totals, strict=True):
        before = code.load(store, element)
        code.save(store, element, combine(code, ops[store], store.dtype, before, total))
    return phis, exchange, code.lines


def _exchanged(code: LoopBody, value: str, dtype: str, distance: int) -> str:
    """The same value of the thread of this environment whose number differs by a bit."""
    name = "llvm.nvvm.shfl.sync.bfly.i32"
    code.module.declared[name] = f"declare i32 @{name}(i32, i32, i32, i32) convergent"
    kind = SCALAR[dtype]
    there, back = ("zext", "trunc") if dtype == BOOL else ("bitcast", "bitcast")
    bits = value if kind == "i32" else code.emit(f"{there} {kind} {value} to i32")
    other = code.emit(f"call i32 @{name}(i32 -1, i32 {bits}, i32 {distance}, i32 31)")
    return other if kind == "i32" else code.emit(f"{back} i32 {other} to {kind}")


def _shared_changes(body: LoopBody) -> list[tuple[str, str | None, list[str]]]:
    """Changes of elements that other threads may change, too.

    Returns:
        For each position that this turn has: its element number (i64), whether it is in bounds
        (None for always), and the lines that change what lies there.
    """
    found: dict[tuple[str, str | None], list[tuple[Write, str]]] = {}
    for item, at, inside, value in body.in_order:
        found.setdefault((at, inside), []).append((item, value))
    parts = []
    for (at, inside), updates in found.items():
        known = dict(body.values)  # what a block computes is not known after it
        for item, value in updates:
            body.update(item, at, None, value)
        body.values = known
        parts.append((at, inside, body.lines))
        body.lines = []
    return parts


def _within(size: int, share: int) -> list[str]:
    """Number of this thread's element; threads past the end compute the last one once more."""
    if size % share == 0:
        return ["  %active = icmp eq i64 0, 0", "  %i = add i64 %number, 0"]
    return [
        f"  %active = icmp ult i64 %number, {size}",
        f"  %i = select i1 %active, i64 %number, i64 {size - 1}",
    ]


def _if(flag: str, stem: str, lines: list[str]) -> list[str]:
    """Lines that only threads with a flag run."""
    if not lines:
        return []
    return [
        f"  br i1 {flag}, label %{stem}, label %{stem}.over",
        f"{stem}:",
        *lines,
        f"  br label %{stem}.over",
        f"{stem}.over:",
    ]


def _in_turn(module: Module, k: int, at: str, inside: str | None, lines: list[str]) -> list[str]:
    """Lines that change an element; threads that change the same one run them in turn.

    A thread's rank is the number of threads before it with the same element of the same
    environment. There are as many rounds as there are ranks.
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
    fits = [f"  {n}.on = and i1 %active, {inside or 'true'}"]
    return [
        *fits,
        f"  {n}.short = trunc i64 {at} to i32",
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
        *_if(f"{n}.its", f"{n[1:]}.change", lines),
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
    ballot = "llvm.nvvm.vote.ballot.sync"
    module.declared[ballot] = f"declare i32 @{ballot}(i32, i1) convergent"
    module.declared["llvm.ctpop.i32"] = "declare i32 @llvm.ctpop.i32(i32)"
    # Threads of one element are neighbours: bits `lanes * sub` and up of a vote.
    group = (1 << lanes) - 1
    firsts = sum(1 << (lanes * k) for k in range(share))
    return [
        f"  %flags = getelementptr i8, ptr %own, i64 {module.plan.offsets[flag]}",
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
