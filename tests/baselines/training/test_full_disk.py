"""A full disk: one error that names the file, nothing hangs, and the run goes on afterwards.

A limit on the size of files stands for the disk; it has the same effect on whoever writes, and
needs no file system of its own. `/dev/full` is one that is always full.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_resume import Counting, rows

from ecn_marl._files import Output, write_all
from ecn_marl._lock import LOCK, locked
from ecn_marl.baselines.training.checkpoint import Checkpoints
from ecn_marl.baselines.training.logs import JsonLines, TensorBoard
from ecn_marl.baselines.training.loop import Saving, train

EVERY_UPDATE = Saving(updates=1)
FULL = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files of this process, bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [20, 60, 300, 900])
def test_training_stops_with_one_error_and_goes_on_when_there_is_room(tmp_path, capfd, size):
    """The sizes end a checkpoint, the metrics or TensorBoard's file, whichever is first."""
    run, uninterrupted = tmp_path / "full", tmp_path / "whole"
    run.mkdir()
    uninterrupted.mkdir()
    with pytest.raises(OSError) as caught, largest_file(size):
        train(Counting(), None, steps=40, out=run, saving=EVERY_UPDATE)
    assert str(run) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "File too large" in str(caught.value)
    assert capfd.readouterr().err == ""
    saved = Checkpoints(run)
    assert not list(saved.folder.glob("*.orbax-checkpoint-tmp"))
    train(Counting(), None, steps=40, out=run, saving=EVERY_UPDATE, resume=saved.steps != [])
    train(Counting(), None, steps=40, out=uninterrupted, saving=EVERY_UPDATE)
    assert rows(run) == rows(uninterrupted)


@needs_full
def test_metrics_name_their_file(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to(FULL)
    with pytest.raises(OSError, match=r"No space left on device.*metrics\.jsonl"):
        JsonLines(tmp_path).write({"update": 1})


def test_tensorboard_never_waits_for_a_disk(tmp_path, monkeypatch):
    """More rows than any queue holds, on a full disk."""
    monkeypatch.setattr("ecn_marl.baselines.training.logs.FLUSH_SECONDS", 0.0)
    log = TensorBoard(tmp_path)
    failed = 0
    with largest_file(30):
        for update in range(1, 100):
            try:
                log.write({"update": update, "reward": 0.5})
            except OSError as error:
                assert "tensorboard" in str(error)
                failed += 1
        log.close()
    assert failed > 50


def test_errors_at_the_end_are_raised(tmp_path):
    log = TensorBoard(tmp_path)
    log.write({"update": 1, "reward": 0.5})
    with largest_file(30), pytest.raises(OSError, match="tensorboard"):
        log.close()


@needs_full
def test_files_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("{}")

    def write(file):
        file.write("x" * 100)

    with largest_file(10), pytest.raises(OSError, match=r"File too large.*scores\.json"):
        write_all({path: Output("w", write)})
    assert [p.name for p in tmp_path.iterdir()] == ["scores.json"]
    assert json.loads(path.read_text()) == {}


def test_a_lock_names_its_file(tmp_path):
    full = pytest.raises(OSError, match=f"File too large.*{LOCK}")
    with largest_file(10), full, locked(tmp_path, "train"):
        raise AssertionError
    with locked(tmp_path, "train"):
        pass
