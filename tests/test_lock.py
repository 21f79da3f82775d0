"""One process at a time works in a folder; the lock of a dead process is stale."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from ecn_marl import _lock
from ecn_marl._lock import DEAD, LOCK, locked
from ecn_marl.errors import FolderInUse

HOLD = """
import sys, time
from ecn_marl._lock import locked
with locked(sys.argv[1], "train"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder(folder):
    """Another process that works in a folder."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def refused(folder, message):
    with pytest.raises(FolderInUse, match=message), locked(folder, "train"):
        raise AssertionError


def left_behind(folder, age):
    """The file of a holder on another machine."""
    record = {"pid": 1, "host": "elsewhere", "since": "2026-01-01T00:00:00+00:00", "work": "tune"}
    (folder / LOCK).write_text(json.dumps(record))
    os.utime(folder / LOCK, (time.time() - age,) * 2)


def test_nobody_else_gets_in_and_nothing_is_left(tmp_path):
    with locked(tmp_path / "new", "bench"):
        refused(tmp_path / "new", f"in use by process {os.getpid()} on .*bench, since")
        assert (tmp_path / "new" / LOCK).is_file()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_killed_process_lets_go(tmp_path):
    with holder(tmp_path) as process:
        refused(tmp_path, f"process {process.pid} on ")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / LOCK).is_file()
        with locked(tmp_path, "train"):
            assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_another_machine_is_given_up_when_it_gave_no_sign_of_life(tmp_path):
    left_behind(tmp_path, age=0.5 * DEAD)
    refused(tmp_path, r"process 1 on elsewhere .* wait 120 s or delete")
    left_behind(tmp_path, age=2.0 * DEAD)
    with locked(tmp_path, "train"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "null", "[1]", "{", "{}"])
def test_a_file_that_says_nothing_is_stale(tmp_path, content):
    (tmp_path / LOCK).write_text(content)
    with locked(tmp_path, "train"):
        assert json.loads((tmp_path / LOCK).read_text())["work"] == "train"


def test_without_locks_of_the_file_system_the_process_number_tells(tmp_path, monkeypatch):
    def none(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with holder(tmp_path) as process:
        refused(tmp_path, f"process {process.pid} on ")
        process.kill()
        process.wait()
        with locked(tmp_path, "train"):
            pass


def test_the_holder_gives_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(_lock, "BEAT", 0.01)
    with locked(tmp_path, "train"):
        os.utime(tmp_path / LOCK, (0.0, 0.0))
        until = time.monotonic() + 20.0
        while (tmp_path / LOCK).stat().st_mtime == 0.0 and time.monotonic() < until:
            time.sleep(0.01)
        assert time.time() - (tmp_path / LOCK).stat().st_mtime < DEAD


def test_of_many_that_try_at_once_one_is_in_at_a_time(tmp_path):
    inside, most, entered = [], [], []

    def work(number):
        for _ in range(50):
            try:
                with locked(tmp_path, "train"):
                    inside.append(number)
                    most.append(len(inside))
                    time.sleep(1e-4)
                    inside.remove(number)
                    entered.append(number)
            except FolderInUse:
                time.sleep(1e-4)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) > 6
    assert set(most) == {1}
