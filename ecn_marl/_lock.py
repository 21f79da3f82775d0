"""Folders that one process at a time writes to.

A file in the folder says who works on it: process, machine, since when. The kernel holds a lock on
it (`flock`) and drops that when the process ends, however it ends, so what a killed process leaves
on this machine is known to be stale. Where the folder is shared by machines, and the lock perhaps
not, the holder touches the file every `BEAT` seconds: what was not touched for `DEAD` is stale.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from ecn_marl._files import naming
from ecn_marl.errors import FolderInUse

LOCK = ".lock"
"""The file."""

BEAT, DEAD = 20.0, 120.0
"""Seconds between signs of life, and without one after which a holder elsewhere is given up."""

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a file system without locks answers."""


@contextmanager
def locked(folder: str | Path, work: str) -> Iterator[None]:
    """Work in a folder alone.

    Args:
        folder: the folder; made if there is none.
        work: what is done there, for the message of others.

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
        alive.join()
        path.unlink(missing_ok=True)  # while it is held: nobody can have taken it
        os.close(file)


def _take(path: Path, work: str) -> int:
    """The open file, locked, with this process's name in it."""
    while True:
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
                text = (json.dumps(me) + "\n").encode()
                done = os.pwrite(file, text, 0)
                while done < len(text):  # a disk that is full takes a part first
                    done += os.pwrite(file, text[done:], done)
            return file
        except BaseException:
            os.close(file)
            raise


def _flock(file: int) -> bool | None:
    """Whether the lock could be had; None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
    return True


def _holder(file: int) -> dict[str, Any]:
    """What the file says; empty if it says nothing."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_stale(holder: dict[str, Any], file: int, free: bool | None) -> bool:
    """Whether the holder is gone, where the lock is free (True) or there are none (None)."""
    if not holder:
        return True
    here = socket.gethostname()
    if holder.get("host", here) == here:
        return free is True or not _is_running(holder.get("pid"))
    return time.time() - os.fstat(file).st_mtime > DEAD


def _is_running(pid: Any) -> bool:
    if not isinstance(pid, int) or pid < 1:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_there(path: Path, file: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False


def _beat(file: int, over: threading.Event) -> None:
    while not over.wait(BEAT):
        os.utime(file)


def _message(path: Path, holder: dict[str, Any]) -> str:
    who = "another process"
    if holder:
        who = (
            f"process {holder.get('pid')} on {holder.get('host')} "
            f"({holder.get('work')}, since {holder.get('since')})"
        )
    more = ""
    if holder.get("host") not in (None, socket.gethostname()):
        more = f"; if that is gone, wait {DEAD:g} s or delete {path}"
    return f"{path.parent} is in use by {who}{more}"
