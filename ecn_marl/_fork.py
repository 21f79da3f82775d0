"""Processes made by `fork` after JAX was used.

JAX has threads, and `fork` copies memory but no threads: in the child the first computation waits
for ever for a thread that is not there. So the faces remember which process computed first, and
refuse to compute in another one that was forked from it.
"""

from __future__ import annotations

import os

from ecn_marl.errors import ForkedProcess

_first: int | None = None
"""Number of the process that computed first; a forked one inherits it, a spawned one does not."""


def check_process() -> None:
    """Check that this process may compute; the first that asks may.

    Raises:
        ForkedProcess: it was forked from one that has computed.
    """
    global _first
    if _first is None:
        _first = os.getpid()
    elif _first != os.getpid():
        raise ForkedProcess(
            f"process {os.getpid()} was forked from process {_first}, which has computed with JAX: "
            "it would hang; start processes with multiprocessing.get_context('spawn'), or make "
            "them before the first reset"
        )
