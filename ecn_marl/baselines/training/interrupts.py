"""Ctrl-C and SIGTERM as a wish to stop, which the training loop grants between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While this context is open, the first signal only sets `wanted`; a second one acts at once.

    Signals can only be caught in the main thread; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.wanted: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        """Catch signals."""
        if threading.current_thread() is threading.main_thread():
            self._former = {one: signal.signal(one, self._note) for one in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Act on signals as before."""
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for one, handler in self._former.items():
            signal.signal(one, handler)
        self._former = {}
