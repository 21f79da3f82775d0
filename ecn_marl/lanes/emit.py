"""From a plan (`schedule`) to a module in LLVM's language: a function for every loop."""

from __future__ import annotations

from collections.abc import Sequence

from ecn_marl.lanes.assembly import Module
from ecn_marl.lanes.dealing import (
    WAIT,
    dealt_list,
    dealt_loop,
    in_one_thread,
    list_of,
    listed_element,
)
from ecn_marl.lanes.graph import Argument, Carry, Map, Node, Operand, View, Write, is_identity
from ecn_marl.lanes.loop_codegen import PARTS, LoopBody
from ecn_marl.lanes.matmul import write_matmul
from ecn_marl.lanes.residence import is_unrolled
from ecn_marl.lanes.resident import resident_loop, rounds_with
from ecn_marl.lanes.schedule import Plan
from ecn_marl.lanes.steps import Group, Step, Turns
from ecn_marl.lanes.transfer import transfer

UNROLLED = 2
"""Loops over at most this many elements are unrolled: their positions are then constants."""

SPACES = ("args", "own", "shared")
"""Arguments of every function: the pointers to the program's arguments, and both workspaces."""

GLOBAL = "ptr addrspace(1)"
"""A pointer to a GPU's global memory. Instructions on it need not find out which memory it is."""

NEAR = "ptr addrspace(3)"
"""A pointer to the shared memory of a GPU's processor."""

RESIDENT = (f"{NEAR} %near.g", "ptr %words")
"""More arguments where a warp keeps its environment's numbers: its part of the processor's shared
memory, and what each thread keeps (`resident`)."""

MEET = "  call void @llvm.nvvm.barrier0()"
"""The warps of a block wait for each other.

Code that is written out is long. Warps that are at the same place in it fetch it once for all: on
an H200, `websearch-v0` ran 10.5 M agent-steps/s without and 14.9 M with it.
"""

HERE = {
    "  %own.here = getelementptr i8, ptr addrspace(1) %own.g, i64 0": (
        '  %own.here = call ptr addrspace(1) asm sideeffect "mov.u64 $0, $1;", "=l,l"'
        "(ptr addrspace(1) %own.g)"
    ),
    "  %sub.word = trunc i64 %sub.g to i32\n  %sub = zext i32 %sub.word to i64": (
        "  %sub.given = trunc i64 %sub.g to i32\n"
        '  %sub.word = call i32 asm sideeffect "mov.u32 $0, $1;", "=r,r"(i32 %sub.given)\n'
        "  %sub = zext i32 %sub.word to i64"
    ),
}
"""The workspace's address and the thread's number, in registers of each loop's own.

All loops are inlined into one kernel. LLVM would compute all addresses and positions once, before
the outermost loop, and run out of registers. So it is told nothing about where these come from.
Keys: the same without an instruction that only a GPU has.
"""


def _written_out(module: Module, group: Group) -> bool:
    return module.plan.residence is not None and is_unrolled(group)


def _write_lists(module: Module, flag: Map) -> list[str]:
    """Write functions that tell loops where a flag is set; their names."""
    home, names = module.plan.residence, []
    if home is not None and flag in home.skips:
        names.append(_write_function(module, "@rounds", rounds_with(module, flag)))
    if home is None or flag in home.listed:
        names.append(_write_list(module, flag))
    return names


def _further(module: Module) -> list[str]:
    """Further parameters of functions where a warp keeps its environment's numbers."""
    home = module.plan.residence
    if home is None:
        return []
    return [*RESIDENT, *(f"{GLOBAL} noalias %a{slot}" for slot in home.arguments)]


def write_steps(module: Module, steps: list[Step], dealt: bool = False) -> list[str]:
    """Write functions for steps; their names, in order.

    Args:
        module: the module that they are part of.
        steps: the steps.
        dealt: whether a GPU's threads share the work; otherwise one thread does all of it.
    """
    names = []
    for step in steps:
        if isinstance(step, Turns):
            names.append(_write_turns(module, step, dealt))
            continue
        names.append(write_group(module, step, dealt))
        for item in step.items:
            if isinstance(item, Map) and item in module.plan.lists:
                names += _write_lists(module, item)
    return names


def _write_function(module: Module, prefix: str, lines: list[str]) -> str:
    """Write a function; its name."""
    name = module.name(prefix)
    # `noalias`: no store changes these pointers, so LLVM may load them before a loop.
    head = f"define internal void {name}(ptr noalias %args, ptr %own, ptr %shared) #0 {{"
    if module.threads:
        resident = module.plan.residence is not None
        given = ", ".join([*(f"{GLOBAL} %{p}.g" for p in SPACES), "i64 %sub.g", *_further(module)])
        head = f"define internal void {name}({given}) #0 {{"
        # Code for the CPU and for GPUs is the same after this cast: LLVM follows it back and still
        # knows the address space. `%sub`: the thread's number among those of its environment.
        casts = [f"  %{p} = addrspacecast {GLOBAL} %{p}.g to ptr" for p in SPACES]
        casts[1] = "  %own = addrspacecast ptr addrspace(1) %own.here to ptr"
        casts += ["  %near = addrspacecast ptr addrspace(3) %near.g to ptr"] * resident
        here = [*HERE.values()]
        if resident and not any("%own" in line for line in lines):
            here, casts = here[1:], casts[:1] + casts[2:]  # no instruction for an unused address
        lines = [*here, *casts, *lines]
    module.functions.append("\n".join([head, *lines, "  ret void", "}"]))
    return name


def write_group(module: Module, group: Group, dealt: bool = False) -> str:
    """Write the function of a group."""
    if group.is_matmul:
        (item,) = group.items
        assert isinstance(item, Map)
        wait = [WAIT] if dealt else []
        lines = write_matmul(module, item, dealt)
        return _write_function(module, "@product", [*wait, *lines, *wait])
    if dealt and _written_out(module, group):
        return _write_function(module, "@group", resident_loop(module, group))
    if dealt and group.size > 1 and not any(_needs_turn_before(i) for i in group.items):
        body = _computed(module, group, "%i", 0)
        return _write_function(module, "@group", dealt_loop(module, group, body))
    if group.size <= UNROLLED and group.flag is None:
        lines, first = [], 0
        for i in range(group.size):
            body = _body(module, group, str(i), first)
            # Local names of a function have to differ from turn to turn.
            first = body.named
            lines += body.lines
    else:
        body = _body(module, group, "%i", 0)
        loop = _loop_over_all if group.flag is None else _loop_over_list
        lines = loop(module, group, body)
    if dealt:
        lines = in_one_thread(lines)
    return _write_function(module, "@group", lines)


def _needs_turn_before(item: Map | Write) -> bool:
    """Whether an item needs what another turn of its loop has computed."""
    return isinstance(item, Map) and item.op == "running"


def _body(module: Module, group: Group, index: str, first: int) -> LoopBody:
    """One turn of a group; its local names begin at `first`."""
    body = _computed(module, group, index, first)
    body.lines = [line for part in PARTS for line in body.taken(part)]
    return body


def _computed(module: Module, group: Group, index: str, first: int) -> LoopBody:
    """One turn of a group; its changes of memory are still to be taken."""
    body = LoopBody(module, group, index, first)
    for item in group.items:
        if isinstance(item, Map):
            body.compute(item)
        else:
            body.write(item)
    return body


def _loop_over_all(module: Module, group: Group, body: LoopBody) -> list[str]:
    """The lines of a loop over all elements."""
    before, phis, after = body.sums()
    return [
        *before,
        "  br label %start",
        "start:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [0, %start], [%next, %loop]",
        *phis,
        *body.lines,
        "  %next = add nuw i64 %i, 1",
        f"  %over = icmp eq i64 %next, {group.size}",
        "  br i1 %over, label %done, label %loop",
        "done:",
        *after,
    ]


def _loop_over_list(module: Module, group: Group, body: LoopBody) -> list[str]:
    """The lines of a loop over the elements in a flag's list, once for every row of elements."""
    assert group.flag is not None
    before, phis, after = body.sums()
    n, rows = group.flag.size, group.size // group.flag.size
    following = [
        "  %next = add nuw i64 %j, 1",
        "  %last = icmp eq i64 %next, %count",
        "  %turn = select i1 %last, i64 0, i64 %next",
        f"  %below = add nuw i64 %row, {n}",
        "  %next.row = select i1 %last, i64 %below, i64 %row",
        f"  %over = icmp eq i64 %next.row, {n * rows}",
    ]
    lines = [*listed_element("%i", "%j", "%row"), *body.lines, *following]
    return [
        *before,
        *list_of(module, group.flag),
        "  %some = icmp ne i64 %count, 0",
        "  br i1 %some, label %start, label %none",
        "start:",
        "  br label %loop",
        "loop:",
        "  %j = phi i64 [0, %start], [%turn, %loop]",
        "  %row = phi i64 [0, %start], [%next.row, %loop]",
        *phis,
        *lines,
        "  br i1 %over, label %done, label %loop",
        "done:",
        *after,
        "  br label %none",
        "none:",
    ]


def _write_list(module: Module, flag: Map) -> str:
    """Write the function that lists the elements where a flag is set in any lane."""
    if module.threads:
        return _write_function(module, "@list", dealt_list(module, flag))
    n, bits = flag.size, f"i{module.lanes}"
    return _write_function(
        module,
        "@list",
        [
            f"  %flags = getelementptr i8, ptr %own, i64 {module.plan.offsets[flag]}",
            f"  %list = getelementptr i8, ptr %own, i64 {module.plan.lists[flag]}",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %0], [%next, %loop]",
            "  %count = phi i64 [0, %0], [%more, %loop]",
            f"  %flag.at = getelementptr {bits}, ptr %flags, i64 %i",
            f"  %flag = load {bits}, ptr %flag.at, align {max(module.lanes // 8, 1)}",
            # Every element is stored, and the next one overwrites it if its flag is not set. This
            # takes no branch.
            "  %place = getelementptr i32, ptr %list, i64 %count",
            "  %short = trunc i64 %i to i32",
            "  store i32 %short, ptr %place, align 4",
            f"  %some = icmp ne {bits} %flag, 0",
            "  %one = zext i1 %some to i64",
            "  %more = add nuw i64 %count, %one",
            "  %next = add nuw i64 %i, 1",
            f"  %over = icmp eq i64 %next, {n}",
            "  br i1 %over, label %done, label %loop",
            "done:",
            f"  %end = getelementptr i32, ptr %list, i64 {n}",
            "  %all = trunc i64 %more to i32",
            "  store i32 %all, ptr %end, align 4",
        ],
    )


def copied(plan: Plan, turns: Turns, values: list[Operand]) -> list[tuple[Carry, Operand]]:
    """Values that have to be copied to their carry's place, as they are not there already.

    Args:
        plan: places of all nodes.
        turns: the loop.
        values: values of its carries, at its start or after a turn.
    """
    return [
        (carry, value)
        for carry, value in turns.carried(values)
        if carry.size
        and not (
            plan.place(value.node) == plan.place(carry)
            and value.node.varies
            and is_identity(value, carry.size)
        )
    ]


def _write_copies(module: Module, pairs: Sequence[tuple[Node, Operand]], dealt: bool) -> list[str]:
    """Write functions that copy values; their names, in order."""
    names = []
    for target, source in pairs:
        group = Group(target.size)
        if dealt and _written_out(module, group):
            lines = resident_loop(module, group, (target, source))
            names.append(_write_function(module, "@copy", lines))
            continue
        body = LoopBody(module, group, "%i")
        body.copy(target, source)
        if dealt:
            lines = dealt_loop(module, group, body)
        else:
            body.lines = [line for part in PARTS for line in body.taken(part)]
            lines = _loop_over_all(module, group, body)
        names.append(_write_function(module, "@copy", lines))
    return names


def calls(module: Module, names: list[str]) -> list[str]:
    """Call functions for steps."""
    operands = "ptr %args, ptr %own, ptr %shared"
    if module.threads:
        given = [*(f"{GLOBAL} %{p}.g" for p in SPACES), "i64 %sub", *_further(module)]
        operands = ", ".join(given)
    return [f"  call void {n}({operands})" for n in names]


def _write_turns(module: Module, turns: Turns, dealt: bool) -> str:
    """Write the function of a loop."""
    before = _write_copies(module, copied(module.plan, turns, turns.loop.initial), dealt)
    inner = write_steps(module, turns.steps, dealt)
    after = _write_copies(module, copied(module.plan, turns, turns.loop.following), dealt)
    together = [MEET] if dealt and module.plan.residence is not None else []
    return _write_function(
        module,
        "@turns",
        [
            *calls(module, before),
            "  br label %loop",
            "loop:",
            "  %k = phi i32 [0, %0], [%next, %loop]",
            *together,
            *calls(module, inner),
            *calls(module, after),
            "  %next = add i32 %k, 1",
            f"  %over = icmp eq i32 %next, {turns.loop.length}",
            "  br i1 %over, label %done, label %loop",
            "done:",
        ],
    )


def write_module(
    plan: Plan,
    arguments: list[Argument],
    results: list[View],
    lanes: int,
    threads: int,
    ordered: bool = False,
) -> tuple[str, int]:
    """A module with a function `run(args, rets, batch)`.

    `args` and `rets` point to the buffers of arguments and results; those that differ between
    environments have a leading axis of `batch`. The last result is the workspace.

    Args:
        plan: what to do.
        arguments: the program's arguments.
        results: its results, whole nodes.
        lanes: environments in a vector.
        threads: threads that share a batch, at most.
        ordered: whether one more argument tells in which order environments fill vectors.

    Returns:
        The module's text, and the bytes of the workspace.
    """
    module = Module(plan, lanes)
    shared, steps = write_steps(module, plan.shared), write_steps(module, plan.steps)
    own: list[tuple[Node, int]] = [(a, a.slot) for a in arguments if a.varies and a in plan.offsets]
    transfer(module, "@take", own, True, ordered)
    transfer(module, "@give", [(r.node, k) for k, r in enumerate(results)], False, ordered)
    # Whole lines of 64 bytes: vectors are loaded as aligned, and threads share no cache line.
    size = -(-(plan.own_bytes + plan.shared_bytes + 64) // 64) * 64
    text = RUN.format(
        lanes=lanes,
        bits=32 * lanes,
        threads=threads,
        stride=lanes * threads,
        bytes=size,
        work=len(results),
        order=len(arguments) if ordered else 0,  # 0 is never dereferenced then
        shared_at=plan.own_bytes,
        once="\n".join(calls(module, shared)),
        each="\n".join(calls(module, steps)),
    )
    return module.text() + text, size * threads


RUN = """
; The vectors of one thread: the first begins at environment %from, and the other threads' vectors
; are left out. Each thread computes what environments share for itself, and need not wait.
define internal void @span(ptr %args, ptr %rets, i64 %thread, i64 %from, i64 %batch) #1 {{
  %order.at = getelementptr ptr, ptr %args, i64 {order}
  %order = load ptr, ptr %order.at, align 8
  %work.at = getelementptr ptr, ptr %rets, i64 {work}
  %work = load ptr, ptr %work.at, align 8
  %begin = mul i64 %thread, {bytes}
  %own = getelementptr i8, ptr %work, i64 %begin
  %shared = getelementptr i8, ptr %own, i64 {shared_at}
{once}
  br label %loop
loop:
  %first = phi i64 [%from, %0], [%next, %loop]
  call void @take(ptr %args, ptr %own, ptr %order, i64 %first, i64 %batch)
{each}
  call void @give(ptr %rets, ptr %own, ptr %order, i64 %first, i64 %batch)
  %next = add i64 %first, {stride}
  %more = icmp ult i64 %next, %batch
  br i1 %more, label %loop, label %done
done:
  ret void
}}

%job = type {{ ptr, ptr, i64, i64, i64, i64 }}

define internal ptr @work(ptr %j) #1 {{
  %job = load %job, ptr %j, align 8
  %args = extractvalue %job %job, 0
  %rets = extractvalue %job %job, 1
  %from = extractvalue %job %job, 2
  %batch = extractvalue %job %job, 3
  %thread = extractvalue %job %job, 5
  call void @span(ptr %args, ptr %rets, i64 %thread, i64 %from, i64 %batch)
  ret ptr null
}}

; Vectors are dealt to threads in turn: where environments are sorted by load, neighbours cost much
; the same. The calling thread takes part, so that a single vector starts no thread.
define void @run(ptr %args, ptr %rets, i64 %batch) #1 {{
entry:
  %jobs = alloca [{threads} x %job], align 8
  br label %start
start:
  %k = phi i64 [1, %entry], [%k1, %next]
  %from = mul i64 %k, {lanes}
  %job = getelementptr %job, ptr %jobs, i64 %k
  %left = icmp ult i64 %from, %batch
  %in = icmp ult i64 %k, {threads}
  %go = and i1 %left, %in
  br i1 %go, label %spawn, label %caller
spawn:
  %a = insertvalue %job poison, ptr %args, 0
  %b = insertvalue %job %a, ptr %rets, 1
  %c = insertvalue %job %b, i64 %from, 2
  %d = insertvalue %job %c, i64 %batch, 3
  %e = insertvalue %job %d, i64 0, 4
  %f = insertvalue %job %e, i64 %k, 5
  store %job %f, ptr %job, align 8
  %thread = getelementptr %job, ptr %job, i64 0, i32 4
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @work, ptr %job)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %next, label %alone
alone: ; the system has no thread to give: the caller does this work
  store i64 0, ptr %thread, align 8
  call ptr @work(ptr %job)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %start
caller:
  call void @span(ptr %args, ptr %rets, i64 0, i64 0, i64 %batch)
  br label %join
join:
  %n = phi i64 [1, %caller], [%n1, %joined]
  %waiting = icmp ult i64 %n, %k
  br i1 %waiting, label %one, label %done
one:
  %id.at = getelementptr %job, ptr %jobs, i64 %n, i32 4
  %id = load i64, ptr %id.at, align 8
  %ran = icmp eq i64 %id, 0
  br i1 %ran, label %joined, label %wait
wait:
  call i32 @pthread_join(i64 %id, ptr null)
  br label %joined
joined:
  %n1 = add i64 %n, 1
  br label %join
done:
  ret void
}}

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
; `noinline`: LLVM's passes take twice as long over one function of all loops.
; `prefer-vector-width`: else LLVM splits vectors of 512 bits in two for some processors.
attributes #0 = {{ noinline nounwind "prefer-vector-width"="{bits}" }}
attributes #1 = {{ nounwind "prefer-vector-width"="{bits}" }}
attributes #2 = {{ alwaysinline nounwind "prefer-vector-width"="{bits}" }}
"""
