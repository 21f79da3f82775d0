"""Progress bars: work done, time taken, and `compiling …` before the first progress.

The first call of a program compiles it. This takes seconds to a minute without measurable progress.
So a bar that has not moved yet says `compiling …` while its clock runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.text import Text

COMPILING = "compiling …"

SILENCE_S = (10.0, 60.0)
"""Without a terminal: seconds until the first line `compiling …`, and the longest between lines."""

WIDE, NARROW = 100, 80
"""Columns of the terminal for a long bar, and for any bar."""


@runtime_checkable
class Move(Protocol):
    """Moves a bar."""

    def __call__(self, done: float, note: str = "", /) -> None:
        """Move the bar.

        Args:
            done: work done, in the unit of the bar.
            note: text beside it, for example the last J.
        """


def clock(seconds: float) -> str:
    """A time as `M:SS`, or `H:MM:SS` from an hour on."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


def done_text(done: float, total: float, unit: str) -> str:
    """Work done as text; `compiling …` if none is."""
    return f"{done:,.0f}/{total:,.0f} {unit}" if done else COMPILING


def bar_of(unit: str, console: Console, disable: bool = False) -> Progress:
    """A bar of rich that fits a console.

    Args:
        unit: unit of the numbers.
        console: console of rich; a narrow one has no bar, only numbers and times.
        disable: whether to show nothing.
    """
    from rich import progress as rp
    from rich.table import Column
    from rich.text import Text

    class Done(rp.ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(done_text(task.completed, task.total or 0.0, unit))

    class Times(rp.ProgressColumn):
        def render(self, task: Task) -> Text:
            left = task.time_remaining if task.completed else None
            remaining = "" if left is None else f", {clock(left)} left"
            return Text(clock(task.elapsed or 0.0) + remaining)

    columns: list[rp.ProgressColumn] = [
        rp.TextColumn("{task.description}", table_column=Column(no_wrap=True))
    ]
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
) -> Iterator[Move]:
    """A progress bar on stderr, and the function that moves it.

    Args:
        task: text before the bar.
        unit: unit of the numbers.
        total: all work, in this unit.
        lines: whether to write lines where stderr is no terminal: one at every tenth of the work,
            one a minute where that takes longer, and some while it compiles.
        quiet: whether to show nothing.
    """
    from rich.console import Console

    terminal, began = sys.stderr.isatty() and not quiet, time.monotonic()
    writes_lines = lines and not terminal and not quiet
    bar = bar_of(unit, Console(stderr=True), disable=not terminal)
    tenth, latest, moved = 0, began, threading.Event()
    notes: list[str] = []  # the last one, such as which search runs

    def show(done: float, note: str = "") -> None:
        nonlocal tenth, latest, total
        total = max(total, done)  # a search may take more episodes than expected
        bar.update(row, completed=done, total=total, note=note)
        notes[:] = [note] if note else []
        if done:
            moved.set()
        silence = time.monotonic() - latest
        if writes_lines and done and (int(10 * done / total) > tenth or silence >= SILENCE_S[1]):
            tenth, latest = int(10 * done / total), time.monotonic()
            typer.echo(f"{task}: {done:,.0f}/{total:,.0f} {unit} {note}".rstrip(), err=True)

    if writes_lines:
        _report_compiling(
            task, moved, began, notes
        )  # a thread, because compiling gives no control back
    try:
        with bar:
            row = bar.add_task(task, total=total, note="")
            yield show
    finally:
        moved.set()  # also after an error: the thread must not write any more


def _report_compiling(task: str, moved: threading.Event, began: float, notes: list[str]) -> None:
    """Write a line from time to time until the first progress."""
    stderr = sys.stderr  # read in the calling thread: tests replace `sys.stderr` for a while

    def wait() -> None:
        pause = SILENCE_S[0]
        while not moved.wait(pause):
            taken = clock(time.monotonic() - began)
            typer.echo(f"{task}: {notes[-1] if notes else COMPILING} {taken}", file=stderr)
            pause = SILENCE_S[1]

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def notebook_progress(
    task: str, total: float, show: Callable[[float, str], None] | None = None
) -> Iterator[Callable[[float, str], None]]:
    """What moves the bar of a function: the caller's, else a line in a notebook, else nothing.

    Args:
        task: text in front.
        total: all work.
        show: the caller's bar.
    """
    handle = None if show is not None else _notebook_line()
    if handle is None:
        yield show or (lambda done, note: None)
        return

    def move(done: float, note: str = "") -> None:
        handle.update({"text/plain": f"{task}: {done:,.0f}/{total:,.0f} {note}"}, raw=True)

    try:
        yield move
    finally:
        handle.update({"text/plain": ""}, raw=True)


def _notebook_line() -> Any:
    """A line below a notebook's cell that can be changed; None outside of notebooks."""
    # Not imported: who runs in a notebook has it already.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
