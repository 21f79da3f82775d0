"""Sums of many threads' values into a short table: every element has a thread that adds them up.

Threads hand their values over in shared memory. Votes on the bits of their rows tell the thread of
each element which values are its own. It adds them in the order of the threads, so results are the
same in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ecn_marl.lanes.assembly import SCALAR
from ecn_marl.lanes.dealing import WAIT, Change
from ecn_marl.lanes.elementwise import combine
from ecn_marl.lanes.graph import BOOL
from ecn_marl.lanes.residence import STAGE_BYTES, WARP, rounds

if TYPE_CHECKING:
    from ecn_marl.lanes.resident import Round

MOST_PLACES = 96
"""Most elements of a table that threads add up."""

LINE = WARP + 1
"""Words from one column's values to the next one's: 32 would share a bank of memory."""

MOST_COLUMNS = STAGE_BYTES // (4 * LINE)
"""Most columns whose values fit into the shared memory for them."""

BALLOT = "llvm.nvvm.vote.ballot.sync"


def columns_of(change: Change) -> list[int] | None:
    """Columns of a table to whose rows threads add something; None if it is no such change."""
    first = change.updates[0].item
    place = first.place
    if place is None or len(place.indices) != 1 or first.store.dtype == BOOL:
        return None
    if place.mode == "clip" or (place.fixed != place.fixed[0]).any():
        return None
    if first.op == "set" or any(u.item.op != first.op for u in change.updates):
        return None
    columns = [int(u.item.place.fixed[0]) for u in change.updates if u.item.place is not None]
    if columns != list(range(columns[0], columns[0] + len(columns))):
        return None
    elements = (place.limits[0] + 1) * len(columns)
    return columns if len(columns) <= MOST_COLUMNS and elements <= MOST_PLACES else None


def handed_over(
    body: Round, stage: int, k: int, change: Change, columns: list[int], active: str
) -> list[str]:
    """Lines that add what threads computed to the rows of a table.

    Args:
        body: the round that computed it.
        stage: where values are handed over, in shared memory.
        k: a number that no other change of this loop has.
        change: what is added.
        columns: those of a row, see `columns_of`.
        active: whether a thread adds something (name).
    """
    item = change.updates[0].item
    place, emit, do = item.place, body.emit, body.do
    assert place is not None
    body.module.declared[BALLOT] = f"declare i32 @{BALLOT}(i32, i1) convergent"
    kind, rows = SCALAR[item.store.dtype], place.limits[0] + 1
    known = dict(body.values)
    row = body.operand(place.indices[0])
    assert not body.lines, "the turn has looked up the row"
    on = emit(f"and i1 {active}, {change.inside or 'true'}")
    base = emit(f"getelementptr inbounds i8, ptr %near, i64 {stage}")
    own = emit(f"getelementptr inbounds i32, ptr {base}, i64 %sub")
    body.lines.append(WAIT)
    for c, update in enumerate(change.updates):
        at = emit(f"getelementptr inbounds i32, ptr {own}, i64 {LINE * c}")
        do(f"store {kind} {update.value}, ptr {at}, align 4")
    who = emit(f"call i32 @{BALLOT}(i32 -1, i1 {on})")
    votes = []
    for b in range(max(rows - 1, 1).bit_length()):
        bit = emit(f"and i32 {row}, {1 << b}")
        votes.append(emit(f"call i32 @{BALLOT}(i32 -1, i1 {emit(f'icmp ne i32 {bit}, 0')})"))
    body.lines.append(WAIT)
    for turn in range(rounds(rows * len(columns))):
        _added_up(body, f"g{k}.{turn}", change, (turn, base, who, votes), columns)
        body.values = dict(known)
    body.lines.append(WAIT)
    return body.drain()


def _added_up(
    body: Round,
    name: str,
    change: Change,
    given: tuple[int, str, str, list[str]],
    columns: list[int],
) -> None:
    """Write what the threads of elements do in one round.

    Args:
        body: where to.
        name: beginning of names of blocks and values.
        change: what is added.
        given: the round, the address of the values, and votes: who adds something, and who has
            each bit of its row set.
        columns: those of a row.
    """
    item = change.updates[0].item
    store, place, width = item.store, item.place, len(columns)
    assert place is not None
    turn, base, who, votes = given
    kind, emit, do = SCALAR[store.dtype], body.emit, body.do
    short = emit("trunc i64 %sub to i32")
    element = emit(f"add i32 {short}, {turn * WARP}")
    row = emit(f"udiv i32 {element}, {width}")
    column = emit(f"sub i32 {element}, {emit(f'mul i32 {row}, {width}')}")
    inside = emit(f"icmp ult i32 {element}, {(place.limits[0] + 1) * width}")
    mask = emit(f"select i1 {inside}, i32 {who}, i32 0")
    for b, vote in enumerate(votes):
        bit = emit(f"and i32 {emit(f'lshr i32 {row}, {b}')}, 1")
        # All ones where the row's bit is not set: those who voted against it are meant.
        against = emit(f"sub i32 {bit}, 1")
        mask = emit(f"and i32 {mask}, {emit(f'xor i32 {vote}, {against}')}")
    do(f"br i1 {emit(f'icmp ne i32 {mask}, 0')}, label %{name}.start, label %{name}.done")
    body.lines.append(f"{name}.start:")
    first = emit(f"add i32 {emit(f'mul i32 {row}, {place.strides[0]}')}, {columns[0]}")
    at = emit(f"zext i32 {emit(f'add i32 {first}, {column}')} to i64")
    target = body.pointer(store, at)
    before = emit(f"load {kind}, ptr {target}, align 4")
    away = emit(f"zext i32 {emit(f'mul i32 {column}, {LINE}')} to i64")
    line = emit(f"getelementptr inbounds i32, ptr {base}, i64 {away}")
    do(f"br label %{name}.loop")
    body.lines.append(f"{name}.loop:")
    do(f"%{name}.left = phi i32 [{mask}, %{name}.start], [%{name}.fewer, %{name}.loop]")
    do(f"%{name}.sum = phi {kind} [{before}, %{name}.start], [%{name}.more, %{name}.loop]")
    body.module.declared["llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    thread = emit(f"call i32 @llvm.cttz.i32(i32 %{name}.left, i1 true)")
    there = emit(f"getelementptr inbounds i32, ptr {line}, i64 {emit(f'zext i32 {thread} to i64')}")
    value = emit(f"load {kind}, ptr {there}, align 4")
    total = combine(body, item.op, store.dtype, f"%{name}.sum", value)
    do(f"%{name}.more = select i1 true, {kind} {total}, {kind} {total}")
    do(f"%{name}.fewer = and i32 %{name}.left, {emit(f'sub i32 %{name}.left, 1')}")
    again = emit(f"icmp ne i32 %{name}.fewer, 0")
    do(f"br i1 {again}, label %{name}.loop, label %{name}.end")
    body.lines.append(f"{name}.end:")
    do(f"store {kind} %{name}.more, ptr {target}, align 4")
    do(f"br label %{name}.done")
    body.lines.append(f"{name}.done:")
