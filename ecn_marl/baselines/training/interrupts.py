"""Ctrl-C and SIGTERM as a request to stop, which the training loop obeys between two updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], object] | int | None
"""What `signal.signal` takes and returns."""


class Interrupts:
    """In this context, the first signal only sets `requested`; a second one acts at once.

    Signals can only be caught in the main thread; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._former: dict[signal.Signals, Handler] = {}

    def __enter__(self) -> Interrupts:
        """Catch signals."""
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the former handlers of the signals."""
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
