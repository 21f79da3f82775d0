"""A matplotlib backend, `module://offscreen`: windows in memory that keep their pictures."""

from __future__ import annotations

from matplotlib.backend_bases import CloseEvent, FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

windows: list[Manager] = []
"""All that were opened, oldest first."""


class Manager(FigureManagerBase):
    def __init__(self, canvas, num):
        super().__init__(canvas, num)
        self.on_screen = False
        self.title = ""
        windows.append(self)

    def show(self):
        self.on_screen = True

    def set_window_title(self, title):
        self.title = title

    def destroy(self):
        if self.on_screen:
            self.on_screen = False
            self.canvas.callbacks.process("close_event", CloseEvent("close_event", self.canvas))


class FigureCanvas(FigureCanvasAgg):
    manager_class = Manager
    looks = 0
    """How often events were looked at."""

    def flush_events(self):
        self.looks += 1
