"""Progress bars: what is done, how long it has taken, and that it compiles while nothing moves.

The first call of a program compiles it, which takes seconds to a minute in which nothing can be
counted. So a bar that has not moved says `compiling …`, and the time goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

COMPILING = "compiling …"

SILENCE_S = (10.0, 60.0)
"""Without a terminal: seconds until the first line that says that it compiles, and between two."""

WIDE, NARROW = 100, 80
"""Columns from which on a bar is long, and from which on there is one."""


def clock(seconds: float) -> str:
    """A time as `M:SS`, with hours where there are some."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def done_text(done: float, total: float, unit: str) -> str:
    """How much is done; that it compiles where nothing is yet."""
    return f"{done:,.0f}/{total:,.0f} {unit}" if done else COMPILING


def bar_of(unit: str, console: Any, disable: bool = False) -> Progress:
    """A bar of rich that fits a console.

    Args:
        unit: what is counted.
        console: console of rich; a narrow one has no bar, only numbers and times.
        disable: whether nothing is to be shown.
    """
    from rich import progress as rp
    from rich.table import Column
    from rich.text import Text

    class Done(rp.ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(done_text(task.completed, task.total, unit))

    class Times(rp.ProgressColumn):
        def render(self, task: Any) -> Text:
            left = task.time_remaining if task.completed else None
            more = "" if left is None else f", {clock(left)} left"
            return Text(clock(task.elapsed or 0.0) + more)

    columns: list[Any] = [rp.TextColumn("{task.description}", table_column=Column(no_wrap=True))]
    if console.width >= NARROW:
        columns.append(rp.BarColumn(bar_width=30 if console.width >= WIDE else 12))
    note = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns += [
        Done(table_column=Column(no_wrap=True)),
        Times(table_column=Column(no_wrap=True)),
        rp.TextColumn("{task.fields[note]}", table_column=note),
    ]
    return rp.Progress(*columns, console=console, transient=True, disable=disable, expand=True)


@contextmanager
def progress(
    task: str, unit: str, total: float, lines: bool = True, quiet: bool = False
) -> Iterator[Any]:
    """A progress bar on a terminal, and a function `show(done, note="")` to move it.

    Where there is no terminal, `lines` writes a line at every tenth of the way instead, and now and
    then one while it compiles. With `quiet` nothing is shown.
    """
    from rich.console import Console

    terminal, began = sys.stderr.isatty() and not quiet, time.monotonic()
    tell = lines and not terminal and not quiet
    bar = bar_of(unit, Console(stderr=True), disable=not terminal)
    tenth, moved = 0, threading.Event()

    def show(done: float, note: str = "") -> None:
        nonlocal tenth
        bar.update(row, completed=done, note=note)
        if done:
            moved.set()
        if tell and int(10 * done / total) > tenth:
            tenth = int(10 * done / total)
            typer.echo(f"{task}: {done:,.0f}/{total:,.0f} {unit} {note}".rstrip(), err=True)

    if tell:
        _tell_that_it_compiles(task, moved, began)
    try:
        with bar:
            row = bar.add_task(task, total=total, note="")
            yield show
    finally:
        moved.set()


def _tell_that_it_compiles(task: str, moved: threading.Event, began: float) -> None:
    """Write a line now and then until something has moved."""
    stderr = sys.stderr  # of this thread's caller: tests put another in its place

    def wait() -> None:
        pause = SILENCE_S[0]
        while not moved.wait(pause):
            taken = clock(time.monotonic() - began)
            typer.echo(f"{task}: {COMPILING} {taken}", file=stderr)
            pause = SILENCE_S[1]

    threading.Thread(target=wait, daemon=True).start()
