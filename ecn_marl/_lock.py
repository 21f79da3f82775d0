"""Locks of folders: one process at a time writes to a folder.

A file in the folder names the holder: process, machine, start time. The holder has a kernel lock on
it (`flock`). The kernel drops the lock when the process ends, even if it is killed, so on this
machine a file without a lock is stale. Other machines may share the folder but not the lock. So the
holder touches the file every `BEAT` seconds, and a file that was not touched for `DEAD` is stale.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ecn_marl._files import naming
from ecn_marl.errors import FolderInUse

LOCK = ".lock"
"""The file."""

BEAT, DEAD = 20.0, 120.0
"""Seconds between two touches, and seconds after the last one until another machine's is stale."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems without locks."""


@contextmanager
def locked(folder: str | Path, work: str) -> Iterator[None]:
    """Hold the lock of a folder.

    Args:
        folder: the folder; created if it does not exist.
        work: description of the work, for the error message of other processes.

    Raises:
        FolderInUse: another process (or thread) works there.
        OSError: nothing can be written there.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    file = _take(path, work)
    over = threading.Event()
    alive = threading.Thread(target=_beat, args=(file, over), daemon=True)
    alive.start()
    try:
        yield
    finally:
        over.set()
        alive.join()  # before the file is closed: its number may then name another file
        path.unlink(missing_ok=True)  # before the lock is dropped, so the file is still ours
        os.close(file)


def _take(path: Path, work: str) -> int:
    """Open and lock the file, and write this process's record to it."""
    while True:
        # Not truncated: until the lock is held, the file has the record of another process.
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            free = _flock(file)
            holder = _holder(file)
            if free is False or not _is_stale(holder, file, free):
                raise FolderInUse(_message(path, holder))
            if not _is_there(path, file):  # its holder has just finished
                os.close(file)
                continue
            me = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.now().astimezone().isoformat(timespec="seconds"),
                "work": work,
            }
            with naming(path):
                os.ftruncate(file, 0)
                record = (json.dumps(me) + "\n").encode()
                written = os.pwrite(file, record, 0)
                while written < len(record):  # a disk that is almost full takes only a part
                    written += os.pwrite(file, record[written:], written)
            return file
        except BaseException:
            os.close(file)
            raise


def _flock(file: int) -> bool | None:
    """Try to lock the file; whether that succeeded, None if the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        # Not `lockf`: POSIX locks do not keep out other threads of the same process.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def _holder(file: int) -> dict[str, Any]:
    """The record in the file; empty if there is none."""
    try:
        record = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _is_stale(holder: Mapping[str, object], file: int, free: bool | None) -> bool:
    """Whether the holder has ended; `free` is True for a free lock and None without locks."""
    if not holder:
        return True
    this_host = socket.gethostname()
    if holder.get("host", this_host) == this_host:
        return free is True or not _is_running(holder.get("pid"))
    return time.time() - os.fstat(file).st_mtime > DEAD


def _is_running(pid: object) -> bool:
    if not isinstance(pid, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True


def _is_there(path: Path, file: int) -> bool:
    """Whether the path is still that of the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _beat(file: int, over: threading.Event) -> None:
    while not over.wait(BEAT):
        os.utime(file)


def _message(path: Path, holder: Mapping[str, object]) -> str:
    user = "another process"
    if holder:
        user = (
            f"process {holder.get('pid')} on {holder.get('host')} "
            f"({holder.get('work')}, since {holder.get('since')})"
        )
    advice = ""
    if holder.get("host") not in (None, socket.gethostname()):
        advice = f"; if that is gone, wait {DEAD:g} s or delete {path}"
    return f"{path.parent} is in use by {user}{advice}"
