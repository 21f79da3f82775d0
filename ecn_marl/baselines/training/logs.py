"""Logs of metrics: JSON lines and TensorBoard always, Weights & Biases on request.

`metrics.jsonl` is the record of a run. A resumed run cuts it back to its checkpoint and goes on, so
that it always has one line per update.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ecn_marl._errors import bad_value
from ecn_marl._files import naming, without_nan

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"

FLUSH_SECONDS = 10.0
"""Time after which scalars of TensorBoard are on disk."""

Row = dict[str, Any]
"""Metrics of one update; values are numbers, or lists with one number per seed."""


@runtime_checkable
class Log(Protocol):
    """Receives the rows of a run one by one."""

    def write(self, row: Row) -> None:
        """Take a row."""

    def close(self) -> None:
        """The last row has been written."""


class JsonLines:
    """`metrics.jsonl`: a line per update, passed to the system before the next update starts."""

    def __init__(self, run: Path, kept: Sequence[Row] = ()) -> None:
        """Start the file, or go on after the rows that `cut_rows` kept."""
        self._path = run / METRICS
        if not kept:
            with naming(self._path):
                self._path.write_text("", encoding="utf-8")

    def write(self, row: Row) -> None:
        """Write a line."""
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(without_nan(row), allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is open."""


OLD_NAMES: Mapping[str, str] = {f"score{end}": f"merit{end}" for end in ("", "_low", "_high")}
"""Names of metrics in rows of versions up to 0.2, and what they are now."""


def read_rows(run: Path) -> list[Row]:
    """All rows of a run's `metrics.jsonl`; none where it has not begun.

    The last line may be one that a process was writing when it was killed: it is no row.
    """
    path = run / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [_row(line) for line in lines if line.endswith(b"\n")]


def cut_rows(run: Path, update: int) -> list[Row]:
    """Cut `metrics.jsonl` after the row of an update, e.g. that of a checkpoint.

    Later rows come from the time between the checkpoint and the end of the process; the last one
    may be incomplete.

    Args:
        run: folder of the run.
        update: number of the last row that is kept, 0 for none.

    Returns:
        The rows that are kept.

    Raises:
        ValueError: a row up to this one is missing or cannot be read.
    """
    path, size = run / METRICS, 0
    rows: list[Row] = []
    if update and path.is_file():
        with path.open("rb") as file:
            for line in file:
                if len(rows) == update or not line.endswith(b"\n"):
                    break
                rows.append(_row(line))
                if rows[-1].get("update") != len(rows):
                    break
                size += len(line)
    if len(rows) != update or (rows and rows[-1].get("update") != update):
        raise bad_value("run", str(run), f"a {METRICS} with a row for each of {update} updates")
    if path.is_file():
        os.truncate(path, size)
    return rows


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    named: dict[str, Any] = row if isinstance(row, dict) else {}
    return {OLD_NAMES.get(name, name): x for name, x in named.items()}


class TensorBoard:
    """Event files in `<run>/tensorboard`; the step of a scalar is the number of its update.

    Events are written in the caller's thread. A `SummaryWriter` would write them in its own thread,
    which ends when the disk is full. Then its queue of ten events fills up, and training waits for
    ever.
    """

    def __init__(self, run: Path, after: int = 0) -> None:
        """Open the folder.

        Args:
            run: folder of the run.
            after: the update that the run goes on from; TensorBoard then hides later events that
                an earlier process has left.

        Raises:
            OSError: nothing can be written there.
        """
        from tensorboardX.event_file_writer import EventsWriter  # only for runs that are written
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._folder = run / TENSORBOARD
        self._folder.mkdir(parents=True, exist_ok=True)
        with naming(self._folder):
            self._writer = EventsWriter(str(self._folder / "events"))
        self._broken, self._flushed = False, time.monotonic()
        if after:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(step=after + 1, session_log=start))

    def write(self, row: Row) -> None:
        """Write the scalars of a row; they are flushed every `FLUSH_SECONDS` at the latest.

        Raises:
            OSError: they cannot be written.
        """
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for tag, value in scalars(row).items():
            self._add(Event(step=row["update"], summary=scalar(tag, value)))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flushed = time.monotonic()
            with self._naming():
                self._writer.flush()

    def close(self) -> None:
        """Write the remaining events.

        Raises:
            OSError: it cannot be written, unless an earlier write failed as well.
        """
        with suppress(OSError) if self._broken else self._naming():
            self._writer.close()

    def _add(self, event: Any) -> None:
        event.wall_time = time.time()
        with self._naming():
            self._writer.write_event(event)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Add the folder to errors, and remember that there was one."""
        try:
            with naming(self._folder):
                yield
        except OSError:
            self._broken = True
            raise


def check_wandb(project: str) -> Any:
    """The package of Weights & Biases.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import wandb
    except ImportError:
        allowed = "wandb to be installed: pip install 'ecn-marl[wandb]'"
        raise bad_value("wandb", project, allowed) from None
    return wandb


class WeightsAndBiases:
    """A run of Weights & Biases; needs `pip install ecn-marl[wandb]`."""

    def __init__(self, run: Path, project: str, config: Mapping[str, object]) -> None:
        """Start a run, or continue that of the same folder.

        Args:
            run: folder of the run; its name is the run's name.
            project: name of the project.
            config: configuration shown beside the curves.

        Raises:
            ValueError: wandb is not installed.
        """
        wandb = check_wandb(project)
        note = run / "wandb.json"
        run_id = json.loads(note.read_text())["id"] if note.is_file() else None
        self._run = wandb.init(
            project=project, name=run.name, dir=str(run), config=config, id=run_id, resume="allow"
        )
        note.write_text(json.dumps({"id": self._run.id}) + "\n")

    def write(self, row: Row) -> None:
        """Send the scalars of a row."""
        self._run.log(scalars(row), step=row["update"])

    def close(self) -> None:
        """Send the remaining rows."""
        self._run.finish()


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row; of several seeds their mean, and each as `name/seed_I`."""
    means: dict[str, float] = {}
    for name, value in numbers(row).items():
        values = np.atleast_1d(np.asarray(value, np.float64))
        if name == "update":
            continue
        means[name] = float(values.mean())
        if isinstance(value, list):
            means |= {f"{name}/seed_{i}": float(x) for i, x in enumerate(values)}
    return means


def numbers(row: Row) -> Row:
    """What is a number in a row, or one for each seed; not the words of `merit_refused`."""
    return {name: value for name, value in row.items() if not isinstance(value, str)}


def evaluated_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Steps and merits of the states that were evaluated, the untrained one first.

    Args:
        rows: rows of `metrics.jsonl`.

    Returns:
        Of each `steps`, `merit` and, where they are known, `merit_low` and `merit_high`.
    """
    names = ("merit", "merit_low", "merit_high")
    start = {name: rows[0].get(f"start_{name}") for name in names} if rows else {}
    found = [{"steps": 0, **start}, *rows]
    return [
        {"steps": row["steps"]} | {name: row[name] for name in names if row.get(name) is not None}
        for row in found
        if row.get("merit") is not None
    ]
