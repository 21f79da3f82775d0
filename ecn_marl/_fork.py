"""Processes made by `fork` after JAX was used.

JAX has threads, and `fork` copies memory but no threads. The first computation of the child waits
forever for a thread that does not exist. So the faces remember which process computed first, and
raise an error in a process that was forked from it.
"""

from __future__ import annotations

import os

from ecn_marl.errors import ForkedProcess

_computing_pid: int | None = None
"""Id of the process that computed first; a forked process inherits it, a spawned one does not."""


def check_process() -> None:
    """Check that this process may compute; the first process that calls this may.

    Raises:
        ForkedProcess: it was forked from one that has computed.
    """
    global _computing_pid
    if _computing_pid is None:
        _computing_pid = os.getpid()
    elif _computing_pid != os.getpid():
        raise ForkedProcess(
            f"process {os.getpid()} was forked from process {_computing_pid}, which has computed "
            "with JAX: it would hang; start processes with multiprocessing.get_context('spawn'), "
            "or make them before the first reset"
        )
